"""Which files are a queue's journal, reading them in bounded memory, and, with the lock held, writing them.

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

Writing relies on the disk seam: ``rename``, ``unlink`` and a new file's name are durable when they return. It relies on
``tail`` for appending, syncing and the lock. Promises:

- Whatever replaces files is written whole under a temporary name, synced, and takes effect by one rename. After a
  crash at any point a replay finds the state before or after, never both and never neither. The original leaves the old
  current file next to the pack that replaces it, and then has every item twice. Here it is rotated first, so that the
  pack's name marks it as dead. The original creates an empty pack first; here there is never one.
- Bytes that cannot be read are copied to ``kept/`` before the file that held them is cut, and no other file is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, get_args

from kestrel.errors import BadNameError, Damage, DamageError
from kestrel.fast import Entry, Fuse
from kestrel.files import KEPT, MAGIC_SIZE, OURS, READER_MAGIC, WRITER_MAGIC, Place, open_file, stamp_of
from kestrel.reading import Format, Pinned, Reading, Source, opened
from kestrel.tail import Sync, Tail
from kestrel.v2.format import ADD_XID, CONTINUE, LAYOUTS, PLAIN, REMOVE_TENTATIVE, STATE_DUMP, Operation, decode
from sej.checks import COUNT, one_of, optional, require
from sej.system.disk import OS, Disk, File, absolute_path
from sej.system.logs import WARNING, record

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
    require(path=path, disk=disk, dialect=(dialect, DIALECT), start=(start, COUNT), end=(end, optional(COUNT)))
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


class Pieces:
    """The files of a journal that are read: those of an open queue, or pinned ones.

    Attributes:
        pieces: the files in the order of replay; of an open queue, the last one is the current file.
        fuse: the lifecycle of the queue.
        dialect: what opcode 8 means.
        source: what opens them.
    """

    def __init__(self, pieces: list[Entry], fuse: Fuse, dialect: Dialect, source: Source) -> None:
        self.pieces, self.fuse, self.dialect, self.source = pieces, fuse, dialect, source

    def following(self, piece: Any) -> tuple[Entry, int] | None:
        """The next piece, all of it."""
        at = self.pieces.index(piece) + 1
        return (self.pieces[at], 0) if at < len(self.pieces) else None

    def reading(self, file: File, start: int, end: int) -> Reading:
        """The operations in a part of a piece."""
        return reading(file, self.dialect, start, end)


def refuse_others(journal: Pieces) -> None:
    """Files of Kestrel 3 and of other programs may have the names of a queue; read as Kestrel 2's they are damage.

    Raises:
        DamageError: one of the files is such a file.
    """
    for piece in journal.pieces:
        with opened(journal.source, piece.path) as file:
            magic = file.read(MAGIC_SIZE, 0)
        try:
            if magic in (READER_MAGIC, WRITER_MAGIC):
                raise DamageError(
                    "this is a file of Kestrel 3, expected one of Kestrel 2; open the queue with kestrel.segmented or"
                    " with the option for libkestrel; nothing was changed"
                )
            decode(magic)
        except DamageError as error:
            raise DamageError(error.reason, path=piece.path, position=0) from None


class Storage(Pieces):
    """The files of one queue that is open.

    Attributes:
        current: the current file; only once it is ready.
        place: where the queue is.
        tail: appends to the current file.
    """

    def __init__(self, place: Place, dialect: Dialect = "auto", sync: Sync = "never") -> None:
        """Take the lock; the arguments are those of :class:`~kestrel.tail.Tail`."""
        if place.name == KEPT:  # its journal would have the name of the folder that keeps damaged bytes of every queue
            raise BadNameError(
                f"a queue cannot be named {KEPT!r}: the directory of damaged bytes has this name", path=place.directory
            )
        self.current: Entry
        self.place, self._disk = place, place.disk
        self.tail = Tail(place, sync)
        super().__init__([], self.tail.fuse, dialect, place)

    def open(self) -> None:
        """List the files, and finish or remove what a process that died left."""
        listing = list_parts(self.place.files(), self.place.name)
        self.pieces += listing.pieces
        refuse_others(self)
        for path in (*listing.dead, *listing.temporary):
            self._disk.unlink(path)
        for piece in self.pieces:
            if piece.path.endswith(".pack"):
                final = piece.path.removesuffix(".pack")
                self._disk.rename(piece.path, final)
                piece.path = final

    def ready(self, damage: list[Damage]) -> None:
        """After the replay: cut what is damaged, each in its own file, and open the current file.

        Args:
            damage: the parts that the replay could not read. The size of each piece is the end of its good part.
        """
        if damage:
            self.tail.renewing.forget()
        for one in damage:
            self.place.keep_tail(one.path, one.position)
            self.place.cut(one.path, one.position)
            record(__name__, WARNING, "%s: cut damage at %d, kept a copy", one.path, one.position)
        last = self.pieces[-1] if self.pieces else None
        if last is not None and last.stamp is None and self._size(last.path) > last.size:
            self._rename_current()  # the file ends with a state dump, and a replay reads nothing after one
        self._open_current()
        self.fuse.live = True

    @property
    def total_size(self) -> int:
        """The bytes of all files."""
        pieces = self.pieces
        return pieces[0].size if len(pieces) == 1 else sum(piece.size for piece in pieces)

    def rotate(self) -> Entry:
        """Give the current file its number and start a new one; returns the old one. Raises as ``Appender.append``."""
        with self.tail.replacing():
            self.tail.output.close()
            self._rename_current()
            self._open_current()
        return self.pieces[-2]

    def after_current(self) -> Entry:
        """The place of a file whose items come after all others. Raises as ``Appender.append``."""
        if self.current.size:
            self.rotate()
        return self._stamped()

    def adopt(self, path: str, target: Entry) -> None:
        """Make a whole, synced file of operations the newest part of the journal. Raises as ``Appender.append``."""
        with self.tail.replacing():
            self._disk.rename(path, target.path)
            target.size = self._size(target.path)
            self.pieces.insert(-1, target)

    def replace(self, last: Entry, content: Iterable[bytes]) -> None:
        """Put content in the place of all pieces up to last, a rotated one. Raises as ``Appender.append``."""
        with self.tail.replacing():
            self._swap(self._write_temporary(content), last)
            self._disk.rename(f"{last.path}.pack", last.path)

    def rewrite(self, content: Iterable[bytes]) -> None:
        """Put content in the place of everything. Raises as ``Appender.append``."""
        with self.tail.replacing():
            temporary = self._write_temporary(content)
            self.tail.output.close()
            self._rename_current()
            last = self.pieces[-1]
            self._swap(temporary, last)
            # The pack becomes the current file by one more rename; until then it is read as what it is, a pack.
            path = self.place.path()
            self._disk.rename(f"{last.path}.pack", path)
            self.pieces[0].path, self.pieces[0].stamp = path, None
            self._open_current()
            assert self.tail.output.file is not None
            self.tail.renewing.fresh(self.tail.output.file, self.current.size)

    def _write_temporary(self, content: Iterable[bytes]) -> str:
        path = self.place.temporary()
        with self._disk.open(path, "temp") as file:
            for block in content:
                file.write(block)
            file.sync()
        return path

    def _swap(self, temporary: str, last: Entry) -> None:
        """The rename in here makes the content take effect; what it replaces is removed after it."""
        self.tail.lock.check()
        pack = f"{last.path}.pack"
        self._disk.rename(temporary, pack)
        index = self.pieces.index(last)
        for piece in self.pieces[: index + 1]:
            self._disk.unlink(piece.path)
        self.pieces[: index + 1] = [Entry(last.path, last.stamp, self._size(pack))]

    def _rename_current(self) -> None:
        piece, rotated = self.pieces[-1], self._stamped()
        self._disk.rename(piece.path, rotated.path)
        piece.path, piece.stamp = rotated.path, rotated.stamp

    def _stamped(self) -> Entry:
        """The name of the next rotated file."""
        stamp = max(self.place.now_ms(), 1 + max((piece.stamp or 0 for piece in self.pieces), default=0))
        return Entry(self.place.path(f".{stamp}"), stamp)

    def _size(self, path: str) -> int:
        status = self._disk.status(path)
        return 0 if status is None else status.size

    def _open_current(self) -> None:
        path = self.place.path()
        if not self.pieces or self.pieces[-1].stamp is not None:
            self.pieces.append(Entry(path, None))
        self.current = self.pieces[-1]
        self.tail.open(path, self.current)

    def erase(self) -> None:
        """Remove the queue's files. A crash leaves all of it or nothing: it is emptied first."""
        self.rewrite(())
        self.tail.output.close()
        self._disk.unlink(self.pieces[-1].path)
        self.tail.renewing.forget()


def pinned_pieces(snapshot: Pinned, dialect: Dialect) -> Pieces:
    """The pieces of a journal that another program may be changing."""
    pieces = list_parts(snapshot.sizes, snapshot.place.name).pieces
    return Pieces(pieces, Fuse(snapshot.place.path()), dialect, snapshot)
