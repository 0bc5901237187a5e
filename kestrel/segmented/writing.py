"""The writer files of a libkestrel queue, for the one process that holds its lock: append, rotate, retire.

Promises: every put is one write(2) at the end of the last file, so a killed process loses none that returned; a file's
length is always exact, because nothing is preallocated; where an original died and left zeros behind its records, or
bytes that cannot be read, the file is cut to its records when the queue is opened, and what was cut is kept in
``kept/`` unless it is zeros alone. After a failed write every call raises.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kestrel.errors import Damage, DamageError
from kestrel.files import durable_path, join, keep_tail, take_lock
from kestrel.fuse import Fuse
from kestrel.renewing import Renewing
from kestrel.segmented.files import Listing, Reading, check_magic
from kestrel.segmented.format import MAGIC_SIZE, WRITER_MAGIC
from kestrel.syncing import Sync, Syncer
from sej.errors import ClosedError, LockLostError
from sej.system.disk import Disk, File

__all__ = ["WriterFile", "WriterFiles"]

_CHECK_S: Final = 0.1
_BLOCK: Final = 1 << 18


@dataclass(slots=True, eq=False)
class WriterFile:
    """One writer file; first_id and last_id are 0 while it holds no item."""

    path: str
    stamp: int
    size: int
    first_id: int = 0
    last_id: int = 0


class WriterFiles:
    """All writer files of one queue.

    Attributes:
        files: by the first id in each; the last one is written to.
        tail_id: the last id that was given.
        damage: what was unreadable when they were opened.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        name: str,
        *,
        journal_bytes: int,
        archive_to: str | os.PathLike[str] | None,
        sync: Sync,
        sync_soon: Callable[[], None],
        disk: Disk,
        now_ms: Callable[[], int],
    ) -> None:
        self.directory = os.fspath(directory)
        self.name = name
        self.files: list[WriterFile] = []
        self.tail_id = 0
        self.damage: list[Damage] = []
        self.fuse = Fuse(join(directory, name))
        self._journal_bytes = journal_bytes
        self._archive = None if archive_to is None else os.fspath(archive_to)
        self._disk = disk
        self._now_ms = now_ms
        self._file: File | None = None
        self._checked = 0.0
        self._unsynced = False
        self._last_stamp = 0
        self._syncer = Syncer(sync, sync_soon)
        self._renewing = Renewing(durable_path(directory, name), disk)
        disk.mkdir(directory)
        if self._archive is not None:
            disk.mkdir(self._archive)
            here, there = disk.status(directory), disk.status(self._archive)
            if here is not None and there is not None and here.device != there.device:
                raise ValueError(
                    f"archive_to ({self._archive}) must be on the file system of the queue, to rename into it"
                )
        self._lock = take_lock(directory, name, disk)

    def open(self, listing: Listing) -> None:
        """Read all files, cut each to its good records, remove empty ones, and open the last."""
        for path in listing.temporary:
            self._disk.unlink(path)
        self._renewing.renew([path for _, path in listing.writers])
        for stamp, path in listing.writers:
            self._last_stamp = max(self._last_stamp, stamp)
            found = self._read(WriterFile(path, stamp, 0))
            if found is not None:
                self.files.append(found)
        self.files.sort(key=lambda file: (file.first_id, file.stamp))
        self.tail_id = max((file.last_id for file in self.files), default=0)
        if self.files:
            self._file = self._disk.open(self.files[-1].path, "append")
        else:
            self._begin_file()
        self.fuse.live = True

    def _read(self, found: WriterFile) -> WriterFile | None:
        """One file, read and cut; None where it is not to be used."""
        file = self._disk.open(found.path, "read")
        size = file.status().size
        try:
            if size:
                check_magic(file, WRITER_MAGIC)
            reading = Reading(file, end=size)
            reason = "records stand behind the zero byte that ends the file"
            try:
                for item in reading.items():
                    found.first_id = found.first_id or item.id
                    found.last_id = max(found.last_id, item.id)
            except DamageError as error:
                reason = error.reason
            found.size = min(reading.position, size)
            keep = _anything(file, found.size)
        except DamageError as error:
            self.damage.append(Damage(found.path, 0, error.reason))
            return None
        finally:
            file.close()
        if keep:
            self.damage.append(Damage(found.path, found.size, reason))
            keep_tail(self._disk, found.path, found.size, self._now_ms())
        if not found.first_id:
            if found.size > MAGIC_SIZE:
                self.damage.append(Damage(found.path, 0, "no record in it is an item with an id from 1 on"))
                keep_tail(self._disk, found.path, 0, self._now_ms())
            self._disk.unlink(found.path)
            return None
        if found.size < size:
            self._renewing.forget()
            edited = self._disk.open(found.path, "edit")
            try:
                edited.truncate(found.size)
                edited.sync()
            finally:
                edited.close()
        return found

    def append(self, records: Sequence[bytes]) -> None:
        """Write items with the next ids, one write to a file; the caller says ``settled`` when he knows of them.

        Args:
            records: one PUT each.

        Raises:
            FailedError: a write, a sync or the lock failed, now or before, or an operation was interrupted.
            ShutError: the queue was closed, or belongs to the parent process.
        """
        self.check()
        assert self._file is not None
        self.fuse.live = False
        try:
            done = 0
            while done < len(records):
                current, stop = self.files[-1], done
                size = current.size
                while stop < len(records) and size + len(records[stop]) <= self._journal_bytes:
                    size += len(records[stop])
                    stop += 1
                if stop == done:
                    self._rotate()
                    continue
                self._file.write(b"".join(records[done:stop]))
                self._unsynced = True
                current.size = size
                current.first_id = current.first_id or self.tail_id + 1
                current.last_id = self.tail_id = self.tail_id + stop - done
                done = stop
        except OSError as error:
            self.fuse.blow(error)

    def settled(self) -> None:
        """After ``append``: memory is as the files are; sync by the policy."""
        self.fuse.live = True
        self.touched()

    def touched(self) -> None:
        """Something was written, here or in a reader file: sync by the policy."""
        if self._syncer.active:
            self._syncer.wrote()

    def sync(self) -> None:
        """Force what was written to the medium. Raises as :meth:`append`."""
        if not self.fuse.live:
            self.fuse.refuse()
        self._force()

    def _force(self) -> None:
        if self._unsynced and self._file is not None:
            try:
                self._lock.check()
                self._sync_file(self._file)
            except (OSError, LockLostError, ClosedError) as error:
                self.fuse.blow(error)

    def retire(self, lowest_head: int) -> int:
        """Remove or archive the files whose items every reader has confirmed; returns how many.

        Args:
            lowest_head: the lowest head of all readers.
        """
        passed = 0
        while passed + 1 < len(self.files) and self.files[passed].last_id <= lowest_head:
            passed += 1
        try:
            for file in self.files[:passed]:
                if self._archive is None:
                    self._disk.unlink(file.path)
                else:
                    self._disk.rename(file.path, join(self._archive, f"archive~{self.name}.{file.stamp}"))
        except OSError as error:
            self.fuse.blow(error)
        del self.files[:passed]
        return passed

    def _rotate(self) -> None:
        assert self._file is not None
        self._sync_file(self._file)
        self._file.close()
        self._begin_file()

    def _sync_file(self, file: File) -> None:
        size = self.files[-1].size
        file.sync()
        self._unsynced = False
        self._renewing.keep(file, size)

    def _begin_file(self) -> None:
        stamp = self._last_stamp = max(self._now_ms(), self._last_stamp + 1)
        path = join(self.directory, f"{self.name}.{stamp}")
        self._file = self._disk.open(path, "new")
        self._file.write(WRITER_MAGIC)
        self.files.append(WriterFile(path, stamp, MAGIC_SIZE))
        self._unsynced = True

    def stop(self) -> None:
        """End the sync thread; the caller must not hold the lock that it takes."""
        self._syncer.stop()

    def close(self) -> None:
        """Sync, close and let go of the lock; a second time does nothing."""
        fuse = self.fuse
        fuse.live, due = False, fuse.blown is None and not fuse.shut
        try:
            if due:
                self._force()
                self._renewing.settle()
        finally:
            fuse.shut = True
            file, self._file = self._file, None
            if file is not None:
                file.close()
            self._lock.release()

    def erase(self) -> None:
        """Remove all writer files, oldest first, so that after a crash in between no confirmed item is back."""
        try:
            for file in self.files:
                self._disk.unlink(file.path)
            self._renewing.forget()
        except OSError as error:
            self.fuse.blow(error)

    def check(self) -> None:
        """Make sure that there is still writing here, for items and commits. Raises as :meth:`append`."""
        if not self.fuse.live:
            self.fuse.refuse()
        now = time.monotonic()
        if now - self._checked > _CHECK_S:
            try:
                self._lock.check()
            except (OSError, LockLostError, ClosedError) as error:
                self.fuse.blow(error)
            self._checked = now

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files)


def _anything(file: File, position: int) -> bool:
    """Whether anything but zeros stands behind position."""
    while block := file.read(_BLOCK, position):
        if block.strip(b"\0"):
            return True
        position += len(block)
    return False
