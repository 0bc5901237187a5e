"""The errors: one small tree. Each error carries its coordinates: path, position and offset.

::

    SejError
    ├── CorruptionError            bytes are wrong, and not a torn tail; nothing was cut
    │   └── OffsetGapError         messages are missing between two segments
    ├── DecodeError                raised by the codec: the bytes are not a message    .found
    ├── TruncatedError             a file is shorter than what was already read from it
    ├── OffsetTooSmallError        the requested messages were deleted     .first_available
    ├── OffsetBeyondEndError       a kept offset is past the last message
    ├── BadOffsetFileError         an .ofs file of one to seven bytes, or not the bytes that were written
    ├── FileTypeError              a FIFO, directory, device or broken link instead of a regular file
    ├── NotAJournalError           the path is a file, or a directory without jnl/
    │   └── JournalNotFoundError   the path does not exist
    ├── InvalidMessageError        key over 127 bytes, type over 255, message over 2^31-1 bytes
    ├── InvalidNameError           a reader, client or prefix name with characters that are not allowed
    ├── LockedError                another process or object holds the lock    .holder
    ├── WriterFailedError          a write or sync failed once: reopen the writer
    │   └── LockLostError          the lock file was removed or replaced while it was held
    ├── ClosedError                the object was closed, or belongs to the parent process
    ├── NetworkFileSystemError     locks and syncs are not reliable on this file system
    ├── ConflictError              an append expected another next offset or token    .expected .found
    ├── BatchConflictError         append_once: the same name and number with other messages
    ├── RetriesExhaustedError      a handler failed too often and there is no dead-letter journal
    ├── LeaseLostError             the lease ran out; another worker may hold the item
    ├── QueueFullError             put would exceed maxsize
    ├── ItemFailedError            the result of an item that became a dead letter
    ├── ResultGoneError            no result of this item is kept
    ├── QueueNotFoundError         there is no queue of this name, and create was not set    .names
    └── UnsupportedError           this queue backend or system does not support the operation

A wrong Python type (``str`` instead of bytes) is a plain :class:`TypeError`; a wrong argument is a :class:`ValueError`.
A torn tail is not an error: it is reported as a result, ``Writer.recovery``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any


class SejError(Exception):
    """Base of every error of this library.

    Attributes:
        reason: what was found, what was expected and what to do, without the coordinates.
        path: the file or directory, or None.
        position: the byte in the file, or None.
        offset: the number of the message, or None.
    """

    def __init__(
        self,
        reason: str,
        *,
        path: str | os.PathLike[str] | None = None,
        position: int | None = None,
        offset: int | None = None,
    ) -> None:
        """Store the reason and the coordinates."""
        super().__init__(reason)
        self.reason = reason
        self.path = None if path is None else os.fspath(path)
        self.position = position
        self.offset = offset

    def __str__(self) -> str:
        """Return the coordinates, then the reason."""
        where = [] if self.path is None else [self.path]
        if self.position is not None:
            where.append(f"position {self.position}")
        if self.offset is not None:
            where.append(f"offset {self.offset}")
        return f"{', '.join(where)}: {self.reason}" if where else self.reason

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by state, so that the keyword-only coordinates reach another process."""
        return _rebuild, (type(self), self.__dict__)


def _rebuild(kind: type[SejError], state: dict[str, Any]) -> SejError:
    error = kind.__new__(kind)
    error.args = (state["reason"],)
    error.__dict__.update(state)
    return error


class CorruptionError(SejError):
    """Bytes are wrong, and the cause is not a torn tail. Nothing was cut; see ``Journal.repair``."""


class OffsetGapError(CorruptionError):
    """Messages are missing between the end of one segment and the start of the next."""


class DecodeError(SejError):
    """Raised by the codec: the bytes are not a message. The position counts from the start of these bytes.

    Attributes:
        found: the offset of a well-formed message with another offset than expected; else None.
    """

    def __init__(self, reason: str, *, position: int, offset: int | None = None, found: int | None = None) -> None:
        """Store the position, and the unexpected offset if there is one."""
        super().__init__(reason, position=position, offset=offset)
        self.found = found


class TruncatedError(SejError):
    """A segment is shorter than what this reader has already yielded from it."""


class OffsetTooSmallError(SejError):
    """The requested messages were deleted.

    Attributes:
        first_available: the first offset that the journal still has.
    """

    def __init__(
        self,
        reason: str,
        *,
        first_available: int,
        path: str | os.PathLike[str] | None = None,
        offset: int | None = None,
    ) -> None:
        """Store the first offset that can be read."""
        super().__init__(reason, path=path, offset=offset)
        self.first_available = first_available


class OffsetBeyondEndError(SejError):
    """A kept offset is past the end of its journal: the journal lost messages or was replaced."""


class BadOffsetFileError(SejError):
    """An ``.ofs`` file holds one to seven bytes, or not the bytes that were written: it has no readable offset."""


class FileTypeError(SejError, OSError):
    """A path does not have the expected file type.

    A regular file was expected, and the path is a FIFO, a socket, a device, a directory, or a symbolic link that is
    broken or circular; or a directory was expected, and the path is a file. It is neither read nor written. A link to a
    regular file is accepted.
    """


class NotAJournalError(SejError):
    """The path is a file, or a directory that is not a SEJ directory."""


class JournalNotFoundError(NotAJournalError):
    """The path does not exist, or the journal that was read there was removed, perhaps created again."""


class InvalidMessageError(SejError, ValueError):
    """A message does not fit the format: its key, type, timestamp or size is out of range."""


class InvalidNameError(SejError, ValueError):
    """A name does not fully match the pattern of allowed names."""


class LockedError(SejError):
    """Another process or object holds the lock.

    Attributes:
        holder: the holder as the lock file names it (pid, host, start time), or None.
    """

    def __init__(self, reason: str, *, path: str | os.PathLike[str] | None = None, holder: str | None = None) -> None:
        """Store the holder, if it is known."""
        super().__init__(reason, path=path)
        self.holder = holder


class WriterFailedError(SejError):
    """A write or a sync failed: what reached the disk is unknown until the writer is reopened."""


class LockLostError(WriterFailedError):
    """The lock file was removed or replaced while it was held, or another process has appended to the segment.

    The last message may or may not be in the journal. A :class:`~sej.Writer` and a work queue must be reopened; the
    next call of a :class:`~sej.SharedWriter` takes the new lock.
    """


class ClosedError(SejError, ValueError):
    """The object was closed, or was made before a fork by the parent process."""


class NetworkFileSystemError(SejError):
    """The path is on a file system that is not known to be local: locks and syncs of a network's cannot be trusted."""


class ConflictError(SejError):
    """The condition of an append does not hold: another writer has appended, or has taken over. Nothing was appended.

    Attributes:
        expected: the next offset, or the fencing token, that the caller passed.
        found: the journal's.
    """

    def __init__(self, reason: str, *, path: str | os.PathLike[str] | None = None, expected: int, found: int) -> None:
        """Store both numbers."""
        super().__init__(reason, path=path)
        self.expected = expected
        self.found = found


class BatchConflictError(SejError):
    """A batch number of ``append_once`` was repeated with other messages, or is lower than the last one."""


class RetriesExhaustedError(SejError):
    """A handler failed too often on the same message, and there is no dead-letter journal."""


class LeaseLostError(SejError):
    """The item's lease ran out, and another worker may hold the item."""


class QueueFullError(SejError):
    """The queue already holds ``maxsize`` items.

    Attributes:
        never: True if waiting cannot help, because one call put more items than ``maxsize``.
    """

    never = False


class ItemFailedError(SejError):
    """An item whose result was waited for became a dead letter; the reason is that of its last failure."""


class ResultGoneError(SejError):
    """No result of this item is kept: it never was, its time is over, or the item was removed before it ended."""


class QueueNotFoundError(SejError):
    """There is no queue of this name, and ``create`` does not allow making one.

    Attributes:
        names: the queues that exist.
    """

    def __init__(self, reason: str, *, path: str | os.PathLike[str] | None = None, names: Iterable[str] = ()) -> None:
        """Store the names of the queues that exist."""
        super().__init__(reason, path=path)
        self.names = tuple(names)


class UnsupportedError(SejError):
    """This queue backend or system does not support the operation; the backend's ``can`` lists what it supports."""
