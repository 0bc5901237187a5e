"""A writer that many processes use concurrently: each holds the journal's lock for one append or one batch.

The machine under it, :mod:`sej.writing.shared_end`, finds out at each turn what the others did meanwhile.

A signal's handler may raise between any two bytecodes, and may use this writer in the middle of a call of its own
thread. Two rules keep that simple:

- Every call that appends runs inside :meth:`SharedWriter.turn`, a plain function. Its ``with`` statement releases the
  mutex in C, and the only calls of its ``finally`` are a store and the unlocking of the file, also in C: no handler
  comes before them. So both locks are free when a turn is over, whatever ended it.
- ``_sure`` is True only while what :class:`SharedEnd` says of the end is what the files say, and nothing is being
  written. It is False from before the first change until after the last one, so an exception leaves it False by
  itself. A turn that finds it False searches for the end again; a handler that finds it False is refused, or that the
  lock is not held yet or not any more.

Whether a call is a handler's is asked of the mutex, see :mod:`sej.system.lifecycle`. Here a call within a turn may also
be a part of that turn: it is let in while the end is sure.
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
from sej.errors import LockedError, LockLostError, WriterFailedError
from sej.journal.directory import Directory
from sej.journal.retention import Retention
from sej.message import BytesLike
from sej.system.disk import OS, Disk, full_disk_advice
from sej.system.group_commit import Syncer, is_failure
from sej.system.lifecycle import Lifecycle
from sej.writing.opening import prepare
from sej.writing.shared_end import SharedEnd
from sej.writing.writer import check_options

__all__ = ["SharedDurability", "SharedOptions", "SharedWriter", "check_shared_options"]

SharedDurability = Literal["os", "interval", "disk"]
_T = TypeVar("_T")


_DURABILITY: Final = one_of(
    get_args(SharedDurability), ": what many processes append to cannot wait in the buffer of one"
)


class SharedOptions(TypedDict, total=False):
    """The options of a :class:`SharedWriter`, for callers that pass them on."""

    segment_bytes: int
    durability: SharedDurability
    sync_interval_s: float
    retention: Retention | None
    lock_timeout: float | None
    allow_network_fs: bool


def check_shared_options(**options: Any) -> None:
    """Check options of a :class:`SharedWriter`, for whatever hands them on.

    Raises:
        TypeError: an option has another type, or a writer has no such option.
        ValueError: an option is out of its range; ``"buffer"`` is, as what many append to cannot wait in one of them.
    """
    check_options(**options)
    _DURABILITY("durability", options.get("durability", "os"))


class SharedWriter:
    """Appends to a journal beside other shared writers, and when no exclusive writer has it.

    Safe to use from many threads. A call that needs the journal raises :class:`~sej.LockedError` where an exclusive
    writer has it for longer than lock_timeout, :class:`~sej.WriterFailedError` where a write or sync failed, now or
    before, and :class:`~sej.ClosedError` after :meth:`close` and in a forked child. Beside an original that unlinks the
    lock file during a call it raises :class:`~sej.LockLostError`: the message may be there, and the next call works.

    Attributes:
        path: the SEJ directory.
        durability: as named on opening.
        interval_s: how often it syncs in the background, in seconds; None: only when it is to.
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
            durability: as of :class:`sej.Writer`; ``"buffer"`` is not one, because no message may wait in one
                process while others append.
            sync_interval_s: seconds, for ``"interval"``.
            retention: applied whenever this writer ends a segment.
            lock_timeout: seconds to wait while an exclusive writer has the journal; None waits for ever.
            allow_network_fs: open on a network file system all the same.
            disk: the seam.

        Raises:
            CorruptionError: the last segment is damaged in a way that is no torn tail.
            NotAJournalError: the path is a file, or a directory that holds something else.
            TypeError: an argument has another type.
            ValueError: an argument is out of its range, or the path is empty.
        """
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
        self.life.in_child = self._end.close  # the copies of the descriptors must not keep the parent's locks alive

    # --- appending

    def append(self, value: BytesLike, key: BytesLike = b"", type: int = 0, timestamp: int | None = None) -> int:
        """Append one message; as :meth:`sej.Writer.append`.

        Raises:
            LockedError: an exclusive writer has the journal, for longer than lock_timeout.
        """
        offset = self.turn(self._append, value, key, type, timestamp)
        if self.durability == "disk":
            self.settle(offset + 1)
        return offset

    def _append(self, value: BytesLike, key: BytesLike, type: int, timestamp: int | None) -> int:
        offset = self._reserve()
        try:
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
        """Append many messages with consecutive offsets; as :meth:`sej.Writer.append_many`."""
        require_columns(values, keys, type, timestamp)
        values = list(values)  # what makes them must not run under the lock
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
        """Call something while the journal's lock is held and the end is known; it may append many times.

        A turn within a turn is a part of it. What was appended is durable only after :meth:`settle`.
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
        """Messages as they will stand in the journal if they are appended next in this turn, and their offsets.

        Takes what :meth:`append_many` takes. Until :meth:`append_encoded` nothing else can be appended in this turn.
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
        """Append what :meth:`encode_many` made, data of count messages, within the same turn."""
        assert self.life.inside
        try:
            self._end.write(data, count)
        except BaseException as error:
            if isinstance(error, LockLostError):
                self._end.doubt()  # it is no failure: the next turn takes the new lock and looks how far this came
            elif isinstance(error, Exception) and is_failure(error):
                self._fail(error)
                if isinstance(error, OSError):
                    raise self._failed(error) from error
            raise
        self._sure = True

    # --- durability

    def sync(self) -> None:
        """Force everything that this writer appended to the disk."""
        self.life.require()
        self.settle(self._end.offset)

    def settle(self, offset: int) -> None:
        """Return once every message below offset that this writer appended is durable."""
        if not self.life.inside:
            self._syncer.commit(offset)
        elif self._held and self._sure:  # within a turn: another thread's sync may be waiting for its end
            self._sync_alone()
        else:
            raise self._inside()

    def _inside(self) -> LockedError:
        return LockedError(
            "an append is under way in this thread: a signal's handler cannot use the writer before that returns",
            path=self.path,
        )

    @property
    def offset(self) -> int:
        """What the next message gets, within a turn; else what that was at the last turn."""
        return self._end.offset

    @property
    def durable_offset(self) -> int:
        """Every message below survives power loss."""
        return self._syncer.durable_offset

    def close(self) -> None:
        """Sync what was appended and close; a second time does nothing, or finishes what an exception interrupted.

        Raises:
            WriterFailedError: the last sync failed, or one in the background that no call has reported.
            LockedError: this is a signal's handler that interrupts a call of this writer; nothing was closed.
        """
        self.life.close(self._finish, self._release)

    def _finish(self) -> None:
        with self.life.mutex:
            self._sync_alone()
            self.life.shut()  # nothing comes between the last sync and this

    def _release(self) -> None:
        """Close the files; if it was interrupted, the next close() calls it again."""
        with self.life.mutex:
            self._end.close()
        self._syncer.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close; the error of the block is not replaced by that of a sync in the background."""
        self.life.exit(self.close, kind)

    def __repr__(self) -> str:
        """Path."""
        return f"<sej.SharedWriter {self.path!r}>"

    # --- a turn: everything from here on runs with the mutex held

    def _look(self) -> None:
        """Find the end, with the journal's lock."""
        try:
            self._end.look()
        except OSError as error:
            if error.errno in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
                self._fail(error)  # a sync, maybe: it is not tried again
                raise self._failed(error) from error
            raise
        self._sure = True

    def _reserve(self) -> int:
        """The offset of the next message; the caller writes it next."""
        if not self._sure:  # a handler's append in this turn was interrupted
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
            f"a write or sync failed: {error}; this writer is closed for good: mend the cause and open it again"
            f"{full_disk_advice(self._directory.disk, self.path, error)}",
            path=self.path,
            position=self._end.position,
            offset=self._end.offset,
        )
