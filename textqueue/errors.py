"""What breaks in a text queue, each with its path and position.

::

    SejError
    └── TextQueueError
        ├── MessageMovedError      the message is not in the file any more, or not as it was read
        ├── InvalidTextError       a text, variable or option that the format cannot hold    (also a ValueError)
        ├── VariableTooLongError   a value is longer than the room of its variable           (also a ValueError)
        ├── NoSuchVariableError    no variable of that name or number                        (an IndexError, a KeyError)
        └── FileInUseError         an editor shows the file open, or somebody keeps the lock
"""

from __future__ import annotations

from sej.errors import SejError

__all__ = [
    "FileInUseError",
    "InvalidTextError",
    "MessageMovedError",
    "NoSuchVariableError",
    "TextQueueError",
    "VariableTooLongError",
]


class TextQueueError(SejError):
    """Base of every error of ``textqueue``."""


class MessageMovedError(TextQueueError):
    """The message is not in the file any more as it was read: nothing was written."""


class InvalidTextError(TextQueueError, ValueError):
    """The format cannot hold this text, variable or option."""


class VariableTooLongError(TextQueueError, ValueError):
    """A value is longer, in encoded bytes, than the room of its variable."""


class NoSuchVariableError(TextQueueError, IndexError, KeyError):
    """The message has no variable of that name or number; the published package raises an IndexError."""


class FileInUseError(TextQueueError):
    """Somebody has the file: an editor, by its swap file, or another program, by the lock or by keeping it open."""
