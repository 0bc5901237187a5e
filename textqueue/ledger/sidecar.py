"""Sidecars: the files next to a queue file, such as its lock and its ledger.

A sidecar is named after the real file, not after a symbolic link to it. So all programs use the same lock and ledger,
whatever path they open.

A new sidecar gets the owner, group and mode of the queue file. So every user who may edit the queue may lock it, and no
other user can read messages in a sidecar.
"""

from __future__ import annotations

import os
from contextlib import suppress

from sej.system.disk import Disk, File

__all__ = ["beside", "copy_access", "open_sidecar", "real_path", "replace_sidecar"]


def real_path(path: str) -> str:
    """Return the path of the real file, if path is a symbolic link; otherwise path."""
    return os.path.realpath(path) if os.path.islink(path) else path


def beside(path: str, ending: str) -> str:
    """Return the path of a sidecar of a queue file."""
    return path + ending


def open_sidecar(disk: Disk, path: str, queue: str | None) -> File:
    """Open a sidecar for appending. A new one gets the owner and mode of the queue file."""
    new = queue is not None and disk.status(path) is None
    file = disk.open(path, "append")
    if new and queue is not None:
        copy_access(queue, file)
    return file


def replace_sidecar(disk: Disk, path: str, data: bytes, queue: str | None) -> None:
    """Replace a sidecar atomically. The new file gets the owner and mode of the queue file."""
    temporary = path + ".tmp"
    disk.unlink(temporary)  # after a crash within a rename, both names may be one file, which must not be overwritten
    file = disk.open(temporary, "temp")
    try:
        if queue is not None:
            copy_access(queue, file)
        file.write(data)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)


def copy_access(queue: str, file: File) -> None:
    """Give a new file the owner, group and mode of a queue file, as far as the system permits."""
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
                    mode &= ~0o070  # the group is a different one
        os.fchmod(fd, mode)
