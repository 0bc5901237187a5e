"""When a journal is rotated, rewritten or packed: the packing strategy, with its sizes as options.

=====================================  ==================================================================
found before a put and after           done
a get
=====================================  ==================================================================
nothing waits, and the current file    the journal is rewritten, with the open transactions
has grown by ``journal_bytes``
all files together are over            the journal is rewritten, at most every ``compact_delay_s``
``max_journal_bytes``, and everything
that waits is in memory
the current file is over               it is rotated; if the queue is in read-behind, a checkpoint of
``max_memory_bytes``                   the state at its end is remembered
the reader has passed a checkpoint     the files up to there are replaced by a packed one
=====================================  ==================================================================

After a rewrite only the growth since then counts. Otherwise many open transactions would have the journal rewritten at
every call, which the original does.
"""

from __future__ import annotations

from kestrel.v2.backlog import Backlog
from kestrel.v2.hot import Reserving
from kestrel.v2.packing import Checkpoint, dump, packed
from kestrel.v2.storage import Piece, Storage


class Growth:
    """Keeps one queue's journal small.

    Attributes:
        rewrites: how often the journal was rewritten.
        rotations: how often the current file was rotated.
        packs: how often older files were packed at a checkpoint.
    """

    def __init__(
        self,
        storage: Storage,
        backlog: Backlog,
        *,
        max_memory_bytes: int,
        journal_bytes: int,
        max_journal_bytes: int,
        compact_delay_s: float,
    ) -> None:
        self.rewrites = 0
        self.rotations = 0
        self.packs = 0
        self._storage = storage
        self._backlog = backlog
        self._max_memory_bytes = max_memory_bytes
        self._journal_bytes = journal_bytes
        self._max_journal_bytes = max_journal_bytes
        self._compact_delay_ms = int(compact_delay_s * 1000)
        self._next_compaction_ms = 0
        self._fresh_bytes = 0
        self._checkpoints: list[Checkpoint] = []

    @property
    def quiet_below(self) -> int:
        """While the current file is smaller than this, a put needs nothing else if an item waits."""
        if self._backlog.waiting.behind:
            return self._max_memory_bytes
        older = self._storage.total_size - self._storage.size
        return min(self._max_memory_bytes, self._max_journal_bytes + self._fresh_bytes - older)

    @property
    def empty_below(self) -> int:
        """As ``quiet_below``, if no item waits."""
        return min(self.quiet_below, self._journal_bytes + self._fresh_bytes)

    @property
    def passed(self) -> bool:
        """Whether the reader has passed a checkpoint. Only reading changes this; so a put need not look."""
        if not self._checkpoints:
            return False
        reader, end = self._backlog.piece, self._checkpoints[0].piece
        return reader is None or reader.stamp is None or reader.stamp > (end.stamp or 0)  # the current file has none

    def tend(self, reserving: Reserving, now_ms: int) -> None:
        """Rotate, rewrite or pack if the files are too large. Raises as ``Appender.append``."""
        storage, backlog = self._storage, self._backlog
        if self.passed:
            self._pack(reserving, now_ms)
        size = storage.size
        total = storage.total_size
        if size >= self._journal_bytes + self._fresh_bytes and not backlog:
            self.rewrite(reserving, now_ms)
        elif (
            total > self._max_journal_bytes + self._fresh_bytes
            and not backlog.waiting.behind
            and not 0 < self._next_compaction_ms - now_ms <= self._compact_delay_ms  # more: the clock was set back
        ):
            self.rewrite(reserving, now_ms)
            self._next_compaction_ms = now_ms + self._compact_delay_ms
        elif size > self._max_memory_bytes:
            piece = storage.rotate()
            self.rotations += 1
            self.remember(piece, reserving)

    def remember(self, piece: Piece, reserving: Reserving) -> None:
        """At the end of a rotated file: keep its state in mind, if the queue is in read-behind."""
        if self._backlog.waiting.behind:
            self._checkpoints.append(Checkpoint.of(piece, reserving, self._backlog))

    def rewrite(self, reserving: Reserving, now_ms: int) -> None:
        """Rewrite the journal."""
        self._storage.rewrite(dump(reserving.open, self._backlog.rows(), reserving.last_xid, now_ms))
        self._checkpoints.clear()
        self._fresh_bytes = self._storage.size
        self.rewrites += 1

    def _pack(self, reserving: Reserving, now_ms: int) -> None:
        last = self._checkpoints[0]
        while self.passed:
            last = self._checkpoints.pop(0)
        # What waits or is reserved and came from these files is in memory: the reader has passed them.
        alive = {row[0]: row for row in self._backlog.waiting.memory if row[0] < last.added}
        alive.update((row[0], row) for row in reserving.open.values())
        self._storage.replace(last.piece, packed(last, alive, now_ms))
        self.packs += 1
