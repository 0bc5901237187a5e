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

import os
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from kestrel.errors import Damage, MissingError
from kestrel.files import Place, wall_clock_ms
from kestrel.tail import Sync, end
from kestrel.v2.backlog import MEMORY_PER_BYTE, Backlog, next_xid
from kestrel.v2.format import CONFIRM_REMOVE, REMOVE_TENTATIVE_XID, UNREMOVE, addx, continue_, removes, xid_operation
from kestrel.v2.items import Row
from kestrel.v2.journal import DIALECT, Dialect, list_parts
from kestrel.v2.replay import Checkpoint, dump, load, packed
from kestrel.v2.storage import Storage
from sej.system.disk import OS, Disk

_FLUSH_STEP: Final = 1 << 16
_MOST: Final = 1 << 62
MEMORY_BYTES: Final = 32 << 20
"""The memory of a pack, an export or an import."""


class Sizes(NamedTuple):
    """When a journal is rotated or rewritten, as the options of a queue say; by default never."""

    max_memory_bytes: int
    journal_bytes: int = _MOST
    max_journal_bytes: int = _MOST
    compact_delay_s: float = 0.0


class Contents:
    """The state of one open queue; a :class:`~kestrel.tail.Store`.

    Attributes:
        backlog: what waits, and what is reserved.
        reserved_at: when each open transaction was reserved, ms since the epoch; empty in a queue without time-outs.
        tail: appends to the current file.
        fuse: the lifecycle.
        storage: the files.
        growth: rotates and rewrites the journal.
        damage: what was unreadable when the queue was opened.
    """

    def __init__(
        self,
        place: Place,
        sizes: Sizes,
        dialect: Dialect = "auto",
        sync: Sync = "never",
        *,
        put_back: bool = False,
        renew: bool = True,
    ) -> None:
        """Take the lock, replay the files and cut what is damaged.

        Args:
            place: where the queue is.
            sizes: when the journal is rotated or rewritten.
            dialect: what opcode 8 means.
            sync: when writes are synced to disk.
            put_back: whether open transactions are put back, the lowest xid at the head.
            renew: whether what earlier processes left is made durable first; False for what is replaced anyway.
        """
        self.storage = storage = Storage(place, dialect, sync)
        self.tail, self.fuse = storage.tail, storage.fuse
        self.backlog = backlog = Backlog(storage.files, sizes.max_memory_bytes)
        self.growth = Growth(storage, backlog, sizes)
        self.reserved_at: dict[int, int] = {}
        try:
            storage.open()
            if renew:
                self.tail.renewing.renew([piece.path for piece in storage.pieces])
            self.damage, self.growth.checkpoints = load(storage.files, backlog)
            storage.ready(self.damage)
            self.put_back(sorted(backlog.open, reverse=True) if put_back else [])
        except BaseException:
            end(self)
            raise

    def add(self, items: Sequence[bytes], now: int, expiry: int, *, closes: int | None = None) -> None:
        """Add items at the end, with one write.

        Args:
            items: their data; one if it closes a transaction.
            now: their add time.
            expiry: their expiry; 0: never.
            closes: the transaction that is confirmed by the same operation.
        """
        storage, backlog = self.storage, self.backlog
        piece, position = storage.current, storage.current.size
        operations = [addx(data, now, expiry) for data in items]
        if closes is not None:
            operations = [continue_(closes, data, now, expiry) for data in items]
        self.tail.append(b"".join(operations))
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
        self.tail.append(removes(1))
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
        xid = next_xid(backlog.last_xid, backlog.open)
        self.tail.append(xid_operation(REMOVE_TENTATIVE_XID, xid))
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
        self.tail.append(xid_operation(CONFIRM_REMOVE, xid))
        self._forget(xid)
        self.fuse.live = True

    def _forget(self, xid: int) -> None:
        del self.backlog.open[xid]
        self.reserved_at.pop(xid, None)

    def put_back(self, xids: list[int]) -> None:
        """Put reserved items back at the head, one after another; so the last of xids ends there."""
        if xids:
            self.tail.append(b"".join(xid_operation(UNREMOVE, xid) for xid in xids))
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
            self.tail.append(removes(step), midway=left < count)
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
        backlog.plain_below = 0 if behind else min(quiet, self.storage.current.size + backlog.room // MEMORY_PER_BYTE)
        backlog.empty_below = min(backlog.plain_below, self.growth.empty_below)

    def settle(self) -> None:
        """Rewrite the journal of an empty queue, as the original does."""
        if self.fuse.live and not self.backlog and self.storage.total_size:
            self.growth.rewrite(self.storage.place.now_ms())

    def erase(self) -> None:
        """Remove the queue's files."""
        self.storage.erase()

    def release(self) -> None:
        """Close what is read."""
        self.backlog.close()


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
        older = self._storage.total_size - self._storage.current.size
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
        size = storage.current.size
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
        self._fresh_bytes = self._storage.current.size
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


def require(place: Place) -> None:
    """Make sure that a queue has files, for callers that would otherwise make an empty queue.

    Raises:
        MissingError: the directory does not exist, or has no file of the queue.
    """
    if not any(list_parts(place.files(), place.name)):
        raise MissingError(
            f"the directory holds no file of a queue {place.name!r}; check the name", path=place.directory
        )


def pack(
    directory: str | os.PathLike[str],
    name: str,
    *,
    dialect: Dialect = "auto",
    disk: Disk = OS,
    now_ms: Callable[[], int] = wall_clock_ms,
) -> list[Damage]:
    """Put all files of a queue that no process has open into one, with the same items, open transactions and last xid.

    Memory stays bounded; damaged bytes are copied to ``kept/``.

    Args:
        directory: where the files are.
        name: the queue.
        dialect: what opcode 8 means.
        disk: the seam.
        now_ms: the clock, in ms since the epoch.

    Returns:
        What was unreadable.

    Raises:
        MissingError: the directory has no such queue.
        BusyError: another process has the queue open.
        DamageError: the files are those of a Kestrel 3 queue, which packs nothing.
        FailedError: a write failed; the journal holds the same as before.
    """
    place = Place.of(directory, name, disk, now_ms)
    DIALECT("dialect", dialect)
    with place.opening():
        require(place)
        store = Contents(place, Sizes(MEMORY_BYTES), dialect, renew=False)
        try:
            store.growth.rewrite(now_ms())
        finally:
            end(store)
    return store.damage
