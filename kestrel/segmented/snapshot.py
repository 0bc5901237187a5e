"""Which files belong to a libkestrel queue, and what they add up to as they are now, for reading only.

=========================  ============================================================
``jobs.1321401903634``     a writer file; the order is by the first id in each
``jobs.read.indexer``      the reader file of ``indexer``; ``jobs.read.`` of the default reader
``jobs~~read.indexer``     our log of commits since that file was written, see ``journal``
``...~~...``               temporary; the originals delete all of them, of every queue, at opening
``archive~jobs.1321...``   a retired writer file
=========================  ============================================================

A running original has mapped its last writer file at its full size, so that a put changes no size. What shows a put is
the zero byte after the last record: :meth:`Snapshot.check` looks at it again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Final, NamedTuple

from kestrel.errors import Damage, DamageError
from kestrel.fast import Entry
from kestrel.files import MAGIC_SIZE, OURS, Place, stamp_of
from kestrel.reading import Pinned, Source, opened
from kestrel.segmented.files import BEYOND_END, Bookmark, Scan, after_zeros, items_of, read_bookmark, scan
from kestrel.segmented.format import Item
from sej.system.disk import OS, Disk


class Listing(NamedTuple):
    """A queue's files: writer files by their numbers, with their sizes; by the reader's name reader files and logs.

    The log of a reader that has no file is temporary.
    """

    writers: list[tuple[int, str, int]]
    readers: dict[str, str]
    logs: dict[str, str]
    temporary: list[str]


def list_files(files: Mapping[str, int], name: str) -> Listing:
    """Look what the files of a queue are, by their paths; with their sizes."""
    writers, readers, logs, temporary = [], {}, {}, []
    for path, size in files.items():
        rest = os.path.basename(path)[len(name) :]
        if rest.startswith("~~read."):
            logs[rest[7:]] = path
        elif "~" in rest:
            if "~~" in rest and not rest.endswith(OURS):
                temporary.append(path)
        elif rest.startswith(".read."):
            readers[rest[6:]] = path
        elif (stamp := stamp_of(rest[1:])) is not None:
            writers.append((stamp, path, size))
    temporary += [logs.pop(reader) for reader in [*logs] if reader not in readers]
    return Listing(sorted(writers), readers, logs, temporary)


def read_bookmarks(listing: Listing, source: Source) -> Iterator[tuple[str, Bookmark | None, Damage | None]]:
    """Each reader of a queue: what its file and its log say as far as they are good, and the damage in the file.

    The bookmark is None if the file is not a reader file. The end of a log may be torn: that is not damage.

    Args:
        listing: the queue's files.
        source: what opens them.
    """
    for reader, path in listing.readers.items():
        found = []
        for one in (path, listing.logs.get(reader)):
            if one is not None:
                with opened(source, one) as file:
                    found.append(read_bookmark(file))
        bookmark, broken = found[0]
        log = found[1][0] if len(found) > 1 else None
        if bookmark is not None and log is not None:
            bookmark = Bookmark(max(bookmark.head, log.head), bookmark.done | log.done)
        yield reader, bookmark, None if broken is None else Damage(path, broken.position or 0, broken.reason)


_EMPTY: Final = Scan(0)


class WriterFile(Entry):
    """One writer file; first_id and last_id are 0 while it holds no item.

    Attributes:
        whole: how many bytes it had when it was found.
        scanned: what was found in it.
    """

    stamp: int

    def __init__(self, path: str, stamp: int, whole: int = 0, scanned: Scan = _EMPTY) -> None:
        super().__init__(path, stamp, scanned.size, scanned.first_id, scanned.last_id)
        self.whole, self.scanned = whole, scanned


def scan_files(writers: list[tuple[int, str, int]], source: Source) -> tuple[list[WriterFile], list[Damage]]:
    """The writer files in the order in which they were made, and the files that are something else.

    A torn item alone in the newest file does not count: its id is not above those of the other files.
    """
    found: list[WriterFile] = []
    damage = []
    for stamp, path, size in writers:
        try:
            with opened(source, path) as file:
                scanned = scan(file, size)
        except DamageError as error:
            damage.append(Damage(path, 0, error.reason))
            continue
        found.append(WriterFile(path, stamp, size, scanned))
    above = max((file.last_id for file in found[:-1]), default=0)
    if found and found[-1].scanned.items == 1 and found[-1].last_id <= above:
        newest = found.pop()
        reason = f"the only item has the id {newest.last_id}, expected one above {above}; a power failure tore it"
        scanned = Scan(MAGIC_SIZE, ended=newest.scanned.ended, reason=reason)
        found.append(WriterFile(newest.path, newest.stamp, newest.whole, scanned))
    return found, damage


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
        super().__init__(place, exclude=exclude)
        listing = list_files(self.sizes, place.name)
        try:
            self._files, self.damage = scan_files(listing.writers, self)
            for one in self._files:
                found = one.scanned
                if found.reason is not None:
                    self.damage.append(Damage(one.path, found.size, found.reason))
                elif found.ended and after_zeros(self.files[one.path], found.size) < one.whole:
                    self.beyond_end.append(Damage(one.path, found.size, BEYOND_END))
            self._files.sort(key=lambda one: one.first_id)
            first_id = min((one.scanned.lowest_id for one in self._files if one.scanned.items), default=0)
            self.tail_id = max((one.last_id for one in self._files), default=0)
            for reader, bookmark, broken in read_bookmarks(listing, self):
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

    def items(self, bookmark: Bookmark | None = None) -> Iterator[Item]:
        """The items, file after file; without those that a bookmark covers."""
        for one in self._files:
            for item in items_of(self.files[one.path], end=one.size).records():
                if bookmark is None or (item.id > bookmark.head and item.id not in bookmark.done):
                    yield item

    def written(self) -> list[tuple[str, int]]:
        """Of the writer files alone: opening a queue replaces its reader files."""
        names = {os.path.basename(one.path) for one in self._files}
        return [one for one in super().written() if one[0] in names]

    def check(self) -> None:
        """Check that the queue has not changed since it was opened; as :meth:`~kestrel.reading.Pinned.check`."""
        super().check()
        for one in self._files:
            known = any((one.path, one.size) == (place.path, place.position) for place in self.damage)
            if not known and self.files[one.path].read(1, one.size) not in (b"", b"\0"):
                self.refuse(one.path)


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
