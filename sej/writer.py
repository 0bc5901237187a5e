"""The writer: appends messages to the last segment of a journal, alone under the lock.

What it relies on: the lock (``jnl.lck``), the codec's :class:`~sej.codec.Buffer` for encoding, :mod:`sej.opening` for
finding the end, the disk seam for everything else.

What it promises, at every durability: a segment is synced before its successor is created, so only the last one can be
torn; a message is whole or absent for readers that follow the format; a failed write or sync poisons the writer, and
whatever was not acknowledged by then may or may not be there after reopening, as a prefix.

Threads may share a writer. ``_mutex`` guards the file, the position and the block that is being collected; the buffer
uses the same lock. ``_commit`` lets concurrent callers share one sync: the first becomes the leader and syncs for all
that had written before it began.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal, NoReturn, Self, get_args

from sej.batches import Batches
from sej.checksum import crc32c
from sej.codec import Buffer, measure
from sej.directory import Directory
from sej.disk import OS, Disk, File
from sej.errors import ClosedError, DecodeError, LockLostError, SejError, WriterFailedError
from sej.format import MAX_OFFSET
from sej.index import Block
from sej.index_format import BLOCK_BYTES
from sej.locks import Lock
from sej.maintenance import Retention, clean, finish_merge
from sej.message import BytesLike, Message
from sej.opening import End, journal_id, open_end, prepare, start_segment, sweep
from sej.recovery import Recovery
from sej.repair import finish_repair
from sej.syncing import Syncer

__all__ = ["Durability", "Writer"]

Durability = Literal["buffer", "os", "interval", "disk"]

_BUFFER_BYTES: Final = 1 << 16
_BATCH_BYTES: Final = 1 << 18
_CHECKPOINT_BYTES: Final = 1 << 26
"""So much is left to the kernel before a background sync lets the index grow: what a reopening has to walk at most."""
_LOCK_CHECK_S: Final = 0.09
_LOOK_NS: Final = 100_000_000
"""For so long the buffer writes single messages by itself; then the lock is looked at again."""


class Writer:
    """Appends to a journal; one at a time for a directory, shared by any number of threads.

    Attributes:
        path: the SEJ directory.
        recovery: the torn tail that opening cut, or None.

    Example:
        >>> import tempfile
        >>> with Writer(tempfile.mkdtemp()) as w:
        ...     w.append(b"value", b"key")
        ...     w.append_many([b"a", b"b"])
        0
        range(1, 3)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        segment_bytes: int = 1 << 30,
        durability: Durability = "os",
        sync_interval_s: float = 1.0,
        first_offset: int = 0,
        retention: Retention | None = None,
        lock_timeout: float | None = 0.0,
        allow_network_fs: bool = False,
        disk: Disk = OS,
    ) -> None:
        """Open a journal for appending; made if missing.

        Args:
            path: the SEJ directory.
            segment_bytes: a segment is ended by the message that makes it this long.
            durability: ``"buffer"`` (in the process until 64 KiB, flush or close), ``"os"`` (in the kernel: survives
                SIGKILL, readers see it at once), ``"interval"`` (and synced every sync_interval_s) or ``"disk"``
                (synced when append returns; threads share syncs).
            sync_interval_s: seconds, for ``"interval"``.
            first_offset: where a new journal starts.
            retention: applied whenever a segment is ended.
            lock_timeout: seconds to wait for the lock; None waits for ever.
            allow_network_fs: open on a network file system all the same.
            disk: the seam.

        Raises:
            LockedError: another writer has the journal.
            CorruptionError: the last segment is damaged in a way that is no torn tail; nothing was cut.
            NotAJournalError: the path is a file.
            NetworkFileSystemError: it is on a network file system.
        """
        if durability not in get_args(Durability):
            raise ValueError(f"durability {durability!r}: expected one of {', '.join(get_args(Durability))}")
        if segment_bytes < 1:
            raise ValueError(f"segment_bytes {segment_bytes}: at least 1 is due")
        if not 0 <= first_offset <= MAX_OFFSET:
            raise ValueError(f"first_offset {first_offset}: 0 to {MAX_OFFSET} is due")
        self._directory = Directory(path, disk)
        self.path = self._directory.path
        self._segment_bytes = segment_bytes
        self._retention = retention
        self._durability = durability
        self._pid = os.getpid()
        self._closed = False
        self._failure: BaseException | None = None
        self._mutex = threading.Lock()
        prepare(self._directory, allow_network_fs=allow_network_fs)
        self._lock = Lock(self._directory.at("jnl.lck"), what="the journal's writer lock", disk=disk)
        self._lock.acquire(timeout=lock_timeout)
        try:
            journal_id(self._directory, create=True)
            finish_merge(self._directory)
            finish_repair(self._directory)
            sweep(self._directory)
            end = open_end(self._directory, first_offset=first_offset, alone=True)
            self.recovery: Recovery | None = end.recovery
            self._buffer = Buffer(end.offset, self._drain, self._mutex)
            self._take(end)
            self._syncer = Syncer(
                self._sync_some,
                self._fail,
                lambda: self._buffer.offset,
                end.synced_offset,
                interval_s=sync_interval_s if durability == "interval" else None,
            )
            self._lock_check_at = time.monotonic() + _LOCK_CHECK_S
            self._batches = Batches(self._directory)
            with self._alone():
                self._batches.roll_forward(self)
        except BaseException:
            self._abandon()
            raise
        if durability != "disk" and not TYPE_CHECKING:
            self.append = self._buffer.append  # nothing to wait for: the codec's own method, without a call between
        if end.synced_offset < end.offset:
            self._syncer.request()
        _alive.add(self)

    # --- appending

    def append(
        self,
        value: BytesLike,
        key: BytesLike = b"",
        type: int = 0,
        timestamp: int | None = None,
    ) -> int:
        """Append one message.

        Args:
            value: the payload.
            key: up to 127 bytes.
            type: 0 to 255.
            timestamp: ns since the epoch, or NO_TIMESTAMP; None: now.

        Returns:
            Its offset.

        Raises:
            InvalidMessageError: a field out of its range; nothing was appended.
            WriterFailedError: a write or sync failed, now or before.
            ClosedError: the writer was closed.
        """
        offset = self._buffer.append(value, key, type, timestamp)
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
        """Append many messages with consecutive offsets; nothing if one of them is invalid.

        Args:
            values: the payloads.
            keys: as many, or None: no keys.
            type: one, or as many.
            timestamp: one, or as many; None: now.

        Returns:
            Their offsets.

        Raises:
            InvalidMessageError: as :meth:`append`.
            ValueError: keys, types or timestamps are not as many as values.
            WriterFailedError: as :meth:`append`; a prefix may be there after reopening.
        """
        span = self._buffer.append_many(values, keys, type, timestamp)
        if self._durability == "disk" and span:
            self._syncer.commit(span.stop)
        return span

    def append_each(self, rows: Iterable[tuple[BytesLike, BytesLike, int, int | None]]) -> list[int | Exception]:
        """Append messages that have nothing to do with each other: an invalid one does not stop the others.

        Under ``"disk"`` they share one sync.

        Args:
            rows: value, key, type and timestamp of each.

        Returns:
            For each its offset, or what :meth:`append` would have raised.
        """
        found: list[int | Exception] = []
        for row in rows:
            try:
                found.append(self._buffer.append(*row))
            except (SejError, TypeError) as error:
                found.append(error)
        if self._durability == "disk":
            try:
                self._syncer.commit(max((offset + 1 for offset in found if isinstance(offset, int)), default=0))
            except SejError as error:
                return [error if isinstance(offset, int) else offset for offset in found]
        return found

    def append_messages(self, messages: Iterable[Message]) -> range:
        """Append messages that were read elsewhere: type, key and timestamp stay, offsets are new."""
        found = list(messages)
        return self.append_many(
            [message.value for message in found],
            [message.key for message in found],
            [message.type for message in found],
            [message.timestamp for message in found],
        )

    def append_once(
        self,
        name: str,
        number: int,
        values: Iterable[BytesLike],
        keys: Iterable[BytesLike] | None = None,
        type: int | Sequence[int] = 0,
        timestamp: int | Sequence[int] | None = None,
    ) -> range:
        """Append a batch exactly once, whatever crashes: batch ``number`` of ``name``.

        Durable when it returns, at every durability. A repeat appends nothing and returns the batch's offsets.

        Args:
            name: who counts the batches.
            number: rises from batch to batch; gaps are fine.
            values: as for :meth:`append_many`.
            keys: as for :meth:`append_many`.
            type: as for :meth:`append_many`.
            timestamp: as for :meth:`append_many`.

        Returns:
            Its offsets. Where messages of a foreign writer came between, the range spans them too.

        Raises:
            BatchConflictError: the number came before with other messages, or is below one whose record is gone.
        """
        values, keys = list(values), None if keys is None else list(keys)
        with self._alone():
            return self._batches.append(self, name, number, values, keys, type, timestamp)

    def append_once_encoded(self, name: str, number: int, chunks: Iterable[BytesLike]) -> range:
        """As :meth:`append_once`, for messages that are encoded already and carry the offsets that are due.

        A repeat is known by its number alone, and its chunks are not looked at: for jobs that are run again whole.

        Args:
            name: who counts the batches.
            number: rises from batch to batch.
            chunks: whole messages each; the first message has :attr:`offset`.

        Returns:
            Its offsets.

        Raises:
            DecodeError: these are no whole messages, or not the ones that are due; nothing was appended.
            BatchConflictError: the number is below one whose record is gone.
        """
        with self._alone():
            return self._batches.append_encoded(self, name, number, chunks)

    def last_batch(self, name: str) -> int | None:
        """The highest number that :meth:`append_once` got from a name; None where there is none."""
        with self._mutex:
            return self._batches.last(name)

    def rotate(self) -> None:
        """End the segment, if there is a message in it: what comes next stands in a new one."""
        with self._alone():
            if self._buffer.position:
                with self._poisoning():
                    self._rotate()

    def publish(
        self,
        values: Iterable[BytesLike],
        keys: Iterable[BytesLike] | None = None,
        type: int | Sequence[int] = 0,
        timestamp: int | Sequence[int] | None = None,
    ) -> range:
        """Append a batch atomically: readers and crashes see all of it or nothing.

        It becomes a segment of its own, written beside the journal, synced and renamed into place; durable when this
        returns, at every durability.

        Args:
            values: as for :meth:`append_many`.
            keys: as for :meth:`append_many`.
            type: as for :meth:`append_many`.
            timestamp: as for :meth:`append_many`.

        Returns:
            Their offsets.
        """
        values, keys = list(values), None if keys is None else list(keys)
        with self._alone():
            first = self._buffer.offset
            staged = self._directory.at("tmp", f"{first:016x}.publish")
            span = self._stage(staged, first, values, keys, type, timestamp)
            if not span:
                return span
            with self._poisoning():
                self._lock.check()
                self._seal()
                self._directory.disk.rename(staged, self._directory.segment(first).path)
                self._take(open_end(self._directory, alone=True))
                self._buffer.offset = span.stop
                self._syncer.advance(span.stop)
                if self._buffer.position >= self._segment_bytes:
                    self._rotate()
            return span

    def append_encoded(self, data: BytesLike) -> range:
        """Append messages that are encoded already and carry the offsets that are due: for copying at full speed.

        Every message's frame and offset are checked before the first byte is taken.

        Args:
            data: whole messages, one after the other, as they stand in a segment; the first has :attr:`offset`.

        Returns:
            Their offsets.

        Raises:
            DecodeError: these are no whole messages, or not the ones that are due; nothing was appended.
        """
        with self._alone():
            first = self._buffer.offset
            self._append_encoded(data)
            self._flush_batch()
            stop = self._buffer.offset
        if self._durability == "disk":
            self._syncer.commit(stop)
        return range(first, stop)

    # --- durability

    def flush(self) -> None:
        """Hand everything to the kernel: it survives the death of this process, and readers see it."""
        with self._mutex:
            self._require_open()
            self._buffer.flush()

    def sync(self) -> None:
        """Force everything appended so far to the disk: it survives power loss."""
        with self._mutex:
            self._require_open()
            self._buffer.flush()
            offset = self._buffer.offset
        self._syncer.commit(offset)

    @property
    def offset(self) -> int:
        """What the next message gets."""
        return self._buffer.offset

    @property
    def durable_offset(self) -> int:
        """Every message below survives power loss."""
        return self._syncer.durable_offset

    @property
    def durability(self) -> Durability:
        """As named on opening."""
        return self._durability

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def close(self) -> None:
        """Write and sync what is left, and let go of the lock; a second time does nothing.

        Raises:
            WriterFailedError: the last write or sync failed. The lock is released all the same.
        """
        if self._closed or os.getpid() != self._pid:
            return
        _alive.discard(self)
        try:
            if self._failure is None:
                self.sync()
        finally:
            with self._mutex:
                self._closed = True
                self._buffer.stop(self._refuse)
            self._syncer.close()
            self._index_file.close()
            self._file.close()
            self._lock.release()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __del__(self) -> None:
        """Close what was forgotten, and say so."""
        if getattr(self, "_syncer", None) is not None and not self._closed and os.getpid() == self._pid:
            warnings.warn(f"the writer of {self.path} was never closed", ResourceWarning, stacklevel=1, source=self)
            self.close()

    def __repr__(self) -> str:
        """Path, offset and state."""
        state = "closed" if self._closed else "failed" if self._failure else self._durability
        return f"<sej.Writer {self.path!r} offset={self.offset} {state}>"

    # --- below the buffer: everything from here on runs with the mutex held

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """With the mutex, everything handed to the kernel, and no append coming in; what the disk refuses poisons."""
        with self._mutex:
            self._require_open()
            self._buffer.freeze()
            try:
                self._buffer.flush()
                yield
            except OSError as error:
                self._fail(error)
                raise self._failed("a write or sync failed", error) from error
            finally:
                self._buffer.thaw()

    def _append_encoded(self, data: BytesLike) -> None:
        """Check whole messages, then take them."""
        size = len(data)
        whole = measure(data, 0, size, self._buffer.offset, size)
        if whole.position != size:
            measure(data, whole.position, size, self._buffer.offset + whole.messages, 1)  # raises where it is wrong
            raise DecodeError(
                f"the last {size - whole.position} bytes are no whole message",
                position=whole.position,
                offset=self._buffer.offset + whole.messages,
            )
        at = 0
        while at < size:
            run = measure(data, at, size, self._buffer.offset, self._buffer.batch_limit)
            self._buffer.extend(data, run, at)
            at = run.position

    def _flush_batch(self) -> None:
        if self._durability != "buffer":
            self._buffer.flush()

    def _sync_alone(self) -> None:
        """Sync with the mutex held."""
        self._buffer.flush()
        self._file.sync()
        self._synced_position = self._buffer.position
        self._syncer.advance(self._buffer.offset)
        self._write_index(self._buffer.position)

    def _take(self, end: End) -> None:
        """Go on at the end of a segment."""
        self._buffer.steady(None, None, 0, 0)  # the old file's descriptor may go with its last owner
        self._file: File = end.file
        self._segment = end.segment
        self._buffer.position = end.position
        self._index_file = end.index_file
        self._indexed = end.known
        self._newest = end.newest_timestamp
        self._blocks: list[Block] = end.blocks
        self._partial = end.partial
        self._block_position = end.position
        self._block_offset = end.offset
        self._synced_position = end.synced_position
        self._set_limits()
        if self._blocks:
            self._write_index(end.synced_position)

    def _set_limits(self) -> None:
        """Say when the buffer drains: a message that ends a segment or a block is the last one of its write."""
        buffer = self._buffer
        left = max(self._segment_bytes - buffer.position, 1)
        buffer.batch_limit = min(_BATCH_BYTES, left)
        if self._durability == "buffer":
            buffer.limit = min(_BUFFER_BYTES, left)
        else:
            until = min(buffer.position - len(buffer) + BLOCK_BYTES, self._segment_bytes)
            buffer.steady(self._file.writer(), self._write_trouble, until, _LOOK_NS)

    def _drain(self) -> None:
        """Write what the buffer holds; what the buffer calls."""
        buffer = self._buffer
        try:
            with buffer.pending() as view:
                try:
                    self._file.write(view)
                except OSError as error:
                    self._write_trouble(error, 0)
            buffer.drained()
            if len(buffer) >= BLOCK_BYTES:
                self._end_block()
                if buffer.position - self._synced_position >= _CHECKPOINT_BYTES:
                    self._syncer.request()
            if buffer.position >= self._segment_bytes:
                self._rotate()
            self._set_limits()
            if time.monotonic() >= self._lock_check_at:
                self._lock.check()
                self._lock_check_at = time.monotonic() + _LOCK_CHECK_S
        except OSError as error:
            self._fail(error)
            raise self._failed("a sync or a new segment failed", error) from error
        except BaseException as error:
            self._fail(error)
            raise

    def _cut_partial_write(self, view: memoryview) -> None:
        """After a failed write: cut what is no whole message, so that the tail is clean. Whole ones may be seen."""
        start = self._buffer.position
        try:
            there = min(max(self._file.status().size - start, 0), len(view))
            first = self._segment_offset_of_pending(view)
            good = measure(view, 0, there, first, there).position if there else 0
            self._file.truncate(start + good)
        except (OSError, SejError):
            return  # the next opening finds a torn tail and cuts it

    def _write_trouble(self, error: BaseException | None, taken: int) -> None:
        """Cut what a failed write left, and poison; write the rest of a short one. What the buffer calls."""
        with self._buffer.pending() as view:
            if error is None:
                try:
                    self._file.write(view[taken:])
                    return
                except OSError as late:
                    error = late
            if not isinstance(error, OSError):
                self._fail(error)
                return
            self._cut_partial_write(view)
        self._fail(error)
        raise self._failed("a write failed", error) from error

    def _segment_offset_of_pending(self, view: memoryview) -> int:
        return int.from_bytes(view[:8], "big")

    def _end_block(self) -> None:
        """Put what the buffer holds, all of it written, into a block of the index."""
        buffer = self._buffer
        if not len(buffer) and self._partial is None:
            return
        part = self._partial
        with buffer.block() as view:
            crc = crc32c(view, part.crc32c if part else 0)
        if len(buffer):
            newest = buffer.newest_timestamp if part is None else max(part.newest_timestamp, buffer.newest_timestamp)
            last = buffer.last_timestamp
            first = part.first_timestamp if part else buffer.first_timestamp
        else:
            assert part is not None
            newest, last, first = part.newest_timestamp, part.last_timestamp, part.first_timestamp
        start = part.position if part else self._block_position
        start_offset = part.first_offset if part else self._block_offset
        self._newest = max(self._newest, newest)
        count = buffer.offset - start_offset
        self._blocks.append(Block(start, self._buffer.position, start_offset, count, crc, first, last, self._newest))
        self._partial = None
        self._block_position = self._buffer.position
        self._block_offset = buffer.offset
        buffer.clear()

    def _write_index(self, synced_position: int) -> None:
        """Write the entries whose bytes are synced. The index can be rebuilt: its failure harms nothing."""
        ready = [block for block in self._blocks if block.end <= synced_position]
        if not ready:
            return
        try:
            self._index_file.write(ready, self._indexed)
            self._indexed += len(ready)
        except OSError as error:
            warnings.warn(
                f"the index {self._index_file.path} could not be written: {error}", RuntimeWarning, stacklevel=2
            )
        self._blocks = self._blocks[len(ready) :]

    def _seal(self) -> None:
        """Sync the last segment and finish its index."""
        self._end_block()
        self._sync_alone()
        self._index_file.close()

    def _rotate(self) -> None:
        """Seal the last segment and start the next. The old file closes when nobody syncs it any more."""
        self._lock.check()
        self._seal()
        self._take(start_segment(self._directory, self._buffer.offset, alone=True))
        if self._retention is not None:
            try:
                clean(self._directory, self._retention, wait=False)
            except OSError as error:
                warnings.warn(f"retention failed in {self.path}: {error}", RuntimeWarning, stacklevel=2)

    def _sync_some(self) -> int:
        """Sync what was written so far, without the mutex while the disk works; returns the durable offset."""
        with self._mutex:
            if self._failure is not None:
                self._refuse()
            self._buffer.flush()
            self._lock.check()
            file, offset, position = self._file, self._buffer.offset, self._buffer.position
        file.sync()
        with self._mutex:
            if file is self._file:
                self._synced_position = max(self._synced_position, position)
                self._write_index(self._synced_position)
        return offset

    def _stage(
        self,
        path: str,
        first: int,
        values: Iterable[BytesLike],
        keys: Iterable[BytesLike] | None,
        type: int | Sequence[int],
        timestamp: int | Sequence[int] | None,
    ) -> range:
        """Write messages into a file of their own, as they will stand in the journal, and sync it."""
        disk = self._directory.disk
        disk.mkdir(os.path.dirname(path))
        disk.unlink(path)
        file = disk.open(path, "new")  # its name is synced: an intent may refer to it

        def drain() -> None:
            with staging.pending() as view:
                file.write(view)
            staging.clear()

        staging = Buffer(first, drain, threading.Lock())
        staging.limit = 1
        staging.batch_limit = _BATCH_BYTES
        try:
            span = staging.append_many(values, keys, type, timestamp)
            file.sync()
        except BaseException:
            file.close()
            disk.unlink(path)
            raise
        file.close()
        if not span:
            disk.unlink(path)
        return span

    # --- failing

    def _poisoning(self) -> _Poisoning:
        return _Poisoning(self._fail)

    def _failed(self, what: str, error: BaseException) -> WriterFailedError:
        return WriterFailedError(
            f"{what}: {error}; this writer is closed for good: mend the cause and open it anew,"
            " which finds what is on disk",
            path=self._segment.path,
            position=self._buffer.position,
            offset=self._buffer.offset,
        )

    def _abandon(self) -> None:
        """Let go of everything after an opening that failed half-way; nothing was appended."""
        self._closed = True
        if hasattr(self, "_syncer"):
            self._syncer.close()
        if hasattr(self, "_file"):
            self._index_file.close()
            self._file.close()
        self._lock.release()

    def _fail(self, error: BaseException) -> None:
        """Poison: from now on every call raises."""
        if self._failure is None and not self._closed:
            self._failure = error
            self._buffer.stop(self._refuse)
            self._syncer.fail(error)

    def _require_open(self) -> None:
        if self._closed or self._failure is not None or os.getpid() != self._pid:
            self._refuse()

    def _refuse(self) -> NoReturn:
        if os.getpid() != self._pid:
            raise ClosedError("this writer belongs to the parent process: open one after the fork", path=self.path)
        if self._failure is not None:
            if isinstance(self._failure, LockLostError):
                raise LockLostError(self._failure.reason, path=self._failure.path) from self._failure
            raise self._failed("an earlier write or sync failed", self._failure) from self._failure
        raise ClosedError("the writer is closed", path=self.path)


class _Poisoning:
    """Whatever goes wrong inside poisons the writer."""

    def __init__(self, fail: Callable[[BaseException], None]) -> None:
        self._fail = fail

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._fail(error)


_alive: weakref.WeakSet[Writer] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for writer in list(_alive):
        writer._buffer.stop(writer._refuse)
        writer._file.close()  # the child's copy: the segment's lock must die with the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
