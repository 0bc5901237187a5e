"""Which bytes of a queue's files are on the medium, and writing again those of which that is not known.

``sej.system.disk`` and ``sej.system.durable`` say why a sync that succeeds proves nothing of bytes that were written
before the file was opened. The kept position is stored in ``<queue>~~durable``. It names one file by its inode and
first bytes, and covers every older one too, because a file is synced before its successor is made:

===============================  ==================================================
the files, oldest first          on the medium
===============================  ==================================================
older than the one in the record all of it
the one in the record            up to the kept position
newer, or all if none exists   in doubt
===============================  ==================================================

What is in doubt is written over with itself when the queue is opened, **before** it is read: the formats have no
checksums, so what a replay has read could not be told later from what the disk made of it. The pages are then dirty or
written back, or the sync fails. A process that died costs 64 KiB and what its last sync did not cover. A queue that an
original or an older version wrote has no record and is renewed whole, once: the originals delete ``~~`` files.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from sej.system.disk import Disk, File
from sej.system.durable import KeptPosition, renew

__all__ = ["Renewing"]

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
        """After a sync of the newest file: every byte before position is on the medium, and every older file.

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
