"""Files beside a queue file: they stand where the file itself stands, and are open to the same people.

A link to a queue file is another name of it: its programs must meet those that use the file's own name, so what stands
beside it is named after the file. Whoever may edit a queue file must be able to take its lock, and what a file that is
not open to everybody holds must not be read in another file; so a new file here gets owner and mode of the queue file.
"""

from __future__ import annotations

import os
from contextlib import suppress

from sej.system.disk import Disk, File

__all__ = ["as_open_as", "home", "open_beside", "replace_beside"]


def home(path: str) -> str:
    """The name of the file itself, where a path is a link to it."""
    return os.path.realpath(path) if os.path.islink(path) else path


def open_beside(disk: Disk, path: str, queue: str | None) -> File:
    """Open a file to append to it; a new one becomes as open as the queue file."""
    new = queue is not None and disk.status(path) is None
    file = disk.open(path, "append")
    if new and queue is not None:
        as_open_as(queue, file)
    return file


def replace_beside(disk: Disk, path: str, data: bytes, queue: str | None) -> None:
    """Make a file hold exactly data, or leave it as it is; it becomes as open as the queue file."""
    temporary = path + ".tmp"
    disk.unlink(temporary)  # a crash inside a rename may have left both names to one file: it is not written again
    file = disk.open(temporary, "temp")
    try:
        if queue is not None:
            as_open_as(queue, file)
        file.write(data)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)


def as_open_as(queue: str, file: File) -> None:
    """Give a new file owner, group and mode of a queue file, as far as the system lets one."""
    with suppress(OSError, ValueError):  # ValueError: a file without a descriptor
        fd = file.fileno()
        status = os.stat(queue)
        mode = status.st_mode & 0o666
        if (os.fstat(fd).st_uid, os.fstat(fd).st_gid) != (status.st_uid, status.st_gid):
            try:
                os.fchown(fd, status.st_uid, status.st_gid)
            except OSError:
                try:
                    os.fchown(fd, -1, status.st_gid)
                except OSError:
                    mode &= ~0o070  # another group than the one that is meant
        os.fchmod(fd, mode)
