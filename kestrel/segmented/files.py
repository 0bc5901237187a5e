"""libkestrel's files, for reading only: one by one, in bounded memory, and what the files of a queue add up to.

=========================  ============================================================
``jobs.1321401903634``     a writer file; the order is by the first id in each
``jobs.read.indexer``      the reader file of ``indexer``; ``jobs.read.`` of the default reader
``jobs~~read.indexer``     our log of commits since that file was written, see ``journal``
``...~~...``               temporary; the originals delete all of them, of every queue, at opening
``archive~jobs.1321...``   a retired writer file
=========================  ============================================================

A zero command byte ends a file: originals preallocate their files with zeros. They ignore a record after it. A running
original has mapped its last writer file at its full size, so that a put changes no size. What shows a put is the zero
byte after the last record: :meth:`Snapshot.check` looks at it again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Final, NamedTuple

from kestrel.errors import Damage, DamageError, MissingError
from kestrel.fast import Entry, Table
from kestrel.files import MAGIC_SIZE, OURS, READER_MAGIC, WRITER_MAGIC, Place, open_file, stamp_of
from kestrel.reading import Format, Pinned, Reading, Source, opened
from kestrel.segmented.format import END_BYTE, PUT, PUTS, READ_DONE, READ_HEAD, Item, Record, decode, ids_of, item_of
from sej.checks import FLAG, require
from sej.system.disk import OS, Disk, File, absolute_path

_BLOCK: Final = 1 << 18
BEYOND_END: Final = "there are bytes after the zero byte that ends the file"
"""Why bytes count as damage although they may be records."""


class Bookmark(NamedTuple):
    """What a reader has confirmed.

    Attributes:
        head: every id up to it is confirmed.
        done: the confirmed ids above it.
    """

    head: int = 0
    done: frozenset[int] = frozenset()


def _decode_item(data: bytes, at: int, position: int) -> tuple[Item | Record | None, int | None]:
    record, size = decode(data, at, position)
    return (item_of(record) if record is not None and record.command == PUT else record), size


_WAY_OUT: Final = "; open the queue, which copies the rest to kept/ and continues before it"
_ITEMS: Final = Format(PUTS, Item, _decode_item, END_BYTE, _WAY_OUT)
_RECORDS: Final = Format(Table(Item, "command", 0, []), Record, decode, END_BYTE, _WAY_OUT)


def items_of(file: File, start: int = MAGIC_SIZE, end: int | None = None) -> Reading:
    """A pass over the items of an open file; what else is in it is left out."""
    return Reading(file, _ITEMS, start, end)


def check_magic(file: File, magic: bytes) -> None:
    """Make sure that a file begins as it must.

    Raises:
        DamageError: it does not.
    """
    found = file.read(MAGIC_SIZE, 0)
    if found != magic:
        kind = "writer" if magic == WRITER_MAGIC else "reader"
        raise DamageError(
            f"a {kind} file must begin with {magic.hex(' ')}, got {found.hex(' ') or 'an empty file'}; it was not"
            " changed; move it away if it is another program's, or restore it from a copy",
            path=file.path,
            position=0,
        )


def read_writer_file(path: str | os.PathLike[str], *, beyond_zeros: bool = False, disk: Disk = OS) -> Iterator[Item]:
    """The items of one writer file, one after another.

    Args:
        path: the file.
        beyond_zeros: a zero byte ends a file, but an original that crashed and was opened with a larger file size
            appends after the zeros, and loses those items; this finds them again.
        disk: the seam.

    Raises:
        DamageError: the bytes at its position are not a record; everything before was yielded.
        MissingError: the file does not exist.
    """
    require(path=path, disk=disk, beyond_zeros=(beyond_zeros, FLAG))
    return _items(absolute_path(path), beyond_zeros, disk)


def _items(path: str | os.PathLike[str], beyond_zeros: bool, disk: Disk) -> Iterator[Item]:
    with open_file(path, disk) as file:
        check_magic(file, WRITER_MAGIC)
        reading = items_of(file)
        yield from reading.records()
        while beyond_zeros and reading.ended:
            reading = items_of(file, after_zeros(file, reading.position))
            yield from reading.records()


def after_zeros(file: File, position: int) -> int:
    """The first byte from position on that is not zero, or the end."""
    while block := file.read(_BLOCK, position):
        rest = block.lstrip(b"\0")
        position += len(block) - len(rest)
        if rest:
            break
    return position


def read_bookmark(file: File) -> tuple[Bookmark | None, DamageError | None]:
    """What a reader file says, as far as it is good: the last head, all done ids; None if it is not a reader file."""
    try:
        check_magic(file, READER_MAGIC)
    except DamageError as error:
        return None, error
    head, done = 0, set[int]()
    damage = None
    try:
        for record in Reading(file, _RECORDS, MAGIC_SIZE).records():
            if record.command == READ_HEAD:
                (head,) = ids_of(record)
            elif record.command == READ_DONE:
                done.update(ids_of(record))
    except DamageError as error:
        damage = DamageError(error.reason, path=file.path, position=error.position)
    return Bookmark(head, frozenset(done)), damage


def read_reader_file(path: str | os.PathLike[str], *, disk: Disk = OS) -> Bookmark:
    """What a reader has confirmed, by its file.

    Raises:
        DamageError: it is not a reader file, or damaged; ``segmented.load`` takes what is good of it.
        MissingError: the file does not exist.
    """
    require(path=path, disk=disk)
    with open_file(absolute_path(path), disk) as file:
        bookmark, damage = read_bookmark(file)
    if damage is not None or bookmark is None:
        raise damage or MissingError("this journal file does not exist", path=path)
    return bookmark


class Scan(NamedTuple):
    """One writer file.

    Attributes:
        size: where the records that count end.
        items: how many items they hold.
        first_id: of the first item with an id from 1 on; 0: it has none.
        lowest_id: of all items; 0: it has none.
        last_id: the highest id; 0: it has none.
        data_bytes: the data of all items.
        ended: whether a zero command byte ends the file there.
        reason: why what follows is damage; None: the file ends there, or zeros follow.
    """

    size: int
    items: int = 0
    first_id: int = 0
    lowest_id: int = 0
    last_id: int = 0
    data_bytes: int = 0
    ended: bool = False
    reason: str | None = None


def scan(file: File, size: int) -> Scan:
    """Read a writer file once.

    Args:
        file: the file.
        size: how much of it.

    Raises:
        DamageError: it is not a writer file.
    """
    check_magic(file, WRITER_MAGIC)
    reading = items_of(file, end=size)
    count = first = lowest = highest = before = last = data_bytes = 0
    reason = None
    try:
        for batch in reading.batches():
            ids = [item.id for item in batch]
            before, last = ids[-2] if len(ids) > 1 else last, ids[-1]
            first = first or next((number for number in ids if number > 0), 0)
            lowest = min(ids) if not count else min(lowest, *ids)
            highest = max(highest, *ids)
            count += len(ids)
            data_bytes += sum(len(item.data) for item in batch)
    except DamageError as error:
        reason = error.reason
    end = min(reading.position, size)
    if count and last <= before and reason is None:
        reason = f"the last item has the id {last}, expected one above {before}; a power failure tore it"
        puts = (record for record in Reading(file, _RECORDS, MAGIC_SIZE, end).records() if record.command == PUT)
        before_it = max(int(record.position) for record in puts)
        return scan(file, before_it)._replace(ended=reading.ended, reason=reason)
    return Scan(end, count, first, lowest, highest, data_bytes, reading.ended, reason)


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
