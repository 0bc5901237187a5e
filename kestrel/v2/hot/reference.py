"""The calls of a queue for each item, in pure Python: the reference for the compiled module.

A call has a short way and a long one. The short way is for a queue without ages and time-outs that is in memory and not
at a limit, and whose journal need not be rotated or rewritten: nothing is left to do but the write and its effect. The
long way is in :mod:`kestrel.v2.queue` and :mod:`kestrel.v2.contents`, which inherit from these classes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from kestrel.v2.codec import Operation, decode_many
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
from kestrel.v2.items import Item, Row, item_of, next_xid
from sej.durations import Seconds

if TYPE_CHECKING:
    from kestrel.hot import Appender, Live
    from sej.mutex import Mutex

__all__ = ["Calls", "Changes", "Reserving", "Waiting", "replay_block"]

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
        expiring: whether any entry had an expiry of its own.
        limit_bytes: what the entries in memory may take.
        place: the piece and position of the operation whose entry is appended next; set by the caller.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.place: tuple[Any, int] | None = None
        self.memory: deque[Row] = deque()
        self.memory_bytes = 0
        self.behind = 0
        self.behind_bytes = 0
        self.expiring = False

    def popleft(self) -> Row:
        """Take the head. Reading stays with ``head``, so that it can fail only before anything was written."""
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

    def apply(self, operation: Operation) -> None:
        """Do what one operation says."""
        raise NotImplementedError


def replay_block(
    machine: Reserving, backlog: Waiting, piece: Any, data: bytes, base: int, at: int, dialect: str
) -> int:
    """Apply the whole operations of a block, up to the first one that the caller must look at.

    Args:
        machine: applies them to the backlog.
        backlog: the machine's store.
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
        backlog.place = (piece, operation.position)
        machine.apply(operation)
    return stop


class Changes:
    """What an open queue holds, and the changes of one item: each is written first.

    Attributes:
        tail: appends to the current file.
        fuse: the lifecycle.
        backlog: what waits.
        machine: what is reserved.
        reserved_at: when each open transaction was reserved, ms since the epoch; empty in a queue without time-outs.
        plain_below: while the current file is smaller than this, the short ways may be used.
    """

    fuse: Live
    machine: Reserving

    def __init__(self, tail: Appender, backlog: Waiting) -> None:
        self.tail = tail
        self.fuse = tail.fuse
        self.backlog = backlog
        self.reserved_at: dict[int, int] = {}
        self.plain_below = 0

    def add_plain(self, data: bytes, now: int) -> None:
        """Add one item without an expiry, while the current file is smaller than ``plain_below``."""
        size = len(data)
        self.tail.append(_pack(ADDX, ADDX_BLOCK + size, now, 0) + data)
        machine, backlog = self.machine, self.backlog
        backlog.memory.append((machine.added, data, now, 0, 0))
        backlog.memory_bytes += size
        machine.added += 1
        self.fuse.live = True

    def remove(self, *, expired: bool = False) -> Row:
        """Take the head, for good. The caller has looked at it, so it is in memory."""
        self.tail.append(_REMOVE)
        row = self.backlog.popleft()
        if not expired and row[2] is not None:
            self.machine.taken_add_time = row[2]
        self.fuse.live = True
        return row

    def reserve(self, now: int | None = None) -> tuple[int, Row]:
        """Take the head as a transaction; returns its id, and the row. As :meth:`remove`.

        Args:
            now: the time, ms since the epoch, if it is needed later; else None.
        """
        machine = self.machine
        open_ = machine.open
        xid = machine.last_xid + 1
        if not 0 < xid <= MAX_XID or xid in open_:
            xid = next_xid(machine.last_xid, open_)
        self.tail.append(_pack_xid(REMOVE_TENTATIVE_XID, xid))
        row = self.backlog.popleft()
        machine.last_xid = xid
        open_[xid] = row
        if now is not None:
            self.reserved_at[xid] = now
        if row[2] is not None:
            machine.taken_add_time = row[2]
        self.fuse.live = True
        return xid, row

    def confirm(self, xid: int) -> None:
        """End an open transaction."""
        self.tail.append(_pack_xid(CONFIRM_REMOVE, xid))
        del self.machine.open[xid]
        if self.reserved_at:
            self.reserved_at.pop(xid, None)
        self.fuse.live = True


class Calls:
    """The calls of a queue that are made for each item."""

    _guard: Mutex
    _contents: Changes
    _changed: threading.Condition
    _waiters: int
    _transactions: int
    _plain: bool
    """Whether the short ways may be used: no age or time-out."""
    _most_items: int
    _most_bytes: int
    _now_ms: Callable[[], int]
    _max_item_bytes: int

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
                contents = self._contents
                backlog = contents.backlog
                if (
                    contents.tail.entry.size < contents.plain_below
                    and len(backlog.memory) < self._most_items
                    and backlog.memory_bytes < self._most_bytes
                ):
                    contents.add_plain(data, self._now_ms())
                    if self._waiters:
                        self._changed.notify()
                    return
        self._put(data, expiry)

    def get(self, timeout: Seconds | None = 0.0) -> Item | None:
        """Take the head.

        Args:
            timeout: seconds to wait for an item; 0: do not wait, None: no limit.

        Returns:
            The item; None if none came in time.
        """
        with self._guard:
            if self._is_short():
                return item_of(self._contents.remove())
        return self._get(timeout)

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
                xid, row = self._contents.reserve()
                return xid, item_of(row)
        found = self.reserve_numbered(timeout)
        return None if found is None else (found[0], found[2])

    def confirm(self, xid: int) -> bool:
        """The reserved item is done with. False if no such transaction is open: the item was put back before."""
        with self._guard:
            contents = self._contents
            if xid in contents.machine.open:
                contents.confirm(xid)
                return True
            contents.fuse.require_open()
            return False

    def _is_short(self) -> bool:
        """Whether the head may be taken the short way."""
        contents = self._contents
        return (
            self._plain
            and contents.fuse.live
            and bool(contents.backlog.memory)
            and contents.tail.entry.size + _XID_OP_SIZE < contents.plain_below
        )

    def reserve_numbered(self, timeout: Seconds | None = 0.0) -> tuple[int, int, Item] | None:
        """As :meth:`reserve`; the number in the middle identifies the item for as long as the queue is open."""
        raise NotImplementedError

    def _put(self, data: bytes, expiry: int) -> None:
        """Add an item the long way."""
        raise NotImplementedError

    def _get(self, timeout: Seconds | None) -> Item | None:
        """Take the head the long way."""
        raise NotImplementedError
