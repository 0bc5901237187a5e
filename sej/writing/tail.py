"""The growing end of a journal: what an exclusive writer does with the file, buffer, index, lock and syncs.

A :class:`Tail` is what :class:`sej.Writer` and ``append_once`` use. It relies on the lock
(``jnl.lck``), the codec's :class:`~sej.codec.Buffer` for encoding, and :mod:`sej.writing.opening` for finding the end.

The invariants, at every durability:

- A segment is synced before its successor is created, so only the last one can be torn.
- A message is whole or absent for readers that follow the format.
- An index entry is written after its bytes are synced.
- After the first failed write or sync the tail has failed: it writes and syncs nothing more, and every call raises. Of
  the messages that were not acknowledged, a prefix may be in the journal after reopening.

How a message gets to the disk::

    buffer.append ---- the message is encoded and has its offset
        |  the buffer writes by itself, or calls _drain      ("os", "interval": after each append)
        v
    LastSegment.file - the kernel has it
        |  Syncer: one sync for all threads that wait        ("disk": before append returns)
        v
    durable_offset --- the medium has it

**The mutex** of :class:`~sej.system.lifecycle.Lifecycle` guards everything. The buffer uses the same lock, and every
other call takes it with :meth:`Tail.alone`. If a signal handler interrupts a call and calls the tail again, it is
refused.

**Interrupts.** An exception that a signal handler raises is not a failure. The buffer is *in doubt* from before each
change of the file until after it, so an exception in between leaves it in doubt. Then the next call finds the end again
(:meth:`Tail._mend`) before a message gets an offset::

    what ends a change             the buffer      the next call
    it returns                     sound           appends
    a signal handler's exception   in doubt        finds the end again, then appends
    a failed write or sync         stopped         raises WriterFailedError
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from sej.codec import Buffer, measure
from sej.codec.arguments import full
from sej.codec.format import MAX_OFFSET
from sej.errors import DecodeError, LockLostError, SejError, WriterFailedError
from sej.journal.directory import Directory, check_name
from sej.journal.gaps import Gap, record_gap
from sej.journal.index_format import BLOCK_BYTES
from sej.journal.medium import kept_position
from sej.journal.recovery import Recovery
from sej.journal.writer_lock import WriterLock
from sej.message import BytesLike
from sej.system.disk import way_out
from sej.system.group_commit import Syncer, is_failure
from sej.system.lifecycle import Lifecycle
from sej.writing.end import End
from sej.writing.last_segment import LastSegment
from sej.writing.opening import open_end, start_segment
from sej.writing.taking import take_end

if TYPE_CHECKING:
    from sej.journal.retention import Retention
    from sej.writing.exactly_once import Batches

_T = TypeVar("_T")
Durability = Literal["buffer", "os", "interval", "disk"]
Row = tuple[BytesLike, BytesLike, int, int | None]
"""Value, key, type and timestamp of a message."""

_BUFFER_BYTES: Final = 1 << 16
_BATCH_BYTES: Final = 1 << 18
_CHECKPOINT_BYTES: Final = 1 << 28
"""After this many unsynced bytes a background sync extends the index. A reopening walks at most as many."""
_LOCK_CHECK_S: Final = 0.09
_LOOK_NS: Final = 100_000_000
"""For this long the buffer writes single messages by itself. Then _drain runs and checks the lock."""
_needed: Final[dict[int, object]] = {}
"""The lock and files of each open tail. Else the garbage collector could close them before it finds the writer."""


class Tail:
    """The growing end of one journal, whose lock it holds. Threads may share it.

    Attributes:
        path: the SEJ directory.
        directory: the same directory, with its disk.
        durability: the durability that the writer was opened with.
        recovery: the torn tail that opening has cut, or None.
        life: its state and its mutex.
        lock: the journal's lock.
        buffer: encodes messages; its ``append`` and ``append_many`` may be called directly.
        last: the last segment.
        syncer: syncs, and has the durable offset.
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
        """Remember the journal. Nothing is opened yet. Arguments as for :class:`sej.Writer`."""
        self.life = Lifecycle("the writer", directory.path, self._earlier)
        self.path = directory.path
        self.durability = durability
        self.recovery: Recovery | None = None
        self.lock = WriterLock(directory)
        self.buffer = Buffer(0, self._drain, self.life.mutex)
        self.buffer.forgotten = self._forget
        self.directory = directory
        self._segment_bytes = segment_bytes
        self._retention = retention
        self._kept = kept_position(directory)
        self._known_batches: Batches | None = None
        self._lock_check_at = 0.0

    def open(self, first_offset: int, lock_timeout: float | None, sync_interval_s: float) -> None:
        """Take the lock, open the end, and finish the batches that earlier writers have promised.

        If this raises, the caller calls :meth:`abandon`. Arguments and errors as for :class:`sej.Writer`.
        """
        end = self._take(take_end, self.directory, self._kept, self.lock, first_offset, lock_timeout)
        self.recovery = end.recovery
        self.buffer.offset = end.offset
        self.syncer = Syncer(
            self._sync_some,
            self._fail,
            partial(getattr, self.buffer, "offset"),  # not a method of this object, which the syncer may outlive
            end.synced_offset,
            interval_s=sync_interval_s if self.durability == "interval" else None,
            untold=self.life.leave_untold,
        )
        self._lock_check_at = time.monotonic()
        if end.promised and self.directory.names("txn"):
            self.alone(self._batches.roll_forward, self)
        if end.synced_offset < end.offset:
            self.syncer.request()
        self.life.in_child = self._close_copies

    # --- ways to append that the writer's interface does not have

    def append_each(self, rows: Iterable[Row]) -> list[int | Exception]:
        """Append independent messages. An invalid one does not stop the others.

        With the durability ``"disk"`` they share one sync.

        Args:
            rows: the messages.

        Returns:
            For each message its offset, or the exception that :meth:`sej.Writer.append` would have raised.
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
        """Append messages that are already encoded with the next offsets, for fast copying.

        The frame and the offset of every message are checked before the first one is appended.

        Args:
            data: whole messages, one after the other, as they are stored in a segment; the first has :attr:`offset`.

        Returns:
            The offsets.

        Raises:
            DecodeError: the data is not whole messages with the next offsets; nothing was appended.
            InvalidMessageError: an offset is above the highest one that a journal can have; nothing was appended.
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

    @property
    def _batches(self) -> Batches:
        """The batches of :meth:`append_once`. Imported here, because most writers open and close without."""
        if self._known_batches is None:
            from sej.writing.exactly_once import Batches

            self._known_batches = Batches(self.directory)
        return self._known_batches

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
        """Append a batch exactly once, whose messages are already encoded with the next offsets.

        A repeat is recognised by its number alone, and its chunks are not read. This is for jobs that run again as a
        whole.

        Args:
            name: the name of the sender that numbers the batches.
            number: the number of the batch. It rises from batch to batch.
            chunks: bytes of whole messages; the first message has :attr:`offset`.

        Returns:
            The offsets.

        Raises:
            DecodeError: the data is not whole messages with the next offsets; nothing was appended.
            InvalidMessageError: an offset is above the highest one that a journal can have; nothing was appended.
            BatchConflictError: the number is new and below the last one, or so old that its record was removed.
        """
        return self.alone(lambda: self._batches.append_encoded(self, name, number, chunks))

    def last_batch(self, name: str) -> int | None:
        """Return the highest number of a batch of a name, or None if the name has no batch."""
        check_name(name, "a batch name")
        self.life.require_outside()
        with self.life.mutex:
            return self._batches.last(name)

    def batch_messages(self, name: str, number: int) -> int:
        """Return how many messages a batch of a name has; 0 if it is not known."""
        check_name(name, "a batch name")
        self.life.require_outside()
        with self.life.mutex:
            return self._batches.messages(name, number)

    def rotate(self) -> None:
        """End the segment if it has a message, so that the next message starts a new one."""
        self.alone(self._rotate_if_begun)

    def leave_out(self, offset: int, reason: str) -> None:
        """Record the offsets up to another one as a gap, durably, and continue there in a new segment."""
        self.alone(self.changing, self._leave_out, offset, reason)

    def _leave_out(self, offset: int, reason: str) -> None:
        self._check_names()
        self._seal()
        record_gap(self.directory, Gap(self.buffer.offset, offset, reason))
        self._take(start_segment, self.directory, offset, self.lock)
        self.buffer.offset = offset
        self.syncer.advance(offset)

    def _rotate_if_begun(self) -> None:
        if self.buffer.position:
            self.changing(self._rotate)

    # --- durability

    @property
    def offset(self) -> int:
        """The offset of the next message."""
        return self.buffer.offset

    def require_in_place(self) -> None:
        """Check that another program has removed neither the lock file nor the last segment.

        Raises:
            WriterFailedError: it has, and what was appended after that is lost.
        """
        self.alone(self._check_names)

    def flush(self) -> None:
        """Write everything to the kernel."""
        life = self.life
        life.require_outside()
        with life.mutex:  # a copy of alone(), because this may be called after each message
            if not life.open or self.buffer.in_doubt:
                self.require_sound()
            thaw = self.buffer.thaw
            try:
                self.buffer.freeze()
                self.buffer.flush()
            finally:
                thaw()

    def sync(self) -> None:
        """Sync everything appended so far."""
        self.flush()
        self.syncer.commit(self.buffer.offset)

    def _sync_some(self) -> int:
        """Sync everything appended so far, and return the durable offset. The mutex is free during the sync."""
        buffer = self.buffer
        with self.life.mutex:
            self.life.require()
            self._check_names()
            thaw = buffer.thaw
            try:
                buffer.freeze()  # an append after the flush would change the offset, and so count as synced
                if buffer.in_doubt:
                    self._mend()
                buffer.flush()
                last, file, offset, position = self.last, self.last.file, buffer.offset, buffer.position
            finally:
                thaw()
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

    # --- closing

    def close(self) -> None:
        """Write and sync the rest, and release the lock; see :meth:`sej.Writer.close`."""
        self.life.close(self._finish, self._release)

    def _finish(self) -> None:
        self.alone(self.changing, self._finish_last)

    def _finish_last(self) -> None:
        buffer, last = self.buffer, self.last
        if self.syncer.durable_offset < buffer.offset:
            self._check_names()
            last.sync(last.file)
            last.keep(buffer.position, buffer.offset)
            last.blocks.write(buffer.position)
            self.syncer.advance(buffer.offset)
        last.blocks.finish(buffer, last.synced_position)
        self._shut()

    def _shut(self) -> None:
        self.life.shut()  # with the mutex, so that no append comes after the last sync
        self.buffer.stop(self.life.refuse)

    def abandon(self) -> None:
        """Close the files and release the lock without a write or sync, for example after an opening that raised."""
        self.life.close(self._shut, self._release)

    def _release(self) -> None:
        """Close the files and release the lock. If this is interrupted, the next close() calls it again."""
        with self.life.mutex:
            self.buffer.stop(self.life.refuse)
            self.buffer.steady(None, None, 0, 0)
        if hasattr(self, "syncer"):
            self.syncer.close()
            self.syncer.forget(self.life.refuse)
        if hasattr(self, "last"):
            self.last.close()
        self._kept.forget()  # it has a reference to the segment
        self.lock.release()
        _needed.pop(id(self), None)
        self.buffer.forgotten = None

    def _close_copies(self) -> None:
        """Close a forked child's copies of the descriptors, which would keep the parent's locks."""
        self.buffer.stop(self.life.refuse)
        self._kept.forget()

    def _forget(self) -> None:
        """Close a tail whose writer is gone and was never closed, with a warning."""
        inside = self.life.inside  # first: it notices a fork
        if self.life.forked:
            return
        if inside:  # the garbage collector runs in the thread that syncs, in the middle of that
            threading.Thread(target=self._forget, name="sej-close").start()
            return
        close = self.close if hasattr(self, "syncer") else self.abandon
        try:
            if not self.life.closed and hasattr(self, "syncer"):
                warnings.warn(f"the writer of {self.path} was never closed", ResourceWarning, stacklevel=1, source=self)
        finally:  # a warning may be an error
            self.life.exit(close, None)

    # --- calls with the mutex held

    def alone(self, act: Callable[..., _T], *arguments: object) -> _T:
        """Call a function with the mutex held, everything written to the kernel, and appends refused.

        If the system refuses a write or sync, the tail has failed. The ``with`` and the ``finally`` only call C. So
        even if a signal handler raises an exception, the mutex is released and appends are possible again.

        Raises:
            LockedError: a call of this tail is under way in this thread.
            WriterFailedError: a write or sync failed, now or before.
            ClosedError: the tail is closed, or belongs to the parent process.
        """
        life, buffer = self.life, self.buffer
        life.require_outside()
        with life.mutex:
            if not life.open or buffer.in_doubt:
                self.require_sound()
            thaw = buffer.thaw
            try:
                buffer.freeze()
                buffer.flush()
                return act(*arguments)
            except OSError as error:
                if not is_failure(error):
                    raise
                self._fail(error)
                raise self._failed("a write or sync failed", error) from error
            finally:
                thaw()

    def require_sound(self) -> None:
        """Raise if the tail is not open. If the end is in doubt, find it again. The caller holds the mutex."""
        self.life.require()
        if self.buffer.in_doubt:
            thaw = self.buffer.thaw
            try:
                self._mend()
            finally:
                thaw()

    def changing(self, act: Callable[..., _T], *arguments: object) -> _T:
        """Call a function that changes the journal's end.

        After a failed write or sync the tail has failed. After any other exception the end is in doubt.
        """
        try:
            return act(*arguments)
        except BaseException as error:
            self.buffer.doubt()
            if is_failure(error):
                self._fail(error)
            raise

    def extend(self, data: BytesLike) -> None:
        """Check encoded messages, then append them. Errors as for :meth:`append_encoded`."""
        buffer, size = self.buffer, len(data)
        if buffer.offset == MAX_OFFSET and size:
            raise full()
        whole = measure(data, 0, size, buffer.offset, size)
        if whole.position != size:
            if buffer.offset + whole.messages == MAX_OFFSET:
                raise full()
            measure(data, whole.position, size, buffer.offset + whole.messages, 1)  # raises if the next message is bad
            raise DecodeError(
                f"the last {size - whole.position} bytes are not a whole message",
                position=whole.position,
                offset=buffer.offset + whole.messages,
            )
        if 0 < size <= buffer.batch_limit:
            buffer.extend(data, whole, 0)
            return
        at = 0
        while at < size:
            run = measure(data, at, size, buffer.offset, buffer.batch_limit)
            buffer.extend(data, run, at)
            at = run.position

    def sync_now(self) -> None:
        """Sync everything appended so far, while no other thread can append."""
        buffer, last = self.buffer, self.last
        buffer.flush()
        last.sync(last.file)
        last.keep(buffer.position, buffer.offset)
        self.syncer.advance(buffer.offset)
        last.blocks.write(buffer.position)

    def set_limits(self) -> None:
        """Set when the buffer drains, so that a message that ends a segment or a block is the last one of its write."""
        buffer = self.buffer
        left = max(self._segment_bytes - buffer.position, 1)
        buffer.batch_limit = min(_BATCH_BYTES, left)
        if self.lock.original is not None and self.durability not in ("buffer", "disk"):
            buffer.limit = 1  # _drain writes every message, because it checks the lock
        elif self.durability == "disk":  # the thread that syncs writes for all that wait
            buffer.limit = min(_BUFFER_BYTES, left)
        else:
            if self.durability == "buffer":
                buffer.limit = min(_BUFFER_BYTES, left)
            until = min(buffer.position - len(buffer) + BLOCK_BYTES, self._segment_bytes)
            buffer.steady(self.last.file.writer(), self._write_trouble, until, _LOOK_NS)

    # --- writing

    def _drain(self) -> None:
        """Write the messages in the buffer. The buffer calls this."""
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
                self._check_names()
                self._lock_check_at = time.monotonic() + _LOCK_CHECK_S
        except BaseException as error:  # the buffer stays in doubt
            if is_failure(error):
                self._fail(error)
                if isinstance(error, OSError):
                    raise self._failed("a sync or a new segment failed", error) from error
            raise

    def _check_names(self) -> None:
        """Check that another program has removed neither the lock file nor the segment.

        Raises:
            LockLostError: the lock is not valid any more.
            OSError: ESTALE: the segment was removed, and what was appended after that is lost.
        """
        self.lock.check()
        self.last.require_name()

    def _seal(self) -> None:
        """Sync the last segment and finish its index."""
        self.last.blocks.end_block(self.buffer)
        self.sync_now()
        self.last.blocks.close()

    def _rotate(self) -> None:
        """Seal the last segment and start the next one. The old file is closed with its last reference."""
        self._check_names()
        self._seal()
        self._take(start_segment, self.directory, self.buffer.offset, self.lock)
        if self._retention is not None:
            from sej.journal.retention import clean  # loaded already, by the caller who made the Retention

            try:
                clean(self.directory, self._retention, wait=False)
            except OSError as error:
                if not is_failure(error):
                    raise
                warnings.warn(f"retention failed in {self.path}: {error}", RuntimeWarning, stacklevel=2)

    def _take(self, find: Callable[..., End], *arguments: Any, **options: Any) -> End:
        """Continue at the end that find returns."""
        self.lock.keep(self.last.file if hasattr(self, "last") else None)  # an interrupted call may have left others
        end = find(*arguments, **options)
        self._continue_at(end)
        return end

    def _continue_at(self, end: End) -> None:
        old = self.last.file if hasattr(self, "last") else None
        if old is not None:
            self.buffer.steady(None, None, 0, 0)  # the buffer has a reference to the old file, which must be closed
        last = LastSegment(self.directory, self._kept, end)
        # No call between these: a signal handler sees both old values or both new ones.
        self.last = last
        self.buffer.position = end.position
        self.lock.keep(end.file)
        _needed[id(self)] = self.lock, last
        self.set_limits()
        last.blocks.write(end.synced_position)

    def _mend(self) -> None:
        """Find the end again after an exception interrupted a change of it. The caller holds the mutex.

        No other process appends, so the size of the file shows how many of the pending bytes were written. The rest is
        written now, which is right because the caller cannot know whether it was. Then the end is opened again.
        """
        buffer, file = self.buffer, self.last.file
        buffer.freeze()
        try:
            buffer.doubt()
            self.lock.check()
            with buffer.pending() as view:
                there = file.size() - buffer.position
                if 0 <= there < len(view):
                    with view[there:] as rest:
                        self.last.write(rest, buffer.position + there, self.lock)
            buffer.drained()
            buffer.clear()
            self.last.blocks.close()
            end = self._take(open_end, self.directory, self._kept, lock=self.lock, known=file)
            if end.offset < buffer.offset:
                raise LockLostError(
                    f"the journal ends at {end.offset}, but this writer has appended up to {buffer.offset}: another"
                    " process changed it without the lock; close that process and open this writer again",
                    path=self.last.segment.path,
                    offset=end.offset,
                )
            buffer.offset = end.offset
            self.syncer.advance(end.synced_offset)
            buffer.mended()
            self._known_batches = None  # the change that was interrupted may be one of the batches
            if self.directory.names("txn"):
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
        """Write the rest of a short write, or fail and cut what a failed write left. The buffer calls this.

        Args:
            error: the error of the write; None: the write was short.
            taken: the number of bytes that a short write has written.
        """
        with self.buffer.pending() as view:
            if error is None:
                try:
                    with view[taken:] as rest:
                        self.last.file.write(rest)
                    return
                except OSError as late:
                    error = late
            if not is_failure(error):
                raise error  # the buffer stays in doubt, so the next call finds the end again
            self._fail(error)  # first, so that a signal handler that runs from here on finds the writer failed
            self.last.cut_partial_write(view, self.buffer.position, self.lock)
        raise self._failed("a write failed", error) from error

    def _fail(self, error: BaseException) -> None:
        """Fail: from now on every call raises."""
        if self.life.fail(error):
            self.buffer.stop(self.life.refuse)
            self.syncer.fail(error)

    def _earlier(self, error: BaseException) -> WriterFailedError:
        return self._failed("an earlier write or sync failed", error)

    def _failed(self, what: str, error: BaseException) -> WriterFailedError:
        with self.buffer.pending() as view:
            lost = _first_offset(view) if len(view) else self.buffer.offset
        path = self.last.segment.path
        return WriterFailedError(
            f"{what}: {way_out(self.directory.disk, path, error)}; then open the journal again, which finds what is on"
            " disk: this writer stays closed",
            path=path,
            position=self.buffer.position,
            offset=lost,
        )


def _first_offset(messages: memoryview) -> int:
    return int.from_bytes(messages[:8], "big")
