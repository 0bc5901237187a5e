"""A queue's files, for the one process that holds its lock: append, rotate, replace.

Relies on the disk seam: ``rename``, ``unlink`` and a new file's name are durable when they return. Promises:

- Every operation is one write(2) at the end of the current file; a killed process loses none that returned.
- Whatever replaces files is written whole under a temporary name, synced, and takes effect by one rename. After a
  crash at any point a replay finds the state before or after, never both and never neither. The original lets the old
  current file stand beside the pack that replaces it, and then has every item twice; here it is rotated first, so that
  the pack's own name kills it. The original makes an empty pack first; here there is never one.
- Bytes that cannot be read are copied to ``kept/`` before the file that held them is cut, and no other file is.
- After a failed write or sync every call raises :class:`FailedError`; so does every call after an operation that a
  signal's handler cut short, because files and memory may differ then.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from time import time_ns as _time_ns
from typing import Final

from kestrel.errors import BadNameError, Damage, DamageError
from kestrel.files import KEPT, check_name, durable_path, join, keep_tail, take_lock
from kestrel.fuse import Fuse
from kestrel.magic import MAGIC_SIZE, READER_MAGIC, WRITER_MAGIC
from kestrel.renewing import Renewing
from kestrel.syncing import Sync, Syncer
from kestrel.v2.listing import Listing, list_parts
from sej.errors import ClosedError, LockLostError
from sej.system.disk import Disk, File

__all__ = ["Piece", "Storage"]

_CHECK_NS: Final = 100_000_000
"""So often the lock is looked after. A clock that jumps, in whichever way, only makes that sooner."""


@dataclass(slots=True, eq=False)
class Piece:
    """One file of the journal; size counts what is good of it. Its path changes when it is rotated."""

    path: str
    stamp: int | None
    size: int


class Storage:
    """The files of one queue.

    Attributes:
        pieces: the files in the order of replay; the last one is the current file.
        current: that one; only once it is ready.
        damage: what was cut away when the queue was opened.
        fuse: refuses what must not be written. ``append`` leaves it not live; who called it says ``fuse.live = True``
            when memory is as the file is.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        name: str,
        *,
        sync: Sync,
        sync_soon: Callable[[], None],
        disk: Disk,
        now_ms: Callable[[], int],
    ) -> None:
        self.directory = os.fspath(directory)
        self.name = check_name(name)
        if name == KEPT:  # its journal would stand where every queue of the directory keeps what it must not lose
            raise BadNameError(f"a queue cannot be named {KEPT!r}, as our folder is", path=self.directory)
        self.damage: list[Damage] = []
        self.current: Piece
        self._disk = disk
        self._now_ms = now_ms
        self.fuse = Fuse(join(directory, name))
        self._file: File | None = None
        self._write: Callable[[bytes], int]
        self._checked = 0
        self._synced_size = 0
        self._syncer = Syncer(sync, sync_soon)
        self._active = self._syncer.active
        self._renewing = Renewing(durable_path(directory, name), disk)
        disk.mkdir(directory)
        self._lock = take_lock(directory, name, disk)
        try:
            listing = list_parts(directory, name, disk)
            self._refuse_kestrel_3(listing)
            self.pieces = self._settle(listing)
        except BaseException:
            self._lock.release()
            raise

    def _refuse_kestrel_3(self, listing: Listing) -> None:
        """Its writer files are named as rotated files are, and would be damage that is cut from the first byte on."""
        for part in listing.parts:
            file = self._disk.open(part.path, "read")
            try:
                magic = file.read(MAGIC_SIZE, 0)
            finally:
                file.close()
            if magic in (READER_MAGIC, WRITER_MAGIC):
                raise DamageError(
                    "this is a file of Kestrel 3: open the queue by kestrel.segmented, or as libkestrel's; nothing was"
                    " changed",
                    path=part.path,
                    position=0,
                )

    def _settle(self, listing: Listing) -> list[Piece]:
        """Finish what a dead process began: remove what a pack replaced, give the pack its name."""
        for path in (*listing.dead, *listing.temporary):
            self._disk.unlink(path)
        pieces = []
        for part in listing.parts:
            path = part.path
            if part.packed:
                path = path.removesuffix(".pack")
                self._disk.rename(part.path, path)
            status = self._disk.status(path)
            pieces.append(Piece(path, part.stamp, 0 if status is None else status.size))
        return pieces

    def renew(self) -> None:
        """Before the replay: make durable what earlier processes left. Left out by who changes nothing, and by a pack.

        Raises:
            OSError: a write or a sync failed.
        """
        self._renewing.renew([piece.path for piece in self.pieces])

    def ready(self, damage: list[Damage]) -> None:
        """After the replay: cut what is damaged, each in its own file, and open the current file.

        Args:
            damage: what the replay could not read. The sizes of pieces are by now where each one's good part ends.
        """
        if damage:
            self._renewing.forget()
        for place in damage:
            keep_tail(self._disk, place.path, place.position, self._now_ms())
            file = self._disk.open(place.path, "edit")
            try:
                file.truncate(place.position)
                file.sync()
            finally:
                file.close()
        self.damage = damage
        if self.pieces and self.pieces[-1].stamp is None:
            status = self._disk.status(self.pieces[-1].path)
            if status is not None and status.size > self.pieces[-1].size:
                # It ends with a state dump, behind which a replay reads nothing.
                self._rename_current()
        self._open_current()
        self.fuse.live = True

    @property
    def size(self) -> int:
        """The bytes of the current file."""
        return self.current.size

    @property
    def total_size(self) -> int:
        """The bytes of all files."""
        pieces = self.pieces
        return pieces[0].size if len(pieces) == 1 else sum(piece.size for piece in pieces)

    @property
    def failed(self) -> bool:
        """Whether nothing can be written any more."""
        return not self.fuse.live

    def append(self, data: bytes, tick: int | None = None, *, midway: bool = False) -> None:
        """Write operations at the end of the current file.

        Args:
            data: the operations.
            tick: ``time.time_ns()``, from who has just asked for it.
            midway: this goes on with what the last append began.

        Raises:
            FailedError: a write, a sync or the lock failed, now or before, or an operation was interrupted.
            ShutError: the storage was closed, or belongs to the parent process.
        """
        fuse = self.fuse
        if not fuse.live and not midway:
            fuse.refuse()
        fuse.live = False
        try:
            tick = tick or _time_ns()
            if not 0 <= tick - self._checked < _CHECK_NS:
                self._lock.check()
                self._checked = tick
            size = len(data)
            done = self._write(data)
            if done != size:
                self._write_on(data, done)
            self.current.size += size
            if self._active:
                self._by_policy()
        except (OSError, LockLostError, ClosedError) as error:
            fuse.blow(error)

    def _write_on(self, data: bytes, done: int) -> None:
        assert self._file is not None
        self._file.write(data[done:])

    def _by_policy(self) -> None:
        if self._syncer.always:
            self._force()
        else:
            self._syncer.wrote()

    def sync(self) -> None:
        """Force what was written to the medium. Raises as :meth:`append`."""
        if not self.fuse.live:
            self.fuse.refuse()
        try:
            self._force()
        except (OSError, LockLostError, ClosedError) as error:
            self.fuse.blow(error)

    def _force(self) -> None:
        if self._file is not None and self._synced_size != self.current.size:
            self._lock.check()
            size = self.current.size
            self._file.sync()
            self._synced_size = size
            self._renewing.keep(self._file, size)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """While files are replaced: everything is synced before, and what fails blows the fuse."""
        self.sync()
        self.fuse.live = False
        try:
            self._lock.check()
            yield
        except (OSError, LockLostError, ClosedError) as error:
            self.fuse.blow(error)
        self.fuse.live = True

    def rotate(self) -> Piece:
        """Give the current file its number and begin a new one; returns the rotated piece. Raises as :meth:`append`."""
        with self._changing():
            self._close_current()
            self._rename_current()
            self._open_current()
        return self.pieces[-2]

    def adopt(self, path: str) -> None:
        """Make a file of operations, whole and synced, the newest part of the journal. Raises as :meth:`append`."""
        with self._changing():
            self._close_current()
            self._rename_current()
            stamp = max(self._now_ms(), (self.pieces[-1].stamp or 0) + 1)
            target = join(self.directory, f"{self.name}.{stamp}")
            self._disk.rename(path, target)
            status = self._disk.status(target)
            self.pieces.append(Piece(target, stamp, 0 if status is None else status.size))
            self._open_current()

    def replace(self, last: Piece, content: Iterable[bytes]) -> None:
        """Put content in the place of all pieces up to last, a rotated one. Raises as :meth:`append`."""
        with self._changing():
            self._swap(self._write_temporary(content), last)
            self._disk.rename(f"{last.path}.pack", last.path)

    def rewrite(self, content: Iterable[bytes]) -> None:
        """Put content in the place of everything. Raises as :meth:`append`."""
        with self._changing():
            temporary = self._write_temporary(content)
            self._close_current()
            self._rename_current()
            last = self.pieces[-1]
            self._swap(temporary, last)
            # The pack becomes the current file by one more rename; until then it is read as what it is, a pack.
            path = join(self.directory, self.name)
            self._disk.rename(f"{last.path}.pack", path)
            self.pieces[0].path, self.pieces[0].stamp = path, None
            self._open_current()
            assert self._file is not None
            self._renewing.fresh(self._file, self.current.size)

    def _write_temporary(self, content: Iterable[bytes]) -> str:
        path = join(self.directory, f"{self.name}~~{self._now_ms()}")
        file = self._disk.open(path, "temp")
        try:
            for block in content:
                file.write(block)
            file.sync()
        finally:
            file.close()
        return path

    def _swap(self, temporary: str, last: Piece) -> None:
        """By the rename in here the content takes effect; what it replaces goes after it."""
        self._lock.check()
        pack = f"{last.path}.pack"
        self._disk.rename(temporary, pack)
        index = self.pieces.index(last)
        for piece in self.pieces[: index + 1]:
            self._disk.unlink(piece.path)
        status = self._disk.status(pack)
        self.pieces[: index + 1] = [Piece(last.path, last.stamp, 0 if status is None else status.size)]

    def _rename_current(self) -> None:
        piece = self.pieces[-1]
        before = max((other.stamp or 0 for other in self.pieces), default=0)
        piece.stamp = max(self._now_ms(), before + 1)
        path = join(self.directory, f"{self.name}.{piece.stamp}")
        self._disk.rename(piece.path, path)
        piece.path = path

    def _open_current(self) -> None:
        path = join(self.directory, self.name)
        self._file = self._disk.open(path, "append")
        self._write = self._file.writer()
        if not self.pieces or self.pieces[-1].stamp is not None:
            self.pieces.append(Piece(path, None, 0))
        self.current = self.pieces[-1]
        self._synced_size = self.current.size

    def _close_current(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def stop(self) -> None:
        """End the sync thread; the caller must not hold the lock that it takes."""
        self._syncer.stop()

    def erase(self) -> None:
        """Remove the queue's files and let go of the lock. A crash leaves all of it or nothing: it is emptied first."""
        try:
            self.rewrite(())
            self._close_current()
            self._disk.unlink(self.pieces[-1].path)
            self._renewing.forget()
        finally:
            self.close()

    def close(self) -> None:
        """Sync, close and let go of the lock; a second time does nothing."""
        fuse = self.fuse
        fuse.live, due = False, fuse.blown is None and not fuse.shut
        try:
            if due:
                self._force()
                self._renewing.settle()
        except (OSError, LockLostError, ClosedError) as error:
            fuse.blow(error)
        finally:
            fuse.shut = True
            with contextlib.suppress(OSError):
                self._close_current()
            self._lock.release()
