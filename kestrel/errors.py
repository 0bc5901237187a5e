"""What breaks in Kestrel's journals and queues, each with its path and position.

::

    SejError
    └── KestrelError
        ├── DamageError        bytes that are not an operation or record; nothing was cut
        ├── MissingError       the file or queue does not exist                  (also a JournalNotFoundError)
        ├── BadNameError       a queue or reader name that the format cannot hold  (also an InvalidNameError)
        ├── BusyError          another process or object holds the queue          (also a LockedError)
        ├── FullError          put would pass a limit of the queue                (also a QueueFullError)
        ├── TooLargeError      the item itself is over a limit                    (also an InvalidMessageError)
        ├── FailedError        a write, a sync or the lock failed: reopen         (also a WriterFailedError)
        ├── ShutError          the queue was closed, or belongs to the parent     (also a ClosedError)
        └── MoveError          export or import_ found other messages than it left

Bytes that are unreadable while a queue is loaded raise nothing: each place is a :class:`Damage` in the queue's list.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from sej import errors


class KestrelError(errors.SejError):
    """Base of every error of ``kestrel``."""


class DamageError(KestrelError):
    """These bytes are not an operation or record, or the file ends inside one. Nothing was cut."""


class MissingError(KestrelError, errors.JournalNotFoundError):
    """The file, directory or queue does not exist."""


class BadNameError(KestrelError, errors.InvalidNameError):
    """The format cannot hold a queue or reader of this name."""


class BusyError(KestrelError, errors.LockedError):
    """Another process or object holds the queue."""


class FullError(KestrelError, errors.QueueFullError):
    """The queue is at one of its limits and refuses the item."""


class TooLargeError(KestrelError, errors.InvalidMessageError):
    """The item alone is over a limit of the queue or of the format."""


class FailedError(KestrelError, errors.WriterFailedError):
    """A write or sync failed, or the lock was lost: what reached the disk is unknown until the queue is reopened."""


class ShutError(KestrelError, errors.ClosedError):
    """The queue was closed, or was opened before a fork by the parent process."""


class MoveError(KestrelError):
    """An export or import does not find what it left, or not what it was given."""


class Damage(NamedTuple):
    """One unreadable place that was met while loading.

    Attributes:
        path: the file.
        position: the byte where reading of this file stopped.
        reason: what was found and what was expected.
    """

    path: str
    position: int
    reason: str

    @property
    def file(self) -> str:
        """The file's name without its directory."""
        return os.path.basename(self.path)
