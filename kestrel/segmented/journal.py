"""The files of a libkestrel queue, for the one process that holds its lock: append, rotate, commit, retire.

Relies on ``tail`` for appending, syncing and the lock. Promises: a file's length is always exact, because nothing is
preallocated. If an original died and left zeros after its records, or bytes that cannot be read, the file is cut to its
records when the queue is opened, and the bytes are copied to ``kept/`` first unless they are zeros alone.

A commit is one record at the end of a reader's log. At a checkpoint every reader file whose log has grown is replaced
by a short one, and writer files that every reader has passed are retired. Before a reader file is replaced, the writer
files are synced: a reader file never confirms an item that a power failure could still take away.

Everything is called under the mutex.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Final

from kestrel.errors import Damage
from kestrel.fast import Output, WriterEnd, tick_ns
from kestrel.files import MAGIC_SIZE, READER_MAGIC, WRITER_MAGIC, Place, join, open_file
from kestrel.segmented.files import BEYOND_END, Listing, WriterFile, after_zeros, items_of, scan_files
from kestrel.segmented.format import PUT_EXPIRING_HEAD, Item, encode_done, encode_head
from kestrel.tail import Sync, Tail
from sej.fork import notice_fork
from sej.system.disk import absolute_path, replace_file

_MOST: Final = 1 << 62
_MOST_S: Final = 1e9
LEAST_BYTES: Final = MAGIC_SIZE + PUT_EXPIRING_HEAD.size
"""The smallest file that has room for an item, one without data."""


class Journal(WriterEnd):
    """All files of one open queue, and its readers; a :class:`~kestrel.tail.Store`.

    Attributes:
        tail: the open file at the end.
        fuse: the lifecycle.
        files: the writer files by the first id in each; the last one is written to.
        damage: what was unreadable when they were opened.
    """

    def __init__(
        self,
        place: Place,
        journal_bytes: int,
        archive_to: str | os.PathLike[str] | None,
        checkpoint_s: float,
        sync: Sync,
    ) -> None:
        """Take the lock; the arguments are those of the queue."""
        self.files: list[WriterFile] = []
        self.damage: list[Damage] = []
        self._place, self._disk = place, place.disk
        self._checkpoint_ns = int(min(checkpoint_s, _MOST_S) * 1e9)
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
        lowest = (file.scanned.lowest_id if file.scanned.items else file.first_id for file in self.files)
        return min(filter(None, lowest), default=0)

    @property
    def size(self) -> int:
        """The bytes of all writer files."""
        return sum(file.size for file in self.files)

    def open(self, listing: Listing) -> None:
        """Read all files, cut each to its good records, remove empty ones, and open the last."""
        for path in (*listing.temporary, *(path for _, path, size in listing.writers if not size)):
            self._disk.unlink(path)
        writers = [one for one in listing.writers if one[2]]
        self._last_stamp = max((stamp for stamp, _, _ in listing.writers), default=0)
        self.tail.renewing.renew([path for _, path, _ in writers])
        found, self.damage = scan_files(writers, self._place)
        self.files = [file for file in found if self._keep(file)]
        self.files.sort(key=lambda file: (file.first_id, file.stamp))
        self.tail_id = max((file.last_id for file in self.files), default=0)
        if self.files:
            self.tail.open(self.files[-1].path, self.files[-1])
        else:
            self._begin_file()
        self.fuse.live = True
        self._wait_for_checkpoint()

    def _keep(self, writer: WriterFile) -> bool:
        """Cut a file to what counts; False if nothing does, and the file was removed."""
        found, path = writer.scanned, writer.path
        with self._disk.open(path, "read") as file:
            keep = after_zeros(file, found.size) < writer.whole
        if keep or (not found.first_id and found.size > MAGIC_SIZE):
            reason = found.reason or (BEYOND_END if keep else "no record in it is an item with an id from 1 on")
            self.damage.append(Damage(path, found.size if keep else 0, reason))
            self._place.keep_tail(path, found.size if found.first_id else 0)
        elif found.size < writer.whole:  # zeros: a killed original leaves its file at the size that it may have
            self.journal_bytes = min(self.journal_bytes, max(writer.whole, LEAST_BYTES))
        if not found.first_id:
            self._disk.unlink(path)
            return False
        if found.size < writer.whole:
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
        file = WriterFile(self._place.path(f".{stamp}"), stamp)
        self.tail.open(file.path, file, head=WRITER_MAGIC)
        self.files.append(file)

    def items_after(self, number: int) -> Iterator[Item]:
        """The items above an id that are in the files, committed or not; while the queue is not changed."""
        for writer in list(self.files):
            if writer.last_id > number:
                with open_file(writer.path, self._disk) as file:
                    for item in items_of(file, end=writer.size).records():
                        if item.id > number:
                            yield item

    def checkpoint(self) -> None:
        """Replace all reader files by short ones, and retire what every reader has passed."""
        notice_fork()
        with self.tail.signal.guard:
            self.tail.check()
            for reader in self.readers.values():
                if reader.file.log.grown:
                    reader.checkpoint()
            passed, lowest = 0, min((reader.head for reader in self.readers.values()), default=self.tail_id)
            while passed + 1 < len(self.files) and self.files[passed].last_id <= lowest:
                passed += 1
            with self.tail.failing():
                for file in self.files[:passed]:
                    if self._archive is None:
                        self._disk.unlink(file.path)
                    else:
                        self._disk.rename(file.path, join(self._archive, f"archive~{self._place.name}.{file.stamp}"))
            del self.files[:passed]
            self._wait_for_checkpoint()

    def _wait_for_checkpoint(self) -> None:
        """Let some time pass before a commit writes the next checkpoint."""
        self.due_ns = tick_ns() + self._checkpoint_ns

    def settle(self) -> None:
        """Write a checkpoint."""
        if self.fuse.live:
            self.checkpoint()

    def erase(self) -> None:
        """Remove all files, oldest first, so that after a crash in between no confirmed item is back."""
        self.tail.check()
        with self.tail.failing():
            for file in self.files:
                self._disk.unlink(file.path)
            self.tail.renewing.forget()
        for reader in self.readers.values():
            reader.file.remove()

    def release(self) -> None:
        """Close the readers."""
        with ExitStack() as ending:
            for reader in self.readers.values():
                ending.callback(reader.close)


_GROWN_BYTES: Final = 1 << 18
"""A checkpoint takes the time of 700 commits; a log of this size has 29,000, and is read at an opening in 0.1 s."""


class BookmarkFile:
    """The files of one reader. They exist after the first ``replace``.

    Attributes:
        log: what was committed since then.
    """

    def __init__(self, tail: Tail, reader: str) -> None:
        self._place, self._tail, self._fuse = tail.place, tail, tail.fuse
        self.log = Output(tail.fuse)
        tail.others[self.log] = None
        self._name(reader)

    def _name(self, reader: str) -> None:
        self._path = self._place.path(f".read.{reader}")
        self._log_path = self._place.path(f"~~read.{reader}")

    def replace(self, head: int, done: list[int]) -> None:
        """Replace the reader file, durably, and empty the log. Always both records, as the original writes them."""
        data = READER_MAGIC + encode_head(head) + encode_done(done)
        if not self._fuse.live:
            self._fuse.refuse()
        self._fuse.live = False
        with self._tail.failing():
            replace_file(self._place.disk, f"{self._path}~~{self._place.now_ms()}", self._path, data)
            self._empty_log()
        self.log.enough = max(_GROWN_BYTES, len(data))
        self._fuse.live = True

    def _empty_log(self) -> None:
        file, log = self.log.file, self.log
        if file is None:
            file = self._place.disk.open(self._log_path, "append")
            log.aim(file)
            if file.size():
                file.truncate(0)
            file.write(READER_MAGIC)
        elif log.grown:
            file.truncate(MAGIC_SIZE)
            log.grown, log.unsynced = 0, False

    def rename(self, reader: str) -> None:
        """Give the files to a reader of another name. The log is emptied before, by ``replace``."""
        old, log = self._path, self._log_path
        self.log.close()
        self._name(reader)
        with self._tail.failing():
            self._place.disk.rename(old, self._path)
            self._place.disk.unlink(log)
            self._empty_log()

    def leave(self) -> None:
        """Close the log, and remove it if the reader file has everything."""
        grown = self.log.grown
        self.log.close()
        self._tail.others.pop(self.log, None)
        if not grown and self._fuse.failure is None:
            with self._tail.failing():
                self._place.disk.unlink(self._log_path)

    def remove(self) -> None:
        """Close the files and remove them."""
        self.log.close()
        with self._tail.failing():
            self._place.disk.unlink(self._path)
            self._place.disk.unlink(self._log_path)
