"""What an open queue holds: the journal's files and their effect in memory, changed together.

Every change has three steps, in this order::

    1. write the operations      Appender.append; ``fuse.live`` is False from here on
    2. apply them to the memory  Backlog: what waits, and what is reserved
    3. ``fuse.live = True``      files and memory agree again

If step 1 fails, nothing was applied and the fuse has blown. If a signal's handler raises between 1 and 3, ``live``
stays False and every later call is refused. So the memory never shows a state that the files do not lead to.

After a change that lets the journal grow or shrink, :class:`~kestrel.v2.contents.Growth` rotates or rewrites it. The
caller holds the queue's mutex.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kestrel.errors import Damage
from kestrel.v2.backlog import MEMORY_PER_BYTE, Backlog
from kestrel.v2.codec import removes, xid_operation
from kestrel.v2.format import CONFIRM_REMOVE, MAX_XID, REMOVE_TENTATIVE_XID, UNREMOVE
from kestrel.v2.items import Row, next_xid
from kestrel.v2.journal import Dialect
from kestrel.v2.replay import Checkpoint, dump, load, packed
from kestrel.v2.storage import Storage

_FLUSH_STEP: Final = 1 << 16
_MOST: Final = 1 << 62


class Contents:
    """The state of one open queue.

    Attributes:
        backlog: what waits, and what is reserved.
        reserved_at: when each open transaction was reserved, ms since the epoch; empty in a queue without time-outs.
        fuse: the lifecycle.
        storage: the files.
        growth: rotates and rewrites the journal.
        damage: what was unreadable when the queue was opened.
    """

    def __init__(self, storage: Storage, sizes: Sizes, dialect: Dialect) -> None:
        """Replay the files, cut what is damaged, and put open transactions back."""
        self.storage = storage
        self.backlog = backlog = Backlog(storage, sizes.max_memory_bytes, dialect=dialect)
        self.growth = Growth(storage, backlog, sizes)
        self.fuse = storage.fuse
        self.reserved_at: dict[int, int] = {}
        self._tail = storage.tail
        try:
            storage.renew()
            damage, self.growth.checkpoints = load(storage, backlog, dialect=dialect)
            self.damage: list[Damage] = damage
            storage.ready(damage)
            self.put_back(sorted(backlog.open, reverse=True))
        except BaseException:
            backlog.close()
            self._tail.close()
            raise

    def add(
        self, operations: list[bytes], items: list[bytes], now: int, expiry: int, *, closes: int | None = None
    ) -> None:
        """Add items at the end, with one write.

        Args:
            operations: an ADDX or CONTINUE for each item.
            items: their data.
            now: their add time.
            expiry: their expiry; 0: never.
            closes: the transaction that a CONTINUE confirms.
        """
        storage, backlog = self.storage, self.backlog
        piece, position = storage.current, storage.size
        self._tail.append(b"".join(operations))
        for operation, data in zip(operations, items, strict=True):
            backlog.place = (piece, position)
            backlog.append((backlog.added, data, now, expiry, 0))
            backlog.added += 1
            position += len(operation)
        if closes is not None:
            self._forget(closes)
        self.fuse.live = True
        self.look_ahead()

    def remove(self, *, expired: bool = False) -> Row:
        """Take the head, for good. The caller has looked at it, so it is in memory."""
        self._tail.append(removes(1))
        row = self.backlog.popleft()
        if not expired and row[2] is not None:
            self.backlog.taken_add_time = row[2]
        self.fuse.live = True
        return row

    def reserve(self, now: int | None) -> tuple[int, Row]:
        """Take the head as a transaction; returns its id, and the row. As :meth:`remove`.

        Args:
            now: the time, ms since the epoch, if it is needed later; else None.
        """
        backlog = self.backlog
        xid = backlog.last_xid + 1
        if not 0 < xid <= MAX_XID or xid in backlog.open:
            xid = next_xid(backlog.last_xid, backlog.open)
        self._tail.append(xid_operation(REMOVE_TENTATIVE_XID, xid))
        row = backlog.popleft()
        backlog.last_xid = xid
        backlog.open[xid] = row
        if now is not None:
            self.reserved_at[xid] = now
        if row[2] is not None:
            backlog.taken_add_time = row[2]
        self.fuse.live = True
        return xid, row

    def confirm(self, xid: int) -> None:
        """End an open transaction."""
        self._tail.append(xid_operation(CONFIRM_REMOVE, xid))
        self._forget(xid)
        self.fuse.live = True

    def _forget(self, xid: int) -> None:
        del self.backlog.open[xid]
        self.reserved_at.pop(xid, None)

    def put_back(self, xids: list[int]) -> None:
        """Put reserved items back at the head, one after another; so the last of xids ends there."""
        if xids:
            self._tail.append(b"".join(xid_operation(UNREMOVE, xid) for xid in xids))
            for xid in xids:
                self.backlog.appendleft(self.backlog.open.pop(xid))
                self.reserved_at.pop(xid, None)
            self.fuse.live = True
        self.look_ahead()

    def clear(self, now: int) -> int:
        """Remove everything that waits; returns how many items."""
        backlog = self.backlog
        last = backlog.memory[-1][2] if backlog.memory and not backlog.behind else now
        count = left = len(backlog)
        while left:
            step = min(left, _FLUSH_STEP)
            self._tail.append(removes(step), midway=left < count)
            left -= step
        backlog.clear()
        if count and last is not None:
            backlog.taken_add_time = last
        self.fuse.live = True
        return count

    def tend(self, now: int) -> None:
        """Before an item is added and after one was taken: keep the journal small."""
        growth = self.growth
        below = growth.quiet_below if self.backlog else growth.empty_below
        if self.storage.current.size >= below or growth.passed:
            growth.tend(now)
        self.look_ahead()

    def look_ahead(self) -> None:
        """How far the current file may grow before a change of one item needs anything but the write and its effect."""
        backlog = self.backlog
        quiet = 0 if backlog.expiring else min(_MOST, self.growth.quiet_below)
        behind = bool(backlog.behind)
        backlog.behind_below = quiet if behind else 0
        backlog.plain_below = 0 if behind else min(quiet, self.storage.size + backlog.room // MEMORY_PER_BYTE)
        backlog.empty_below = min(backlog.plain_below, self.growth.empty_below)

    def close(self, now: int) -> None:
        """Sync and close; the journal of an empty queue is rewritten first, as the original does."""
        try:
            if self.fuse.live and not self.backlog and self.storage.total_size:
                self.growth.rewrite(now)
        finally:
            self._end()

    def erase(self) -> None:
        """Remove the queue's files and close."""
        try:
            self.storage.erase()
        finally:
            self._end()

    def _end(self) -> None:
        try:
            self._tail.close()
        finally:
            self.fuse.live = False  # if this close was interrupted, the next one must not take the queue for empty
            self.backlog.close()


class Sizes(NamedTuple):
    """When a journal is rotated or rewritten, as the options of a queue say."""

    max_memory_bytes: int
    journal_bytes: int
    max_journal_bytes: int
    compact_delay_s: float


class Growth:
    """Keeps one queue's journal small.

    Attributes:
        rewrites: how often the journal was rewritten.
        rotations: how often the current file was rotated.
        packs: how often older files were packed at a checkpoint.
        checkpoints: the states at the ends of rotated files, while the queue is in read-behind.
    """

    def __init__(self, storage: Storage, backlog: Backlog, sizes: Sizes) -> None:
        self.rewrites = self.rotations = self.packs = 0
        self.checkpoints: list[Checkpoint] = []
        self._storage = storage
        self._backlog = backlog
        self._sizes = sizes
        self._compact_delay_ms = int(sizes.compact_delay_s * 1000)
        self._next_compaction_ms = 0
        self._fresh_bytes = 0

    @property
    def quiet_below(self) -> int:
        """While the current file is smaller than this, a put needs nothing else if an item waits."""
        if self._backlog.behind:
            return self._sizes.max_memory_bytes
        older = self._storage.total_size - self._storage.size
        return min(self._sizes.max_memory_bytes, self._sizes.max_journal_bytes + self._fresh_bytes - older)

    @property
    def empty_below(self) -> int:
        """As ``quiet_below``, if no item waits."""
        return min(self.quiet_below, self._sizes.journal_bytes + self._fresh_bytes)

    @property
    def passed(self) -> bool:
        """Whether the reader has passed a checkpoint. Only reading changes this; so a put need not look."""
        if not self.checkpoints:
            return False
        reader, end = self._backlog.piece, self.checkpoints[0].piece
        return reader is None or reader.stamp is None or reader.stamp > (end.stamp or 0)  # the current file has none

    def tend(self, now_ms: int) -> None:
        """Rotate, rewrite or pack if the files are too large. Raises as ``Appender.append``."""
        storage, backlog = self._storage, self._backlog
        if self.passed:
            self._pack(now_ms)
        size = storage.size
        total = storage.total_size
        if size >= self._sizes.journal_bytes + self._fresh_bytes and not backlog:
            self.rewrite(now_ms)
        elif (
            total > self._sizes.max_journal_bytes + self._fresh_bytes
            and not backlog.behind
            and not 0 < self._next_compaction_ms - now_ms <= self._compact_delay_ms  # more: the clock was set back
        ):
            self.rewrite(now_ms)
            self._next_compaction_ms = now_ms + self._compact_delay_ms
        elif size > self._sizes.max_memory_bytes:
            piece = storage.rotate()
            self.rotations += 1
            if backlog.behind:
                self.checkpoints.append(Checkpoint.of(piece, backlog))

    def rewrite(self, now_ms: int) -> None:
        """Rewrite the journal."""
        self._storage.rewrite(dump(self._backlog, now_ms))
        self.checkpoints.clear()
        self._fresh_bytes = self._storage.size
        self.rewrites += 1

    def _pack(self, now_ms: int) -> None:
        last = self.checkpoints[0]
        while self.passed:
            last = self.checkpoints.pop(0)
        # What waits or is reserved and came from these files is in memory: the reader has passed them.
        alive = {row[0]: row for row in self._backlog.memory if row[0] < last.added}
        alive.update((row[0], row) for row in self._backlog.open.values())
        self._storage.replace(last.piece, packed(last, alive, now_ms))
        self.packs += 1
