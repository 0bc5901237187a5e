"""The growing end of a journal: what its writers do with the file, buffer, index, lock and syncs.

A :class:`JournalAppender` is what :class:`sej.Writer`, :class:`sej.SharedWriter` and ``append_once`` append to. It
relies on the codec's :class:`~sej.codec.Buffer` for encoding, and on :mod:`sej.writing.opening` for finding the end. A
writer works in turns. A turn ends with one call into C. The exclusive writer keeps its turn::

                     exclusive: keeps the lock                   shared
    first call       takes the lock, finds the end               -
    enter            refuses appends, writes what is pending     takes the lock, looks what others appended
    leave            allows appends                              releases the lock

The invariants, at every durability:

- A segment is synced before its successor is created, so only the last one can be torn.
- A message is whole or absent for readers that follow the format.
- An index entry is written after its bytes are synced.
- After the first failed write or sync the end has failed: it writes and syncs nothing more, and every call raises. Of
  the messages that were not acknowledged, a prefix may be in the journal after reopening.

How a message gets to the disk::

    buffer.append ---- the message is encoded and has its offset
        |  the buffer writes a single message by itself, or calls _drain ("os", "interval": after each append)
        v
    LastSegment.file - the kernel has it
        |  Syncer: one sync for all threads that wait        ("disk": before append returns)
        v
    durable_offset --- the medium has it

**The mutex** of :class:`~sej.system.lifecycle.Lifecycle` guards everything. The buffer uses the same lock, and every
other call takes it with :meth:`JournalAppender.run_exclusively`. A signal handler that interrupts a call and calls the
appender again is refused.

**Interrupts.** An exception that a signal handler raises is not a failure. The buffer is *in doubt* from before each
change of the file until after it, so an exception in between leaves it in doubt. Then the next call finds the end again
from the disk, as an opening does (:meth:`JournalAppender._reopen`), before a message gets an offset::

    what ends a change             the buffer      the next call
    it returns                     sound           appends
    a signal handler's exception   in doubt        finds the end again, then appends
    a failed write or sync         stopped         raises WriterFailedError

**Between two turns** of a shared writer others may append; :mod:`sej.journal.writer_lock` explains the mark that shows
whether only shared writers did:

=====================  ====================================  ======================================================
mark                   size of the segment                   then the writer
=====================  ====================================  ======================================================
the same               the same                              appends
the same               larger, and all of it whole messages  measures them, which gives the next offset, and appends
the same               anything else                         finds the end again
another, or none       any                                   finds the end again
=====================  ====================================  ======================================================

Crash points: a shared writer removes the mark before it seals a segment, and writes a new one after it has started the
next. If it dies in between, every other writer finds the end again.
"""

from __future__ import annotations

import errno
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from sej.codec import Buffer, measure
from sej.codec.arguments import full
from sej.codec.format import MAX_OFFSET
from sej.errors import DecodeError, JournalNotFoundError, LockLostError, SejError, WriterFailedError
from sej.fork import notice_fork
from sej.journal.directory import Directory, check_name, journal_id
from sej.journal.index import BLOCK_BYTES
from sej.journal.recovery import Recovery
from sej.journal.writer_lock import Fence, WriterLock
from sej.message import BytesLike
from sej.system.disk import way_out
from sej.system.group_commit import Syncer, is_failure
from sej.system.lifecycle import Lifecycle, owns
from sej.writing.opening import LastSegment, find_end, open_end, start_segment, sweep

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
_INDEX_BYTES: Final = 1 << 24
"""A shared writer extends the index after this many bytes. A reader that looks for a message walks at most as many."""
_LOOK_S: Final = 0.09
_LOOK_NS: Final = 100_000_000
"""For this long the buffer writes single messages by itself. Then _drain runs and checks the lock."""
_BROKEN: Final = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE)
"""Errors of an entering writer that may be a failed sync, which must not be tried again, or a removed segment."""
_needed: Final[dict[int, object]] = {}
"""The lock and files of each open exclusive end: its writer's finalizer closes them in order."""


class JournalAppender:
    """The growing end of one journal. Threads may share it.

    Attributes:
        path: the SEJ directory.
        directory: the same directory, with its disk.
        durability: the durability that the writer was opened with.
        recovery: the torn tail that opening has cut, or None.
        life: its state and its mutex.
        lock: the journal's lock.
        buffer: encodes messages; the ``append`` and ``append_many`` of an exclusive one may be called directly.
        last: the last segment; missing until the end was found.
        syncer: syncs, and has the durable offset.
        entered: whether a turn of a shared writer is under way.
        fence: the fencing token of a shared writer; None: it has none.
    """

    last: LastSegment

    def __init__(
        self,
        directory: Directory,
        lock: WriterLock,
        *,
        segment_bytes: int,
        durability: Durability,
        retention: Retention | None,
        sync_interval_s: float,
    ) -> None:
        """Remember the journal. Nothing is opened yet. Arguments as for :class:`sej.Writer`."""
        self.life = Lifecycle("the writer", directory.path, self)
        self.path = directory.path
        self.durability = durability
        self.recovery: Recovery | None = None
        self.directory = directory
        self.lock = lock
        self.buffer = Buffer(0, self._drain, self.life.mutex)
        self.buffer.path = directory.path
        self.entered = False
        self.fence: Fence | None = None
        self._is_shared = not lock.keeps
        self._segment_bytes = segment_bytes
        self._retention = retention
        self._kept = directory.kept_position()
        self._known_batches: Batches | None = None
        self._look_at = 0.0
        self._indexed_to = 0
        self._id: bytes | None = None
        self._written: tuple[LastSegment, int, int] | None = None
        """The segment, position and offset after the last turn of a shared writer that was not interrupted."""
        self._opened = self._abandoned = False
        self.syncer = Syncer(self, interval_s=sync_interval_s if durability == "interval" else None)

    def open(self, first_offset: int, has_id: bool) -> None:
        """Take the lock for good, find the end, and finish the batches that earlier writers have promised.

        If this raises, the caller calls :meth:`abandon`. Errors as for :class:`sej.Writer`.

        Args:
            first_offset: where a journal without segments starts.
            has_id: whether the journal has an ``id``.
        """
        self.buffer.forgotten = self._forget
        last, promised = find_end(self.directory, self._kept, self.lock, first_offset, has_id=has_id)
        self.recovery = last.recovery
        self._continue_at(last)
        self._look_at = time.monotonic() + _LOOK_S
        self._opened = True
        if promised:
            self.run_exclusively(self._batches.roll_forward, self)
        if last.synced.offset < last.end.offset:
            self.syncer.request()

    # --- ways to append that the writers' interfaces do not have

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
                self.syncer.make_durable(max((offset + 1 for offset in found if isinstance(offset, int)), default=0))
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
        span = self.run_exclusively(self.append_whole, data)
        if self.durability == "disk":
            self.syncer.make_durable(span.stop)
        return span

    def append_whole(self, data: BytesLike) -> range:
        """Append encoded messages within a turn; errors as for :meth:`append_encoded`."""
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

    def append_once(self, name: str, number: int, data: bytes, count: int) -> range:
        """Append a batch exactly once, whose messages are encoded with offsets from 0 on."""
        return self.run_exclusively(lambda: self._batches.append(self, name, number, data, count))

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
        return self.run_exclusively(lambda: self._batches.append_encoded(self, name, number, chunks))

    def last_batch(self, name: str) -> int | None:
        """Return the highest number of a batch of a name, or None if the name has no batch."""
        check_name(name, "a batch name")
        self.life.require_outside()
        with self.life.mutex:
            return self._batches.last(name)

    def rotate(self) -> None:
        """End the segment if it has a message, so that the next message starts a new one."""
        self.run_exclusively(self._rotate_if_begun)

    def leave_out(self, offset: int, reason: str) -> None:
        """Record the offsets up to another one as a gap, durably, and continue there in a new segment."""
        self.run_exclusively(self.changing, self._leave_out, offset, reason)

    def _leave_out(self, offset: int, reason: str) -> None:
        from sej.journal.directory import Gap, record_gap  # here, because few writers need it

        self._check_names()
        self._seal()
        record_gap(self.directory, Gap(self.buffer.offset, offset, reason))
        self._continue_at(start_segment(self.directory, self._kept, offset, self.lock))
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
        self.run_exclusively(self._check_names)

    def flush(self) -> None:
        """Write everything to the kernel."""
        self.run_exclusively(self.buffer.flush)

    def sync(self) -> None:
        """Sync everything appended so far."""
        self.flush()
        self.syncer.make_durable(self.buffer.offset)

    @property
    def appended(self) -> int:
        """The offset after what was appended so far, as far as it can be synced."""
        if not self._is_shared:
            return self.buffer.offset if self._opened else 0
        return 0 if self._written is None else self._written[2]

    def sync_some(self) -> int:
        """Sync everything appended so far, and return the durable offset. The mutex is free during the sync."""
        buffer = self.buffer
        with self.life.mutex:
            self.life.require()
            if self._is_shared:
                if self._written is None:
                    return 0
                last, position, offset = self._written
            else:
                self._check_names()
                try:
                    buffer.refuse_appends()  # an append after the flush would change the offset, and so count as synced
                    self._settle()
                    last, position, offset = self.last, buffer.position, buffer.offset
                finally:
                    buffer.allow_appends()
        if self._is_shared:
            self.require_place(last)
        last.sync()
        with self.life.mutex:
            if last is self.last and not self.life.closed and not buffer.in_doubt:
                last.keep(position, offset)
                if not self._is_shared:  # else another process may write the index
                    last.write_index()
        return offset

    def sync_written(self, *, in_turn: bool) -> None:
        """Sync what a shared writer appended, and check that it is still in the journal."""
        if in_turn:
            self.sync_turn()
        else:
            self.syncer.make_durable(self.appended)
        with self.life.mutex:
            try:
                self.require_place(None if self._written is None else self._written[0])
            except OSError as error:
                if not is_failure(error):
                    raise
                raise self._failing(error) from error

    def sync_turn(self) -> None:
        """Sync what was appended, within a turn of a shared writer."""
        self._written = self.last, self.buffer.position, self.buffer.offset
        self._sync_last_turn()

    def _sync_last_turn(self) -> None:
        """Sync what a shared writer has appended. The caller holds the mutex, but perhaps no lock."""
        if self._written is None or self.syncer.durable_offset >= self._written[2]:
            return
        last, position, offset = self._written
        try:
            last.sync()
        except OSError as error:
            if not is_failure(error):
                raise
            raise self._failing(error) from error
        last.keep(position, offset)
        self.syncer.advance(offset)

    def require_place(self, last: LastSegment | None) -> None:
        """Check that what a shared writer appended to a segment is still in the journal.

        A segment that has a successor may be removed: it was synced, and retention does this.

        Raises:
            JournalNotFoundError: the journal was removed.
            OSError: ESTALE: only the segment was.
        """
        if last is None:
            self.directory.require()
        elif not last.file.extent()[1]:
            if journal_id(self.directory) != self._id:
                self.directory.require()
                raise JournalNotFoundError(
                    "this journal was removed and created again, and what was appended before is lost; open it again",
                    path=self.path,
                )
            segments = self.directory.segments()
            if not segments or segments[-1].first_offset <= last.segment.first_offset:
                last.require_name()

    # --- closing

    def close(self) -> None:
        """Write and sync the rest, and release the lock; see :meth:`sej.Writer.close`."""
        self.life.close()

    def _finish(self) -> None:
        """Write and sync the rest."""
        if self._abandoned:
            self._shut()
        elif not self._is_shared:
            self.run_exclusively(self.changing, self._finish_last)
        else:
            with self.life.mutex:
                self._sync_last_turn()
                self.life.shut()  # with the mutex, so that no append comes after the last sync

    def _finish_last(self) -> None:
        buffer, last = self.buffer, self.last
        if self.syncer.durable_offset < buffer.offset:
            self._check_names()
            self.sync_now()
        last.finish_index(buffer)
        self._shut()

    def _shut(self) -> None:
        self.life.shut()  # with the mutex, so that no append comes after the last sync
        self.buffer.stop(self.life.refuse)

    def abandon(self) -> None:
        """Close the files and release the lock without a write or sync, for example after an opening that raised."""
        self._abandoned = True
        self.life.close()

    def _release(self) -> None:
        """Close the files and release the lock. If this is interrupted, the next close() calls it again."""
        with self.life.mutex:
            self.buffer.stop(self.life.refuse)
            self.buffer.set_direct_write(None, None, 0, 0)
        self.syncer.close()
        self.syncer.forget()
        self.lock.release()  # of the segment too: a child that was just forked may have a copy of its descriptor
        if hasattr(self, "last"):
            self.last.close()
        self._kept.forget()  # it has a reference to the segment
        if self.fence is not None:
            self.fence.close()
        _needed.pop(id(self), None)
        self.buffer.forgotten = None

    def _close_copies(self) -> None:
        """Close a forked child's copies of the descriptors, which would keep the parent's locks."""
        self.buffer.stop(self.life.refuse)
        self._kept.forget()
        self.lock.close_copies()

    def _forget(self) -> None:
        """Close an end whose writer is gone and was never closed, with a warning."""
        inside = self.life.inside  # first: it notices a fork
        if self.life.forked:
            return
        if inside:  # the garbage collector runs in the thread that syncs, in the middle of that
            threading.Thread(target=self._forget, name="sej-close").start()
            return
        try:
            if not self.life.closed and self._opened:
                warnings.warn(f"the writer of {self.path} was never closed", ResourceWarning, stacklevel=1, source=self)
        finally:  # a warning may be an error
            self._abandoned = not self._opened
            self.life.exit(None)

    # --- turns: everything from here on runs with the mutex held

    def run_exclusively(self, act: Callable[..., _T], *arguments: object) -> _T:
        """Call a function in a turn: the end is known, everything is written to the kernel, and appends are refused.

        If the system refuses a write or sync, the end has failed. The ``with`` and the ``finally`` only call C. So
        even if a signal handler raises an exception, the mutex is released and appends are possible again.

        Raises:
            LockedError: a call of this end is under way in this thread, or an exclusive writer has the journal.
            WriterFailedError: a write or sync failed, now or before.
            ClosedError: the end is closed, or belongs to the parent process.
        """
        life = self.life
        notice_fork()
        if owns(life.mutex):
            life.require_outside()
        with life.mutex:
            if not life.open:
                life.refuse()
            try:
                self._enter()
                found = act(*arguments)
                if self._is_shared:
                    self._written = self.last, self.buffer.position, self.buffer.offset
                return found
            except OSError as error:
                if not is_failure(error) or self._is_shared:
                    raise
                raise self._failing(error) from error
            finally:
                self.entered = False
                if not self._is_shared:
                    self.buffer.allow_appends()
                else:
                    self.lock.leave()

    def _enter(self) -> None:
        """Begin a turn. A shared writer finds out what the others did since its last one; see the module."""
        lock, buffer = self.lock, self.buffer
        if lock.keeps:
            buffer.refuse_appends()
            self._settle()
            return
        lock.enter()
        now = time.monotonic()
        try:
            due = now >= self._look_at or lock.original is not None
            if due:
                lock.renew()
            if not lock.is_marked() or buffer.in_doubt or len(buffer.pending()):
                self._reopen()
            else:
                if due:
                    self.last.require_name()
                if len(buffer):
                    buffer.clear()
                size = self.last.file.size()
                if size != buffer.position and not self._catch_up(size):
                    self._reopen()
            if due:
                self._look_at = now + _LOOK_S
        except OSError as error:
            if error.errno in _BROKEN:
                raise self._failing(error) from error
            raise
        if self.fence is not None:
            self.fence.check()
        self.entered = True

    def _settle(self) -> None:
        """Write everything to the kernel; if an exception interrupted a change, find the end again first."""
        if self.buffer.in_doubt:
            self._reopen()
        self.buffer.flush()

    def _catch_up(self, size: int) -> bool:
        """Measure what other shared writers appended; return False if it is not all whole messages."""
        buffer = self.buffer
        if not 0 < size - buffer.position <= _INDEX_BYTES:
            return False  # an opening walks a large part piece by piece
        data = self.last.file.read(size - buffer.position, buffer.position)
        try:
            run = measure(data, 0, len(data), buffer.offset, len(data))
        except DecodeError:
            return False
        if run.position != len(data):
            return False
        buffer.offset += run.messages
        buffer.position += run.position
        # The other limits of set_limits() do not depend on what others appended.
        buffer.batch_limit = min(_BATCH_BYTES, max(self._segment_bytes - buffer.position, 1))
        return True

    def changing(self, act: Callable[..., _T], *arguments: object) -> _T:
        """Call a function that changes the journal's end.

        After a failed write or sync the end has failed. After any other exception it is in doubt.
        """
        try:
            return act(*arguments)
        except BaseException as error:
            self.buffer.doubt()
            if is_failure(error):
                self.fail(error)
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
        last.sync()
        last.keep(buffer.position, buffer.offset)
        self.syncer.advance(buffer.offset)
        last.write_index()

    def set_limits(self) -> None:
        """Set when the buffer drains, so that a message that ends a segment or a block is the last one of its write."""
        buffer = self.buffer
        left = max(self._segment_bytes - buffer.position, 1)
        buffer.batch_limit = min(_BATCH_BYTES, left)
        waits = not self._is_shared and self.durability == "disk"  # the thread that syncs writes for all that wait
        buffer.limit = min(_BUFFER_BYTES, left) if waits or self.durability == "buffer" else 1
        if waits or self.lock.original is not None:  # _drain writes every message
            buffer.set_direct_write(None, None, 0, 0)  # it may have a reference to the old file, which must be closed
            return
        until = self._indexed_to + _INDEX_BYTES
        if not self._is_shared:
            until = buffer.position - len(buffer) + BLOCK_BYTES
        buffer.set_direct_write(self.last.file.writer(), self._write_trouble, min(until, self._segment_bytes), _LOOK_NS)

    # --- writing

    def _drain(self) -> None:
        """Write the messages in the buffer. The buffer calls this."""
        buffer = self.buffer
        if buffer.interrupted:
            self._reopen()
            return
        try:
            with buffer.pending() as view:
                try:
                    self.last.write(view, buffer.position)
                except OSError as error:
                    self._write_trouble(error, 0)
            buffer.drained()
            if self._is_shared:
                buffer.clear()
            elif len(buffer) >= BLOCK_BYTES:
                self.last.end_block(buffer)
                if buffer.position - self.last.synced.position >= _CHECKPOINT_BYTES:
                    self.syncer.request()
            if buffer.position >= self._segment_bytes:
                self._rotate()
            elif self._is_shared and buffer.position - self._indexed_to >= _INDEX_BYTES:
                self._find_blocks()
            self.set_limits()
            if not self._is_shared and time.monotonic() >= self._look_at:
                self._check_names()
                self._look_at = time.monotonic() + _LOOK_S
        except BaseException as error:  # the buffer stays in doubt
            if is_failure(error):
                self.fail(error)
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

    def _rotate(self) -> None:
        """Seal the last segment and start the next one. The old file is closed with its last reference."""
        if not self._is_shared:
            self._check_names()
        else:
            self.lock.unmark()
            self._find_blocks()
        self._seal()
        self._continue_at(start_segment(self.directory, self._kept, self.buffer.offset, self.lock))
        sweep(self.directory)
        if self._is_shared:
            self.lock.mark_end()
        if self._retention is not None:
            from sej.journal.retention import clean  # loaded already, by the caller who made the Retention

            try:
                clean(self.directory, self._retention, wait=False)
            except OSError as error:
                if not is_failure(error):
                    raise
                warnings.warn(f"retention failed in {self.path}: {error}", RuntimeWarning, stacklevel=2)

    def _find_blocks(self) -> None:
        """Index what shared writers have appended since the last block."""
        self._continue_at(open_end(self.directory, self._kept, self.lock, before=self.last))

    def _seal(self) -> None:
        """Sync the last segment and finish its index."""
        self.last.end_block(self.buffer)
        self.sync_now()
        self.last.close_index()

    def _continue_at(self, last: LastSegment) -> None:
        """Continue at an end that was found on the disk, or at a new segment."""
        buffer = self.buffer
        self.last = last
        buffer.position, buffer.offset = last.end
        self._indexed_to = last.end.position
        self.lock.keep(last.file)
        self.syncer.advance(last.synced.offset)
        self.set_limits()
        if self._is_shared:
            if last.unindexed:  # now, because the next turn may be of another process
                self.sync_now()
            last.close_index()
            return
        _needed[id(self)] = self.lock, last
        if last.unindexed:
            last.write_index()

    def _reopen(self) -> None:
        """Find the end again, on the disk, as an opening does.

        An exclusive writer does it after an exception interrupted a change. No other process appends, so the size of
        the file shows how many of the pending bytes were written. The rest is written now, which is right because the
        caller cannot know whether it was.
        """
        buffer, old = self.buffer, self.last if hasattr(self, "last") else None
        try:
            buffer.doubt()
            if old is not None and not self._is_shared:
                self.lock.check()
                with buffer.pending() as view:
                    there = old.file.size() - buffer.position
                    if 0 <= there < len(view):
                        with view[there:] as rest:
                            old.write(rest, buffer.position + there)
            reached = buffer.offset
            buffer.drained()
            buffer.clear()
            if old is not None:
                old.close_index()
                self.lock.keep(old.file)  # an interrupted call may have locked others
            last, promised = find_end(self.directory, self._kept, self.lock, before=old)
            if not self._is_shared and last.end.offset < reached:
                raise LockLostError(
                    f"the journal ends at {last.end.offset}, but this writer has appended up to {reached}: another"
                    " process changed it without the lock; close that process and open this writer again",
                    path=last.segment.path,
                    offset=last.end.offset,
                )
            self._continue_at(last)
            buffer.resolved()
            self._known_batches = None  # the change that was interrupted may be one of the batches
            if promised:
                self._batches.roll_forward(self)
            if self._is_shared:
                self._id = journal_id(self.directory)
                if buffer.position >= self._segment_bytes:
                    self._rotate()
                else:
                    self.lock.mark_end()
                buffer.allow_appends()
        except BaseException as error:
            buffer.doubt()
            if not self._is_shared and is_failure(error):
                self.fail(error)
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
            self.fail(error)  # first, so that a signal handler that runs from here on finds the writer failed
            self.last.cut_partial_write(view, self.buffer.position)
        raise self._failed("a write failed", error) from error

    def fail(self, error: BaseException) -> None:
        """Fail: from now on every call raises. A shared writer only loses its turn with a lock file."""
        if (not self._is_shared or not isinstance(error, LockLostError)) and self.life.fail(error):
            self.buffer.stop(self.life.refuse)
            self.syncer.fail(error)

    def _failing(self, error: BaseException) -> WriterFailedError:
        self.fail(error)
        return self._failed("a write or sync failed", error)

    def _reworded(self, cause: BaseException) -> WriterFailedError:
        """Return the error of a call that follows a failure."""
        return self._failed("an earlier write or sync failed", cause)

    def _failed(self, what: str, error: BaseException) -> WriterFailedError:
        with self.buffer.pending() as view:
            lost = int.from_bytes(view[:8], "big") if len(view) else self.buffer.offset
        path = self.last.segment.path if hasattr(self, "last") else self.path
        return WriterFailedError(
            f"{what}: {way_out(self.directory.disk, path, error)}; then open the journal again, which finds what is on"
            " disk: this writer stays closed",
            path=path,
            position=self.buffer.position,
            offset=lost,
        )
