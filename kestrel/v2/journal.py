"""Which files are a queue's journal, in which order they are read, and reading one of them in bounded memory.

=====================  ==============================================================================
``cars``               the current file; missing is like empty
``cars.1234``          rotated at 1234 ms; rotated files come first, in the order of their numbers
``cars.1234.pack``     replaces every rotated file up to 1234; those are dead and to be deleted
``cars~~...``          temporary; the originals delete all of them when they open the queue
``cars~~lock``         our lock: by that rule the originals do not trip over it
``cars~~durable``      our record of what is on the medium, see ``tail``; if it is gone, more is renewed
``kept/``              our folder for bytes that were cut or came from elsewhere; the originals ignore folders
=====================  ==============================================================================

Any other name, such as ``cars.old``, is not ours. An empty ``.pack`` is not a pack: the original makes the
empty file first and renames over it, so a crash between the two leaves one, and believing it would kill every rotated
file. Not believing it is always safe: an empty pack says that nothing was alive, and what it replaces adds up to that.

A file is read in blocks; a size is believed only after it was compared with the bytes that are left. Which of its two
meanings opcode 8 has is found by looking ahead: a STATE_DUMP is followed by exactly its count of (ADD_XID,
REMOVE_TENTATIVE) and the end of the file, and no CONTINUE looks like that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Final, Literal, NamedTuple, get_args

from kestrel.errors import DamageError
from kestrel.fast import Entry
from kestrel.files import OURS, open_file, stamp_of
from kestrel.v2.codec import PLAIN, Operation, decode, whole_size
from kestrel.v2.format import ADD_XID, CONTINUE, LAYOUTS, REMOVE_TENTATIVE, STATE_DUMP
from sej.checks import COUNT, DISK, PATH, one_of, optional, require
from sej.system.disk import OS, Disk, File
from sej.system.paths import absolute_path

Dialect = Literal["auto", "classic", "2.4"]
"""What opcode 8 means: look; the document's STATE_DUMP; the CONTINUE of Kestrel 1.3 and 2.1 to 2.4.8."""

_BLOCK: Final = 1 << 18
_DUMP_HEAD: Final = 1 + STATE_DUMP.head.size
_HEAD: Final = 1 + max(layout.head.size for layout in LAYOUTS.values())
"""All of an operation but its data."""

DIALECT: Final = one_of(get_args(Dialect))
"""What an argument ``dialect`` may be."""


def read_journal(
    path: str | os.PathLike[str],
    *,
    dialect: Dialect = "auto",
    start: int = 0,
    end: int | None = None,
    disk: Disk = OS,
) -> Iterator[Operation]:
    """The operations of one journal file, one after another.

    Args:
        path: the file.
        dialect: what opcode 8 means.
        start: the position to begin at, where an operation begins.
        end: where to stop; None: at the end that the file has now.
        disk: the seam.

    Yields:
        Each operation, until the end or the first damage.

    Raises:
        DamageError: the bytes at its position are not an operation, or the file ends inside one; everything before
            was yielded.
        MissingError: the file does not exist.
    """
    require(
        path=(path, PATH),
        dialect=(dialect, DIALECT),
        start=(start, COUNT),
        end=(end, optional(COUNT)),
        disk=(disk, DISK),
    )
    return _operations(absolute_path(path), dialect, start, end, disk)


def _operations(
    path: str | os.PathLike[str], dialect: Dialect, start: int, end: int | None, disk: Disk
) -> Iterator[Operation]:
    with open_file(path, disk) as file:
        yield from read_operations(file, dialect=dialect, start=start, end=end)


def read_operations(
    file: File,
    *,
    dialect: Dialect = "auto",
    start: int = 0,
    end: int | None = None,
) -> Iterator[Operation]:
    """As :func:`read_journal`, from an open file that stays open."""
    for batch in read_batches(file, dialect=dialect, start=start, end=end):
        yield from batch


def read_batches(
    file: File, *, dialect: Dialect = "auto", start: int = 0, end: int | None = None
) -> Iterator[list[Operation]]:
    """As :func:`read_operations`, many at a time. A state dump is the last one of its batch."""
    end = file.status().size if end is None else end
    # base: where the block begins in the file; at: where in it the next operation begins
    base, block, at = start, b"", 0
    while (position := base + at) < end:
        if len(block) - at < min(_HEAD, end - position):
            base, block, at = position, _read(file, max(_BLOCK, _HEAD), position, end), 0
        before = at
        found, at = PLAIN.decode(block, base, at)
        if found:
            yield found
        position = base + at
        if at > before and (position == end or len(block) - at < _HEAD):
            continue
        try:
            dump = dialect == "classic" or (
                dialect == "auto" and block[at] == CONTINUE and _is_dump(file, position, end)
            )
            operation = decode(block, at, position, dump=dump)
            if operation is None:
                size = _size(block[at : at + _HEAD], position, end, dump)
                base, block, at = position, _read(file, max(size, _BLOCK), position, end), 0
                operation = decode(block, 0, position, dump=dump)
        except DamageError as error:
            raise DamageError(error.reason, path=file.path, position=position) from None
        assert operation is not None
        yield [operation]
        at += operation.size


def _read(file: File, size: int, position: int, end: int) -> bytes:
    """So many bytes from position on, or as many as there are up to the end."""
    due = min(size, end - position)
    data = file.read(due, position)
    if len(data) < due:
        raise DamageError(
            f"the file became shorter than {end} bytes while it was read; read it again",
            path=file.path,
            position=position,
        )
    return data


def _size(head: bytes, position: int, end: int, dump: bool) -> int:
    """How many bytes the operation at position takes, its size compared with what the file has."""
    size = whole_size(head, 0, position, dump=dump)
    left = end - position
    if size is None or size > left:
        name = (STATE_DUMP if dump else LAYOUTS[head[0]]).name
        due = "more bytes" if size is None else f"{size} bytes"
        raise DamageError(
            f"{name} is cut short: expected {due}, {left} are left in the file; a process died while writing it, or the"
            " size is wrong; open the queue, which copies the rest to kept/ and continues before it",
            position=position,
        )
    return size


def _is_dump(file: File, position: int, end: int) -> bool:
    """Whether the opcode 8 at position begins a STATE_DUMP, which reaches to the end of the file."""
    dump = decode(file.read(_DUMP_HEAD, position), 0, position, dump=True)
    if dump is None or dump.count is None:
        return False
    at = position + _DUMP_HEAD
    for _ in range(max(dump.count, 0)):
        head = file.read(_HEAD, at)
        if not head or head[0] != ADD_XID:
            return False
        try:
            size = whole_size(head, 0, at)
        except DamageError:
            return False
        if size is None or at + size >= end or file.read(1, at + size) != bytes((REMOVE_TENTATIVE,)):
            return False
        at += size + 1
    return dump.count >= 0 and at == end


class Piece(Entry):
    """One file of a journal; size counts what is good of it. Its path changes when it is rotated.

    Attributes:
        path: the file.
        stamp: the number in its name; None for the current file.
    """

    def __init__(self, path: str, stamp: int | None, size: int = 0) -> None:
        super().__init__(size)
        self.path = path
        self.stamp = stamp


class Listing(NamedTuple):
    """The files of one queue in a directory.

    Attributes:
        pieces: the files of the journal, in the order of replay.
        dead: rotated files that a pack replaces, and empty packs.
        temporary: files that a process left when it died while writing them.
    """

    pieces: list[Piece]
    dead: list[str]
    temporary: list[str]


def list_parts(files: Mapping[str, int], name: str) -> Listing:
    """Look which files are the journal of a queue.

    Args:
        files: the paths of the queue's files, and their sizes.
        name: the queue.
    """
    rotated, packs, current, dead, temporary = [], [], [], [], []
    for path, size in files.items():
        rest = os.path.basename(path)[len(name) :]
        if not rest:
            current.append(Piece(path, None, size))
        elif rest.startswith("~~"):
            if rest not in OURS:
                temporary.append(path)
        elif (stamp := stamp_of(rest[1:])) is not None:
            rotated.append(Piece(path, stamp, size))
        elif (stamp := stamp_of(rest[1:].removesuffix(".pack"))) is not None:
            if size:
                packs.append(Piece(path, stamp, size))
            else:
                dead.append(path)
    pieces = sorted(rotated, key=_stamp)
    if packs:
        pack = max(packs, key=_stamp)
        dead.extend(piece.path for piece in [*pieces, *packs] if piece is not pack and _stamp(piece) <= _stamp(pack))
        pieces = [pack, *(piece for piece in pieces if _stamp(piece) > _stamp(pack))]
    return Listing(pieces + current, dead, temporary)


def _stamp(piece: Piece) -> int:
    return piece.stamp or 0
