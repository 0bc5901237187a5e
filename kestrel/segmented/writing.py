"""The writer files of a libkestrel queue, for the one process that holds its lock: append, rotate, retire.

Relies on ``tail`` for appending, syncing and the lock. Promises: a file's length is always exact, because nothing is
preallocated. If an original died and left zeros after its records, or bytes that cannot be read, the file is cut to its
records when the queue is opened, and the bytes are copied to ``kept/`` first unless they are zeros alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from kestrel.errors import Damage, DamageError
from kestrel.fast import Entry, WriterEnd
from kestrel.files import MAGIC_SIZE, WRITER_MAGIC, Place, join
from kestrel.segmented.files import BEYOND_END, Listing, Scan, after_zeros, scan, settle
from kestrel.segmented.format import PUT_EXPIRING_HEAD
from kestrel.tail import Sync, Tail
from sej.system.paths import absolute_path

_MOST: Final = 1 << 62
LEAST_BYTES: Final = MAGIC_SIZE + PUT_EXPIRING_HEAD.size
"""The smallest file that has room for an item, one without data."""


class WriterFile(Entry):
    """One writer file; first_id and last_id are 0 while it holds no item. scanned: what the opening found in it."""

    def __init__(
        self, path: str, stamp: int, size: int, first_id: int = 0, last_id: int = 0, scanned: Scan | None = None
    ) -> None:
        super().__init__(size, first_id, last_id)
        self.path = path
        self.stamp = stamp
        self.scanned = scanned


class WriterFiles(WriterEnd):
    """All writer files of one queue.

    Attributes:
        tail: the open file at the end.
        fuse: the lifecycle.
        files: by the first id in each; the last one is written to.
        damage: what was unreadable when they were opened.
    """

    def __init__(self, place: Place, journal_bytes: int, archive_to: str | os.PathLike[str] | None, sync: Sync) -> None:
        self.files: list[WriterFile] = []
        self.damage: list[Damage] = []
        self._place, self._disk = place, place.disk
        self._archive = None if archive_to is None else absolute_path(archive_to)
        self._last_stamp = 0
        if self._archive is not None:
            for path in (place.directory, self._archive):
                self._disk.mkdir(path, parents=True)
            here, there = self._disk.status(place.directory), self._disk.status(self._archive)
            if here is not None and there is not None and here.device != there.device:
                raise ValueError(
                    f"archive_to ({self._archive}) must be on the file system of the queue, to rename into it"
                )
        self.tail = Tail(place, sync)
        super().__init__(self.tail, min(journal_bytes, _MOST))
        self.fuse = self.tail.fuse

    @property
    def lowest_id(self) -> int:
        """The lowest id of all items, 0 in an empty queue. It is that of the first item, unless its id was damaged."""
        found = [(file.scanned.lowest_id if file.scanned else file.first_id) for file in self.files if file.first_id]
        return min(found, default=0)

    def open(self, listing: Listing) -> None:
        """Read all files, cut each to its good records, remove empty ones, and open the last."""
        for path in listing.temporary:
            self._disk.unlink(path)
        self.tail.renewing.renew([path for _, path in listing.writers])
        scans: list[tuple[int, str, int, Scan]] = []
        for stamp, path in listing.writers:
            self._last_stamp = max(self._last_stamp, stamp)
            try:
                with self._disk.open(path, "read") as file:
                    size = file.size()
                    scans.append((stamp, path, size, scan(file, size) if size else Scan(0)))
            except DamageError as error:
                self.damage.append(Damage(path, 0, error.reason))
        settled = settle([one for *_, one in scans])
        for (stamp, path, size, _), found in zip(scans, settled, strict=True):
            if self._keep(path, size, found):
                self.files.append(WriterFile(path, stamp, found.size, found.first_id, found.last_id, found))
        self.files.sort(key=lambda file: (file.first_id, file.stamp))
        self.tail_id = max((file.last_id for file in self.files), default=0)
        if self.files:
            self.tail.open(self.files[-1].path, self.files[-1])
        else:
            self._begin_file()
        self.fuse.live = True

    def _keep(self, path: str, size: int, found: Scan) -> bool:
        """Cut a file to what counts; False if nothing does, and the file was removed."""
        with self._disk.open(path, "read") as file:
            keep = after_zeros(file, found.size) < size
        if keep or (not found.first_id and found.size > MAGIC_SIZE):
            reason = found.reason or (BEYOND_END if keep else "no record in it is an item with an id from 1 on")
            self.damage.append(Damage(path, found.size if keep else 0, reason))
            self._place.keep_tail(path, found.size if found.first_id else 0)
        elif found.size < size:  # zeros: an original that was killed leaves its file at the size that it may have
            self.journal_bytes = min(self.journal_bytes, max(size, LEAST_BYTES))
        if not found.first_id:
            self._disk.unlink(path)
            return False
        if found.size < size:
            self.tail.renewing.forget()
            self._place.cut(path, found.size)
        return True

    def append(self, records: Sequence[bytes]) -> None:
        """Write items with the next ids, one write to a file; the caller sets the fuse live when it has counted them.

        Args:
            records: one PUT each.

        Raises:
            FailedError: a write, a sync or the lock failed, now or before, or an operation was interrupted.
            ShutError: the queue was closed, or belongs to the parent process.
        """
        done, midway = 0, False
        while done < len(records):
            current, stop = self.files[-1], done
            size = current.size
            while stop < len(records) and size + len(records[stop]) <= self.journal_bytes:
                size += len(records[stop])
                stop += 1
            if stop == done:
                self._rotate(midway=midway)
                midway = True
                continue
            self.tail.append(b"".join(records[done:stop]), midway=midway)
            midway = True
            current.first_id = current.first_id or self.tail_id + 1
            current.last_id = self.tail_id = self.tail_id + stop - done
            done = stop

    def retire(self, lowest_head: int) -> int:
        """Remove or archive the files whose items every reader has confirmed; returns how many.

        Args:
            lowest_head: the lowest head of all readers.
        """
        passed = 0
        while passed + 1 < len(self.files) and self.files[passed].last_id <= lowest_head:
            passed += 1
        with self.tail.failing():
            for file in self.files[:passed]:
                if self._archive is None:
                    self._disk.unlink(file.path)
                else:
                    self._disk.rename(file.path, join(self._archive, f"archive~{self._place.name}.{file.stamp}"))
        del self.files[:passed]
        return passed

    def _rotate(self, *, midway: bool) -> None:
        if not midway:
            self.tail.check()
        self.fuse.live = False
        with self.tail.failing():
            self.tail.force()
            self.tail.output.close()
            self._begin_file()

    def _begin_file(self) -> None:
        stamp = self._last_stamp = max(self._place.now_ms(), self._last_stamp + 1)
        file = WriterFile(self._place.path(f".{stamp}"), stamp, 0)
        self.tail.open(file.path, file, head=WRITER_MAGIC)
        self.files.append(file)

    def erase(self) -> None:
        """Remove all writer files, oldest first, so that after a crash in between no confirmed item is back."""
        with self.tail.failing():
            for file in self.files:
                self._disk.unlink(file.path)
            self.tail.renewing.forget()

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(file.size for file in self.files)
