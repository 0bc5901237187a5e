"""Reading libkestrel's files one by one, in bounded memory.

A zero command byte ends a file: originals preallocate their files with zeros. They ignore a record after it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from kestrel.errors import DamageError, MissingError
from kestrel.fast import Table
from kestrel.files import MAGIC_SIZE, READER_MAGIC, WRITER_MAGIC, open_file
from kestrel.reading import Format, Reading
from kestrel.segmented.format import END_BYTE, PUT, PUTS, READ_DONE, READ_HEAD, Item, Record, decode, ids_of, item_of
from sej.checks import DISK, FLAG, PATH
from sej.checks import require as require_arguments
from sej.system.disk import OS, Disk, File
from sej.system.paths import absolute_path

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
    require_arguments(path=(path, PATH), beyond_zeros=(beyond_zeros, FLAG), disk=(disk, DISK))
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
    require_arguments(path=(path, PATH), disk=(disk, DISK))
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
        return scan(file, _last_put(file, end))._replace(ended=reading.ended, reason=reason)
    return Scan(end, count, first, lowest, highest, data_bytes, reading.ended, reason)


def _last_put(file: File, size: int) -> int:
    """Where the last item's record begins."""
    puts = (record for record in Reading(file, _RECORDS, MAGIC_SIZE, size).records() if record.command == PUT)
    return max(int(record.position) for record in puts)
