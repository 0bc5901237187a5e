"""A Kestrel 2 queue: items in, items out, everything in a journal that Kestrel 2.1 to 2.4.8 reads too.

Promises: an operation that returned survives the death of the process; an item that was reserved and not confirmed
comes back when the queue is opened; expiry, limits and the journal's growth follow the original's rules, its defects do
not. One process opens a queue; its threads share it.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import time_ns
from typing import Final

from kestrel.clock import wall_clock_ms
from kestrel.v2.codec import addx, continue_, removes, xid_operation
from kestrel.v2.format import ADDX, ADDX_BLOCK, ADDX_HEAD, CONFIRM_REMOVE, MAX_TIME_MS, REMOVE_TENTATIVE_XID
from kestrel.v2.opened import Counters, Opened
from kestrel.v2.replay import Item, next_xid

__all__ = ["Counters", "Queue"]

_FLUSH_STEP: Final = 1 << 16
_pack: Final = ADDX_HEAD.pack


class Queue(Opened):
    """A queue in a Kestrel 2 journal.

    Any call may raise :class:`~kestrel.errors.FailedError` (a write, a sync or the lock failed, now or before) and,
    after ``close`` and in a forked child, :class:`~kestrel.errors.ShutError`.

    Example:
        >>> with Queue(directory, "cars") as queue:  # doctest: +SKIP
        ...     queue.put(b"a car")
        ...     xid, item = queue.reserve()
        ...     queue.confirm(xid)
    """

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
        if type(data) is not bytes or (size := len(data)) > self._max_item_bytes:
            data = self._checked(data)
            size = len(data)
        if expiry and not 0 < expiry <= MAX_TIME_MS:
            raise ValueError(f"expiry must be 0 or ms since the epoch, not {expiry}")
        with self._guard:
            storage = self._storage
            if expiry or storage.current.size >= self._plain_below:
                now = self._prepare((data,))
                expiry = self._capped(now, expiry)
                self._add([addx(data, now, expiry)], [data], now, expiry)
                return
            # As _add does it. Nothing but these lines, for the most common call: most of its time is Python's own.
            tick = time_ns()
            now = tick // 1_000_000 if self._now_ms is wall_clock_ms else self._now_ms()
            storage.append(_pack(ADDX, ADDX_BLOCK + size, now, 0) + data, tick)
            machine, backlog = self._machine, self._backlog
            backlog.memory.append((machine.added, data, now, 0, 0))
            backlog.memory_bytes += size
            machine.added += 1
            self._fuse.live = True
            if self._waiters:
                self._changed.notify()

    def put_many(self, values: Iterable[bytes], *, expiry: int = 0) -> int:
        """Add items at the end, with one write; returns how many. Limits refuse all of them or none.

        Where the write fails in its midst, or the process dies there, the first ones may be found at the next opening:
        the format has nothing that binds them together.

        Args:
            values: their bytes.
            expiry: of all of them, as for :meth:`put`.

        Raises:
            FullError: there is no room for all of them.
            TooLargeError: one of them is over the limit for one.
        """
        items = [self._checked(data) for data in values]
        if not 0 <= expiry <= MAX_TIME_MS:
            raise ValueError(f"expiry must be 0 or ms since the epoch, not {expiry}")
        with self._guard:
            now = self._prepare(items)
            expiry = self._capped(now, expiry)
            self._add([addx(data, now, expiry) for data in items], items, now, expiry)
        return len(items)

    def get(self, timeout: float | None = 0.0) -> Item | None:
        """Take the head.

        Args:
            timeout: seconds to wait for an item; 0: do not, None: for ever.

        Returns:
            The item; None when there was none in time.
        """
        with self._guard:
            if self._wait(timeout) is None:
                return None
            self._storage.append(removes(1))
            item = self._backlog.popleft().item
            self._fuse.live = True
            self._removed(self._now_ms())
        return item

    def peek(self, timeout: float | None = 0.0) -> Item | None:
        """The head, which stays. As :meth:`get`."""
        with self._guard:
            entry = self._wait(timeout)
            if entry is not None and self._waiters:
                self._changed.notify()  # the item stays, and this call may have been the one that was woken for it
            return None if entry is None else entry.item

    def reserve(self, timeout: float | None = 0.0) -> tuple[int, Item] | None:
        """Take the head for now: until ``confirm`` it comes back by ``unreserve`` or at the next opening.

        Args:
            timeout: seconds to wait for an item; 0: do not, None: for ever.

        Returns:
            The transaction's id and the item; None when there was none in time.
        """
        found = self.reserve_numbered(timeout)
        return None if found is None else (found[0], found[2])

    def reserve_numbered(self, timeout: float | None = 0.0) -> tuple[int, int, Item] | None:
        """As :meth:`reserve`; in the midst a number that is the item's own for as long as the queue is open."""
        with self._guard:
            if self._wait(timeout) is None:
                return None
            xid = next_xid(self._machine.last_xid, self._machine.open)
            self._storage.append(xid_operation(REMOVE_TENTATIVE_XID, xid))
            entry = self._backlog.popleft()
            self._machine.last_xid = xid
            self._machine.open[xid] = entry
            now = self._now_ms()
            self._reserved_at[xid] = now
            self._counts["opened"] += 1
            self._fuse.live = True
            self._removed(now)
            assert entry.item is not None
            return xid, entry.number, entry.item

    def confirm(self, xid: int) -> bool:
        """The reserved item is done with. False where no such transaction is open: it was put back in the meantime."""
        with self._guard:
            if xid not in self._machine.open:
                self._check_open()
                return False
            self._storage.append(xid_operation(CONFIRM_REMOVE, xid))
            self._close_transaction(xid)
            self._fuse.live = True
            return True

    def unreserve(self, xid: int) -> bool:
        """Put the reserved item back at the head. False where no such transaction is open."""
        with self._guard:
            if xid not in self._machine.open:
                self._check_open()
                return False
            self._back_out([xid])
            return True

    def continue_(self, xid: int, data: bytes, *, expiry: int = 0) -> bool:
        """Confirm a reserved item and add another one at the end, as one operation.

        Args:
            xid: of the reserved item.
            data: of the new one.
            expiry: of the new one, in ms since the epoch; 0: never, or by the queue's max_age_s.

        Returns:
            False where no such transaction is open; nothing was added.

        Raises:
            TooLargeError: the item is over the limit for one. Limits on the queue do not count here: no FullError.
        """
        data = self._checked(data)
        with self._guard:
            if xid not in self._machine.open:
                self._check_open()
                return False
            now = self._prepare(())
            expiry = self._capped(now, expiry)
            self._add([continue_(xid, data, now, expiry)], [data], now, expiry, closes=xid)
            return True

    def flush(self) -> int:
        """Remove all waiting items; reserved ones stay reserved. Returns how many were removed."""
        with self._guard:
            self._check_open()
            count = left = len(self._backlog)
            while left:
                step = min(left, _FLUSH_STEP)
                self._storage.append(removes(step), midway=left < count)
                left -= step
            self._backlog.clear()
            self._counts["flushes"] += 1
            self._fuse.live = True
            self._removed(self._now_ms())
            return count

    def flush_expired(self) -> int:
        """Remove the expired items at the head, as every put, get and peek does. Returns how many were removed."""
        with self._guard:
            self._check_open()
            before = self._counts["expired"]
            self._expire(self._now_ms())
            return self._counts["expired"] - before

    def _add(
        self, operations: list[bytes], items: list[bytes], now: int, expiry: int, *, closes: int | None = None
    ) -> None:
        storage, machine, backlog = self._storage, self._machine, self._backlog
        piece, position = storage.current, storage.size
        storage.append(b"".join(operations))
        for operation, data in zip(operations, items, strict=True):
            backlog.place = (piece, position)
            backlog.add(machine.added, data, now, expiry)
            machine.added += 1
            position += len(operation)
        if closes is not None:
            self._close_transaction(closes)
        self._fuse.live = True
        self._look_ahead()
        if self._waiters:
            self._changed.notify(len(items))

    def _close_transaction(self, xid: int) -> None:
        del self._machine.open[xid]
        self._reserved_at.pop(xid, None)
