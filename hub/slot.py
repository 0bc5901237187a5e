"""One directory of a merge: its cursor, its share of the memory, and whether it is still the same directory.

What it relies on: a :class:`~sej.journal.cursor.Cursor`, and what detects a directory that was re-created
(:mod:`hub.naming`).

What it promises: no message of a journal that took the place of another one, and batches within the share of memory.
"""

from __future__ import annotations

from typing import Final

from hub.naming import Made, Source, source_path
from sej.errors import SejError
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory
from sej.message import Message
from sej.system.disk import Disk
from sej.system.watch import Watch

__all__ = ["SAMPLES", "Slot", "weigh"]

_FIRST_BATCH: Final = 16
_MAX_BATCH: Final = 512
"""More a directory would not be faster: the messages that wait for their turn would leave the processor's cache."""
SAMPLES: Final = 16
"""So many messages say what all of them take."""
_OBJECT_BYTES: Final = 250
"""What a message costs in memory beyond its bytes, about."""


class Slot:
    """One directory of the merge.

    Attributes:
        source: whose.
        due: the offset of the message that the next batch begins with, once one was read.
        committed: what the vector has; None: not looked yet.
        left_at: behind what was given out, where it was left out.
        error: why it cannot be read.
        watch: wakes when something is appended; None: nobody waits for it.
    """

    __slots__ = (
        "_chunk_bytes",
        "_cursor",
        "_directory",
        "_disk",
        "_limit",
        "_made",
        "_reads",
        "committed",
        "due",
        "error",
        "left_at",
        "source",
        "watch",
    )

    def __init__(self, root: str, source: Source, offset: int | None, chunk_bytes: int, disk: Disk) -> None:
        """Look which directory it is; nothing is opened before the first read."""
        path = source_path(root, source)
        self.source = source
        self.committed: int | None = None
        self.left_at: int | None = None
        self.error: SejError | None = None
        self.watch: Watch | None = None
        self._disk = disk
        self._directory = Directory(path, disk)
        self._made = Made.look(path, disk)
        self._cursor = Cursor(self._directory, offset, chunk_bytes=chunk_bytes)
        self._chunk_bytes = chunk_bytes
        self._limit = _FIRST_BATCH
        self._reads = 0
        self.due = self._cursor.due

    @property
    def path(self) -> str:
        """Where it is."""
        return self._directory.path

    def read(self, share_bytes: int, *, judge: bool = False) -> list[Message]:
        """The next messages; none at the end of what is there.

        Args:
            share_bytes: what they may take in memory, about; one message may take more.
            judge: at the end, make sure that a torn tail hides no messages.

        Raises:
            SejError: it cannot be read, or was made anew.
            OSError: the disk refuses it.
        """
        cursor = self._cursor
        batch = cursor.read(self._limit)
        if not batch and judge and cursor.judge():
            batch = cursor.read(self._limit)
        if not self._made.is_still(self.path, self._disk):
            raise SejError("this directory was made anew since the merge began; a merge of another name reads it")
        self.due = cursor.due
        if batch:
            self._reads += 1
            if self._limit < _MAX_BATCH or not self._reads % SAMPLES:
                each = weigh(batch[:: max(len(batch) // SAMPLES, 1)], 1)
                self._limit = min(max(share_bytes // each, 1), _MAX_BATCH, 4 * self._limit)
        return batch

    def narrow(self, chunk_bytes: int) -> None:
        """Read less at once from now on, where it was a good deal more."""
        if self._chunk_bytes > 2 * chunk_bytes and self._reads and self.left_at is None:
            self._cursor.close()
            self._cursor, self._chunk_bytes = Cursor(self._directory, self.due, chunk_bytes=chunk_bytes), chunk_bytes

    def follow(self) -> None:
        """Have a watch from now on."""
        self.watch = Watch(self._directory.jnl)

    def park(self) -> None:
        """Close the segment; the next read opens it where it stood."""
        self._cursor.park()

    def close(self) -> None:
        """Close everything; a second time does nothing."""
        self._cursor.close()
        if self.watch is not None:
            self.watch.close()
            self.watch = None


def weigh(seen: list[Message], count: int) -> int:
    """Bytes that so many messages like these take in memory, about."""
    if not seen:
        return 0
    return count * (_OBJECT_BYTES + sum([len(message.key) + len(message.value) for message in seen]) // len(seen))
