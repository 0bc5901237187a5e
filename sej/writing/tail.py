"""What a writer does to the end of a journal: writing, blocks of the index, sealing, the next segment, failing.

:class:`~sej.writing.writer.Writer` is the face; this is the machine under it. Everything here runs with the writer's
mutex held, by the thread whose append or sync needs it. What it relies on: the lock is held, the buffer calls
``_drain``. What it promises: a segment is synced before its successor exists; an index entry is written after its bytes
are synced; after the first failed write or sync nothing is written or synced any more.

An exception of a signal's handler is no failure: it leaves the buffer in doubt, which it is from before a change of the
file until after it. The next call then finds the end again (:meth:`Appender._mend`), before a message gets its offset.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from traceback import clear_frames
from typing import Any, Final, Literal, NoReturn, TypeVar

from sej.codec import Buffer, measure
from sej.codec.buffer_reference import _full
from sej.codec.format import MAX_OFFSET
from sej.errors import (
    ClosedError,
    DecodeError,
    LockedError,
    LockLostError,
    SejError,
    WriterFailedError,
)
from sej.journal.directory import Directory
from sej.journal.index import Block
from sej.journal.index_format import BLOCK_BYTES
from sej.journal.retention import Retention, clean
from sej.message import BytesLike
from sej.system.checksum import crc32c
from sej.system.disk import File, full_disk_advice
from sej.system.durable import KeptPosition, renew
from sej.system.group_commit import Syncer, is_failure, is_mine
from sej.system.locks import Lock
from sej.writing.guarded import write_guarded
from sej.writing.opening import End, open_end, start_segment

__all__ = ["Appender", "Durability"]

_T = TypeVar("_T")
Durability = Literal["buffer", "os", "interval", "disk"]

_BUFFER_BYTES: Final = 1 << 16
_BATCH_BYTES: Final = 1 << 18
_CHECKPOINT_BYTES: Final = 1 << 28
"""So much is left to the kernel before a background sync lets the index grow: what a reopening has to walk at most."""
_LOCK_CHECK_S: Final = 0.09
_LOOK_NS: Final = 100_000_000
"""For so long the buffer writes single messages by itself; then the lock is looked at again."""
_needed: Final[dict[int, object]] = {}
"""What each open writer needs to close: of a forgotten one the collector must not close the files before that."""


class Appender:
    """The end of a journal that grows.

    Attributes:
        path: the SEJ directory.
    """

    path: str
    _directory: Directory
    _durability: Durability
    _segment_bytes: int
    _retention: Retention | None
    _pid: int
    _closed: bool
    _failure: BaseException | None
    _mutex: threading.RLock
    """Guards everything below; the buffer uses the same lock. No call goes in twice: a signal's handler is refused."""
    _close_later: bool
    _lock: Lock
    _lock_check_at: float
    _buffer: Buffer
    _syncer: Syncer
    _kept: KeptPosition
    _synced_position: int
    _in_doubt: int
    """Unsynced bytes before this position were written before the file was opened here (sej.system.durable)."""

    def _alone(self, act: Callable[..., _T], *arguments: object) -> _T:
        """Call something with the mutex, everything handed to the kernel, and no append coming in.

        What the disk refuses poisons. Only calls into C are in the ``with`` and the ``finally``: whatever a signal's
        handler raises, the mutex is released and appends come in again.
        """
        self._require_apart()
        with self._mutex:
            self._require_open()
            thaw = self._buffer.thaw
            try:
                self._buffer.freeze()
                self._buffer.flush()
                return act(*arguments)
            except OSError as error:
                if not is_failure(error):
                    raise
                self._fail(error)
                raise self._failed("a write or sync failed", error) from error
            finally:
                thaw()

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
        if self._buffer.offset + whole.messages > MAX_OFFSET:
            raise _full()
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
        self._settle(self._file)
        self._file.sync()
        self._keep_position(self._buffer.position, self._buffer.offset)
        self._syncer.advance(self._buffer.offset)
        self._write_index(self._buffer.position)

    def _settle(self, file: File) -> None:
        """Renew what is in doubt, so that a sync means what it says."""
        if self._in_doubt > self._synced_position and file is self._file:
            renew(self._directory.disk, file, self._synced_position, self._in_doubt)
            self._in_doubt = 0

    def _keep_position(self, position: int, offset: int) -> None:
        """Take note of what was synced, here and for the process that opens the journal next."""
        if position > self._synced_position:
            self._synced_position = position
            self._kept.store(self._file, self._segment.first_offset, position, offset)

    def _take(self, find: Callable[..., End], *arguments: Any, **options: Any) -> End:
        """Go on at the end of a segment that find returns."""
        end: End | None = None
        try:
            end = find(*arguments, **options)
            self._go_on(end)
        except BaseException:
            if end is not None and end.file is not getattr(self, "_file", None):
                end.file.close()  # its lock must not live as long as the traceback
            raise
        return end

    def _go_on(self, end: End) -> None:
        self._buffer.steady(None, None, 0, 0)  # the old file's descriptor may go with its last owner
        old = getattr(self, "_file", end.file)
        # No call between these: a signal's handler finds them as they were, or as they will be.
        self._file: File = end.file
        self._segment = end.segment
        self._buffer.position = end.position
        if old is not end.file:
            old.unlock()  # it may stay open for a sync, or in a traceback
        self._index_file = end.index_file
        self._need(self._lock, end.file, end.index_file)
        self._indexed = end.known
        self._newest = end.newest_timestamp
        self._blocks: list[Block] = end.blocks
        self._partial = end.partial
        self._partial_known = end.partial_known
        self._block_position = end.position
        self._block_offset = end.offset
        self._synced_position, self._in_doubt = end.synced_position, end.position
        self._set_limits()
        if self._blocks:
            self._write_index(end.synced_position)

    def _need(self, *files: object) -> None:
        """Keep files open for as long as this writer is; none: it needs nothing any more."""
        if files:
            _needed[id(self)] = files
        else:
            _needed.pop(id(self), None)

    def _set_limits(self) -> None:
        """Say when the buffer drains: a message that ends a segment or a block is the last one of its write."""
        buffer = self._buffer
        left = max(self._segment_bytes - buffer.position, 1)
        buffer.batch_limit = min(_BATCH_BYTES, left)
        if self._lock.original is not None and self._durability not in ("buffer", "disk"):
            buffer.limit = 1  # every message goes through _drain, which looks at the lock
        elif self._durability in ("buffer", "disk"):  # under "disk" whoever syncs writes for all who wait
            buffer.limit = min(_BUFFER_BYTES, left)
        else:
            until = min(buffer.position - len(buffer) + BLOCK_BYTES, self._segment_bytes)
            buffer.steady(self._file.writer(), self._write_trouble, until, _LOOK_NS)

    def _drain(self) -> None:
        """Write what the buffer holds; what the buffer calls."""
        buffer = self._buffer
        if buffer.interrupted:
            self._mend()
            return
        try:
            with buffer.pending() as view:
                try:
                    if self._lock.original is None:
                        self._file.write(view)
                    else:
                        write_guarded(self._file, view, buffer.position, self._lock.check)
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
        except BaseException as error:  # the buffer stays in doubt
            if is_failure(error):
                self._fail(error)
                if isinstance(error, OSError):
                    raise self._failed("a sync or a new segment failed", error) from error
            raise

    def _mend(self) -> None:
        """With the mutex: find the end again, after an exception came out of the middle of something that changes it.

        Nobody else appends, so the size of the file says how much of what is pending was written. The rest is written
        now: nobody was told whether it would be. Then everything is found as an opening finds it.
        """
        buffer, file = self._buffer, self._file
        buffer.freeze()
        try:
            buffer.doubt()
            self._lock.check()
            with buffer.pending() as view:
                there = file.status().size - buffer.position
                if 0 <= there < len(view):
                    with view[there:] as rest:
                        if self._lock.original is None:
                            file.write(rest)
                        else:
                            write_guarded(file, rest, buffer.position + there, self._lock.check)
            buffer.drained()
            buffer.clear()
            self._index_file.close()
            end = self._take(open_end, self._directory, self._kept, alone=True, known=file)
            if end.offset < buffer.offset:
                raise LockLostError(
                    f"the journal ends at {end.offset}, but this writer has appended up to {buffer.offset}: something"
                    " else wrote to it while it was locked",
                    path=self._segment.path,
                    offset=end.offset,
                )
            buffer.offset = end.offset
            self._syncer.advance(end.synced_offset)
            buffer.mended()
            self._roll_forward()
        except BaseException as error:
            buffer.doubt()
            if is_failure(error):
                self._fail(error)
                if isinstance(error, OSError):
                    raise self._failed("a write or sync failed", error) from error
            raise

    def _roll_forward(self) -> None:
        """Finish the batch that was begun; see the writer."""
        raise NotImplementedError

    def _cut_partial_write(self, view: memoryview) -> None:
        """After a failed write: cut what is no whole message, so that the tail is clean. Whole ones may be seen."""
        start = self._buffer.position
        try:
            there = min(max(self._file.status().size - start, 0), len(view))
            first = self._segment_offset_of_pending(view)
            good = measure(view, 0, there, first, there).position if there else 0
            if self._lock.is_current():
                self._file.truncate(start + good)
        except (OSError, SejError):
            return  # the next opening finds a torn tail and cuts it

    def _write_trouble(self, error: BaseException | None, taken: int) -> None:
        """Poison, and cut what a failed write left; write the rest of a short one. What the buffer calls."""
        with self._buffer.pending() as view:
            if error is None:
                try:
                    with view[taken:] as rest:
                        self._file.write(rest)
                    return
                except OSError as late:
                    error = late
            if not is_failure(error):
                raise error  # the buffer stays in doubt, and the next write finds out how far this one came
            self._fail(error)  # first: an interrupt that comes from here on finds the writer closed
            self._cut_partial_write(view)
        raise self._failed("a write failed", error) from error

    def _segment_offset_of_pending(self, view: memoryview) -> int:
        return int.from_bytes(view[:8], "big")

    def _end_block(self) -> None:
        """Put what the buffer holds, all of it written, into a block of the index."""
        buffer, part = self._buffer, self._partial
        position, offset = buffer.position, buffer.offset
        if part is not None:
            self._blocks.append(self._join(part))
            self._partial = None
        elif len(buffer):
            crc = crc32c(buffer.block())
            first, last, newest = buffer.first_timestamp, buffer.last_timestamp, buffer.newest_timestamp
            if newest > self._newest:
                self._newest = newest
            start, due = self._block_position, self._block_offset
            self._blocks.append(Block(start, position, due, offset - due, crc, first, last, self._newest))
        else:
            return
        self._block_position, self._block_offset = position, offset
        buffer.clear()

    def _join(self, part: Block) -> Block:
        """The block that an earlier writer left open, with what the buffer holds."""
        buffer = self._buffer
        last, newest = part.last_timestamp, part.newest_timestamp
        if len(buffer):
            last, newest = buffer.last_timestamp, max(newest, buffer.newest_timestamp)
        self._newest = max(self._newest, newest)
        return part._replace(
            end=buffer.position,
            messages=buffer.offset - part.first_offset,
            crc32c=crc32c(buffer.block(), part.crc32c),
            last_timestamp=last,
            newest_timestamp=self._newest,
        )

    def _write_index(self, synced_position: int) -> None:
        """Write the entries whose bytes are synced. The index can be rebuilt: its failure harms nothing."""
        ready = [block for block in self._blocks if block.end <= synced_position]
        if not ready:
            return
        count = len(ready)
        try:
            self._index_file.write(ready, self._indexed)
        except OSError as error:
            if not is_failure(error):
                raise
            warnings.warn(
                f"the index {self._index_file.path} could not be written: {error}", RuntimeWarning, stacklevel=2
            )
            self._blocks = self._blocks[count:]
            return
        # No call between these, see _go_on.
        self._indexed, self._blocks = self._indexed + count, self._blocks[count:]

    def _finish_index(self) -> None:
        """At the end of writing: give the last messages their checksum, too."""
        if len(self._buffer) or (self._partial is not None and not self._partial_known):
            self._end_block()
            self._write_index(self._synced_position)

    def _seal(self) -> None:
        """Sync the last segment and finish its index."""
        self._end_block()
        self._sync_alone()
        self._index_file.close()

    def _rotate(self) -> None:
        """Seal the last segment and start the next. The old file closes when nobody syncs it any more."""
        self._lock.check()
        self._seal()
        self._take(start_segment, self._directory, self._buffer.offset, alone=True)
        if self._retention is not None:
            try:
                clean(self._directory, self._retention, wait=False)
            except OSError as error:
                if not is_failure(error):
                    raise
                warnings.warn(f"retention failed in {self.path}: {error}", RuntimeWarning, stacklevel=2)

    def _sync_some(self) -> int:
        """Sync what was written so far, without the mutex while the disk works; returns the durable offset."""
        with self._mutex:
            if self._failure is not None or self._closed:
                self._refuse()
            self._lock.check()
            thaw = self._buffer.thaw
            try:
                self._buffer.freeze()  # an append between the write and a look at the offset would count as synced
                if self._buffer.in_doubt:
                    self._mend()
                self._buffer.flush()
                file, offset, position = self._file, self._buffer.offset, self._buffer.position
            finally:
                thaw()
        self._settle(file)
        file.sync()
        with self._mutex:
            try:
                self._buffer.freeze()
                if file is self._file and not self._buffer.in_doubt and not self._closed:
                    self._keep_position(position, offset)
                    self._write_index(self._synced_position)
            finally:
                thaw()
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

    def _changing(self, act: Callable[..., _T], *arguments: object) -> _T:
        """Call something that changes the journal's end: a failure poisons, anything else leaves the end in doubt."""
        try:
            return act(*arguments)
        except BaseException as error:
            self._buffer.doubt()
            if is_failure(error):
                self._fail(error)
            raise

    def _failed(self, what: str, error: BaseException) -> WriterFailedError:
        with self._buffer.pending() as view:
            lost = self._segment_offset_of_pending(view) if len(view) else self._buffer.offset
        return WriterFailedError(
            f"{what}: {error}; this writer is closed for good: mend the cause and open it again,"
            f" which finds what is on disk{full_disk_advice(self._directory.disk, self._directory.path, error)}",
            path=self._segment.path,
            position=self._buffer.position,
            offset=lost,
        )

    def _abandon(self) -> None:
        """Let go of everything after an opening that failed half-way; nothing was appended."""
        self._closed = True
        if hasattr(self, "_syncer"):
            self._syncer.close()
        if hasattr(self, "_file"):
            self._file.close()
            self._need()
        self._lock.release()

    def _fail(self, error: BaseException) -> None:
        """Poison: from now on every call raises."""
        if self._failure is None and not self._closed:
            self._failure = error
            self._buffer.stop(self._refuse)
            self._syncer.fail(error)
            if error.__traceback__ is not None:
                clear_frames(error.__traceback__.tb_next)  # the writer keeps the error, but no new segment's lock in it

    def _require_open(self) -> None:
        if self._closed or self._close_later or self._failure is not None or os.getpid() != self._pid:
            self._refuse()
        if self._buffer.in_doubt:
            thaw = self._buffer.thaw
            try:
                self._mend()
            finally:
                thaw()

    def _is_inside(self) -> bool:
        """Whether this thread has the mutex: then this is a signal's handler, in the middle of a call."""
        return is_mine(self._mutex)

    def _require_apart(self) -> None:
        if self._is_inside():
            raise LockedError(
                "this thread is in the middle of a call of this writer: a signal's handler can only close it then",
                path=self.path,
            )
        if self._close_later:
            self._refuse()

    def close(self) -> None:
        """Close; see the writer."""
        raise NotImplementedError

    def _refuse(self) -> NoReturn:
        if os.getpid() != self._pid:
            raise ClosedError("this writer belongs to the parent process: open one after the fork", path=self.path)
        if self._close_later and not self._is_inside():
            self.close()
        if self._failure is not None:
            self._syncer.untold = False
            if isinstance(self._failure, LockLostError):
                raise LockLostError(self._failure.reason, path=self._failure.path) from self._failure
            raise self._failed("an earlier write or sync failed", self._failure) from self._failure
        raise ClosedError("the writer is closed", path=self.path)
