"""The writer: the public interface of a :class:`~sej.writing.appender.JournalAppender`, which does the work.

It checks arguments and waits for durability. If it need not wait, its ``append`` is a method of the codec, so that
no Python code runs between the caller and the codec.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any, Final, get_args

from sej.checks import (
    DISK,
    FLAG,
    OFFSET,
    POSITIVE,
    POSITIVE_SECONDS,
    WAIT,
    Rule,
    Seconds,
    instance_of,
    one_of,
    refuse_unknown,
    require_columns,
    require_messages,
    seconds,
)
from sej.journal.directory import Directory
from sej.journal.writer_lock import WriterLock
from sej.message import BytesLike, Message
from sej.system.disk import OS, Disk
from sej.system.lifecycle import Closing
from sej.writing.appender import Durability, JournalAppender
from sej.writing.opening import prepare

if TYPE_CHECKING:
    from sej.journal.retention import Retention

__all__ = ["Durability", "Writer", "check_options"]


def _retention(name: str, value: Any) -> None:
    if value is not None:
        from sej.journal.retention import Retention

        instance_of(Retention)(name, value)


_RULES: Final[dict[str, Rule]] = {
    "segment_bytes": POSITIVE,
    "durability": one_of(get_args(Durability)),
    "sync_interval_s": POSITIVE_SECONDS,
    "first_offset": OFFSET,
    "retention": _retention,
    "lock_timeout": WAIT,
    "allow_network_fs": FLAG,
    "disk": DISK,
}


def check_options(**options: Any) -> None:
    """Check options of a :class:`Writer`, for a caller that passes them on.

    Raises:
        TypeError: an option has another type, or a writer has no such option.
        ValueError: an option is out of its range.
    """
    for name in ("sync_interval_s", "lock_timeout"):
        if name in options:
            options[name] = seconds(name, options[name])
    refuse_unknown("a writer", options, _RULES)
    defaults = Writer.__init__.__kwdefaults__ or {}
    for name, value in options.items():
        if value is not defaults.get(name, _RULES):  # a default is not checked
            _RULES[name](name, value)


class Writer(Closing):
    """Appends to a journal. A journal has at most one open writer, which any number of threads may share.

    Any call may raise:

    - :class:`~sej.WriterFailedError`: a write or sync failed, now or before.
    - :class:`~sej.LockLostError`, a subclass: the lock file was removed or replaced.
    - :class:`~sej.ClosedError`: the writer was closed, or this is a forked child.
    - :class:`~sej.LockedError`: a signal handler called the writer while a call of it was under way. Nothing was done,
      and :meth:`close` has not closed.

    If a signal handler raises an exception, the writer stays usable. The messages of the interrupted call may or may
    not be in the journal.

    Attributes:
        path: the SEJ directory.
        recovery: the torn tail that opening has cut, or None.
        end: the object that does the work, with more ways to append. It is for packages that build on this one, and
            may change. It is closed with the writer, so keep the writer too.

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
        sync_interval_s: Seconds = 1.0,
        first_offset: int = 0,
        retention: Retention | None = None,
        lock_timeout: Seconds | None = 0.0,
        allow_network_fs: bool = False,
        disk: Disk = OS,
    ) -> None:
        """Open a journal for appending; it is created if it is missing.

        Args:
            path: the SEJ directory.
            segment_bytes: the message with which a segment reaches this size is the last one in it.
            durability: ``"buffer"`` (in the process until 64 KiB, flush or close), ``"os"`` (in the kernel: survives
                SIGKILL, readers see it immediately), ``"interval"`` (also synced every sync_interval_s) or ``"disk"``
                (synced when append returns; threads share syncs).
            sync_interval_s: seconds between two syncs, for ``"interval"``.
            first_offset: the offset of the first message of a new journal.
            retention: applied whenever a segment is ended.
            lock_timeout: seconds to wait for the lock; None waits without a limit.
            allow_network_fs: open the journal even if its file system is not known to be local.
            disk: the file system; tests replace it.

        Raises:
            LockedError: another writer has the journal.
            CorruptionError: the last segment is damaged, and the damage is not a torn tail; nothing was cut.
            NotAJournalError: the path is a file, or a directory that holds something else.
            NetworkFileSystemError: the path is on a network file system.
            TypeError: an argument has another type.
            ValueError: an argument is out of its range, or the path is empty.
        """
        options = (
            segment_bytes,
            durability,
            sync_interval_s,
            first_offset,
            retention,
            lock_timeout,
            allow_network_fs,
            disk,
        )
        if not all(map(is_, options, _DEFAULTS)):  # checking defaults takes 5 % of an opening
            check_options(**dict(zip(_RULES, options, strict=True)))
        if not isinstance(sync_interval_s, float):
            sync_interval_s = seconds("sync_interval_s", sync_interval_s)
        if not isinstance(lock_timeout, float):
            lock_timeout = seconds("lock_timeout", lock_timeout)
        directory = Directory(path, disk)
        self.path = directory.path
        has_id = prepare(directory, allow_network_fs=allow_network_fs)
        self.end = JournalAppender(
            directory,
            WriterLock(directory, lock_timeout),
            segment_bytes=segment_bytes,
            durability=durability,
            retention=retention,
            sync_interval_s=sync_interval_s,
        )
        self._buffer = self.end.buffer
        self._handle = self._buffer.handle()  # closes the end when this writer is gone
        self._waits = durability == "disk"
        try:
            self.end.open(first_offset, has_id)
            self.recovery = self.end.recovery
            if not self._waits and not TYPE_CHECKING:
                self.append = self._handle.append  # the codec's own method saves a call per message
        except BaseException:
            self.end.abandon()
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
        """Append one message.

        Args:
            value: the payload.
            key: up to 127 bytes.
            type: 0 to 255.
            timestamp: ns since the epoch, or NO_TIMESTAMP; None: now.
            expect_offset: the offset that the message must get; None: any.

        Returns:
            The offset.

        Raises:
            InvalidMessageError: a field is out of its range; nothing was appended.
            ConflictError: the next offset is not expect_offset; nothing was appended.
            WriterFailedError: a write or sync failed, now or before.
            ClosedError: the writer was closed.
        """
        offset = self._buffer.append(value, key, type, timestamp, expect_offset=expect_offset)
        if self._waits:
            self.end.syncer.make_durable(offset + 1)
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
        """Append many messages with consecutive offsets. If one of them is invalid, none is appended.

        Args:
            values: the payloads.
            keys: one key per value, or None for no keys.
            type: one type for all, or one per value.
            timestamp: one timestamp for all, or one per value; None: now.
            expect_offset: the offset that the first message must get; None: any.

        Returns:
            The offsets.

        Raises:
            ConflictError: the next offset is not expect_offset; nothing was appended.
            InvalidMessageError: as for :meth:`append`.
            ValueError: the number of keys, types or timestamps is not the number of values.
            WriterFailedError: as for :meth:`append`. After reopening, the first messages of the batch may be in the
                journal.
        """
        try:
            span = self._buffer.append_many(values, keys, type, timestamp, expect_offset=expect_offset)
        except TypeError:
            require_columns(values, keys, type, timestamp)  # raises an error that names the wrong argument
            raise
        if self._waits and span:
            self.end.syncer.make_durable(span.stop)
        return span

    def append_messages(self, messages: Iterable[Message]) -> range:
        """Append messages that were read from another journal, with their type, key and timestamp and new offsets."""
        found = require_messages(messages)
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
        """Append the batch ``number`` of ``name`` exactly once, even if the process or the machine crashes.

        The batch is durable when this returns, at every durability. A repeat appends nothing and returns the offsets of
        the batch.

        Args:
            name: the name of the sender that numbers the batches.
            number: the number of the batch. It rises from batch to batch, and may skip numbers.
            values: as for :meth:`append_many`.
            keys: as for :meth:`append_many`.
            type: as for :meth:`append_many`.
            timestamp: as for :meth:`append_many`.

        Returns:
            The offsets. If a foreign writer has appended messages in between, the range includes them.

        Raises:
            BatchConflictError: the number was used for other messages, or is new and below the last one, or so old that
                its record was removed.
        """
        require_columns(values, keys, type, timestamp)
        from sej.writing.exactly_once import encode_many  # here, because most writers do without

        data, span = encode_many(0, values, keys, type, timestamp)
        return self.end.append_once(name, number, data, len(span))

    # --- durability

    def flush(self) -> None:
        """Write everything to the kernel. Readers see it, and it survives the death of this process."""
        self.end.flush()

    def sync(self) -> None:
        """Sync everything appended so far, so that it survives power loss."""
        self.end.sync()

    @property
    def offset(self) -> int:
        """The offset of the next message."""
        return self._buffer.offset

    @property
    def durable_offset(self) -> int:
        """Every message below this offset survives power loss."""
        return self.end.syncer.durable_offset

    @property
    def durability(self) -> Durability:
        """The durability that the writer was opened with."""
        return self.end.durability

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self.end.life.closed

    def close(self) -> None:
        """Write and sync the rest, and release the lock.

        A second call does nothing. If an exception interrupts the first one, the writer stays open, and the next call
        closes it.

        Raises:
            WriterFailedError: the last write or sync failed. The lock is released anyway.
            LockedError: a signal handler called this while a call of this writer was under way; nothing was closed.
        """
        self.end.close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the writer. An error of the block is not replaced by an error of a sync in the background."""
        self.end.life.exit(kind)

    def __repr__(self) -> str:
        """Show path, offset and state."""
        life = self.end.life
        state = "closed" if life.closed else "failed" if life.failure else self.durability
        return f"<sej.Writer {self.path!r} offset={self.offset} {state}>"


_DEFAULTS: Final = tuple((Writer.__init__.__kwdefaults__ or {})[name] for name in _RULES)
