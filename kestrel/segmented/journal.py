"""What a libkestrel queue and its readers share: the mutex, the writer files, and the checkpoints.

A commit is one record at the end of a reader file. At a checkpoint every reader file that has grown is replaced by a
short one, and writer files that every reader has passed are retired. Before a reader file is replaced, the writer files
are synced: a reader file never confirms an item that a power failure could still take away.

Everything is called under the mutex.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from kestrel.fast import Following, Output, tick_ns
from kestrel.files import MAGIC_SIZE, READER_MAGIC, Limits, open_file
from kestrel.segmented.files import items_of
from kestrel.segmented.format import Item, encode_done, encode_head
from kestrel.segmented.writing import WriterFiles
from kestrel.tail import Tail
from sej.fork import notice_fork
from sej.system.disk import replace_file

_MOST_S: Final = 1e9


@dataclass(eq=False)
class Journal:
    """The shared state of one open queue; a :class:`~kestrel.tail.Store`.

    Attributes:
        files: the writer files.
        limits: of the queue.
        checkpoint_s: the least time between two checkpoints.
        readers: the readers, each a ``Reader``.
        states: the same, in a list for the compiled module.
    """

    files: WriterFiles
    limits: Limits
    checkpoint_s: float
    on_expired: Callable[[Item], None] | None
    max_errors: int | None
    on_given_up: Callable[[str, Item], None] | None
    readers: dict[str, Any] = field(default_factory=dict)
    states: list[Following] = field(default_factory=list)

    @property
    def tail(self) -> Tail:
        """The open file at the end."""
        return self.files.tail

    def is_expired(self, item: Item) -> bool:
        """Whether an item has expired: at its time, not after it."""
        expire_time = self.limits.expiry(item.add_time, item.expire_time)
        return expire_time is not None and expire_time <= self.tail.place.now_ms()

    def checkpoint(self) -> None:
        """Replace all reader files by short ones, and retire what every reader has passed."""
        notice_fork()
        with self.tail.signal.guard:
            self.tail.check()
            for reader in self.readers.values():
                if reader.file.log.grown:
                    reader.checkpoint()
            self.files.retire(min((reader.head for reader in self.readers.values()), default=self.files.tail_id))
            self.wait_for_checkpoint()

    def wait_for_checkpoint(self) -> None:
        """Let some time pass before a commit writes the next checkpoint."""
        self.files.due_ns = tick_ns() + int(min(self.checkpoint_s, _MOST_S) * 1e9)

    def items_after(self, number: int) -> Iterator[Item]:
        """The items above an id that are in the files, committed or not; while the queue is not changed."""
        for writer in list(self.files.files):
            if writer.last_id > number:
                with open_file(writer.path, self.tail.place.disk) as file:
                    for item in items_of(file, end=writer.size).records():
                        if item.id > number:
                            yield item

    def forget(self, reader: Any) -> None:
        """Close a reader that is not one any more."""
        self.states.remove(reader)
        self.tail.others.remove(reader.file.log)
        reader.close()

    def close(self) -> None:
        """Write a checkpoint, and close the files."""
        self._end(self.checkpoint if self.files.fuse.live else None)

    def erase(self) -> None:
        """Remove the files, and close."""
        self._end(self._remove)

    def _remove(self) -> None:
        self.tail.check()
        self.files.erase()
        for reader in self.readers.values():
            reader.file.remove()

    def _end(self, act: Callable[[], None] | None) -> None:
        with ExitStack() as ending:
            ending.callback(self.tail.close)
            for reader in self.readers.values():
                ending.callback(reader.close)
            if act is not None:
                act()


_GROWN_BYTES: Final = 1 << 18
"""A checkpoint takes the time of 700 commits; a log of this size has 29,000, and is read at an opening in 0.1 s."""


class BookmarkFile:
    """The files of one reader. They exist after the first ``replace``.

    Attributes:
        path: the reader file.
        log: what was committed since.
    """

    def __init__(self, journal: Journal, reader: str) -> None:
        self._place, self._failing = journal.tail.place, journal.tail.failing
        self._fuse = journal.files.fuse
        self.log = Output(self._fuse)
        self._name(reader)

    def _name(self, reader: str) -> None:
        self.path = self._place.path(f".read.{reader}")
        self._log_path = self._place.path(f"~~read.{reader}")

    def replace(self, head: int, done: list[int]) -> None:
        """Replace the reader file, durably, and empty the log. Always both records, as the original writes them."""
        data = READER_MAGIC + encode_head(head) + encode_done(done)
        if not self._fuse.live:
            self._fuse.refuse()
        self._fuse.live = False
        with self._failing():
            replace_file(self._place.disk, f"{self.path}~~{self._place.now_ms()}", self.path, data)
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
        old, log = self.path, self._log_path
        self.log.close()
        self._name(reader)
        with self._failing():
            self._place.disk.rename(old, self.path)
            self._place.disk.unlink(log)
            self._empty_log()

    def leave(self) -> None:
        """Close the log, and remove it if the reader file has everything."""
        grown = self.log.grown
        self.log.close()
        if not grown and self._fuse.blown is None:
            with self._failing():
                self._place.disk.unlink(self._log_path)

    def remove(self) -> None:
        """Close the files and remove them."""
        self.log.close()
        with self._failing():
            self._place.disk.unlink(self.path)
            self._place.disk.unlink(self._log_path)
