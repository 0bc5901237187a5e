"""What an open queue holds: the journal's files and their effect in memory, changed together.

Every change has three steps, in this order::

    1. write the operations      Storage.tail.append; ``fuse.live`` is False from here on
    2. apply them to the memory  Backlog (what waits) and Machine (what is reserved)
    3. ``fuse.live = True``      files and memory agree again

If step 1 fails, nothing was applied and the fuse has blown. If a signal's handler raises between 1 and 3, ``live``
stays False and every later call is refused. So the memory never shows a state that the files do not lead to.

After a change that lets the journal grow or shrink, :class:`~kestrel.v2.growth.Growth` rotates or rewrites it. The
caller holds the queue's mutex.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final

from kestrel.errors import Damage
from kestrel.syncing import Sync
from kestrel.v2.backlog import MEMORY_PER_BYTE, Backlog
from kestrel.v2.codec import removes, xid_operation
from kestrel.v2.format import (
    ADDX,
    ADDX_BLOCK,
    ADDX_HEAD,
    CONFIRM_REMOVE,
    MAX_XID,
    REMOVE_TENTATIVE_XID,
    UNREMOVE,
    XID_OP,
)
from kestrel.v2.growth import Growth
from kestrel.v2.journal import Dialect
from kestrel.v2.packing import load
from kestrel.v2.replay import Row, next_xid
from kestrel.v2.storage import Storage
from sej.system.disk import Disk

__all__ = ["Contents"]

_FLUSH_STEP: Final = 1 << 16
_pack: Final = ADDX_HEAD.pack
_pack_xid: Final = XID_OP.pack
_REMOVE: Final = removes(1)


class Contents:
    """The state of one open queue.

    Attributes:
        storage: the files.
        backlog: what waits.
        machine: what is reserved, the last xid, and how many items were added.
        growth: rotates and rewrites the journal.
        fuse: the lifecycle.
        damage: what was unreadable when the queue was opened.
        reserved_at: when each open transaction was reserved, ms since the epoch.
        plain_below: while the current file is smaller than this, :meth:`add_plain` may be used.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        name: str,
        *,
        mutex: threading.RLock,
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
        self._tail = self.storage.tail
        self.backlog = Backlog(self.storage, max_memory_bytes, dialect=dialect)
        self.growth = Growth(
            self.storage,
            self.backlog,
            max_memory_bytes=max_memory_bytes,
            journal_bytes=journal_bytes,
            max_journal_bytes=max_journal_bytes,
            compact_delay_s=compact_delay_s,
        )
        self.reserved_at: dict[int, int] = {}
        self.plain_below = 0
        try:
            self.storage.renew()
            self.machine, damage = load(self.storage, self.backlog, dialect=dialect, at_end=self.growth.remember)
            self.damage: list[Damage] = damage
            self.storage.ready(self.damage)
            self.put_back(sorted(self.machine.open, reverse=True))
        except BaseException:
            self.backlog.close()
            self._tail.close()
            raise

    def add_plain(self, data: bytes, now: int, tick: int) -> None:
        """As :meth:`add` of one item without an expiry, while the current file is smaller than ``plain_below``.

        The most common change: nothing but these lines, because most of its time is Python's.
        """
        size = len(data)
        self._tail.append(_pack(ADDX, ADDX_BLOCK + size, now, 0) + data, tick)
        machine, backlog = self.machine, self.backlog
        backlog.memory.append((machine.added, data, now, 0, 0))
        backlog.memory_bytes += size
        machine.added += 1
        self.fuse.live = True

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
        storage, machine, backlog = self.storage, self.machine, self.backlog
        piece, position = storage.current, storage.size
        self._tail.append(b"".join(operations))
        for operation, data in zip(operations, items, strict=True):
            backlog.place = (piece, position)
            backlog.append((machine.added, data, now, expiry, 0))
            machine.added += 1
            position += len(operation)
        if closes is not None:
            self._forget(closes)
        self.fuse.live = True
        self._look_ahead()

    def remove(self, *, expired: bool = False) -> Row:
        """Take the head, for good. The caller has looked at it, so it is in memory."""
        self._tail.append(_REMOVE)
        row = self.backlog.popleft()
        if not expired and row[2] is not None:
            self.machine.taken_add_time = row[2]
        self.fuse.live = True
        return row

    def reserve(self, now: int, tick: int | None = None) -> tuple[int, Row]:
        """Take the head as a transaction; returns its id, and the row. As :meth:`remove`.

        Args:
            now: the time, ms since the epoch.
            tick: ``time.time_ns()``, if the caller has it.
        """
        machine = self.machine
        open_ = machine.open
        xid = machine.last_xid + 1
        if not 0 < xid <= MAX_XID or xid in open_:
            xid = next_xid(machine.last_xid, open_)
        self._tail.append(_pack_xid(REMOVE_TENTATIVE_XID, xid), tick)
        row = self.backlog.popleft()
        machine.last_xid = xid
        open_[xid] = row
        self.reserved_at[xid] = now
        if row[2] is not None:
            machine.taken_add_time = row[2]
        self.fuse.live = True
        return xid, row

    def confirm(self, xid: int) -> None:
        """End an open transaction."""
        self._tail.append(_pack_xid(CONFIRM_REMOVE, xid))
        self._forget(xid)
        self.fuse.live = True

    def _forget(self, xid: int) -> None:
        del self.machine.open[xid]
        del self.reserved_at[xid]

    def put_back(self, xids: list[int]) -> None:
        """Put reserved items back at the head, one after another; so the last of xids ends there."""
        if xids:
            self._tail.append(b"".join(xid_operation(UNREMOVE, xid) for xid in xids))
            for xid in xids:
                self.backlog.appendleft(self.machine.open.pop(xid))
                self.reserved_at.pop(xid, None)
            self.fuse.live = True
        self._look_ahead()

    def clear(self, now: int) -> int:
        """Remove everything that waits; returns how many items."""
        last = self.backlog.memory[-1][2] if self.backlog.memory and not self.backlog.behind else now
        count = left = len(self.backlog)
        while left:
            step = min(left, _FLUSH_STEP)
            self._tail.append(removes(step), midway=left < count)
            left -= step
        self.backlog.clear()
        if count and last is not None:
            self.machine.taken_add_time = last
        self.fuse.live = True
        return count

    def tend(self, now: int) -> None:
        """Before an item is added and after one was taken: keep the journal small."""
        if self.storage.current.size >= self.growth.quiet_below:
            self.growth.tend(self.machine, now)
            self._look_ahead()

    def _look_ahead(self) -> None:
        """How far the current file may grow by plain items before adding needs anything but the write."""
        backlog = self.backlog
        if backlog.expiring or backlog.behind:
            self.plain_below = 0
        else:
            self.plain_below = min(self.growth.quiet_below, self.storage.size + backlog.room // MEMORY_PER_BYTE)

    def sync(self) -> None:
        """Sync all writes to disk."""
        self._tail.sync()

    def _sync_soon(self) -> None:
        with self._mutex:
            if not self.fuse.shut:
                self._tail.sync()

    def stop(self) -> None:
        """End the sync thread; the caller must not hold the mutex, which the thread takes."""
        self._tail.stop()

    def close(self, now: int) -> None:
        """Sync and close; the journal of an empty queue is rewritten first, as the original does."""
        try:
            if self.fuse.live and not self.backlog and self.storage.total_size:
                self.growth.rewrite(self.machine, now)
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
            self.backlog.close()
