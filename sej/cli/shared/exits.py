"""The command's exit codes, and which error gives which."""

from __future__ import annotations

from enum import IntEnum

from sej.errors import (
    InvalidMessageError,
    InvalidNameError,
    LockedError,
    NotAJournalError,
    OffsetTooSmallError,
    QueueNotFoundError,
)


class Exit(IntEnum):
    """Exit codes that scripts can rely on; 130 means an interrupt."""

    WELL = 0
    WRONG = 1
    """A problem was found, or the command failed."""
    USAGE = 2
    BUSY = 3
    """Another process holds a lock."""
    MISSING = 4
    """There is no such journal, or the requested messages were deleted."""
    INTERRUPTED = 130


_BY_ERROR: tuple[tuple[type[BaseException], Exit], ...] = (
    (LockedError, Exit.BUSY),
    (NotAJournalError, Exit.MISSING),
    (OffsetTooSmallError, Exit.MISSING),
    (FileNotFoundError, Exit.MISSING),
    (QueueNotFoundError, Exit.MISSING),
    (InvalidMessageError, Exit.USAGE),
    (InvalidNameError, Exit.USAGE),
    (ValueError, Exit.USAGE),
    (KeyboardInterrupt, Exit.INTERRUPTED),
)


def exit_of(error: BaseException) -> Exit:
    """Return the exit code for an error.

    Example:
        >>> exit_of(LockedError("held")), exit_of(OSError("disk full"))
        (<Exit.BUSY: 3>, <Exit.WRONG: 1>)
    """
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), Exit.WRONG)
