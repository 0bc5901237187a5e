"""The scanner: follows a journal from an offset on.

A :class:`~sej.journal.cursor.Cursor` reads, a :class:`~sej.system.watch.Watch` waits. This module joins them and adds
timeouts, iteration, seeking, and closing from another thread. Memory is bounded by one chunk, one batch and the largest
message.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from itertools import chain, islice
from operator import length_hint
from typing import Final, Literal

from sej.checks import POSITIVE, START, WAIT, Seconds, require, seconds
from sej.errors import ClosedError
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory, Gap, wait_for_journal
from sej.journal.tail import Tail
from sej.journal.view import Journal
from sej.message import FIRST, LAST, Message, Start
from sej.system.disk import OS, Disk
from sej.system.lifecycle import Closing
from sej.system.logs import WARNING, record
from sej.system.watch import Watch

_BATCH: Final = 1024
_ITERATED: Final = 256
"""Messages of a batch of an iteration: so few stay in the processor's cache until the caller has read them."""
_JUDGE_AFTER_S: Final = 1.0


def check_arguments(
    path: str | os.PathLike[str],
    offset: int | Start = FIRST,
    timeout: Seconds | None = 0.0,
    *,
    on_corruption: str = "raise",
    verify: bool = False,
    wait: bool = False,
    disk: Disk = OS,
) -> tuple[Directory, float | None]:
    """Check the arguments of a :class:`Scanner` without opening it; return its directory and its timeout in seconds.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of its range.
    """
    timeout = seconds("timeout", timeout)
    require(timeout=timeout, on_corruption=on_corruption, verify=verify, wait=wait, disk=disk)
    START("offset", offset)
    return Directory(path, disk), timeout


class Scanner(Closing):
    """Reads the messages of a journal in order, and waits for more.

    It stores nothing on disk; see :class:`sej.Offset` for an offset that outlives the process. Use it from one thread;
    :meth:`close` may be called from any, and after it everything else raises :class:`~sej.ClosedError`.

    Attributes:
        path: the SEJ directory.
        timeout: seconds to wait for a message; None follows without a limit.

    Example:
        >>> import tempfile, sej
        >>> path = tempfile.mkdtemp()
        >>> with sej.Writer(path) as w:
        ...     _ = w.append_many([b"a", b"b"])
        >>> with Scanner(path) as s:
        ...     [message.value for message in s]
        [b'a', b'b']
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        offset: int | Start = FIRST,
        timeout: Seconds | None = 0.0,
        *,
        on_corruption: Literal["raise", "skip"] = "raise",
        verify: bool = False,
        wait: bool = False,
        disk: Disk = OS,
    ) -> None:
        """Open a journal for reading; nothing is created.

        Args:
            path: the SEJ directory.
            offset: the first one to read: a number, FIRST or LAST. A number past the end is waited for, and the logger
                of this module warns once.
            timeout: seconds without a message, or a duration such as ``"1h"``, after which reading ends; 0 reads the
                existing messages, None follows without a limit.
            on_corruption: ``"skip"`` delivers the messages that :meth:`sej.Journal.repair` would keep, and reports the
                others in :attr:`gaps`. A damaged segment is read twice, and each of its runs of good messages takes
                some memory.
            verify: check every block against its checksum before its messages are returned.
            wait: wait for a journal that does not exist yet, for at most the timeout. All its messages are new then:
                LAST begins with the first one.
            disk: the disk.

        Raises:
            JournalNotFoundError: the path does not exist, with ``wait=True`` after the timeout.
            NotAJournalError: the path is not a SEJ directory.
            OffsetTooSmallError: the offset was deleted.
        """
        self._directory, timeout = check_arguments(
            path, offset, timeout, on_corruption=on_corruption, verify=verify, wait=wait, disk=disk
        )
        if wait and wait_for_journal(self._directory, timeout) and offset is LAST:
            offset = FIRST
        self._directory.require()
        self.path = self._directory.path
        self.timeout = timeout
        self._on_corruption: Literal["raise", "skip"] = on_corruption
        self._verify = verify
        self._using = threading.RLock()
        self._reading = self._closed = False
        self._interrupted = False
        self._watch: Watch | None = None
        self._passed: list[Gap] = []
        self._ready: Iterator[Message] = iter(())
        self._cursor = self._start(offset)
        self._offset = self._cursor.due

    # --- reading

    def read(self, max_messages: int = _BATCH, timeout: Seconds | Start | None = FIRST) -> list[Message]:
        """Read a batch; returns as soon as there is one message.

        Args:
            max_messages: the most messages to return.
            timeout: seconds to wait for the first; default: the scanner's own.

        Returns:
            The messages; an empty list after the timeout, or if the scanner was closed in the meantime.

        Raises:
            SejError: as the cursor: OffsetTooSmallError, OffsetGapError, CorruptionError, TruncatedError.
            JournalNotFoundError: the journal was removed, or removed and created again with other messages.
            ClosedError: the scanner was closed before.
        """
        wait = self._check_read(max_messages, timeout)
        with self._using:
            batch = list(islice(self._ready, max_messages))
            return batch or self._more(max_messages, wait)

    @property
    def ready(self) -> int:
        """The number of messages that were read ahead and are available without waiting."""
        return length_hint(self._ready)

    def prefetch(self, max_messages: int = _BATCH, timeout: Seconds | Start | None = FIRST) -> bool:
        """Read a batch ahead, like :meth:`read`, and keep it for the next read; return whether there is one."""
        wait = self._check_read(max_messages, timeout)
        with self._using:
            if not self.ready:
                self._ready = iter(self._more(max_messages, wait))
            return self.ready > 0

    def interrupt(self) -> None:
        """Let a read that waits in another thread return nothing, as after its timeout."""
        self._interrupted = True
        if self._watch is not None:
            self._watch.wake()

    def resume(self) -> None:
        """Cancel an interrupt: the read may have ended before it, and the next one must wait again."""
        self._interrupted = False

    def __iter__(self) -> Iterator[Message]:
        """Yield messages until the timeout passes. A second iteration continues where the first ended."""
        return chain.from_iterable(self._batches())  # in C from message to message

    def _batches(self) -> Iterator[Iterator[Message]]:
        """Yield what was read ahead, then the next batches."""
        self._require_open()
        while True:
            yield self._ready
            if not length_hint(self._ready):
                with self._using:
                    batch = self._more(_ITERATED, self.timeout)
                    if not batch:
                        return
                    self._ready = iter(batch)

    @property
    def offset(self) -> int:
        """The offset of the next message."""
        return self._offset - length_hint(self._ready)  # a list's iterator knows exactly what it still holds

    @property
    def gaps(self) -> list[Gap]:
        """Lost messages that were passed, in gaps that a repair recorded or skipped by ``on_corruption="skip"``."""
        return [*self._passed, *self._cursor.gaps]

    # --- seeking

    def seek(self, offset: int | Start) -> None:
        """Continue at another offset.

        Raises:
            OffsetTooSmallError: it was deleted; the scanner does not move.
        """
        START("offset", offset)
        self._require_open()
        with self._using:
            cursor = self._start(offset)
            self._passed += self._cursor.gaps
            self._cursor.close()
            self._cursor = cursor
            for _ in self._ready:
                pass  # an iteration that is in this batch continues at the new place
            self._ready = iter(())
            self._offset = cursor.due

    def seek_time(self, timestamp: int) -> None:
        """Continue at the first message from a timestamp (ns since the epoch) on, or at the end.

        Timestamps may be unordered: it is the first in the order of offsets.
        """
        self.seek(Journal(self.path, disk=self._directory.disk).find_time(timestamp))

    def close(self) -> None:
        """Close the scanner; a read that waits in another thread, or that a signal handler interrupted, returns."""
        self._closed = True
        if self._watch is not None:
            self._watch.wake()
        with self._using:
            if not self._reading:  # else a signal handler runs in the read, which closes what it uses when it returns
                self._release()

    @property
    def closed(self) -> bool:
        """True if :meth:`close` was called."""
        return self._closed

    def __repr__(self) -> str:
        """Show path and offset."""
        return f"<sej.Scanner {self.path!r} offset={self.offset}>"

    # --- internals

    def _check_read(self, max_messages: int, timeout: Seconds | Start | None) -> float | None:
        """Check the arguments of a read; return the seconds to wait."""
        POSITIVE("max_messages", max_messages)
        wait = self.timeout if isinstance(timeout, Start) else seconds("timeout", timeout)
        if not isinstance(timeout, Start):
            WAIT("timeout", wait)
        self._require_open()
        return wait

    def _start(self, offset: int | Start) -> Cursor:
        cursor_at: int | None
        if not isinstance(offset, Start):
            cursor_at = offset
        elif offset is FIRST:
            cursor_at = None
        else:  # before damage at the end, if that is to be skipped
            cursor_at = Tail(self._directory).end_offset(judge=self._on_corruption == "raise")
        cursor = Cursor(self._directory, cursor_at, on_corruption=self._on_corruption, verify=self._verify)
        cursor.check_available()
        self._asked = cursor_at
        return cursor

    def _warn(self, asked: int) -> None:
        """Warn if the first offset to read is beyond the end; called when there is nothing to read."""
        self._asked = None
        end = Tail(self._directory).end_offset(judge=False)
        if asked > end:
            text = "%s: waiting for offset %d, but the journal ends at %d"
            record(__name__, WARNING, text, self.path, asked, end)

    def _more(self, limit: int, timeout: float | None) -> list[Message]:
        """Return the next batch of the cursor."""
        self._reading = True
        try:
            batch = self._next_batch(limit, timeout)
        finally:
            self._reading = False
            if self._closed:
                self._release()
        self._offset = batch[-1].offset + 1 if batch else self._cursor.due  # gaps may have been passed
        return batch

    def _release(self) -> None:
        self._cursor.close()
        if self._watch is not None:
            self._watch.close()

    def _next_batch(self, limit: int, timeout: float | None) -> list[Message]:
        if self._closed:
            return []
        batch = self._cursor.read(limit)
        if batch:
            return batch
        if self._asked is not None:
            self._warn(self._asked)
        if timeout == 0.0:
            return self._cursor.read(limit) if self._cursor.judge() else []
        if self._watch is None:
            self._watch = Watch(self._directory.jnl)
            batch = self._cursor.read(limit)
        return batch or self._wait(self._watch, limit, timeout)

    def _wait(self, watch: Watch, limit: int, timeout: float | None) -> list[Message]:
        """Wait for messages. The watch existed before the last read, so a later append wakes the wait."""
        start = time.monotonic()
        batch: list[Message] = []
        while True:
            if batch or self._closed or self._interrupted:
                self._interrupted = False
                watch.busy()
                return [] if self._closed else batch
            now = time.monotonic()
            left = None if timeout is None else start + timeout - now
            if left is not None and left <= 0:
                return self._cursor.read(limit) if self._cursor.judge() else []
            if now - start >= _JUDGE_AFTER_S:
                self._cursor.judge()
            watch.wait(left)
            batch = self._cursor.read(limit)

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("the scanner is closed; open another one", path=self.path)
