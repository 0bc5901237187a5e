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
from kestrel.reading import Format, Reading
from kestrel.v2.format import ADD_XID, CONTINUE, LAYOUTS, PLAIN, REMOVE_TENTATIVE, STATE_DUMP, Operation, decode
from sej.checks import COUNT, DISK, PATH, one_of, optional, require
from sej.system.disk import OS, Disk, File
from sej.system.paths import absolute_path

Dialect = Literal["auto", "classic", "2.4"]
"""What opcode 8 means: look; the document's STATE_DUMP; the CONTINUE of Kestrel 1.3 and 2.1 to 2.4.8."""

_HEAD: Final = max(layout.head.size for layout in LAYOUTS.values())
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
    where = absolute_path(path)

    def operations() -> Iterator[Operation]:
        with open_file(where, disk) as file:
            yield from reading(file, dialect, start, end).records()

    return operations()


def reading(file: File, dialect: Dialect = "auto", start: int = 0, end: int | None = None) -> Reading:
    """A pass over the operations of an open file. A state dump is the last one of its batch."""
    end = file.status().size if end is None else end

    def operation(data: bytes, at: int, position: int) -> tuple[Operation | None, int | None]:
        dump = dialect == "classic" or (dialect == "auto" and data[at] == CONTINUE and _is_dump(file, position, end))
        return decode(data, at, position, dump=dump)

    return Reading(file, Format(PLAIN, Operation, operation), start, end)


def _is_dump(file: File, position: int, end: int) -> bool:
    """Whether the opcode 8 at position begins a STATE_DUMP, which reaches to the end of the file."""
    head_size = STATE_DUMP.head.size
    dump, _ = decode(file.read(head_size, position), 0, position, dump=True)
    if dump is None or dump.count is None:
        return False
    at = position + head_size
    for _ in range(max(dump.count, 0)):
        head = file.read(_HEAD, at)
        if not head or head[0] != ADD_XID:
            return False
        try:
            _, size = decode(head, 0, at)
        except DamageError:
            return False
        if size is None or at + size >= end or file.read(1, at + size) != bytes((REMOVE_TENTATIVE,)):
            return False
        at += size + 1
    return dump.count >= 0 and at == end


class Listing(NamedTuple):
    """The files of one queue in a directory.

    Attributes:
        pieces: the files of the journal, in the order of replay.
        dead: rotated files that a pack replaces, and empty packs.
        temporary: files that a process left when it died while writing them.
    """

    pieces: list[Entry]
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
            current.append(Entry(path, None, size))
        elif rest.startswith("~~"):
            if rest not in OURS:
                temporary.append(path)
        elif (stamp := stamp_of(rest[1:])) is not None:
            rotated.append(Entry(path, stamp, size))
        elif (stamp := stamp_of(rest[1:].removesuffix(".pack"))) is not None:
            if size:
                packs.append(Entry(path, stamp, size))
            else:
                dead.append(path)
    pieces = sorted(rotated, key=_stamp)
    if packs:
        pack = max(packs, key=_stamp)
        dead.extend(piece.path for piece in [*pieces, *packs] if piece is not pack and _stamp(piece) <= _stamp(pack))
        pieces = [pack, *(piece for piece in pieces if _stamp(piece) > _stamp(pack))]
    return Listing(pieces + current, dead, temporary)


def _stamp(piece: Entry) -> int:
    return piece.stamp or 0
