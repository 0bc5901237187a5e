"""The worker: claims free shards, handles their messages, and shares the shards with other workers.

Workers have no coordinator. A worker counts the live workers of its name by their lock files (:class:`LiveWorker`),
computes its share, claims free shards by their readers' locks until it has that many, and releases those above its
share. All of this relies on locks that end with their process; no clock decides which process is alive.

Two workers of a name never handle one shard concurrently, because a shard's reader lock has one holder. A message is
handled at least once, in order within its shard, and more than once only after a worker died or lost its lock. A new
worker gets its share as soon as the others have finished their current messages; the shards of a dead one are claimed
within a second.

The lock of a shard is the reader's own, ``ofs/NAME.lck``: its holder is the only reader of that name in this shard,
whether it is a worker, a :class:`sej.Consumer` or the original. ``ofs/NAME.tries`` (:mod:`sej.reading.attempts`) is the
consumer's note of the current message: a worker that finds one gives up a message that ended too many processes.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any, Final

from sej.checks import Seconds, backoff, handler_of, require, seconds
from sej.errors import JournalNotFoundError, LockedError, LockLostError
from sej.journal.directory import Directory, check_name
from sej.message import FIRST, Message, Start
from sej.reading.attempts import Attempts
from sej.reading.offset import Offset
from sej.system.disk import OS, Disk, absolute_path, spare_files
from sej.system.locks import NumberedLocks
from sej.system.logs import INFO, record
from shard.names import TREE, WORKERS_DIR, Path
from shard.scanner import Sources

COMMIT_MESSAGES: Final = 1000
"""The offset is committed at least every this many messages, so a successor is careful for that many."""
_COMMIT_S: Final = 1.0

Handler = Callable[[int, Message], object]


class Claim:
    """A shard that a worker holds: the reader's lock and offset, the position reached, and failures.

    Attributes:
        index: the shard.
        done: the next offset to handle.
        retry_at: the message at ``done`` is not tried again before this time (monotonic, seconds).
    """

    def __init__(self, worker: Worker, index: int, *, is_new: bool) -> None:
        """Take the reader's lock.

        Args:
            worker: whose name and options count.
            index: the shard.
            is_new: whether the shard is younger than the worker: it starts at its first message, whatever the default.

        Raises:
            LockedError: another process reads this shard under this name.
            SejError: as :class:`sej.Offset`.
        """
        self.index = index
        self._worker = worker
        path, name, disk = worker.path.dir(index), worker.name, worker._disk
        self._kept = Offset(path, name, FIRST if is_new else worker._default, disk=disk)
        self.done = self._kept.value
        self.retry_at = 0.0
        self._attempts = 0
        self._commit_at = time.monotonic() + _COMMIT_S
        try:
            if is_new:
                self._kept.commit(self.done)  # or a successor, for which the shard is old, starts at its own default
            self._note = Attempts(Directory(path, disk), name, 2 * COMMIT_MESSAGES)
            self._note.appear()
        except BaseException:
            self._kept.close()
            raise

    def handle(self, handler: Handler, batch: Sequence[Message], stop: Callable[[], bool]) -> int:
        """Handle messages one after the other until one fails, or stop returns True; return how many are finished.

        Raises:
            RetriesExhaustedError: one failed max_attempts times and the worker has no dead-letter journal.
            LockLostError: the reader's lock was lost: another process may handle the messages.
        """
        self._kept._lock.check()
        first, worker = self.done, self._worker
        for message in batch:
            if stop():
                break
            if not self._attempts and self._note.careful(message.offset):
                self._attempts = self._note.begin(message.offset, worker._max_attempts)
            failure = None
            if self._attempts < worker._max_attempts:
                handle = partial(handler, self.index, message)
                failure = self._note.failure_of(handle, self._attempts + 1, message.offset)
                self._attempts += failure is not None
            if failure is not None and self._attempts < worker._max_attempts:
                wait_s = backoff(self._attempts, worker._backoff_s, worker._backoff_max_s)
                self.retry_at = time.monotonic() + wait_s
                break
            if self._attempts >= worker._max_attempts:
                attempts, self._attempts = self._attempts, 0
                of = f" of shard {self.index:03x}"
                self._note.give_up(self._kept, message, attempts, failure, worker._dead_letter, of)
            self.done = message.offset + 1
            self._attempts = 0
            if self.done - self._kept.value >= COMMIT_MESSAGES or time.monotonic() >= self._commit_at:
                self.commit()
        return self.done - first

    def commit(self) -> None:
        """Commit the position reached, durably.

        Raises:
            LockLostError: the reader's lock was lost.
        """
        self._commit_at = time.monotonic() + _COMMIT_S
        if self.done > self._kept.value:
            self._kept.commit(self.done)

    def release(self) -> None:
        """Commit the position reached and release the lock.

        Raises:
            LockLostError: it was lost, and the note may belong to another process.
        """
        try:
            self.commit()
            self._kept._lock.check()
            self._note.remove()
        finally:
            self._note.close()
            self._kept.close()


_NAME: Final = re.compile(r"(\d{4,})\.slot")


class LiveWorker(NumberedLocks):
    """The lock file of one live worker."""

    def __init__(self, root: str, name: str, disk: Disk = OS) -> None:
        """Take the first free lock file."""
        folder = os.path.join(absolute_path(root), WORKERS_DIR, check_name(name, "a worker's name"))
        super().__init__(folder, "{:04d}.slot", disk)
        self.take()

    def rank(self) -> tuple[int, int]:
        """Return this worker's rank among the live ones, and their number."""
        numbers = {int(found[1]) for name in self._disk.list(self.folder) if (found := _NAME.fullmatch(name))}
        alive = sorted(numbers - self.dead(numbers) | {self.mine})
        return alive.index(self.mine), len(alive)


_BALANCE_S: Final = 0.25
"""Seconds between two counts of live workers: the longest delay before a death or a new worker is noticed."""
_LOOK_S: Final = 5.0
"""Seconds between two listings of all shards; the system reports new ones."""
_FILES_A_CLAIM: Final = 2
_FETCH_S: Final = 0.05
"""Seconds between two checks of a busy worker's other shards."""
_TURN: Final = 256
_TURN_S: Final = 0.1


class Worker:
    """Handles the messages of a sharded journal, together with all other workers of its name.

    Example:
        >>> import tempfile, shard
        >>> p = shard.Path(tempfile.mkdtemp(), "orders", 1)
        >>> with shard.Writer(p) as w:
        ...     _ = w.append_many([b"a", b"b"], [b"alice", b"alice"])
        >>> Worker(p, "mailer", timeout=0.0).run(lambda index, message: print(index, message.value))
        1 b'a'
        1 b'b'
        2
    """

    def __init__(
        self,
        path: Path,
        name: str,
        *,
        max_attempts: int = 5,
        dead_letter: str | os.PathLike[str] | None = None,
        default: int | Start = FIRST,
        timeout: Seconds | None = None,
        backoff_s: Seconds = 0.1,
        backoff_max_s: Seconds = 30.0,
        max_open: int = 256,
        disk: Disk = OS,
    ) -> None:
        """Set up a worker; nothing is opened before :meth:`run`.

        Args:
            path: the sharded journal.
            name: the reader's name in every shard: workers of one name share the shards.
            max_attempts: how often a message is handled before it counts as failed.
            dead_letter: the journal for messages that failed; None: the worker stops instead.
            default: where a shard starts that was never read under this name; one that is created while the worker runs
                starts at its first message.
            timeout: seconds without a message after which :meth:`run` returns; None: only when stopped.
            backoff_s: the wait before the second attempt, in seconds; doubled for each further one, with jitter. Other
                shards continue in the meantime.
            backoff_max_s: the longest wait.
            max_open: the most shards with an open segment at one time.
            disk: the disk.

        Raises:
            InvalidNameError: the name has characters that are not allowed.
        """
        timeout, backoff_s = seconds("timeout", timeout), seconds("backoff_s", backoff_s)
        backoff_max_s = seconds("backoff_max_s", backoff_max_s)
        TREE("path", path)
        path = path.absolute()
        require(max_attempts=max_attempts, dead_letter=dead_letter, default=default, timeout=timeout)
        require(backoff_s=backoff_s, backoff_max_s=backoff_max_s, max_open=max_open, disk=disk)
        self.path = path
        self.name = check_name(name, "a worker's name")
        self._timeout = timeout
        self._max_open = max_open
        self._max_attempts, self._default, self._disk = max_attempts, default, disk
        self._dead_letter = None if dead_letter is None else Directory(dead_letter, disk).path
        self._backoff_s, self._backoff_max_s = backoff_s, backoff_max_s
        self._stopped = False  # not an event, whose lock a signal's handler must not take
        self._claims: dict[int, Claim] = {}
        self._row: deque[int] = deque()
        self._absent: set[int] = set()
        self._late: set[int] = set()
        """Shards that did not exist when this run listed them: none of their messages is older than the worker."""
        self._most = path.count
        self._look_at = 0.0

    @property
    def shards(self) -> list[int]:
        """Return the shards that this worker holds."""
        return sorted(self._claims)

    def stop(self) -> None:
        """Let :meth:`run` return after the current message; called from any thread or signal handler."""
        self._stopped = True

    def run(self, handler: Handler, *, timeout: Seconds | Start | None = FIRST) -> int:
        """Handle messages until :meth:`stop`, SIGTERM (in the main thread), or until none arrived for the timeout.

        Args:
            handler: called with a shard's index and a message; an exception is a failed attempt.
            timeout: instead of the worker's own, in seconds.

        Returns:
            How many messages were handled, including dead letters.

        Raises:
            RetriesExhaustedError: a message failed max_attempts times and there is no dead-letter journal; its offset
                is kept.
            JournalNotFoundError: the root does not exist.
            SejError: as :class:`sej.Scanner` and :class:`sej.Offset`; the path names the shard.
        """
        handler_of("index", "message")("handler", handler)
        timeout = seconds("timeout", timeout)
        if self._disk.status(self.path.root) is None:
            raise JournalNotFoundError("the path does not exist; shard.Writer creates the root", path=self.path.root)
        room = spare_files()
        max_open = min(self._max_open, max(room // 4, 1))
        self._most = max((room - max_open) // _FILES_A_CLAIM, 1)
        wait = self._timeout if isinstance(timeout, Start) else timeout
        slot = LiveWorker(self.path.root, self.name, self._disk)
        sources = Sources(self.path, max_open=max_open, disk=self._disk)
        self._late.clear()
        previous = self._catch_sigterm()
        try:
            return self._run(handler, wait, slot, sources)
        finally:
            try:
                self._release(list(self._claims), sources)
            finally:
                sources.close()
                slot.release()
                self._stopped = False
                if previous is not None:
                    signal.signal(signal.SIGTERM, previous)

    def _run(self, handler: Handler, timeout: float | None, slot: LiveWorker, sources: Sources) -> int:
        handled = 0
        balance_at = fetch_at = 0.0
        quiet_since = time.monotonic()
        self._look_at = 0.0
        sources.watch()
        while not self._stopped:
            now = time.monotonic()
            if now >= balance_at:
                self._balance(slot, sources)
                balance_at = time.monotonic() + _BALANCE_S
            if self._row and now < fetch_at:
                done = self._turn(handler, sources)
                handled += done
                if done:
                    quiet_since = time.monotonic()
                continue
            now = time.monotonic()
            retries = [claim.retry_at for claim in self._claims.values() if claim.retry_at]
            limit = 0.0
            if not self._row:
                limit = min([balance_at, *retries]) - now
                if timeout is not None and not retries:
                    if now - quiet_since >= timeout:
                        break
                    limit = min(limit, quiet_since + timeout - now)
            self._fetch(sources, max(limit, 0.0))
            fetch_at = time.monotonic() + _FETCH_S
        return handled

    def _fetch(self, sources: Sources, limit: float) -> None:
        """Wait for messages, at most ``limit`` seconds; queue the shards that have some."""
        fresh, new = sources.wait(limit)
        if new:
            self._absent = set(sources.missing(self._absent))
        due = [claim.index for claim in self._claims.values() if 0 < claim.retry_at <= time.monotonic()]
        waiting = set(self._row)
        self._row.extend(index for index in {*fresh, *due} if index in self._claims and index not in waiting)

    def _turn(self, handler: Handler, sources: Sources) -> int:
        """Handle a batch of the first shard in the queue; a shard at its end, or with a failure, leaves the queue."""
        index = self._row.popleft()
        claim = self._claims.get(index)
        if claim is None or claim.retry_at > time.monotonic():
            return 0
        claim.retry_at = 0.0
        cursor = sources.there[index]
        until = time.monotonic() + _TURN_S
        batch = sources.read(index, _TURN)
        try:
            if not batch:
                claim.commit()  # idle: a good moment to commit
                cursor.judge()
                return 0
            done = claim.handle(handler, batch, lambda: self._stopped or time.monotonic() >= until)
        except LockLostError:
            self._release([index], sources)  # another worker may have it and handles messages that were not committed
            return 0
        if claim.done != cursor.due:
            sources.remove(index)
            sources.join(index, claim.done)
        if not claim.retry_at:
            self._row.append(index)
        return done

    # --- which shards are ours

    def _balance(self, slot: LiveWorker, sources: Sources) -> None:
        """Release shards above our share; claim free ones until we have it."""
        if time.monotonic() >= self._look_at:
            self._absent = set(sources.missing(range(self.path.count)))
            self._late |= self._absent
            self._look_at = time.monotonic() + _LOOK_S
        there = [index for index in range(self.path.count) if index not in self._absent]
        rank, workers = slot.rank()
        share = len(there) // workers + (rank < len(there) % workers)  # the shares of all add up
        if share > self._most:
            warnings.warn(
                f"this worker cannot open enough files for its {share} shards of {self.path.root} and leaves"
                f" {share - self._most} of them to others; raise its limit with ulimit -n, or start more workers",
                RuntimeWarning,
                stacklevel=2,
            )
            share = self._most
        if len(self._claims) > share:
            self._release(sorted(self._claims)[share:], sources)
        if len(self._claims) < share:
            start = rank * len(there) // workers
            for index in [*there[start:], *there[:start]]:
                if len(self._claims) >= share:
                    break
                if index not in self._claims:
                    self._claim(index, sources)

    def _claim(self, index: int, sources: Sources) -> None:
        try:
            claim = Claim(self, index, is_new=index in self._late)
        except LockedError:
            return
        except JournalNotFoundError:  # removed since it was listed
            self._absent.add(index)
            return
        self._claims[index] = claim
        record(__name__, INFO, "%s: worker %r claimed shard %d", self.path, self.name, index)
        sources.join(index, claim.done)
        self._row.append(index)

    def _release(self, indexes: list[int], sources: Sources) -> None:
        """Release shards, all of them even if one fails."""
        errors: list[Exception] = []
        for index in indexes:
            claim = self._claims.pop(index)
            record(__name__, INFO, "%s: worker %r releases shard %d", self.path, self.name, index)
            sources.remove(index)
            try:
                claim.release()
            except LockLostError:
                continue
            except Exception as error:
                errors.append(error)
        self._row = deque(index for index in self._row if index in self._claims)
        if errors:
            raise errors[0]

    def _catch_sigterm(self) -> Any:
        """Let SIGTERM stop the worker; return the previous handler, or None outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            return None

        def stop(_: int, __: FrameType | None) -> None:
            self._stopped = True

        return signal.signal(signal.SIGTERM, stop)
