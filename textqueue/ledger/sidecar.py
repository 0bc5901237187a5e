"""Sidecars: the files next to a queue file, such as its lock and its ledger.

They are hidden: the ledger of ``jobs.tq`` is ``.jobs.tq.log``. A sidecar is named after the real file, not after a
symbolic link to it. So all programs use the same lock and ledger, whatever path they open. If the link leads to another
file later, the next operation uses the sidecars of that file.

A new sidecar gets the owner, group and mode of the queue file. So every user who may edit the queue may lock it, and no
other user can read messages in a sidecar.

**Names of older versions.** Version 0.1 without hidden names had ``jobs.tq.log`` and so on. All programs must use the
same lock, so one rule decides: *as long as the old lock file* ``jobs.tq.lck`` *exists, the old names are in use.*

::

    no old lock file                             the hidden names
    an old lock file, and another process        the old names: that process may be an older version
    has it open
    an old lock file that no other process       the files are moved to the hidden names, under both locks;
    has open (the kernel grants a lease)         last of all, the old lock file is removed

A process has the lock file open as long as it has the queue open. So no file is moved while another process uses it.
A process that opens the old lock file at the wrong moment finds that it has left its path, and begins again.
After a crash in between, the old lock file is still there, and the next process continues. Until then no process works,
because it would miss what was moved. If the system has no leases, the old names remain in use.

An older version that is started on a queue with hidden names would use locks of its own. The programs of this version
notice its lock file, and refuse to work.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Final

from sej.system.disk import Disk, File
from sej.system.locks import end_lease, lease
from textqueue.errors import FileInUseError

__all__ = ["Sidecars", "copy_access", "moved", "open_sidecar", "real_path", "replace_sidecar", "sidecar_path"]

_LOCK: Final = ".lck"
_MOVED: Final = (".tmp", ".archive", ".drain", ".durable", ".copies", ".log")
_MOVE_S: Final = 5.0
"""How long to wait for another process of this version that moves the files."""
_PAUSE_S: Final = 0.002


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
        old: whether the names of older versions are in use.
    """

    def __init__(self, path: str, *, disk: Disk, queue: str | None = None) -> None:
        """Find out which names are in use.

        Args:
            path: the path of the queue file, or of a symbolic link to it.
            disk: the file system.
            queue: the queue file, whose owner and mode a new lock file gets.
        """
        self._given = path
        self._disk = disk
        self._queue = queue
        self.real_path = self._hidden = ""
        self.old = False
        self.look()

    def path(self, ending: str) -> str:
        """Return the path of a sidecar."""
        return (self.real_path if self.old else self._hidden) + ending

    def look(self) -> None:
        """Find out again which names are in use, for a caller without the lock."""
        path = real_path(self._given)
        if path != self.real_path:
            self.real_path, self._hidden = path, sidecar_path(path, "")
        self.old = self._disk.status(self.real_path + _LOCK) is not None

    def have_moved(self) -> bool:
        """Return whether the path is a link that leads to another file now, whose sidecars are in use from now on."""
        if real_path(self._given) == self.real_path:
            return False
        self.look()
        return True

    def require_alone(self) -> None:
        """Check that no older version has begun to use the queue since the hidden lock file was opened.

        Raises:
            FileInUseError: there is a lock file of an older version.
        """
        if not self.old and self._disk.status(self.real_path + _LOCK) is not None:
            raise self._refusal()

    def open_lock(self) -> File:
        """Open the lock file, and decide which names are in use. The decision holds until the file is closed.

        Raises:
            FileInUseError: an older version uses the queue, and this version has used it with hidden names.
        """
        deadline = time.monotonic() + _MOVE_S
        while True:
            try:
                file = self._disk.open(self.real_path + _LOCK, "edit")
            except FileNotFoundError:
                self.old = False
                return open_sidecar(self._disk, self.path(_LOCK), self._queue)
            if self._move(file):
                file.close()
                continue
            if not any(self._disk.status(sidecar_path(self.real_path, ending)) for ending in _MOVED):
                self.old = True
                return file
            file.close()  # another process may be moving them, or has been interrupted
            if time.monotonic() > deadline:
                raise self._refusal()
            time.sleep(_PAUSE_S)

    def _move(self, old: File) -> bool:
        """Move the files to the hidden names; False if another process uses them."""
        if not old.lock():
            return False
        try:
            there = self._disk.status(self.real_path + _LOCK)
            if there is None or there.identity != old.status().identity:
                return True  # it was moved before the lock was taken
            if not lease(old):
                return False
            hidden = open_sidecar(self._disk, sidecar_path(self.real_path, _LOCK), self._queue)
            try:
                if not hidden.lock():
                    return False
                for ending in _MOVED:
                    if self._disk.status(sidecar_path(self.real_path, ending)) is None:
                        with suppress(FileNotFoundError):
                            self._disk.rename(self.real_path + ending, sidecar_path(self.real_path, ending))
                self._disk.unlink(self.real_path + ".drain.lck")
                self._disk.unlink(self.real_path + _LOCK)
            finally:
                hidden.close()
            return True
        finally:
            end_lease(old)
            old.unlock()

    def _refusal(self) -> FileInUseError:
        return FileInUseError(
            "an older version of sej-journals has this lock file, and cannot work together with this version: end its"
            f" programs, then remove {self.real_path}{_LOCK}, or end this program",
            path=self.real_path + _LOCK,
        )


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
