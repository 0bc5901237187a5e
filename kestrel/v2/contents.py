"""What an open queue holds: the journal's files and their effect in memory, changed together.

Every change has three steps, in this order::

    1. write the operations      Appender.append; ``fuse.live`` is False from here on
    2. apply them to the memory  Backlog (what waits) and Reserving (what is reserved)
    3. ``fuse.live = True``      files and memory agree again

If step 1 fails, nothing was applied and the fuse has blown. If a signal's handler raises between 1 and 3, ``live``
stays False and every later call is refused. So the memory never shows a state that the files do not lead to.

After a change that lets the journal grow or shrink, :class:`~kestrel.v2.contents.Growth` rotates or rewrites it. The
caller holds the queue's mutex.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import RLock
from typing import Final

from kestrel.errors import Damage
from kestrel.tail import Sync
from kestrel.v2.backlog import MEMORY_PER_BYTE, Backlog
from kestrel.v2.codec import removes, xid_operation
from kestrel.v2.format import UNREMOVE
from kestrel.v2.hot import Changes, Reserving
from kestrel.v2.journal import Dialect
from kestrel.v2.packing import Checkpoint, dump, load, packed
from kestrel.v2.storage import Piece, Storage
from sej.system.disk import Disk

_FLUSH_STEP: Final = 1 << 16
_MOST: Final = 1 << 62


class Contents:
    """The state of one open queue.

    Attributes:
        changes: the changes of one item.
        backlog: what waits.
        fuse: the lifecycle.
        storage: the files.
        growth: rotates and rewrites the journal.
        damage: what was unreadable when the queue was opened.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        name: str,
        *,
        mutex: RLock,
        sync: Sync,
        dialect: Dialect,
        max_memory_bytes: int,
        journal_bytes: int,
        max_journal_bytes: int,
        compact_delay_s: float,
        now_ms: Callable[[], int],
        disk: Disk,
    ) -> None:
        """Replay the files, cut what is damaged, and put open transactions back.

        The mutex is the queue's; the thread that syncs takes it. The other arguments are the queue's options.
        """
        self._mutex = mutex
        self.storage = Storage(directory, name, sync=sync, sync_soon=self._sync_soon, disk=disk, now_ms=now_ms)
        self.fuse = self.storage.fuse
        self.backlog = Backlog(self.storage, max_memory_bytes, dialect=dialect)
        self._tail = self.storage.tail
        self._appender = self._tail.appender
        self.growth = Growth(
            self.storage,
            self.backlog,
            max_memory_bytes=max_memory_bytes,
            journal_bytes=journal_bytes,
            max_journal_bytes=max_journal_bytes,
            compact_delay_s=compact_delay_s,
        )
        try:
            self.storage.renew()
            reserving, damage = load(self.storage, self.backlog, dialect=dialect, at_end=self.growth.remember)
            self.changes = Changes(self._appender, self.backlog.waiting, reserving)
            self.damage: list[Damage] = damage
            self.storage.ready(self.damage)
            self.put_back(sorted(reserving.open, reverse=True))
        except BaseException:
            self.backlog.close()
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
        storage, reserving, waiting = self.storage, self.changes.reserving, self.backlog.waiting
        piece, position = storage.current, storage.size
        self._appender.append(b"".join(operations))
        for operation, data in zip(operations, items, strict=True):
            waiting.place = (piece, position)
            waiting.append((reserving.added, data, now, expiry, 0))
            reserving.added += 1
            position += len(operation)
        if closes is not None:
            self._forget(closes)
        self.fuse.live = True
        self.look_ahead()

    def _forget(self, xid: int) -> None:
        del self.changes.reserving.open[xid]
        self.changes.reserved_at.pop(xid, None)

    def put_back(self, xids: list[int]) -> None:
        """Put reserved items back at the head, one after another; so the last of xids ends there."""
        if xids:
            self._appender.append(b"".join(xid_operation(UNREMOVE, xid) for xid in xids))
            for xid in xids:
                self.backlog.waiting.appendleft(self.changes.reserving.open.pop(xid))
                self.changes.reserved_at.pop(xid, None)
            self.fuse.live = True
        self.look_ahead()

    def clear(self, now: int) -> int:
        """Remove everything that waits; returns how many items."""
        waiting = self.backlog.waiting
        last = waiting.memory[-1][2] if waiting.memory and not waiting.behind else now
        count = left = len(self.backlog)
        while left:
            step = min(left, _FLUSH_STEP)
            self._appender.append(removes(step), midway=left < count)
            left -= step
        self.backlog.clear()
        if count and last is not None:
            self.changes.reserving.taken_add_time = last
        self.fuse.live = True
        return count

    def tend(self, now: int) -> None:
        """Before an item is added and after one was taken: keep the journal small."""
        growth = self.growth
        below = growth.quiet_below if self.backlog else growth.empty_below
        if self.storage.current.size >= below or growth.passed:
            growth.tend(self.changes.reserving, now)
            self.look_ahead()

    def look_ahead(self) -> None:
        """How far the current file may grow before a change of one item needs anything but the write and its effect."""
        backlog, changes = self.backlog, self.changes
        quiet = 0 if backlog.waiting.expiring else min(_MOST, self.growth.quiet_below)
        behind = bool(backlog.waiting.behind)
        changes.behind_below = quiet if behind else 0
        changes.plain_below = 0 if behind else min(quiet, self.storage.size + backlog.room // MEMORY_PER_BYTE)
        changes.empty_below = min(changes.plain_below, self.growth.empty_below)

    def sync(self) -> None:
        """Sync all writes to disk."""
        self._tail.sync()

    def _sync_soon(self) -> None:
        with self._mutex:
            if not self.fuse.shut:
                self._tail.sync()

    @property
    def closed(self) -> bool:
        """Whether a close has finished; false after one that was interrupted."""
        return self._tail.closed

    def stop(self) -> None:
        """End the sync thread; the caller must not hold the mutex, which the thread takes."""
        self._tail.stop()

    def close(self, now: int) -> None:
        """Sync and close; the journal of an empty queue is rewritten first, as the original does."""
        try:
            if self.fuse.live and not self.backlog and self.storage.total_size:
                self.growth.rewrite(self.changes.reserving, now)
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
