"""The consumer: passes messages to a handler in order, at least once, and commits its offset.

A message is committed after its handler returned, never before. Messages are handled one after another in the order of
offsets. After a crash, handling continues at the kept offset, so that only messages since the last commit are handled
twice. A message that fails max_attempts times becomes a dead letter, or stops the consumer with
:class:`RetriesExhaustedError`; it is never skipped silently.

A handler may also kill its process. ``ofs/NAME.tries`` (:mod:`sej.reading.attempts`) counts that: if its predecessor
died, a consumer commits and counts message by message until it has passed all messages that the predecessor may have
been handling. A message that killed max_attempts processes counts as failed.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from typing import Final

from sej.checks import WAIT, Seconds, backoff, handler_of, require, seconds
from sej.journal.directory import Directory, check_name, wait_for_journal
from sej.message import FIRST, LAST, Message, Start
from sej.reading.attempts import Attempts
from sej.reading.dead_letters import letters_path
from sej.reading.offset import Offset
from sej.reading.scanner import Scanner
from sej.system.disk import OS, Disk

BATCH: Final = 256
"""The most messages in a batch, if the caller does not say."""
_CAREFUL: Final = 1000
"""The predecessor may have had this many uncommitted messages, whatever the options are now."""
_STOP_LOOK_S: Final = 0.2


class Consumer:
    """A reader with a name, a kept offset and a handler.

    Example:
        >>> import tempfile, sej
        >>> path = tempfile.mkdtemp()
        >>> with sej.Writer(path) as w:
        ...     _ = w.append_many([b"a", b"b"])
        >>> Consumer(path, "worker", timeout=0.0).run(lambda message: print(message.value))
        b'a'
        b'b'
        2
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str,
        *,
        default: int | Start = FIRST,
        max_attempts: int = 5,
        dead_letter: str | os.PathLike[str] | None = None,
        timeout: Seconds | None = None,
        backoff_s: Seconds = 0.1,
        backoff_max_s: Seconds = 30.0,
        commit_messages: int = 1000,
        commit_interval_s: Seconds = 1.0,
        wait: bool = False,
        disk: Disk = OS,
    ) -> None:
        """Set up a reader; nothing is opened before :meth:`run`.

        Args:
            path: the SEJ directory.
            name: the reader's name; one process at a time may use it.
            default: where a reader that never committed starts.
            max_attempts: how often a message is handled before it counts as failed.
            dead_letter: another journal, for messages that failed; None: the consumer stops instead.
            timeout: seconds without a message, or a duration such as ``"1h"``, after which :meth:`run` returns; None:
                only when stopped.
            backoff_s: the wait before the second attempt, in seconds; doubled for each further one, with jitter.
            backoff_max_s: the longest wait.
            commit_messages: commit the offset at least every ``commit_messages`` messages,
            commit_interval_s: and at least this often, in seconds, while messages arrive.
            wait: let :meth:`run` wait for a journal that does not exist yet, for at most the timeout. All its messages
                are new then: LAST begins with the first one.
            disk: the disk.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: an argument is out of its range; InvalidNameError for the name.
        """
        timeout, commit_interval_s = seconds("timeout", timeout), seconds("commit_interval_s", commit_interval_s)
        backoff_s, backoff_max_s = seconds("backoff_s", backoff_s), seconds("backoff_max_s", backoff_max_s)
        require(default=default, max_attempts=max_attempts, dead_letter=dead_letter, timeout=timeout)
        require(backoff_s=backoff_s, backoff_max_s=backoff_max_s, commit_messages=commit_messages)
        require(commit_interval_s=commit_interval_s, wait=wait, disk=disk)
        self._directory = Directory(path, disk)
        self.path = self._directory.path
        self.name = check_name(name, "a reader's name")
        self._default = default
        self._waits = wait
        self._max_attempts = max_attempts
        self._dead_letter = None if dead_letter is None else letters_path(self._directory, dead_letter)
        self._timeout = timeout
        self._backoff_s = backoff_s
        self._backoff_max_s = backoff_max_s
        self._commit_messages = commit_messages
        self._commit_interval_s = commit_interval_s
        self._disk = disk
        self._stop = threading.Event()

    def run(self, handler: Callable[[Message], object], *, timeout: Seconds | Start | None = FIRST) -> int:
        """Handle messages until :meth:`stop`, or until none arrived for the timeout.

        Args:
            handler: called with one message after the other; an exception is a failed attempt. One that is not
                an Exception, as of ``sys.exit``, ends the run; if it is not ``KeyboardInterrupt``, the next run counts
                it like the death of the process.
            timeout: instead of the consumer's own, in seconds.

        Returns:
            How many messages were handled, including dead letters.

        Raises:
            RetriesExhaustedError: a message failed max_attempts times and there is no dead-letter journal; the offset
                is kept, and the next run starts with this message.
            JournalNotFoundError: the journal does not exist, with ``wait=True`` after the timeout.
            LockedError: another process has this reader name.
            SejError: as :class:`~sej.Scanner` and :class:`~sej.Offset`.
        """
        handler_of("message")("handler", handler)
        return self.run_batches(lambda batch: handler(batch[0]), batch_messages=1, timeout=timeout)

    def run_batches(
        self,
        handler: Callable[[list[Message]], object],
        *,
        batch_messages: int = BATCH,
        timeout: Seconds | Start | None = FIRST,
    ) -> int:
        """Handle messages like :meth:`run`, in batches. A batch that fails is tried again as a whole.

        After max_attempts its messages are handled one by one, so that only those that fail become dead letters.

        Args:
            handler: called with a list of messages.
            batch_messages: the most messages in a batch.
            timeout: as for :meth:`run`.

        Returns:
            How many messages were handled, including dead letters.

        Raises:
            RetriesExhaustedError: one message failed again alone, and there is no dead-letter journal.
            SejError: as :meth:`run`.
        """
        require(batch_messages=batch_messages, handler=(handler, handler_of("messages")))
        wait = self._timeout if isinstance(timeout, Start) else seconds("timeout", timeout)
        WAIT("timeout", wait)
        is_new = False
        try:
            if self._waits:
                arrived = wait_for_journal(self._directory, wait, self._stop.is_set)
                if arrived is None:
                    return 0
                is_new = arrived and self._default is LAST
            with (
                Offset(self.path, self.name, FIRST if is_new else self._default, disk=self._disk) as kept,
                Scanner(self.path, kept.value, wait, disk=self._disk) as scanner,
                Attempts(self._directory, self.name, max(self._commit_messages, _CAREFUL) + 2 * BATCH) as attempts,
            ):
                if is_new:
                    kept.commit(kept.value)  # LAST means this message, not the end at the next run
                return self._run(handler, batch_messages, scanner, kept, attempts)
        finally:
            self._stop.clear()

    def stop(self) -> None:
        """Let :meth:`run` return after the current message; called from any thread or signal handler."""
        self._stop.set()

    def _run(
        self,
        handler: Callable[[list[Message]], object],
        batch_messages: int,
        scanner: Scanner,
        kept: Offset,
        attempts: Attempts,
    ) -> int:
        handled = 0
        done = kept.value
        commit_at = time.monotonic() + self._commit_interval_s
        ready: list[Message] = []
        try:
            while not self._stop.is_set():
                if not ready:
                    ready = scanner.read(BATCH, timeout=0.0)
                if not ready:
                    kept.commit(done)  # idle: a good moment to commit
                    ready = self._wait(scanner)
                    commit_at = time.monotonic() + self._commit_interval_s
                    if not ready:
                        break
                size = 1 if attempts.careful(ready[0].offset) else batch_messages
                batch, ready = ready[:size], ready[size:]
                count = self._handle(handler, batch, kept, attempts)
                if count:
                    done = batch[count - 1].offset + 1
                    handled += count
                if count < len(batch):
                    break
                now = time.monotonic()
                if done - kept.value >= self._commit_messages or now >= commit_at or attempts.careful(batch[0].offset):
                    kept.commit(done)
                    commit_at = now + self._commit_interval_s
        finally:
            kept.commit(done)
        return handled

    def _wait(self, scanner: Scanner) -> list[Message]:
        """Wait for messages in short steps, because a signal handler can only set a flag for them."""
        deadline = None if scanner.timeout is None else time.monotonic() + scanner.timeout
        while not self._stop.is_set():
            left = _STOP_LOOK_S if deadline is None else min(deadline - time.monotonic(), _STOP_LOOK_S)
            ready = scanner.read(BATCH, timeout=max(left, 0.0))
            if ready or (deadline is not None and time.monotonic() >= deadline):
                return ready
        return []

    def _handle(
        self, handler: Callable[[list[Message]], object], batch: list[Message], kept: Offset, attempts: Attempts
    ) -> int:
        """Try until the batch is handled, is in the dead letters, or the consumer was stopped.

        Returns how many messages are finished.
        """
        attempt = attempts.begin(batch[0].offset, self._max_attempts)
        failure: BaseException | None = None
        while attempt < self._max_attempts:
            attempt += 1
            if failure is not None and self._stop.wait(backoff(attempt - 1, self._backoff_s, self._backoff_max_s)):
                return 0
            failure = attempts.failure_of(partial(handler, batch), attempt, batch[0].offset)
            if failure is None:
                return len(batch)
        if len(batch) > 1:
            one_by_one = (self._handle(handler, [message], kept, attempts) for message in batch)
            return sum(takewhile(bool, one_by_one))
        attempts.give_up(kept, batch[0], attempt, failure, self._dead_letter)
        return 1
