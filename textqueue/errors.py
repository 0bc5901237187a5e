"""The errors of a text queue. Each has the path and the position.

::

    SejError
    └── TextQueueError
        ├── MessageMovedError      the message was changed or removed since it was read
        ├── InvalidTextError       the format has no way to write a text or variable         (also a ValueError)
        ├── VariableTooLongError   a value is longer than the space of its variable          (also a ValueError)
        ├── NoSuchVariableError    no variable has that name or number            (also an IndexError, a KeyError)
        └── FileInUseError         an editor or another program has the file or the lock open
"""

from __future__ import annotations

from sej.errors import SejError


class TextQueueError(SejError):
    """The base class of every error of ``textqueue``."""


class MessageMovedError(TextQueueError):
    """The message was changed or removed since it was read. Nothing was written."""


class InvalidTextError(TextQueueError, ValueError):
    """The format has no way to write this text or variable, or an option is invalid."""


class VariableTooLongError(TextQueueError, ValueError):
    """A value is longer, in encoded bytes, than the space reserved for its variable."""


class NoSuchVariableError(TextQueueError, IndexError, KeyError):
    """The message has no variable of that name or number. The published package raises an IndexError."""


class FileInUseError(TextQueueError):
    """The file is in use: another program holds the lock, has the file open, or changes it all the time."""
