"""A writer that many processes use concurrently: each holds the journal's lock for one append or one batch.

At the start of each turn, :mod:`sej.writing.shared_end` finds out what the other writers did since the last one.

A turn holds two locks: the mutex, against other threads, and the journal's lock, against other processes::

    turn:  mutex --> lock --> look for the end --> append, once or many times --> unlock --> release the mutex
    _sure:   (any)   False                     True        False ... True
    _held:   False                                True                            False

A signal handler may raise between any two bytecodes, and may call this writer in the middle of a call of its own
thread. Two rules cover both:

- **Both locks are free when a turn is over, whatever ended it.** Every call that appends runs inside
  :meth:`SharedWriter.turn`. Its ``with`` statement releases the mutex in C. Its ``finally`` stores a value and unlocks
  the file with one call into C, so no handler can run before these.
- **``_sure`` is True only while the end in memory is the end in the files, and nothing is being written.** It is False
  from before the first change until after the last one, so an exception leaves it False. A turn that finds it False
  searches for the end again.

A call that comes while its own thread holds the mutex (see :mod:`sej.system.lifecycle`) is a part of the turn, or comes
from a handler. It is executed if ``_held`` and ``_sure`` are True, and refused otherwise.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, Self, TypedDict, TypeVar, get_args

from sej.checks import one_of, refuse_pickling, require_columns
from sej.codec import Buffer, encode
from sej.codec.arguments import full
from sej.codec.format import MAX_OFFSET
from sej.durations import Seconds, seconds
from sej.errors import LockedError, LockLostError, WriterFailedError
from sej.journal.directory import Directory
from sej.journal.retention import Retention
from sej.message import BytesLike
from sej.system.disk import OS, Disk, way_out
from sej.system.group_commit import Syncer, is_failure
from sej.system.lifecycle import Lifecycle
from sej.writing.opening import prepare
from sej.writing.shared_end import SharedEnd
from sej.writing.writer import check_options

SharedDurability = Literal["os", "interval", "disk"]
_T = TypeVar("_T")


_DURABILITY: Final = one_of(
    get_args(SharedDurability), ": while many processes append, no message can wait in the buffer of one of them"
)


class SharedOptions(TypedDict, total=False):
    """The options of a :class:`SharedWriter`, for callers that pass them on."""

    segment_bytes: int
    durability: SharedDurability
    sync_interval_s: Seconds
    retention: Retention | None
    lock_timeout: Seconds | None
    allow_network_fs: bool


def check_shared_options(**options: Any) -> None:
    """Check options of a :class:`SharedWriter`, for a caller that passes them on.

    Raises:
        TypeError: an option has another type, or a writer has no such option.
        ValueError: an option is out of its range. The durability ``"buffer"`` is not allowed.
    """
    check_options(**options)
    _DURABILITY("durability", options.get("durability", "os"))


class SharedWriter:
    """Appends to a journal concurrently with other shared writers, while no exclusive writer has it open.

    Many threads may share it. A call that needs the journal may raise:

    - :class:`~sej.LockedError`: an exclusive writer has had the journal for longer than lock_timeout.
    - :class:`~sej.WriterFailedError`: a write or sync failed, now or before.
    - :class:`~sej.ClosedError`: the writer was closed, or this is a forked child.
    - :class:`~sej.LockLostError`: an original SEJ removed the lock file during the call. The message may or may not be
      in the journal. The writer stays usable.

    Attributes:
        path: the SEJ directory.
        durability: the durability that the writer was opened with.
        interval_s: the seconds between two syncs in the background; None: it does not sync by itself.
        life: its state and its mutex.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp()
        >>> with SharedWriter(path) as one, SharedWriter(path) as other:
        ...     one.append(b"a"), other.append(b"b"), one.append_many([b"c", b"d"])
        (0, 1, range(2, 4))
    """

    __reduce__ = refuse_pickling

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        segment_bytes: int = 1 << 30,
        durability: SharedDurability = "os",
        sync_interval_s: Seconds = 1.0,
        retention: Retention | None = None,
        lock_timeout: Seconds | None = 10.0,
        allow_network_fs: bool = False,
        disk: Disk = OS,
    ) -> None:
        """Open a journal for appending; it is created if it is missing.

        Args:
            path: the SEJ directory.
            segment_bytes: the message with which a segment reaches this size is the last one in it.
            durability: as for :class:`sej.Writer`, but not ``"buffer"``: while many processes append, no message can
                wait in the buffer of one of them.
            sync_interval_s: seconds between two syncs, for ``"interval"``.
            retention: applied whenever this writer ends a segment.
            lock_timeout: seconds to wait while an exclusive writer has the journal; None waits without a limit.
            allow_network_fs: open the journal even if its file system is not known to be local.
            disk: the file system; tests replace it.

        Raises:
            CorruptionError: the last segment is damaged, and the damage is not a torn tail.
            NotAJournalError: the path is a file, or a directory that holds something else.
            TypeError: an argument has another type.
            ValueError: an argument is out of its range, or the path is empty.
        """
        sync_interval_s = seconds("sync_interval_s", sync_interval_s)
        lock_timeout = seconds("lock_timeout", lock_timeout)
        check_shared_options(
            segment_bytes=segment_bytes,
            durability=durability,
            sync_interval_s=sync_interval_s,
            retention=retention,
            lock_timeout=lock_timeout,
            allow_network_fs=allow_network_fs,
            disk=disk,
        )
        self._directory = Directory(path, disk)
        self.path = self._directory.path
        self.durability: SharedDurability = durability
        self.interval_s = sync_interval_s if durability == "interval" else None
        self.life = Lifecycle("the writer", self.path, self._failed)
        self._sure = self._held = False
        prepare(self._directory, allow_network_fs=allow_network_fs)
        self._end = SharedEnd(
            self._directory,
            segment_bytes=segment_bytes,
            retention=retention,
            lock_timeout=lock_timeout,
            sealed=lambda offset: self._syncer.advance(offset),
        )
        self._syncer = Syncer(
            self._sync_some,
            self._fail,
            lambda: self._end.offset,
            0,
            interval_s=self.interval_s,
            untold=self.life.leave_untold,
        )
        self.life.in_child = self._end.close  # a child's copies of the descriptors would keep the parent's locks

    # --- appending

    def append(self, value: BytesLike, key: BytesLike = b"", type: int = 0, timestamp: int | None = None) -> int:
        """Append one message, as :meth:`sej.Writer.append` does.

        Raises:
            LockedError: an exclusive writer has had the journal for longer than lock_timeout.
        """
        offset = self.turn(self._append, value, key, type, timestamp)
        if self.durability == "disk":
            self.settle(offset + 1)
        return offset

    def _append(self, value: BytesLike, key: BytesLike, type: int, timestamp: int | None) -> int:
        offset = self._reserve()
        try:
            if offset >= MAX_OFFSET:
                raise full()
            data = encode(offset, time.time_ns() if timestamp is None else timestamp, type, key, value)
        except BaseException:
            self._sure = True  # nothing was changed
            raise
        self.append_encoded(data, 1)
        return offset

    def append_many(
        self,
        values: Iterable[BytesLike],
        keys: Iterable[BytesLike] | None = None,
        type: int | Sequence[int] = 0,
        timestamp: int | Sequence[int] | None = None,
    ) -> range:
        """Append many messages with consecutive offsets, as :meth:`sej.Writer.append_many` does."""
        require_columns(values, keys, type, timestamp)
        values = list(values)  # a generator of the caller must not run under the lock
        keys = None if keys is None else list(keys)
        span = self.turn(self._append_many, values, keys, type, timestamp)
        if self.durability == "disk":
            self.settle(span.stop if span else 0)
        return span

    def _append_many(
        self,
        values: Sequence[BytesLike],
        keys: Sequence[BytesLike] | None,
        type: int | Sequence[int],
        timestamp: int | Sequence[int] | None,
    ) -> range:
        data, span = self.encode_many(values, keys, type, timestamp)
        if span:
            self.append_encoded(data, len(span))
        return span

    def turn(self, act: Callable[..., _T], *arguments: object) -> _T:
        """Call a function while the journal's lock is held and the end is known. It may append many times.

        A turn within a turn is a part of it. The messages are durable only after :meth:`settle`.
        """
        inside = self.life.inside
        with self.life.mutex:
            if inside:
                if not (self._held and self._sure):
                    raise self._inside()
                return act(*arguments)
            self.life.require()
            try:
                if not self._sure:
                    self._end.doubt()
                self._sure = False
                self._end.enter()
                self._look()
                self._held = True
                return act(*arguments)
            finally:
                self._held = False
                self._end.leave()

    def encode_many(
        self,
        values: Iterable[BytesLike],
        keys: Iterable[BytesLike] | None = None,
        type: int | Sequence[int] = 0,
        timestamp: int | Sequence[int] | None = None,
    ) -> tuple[bytes, range]:
        """Encode messages for the next append in this turn. Arguments as for :meth:`append_many`.

        Until :meth:`append_encoded` is called, nothing else can be appended in this turn.

        Returns:
            The bytes as they will be stored in the journal, and the offsets.
        """
        buffer = Buffer(self._reserve(), lambda: None, threading.Lock())
        buffer.limit = buffer.batch_limit = 2**62
        try:
            span = buffer.append_many(values, keys, type, timestamp)
            with buffer.pending() as view:
                data = bytes(view)
            self._sure = not span
        except BaseException:
            self._sure = True  # nothing was changed
            raise
        return data, span

    def append_encoded(self, data: bytes, count: int) -> None:
        """Append the count messages that :meth:`encode_many` returned as data, within the same turn."""
        assert self.life.inside
        try:
            self._end.write(data, count)
        except BaseException as error:
            if isinstance(error, LockLostError):
                self._end.doubt()  # the writer stays usable: the next turn takes the new lock and searches for the end
            elif isinstance(error, Exception) and is_failure(error):
                self._fail(error)
                if isinstance(error, OSError):
                    raise self._failed(error) from error
            raise
        self._sure = True

    # --- durability

    def sync(self) -> None:
        """Sync everything that this writer appended.

        Raises:
            JournalNotFoundError: the journal was removed.
            WriterFailedError: a sync failed, or the segment was removed.
        """
        self.life.require()
        self.settle(self._end.offset)
        with self.life.mutex:
            try:
                self._end.require_place(self._end.file, self._end.first_offset)
            except OSError as error:
                if not is_failure(error):
                    raise
                self._fail(error)
                raise self._failed(error) from error

    def settle(self, offset: int) -> None:
        """Return once every message below offset that this writer appended is durable."""
        if not self.life.inside:
            self._syncer.commit(offset)
        elif self._held and self._sure:  # within a turn: a sync of another thread may wait for the mutex
            self._sync_alone()
        else:
            raise self._inside()

    def _inside(self) -> LockedError:
        return LockedError(
            "an append is under way in this thread: a signal handler cannot use the writer before the append returns",
            path=self.path,
        )

    @property
    def offset(self) -> int:
        """The offset of the next message, as of this turn or the last one. Other writers append too."""
        return self._end.offset

    @property
    def durable_offset(self) -> int:
        """Every message below this offset survives power loss."""
        return self._syncer.durable_offset

    def close(self) -> None:
        """Sync what was appended and close. A second call does nothing, or finishes a close that was interrupted.

        Raises:
            WriterFailedError: the last sync failed, or a sync in the background that no call has reported.
            LockedError: a signal handler called this while a call of this writer was under way; nothing was closed.
        """
        self.life.close(self._finish, self._release)

    def _finish(self) -> None:
        with self.life.mutex:
            self._sync_alone()
            self.life.shut()  # with the mutex, so that no append comes after the last sync

    def _release(self) -> None:
        """Close the files. If this is interrupted, the next close() calls it again."""
        with self.life.mutex:
            self._end.close()
        self._syncer.close()

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the writer. An error of the block is not replaced by an error of a sync in the background."""
        self.life.exit(self.close, kind)

    def __repr__(self) -> str:
        """Show the path."""
        return f"<sej.SharedWriter {self.path!r}>"

    # --- a turn: everything from here on runs with the mutex held

    def _look(self) -> None:
        """Find the end; the journal's lock is held."""
        try:
            self._end.look()
        except OSError as error:
            if error.errno in (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE):
                self._fail(error)  # this may be a failed sync, which must not be tried again, or a removed segment
                raise self._failed(error) from error
            raise
        self._sure = True

    def _reserve(self) -> int:
        """Return the offset of the next message, which the caller encodes now."""
        if not self._sure:  # an append of a signal handler in this turn was interrupted
            self._end.doubt()
            self._look()
        self._sure = False
        return self._end.offset

    def _sync_some(self) -> int:
        with self.life.mutex:
            self.life.require()
            end = self._end
            file, first_offset, position, offset = end.file, end.first_offset, end.position, end.offset
        if file is not None:
            end.require_place(file, first_offset)
            self._end.sync(file, first_offset, position, offset)
        return offset

    def _sync_alone(self) -> None:
        if self._end.file is None or self._syncer.durable_offset >= self._end.offset:
            return
        try:
            self._end.sync(self._end.file, self._end.first_offset, self._end.position, self._end.offset)
        except OSError as error:
            if not is_failure(error):
                raise
            self._fail(error)
            raise self._failed(error) from error
        self._syncer.advance(self._end.offset)

    # --- failing

    def _fail(self, error: BaseException) -> None:
        if self.life.fail(error):
            self._syncer.fail(error)

    def _failed(self, error: BaseException) -> WriterFailedError:
        return WriterFailedError(
            f"a write or sync failed: {way_out(self._directory.disk, self.path, error)}; then open the journal again:"
            " this writer stays closed",
            path=self.path,
            position=self._end.position,
            offset=self._end.offset,
        )
