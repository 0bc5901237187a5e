"""A queue's files, for the one process that holds its lock: append, rotate, replace.

Relies on the disk seam: ``rename``, ``unlink`` and a new file's name are durable when they return. Relies on ``tail``
for appending, syncing and the lock. Promises:

- Whatever replaces files is written whole under a temporary name, synced, and takes effect by one rename. After a
  crash at any point a replay finds the state before or after, never both and never neither. The original leaves the old
  current file next to the pack that replaces it, and then has every item twice. Here it is rotated first, so that the
  pack's name marks it as dead. The original creates an empty pack first; here there is never one.
- Bytes that cannot be read are copied to ``kept/`` before the file that held them is cut, and no other file is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kestrel.errors import BadNameError, Damage, DamageError
from kestrel.fast import Entry, Fuse
from kestrel.files import KEPT, MAGIC_SIZE, READER_MAGIC, WRITER_MAGIC, Place
from kestrel.reading import Pinned, Reading, Source, opened
from kestrel.tail import Sync, Tail
from kestrel.v2.format import decode
from kestrel.v2.journal import Dialect, list_parts, reading
from sej.system.disk import File
from sej.system.logs import WARNING, record


class Pieces:
    """The files of a journal that are read: those of an open queue, or pinned ones.

    Attributes:
        all: the files in the order of replay; of an open queue, the last one is the current file.
        fuse: the lifecycle of the queue.
        dialect: what opcode 8 means.
        source: what opens them.
    """

    def __init__(self, pieces: list[Entry], fuse: Fuse, dialect: Dialect, source: Source) -> None:
        self.all, self.fuse, self.dialect, self.source = pieces, fuse, dialect, source

    def following(self, piece: Any) -> tuple[Entry, int] | None:
        """The next piece, all of it."""
        at = self.all.index(piece) + 1
        return (self.all[at], 0) if at < len(self.all) else None

    def reading(self, file: File, start: int, end: int) -> Reading:
        """The operations in a part of a piece."""
        return reading(file, self.dialect, start, end)


def refuse_others(pieces: Pieces) -> None:
    """Files of Kestrel 3 and of other programs may have the names of a queue; read as Kestrel 2's they are damage.

    Raises:
        DamageError: one of the files is such a file.
    """
    for piece in pieces.all:
        with opened(pieces.source, piece.path) as file:
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


class Storage:
    """The files of one queue.

    Attributes:
        pieces: the files in the order of replay; the last one is the current file.
        files: the same, to be read.
        current: that one; only once it is ready.
        place: where the queue is.
        tail: appends to the current file.
        fuse: the lifecycle of the queue.
    """

    def __init__(self, place: Place, dialect: Dialect = "auto", sync: Sync = "never") -> None:
        """Take the lock; the arguments are those of :class:`~kestrel.tail.Tail`."""
        if place.name == KEPT:  # its journal would have the name of the folder that keeps damaged bytes of every queue
            raise BadNameError(
                f"a queue cannot be named {KEPT!r}: the directory of damaged bytes has this name", path=place.directory
            )
        self.current: Entry
        self.pieces: list[Entry] = []
        self.place, self._disk = place, place.disk
        self.tail = Tail(place, sync)
        self.fuse = self.tail.fuse
        self.files = Pieces(self.pieces, self.fuse, dialect, place)

    def open(self) -> None:
        """List the files, and finish or remove what a process that died left."""
        listing = list_parts(self.place.files(), self.place.name)
        self.pieces += listing.pieces
        refuse_others(self.files)
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
        stamp = self._next_stamp()
        return Entry(self.place.path(f".{stamp}"), stamp)

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
        piece = self.pieces[-1]
        piece.stamp = self._next_stamp()
        path = self.place.path(f".{piece.stamp}")
        self._disk.rename(piece.path, path)
        piece.path = path

    def _next_stamp(self) -> int:
        return max(self.place.now_ms(), 1 + max((piece.stamp or 0 for piece in self.pieces), default=0))

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
