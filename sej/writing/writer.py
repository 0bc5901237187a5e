"""The writer: appends messages to the last segment of a journal, alone under the lock.

What it relies on: the lock (``jnl.lck``), the codec's :class:`~sej.codec.Buffer` for encoding,
:mod:`sej.writing.opening` for finding the end, :mod:`sej.writing.tail` for letting it grow.

What it promises, at every durability: a segment is synced before its successor is created, so only the last one can be
torn; a message is whole or absent for readers that follow the format; a failed write or sync poisons the writer, and
whatever was not acknowledged by then may or may not be there after reopening, as a prefix.

Threads may share a writer. ``_mutex`` guards the file, the position and the block that is being collected; the buffer
uses the same lock. Concurrent callers under ``"disk"`` share one sync, see :mod:`sej.system.group_commit`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self, get_args

from sej.checks import (
    DISK,
    FLAG,
    ITERABLE,
    OFFSET,
    POSITIVE,
    POSITIVE_SECONDS,
    WAIT,
    Rule,
    a,
    one_of,
    optional,
    refuse_pickling,
    require_columns,
    require_options,
)
from sej.codec import Buffer
from sej.errors import LockLostError, SejError
from sej.journal.directory import Directory, check_name
from sej.journal.identity import journal_id
from sej.journal.medium import kept_position
from sej.journal.recovery import Recovery
from sej.journal.repair import finish_repair
from sej.journal.retention import Retention, finish_merge
from sej.journal.writer_lock import writer_lock
from sej.message import BytesLike, Message
from sej.system.disk import OS, Disk
from sej.system.group_commit import Syncer, is_mine
from sej.system.lifecycle import forget_forked, watch_forks
from sej.writing.exactly_once import Batches
from sej.writing.opening import End, open_end, prepare, sweep
from sej.writing.overlap import open_mended_end
from sej.writing.tail import Appender, Durability

__all__ = ["Durability", "Writer", "check_options"]

_RULES: Final[dict[str, Rule]] = {
    "segment_bytes": POSITIVE,
    "durability": one_of(get_args(Durability)),
    "sync_interval_s": POSITIVE_SECONDS,
    "first_offset": OFFSET,
    "retention": optional(a(Retention)),
    "lock_timeout": WAIT,
    "allow_network_fs": FLAG,
    "disk": DISK,
}


def check_options(**options: Any) -> None:
    """Check options of a :class:`Writer`, for whatever hands them on.

    Raises:
        TypeError: an option has another type, or a writer has no such option.
        ValueError: an option is out of its range.
    """
    require_options("a writer", options, _RULES)


class Writer(Appender):
    """Appends to a journal; one at a time for a directory, shared by any number of threads.

    Any call may raise :class:`~sej.WriterFailedError` (a write or sync failed, now or before) or, of its kind,
    :class:`~sej.LockLostError` (the lock file was removed or replaced). After :meth:`close`, and in a forked child,
    every call raises :class:`~sej.ClosedError`. In a signal's handler that came in the middle of a call of this writer,
    every call but :meth:`close` raises :class:`~sej.LockedError` and does nothing. An exception out of a handler leaves
    the writer usable: what the interrupted call was to append is there or is not.

    Attributes:
        path: the SEJ directory.
        recovery: the torn tail that opening cut, or what two writers left and opening has mended; or None.

    Example:
        >>> import tempfile
        >>> with Writer(tempfile.mkdtemp()) as w:
        ...     w.append(b"value", b"key")
        ...     w.append_many([b"a", b"b"])
        0
        range(1, 3)
    """

    __reduce__ = refuse_pickling

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
            NotAJournalError: the path is a file, or a directory that holds something else.
            NetworkFileSystemError: it is on a network file system.
            TypeError: an argument has another type.
            ValueError: an argument is out of its range, or the path is empty.
        """
        check_options(
            segment_bytes=segment_bytes,
            durability=durability,
            sync_interval_s=sync_interval_s,
            first_offset=first_offset,
            retention=retention,
            lock_timeout=lock_timeout,
            allow_network_fs=allow_network_fs,
            disk=disk,
        )
        self._directory = Directory(path, disk)
        self.path = self._directory.path
        self._segment_bytes = segment_bytes
        self._retention = retention
        self._durability = durability
        self._pid = os.getpid()
        self._closed = self._close_later = False
        self._closing, self._released = threading.RLock(), False
        self._failure: BaseException | None = None
        self._mutex = threading.RLock()
        prepare(self._directory, allow_network_fs=allow_network_fs)
        self._lock = writer_lock(self._directory)
        self.recovery: Recovery | None = None
        try:
            self._kept = kept_position(self._directory)
            self._buffer = Buffer(first_offset, self._drain, self._mutex)
            end = self._take(self._find_end, first_offset, lock_timeout)
            self._buffer.offset = end.offset
            self._syncer = Syncer(
                self._sync_some,
                self._fail,
                lambda: self._buffer.offset,
                end.synced_offset,
                interval_s=sync_interval_s if durability == "interval" else None,
            )
            self._lock_check_at = time.monotonic()
            self._alone(self._roll_forward)
            if durability != "disk" and not TYPE_CHECKING:
                self.append = self._buffer.append  # nothing to wait for: the codec's own method, without a call between
            if end.synced_offset < end.offset:
                self._syncer.request()
            watch_forks(self)
        except BaseException:
            self._abandon()
            raise

    def _find_end(self, first_offset: int, lock_timeout: float | None) -> End:
        """Take the lock and find the end; both again where an original unlinked the lock file meanwhile."""
        end: End | None = None
        try:
            while True:
                self._lock.acquire(timeout=lock_timeout)
                ours = journal_id(self._directory) is not None
                finish_merge(self._directory)
                finish_repair(self._directory)
                sweep(self._directory)
                with contextlib.suppress(LockLostError):
                    end = open_mended_end(self._directory, self._kept, self._lock, first_offset=first_offset, ours=ours)
                    self.recovery = end.recovery or self.recovery
                    journal_id(self._directory, create=True)
                    if self._lock.original is None or self._lock.is_current():
                        return end
                if end is not None:
                    end.index_file.close()
                    end.file.close()
                    end = None
                self._lock.release()
        except BaseException:
            if end is not None:
                end.file.close()  # its lock must not live as long as the traceback
            raise

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
        try:
            span = self._buffer.append_many(values, keys, type, timestamp)
        except TypeError:
            require_columns(values, keys, type, timestamp)  # says which argument it was
            raise
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
            except Exception as error:
                found.append(error)
        if self._durability == "disk":
            try:
                self._syncer.commit(max((offset + 1 for offset in found if isinstance(offset, int)), default=0))
            except SejError as error:
                return [error if isinstance(offset, int) else offset for offset in found]
        return found

    def append_messages(self, messages: Iterable[Message]) -> range:
        """Append messages that were read elsewhere: type, key and timestamp stay, offsets are new."""
        ITERABLE("messages", messages)
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
            BatchConflictError: the number came before with other messages, or is new and below the last one, or so old
                that its record is gone.
        """
        require_columns(values, keys, type, timestamp)
        values, keys = list(values), None if keys is None else list(keys)
        return self._alone(self._append_once, name, number, values, keys, type, timestamp)

    def _append_once(self, *batch: Any) -> range:
        return self._batches.append(self, *batch)

    def _roll_forward(self) -> None:
        self._batches = Batches(self._directory)
        self._batches.roll_forward(self)

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
            InvalidMessageError: their offsets are beyond the last one that a journal can have.
            BatchConflictError: the number is new and below the last one, or so old that its record is gone.
        """
        return self._alone(self._append_once_encoded, name, number, chunks)

    def _append_once_encoded(self, name: str, number: int, chunks: Iterable[BytesLike]) -> range:
        return self._batches.append_encoded(self, name, number, chunks)

    def last_batch(self, name: str) -> int | None:
        """The highest number that :meth:`append_once` got from a name; None where there is none."""
        check_name(name, "a batch name")
        self._require_apart()
        with self._mutex:
            return self._batches.last(name)

    def rotate(self) -> None:
        """End the segment, if there is a message in it: what comes next stands in a new one."""
        self._alone(self._rotate_if_begun)

    def _rotate_if_begun(self) -> None:
        if self._buffer.position:
            self._changing(self._rotate)

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
        require_columns(values, keys, type, timestamp)
        values, keys = list(values), None if keys is None else list(keys)
        return self._alone(self._publish, values, keys, type, timestamp)

    def _publish(
        self,
        values: Iterable[BytesLike],
        keys: Iterable[BytesLike] | None,
        type: int | Sequence[int],
        timestamp: int | Sequence[int] | None,
    ) -> range:
        first = self._buffer.offset
        staged = self._directory.at("tmp", f"{first:016x}.publish")
        span = self._stage(staged, first, values, keys, type, timestamp)
        if span:
            self._changing(self._put_in_place, staged, span)
        return span

    def _put_in_place(self, staged: str, span: range) -> None:
        """Let what was staged be the last segment."""
        self._lock.check()
        self._seal()
        published = self._directory.segment(span.start)
        self._directory.disk.rename(staged, published.path)
        self._take(open_end, self._directory, self._kept, alone=True, published=published)
        self._buffer.offset = span.stop
        self._syncer.advance(span.stop)
        if self._buffer.position >= self._segment_bytes:
            self._rotate()

    def append_encoded(self, data: BytesLike) -> range:
        """Append messages that are encoded already and carry the offsets that are due: for copying at full speed.

        Every message's frame and offset are checked before the first byte is taken.

        Args:
            data: whole messages, one after the other, as they stand in a segment; the first has :attr:`offset`.

        Returns:
            Their offsets.

        Raises:
            DecodeError: these are no whole messages, or not the ones that are due; nothing was appended.
            InvalidMessageError: their offsets are beyond the last one that a journal can have.
        """
        span = self._alone(self._append_whole, data)
        if self._durability == "disk":
            self._syncer.commit(span.stop)
        return span

    def _append_whole(self, data: BytesLike) -> range:
        first = self._buffer.offset
        self._append_encoded(data)
        self._flush_batch()
        return range(first, self._buffer.offset)

    # --- durability

    def flush(self) -> None:
        """Hand everything to the kernel: it survives the death of this process, and readers see it."""
        self._require_apart()
        with self._mutex:  # as _alone does it: this is called after each message, maybe
            self._require_open()
            thaw = self._buffer.thaw
            try:
                self._buffer.freeze()
                self._buffer.flush()
            finally:
                thaw()

    def sync(self) -> None:
        """Force everything appended so far to the disk: it survives power loss."""
        self.flush()
        self._syncer.commit(self._buffer.offset)

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
        """Write and sync what is left, and let go of the lock.

        A second time does nothing, or finishes what an exception interrupted: until then the writer is open. In a
        signal's handler that came in the middle of a call of this writer: at the next call, which raises
        :class:`~sej.ClosedError`, or at the end of the ``with`` block.

        Raises:
            WriterFailedError: the last write or sync failed. The lock is released all the same.
        """
        if os.getpid() != self._pid:
            return
        if self._is_inside():
            if not self._closed:
                self._close_later = True
                self._buffer.stop(self._refuse)
            return
        if is_mine(self._closing):
            return
        with self._closing:  # of many who close at once one does, and the others return when it is done
            if self._released:
                return
            self._close_later = False
            try:
                if not self._closed and self._failure is None:
                    self._alone(self._changing, self._finish)
            except SejError:
                self._closed = True
                raise
            finally:
                if self._closed or self._failure is not None:
                    self._release()
        if self._failure is not None and self._syncer.untold:
            raise self._failed("a sync in the background failed", self._failure) from self._failure

    def _finish(self) -> None:
        if self._syncer.durable_offset < self._buffer.offset:
            self._lock.check()
            self._sync_alone()
        self._finish_index()
        self._closed = True  # nothing comes in between the last sync and this
        self._buffer.stop(self._refuse)

    def _release(self) -> None:
        """Let go of everything; what an interrupt cut short, the next close() finishes."""
        with self._mutex:
            self._closed = True
            self._buffer.stop(self._refuse)
        self._syncer.close()
        self._index_file.close()
        self._file.unlock()  # aloud: a child that was just forked may still have the descriptor
        self._file.close()
        self._lock.release()
        self._need()
        forget_forked(self)
        self._released = True

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close; the error of the block is not replaced by that of a sync in the background."""
        self._syncer.untold = self._syncer.untold and kind is None
        try:
            self.close()
        except BaseException:
            self.close()  # what a signal's handler interrupted: nobody else comes to finish it
            raise

    def __del__(self) -> None:
        """Close what was forgotten, and say so."""
        if getattr(self, "_syncer", None) is not None and not self._closed and os.getpid() == self._pid:
            try:
                warnings.warn(f"the writer of {self.path} was never closed", ResourceWarning, stacklevel=1, source=self)
            finally:  # a warning may be an error
                self.close()

    def __repr__(self) -> str:
        """Path, offset and state."""
        state = "closed" if self._closed else "failed" if self._failure else self._durability
        return f"<sej.Writer {self.path!r} offset={self.offset} {state}>"

    def _after_fork(self) -> None:
        """In a forked child: the copies of the descriptors must not keep the parent's locks alive."""
        self._mutex = threading.RLock()  # another thread may have held it, and is not here to let it go
        self._buffer.stop(self._refuse)
        self._file.close()
