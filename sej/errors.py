"""What breaks, and how: one small tree, each error with its coordinates.

::

    SejError
    ├── CorruptionError            wrong bytes that are no torn tail; nothing was cut
    │   └── OffsetGapError         messages are missing between two segments
    ├── DecodeError                the codec's: these bytes are no message  .found
    ├── TruncatedError             a file is shorter than what was already read from it
    ├── OffsetTooSmallError        the messages asked for were deleted     .first_available
    ├── OffsetBeyondEndError       a kept offset lies behind the last message
    ├── BadOffsetFileError         an .ofs file of one to seven bytes, or not the bytes that were written
    ├── FileTypeError              a FIFO, directory, device or broken link where a regular file belongs
    ├── NotAJournalError           the path is a file, or a directory without jnl/
    │   └── JournalNotFoundError   there is nothing at the path
    ├── InvalidMessageError        key over 127 bytes, type over 255, message over 2^31-1 bytes
    ├── InvalidNameError           a reader's, client's or prefix name that could leave its directory
    ├── LockedError                somebody else holds the lock            .holder
    ├── WriterFailedError          a write or sync failed once: reopen the writer
    │   └── LockLostError          the lock file was removed or replaced under its holder
    ├── ClosedError                the object was closed, or belongs to the parent process
    ├── NetworkFileSystemError     locks and syncs cannot be trusted there
    ├── BatchConflictError         append_once: the same name and number with other messages
    ├── RetriesExhaustedError      a handler failed too often and there is no dead letter
    ├── LeaseLostError             somebody else holds the item by now
    ├── QueueFullError             put would pass maxsize
    ├── QueueNotFoundError         no queue of this name, and making one was not asked for   .names
    └── UnsupportedError           this backend of a queue cannot do that

A wrong Python type (``str`` where bytes are due) is a plain :class:`TypeError`; a wrong argument is a
:class:`ValueError`. A torn tail is no error: it is a result, ``Writer.recovery``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

__all__ = [
    "BadOffsetFileError",
    "BatchConflictError",
    "ClosedError",
    "CorruptionError",
    "DecodeError",
    "FileTypeError",
    "InvalidMessageError",
    "InvalidNameError",
    "JournalNotFoundError",
    "LeaseLostError",
    "LockLostError",
    "LockedError",
    "NetworkFileSystemError",
    "NotAJournalError",
    "OffsetBeyondEndError",
    "OffsetGapError",
    "OffsetTooSmallError",
    "QueueFullError",
    "QueueNotFoundError",
    "RetriesExhaustedError",
    "SejError",
    "TruncatedError",
    "UnsupportedError",
    "WriterFailedError",
]


class SejError(Exception):
    """Base of every error of this library.

    Attributes:
        reason: what was found, what was expected and the way out, without the coordinates.
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
        """Keep the reason and the coordinates."""
        super().__init__(reason)
        self.reason = reason
        self.path = None if path is None else os.fspath(path)
        self.position = position
        self.offset = offset

    def __str__(self) -> str:
        """The coordinates, then the reason."""
        where = [] if self.path is None else [self.path]
        if self.position is not None:
            where.append(f"position {self.position}")
        if self.offset is not None:
            where.append(f"offset {self.offset}")
        return f"{', '.join(where)}: {self.reason}" if where else self.reason

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by state: the keyword-only coordinates survive the way between processes."""
        return _rebuild, (type(self), self.__dict__)


def _rebuild(kind: type[SejError], state: dict[str, Any]) -> SejError:
    error = kind.__new__(kind)
    error.args = (state["reason"],)
    error.__dict__.update(state)
    return error


class CorruptionError(SejError):
    """Bytes are wrong, and not because a writer died there. Nothing was cut; see ``Journal.repair``."""


class OffsetGapError(CorruptionError):
    """Messages are missing between the end of one segment and the start of the next."""


class DecodeError(SejError):
    """What the codec says of bytes that are no message; position counts from the start of those bytes.

    Attributes:
        found: the offset of a message that is well formed but not the one that is due; else None.
    """

    def __init__(self, reason: str, *, position: int, offset: int | None = None, found: int | None = None) -> None:
        """Keep the place and, where there is one, the foreign offset."""
        super().__init__(reason, position=position, offset=offset)
        self.found = found


class TruncatedError(SejError):
    """A segment is shorter than what this reader has already yielded from it."""


class OffsetTooSmallError(SejError):
    """The messages asked for are not there any more.

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
        """Keep the first offset that can be read."""
        super().__init__(reason, path=path, offset=offset)
        self.first_available = first_available


class OffsetBeyondEndError(SejError):
    """A kept offset lies behind the end of its journal: the journal lost messages or was replaced."""


class BadOffsetFileError(SejError):
    """An ``.ofs`` file holds one to seven bytes, or other bytes than were written: no offset can be read from it."""


class FileTypeError(SejError, OSError):
    """A path is not the kind of file that belongs there.

    A FIFO, a socket, a device, a directory, a symbolic link that leads nowhere or in a circle, where a regular file is
    expected; or a file where a directory is. It is neither read nor written. A link to a regular file is one.
    """


class NotAJournalError(SejError):
    """The path is a file, or a directory that is no SEJ directory."""


class JournalNotFoundError(NotAJournalError):
    """There is nothing at the path."""


class InvalidMessageError(SejError, ValueError):
    """A message cannot be written in the format: a key, type, timestamp or size out of its range."""


class InvalidNameError(SejError, ValueError):
    """A name does not fully match what is allowed for it."""


class LockedError(SejError):
    """Another process or object holds the lock.

    Attributes:
        holder: what the lock file says of its holder (pid, host, start time), or None where it says nothing.
    """

    def __init__(self, reason: str, *, path: str | os.PathLike[str] | None = None, holder: str | None = None) -> None:
        """Keep what is known of the holder."""
        super().__init__(reason, path=path)
        self.holder = holder


class WriterFailedError(SejError):
    """A write or a sync failed: what reached the disk is unknown until the writer is opened anew."""


class LockLostError(WriterFailedError):
    """The lock file was removed or replaced while it was held, or another process has appended to the segment.

    The last message may or may not be in the journal. A :class:`~sej.Writer` must be opened again; the next call of a
    :class:`~sej.SharedWriter` takes the new lock.
    """


class ClosedError(SejError, ValueError):
    """The object was closed, or was made before a fork by the parent process."""


class NetworkFileSystemError(SejError):
    """The path is on a network file system, where locks and syncs cannot be trusted."""


class BatchConflictError(SejError):
    """A batch number of ``append_once`` came again with other messages, or went backwards."""


class RetriesExhaustedError(SejError):
    """A handler failed on the same message too often, and no dead letter was given."""


class LeaseLostError(SejError):
    """The item's lease ran out and somebody else may hold it."""


class QueueFullError(SejError):
    """The queue holds ``maxsize`` items already.

    Attributes:
        never: whether waiting is of no use, because so many at once never fit.
    """

    never = False


class QueueNotFoundError(SejError):
    """There is no queue of this name, and ``create`` does not allow to make one.

    Attributes:
        names: the queues that are there.
    """

    def __init__(self, reason: str, *, path: str | os.PathLike[str] | None = None, names: Iterable[str] = ()) -> None:
        """Keep the names of the queues that are there."""
        super().__init__(reason, path=path)
        self.names = tuple(names)


class UnsupportedError(SejError):
    """This backend of a work queue cannot do what was asked for; its ``can`` says what it can."""
