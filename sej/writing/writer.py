"""The writer: the public interface of a :class:`~sej.writing.tail.Tail`, which does the work.

It checks arguments and waits for durability. If there is nothing to wait for, its ``append`` is the codec buffer's
own method, so that no Python code runs between the caller and the codec.
"""

from __future__ import annotations

import os
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
from sej.journal.directory import Directory
from sej.journal.retention import Retention
from sej.message import BytesLike, Message
from sej.system.disk import OS, Disk
from sej.writing.opening import prepare
from sej.writing.tail import Durability, Tail

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


class Writer:
    """Appends to a journal; one at a time for a directory, shared by any number of threads.

    Any call may raise :class:`~sej.WriterFailedError` (a write or sync failed, now or before) or, of its kind,
    :class:`~sej.LockLostError` (the lock file was removed or replaced). After :meth:`close`, and in a forked child,
    every call raises :class:`~sej.ClosedError`. In a signal's handler that interrupts a call of this writer, every call
    raises :class:`~sej.LockedError` and does nothing, :meth:`close` too. An exception from a handler leaves the writer
    usable: what the interrupted call was to append is there or is not.

    Attributes:
        path: the SEJ directory.
        recovery: the torn tail that opening cut, or what two writers left and opening has mended; or None.
        tail: what does the work, with more ways to append. It is for packages that build on this one, and may change.

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
        directory = Directory(path, disk)
        self.path = directory.path
        prepare(directory, allow_network_fs=allow_network_fs)
        self.tail = Tail(directory, segment_bytes=segment_bytes, durability=durability, retention=retention)
        self._buffer = self.tail.buffer
        self._waits = durability == "disk"
        try:
            self.tail.open(first_offset, lock_timeout, sync_interval_s)
            self.recovery = self.tail.recovery
            if not self._waits and not TYPE_CHECKING:
                self.append = self._buffer.append  # nothing to wait for: the codec's own method, without a call between
        except BaseException:
            self.tail.abandon()
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
        if self._waits:
            self.tail.syncer.commit(offset + 1)
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
        if self._waits and span:
            self.tail.syncer.commit(span.stop)
        return span

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
        return self.tail.append_once(name, number, values, keys, type, timestamp)

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
        return self.tail.publish(values, keys, type, timestamp)

    # --- durability

    def flush(self) -> None:
        """Hand everything to the kernel: it survives the death of this process, and readers see it."""
        self.tail.flush()

    def sync(self) -> None:
        """Force everything appended so far to the disk: it survives power loss."""
        self.tail.sync()

    @property
    def offset(self) -> int:
        """What the next message gets."""
        return self._buffer.offset

    @property
    def durable_offset(self) -> int:
        """Every message below survives power loss."""
        return self.tail.syncer.durable_offset

    @property
    def durability(self) -> Durability:
        """As named on opening."""
        return self.tail.durability

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self.tail.life.closed

    def close(self) -> None:
        """Write and sync what is left, and release the lock.

        A second time does nothing, or finishes what an exception interrupted: until then the writer is open.

        Raises:
            WriterFailedError: the last write or sync failed. The lock is released all the same.
            LockedError: this is a signal's handler that interrupts a call of this writer; nothing was closed.
        """
        self.tail.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close; the error of the block is not replaced by that of a sync in the background."""
        self.tail.life.exit(self.close, kind)

    def __repr__(self) -> str:
        """Path, offset and state."""
        life = self.tail.life
        state = "closed" if life.closed else "failed" if life.failure else self.durability
        return f"<sej.Writer {self.path!r} offset={self.offset} {state}>"
