"""The files of a libkestrel queue as they are now, for reading only.

A running original has mapped its last writer file at its full size, so that a put changes no size. What shows a put is
the zero byte after the last record: :meth:`Snapshot.check` looks at it again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from kestrel.errors import Damage, DamageError
from kestrel.files import Place
from kestrel.reading import Pinned
from kestrel.segmented.files import (
    BEYOND_END,
    Bookmark,
    Scan,
    after_zeros,
    items_of,
    list_files,
    read_bookmarks,
    scan,
    settle,
)
from kestrel.segmented.format import Item
from sej.system.disk import OS, Disk, File


def fit(bookmark: Bookmark, first_id: int, tail_id: int) -> Bookmark:
    """A bookmark as it counts if the files hold the ids from first_id to tail_id; both are 0 in an empty queue."""
    head = max(min(bookmark.head, tail_id), first_id - 1, 0)
    return Bookmark(head, frozenset(number for number in bookmark.done if head < number <= tail_id))


class Snapshot(Pinned):
    """One queue.

    Attributes:
        tail_id: the last id; 0 in an empty queue.
        readers: what each reader has confirmed, fitted to the items in the files.
        unreadable: the readers whose file is not a reader file.
        beyond_end: bytes after the zero byte that ends a file.
    """

    def __init__(self, place: Place, *, exclude: bool = False) -> None:
        """Open all files and read them once; as :class:`~kestrel.reading.Pinned`."""
        self.beyond_end: list[Damage] = []
        self.readers: dict[str, Bookmark] = {}
        self.unreadable: list[str] = []
        self._readings: list[tuple[int, int, File]] = []
        """First id, end of the records, file; by the first id."""
        super().__init__(place, exclude=exclude)
        listing = list_files(self.files, place.name)
        try:
            scans = self._scan([path for _, path in listing.writers])
            first_id = min((found.lowest_id for found in scans), default=0)
            self.tail_id = max((found.last_id for found in scans), default=0)
            for reader, bookmark, broken in read_bookmarks(listing, self, place.disk):
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

    def _scan(self, paths: list[str]) -> list[Scan]:
        """The files that hold items, by what counts of them."""
        scans: list[tuple[File, Scan]] = []
        for path in paths:
            file = self.files[path]
            try:
                scans.append((file, scan(file, self.sizes[path])))
            except DamageError as error:
                self.damage.append(Damage(path, 0, error.reason))
        settled = settle([found for _, found in scans])
        for (file, _), found in zip(scans, settled, strict=True):
            if found.reason is not None:
                self.damage.append(Damage(file.path, found.size, found.reason))
            elif found.ended and after_zeros(file, found.size) < self.sizes[file.path]:
                self.beyond_end.append(Damage(file.path, found.size, BEYOND_END))
            self._readings.append((found.first_id, found.size, file))
        self._readings.sort(key=lambda reading: reading[0])
        return [found for found in settled if found.items]

    def items(self, bookmark: Bookmark | None = None) -> Iterator[Item]:
        """The items, file after file; without those that a bookmark covers."""
        for _, end, file in self._readings:
            for item in items_of(file, end=end).records():
                if bookmark is None or (item.id > bookmark.head and item.id not in bookmark.done):
                    yield item

    def written(self) -> list[tuple[str, int]]:
        """Of the writer files alone: opening a queue replaces its reader files."""
        names = {os.path.basename(file.path) for _, _, file in self._readings}
        return [one for one in super().written() if one[0] in names]

    def check(self) -> None:
        """Check that the queue has not changed since it was opened; as :meth:`~kestrel.reading.Pinned.check`."""
        super().check()
        for _, end, file in self._readings:
            known = any((file.path, end) == (one.path, one.position) for one in self.damage)
            if not known and file.read(1, end) not in (b"", b"\0"):
                self.refuse(file.path)


class State(NamedTuple):
    """What a queue holds.

    Attributes:
        items: by id, those that every reader has confirmed included while their file is there.
        tail_id: the last id; 0 in an empty queue.
        readers: what each reader has confirmed, as far as its file is good, fitted to the items in the files.
        damage: what was unreadable; each file counts up to there.
        beyond_end: bytes after the zero byte that ends a file: lost to the original, see ``read_writer_file``.
    """

    items: list[Item]
    tail_id: int
    readers: dict[str, Bookmark]
    damage: list[Damage]
    beyond_end: list[Damage]

    def pending(self, name: str) -> list[int]:
        """The ids that a reader has not confirmed.

        Raises:
            KeyError: the queue has no such reader.
        """
        head, done = self.readers[name]
        return [item.id for item in self.items if item.id > head and item.id not in done]


def load(directory: str | os.PathLike[str], name: str, *, disk: Disk = OS) -> State:
    """What a queue's files add up to; changes nothing, takes no lock and holds all of it in memory.

    Returns:
        The state. Damage is in it, never raised; every file counts up to its first unreadable place.

    Raises:
        MissingError: the directory does not exist.
        BadNameError: no queue can have this name.
        BusyError: the queue replaces its files faster than they can be opened.
    """
    with closing(Snapshot(Place.of(directory, name, disk))) as snapshot:
        items = sorted(snapshot.items(), key=lambda item: item.id)
    return State(items, snapshot.tail_id, snapshot.readers, snapshot.damage, snapshot.beyond_end)
