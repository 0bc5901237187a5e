"""The journal of a queue as it is now, for reading only, in the place of a :class:`~kestrel.v2.storage.Storage`."""

from __future__ import annotations

import os

from kestrel.hot import Fuse
from kestrel.pinned import Pinned, written
from kestrel.v2.listing import list_parts
from kestrel.v2.storage import Piece
from sej.system.disk import OS, Disk, File
from sej.system.paths import absolute_path


class Snapshot:
    """The pieces of a journal.

    Attributes:
        pieces: in the order of replay.
        fuse: as a storage has it; nothing here blows it.
    """

    def __init__(self, directory: str | os.PathLike[str], name: str, *, disk: Disk = OS, exclude: bool = False) -> None:
        """Open the files; as :class:`~kestrel.pinned.Pinned`."""
        directory = absolute_path(directory)

        def look() -> list[str]:
            return [part.path for part in list_parts(directory, name, disk).parts]

        self._pinned = Pinned(directory, name, look, disk, exclude=exclude)
        self.pieces = [Piece(path, None, size) for path, size in self._pinned.sizes.items()]
        self.fuse = Fuse(os.path.join(directory, name))

    def open(self, piece: Piece) -> File:
        """The open file of a piece, for its :meth:`release`."""
        return self._pinned.files[piece.path]

    def release(self, file: File) -> None:
        """The file stays open until ``close``."""

    def written(self) -> list[tuple[str, int]]:
        """The files, and when each one was written last."""
        return [written(file) for file in self._pinned.files.values()]

    def check(self) -> None:
        """Check that the queue has not changed since it was opened; as :meth:`~kestrel.pinned.Pinned.check`."""
        self._pinned.check()

    def close(self) -> None:
        """Close the files."""
        self._pinned.close()
