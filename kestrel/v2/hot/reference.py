"""The calls of a queue for each item, in pure Python: the reference for the compiled module.

A call has a short way and a long one. The short way is for a queue without ages and time-outs that is not at a limit,
and whose journal need not be rotated or rewritten: nothing is left to do but the write and its effect. The long ways
are functions of the queue, which :class:`Calls` gets when it is made.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kestrel.v2.codec import decode_many
from kestrel.v2.format import (
    ADDX,
    ADDX_BLOCK,
    ADDX_HEAD,
    CONFIRM_REMOVE,
    MAX_XID,
    REMOVE,
    REMOVE_TENTATIVE_XID,
    XID_OP,
)
from kestrel.v2.items import ENTRY_BYTES, Item, Row, check_xid, item_of, next_xid
from kestrel.v2.rules import apply
from sej.durations import Seconds

if TYPE_CHECKING:
    from kestrel.hot import Appender

_pack: Final = ADDX_HEAD.pack
_pack_xid: Final = XID_OP.pack
_REMOVE: Final = bytes((REMOVE,))
_XID_OP_SIZE: Final = XID_OP.size


class Waiting:
    """The entries that wait.

    Attributes:
        memory: the entries that are in memory, head first.
        memory_bytes: the data of those in memory.
        behind: how many entries are in the journal only.
        behind_bytes: the data of these.
        enough: if entries are behind and no more than this are in memory, the next take reads more.
        expiring: whether any entry had an expiry of its own.
        limit_bytes: what the entries in memory may take.
        place: the piece and position of the operation whose entry is appended next; set by the caller.
    """

    def __init__(self, limit_bytes: int, *, spill: Callable[[Row], None], fill: Callable[[], None]) -> None:
        """Make one without entries.

        Args:
            limit_bytes: what the entries in memory may take.
            spill: called with an entry that has no room in memory, to count it among those that are behind.
            fill: called if there are only entries that are behind, to read at least one into memory.
        """
        self.limit_bytes = limit_bytes
        self.place: tuple[Any, int] | None = None
        self.memory: deque[Row] = deque()
        self.memory_bytes = 0
        self.behind = 0
        self.behind_bytes = 0
        self.enough = 0
        self.expiring = False
        self._spill = spill
        self._fill = fill

    def append(self, row: Row) -> None:
        """Add at the end: in memory, or only counted if that is full."""
        if row[3]:
            self.expiring = True
        if self.behind or self.memory_bytes + ENTRY_BYTES * len(self.memory) >= self.limit_bytes:
            self._spill(row)
        else:
            self.memory.append(row)
            self.memory_bytes += len(row[1])

    def appendleft(self, row: Row) -> None:
        """Put back at the head."""
        self.memory.appendleft(row)
        self.memory_bytes += len(row[1])

    def popleft(self) -> Row:
        """Take the head; IndexError if nothing waits."""
        if not self.memory:
            self._fill()
        row = self.memory.popleft()
        self.memory_bytes -= len(row[1])
        return row


class Reserving:
    """The open transactions, and what is counted.

    Attributes:
        open: the reserved rows by xid.
        last_xid: the transaction id that was used last.
        added: how many items were added so far, so the number of the next one.
        taken_add_time: the add time of the item that was removed or reserved last, ms since the epoch; 0: none was.
    """

    def __init__(self) -> None:
        self.open: dict[int, Row] = {}
        self.last_xid = 0
        self.added = 0
        self.taken_add_time = 0


def replay_block(
    reserving: Reserving, waiting: Waiting, piece: Any, data: bytes, base: int, at: int, dialect: str
) -> int:
    """Apply the whole operations of a block, up to the first one that the caller must look at.

    Args:
        reserving: the open transactions.
        waiting: the entries that wait.
        piece: the file.
        data: bytes of it.
        base: their position in the file.
        at: the first operation's position in data.
        dialect: what opcode 8 means.

    Returns:
        Where in data that operation begins: it is incomplete, damaged, of a rare kind, or a state dump.
    """
    found, stop = decode_many(data, base, at, dialect=dialect)
    for operation in found:
        if operation.count is not None:
            return operation.position - base
        waiting.place = (piece, operation.position)
        apply(reserving, waiting, operation)
    return stop


class Changes:
    """What an open queue holds, and the changes of one item: each is written first.

    Attributes:
        appender: appends to the current file.
        fuse: the lifecycle.
        waiting: what waits.
        reserving: what is reserved.
        reserved_at: when each open transaction was reserved, ms since the epoch; empty in a queue without time-outs.
        plain_below: while the current file is smaller than this, the short ways may be used if an item waits.
        empty_below: as ``plain_below``, if no item waits.
        behind_below: as ``plain_below``, while some items are in the journal only.
    """

    def __init__(self, appender: Appender, waiting: Waiting, reserving: Reserving) -> None:
        self.appender = appender
        self.fuse = appender.fuse
        self.waiting = waiting
        self.reserving = reserving
        self.reserved_at: dict[int, int] = {}
        self.plain_below = 0
        self.empty_below = 0
        self.behind_below = 0

    def may_add(self) -> bool:
        """Whether an item may be added the short way."""
        waiting = self.waiting
        below = self.behind_below if waiting.behind else self.plain_below if waiting.memory else self.empty_below
        return self.appender.entry.size < below

    def may_take(self) -> bool:
        """Whether the head may be taken the short way."""
        count = len(self.waiting.memory)
        if self.waiting.behind:
            below = self.behind_below if count > self.waiting.enough else 0
        else:
            below = self.plain_below if count > 1 else self.empty_below  # afterwards one less waits
        return count > 0 and self.appender.entry.size + _XID_OP_SIZE < below

    def add_plain(self, data: bytes, now: int) -> None:
        """Add one item without an expiry, if :meth:`may_add`."""
        size = len(data)
        self.appender.append(_pack(ADDX, ADDX_BLOCK + size, now, 0) + data)
        reserving, waiting = self.reserving, self.waiting
        if waiting.behind:
            waiting.behind += 1
            waiting.behind_bytes += size
        else:
            waiting.memory.append((reserving.added, data, now, 0, 0))
            waiting.memory_bytes += size
        reserving.added += 1
        self.fuse.live = True

    def remove(self, *, expired: bool = False) -> Row:
        """Take the head, for good. The caller has looked at it, so it is in memory."""
        self.appender.append(_REMOVE)
        row = self.waiting.popleft()
        if not expired and row[2] is not None:
            self.reserving.taken_add_time = row[2]
        self.fuse.live = True
        return row

    def reserve(self, now: int | None = None) -> tuple[int, Row]:
        """Take the head as a transaction; returns its id, and the row. As :meth:`remove`.

        Args:
            now: the time, ms since the epoch, if it is needed later; else None.
        """
        reserving = self.reserving
        open_ = reserving.open
        xid = reserving.last_xid + 1
        if not 0 < xid <= MAX_XID or xid in open_:
            xid = next_xid(reserving.last_xid, open_)
        self.appender.append(_pack_xid(REMOVE_TENTATIVE_XID, xid))
        row = self.waiting.popleft()
        reserving.last_xid = xid
        open_[xid] = row
        if now is not None:
            self.reserved_at[xid] = now
        if row[2] is not None:
            reserving.taken_add_time = row[2]
        self.fuse.live = True
        return xid, row

    def confirm(self, xid: int) -> None:
        """End an open transaction."""
        self.appender.append(_pack_xid(CONFIRM_REMOVE, xid))
        del self.reserving.open[xid]
        if self.reserved_at:
            self.reserved_at.pop(xid, None)
        self.fuse.live = True


class Calls:
    """The calls of a queue that are made for each item."""

    def __init__(
        self,
        changes: Changes,
        changed: threading.Condition,
        guard: threading.RLock,
        *,
        put: Callable[[bytes, int], None],
        get: Callable[[Seconds | None], Item | None],
        reserve: Callable[[Seconds | None], tuple[int, Item] | None],
        plain: bool,
        most_items: int,
        most_bytes: int,
        max_item_bytes: int,
        now_ms: Callable[[], int],
    ) -> None:
        """Put it together.

        Args:
            changes: what the queue holds.
            changed: notified when an item is put.
            guard: its mutex.
            put: the long way; takes the mutex.
            get: as put.
            reserve: as put.
            plain: whether the short ways may be used: no age or time-out.
            most_items: how many items may wait.
            most_bytes: how much data may wait.
            max_item_bytes: how much data one item may have.
            now_ms: the clock, in ms since the epoch.
        """
        self._waiters = 0
        """How many calls wait for an item."""
        self._transactions = 0
        """How many items were reserved."""
        self._changes = changes
        self._changed = changed
        self._guard = guard
        self._long_put, self._long_get, self._long_reserve = put, get, reserve
        self._plain = plain
        self._most_items, self._most_bytes = most_items, most_bytes
        self._max_item_bytes = max_item_bytes
        self._now_ms = now_ms

    def put(self, data: bytes, *, expiry: int = 0) -> None:
        """Add an item at the end.

        Args:
            data: its bytes.
            expiry: when it expires, in ms since the epoch; 0: never, or by the queue's max_age_s.

        Raises:
            FullError: the queue is at a limit.
            TooLargeError: the item is over the limit for one.
            FailedError: a write failed, now or before.
            ShutError: the queue is closed.
        """
        if self._plain and not expiry and type(data) is bytes and len(data) <= self._max_item_bytes:
            with self._guard:
                changes = self._changes
                waiting = changes.waiting
                if (
                    changes.may_add()
                    and len(waiting.memory) + waiting.behind < self._most_items
                    and waiting.memory_bytes + waiting.behind_bytes < self._most_bytes
                ):
                    changes.add_plain(data, self._now_ms())
                    if self._waiters:
                        self._changed.notify()
                    return
        self._long_put(data, expiry)

    def get(self, timeout: Seconds | None = 0.0) -> Item | None:
        """Take the head.

        Args:
            timeout: seconds to wait for an item; 0: do not wait, None: no limit.

        Returns:
            The item; None if none came in time.
        """
        with self._guard:
            if self._is_short():
                return item_of(self._changes.remove())
        return self._long_get(timeout)

    def reserve(self, timeout: Seconds | None = 0.0) -> tuple[int, Item] | None:
        """Take the head until ``confirm``. ``unreserve`` puts it back, and so does the next opening.

        Args:
            timeout: seconds to wait for an item; 0: do not wait, None: no limit.

        Returns:
            The transaction's id and the item; None if none came in time.
        """
        with self._guard:
            if self._is_short():
                self._transactions += 1
                xid, row = self._changes.reserve()
                return xid, item_of(row)
        return self._long_reserve(timeout)

    def confirm(self, xid: int) -> bool:
        """The reserved item is done with. False if no such transaction is open: the item was put back before."""
        with self._guard:
            changes = self._changes
            if xid in changes.reserving.open:
                changes.confirm(xid)
                return True
            changes.fuse.require_open()
            check_xid(xid)
            return False

    def _is_short(self) -> bool:
        """Whether the head may be taken the short way."""
        return self._plain and self._changes.fuse.live and self._changes.may_take()
