"""The errors of a text queue, each with the path and the position; and the conflicts, which are reported instead.

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

from typing import NamedTuple

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


class Conflict(NamedTuple):
    """A conflict between this library and another program, which a user should know about.

    Attributes:
        path: the file.
        position: the position of the message.
        text: the text of the message; of a removed one, the first 80 bytes.
        kind: ``"reverted"``: an editor saved an old buffer and reverted a mark; ``"claim"``: it reverted a claim;
            ``"collision"``: the file was rewritten at the moment of an edit; ``"changed"``: a claimed message was
            changed or deleted; ``"lease"``: the lease of a claim ended, and another worker took the message;
            ``"removed"``: a save removed a message that a program had appended.
        action: what the queue did about it.
    """

    path: str
    position: int
    text: str
    kind: str
    action: str
