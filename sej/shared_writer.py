"""A writer that many processes have at once: each holds the journal's lock for one append or one batch.

Between its turns it holds nothing but open files. So at each turn it looks what happened meanwhile:

- ``jnl.lck`` holds a mark, ``shared`` and 16 hex digits, which changes whenever the last segment does, and which every
  exclusive writer (ours signs the file, the original wipes it) destroys. The mark it left is the mark it finds: the
  last segment is still the last one, and only other shared writers were here.
- Then the segment's size says whether they appended; what is new is measured, so that the next offset is known.
- Anything else is looked at afresh: the end is found, a torn tail cut and kept, the index extended.

What a dead writer had promised (``append_once``, a merge, a repair) is finished by opening an exclusive writer first.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Literal, NoReturn, Self, get_args

from sej.codec import Buffer, encode, measure
from sej.directory import Directory
from sej.disk import OS, Disk, File
from sej.errors import ClosedError, DecodeError, LockedError, LockLostError, WriterFailedError
from sej.maintenance import Retention, clean
from sej.message import BytesLike
from sej.opening import End, journal_id, open_end, prepare, start_segment
from sej.syncing import Syncer
from sej.writer import Writer

__all__ = ["SharedDurability", "SharedWriter"]

SharedDurability = Literal["os", "interval", "disk"]

_MARK: Final = b"shared "
_MARK_BYTES: Final = len(_MARK) + 16
_PAUSE_S: Final = 0.00005
"""Longer than a turn: who has the lock gets on with it, instead of handing it over at the price of a switch each."""
_PAUSE_MAX_S: Final = 0.002
_LOCK_CHECK_S: Final = 0.1
_INDEX_BYTES: Final = 1 << 24
"""So much grows without an index: what somebody who looks for one message has to walk at most."""


class SharedWriter:
    """Appends to a journal beside other shared writers, and when no exclusive writer has it.

    Safe to use from many threads. A call that needs the journal raises :class:`~sej.LockedError` where an exclusive
    writer has it for longer than lock_timeout, :class:`~sej.WriterFailedError` where a write or sync failed, now or
    before, and :class:`~sej.ClosedError` after :meth:`close` and in a forked child.

    Attributes:
        path: the SEJ directory.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp()
        >>> with SharedWriter(path) as one, SharedWriter(path) as other:
        ...     one.append(b"a"), other.append(b"b"), one.append_many([b"c", b"d"])
        (0, 1, range(2, 4))
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        segment_bytes: int = 1 << 30,
        durability: SharedDurability = "os",
        sync_interval_s: float = 1.0,
        retention: Retention | None = None,
        lock_timeout: float | None = 10.0,
        allow_network_fs: bool = False,
        disk: Disk = OS,
    ) -> None:
        """Open a journal for appending; made if missing.

        Args:
            path: the SEJ directory.
            segment_bytes: a segment is ended by the message that makes it this long.
            durability: as of :class:`sej.Writer`; ``"buffer"`` is none, because nothing may wait in one process while
                others append.
            sync_interval_s: seconds, for ``"interval"``.
            retention: applied whenever this writer ends a segment.
            lock_timeout: seconds to wait while an exclusive writer has the journal; None waits for ever.
            allow_network_fs: open on a network file system all the same.
            disk: the seam.

        Raises:
            CorruptionError: the last segment is damaged in a way that is no torn tail.
            NotAJournalError: the path is a file.
        """
        if durability not in get_args(SharedDurability):
            raise ValueError(
                f"durability {durability!r}: expected one of {', '.join(get_args(SharedDurability))};"
                " what many processes append to cannot wait in the buffer of one"
            )
        if segment_bytes < 1:
            raise ValueError(f"segment_bytes {segment_bytes}: at least 1 is due")
        self._directory = Directory(path, disk)
        self.path = self._directory.path
        self._segment_bytes = segment_bytes
        self._durability = durability
        self._retention = retention
        self._lock_timeout = lock_timeout
        self._pid = os.getpid()
        self._closed = False
        self._failure: BaseException | None = None
        self._mutex = threading.RLock()
        self._depth = 0
        self._mark = b""
        self._file: File | None = None
        self._offset = self._position = self._indexed_to = 0
        prepare(self._directory, allow_network_fs=allow_network_fs)
        self._lock_path = self._directory.at("jnl.lck")
        self._lock = disk.open(self._lock_path, "append")
        self._lock_check_at = 0.0
        self._syncer = Syncer(
            self._sync_some,
            self._fail,
            lambda: self._offset,
            0,
            interval_s=sync_interval_s if durability == "interval" else None,
        )
        _alive.add(self)

    # --- appending

    def append(self, value: BytesLike, key: BytesLike = b"", type: int = 0, timestamp: int | None = None) -> int:
        """Append one message; as :meth:`sej.Writer.append`.

        Raises:
            LockedError: an exclusive writer has the journal, for longer than lock_timeout.
        """
        with self._mutex:
            self._enter()
            try:
                offset = self._offset
                self._write(encode(offset, time.time_ns() if timestamp is None else timestamp, type, key, value), 1)
            finally:
                self._leave()
        if self._durability == "disk":
            self._syncer.commit(offset + 1)
        return offset

    def append_many(
        self,
        values: Iterable[BytesLike],
        keys: Iterable[BytesLike] | None = None,
        type: int | Sequence[int] = 0,
        timestamp: int | Sequence[int] | None = None,
    ) -> range:
        """Append many messages with consecutive offsets; as :meth:`sej.Writer.append_many`."""
        with self.turn():
            data, span = self.encode_many(values, keys, type, timestamp)
            if span:
                self._write(data, len(span))
        return span

    @contextmanager
    def turn(self) -> Iterator[Self]:
        """Hold the lock for several appends, and know :attr:`offset` meanwhile; what was appended is durable after."""
        with self._mutex:
            self._enter()
            first = self._offset
            try:
                yield self
            finally:
                stop = self._offset
                self._leave()
            outermost = not self._depth
        if self._durability == "disk" and stop > first and outermost:
            self._syncer.commit(stop)

    def encode_many(
        self,
        values: Iterable[BytesLike],
        keys: Iterable[BytesLike] | None = None,
        type: int | Sequence[int] = 0,
        timestamp: int | Sequence[int] | None = None,
    ) -> tuple[bytes, range]:
        """Messages as they will stand in the journal if they are appended in this turn, and their offsets."""
        buffer = Buffer(self._offset, lambda: None, threading.Lock())
        buffer.limit = buffer.batch_limit = 2**62
        span = buffer.append_many(values, keys, type, timestamp)
        with buffer.pending() as view:
            return bytes(view), span

    def append_encoded(self, data: bytes, count: int) -> None:
        """Append what :meth:`encode_many` made, within the same turn."""
        self._write(data, count)

    # --- durability

    def sync(self) -> None:
        """Force everything that this writer appended to the disk."""
        self._require_open()
        self._syncer.commit(self._offset)

    @property
    def offset(self) -> int:
        """What the next message gets, within a turn; else what that was at the last turn."""
        return self._offset

    @property
    def durable_offset(self) -> int:
        """Every message below survives power loss."""
        return self._syncer.durable_offset

    def close(self) -> None:
        """Sync what was appended and close; a second time does nothing."""
        if self._closed or os.getpid() != self._pid:
            return
        try:
            if self._failure is None and self._file is not None:
                self.sync()
        finally:
            with self._mutex:
                self._closed = True
                self._syncer.close()
                self._lock.close()
                self._drop_file()
            _alive.discard(self)

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Path."""
        return f"<sej.SharedWriter {self.path!r}>"

    # --- a turn: everything from here on runs with the mutex held

    def _enter(self) -> None:
        if self._depth:
            self._depth += 1
            return
        if self._closed or self._failure is not None or os.getpid() != self._pid:
            self._require_open()
        if not self._lock.lock(wait=False, brief=True):
            self._wait_for_lock()
        self._depth = 1
        try:
            self._look()
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._lock.unlock()

    def _look(self) -> None:
        """What happened since the last turn?"""
        now = time.monotonic()
        if now >= self._lock_check_at:
            self._check_lock_file()
            self._lock_check_at = now + _LOCK_CHECK_S
        if self._file is None or not self._mark or self._lock.read(_MARK_BYTES, 0) != self._mark:
            self._look_afresh()
            return
        size = self._file.status().size
        if size != self._position and not self._catch_up(size):
            self._look_afresh()

    def _catch_up(self, size: int) -> bool:
        """Measure what others appended; False where it is not all whole messages."""
        assert self._file is not None
        if size < self._position:
            return False
        data = self._file.read(size - self._position, self._position)
        try:
            run = measure(data, 0, len(data), self._offset, len(data))
        except DecodeError:
            return False
        self._offset += run.messages
        self._position += run.position
        return run.position == len(data)

    def _look_afresh(self) -> None:
        """Find the end as an exclusive writer does when it opens."""
        self._check_lock_file()
        while self._promised():
            self._lock.unlock()
            try:  # it takes the lock itself, and finishes what is to be finished
                Writer(self.path, segment_bytes=self._segment_bytes, lock_timeout=self._lock_timeout,
                       allow_network_fs=True, disk=self._directory.disk).close()  # fmt: skip
            finally:
                self._wait_for_lock()
        journal_id(self._directory, create=True)
        self._take(open_end(self._directory))
        mark = self._lock.read(_MARK_BYTES, 0)
        if self._position >= self._segment_bytes:
            self._rotate()
            self._sign()
        elif len(mark) == _MARK_BYTES and mark.startswith(_MARK):
            self._mark = mark  # another shared writer's: what was found just now is what it stands for
        else:
            self._sign()

    def _promised(self) -> bool:
        disk, txn = self._directory.disk, self._directory.at("txn")
        if disk.status(txn) is None:
            return False
        return any(name in ("merge", "repair") or name.endswith(".intent") for name in disk.list(txn))

    def _take(self, end: End) -> None:
        self._drop_file()
        self._file = end.file
        self._position, self._offset = end.position, end.offset
        if end.blocks:
            with contextlib.suppress(OSError):  # an index can be rebuilt; its absence only costs time
                end.index_file.write(end.blocks, end.known)
        end.index_file.close()
        self._indexed_to = end.position

    def _write(self, data: bytes, count: int) -> None:
        file = self._file
        assert file is not None and self._depth
        try:
            file.write(data)
            self._position += len(data)
            self._offset += count
            if self._position >= self._segment_bytes:
                self._rotate()
                self._sign()
            elif self._position - self._indexed_to >= _INDEX_BYTES:
                self._take(open_end(self._directory))  # syncs, then extends the index
        except BaseException as error:
            self._fail(error)
            if isinstance(error, OSError):
                raise self._failed(error) from error
            raise

    def _rotate(self) -> None:
        """Seal the last segment, with its index, and start the next one.

        The mark goes first: whoever finds it believes that the old segment is still the last, and one who dies in here
        may leave a new one behind.
        """
        self._mark = b""
        self._lock.truncate(0)
        assert self._file is not None
        self._take(open_end(self._directory))
        assert self._file is not None
        self._file.sync()
        self._syncer.advance(self._offset)
        self._take(start_segment(self._directory, self._offset))
        if self._retention is not None:
            clean(self._directory, self._retention)

    def _sign(self) -> None:
        """Leave a mark that nobody has seen before."""
        mark = _MARK + os.urandom(8).hex().encode()
        self._mark = b""
        self._lock.truncate(0)
        self._lock.write(mark + b"\n")
        self._mark = mark

    def _wait_for_lock(self) -> None:
        """Others hold it for microseconds; an exclusive writer for as long as it is open."""
        start = time.monotonic()
        pause = _PAUSE_S
        while not self._lock.lock(wait=False, brief=True):
            if self._lock_timeout is not None and time.monotonic() - start >= self._lock_timeout:
                raise self._locked()
            time.sleep(pause)
            pause = min(pause * 1.5, _PAUSE_MAX_S)

    def _locked(self) -> LockedError:
        holder = self._lock.read(256, 0).decode("utf-8", "replace").split("\n", 1)[0] or None
        return LockedError(
            f"the journal's writer lock is held by {holder or 'another process'}: a sej.Writer keeps it as long as it"
            " is open; put through it, or close it",
            path=self._lock_path,
            holder=holder,
        )

    def _check_lock_file(self) -> None:
        """The original unlinks the lock file: a lock on what has no name any more protects nothing."""
        while True:
            there = self._directory.disk.status(self._lock_path)
            if there is not None and there.identity == self._lock.status().identity:
                return
            fresh = self._directory.disk.open(self._lock_path, "append")
            self._lock.close()
            self._lock = fresh
            self._mark = b""
            self._wait_for_lock()

    def _drop_file(self) -> None:
        file, self._file = self._file, None
        del file  # a sync in another thread may have it still: it closes with the last who does

    def _sync_some(self) -> int:
        with self._mutex:
            file, offset = self._file, self._offset
        if file is not None:
            file.sync()
        return offset

    # --- failing

    def _fail(self, error: BaseException) -> None:
        if self._failure is None and not self._closed:
            self._failure = error
            self._syncer.fail(error)

    def _failed(self, error: BaseException) -> WriterFailedError:
        return WriterFailedError(
            f"a write or sync failed: {error}; this writer is closed for good: mend the cause and open it anew",
            path=self.path,
            position=self._position,
            offset=self._offset,
        )

    def _require_open(self) -> None:
        if self._closed or self._failure is not None or os.getpid() != self._pid:
            self._refuse()

    def _refuse(self) -> NoReturn:
        if os.getpid() != self._pid:
            raise ClosedError("this writer belongs to the parent process: open one after the fork", path=self.path)
        if self._failure is not None:
            if isinstance(self._failure, LockLostError):
                raise self._failure
            raise self._failed(self._failure) from self._failure
        raise ClosedError("the writer is closed", path=self.path)

    def _after_fork(self) -> None:
        """In a forked child: the copies of the descriptors must not keep the parent's locks alive."""
        self._lock.close()
        self._file = None


_alive: weakref.WeakSet[SharedWriter] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for writer in list(_alive):
        writer._after_fork()
    _alive.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
