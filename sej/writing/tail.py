"""The growing end of a journal: what an exclusive writer does with the file, buffer, index, lock and syncs.

A :class:`Tail` is what :class:`sej.Writer`, the shards' idle writer and ``append_once`` use. It relies on the lock
(``jnl.lck``), the codec's :class:`~sej.codec.Buffer` for encoding, and :mod:`sej.writing.opening` for finding the end.

What it promises, at every durability:

- A segment is synced before its successor is created, so only the last one can be torn.
- A message is whole or absent for readers that follow the format.
- An index entry is written after its bytes are synced.
- A failed write or sync poisons: after the first one nothing is written or synced. What was not acknowledged by then
  may or may not be there after reopening, as a prefix.

How a message gets to the disk::

    buffer.append ---- encoded, has its offset
        |  the buffer writes by itself, or calls _drain      ("os", "interval": after each append)
        v
    LastSegment.file - the kernel has it
        |  Syncer: one sync for all threads that wait        ("disk": before append returns)
        v
    durable_offset --- the medium has it

**Who may change what.** The mutex of :class:`~sej.system.lifecycle.Lifecycle` guards everything; the buffer uses the
same lock. :meth:`Tail.alone` is how every call takes it. No call enters twice: a signal's handler is refused.

**Interrupts.** An exception of a signal's handler is not a failure. It leaves the buffer in doubt, which it is from
before a change of the file until after it. The next call then finds the end again (:meth:`Tail._mend`), before a
message gets its offset.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, TypeVar

from sej.codec import Buffer, measure
from sej.codec.buffer_reference import _full
from sej.codec.format import MAX_OFFSET
from sej.errors import DecodeError, LockLostError, SejError, WriterFailedError
from sej.journal.directory import Directory, check_name
from sej.journal.index_format import BLOCK_BYTES
from sej.journal.medium import kept_position
from sej.journal.recovery import Recovery
from sej.journal.retention import Retention, clean
from sej.journal.writer_lock import writer_lock
from sej.message import BytesLike
from sej.system.disk import full_disk_advice
from sej.system.group_commit import Syncer, is_failure
from sej.system.lifecycle import Lifecycle
from sej.writing.exactly_once import Batches
from sej.writing.last_segment import LastSegment
from sej.writing.opening import End, open_end, start_segment
from sej.writing.staging import stage
from sej.writing.taking import take_end

__all__ = ["Durability", "Row", "Tail"]

_T = TypeVar("_T")
Durability = Literal["buffer", "os", "interval", "disk"]
Row = tuple[BytesLike, BytesLike, int, int | None]
"""Value, key, type and timestamp of a message."""

_BUFFER_BYTES: Final = 1 << 16
_BATCH_BYTES: Final = 1 << 18
_CHECKPOINT_BYTES: Final = 1 << 28
"""So much is left to the kernel before a background sync lets the index grow: what a reopening has to walk at most."""
_LOCK_CHECK_S: Final = 0.09
_LOOK_NS: Final = 100_000_000
"""For so long the buffer writes single messages by itself; then the lock is looked at again."""
_needed: Final[dict[int, object]] = {}
"""What each open tail needs to close: of a forgotten one the collector must not close the files before that."""


class Tail:
    """The growing end of one journal, alone under its lock. Threads may share it.

    Attributes:
        path: the SEJ directory.
        directory: the same, with its disk.
        durability: as named on opening.
        recovery: the torn tail that opening cut, or what two writers left and opening has mended; or None.
        life: its state and its mutex.
        lock: the journal's.
        buffer: encodes; its ``append`` and ``append_many`` may be called directly.
        last: the last segment.
        syncer: keeps the durable offset.
    """

    last: LastSegment
    syncer: Syncer

    def __init__(
        self,
        directory: Directory,
        *,
        segment_bytes: int,
        durability: Durability,
        retention: Retention | None,
    ) -> None:
        """Name a journal; nothing is opened yet. Arguments as of :class:`sej.Writer`."""
        self.life = Lifecycle("the writer", directory.path, self._earlier)
        self.path = directory.path
        self.durability = durability
        self.recovery: Recovery | None = None
        self.lock = writer_lock(directory)
        self.buffer = Buffer(0, self._drain, self.life.mutex)
        self.directory = directory
        self._segment_bytes = segment_bytes
        self._retention = retention
        self._kept = kept_position(directory)
        self._batches = Batches(directory)
        self._lock_check_at = 0.0

    def open(self, first_offset: int, lock_timeout: float | None, sync_interval_s: float) -> None:
        """Take the lock, find the end, finish what earlier writers had promised.

        If this raises, the caller calls :meth:`abandon`. Arguments and errors as of :class:`sej.Writer`.
        """
        end = self._take(take_end, self.directory, self._kept, self.lock, first_offset, lock_timeout)
        self.recovery = end.recovery
        self.buffer.offset = end.offset
        self.syncer = Syncer(
            self._sync_some,
            self._fail,
            lambda: self.buffer.offset,
            end.synced_offset,
            interval_s=sync_interval_s if self.durability == "interval" else None,
            untold=self.life.leave_untold,
        )
        self._lock_check_at = time.monotonic()
        self.alone(self._batches.roll_forward, self)
        if end.synced_offset < end.offset:
            self.syncer.request()
        self.life.in_child = self._close_copies

    # --- appending in more ways than a writer shows

    def append_each(self, rows: Iterable[Row]) -> list[int | Exception]:
        """Append messages that have nothing to do with each other: an invalid one does not stop the others.

        Under ``"disk"`` they share one sync.

        Args:
            rows: the messages.

        Returns:
            For each its offset, or what :meth:`sej.Writer.append` would have raised.
        """
        found: list[int | Exception] = []
        for row in rows:
            try:
                found.append(self.buffer.append(*row))
            except Exception as error:
                found.append(error)
        if self.durability == "disk":
            try:
                self.syncer.commit(max((offset + 1 for offset in found if isinstance(offset, int)), default=0))
            except SejError as error:
                return [error if isinstance(offset, int) else offset for offset in found]
        return found

    def append_encoded(self, data: BytesLike) -> range:
        """Append messages that are encoded already and carry the next offsets: for copying at full speed.

        Every message's frame and offset are checked before the first byte is taken.

        Args:
            data: whole messages, one after the other, as they are stored in a segment; the first has :attr:`offset`.

        Returns:
            Their offsets.

        Raises:
            DecodeError: the data is not whole messages with the due offsets; nothing was appended.
            InvalidMessageError: their offsets are beyond the last one that a journal can have.
        """
        span = self.alone(self._append_whole, data)
        if self.durability == "disk":
            self.syncer.commit(span.stop)
        return span

    def _append_whole(self, data: BytesLike) -> range:
        first = self.buffer.offset
        self.extend(data)
        if self.durability != "buffer":
            self.buffer.flush()
        return range(first, self.buffer.offset)

    def append_once(
        self,
        name: str,
        number: int,
        values: Sequence[BytesLike],
        keys: Sequence[BytesLike] | None,
        type: int | Sequence[int],
        timestamp: int | Sequence[int] | None,
    ) -> range:
        """Append a batch exactly once; see :meth:`sej.Writer.append_once`."""
        return self.alone(lambda: self._batches.append(self, name, number, values, keys, type, timestamp))

    def append_once_encoded(self, name: str, number: int, chunks: Iterable[BytesLike]) -> range:
        """As :meth:`append_once`, for messages that are encoded already and carry the next offsets.

        A repeat is known by its number alone, and its chunks are not looked at: for jobs that are run again whole.

        Args:
            name: who counts the batches.
            number: rises from batch to batch.
            chunks: whole messages each; the first message has :attr:`offset`.

        Returns:
            Its offsets.

        Raises:
            DecodeError: the data is not whole messages with the due offsets; nothing was appended.
            InvalidMessageError: their offsets are beyond the last one that a journal can have.
            BatchConflictError: the number is new and below the last one, or so old that its record is gone.
        """
        return self.alone(lambda: self._batches.append_encoded(self, name, number, chunks))

    def last_batch(self, name: str) -> int | None:
        """The highest number that :meth:`append_once` got from a name, or None if it got none."""
        check_name(name, "a batch name")
        self.life.require_outside()
        with self.life.mutex:
            return self._batches.last(name)

    def rotate(self) -> None:
        """End the segment, if there is a message in it: the next message starts a new one."""
        self.alone(self._rotate_if_begun)

    def _rotate_if_begun(self) -> None:
        if self.buffer.position:
            self.changing(self._rotate)

    def publish(
        self,
        values: Sequence[BytesLike],
        keys: Sequence[BytesLike] | None,
        type: int | Sequence[int],
        timestamp: int | Sequence[int] | None,
    ) -> range:
        """Append a batch atomically; see :meth:`sej.Writer.publish`."""
        return self.alone(lambda: self._publish(values, keys, type, timestamp))

    def _publish(
        self,
        values: Sequence[BytesLike],
        keys: Sequence[BytesLike] | None,
        type: int | Sequence[int],
        timestamp: int | Sequence[int] | None,
    ) -> range:
        first = self.buffer.offset
        staged = self.directory.at("tmp", f"{first:016x}.publish")
        span = stage(self.directory.disk, staged, first, values, keys, type, timestamp)
        if span:
            self.changing(self._put_in_place, staged, span)
        return span

    def _put_in_place(self, staged: str, span: range) -> None:
        """Let what was staged be the last segment."""
        self.lock.check()
        self._seal()
        published = self.directory.segment(span.start)
        self.directory.disk.rename(staged, published.path)
        self._take(open_end, self.directory, self._kept, alone=True, published=published)
        self.buffer.offset = span.stop
        self.syncer.advance(span.stop)
        if self.buffer.position >= self._segment_bytes:
            self._rotate()

    # --- durability

    @property
    def offset(self) -> int:
        """The offset of the next message."""
        return self.buffer.offset

    def flush(self) -> None:
        """Hand everything to the kernel."""
        life = self.life
        life.require_outside()
        with life.mutex:  # as alone() does it: this is called after each message, maybe
            if not life.open or self.buffer.in_doubt:
                self.require_sound()
            thaw = self.buffer.thaw
            try:
                self.buffer.freeze()
                self.buffer.flush()
            finally:
                thaw()

    def sync(self) -> None:
        """Force everything appended so far to the disk."""
        self.flush()
        self.syncer.commit(self.buffer.offset)

    def _sync_some(self) -> int:
        """Sync what was written so far, without the mutex while the disk works; returns the durable offset."""
        buffer = self.buffer
        with self.life.mutex:
            self.life.require()
            left = self.last.left
            if not left:
                self.lock.check()
            thaw = buffer.thaw
            try:
                buffer.freeze()  # an append between the write and a look at the offset would count as synced
                if buffer.in_doubt:
                    self._mend()
                buffer.flush()  # if the segment was left, nothing is pending
                last, file, offset, position = self.last, self.last.file, buffer.offset, buffer.position
            finally:
                thaw()
        if left:
            last.sync_left()
            return offset
        last.sync(file)
        with self.life.mutex:
            try:
                buffer.freeze()
                if file is self.last.file and not buffer.in_doubt and not self.life.closed:
                    self.last.keep(position, offset)
                    self.last.blocks.write(self.last.synced_position)
            finally:
                thaw()
        return offset

    # --- the whole

    def close(self) -> None:
        """Write and sync what is left, and give the lock back; see :meth:`sej.Writer.close`."""
        self.life.close(self._finish, self._release)

    def _finish(self) -> None:
        if self.last.left:
            self.syncer.commit(self.buffer.offset)
            with self.life.mutex:
                self._shut()
        else:
            self.alone(self.changing, self._finish_last)

    def _finish_last(self) -> None:
        if self.syncer.durable_offset < self.buffer.offset:
            self.lock.check()
            self.sync_now()
        self.last.blocks.finish(self.buffer, self.last.synced_position)
        self._shut()

    def _shut(self) -> None:
        self.life.shut()  # with the mutex: nothing comes between the last sync and this
        self.buffer.stop(self.life.refuse)

    def abandon(self) -> None:
        """Give everything back, and write or sync nothing any more: after an opening that raised, for example."""
        self.life.close(self._shut, self._release)

    def _release(self) -> None:
        """Give everything back; if it was interrupted, the next close() calls it again."""
        with self.life.mutex:
            self.buffer.stop(self.life.refuse)
        if hasattr(self, "syncer"):
            self.syncer.close()
        if hasattr(self, "last"):
            self.last.close()
        self.lock.release()
        _needed.pop(id(self), None)

    def _close_copies(self) -> None:
        """In a forked child: the copies of the descriptors must not keep the parent's locks alive."""
        self.buffer.stop(self.life.refuse)
        self.last.file.close()

    def __del__(self) -> None:
        """Close what was forgotten, and say so."""
        if hasattr(self, "syncer") and not self.life.closed and not self.life.forked:
            try:
                warnings.warn(f"the writer of {self.path} was never closed", ResourceWarning, stacklevel=1, source=self)
            finally:  # a warning may be an error
                self.close()

    # --- for what appends with the mutex held: alone() calls it

    def alone(self, act: Callable[..., _T], *arguments: object) -> _T:
        """Call something with the mutex, everything handed to the kernel, and no append coming in.

        What the disk refuses poisons. Only calls into C are in the ``with`` and the ``finally``: whatever a signal's
        handler raises, the mutex is released and appends come in again.

        Raises:
            LockedError: a call of this tail is under way in this thread.
            WriterFailedError: a write or sync failed, now or before.
            ClosedError: it is closed, or belongs to the parent process.
        """
        self.life.require_outside()
        with self.life.mutex:
            self.require_sound()
            thaw = self.buffer.thaw
            try:
                self.buffer.freeze()
                self.buffer.flush()
                return act(*arguments)
            except OSError as error:
                if not is_failure(error):
                    raise
                self._fail(error)
                raise self._failed("a write or sync failed", error) from error
            finally:
                thaw()

    def require_sound(self) -> None:
        """With the mutex: refuse if it is not open, and find the end again if it is in doubt."""
        self.life.require()
        if self.buffer.in_doubt:
            thaw = self.buffer.thaw
            try:
                self._mend()
            finally:
                thaw()

    def changing(self, act: Callable[..., _T], *arguments: object) -> _T:
        """Call something that changes the journal's end: a failure poisons, anything else leaves the end in doubt."""
        try:
            return act(*arguments)
        except BaseException as error:
            self.buffer.doubt()
            if is_failure(error):
                self._fail(error)
            raise

    def extend(self, data: BytesLike) -> None:
        """Check whole messages that are encoded, then append them; errors as of :meth:`append_encoded`."""
        buffer, size = self.buffer, len(data)
        whole = measure(data, 0, size, buffer.offset, size)
        if whole.position != size:
            measure(data, whole.position, size, buffer.offset + whole.messages, 1)  # raises where it is wrong
            raise DecodeError(
                f"the last {size - whole.position} bytes are not a whole message",
                position=whole.position,
                offset=buffer.offset + whole.messages,
            )
        if buffer.offset + whole.messages > MAX_OFFSET:
            raise _full()
        at = 0
        while at < size:
            run = measure(data, at, size, buffer.offset, buffer.batch_limit)
            buffer.extend(data, run, at)
            at = run.position

    def sync_now(self) -> None:
        """Sync all that was appended, while no other thread can append."""
        buffer, last = self.buffer, self.last
        buffer.flush()
        last.sync(last.file)
        last.keep(buffer.position, buffer.offset)
        self.syncer.advance(buffer.offset)
        last.blocks.write(buffer.position)

    def set_limits(self) -> None:
        """Say when the buffer drains: a message that ends a segment or a block is the last one of its write."""
        buffer = self.buffer
        left = max(self._segment_bytes - buffer.position, 1)
        buffer.batch_limit = min(_BATCH_BYTES, left)
        if self.lock.original is not None and self.durability not in ("buffer", "disk"):
            buffer.limit = 1  # every message goes through _drain, which looks at the lock
        elif self.durability in ("buffer", "disk"):  # under "disk" the thread that syncs writes for all that wait
            buffer.limit = min(_BUFFER_BYTES, left)
        else:
            until = min(buffer.position - len(buffer) + BLOCK_BYTES, self._segment_bytes)
            buffer.steady(self.last.file.writer(), self._write_trouble, until, _LOOK_NS)

    # --- writing

    def _drain(self) -> None:
        """Write what the buffer holds; what the buffer calls."""
        buffer = self.buffer
        if buffer.interrupted:
            self._mend()
            return
        try:
            with buffer.pending() as view:
                try:
                    self.last.write(view, buffer.position, self.lock)
                except OSError as error:
                    self._write_trouble(error, 0)
            buffer.drained()
            if len(buffer) >= BLOCK_BYTES:
                self.last.blocks.end_block(buffer)
                if buffer.position - self.last.synced_position >= _CHECKPOINT_BYTES:
                    self.syncer.request()
            if buffer.position >= self._segment_bytes:
                self._rotate()
            self.set_limits()
            if time.monotonic() >= self._lock_check_at:
                self.lock.check()
                self._lock_check_at = time.monotonic() + _LOCK_CHECK_S
        except BaseException as error:  # the buffer stays in doubt
            if is_failure(error):
                self._fail(error)
                if isinstance(error, OSError):
                    raise self._failed("a sync or a new segment failed", error) from error
            raise

    def _seal(self) -> None:
        """Sync the last segment and finish its index."""
        self.last.blocks.end_block(self.buffer)
        self.sync_now()
        self.last.blocks.close()

    def _rotate(self) -> None:
        """Seal the last segment and start the next. The old file closes when no thread syncs it any more."""
        self.lock.check()
        self._seal()
        self._take(start_segment, self.directory, self.buffer.offset, alone=True)
        if self._retention is not None:
            try:
                clean(self.directory, self._retention, wait=False)
            except OSError as error:
                if not is_failure(error):
                    raise
                warnings.warn(f"retention failed in {self.path}: {error}", RuntimeWarning, stacklevel=2)

    def _take(self, find: Callable[..., End], *arguments: Any, **options: Any) -> End:
        """Continue at the end of a segment that find returns."""
        end: End | None = None
        try:
            end = find(*arguments, **options)
            self._continue_at(end)
        except BaseException:
            if end is not None and (not hasattr(self, "last") or end.file is not self.last.file):
                end.file.close()  # its lock must not live as long as the traceback
            raise
        return end

    def _continue_at(self, end: End) -> None:
        self.buffer.steady(None, None, 0, 0)  # the old file's descriptor may go with its last owner
        old = self.last.file if hasattr(self, "last") else end.file
        last = LastSegment(self.directory, self._kept, end)
        # No call between these: a signal's handler finds them as they were, or as they will be.
        self.last = last
        self.buffer.position = end.position
        if old is not end.file:
            old.unlock()  # it may stay open for a sync, or in a traceback
        _needed[id(self)] = self.lock, last
        self.set_limits()
        last.blocks.write(end.synced_position)

    def _mend(self) -> None:
        """With the mutex: find the end again, after an exception came out of the middle of something that changes it.

        No other process appends, so the size of the file says how much of what is pending was written. The rest is
        written now: no caller knows whether it would be. Then everything is found as an opening finds it.
        """
        buffer, file = self.buffer, self.last.file
        buffer.freeze()
        try:
            buffer.doubt()
            self.lock.check()
            with buffer.pending() as view:
                there = file.status().size - buffer.position
                if 0 <= there < len(view):
                    with view[there:] as rest:
                        self.last.write(rest, buffer.position + there, self.lock)
            buffer.drained()
            buffer.clear()
            self.last.blocks.close()
            end = self._take(open_end, self.directory, self._kept, alone=True, known=file)
            if end.offset < buffer.offset:
                raise LockLostError(
                    f"the journal ends at {end.offset}, but this writer has appended up to {buffer.offset}: another"
                    " process wrote to it while it was locked",
                    path=self.last.segment.path,
                    offset=end.offset,
                )
            buffer.offset = end.offset
            self.syncer.advance(end.synced_offset)
            buffer.mended()
            self._batches = Batches(self.directory)  # what is remembered of them may be what was interrupted
            self._batches.roll_forward(self)
        except BaseException as error:
            buffer.doubt()
            if is_failure(error):
                self._fail(error)
                if isinstance(error, OSError):
                    raise self._failed("a write or sync failed", error) from error
            raise

    # --- failing

    def _write_trouble(self, error: BaseException | None, taken: int) -> None:
        """Poison, and cut what a failed write left; write the rest of a short one. What the buffer calls."""
        with self.buffer.pending() as view:
            if error is None:
                try:
                    with view[taken:] as rest:
                        self.last.file.write(rest)
                    return
                except OSError as late:
                    error = late
            if not is_failure(error):
                raise error  # the buffer stays in doubt, and the next write finds out how far this one came
            self._fail(error)  # first: an interrupt that comes from here on finds the writer failed
            self.last.cut_partial_write(view, self.buffer.position, self.lock)
        raise self._failed("a write failed", error) from error

    def _fail(self, error: BaseException) -> None:
        """Poison: from now on every call raises."""
        if self.life.fail(error):
            self.buffer.stop(self.life.refuse)
            self.syncer.fail(error)

    def _earlier(self, error: BaseException) -> WriterFailedError:
        return self._failed("an earlier write or sync failed", error)

    def _failed(self, what: str, error: BaseException) -> WriterFailedError:
        with self.buffer.pending() as view:
            lost = _first_offset(view) if len(view) else self.buffer.offset
        return WriterFailedError(
            f"{what}: {error}; this writer is closed for good: mend the cause and open it again,"
            f" which finds what is on disk{full_disk_advice(self.directory.disk, self.path, error)}",
            path=self.last.segment.path,
            position=self.buffer.position,
            offset=lost,
        )


def _first_offset(messages: memoryview) -> int:
    return int.from_bytes(messages[:8], "big")
