"""The command's exit codes, which error gives which, and errors of the system as lines with a way out."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NoReturn

import click

from sej.errors import (
    LockedError,
    NotAJournalError,
    OffsetTooSmallError,
    QueueNotFoundError,
    ResultGoneError,
    SejError,
)

_FREE_SPACE: Final = "free space on this disk; `sej clean` removes segments that no reader needs"
_NO_INODE: Final = "this disk has no inode for a new file; `sej clean` removes segments that no reader needs"
_WAYS_OUT: Final = MappingProxyType(
    {
        errno.ENOSPC: _FREE_SPACE,
        errno.EDQUOT: _FREE_SPACE,
        errno.EMFILE: "raise the limit of open files with `ulimit -n`",
        errno.EROFS: "mount it for writing; until then only commands that read work",
    }
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


_BY_ERROR: Final[Mapping[Exit, tuple[type[BaseException], ...]]] = MappingProxyType(
    {
        Exit.BUSY: (LockedError,),
        Exit.MISSING: (NotAJournalError, OffsetTooSmallError, FileNotFoundError, QueueNotFoundError, ResultGoneError),
        Exit.USAGE: (ValueError,),
        Exit.INTERRUPTED: (KeyboardInterrupt,),
    }
)


def exit_of(error: BaseException) -> Exit:
    """Return the exit code for an error.

    Example:
        >>> exit_of(LockedError("held")), exit_of(OSError("disk full"))
        (<Exit.BUSY: 3>, <Exit.WRONG: 1>)
    """
    return next((code for code, kinds in _BY_ERROR.items() if isinstance(error, kinds)), Exit.WRONG)


def refuse(text: str, code: Exit = Exit.MISSING) -> NoReturn:
    """Print why a command ends here, and end it."""
    click.echo(f"sej: {text}", err=True)
    raise SystemExit(code)


def text_of(error: BaseException) -> str:
    """Describe an error; a plain error of the system with its path first, as other programs do."""
    if not isinstance(error, OSError) or isinstance(error, SejError) or not error.strerror:
        return str(error)
    if not isinstance(error.filename, str | bytes):
        return error.strerror
    path = os.fsdecode(error.filename)
    folder = os.path.dirname(path) or "."
    if isinstance(error, PermissionError):
        return _denied(path, folder)
    if isinstance(error, FileNotFoundError) and not os.path.exists(folder):
        return f"{folder}: this directory does not exist; create it first"
    from sej.system.disk import OS, large_file_advice

    way_out = _WAYS_OUT.get(error.errno or 0)
    if error.errno == errno.EFBIG:
        way_out = large_file_advice()
    elif way_out is _FREE_SPACE and os.path.isdir(folder) and not OS.free_files(folder):
        way_out = _NO_INODE
    return f"{path}: {error.strerror}" + (f"; {way_out}" if way_out else "")


def _denied(path: str, folder: str) -> str:
    """Describe an access that the system refused: the path, and the user that owns it or its folder."""
    exists = os.path.exists(path)  # False too if this user may not look into the folder
    readable = os.access(path, os.R_OK) if exists else os.access(folder, os.X_OK)
    refused = f"{path}: this user may not {'write' if readable else 'read'} it"
    try:
        owner = os.stat(path if exists else folder).st_uid
        if exists and owner != os.geteuid() == os.stat(folder).st_uid:
            user = _user(os.geteuid())
            return f"{refused}; it belongs to {_user(owner)}, its directory to {user}: run `chown {user}` on it as root"
    except OSError:
        return f"{refused}; run as the user that owns the directory"
    return f"{refused}; run as its owner, {_user(owner)}"


def _user(number: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"the user with id {number}"
