"""Which bytes of a queue's files are known to be on disk, and writing the others again.

A successful sync says nothing about bytes that were written before the file was opened (see ``sej.system.disk`` and
``sej.system.durable``). So the queue keeps a record of the position up to which its bytes are on disk, in
``<queue>~~durable``. The record names one file by its inode and first bytes. It covers all older files as well, because
a file is synced before its successor is created:

======================================  ===========================
the files, oldest first                 bytes that are on disk
======================================  ===========================
older than the file in the record       all
the file in the record                  up to the kept position
newer, or all files without a record    in doubt
======================================  ===========================

When the queue is opened, bytes in doubt are overwritten with themselves, **before** they are read. The formats have no
checksums, so a later read could not detect that the disk returns other bytes. After the overwrite, the pages are dirty
or written back, or the sync fails. After a process died, this costs 64 KiB and the bytes after its last sync. A queue
of an original has no record, so its files are written again once. The originals delete ``~~`` files.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from sej.system.disk import Disk, File
from sej.system.durable import KeptPosition, renew

_STEP_BYTES: Final = 1 << 16


class Renewing:
    """The kept position of one queue. The caller holds the queue's lock."""

    def __init__(self, path: str, disk: Disk) -> None:
        """Name it.

        Args:
            path: the record, from :func:`~kestrel.files.durable_path`.
            disk: the seam.
        """
        self._path = path
        self._disk = disk
        self._kept = KeptPosition(disk, path)
        self._whole = False
        self._stored: tuple[File | None, int] = (None, 0)
        self._synced = 0

    def renew(self, paths: Sequence[str]) -> None:
        """Make every byte of the files durable, and their names. Called before they are read.

        Args:
            paths: of the files, oldest first.

        Raises:
            OSError: a write or a sync failed.
        """
        newest: File | None = None
        certain = False
        try:
            for path in reversed(paths):
                file = self._disk.open(path, "edit")
                try:
                    size = file.size()
                    found = self._kept.load(file, 0)
                    position = 0 if found is None else found.position
                    if position < size:
                        renew(self._disk, file, position, size)
                        file.sync()
                    certain = newest is None and size > 0 and position == size
                    if newest is None and size:
                        newest = file
                finally:
                    if file is not newest:
                        file.close()
                if position:
                    break
            if not certain:
                self._sync_names()
            self._whole = True
            if newest is not None and not certain:
                self.keep(newest, newest.size())
        finally:
            if newest is not None:
                newest.close()

    def _sync_names(self) -> None:
        """An earlier process may have failed between a rename and the sync of its directory."""
        directory = os.path.dirname(self._path)
        self._disk.sync_dir(directory)
        try:
            self._disk.sync_dir(os.path.dirname(os.path.abspath(directory)))
        except PermissionError:
            return  # this user cannot have made the directory

    def keep(self, file: File, position: int) -> None:
        """After a sync of the newest file: every byte before position is on disk, and every older file.

        Stored when the file has grown by 64 KiB, or by :meth:`settle`: an older position costs that much at an opening.
        """
        stored, at = self._stored
        self._synced = position
        if self._whole and (file is not stored or not 0 <= position - at < _STEP_BYTES):
            self._stored = file, position
            self._kept.store(file, 0, position, 0)

    def settle(self) -> None:
        """Store what was synced last. Called before the file is closed for good."""
        file, at = self._stored
        if file is not None and at != self._synced:
            self._stored = file, self._synced
            self._kept.store(file, 0, self._synced, 0)

    def close(self) -> None:
        """Close the record, which stays open between two stores."""
        self._kept.forget()

    def fresh(self, file: File, position: int) -> None:
        """The file and its name were just made and synced, and it is the only file."""
        self._whole = True
        if position:
            self.keep(file, position)
        else:
            self.forget()

    def forget(self) -> None:
        """Before a file is cut: what is written in the place of the rest is not known to be durable."""
        self._stored, self._synced = (None, 0), 0
        self._disk.unlink(self._path)
