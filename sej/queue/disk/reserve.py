"""Disk space that a queue reserves for ending its items.

Ending an item writes: ``done`` appends to the queue's log, and the head that retention waits for is a file that is
replaced. On a full disk no item could be ended, the head could not move, and ``sej clean`` had nothing to remove.

The remedy is a file of zeros, ``ofs/NAME.reserve``, whose bytes are allocated when the queue is opened. States::

    whole  --a write of the queue finds the disk full-->  spent   (the file is removed, the write is repeated)
    spent  --there is room for all of it again-->         whole

While the reserve is spent the queue puts nothing: the room is for ``get``, ``done``, ``retry``, ``fail`` and the
compaction of the log. The file has no content and is not synced; if it is lost, it is created again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from sej.journal.directory import Directory
from sej.system.disk import Tolerated, is_full, of_system

RESERVE_BYTES: Final = 1 << 18
"""Room for more than 5,000 records, or for many compactions of a log."""
_T = TypeVar("_T")


class Reserve:
    """The reserve of one queue, as one process sees it.

    Attributes:
        spent: whether this process found the disk full, and has not filled the reserve since.
    """

    def __init__(self, directory: Directory, name: str) -> None:
        """Set the file; nothing is written."""
        self._disk = directory.disk
        self._path = directory.at("ofs", f"{name}.reserve")
        self.spent = False

    def fill(self) -> bool:
        """Allocate what is missing, all of it or nothing; return whether the reserve is whole."""
        try:
            there = self._disk.status(self._path)
            if there is None or there.size != RESERVE_BYTES:
                file = self._disk.open(self._path, "temp")
                try:
                    file.allocate(RESERVE_BYTES)
                finally:
                    file.close()
            self.spent = False
        except OSError as error:
            if not of_system(error):
                raise
            self.release()  # the queue works without it
            self.spent = is_full(error)
        return not self.spent

    def release(self) -> None:
        """Return the space to the disk, for the write that needs it."""
        self.spent = True
        with Tolerated():
            self._disk.unlink(self._path)

    def with_room(self, write: Callable[[], _T], again: Callable[[], _T] | None = None) -> _T:
        """Write; if the disk is full, release the reserve and write again.

        Args:
            write: writes.
            again: writes the second time, if that differs.
        """
        try:
            return write()
        except Exception as error:
            if not is_full(error):
                raise
            self.release()
            return (again or write)()
