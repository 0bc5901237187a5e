"""A writer that many processes use concurrently: each holds the journal's lock for one append or one batch.

At the start of each turn, :class:`sej.writing.appender.JournalAppender` finds out what the other writers did since the
last one. A turn holds two locks: the mutex, against other threads, and the journal's lock, against other processes.
Both are free when a turn is over, whatever ended it.

A call that comes while its own thread holds the mutex (see :mod:`sej.system.lifecycle`) is a part of the turn, or comes
from a signal handler. It is executed if the end is known and nothing is being written, and refused otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Literal, TypedDict, TypeVar, get_args

from sej.checks import Seconds, one_of, require_columns, seconds
from sej.journal.directory import Directory
from sej.journal.retention import Retention
from sej.journal.writer_lock import Fence, WriterLock
from sej.message import BytesLike
from sej.system.disk import OS, Disk
from sej.system.lifecycle import Closing, owns
from sej.writing.appender import JournalAppender
from sej.writing.exactly_once import encode_many
from sej.writing.opening import prepare
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


class SharedWriter(Closing):
    """Appends to a journal concurrently with other shared writers, while no exclusive writer has it open.

    Many threads may share it. A call that needs the journal may raise:

    - :class:`~sej.LockedError`: an exclusive writer has had the journal for longer than lock_timeout.
    - :class:`~sej.WriterFailedError`: a write or sync failed, now or before.
    - :class:`~sej.ClosedError`: the writer was closed, or this is a forked child.
    - :class:`~sej.LockLostError`: an original SEJ removed the lock file during the call. The message may or may not be
      in the journal. The writer stays usable.
    - :class:`~sej.ConflictError`: a writer with a higher token was opened. Nothing was appended.

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
        token: int | Literal["next"] | None = None,
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
            token: a fencing token: only one program at a time, the leader, may append. It is stored in the
                journal, durably. Once this returns, no writer with a lower token appends any more. A number comes from
                the service that elects the leader, and rises with each election; ``"next"`` takes the number after the
                journal's. Writers without a token are not checked.
            disk: the file system; tests replace it.

        Raises:
            ConflictError: the journal's token is higher.
            LockedError: with a token: an exclusive writer has had the journal for longer than lock_timeout.
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
        directory = Directory(path, disk)
        fence = None
        if token is not None:
            fence = Fence(directory, token)
        self.path = directory.path
        self.durability: SharedDurability = durability
        self.interval_s = sync_interval_s if durability == "interval" else None
        prepare(directory, allow_network_fs=allow_network_fs)
        self._appender = JournalAppender(
            directory,
            WriterLock(directory, lock_timeout, keeps=False),
            segment_bytes=segment_bytes,
            durability=durability,
            retention=retention,
            sync_interval_s=sync_interval_s,
        )
        self._syncer = self._appender.syncer
        self.life = self._appender.life
        if fence is not None:
            try:
                self._appender.run_exclusively(fence.take)
                self._appender.fence = fence
            except BaseException:
                self._appender.abandon()
                raise

    # --- appending

    def append(
        self,
        value: BytesLike,
        key: BytesLike = b"",
        type: int = 0,
        timestamp: int | None = None,
        *,
        expect_offset: int | None = None,
    ) -> int:
        """Append one message, as :meth:`sej.Writer.append` does.

        Raises:
            LockedError: an exclusive writer has had the journal for longer than lock_timeout.
            ConflictError: the next offset is not expect_offset, or a higher token was stored.
        """
        act: Callable[..., int] = self._appender.buffer.append
        if expect_offset is not None:
            act = partial(act, expect_offset=expect_offset)
        turn = self.turn if owns(self.life.mutex) else self._appender.run_exclusively
        offset = turn(act, value, key, type, timestamp)
        if self.durability == "disk":
            self.settle(offset + 1)
        return offset

    def append_many(
        self,
        values: Iterable[BytesLike],
        keys: Iterable[BytesLike] | None = None,
        type: int | Sequence[int] = 0,
        timestamp: int | Sequence[int] | None = None,
        *,
        expect_offset: int | None = None,
    ) -> range:
        """Append many messages with consecutive offsets, as :meth:`sej.Writer.append_many` does."""
        require_columns(values, keys, type, timestamp)
        values = list(values)  # a generator of the caller must not run under the lock
        keys = None if keys is None else list(keys)
        append_many = partial(self._appender.buffer.append_many, expect_offset=expect_offset)
        span = self.turn(append_many, values, keys, type, timestamp)
        if self.durability == "disk":
            self.settle(span.stop if span else 0)
        return span

    def turn(self, act: Callable[..., _T], *arguments: object) -> _T:
        """Call a function while the journal's lock is held and the end is known. It may append many times.

        A turn within a turn is a part of it. The messages are durable only after :meth:`settle`.
        """
        if self._is_inside():
            return act(*arguments)
        return self._appender.run_exclusively(act, *arguments)

    def is_free(self) -> bool:
        """Return whether a turn can begin without waiting; other writers may come first."""
        self.life.require_outside()
        with self.life.mutex:
            return not self.life.open or self._appender.lock.is_free()

    def _is_inside(self) -> bool:
        """Return whether a turn of this thread is under way.

        Raises:
            LockedError: it is, but a signal handler has interrupted a change of the journal's end.
        """
        if not owns(self.life.mutex):  # the turn that follows notices a fork
            return False
        if not self._appender.entered or self._appender.buffer.in_doubt:
            self.life.require_outside()
        return True

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
        return encode_many(self._appender.offset, values, keys, type, timestamp)

    def append_encoded(self, data: bytes, count: int) -> None:
        """Append the count messages that :meth:`encode_many` returned as data, within the same turn."""
        assert self.life.inside
        assert len(self._appender.append_whole(data)) == count

    # --- durability

    def sync(self) -> None:
        """Sync everything that this writer appended.

        Raises:
            JournalNotFoundError: the journal was removed.
            WriterFailedError: a sync failed, or the segment was removed.
        """
        inside = self._is_inside()
        self.life.require()
        self._appender.sync_written(in_turn=inside)

    def settle(self, offset: int) -> None:
        """Return once every message below offset that this writer appended is durable."""
        if self._is_inside():  # a sync of another thread may wait for the mutex
            self._appender.sync_turn()
        else:
            self._syncer.make_durable(offset)

    @property
    def offset(self) -> int:
        """The offset of the next message, as of this turn or the last one. Other writers append too."""
        return self._appender.offset

    @property
    def durable_offset(self) -> int:
        """Every message below this offset survives power loss."""
        return self._syncer.durable_offset

    @property
    def token(self) -> int | None:
        """The fencing token, or None."""
        return None if self._appender.fence is None else self._appender.fence.token

    def close(self) -> None:
        """Sync what was appended and close. A second call does nothing, or finishes a close that was interrupted.

        Raises:
            WriterFailedError: the last sync failed, or a sync in the background that no call has reported.
            LockedError: a signal handler called this while a call of this writer was under way; nothing was closed.
        """
        self._appender.close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the writer. An error of the block is not replaced by an error of a sync in the background."""
        self.life.exit(kind)

    def __repr__(self) -> str:
        """Show the path."""
        return f"<sej.SharedWriter {self.path!r}>"
