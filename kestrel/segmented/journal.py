"""What a libkestrel queue and its readers share: the mutex, the writer files, expiry, and the checkpoints.

A commit is one record at the end of a reader file. At a checkpoint every reader file that has grown is replaced by a
short one, and writer files that every reader has passed are retired. Before a reader file is replaced, the writer files
are synced: a reader file never confirms an item that a power failure could still take away.

Everything but the constructor is called under the mutex.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

from kestrel.files import open_file
from kestrel.hot import Fuse, Log, tick_ns
from kestrel.limits import Limits
from kestrel.segmented.codec import Item, encode_done, encode_head
from kestrel.segmented.files import Reading, log_path, reader_path
from kestrel.segmented.format import MAGIC_SIZE, READER_MAGIC
from kestrel.segmented.hot import Shared
from kestrel.segmented.writing import WriterFiles
from sej.system.disk import Disk, File, replace_file
from sej.system.paths import absolute_path

_MOST_S: Final = 1e9


class Follower(Protocol):
    """What the journal needs of a reader."""

    name: str

    @property
    def head(self) -> int:
        """Every id up to it is committed."""

    @property
    def file(self) -> BookmarkFile:
        """Its file."""

    def checkpoint(self) -> None:
        """Replace its file by a short one."""


class Journal:
    """The shared state of one open queue.

    Attributes:
        shared: what every call of a queue or reader looks at.
        guard: the mutex.
        tail: the end of the last writer file.
        changed: signalled when an item is put or given back, and when waiting ends.
        evictions: how often waiting calls were made to return.
        files: the writer files.
        fuse: the lifecycle.
        readers: by name.
        limits: of the queue.
    """

    def __init__(
        self,
        guard: threading.RLock,
        files: WriterFiles,
        readers: Mapping[str, Follower],
        limits: Limits,
        *,
        on_expired: Callable[[Item], None] | None,
        max_errors: int | None,
        on_given_up: Callable[[str, Item], None] | None,
        checkpoint_s: float,
        now_ms: Callable[[], int],
        disk: Disk,
    ) -> None:
        """Put it together; options are those of the queue."""
        self.guard = guard
        self.tail = files.tail
        self.shared = Shared(guard, files.tail.appender, touched=files.tail.touched, checkpoint=self.checkpoint)
        self.changed = threading.Condition(guard)
        self.evictions = 0
        self.files = files
        self.fuse = files.fuse
        self.readers = readers
        self.limits = limits
        self._on_expired = on_expired
        self._max_errors = max_errors
        self._on_given_up = on_given_up
        self._checkpoint_ns = int(min(checkpoint_s, _MOST_S) * 1e9)
        self.shared.due_ns = tick_ns() + self._checkpoint_ns
        self._now_ms = now_ms
        self._disk = disk

    def expired(self, item: Item) -> bool:
        """Whether an item has expired: at its time, not after it."""
        expire_time = self.limits.expiry(item.add_time, item.expire_time)
        return expire_time is not None and expire_time <= self._now_ms()

    def report_expired(self, item: Item) -> None:
        """Call ``on_expired``."""
        if self._on_expired is not None:
            self._on_expired(item)

    def gives_up(self, reader: Follower, item: Item) -> bool:
        """Whether an item was given back too often; if so, ``on_given_up`` was called."""
        if self._max_errors is None or item.error_count < self._max_errors:
            return False
        if self._on_given_up is not None:
            self._on_given_up(reader.name, item)
        return True

    def checkpoint(self) -> None:
        """Replace all reader files that have grown, and retire what every reader has passed."""
        self.tail.appender.check()
        for reader in self.readers.values():
            if reader.file.dirty:
                reader.checkpoint()
        self.files.retire(min((reader.head for reader in self.readers.values()), default=self.files.end.tail_id))
        self.shared.due_ns = tick_ns() + self._checkpoint_ns

    def sync(self) -> None:
        """Sync all writes to disk, items before commits."""
        self.tail.sync()
        for reader in self.readers.values():
            reader.file.sync()

    def items_after(self, number: int) -> Iterator[Item]:
        """The items above an id, from the files."""
        for writer in list(self.files.files):
            if writer.last_id > number:
                file = open_file(writer.path, self._disk)
                try:
                    for item in Reading(file, end=writer.size).items():
                        if item.id > number:
                            yield item
                finally:
                    file.close()


_GROWN_BYTES: Final = 1 << 18
"""A checkpoint takes the time of 700 commits; a log of this size has 29,000, and is read at an opening in 0.1 s."""


class BookmarkFile:
    """The files of one reader. They exist after the first ``replace``.

    Attributes:
        commits: appends to the log.
        path: the reader file.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        queue: str,
        reader: str,
        *,
        fuse: Fuse,
        disk: Disk,
        now_ms: Callable[[], int],
    ) -> None:
        self.commits = Log(fuse, _GROWN_BYTES)
        self._fuse = fuse
        self._directory = absolute_path(directory)
        self._queue = queue
        self._disk = disk
        self._now_ms = now_ms
        self._log: File | None = None
        self._name(reader)

    def _name(self, reader: str) -> None:
        self.path = reader_path(self._directory, self._queue, reader)
        self._log_path = log_path(self._directory, self._queue, reader)

    @property
    def dirty(self) -> bool:
        """Whether anything was committed since the last checkpoint."""
        return self.commits.grown > 0

    def sync(self) -> None:
        """Sync the commits to disk."""
        if self._log is not None and self.commits.unsynced:
            try:
                self._log.sync()
                self.commits.unsynced = False
            except OSError as error:
                self._fuse.blow(error)

    def replace(self, head: int, done: list[int]) -> None:
        """Replace the reader file, durably, and empty the log. Always both records, as the original writes them."""
        data = READER_MAGIC + encode_head(head) + encode_done(done)
        if not self._fuse.live:
            self._fuse.refuse()
        self._fuse.live = False
        try:
            replace_file(self._disk, f"{self.path}~~{self._now_ms()}", self.path, data)
            self._empty_log()
        except OSError as error:
            self._fuse.blow(error)
        self.commits.enough = max(_GROWN_BYTES, len(data))
        self.commits.unsynced = False
        self.commits.grown = 0
        self._fuse.live = True

    def _empty_log(self) -> None:
        if self._log is None:
            self._log = self._disk.open(self._log_path, "append")
            self.commits.output.aim(self._log)
            if self._log.size():
                self._log.truncate(0)
            self._log.write(READER_MAGIC)
        elif self.commits.grown:
            self._log.truncate(MAGIC_SIZE)

    def rename(self, reader: str) -> None:
        """Give the files to a reader of another name. The log is emptied before, by ``replace``."""
        old, log = self.path, self._log_path
        self.close()
        self._name(reader)
        try:
            self._disk.rename(old, self.path)
            self._disk.unlink(log)
            self._empty_log()
        except OSError as error:
            self._fuse.blow(error)

    def close(self) -> None:
        """Close the log."""
        file, self._log = self._log, None
        self.commits.output.aim(None)
        if file is not None:
            file.close()

    def leave(self) -> None:
        """Close the log, and remove it if the reader file has everything."""
        self.close()
        if not self.commits.grown and self._fuse.blown is None:
            try:
                self._disk.unlink(self._log_path)
            except OSError as error:
                self._fuse.blow(error)

    def remove(self) -> None:
        """Close the files and remove them."""
        self.close()
        try:
            self._disk.unlink(self.path)
            self._disk.unlink(self._log_path)
        except OSError as error:
            self._fuse.blow(error)
