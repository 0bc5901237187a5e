"""One directory of a merge: its cursor, its share of the memory, and the check that it is still the same directory.

Built on a :class:`~sej.journal.cursor.Cursor` and on the check for re-created directories (:mod:`hub.naming`). It
returns no message of a journal that replaced another one, and its batches stay within the share of memory.
"""

from __future__ import annotations

from typing import Final

from hub.naming import Source, source_path
from sej.errors import JournalNotFoundError, SejError
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory
from sej.journal.identity import Incarnation
from sej.message import Message
from sej.system.disk import Disk
from sej.system.watch import Watch

_FIRST_BATCH: Final = 16
_MAX_BATCH: Final = 512
"""Larger chunks would not be faster: the waiting messages would no longer fit the processor's cache."""
SAMPLES: Final = 16
"""Messages to weigh in order to estimate the memory of all."""
_OBJECT_BYTES: Final = 250
"""Approximate memory of a message in addition to its bytes."""


class Slot:
    """One directory of the merge.

    Attributes:
        source: its client and journal.
        due: the offset of the next batch's first message, after the first read.
        committed: the committed offset; None: not read yet.
        left_at: the offset after the last returned message, if the directory was skipped.
        error: why it cannot be read.
        watch: wakes when messages are appended; None if nothing waits for it.
    """

    __slots__ = (
        "_chunk_bytes",
        "_cursor",
        "_directory",
        "_disk",
        "_incarnation",
        "_limit",
        "_reads",
        "committed",
        "due",
        "error",
        "left_at",
        "source",
        "watch",
    )

    def __init__(self, root: str, source: Source, offset: int | None, chunk_bytes: int, disk: Disk) -> None:
        """Remember which directory it is; nothing is opened before the first read."""
        path = source_path(root, source)
        self.source = source
        self.committed: int | None = None
        self.left_at: int | None = None
        self.error: SejError | None = None
        self.watch: Watch | None = None
        self._disk = disk
        self._directory = Directory(path, disk)
        self._incarnation = Incarnation.look(self._directory)
        self._cursor = Cursor(self._directory, offset, chunk_bytes=chunk_bytes)
        self._chunk_bytes = chunk_bytes
        self._limit = _FIRST_BATCH
        self._reads = 0
        self.due = self._cursor.due

    @property
    def path(self) -> str:
        """The path of the directory."""
        return self._directory.path

    def read(self, share_bytes: int, *, judge: bool = False) -> list[Message]:
        """Read the next messages; none at the end of the journal.

        Args:
            share_bytes: about how much memory they may take; a single message may take more.
            judge: at the end, check that a torn tail hides no messages.

        Raises:
            SejError: the directory cannot be read, or was re-created.
            OSError: the disk failed.
        """
        cursor = self._cursor
        try:
            batch = cursor.read(self._limit)
            if not batch and judge and cursor.judge():
                batch = cursor.read(self._limit)
        except JournalNotFoundError:
            self._require_same()
            raise
        self._require_same()
        self.due = cursor.due
        if batch:
            self._reads += 1
            if self._limit < _MAX_BATCH or not self._reads % SAMPLES:
                each = weigh(batch[:: max(len(batch) // SAMPLES, 1)], 1)
                self._limit = min(max(share_bytes // each, 1), _MAX_BATCH, 4 * self._limit)
        return batch

    def _require_same(self) -> None:
        if not self._incarnation.is_still(self._directory):
            raise SejError(
                "this directory was removed or re-created since the merge began; read it with a merge of another name"
            )

    def narrow(self, chunk_bytes: int) -> None:
        """Read smaller chunks from now on, if they were much larger."""
        if self._chunk_bytes > 2 * chunk_bytes and self._reads and self.left_at is None:
            self._cursor.close()
            self._cursor, self._chunk_bytes = Cursor(self._directory, self.due, chunk_bytes=chunk_bytes), chunk_bytes

    def follow(self) -> None:
        """Watch the directory from now on."""
        self.watch = Watch(self._directory.jnl)

    def park(self) -> None:
        """Close the segment; the next read reopens it at its position."""
        self._cursor.park()

    def close(self) -> None:
        """Close everything; a second call does nothing."""
        self._cursor.close()
        if self.watch is not None:
            self.watch.close()
            self.watch = None


def weigh(seen: list[Message], count: int) -> int:
    """Estimate the memory in bytes of ``count`` messages like these."""
    if not seen:
        return 0
    return count * (_OBJECT_BYTES + sum([len(message.key) + len(message.value) for message in seen]) // len(seen))
