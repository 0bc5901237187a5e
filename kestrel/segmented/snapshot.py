"""The files of a libkestrel queue as they are now, for reading only.

A running original has mapped its last writer file at its full size, so that a put changes no size. What shows a put is
the zero byte after the last record: :meth:`Snapshot.check` looks at it again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from kestrel.errors import Damage, DamageError
from kestrel.pinned import Pinned
from kestrel.segmented.codec import Item
from kestrel.segmented.files import BEYOND_END, Bookmark, Reading, after_zeros, check_magic, list_files, read_bookmarks
from kestrel.segmented.format import WRITER_MAGIC
from sej.system.disk import OS, Disk, File

__all__ = ["Snapshot", "fit"]


def fit(bookmark: Bookmark, first_id: int, tail_id: int) -> Bookmark:
    """A bookmark as it counts if the files hold the ids from first_id to tail_id; both are 0 in an empty queue."""
    head = max(min(bookmark.head, tail_id), first_id - 1, 0)
    return Bookmark(head, frozenset(number for number in bookmark.done if head < number <= tail_id))


class Snapshot:
    """One queue.

    Attributes:
        tail_id: the last id; 0 in an empty queue.
        readers: what each reader has confirmed, fitted to the items in the files.
        unreadable: the readers whose file is not a reader file.
        damage: what was unreadable; each file counts up to there.
        beyond_end: bytes after the zero byte that ends a file.
    """

    def __init__(self, directory: str | os.PathLike[str], name: str, *, disk: Disk = OS, exclude: bool = False) -> None:
        """Open all files and read them once; as :class:`~kestrel.pinned.Pinned`."""
        self.damage: list[Damage] = []
        self.beyond_end: list[Damage] = []
        self.readers: dict[str, Bookmark] = {}
        self.unreadable: list[str] = []
        self._readings: list[tuple[int, int, File]] = []
        """First id, end of the records, file; by the first id."""
        listing = list_files(directory, name, disk)

        def look() -> list[str]:
            nonlocal listing
            listing = list_files(directory, name, disk)
            return [path for _, path in listing.writers] + [*listing.readers.values(), *listing.logs.values()]

        self._pinned = Pinned(directory, name, look, disk, exclude=exclude)
        try:
            ids = [ids for _, path in listing.writers if (ids := self._scan(path)) is not None]
            self._readings.sort(key=lambda reading: reading[0])
            first_id = min((first for first, _ in ids), default=0)
            self.tail_id = max((last for _, last in ids), default=0)
            for reader, bookmark, broken in read_bookmarks(listing, self._pinned.files.__getitem__, lambda file: None):
                if broken is not None:
                    self.damage.append(broken)
                if bookmark is None:
                    self.unreadable.append(reader)
                else:
                    self.readers[reader] = fit(bookmark, first_id, self.tail_id)
            if len(self.readers) > 1:
                self.readers.pop("", None)
        except BaseException:
            self.close()
            raise

    def _scan(self, path: str) -> tuple[int, int] | None:
        """The lowest and the highest id in a file; None if it has none."""
        file = self._pinned.files[path]
        first = lowest = highest = None
        reading = None
        try:
            check_magic(file, WRITER_MAGIC)
            reading = Reading(file)
            for item in reading.items():
                if first is None or lowest is None or highest is None:
                    first = lowest = highest = item.id
                lowest, highest = min(lowest, item.id), max(highest, item.id)
            if reading.ended and after_zeros(file, reading.position) < file.size():
                self.beyond_end.append(Damage(path, reading.position, BEYOND_END))
        except DamageError as error:
            self.damage.append(Damage(path, error.position or 0, error.reason))
        if reading is None or first is None or lowest is None or highest is None:
            return None
        self._readings.append((first, reading.position, file))
        return lowest, highest

    def items(self, bookmark: Bookmark | None = None) -> Iterator[Item]:
        """The items, file after file; without those that a bookmark covers."""
        for _, end, file in self._readings:
            for item in Reading(file, end=end).items():
                if bookmark is None or (item.id > bookmark.head and item.id not in bookmark.done):
                    yield item

    def check(self) -> None:
        """Make sure that the queue is as it was opened; as :meth:`~kestrel.pinned.Pinned.check`."""
        self._pinned.check()
        for _, end, file in self._readings:
            if file.read(1, end) not in (b"", b"\0") and not any(file.path == one.path for one in self.damage):
                self._pinned.refuse(file.path)

    def close(self) -> None:
        """Close the files."""
        self._pinned.close()
