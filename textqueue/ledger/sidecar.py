"""Sidecars: the files next to a queue file, such as its lock and its ledger.

They are hidden: the ledger of ``jobs.tq`` is ``.jobs.tq.log``. A sidecar is named after the real file, not after a
symbolic link to it. So all programs use the same lock and ledger, whatever path they open. If the link leads to another
file later, the next operation uses the sidecars of that file.

A new sidecar gets the owner, group and mode of the queue file. So every user who may edit the queue may lock it, and no
other user can read messages in a sidecar.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

from sej.system.disk import Disk, File
from sej.system.paths import absolute_name

_LOCK: Final = ".lck"


def moved(path: str, folder: str, note: str) -> str:
    """Return where a file is now if a person has moved the directory of a note, which names files by absolute paths.

    Args:
        path: the file, as the note names it.
        folder: the directory of the note when it was written.
        note: the note, as it is found now.
    """
    return os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(note)), os.path.relpath(path, folder)))


def real_path(path: str) -> str:
    """Return the path of the real file, if path is a symbolic link; otherwise path."""
    return os.path.realpath(path) if os.path.islink(path) else path


def sidecar_path(path: str, ending: str) -> str:
    """Return the path of a hidden sidecar of a file."""
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}{ending}")


class Sidecars:
    """The names of the sidecars of one queue file.

    Attributes:
        real_path: the path of the queue file, without a symbolic link.
    """

    def __init__(self, path: str, *, disk: Disk, queue: str | None = None) -> None:
        """Find the real file.

        Args:
            path: the path of the queue file, or of a symbolic link to it.
            disk: the file system.
            queue: the queue file, whose owner and mode a new lock file gets.
        """
        self._given = absolute_name(path)
        self._disk = disk
        self._queue = queue
        self.real_path = self._hidden = ""
        self.look()

    def path(self, ending: str) -> str:
        """Return the path of a sidecar."""
        return self._hidden + ending

    def look(self) -> None:
        """Find out again where a symbolic link leads, for a caller without the lock."""
        path = real_path(self._given)
        if path != self.real_path:
            self.real_path, self._hidden = path, sidecar_path(path, "")

    def have_moved(self) -> bool:
        """Return whether the path is a link that leads to another file now, whose sidecars are in use from now on."""
        if real_path(self._given) == self.real_path:
            return False
        self.look()
        return True

    def open_lock(self) -> File:
        """Open the lock file."""
        return open_sidecar(self._disk, self.path(_LOCK), self._queue)


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
