"""A Kestrel 2 queue: items in, items out, everything in a journal that Kestrel 2.1 to 2.4.8 reads too.

Promises: an operation that returned survives the death of the process. An item that was reserved and not confirmed is
delivered again after the queue is opened the next time. Expiry, limits and the journal's growth follow the original's
rules, not its defects. One process opens a queue; its threads share it.

``contents`` changes files and memory together. This module adds the mutex, waiting, limits, expiry and counters.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from kestrel.errors import Damage, FullError, TooLargeError
from kestrel.fast import Calls, shorten
from kestrel.files import Limits, Place, wall_clock_ms
from kestrel.tail import OpenQueue, Sync
from kestrel.v2.contents import Contents, Sizes
from kestrel.v2.format import MAX_ITEM_SIZE, MAX_TIME_MS
from kestrel.v2.items import Counters, Item, Row, item_of
from kestrel.v2.journal import DIALECT, Dialect
from sej.checks import Seconds, between, optional, require, seconds, with_methods
from sej.system.disk import OS, Disk

_EXPIRY: Final = between(0, MAX_TIME_MS)


class Sink(Protocol):
    """What expired items are put into; a queue is one."""

    def put(self, data: bytes) -> None:
        """Add an item."""


class Queue(Calls, OpenQueue):
    """A queue in a Kestrel 2 journal.

    Any call may raise :class:`~kestrel.errors.FailedError` (a write, a sync or the lock failed, now or before) and,
    after ``close`` and in a forked child, :class:`~kestrel.errors.ShutError`.

    Attributes:
        name: the queue's name.
        directory: where its files are.
        damage: what was unreadable when it was opened; those bytes are in ``kept/``.

    Example:
        >>> with Queue(directory, "cars") as queue:  # doctest: +SKIP
        ...     queue.put(b"a car")
        ...     xid, item = queue.reserve()
        ...     queue.confirm(xid)
    """

    _store: Contents

    def __init__(
        self,
        directory: str | os.PathLike[str],
        name: str,
        *,
        max_items: int | None = None,
        max_bytes: int | None = None,
        max_item_bytes: int | None = None,
        discard_oldest: bool = False,
        max_age_s: Seconds | None = None,
        expire_to: Sink | None = None,
        open_timeout_s: Seconds | None = None,
        sync: Sync = "never",
        max_memory_bytes: int = 128 << 20,
        journal_bytes: int = 16 << 20,
        max_journal_bytes: int = 1 << 30,
        compact_delay_s: Seconds = 60.0,
        dialect: Dialect = "auto",
        now_ms: Callable[[], int] = wall_clock_ms,
        disk: Disk = OS,
    ) -> None:
        """Open a queue, or make it. Open transactions are put back, the lowest xid at the head, as the original does.

        Args:
            directory: where the files are; made if missing.
            name: at least one character, none of ``. / ~``.
            max_items: how many items may wait.
            max_bytes: how much data may wait; passed by one item at most.
            max_item_bytes: how much data one item may have.
            discard_oldest: at a limit drop the oldest items instead of refusing the new one.
            max_age_s: after how many seconds every item expires.
            expire_to: the queue that expired items are put into, without expiry; one that it refuses is dropped.
            open_timeout_s: after how many seconds a reserved item is put back, at the next get or reserve.
            sync: when writes are synced to disk: ``"never"``, ``"always"``, or the seconds between syncs.
            max_memory_bytes: what waiting items may take in memory; also the size at which a file is rotated.
            journal_bytes: the size at which the journal of an empty queue is rewritten.
            max_journal_bytes: the size of all files at which the journal of a queue that is in memory is rewritten.
            compact_delay_s: the least time between two of these.
            dialect: what opcode 8 means in the files that are there.
            now_ms: the clock, in ms since the epoch.
            disk: the seam.

        Raises:
            BusyError: another process or object has the queue open.
            BadNameError: no queue can have this name.
            DamageError: the files are those of a Kestrel 3 queue.
            FailedError: the lock or a write failed.
            ValueError: a size, count or time is below 0.
        """
        max_age_s, open_timeout_s = seconds("max_age_s", max_age_s), seconds("open_timeout_s", open_timeout_s)
        compact_delay_s = seconds("compact_delay_s", compact_delay_s)
        place = Place.of(directory, name, disk, now_ms)
        require(discard_oldest=discard_oldest, open_timeout_s=open_timeout_s, max_memory_bytes=max_memory_bytes)
        require(journal_bytes=journal_bytes, max_journal_bytes=max_journal_bytes, compact_delay_s=compact_delay_s)
        require(expire_to=(expire_to, optional(with_methods("a queue", "put"))), dialect=(dialect, DIALECT))
        self._limits = limits = Limits(place, max_items, max_bytes, max_item_bytes, max_age_s, most=MAX_ITEM_SIZE)
        self._discard_oldest, self._expire_to = discard_oldest, expire_to
        self._open_timeout_ms = None if open_timeout_s is None else int(open_timeout_s * 1000)
        self._counts = dict.fromkeys(("expired_items", "discarded", "canceled_transactions", "total_flushes"), 0)
        with place.opening():
            sizes = Sizes(max_memory_bytes, journal_bytes, max_journal_bytes, compact_delay_s)
            self._store = Contents(place, sizes, dialect, sync, put_back=True)
        self._backlog = self._store.backlog
        self.damage: list[Damage] = self._store.damage
        OpenQueue.__init__(self, self._store)
        plain = max_age_s is None and open_timeout_s is None
        super().__init__(self._backlog, self._tail, limits, plain=plain, now_ms=now_ms)

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
        self.put_many((data,), expiry=expiry)

    def put_many(self, values: Iterable[bytes], *, expiry: int = 0) -> int:
        """Add items at the end, with one write; returns how many. Limits refuse all of them or none.

        If the write fails in the middle, or the process dies there, the first ones may be found at the next opening:
        the format has nothing that binds them together.

        Args:
            values: their bytes.
            expiry: of all of them, as for :meth:`put`.

        Raises:
            FullError: the queue has no room for all of them.
            TooLargeError: one of them is over the limit for one.
        """
        items = [self._limits.checked(data) for data in values]
        _EXPIRY("expiry", expiry)
        with self._signal.guard:
            self._add(items, expiry)
        return len(items)

    def get(self, timeout: Seconds | None = 0.0) -> Item | None:
        """Take the head.

        Args:
            timeout: seconds to wait for an item; 0: do not wait, None: no limit.

        Returns:
            The item; None if none came in time.
        """
        with self._signal.guard:
            if self._wait(timeout) is None:
                return None
            row = self._store.remove()
            self._store.tend(self._now_ms())
        return item_of(row)

    def peek(self, timeout: Seconds | None = 0.0) -> Item | None:
        """Return the head, without taking it. As :meth:`get`."""
        with self._signal.guard:
            row = self._wait(timeout)
            if row is not None:
                self._signal.notify()  # the item stays, and this call may have been the one that was woken for it
            return None if row is None else item_of(row)

    def reserve(self, timeout: Seconds | None = 0.0) -> tuple[int, Item] | None:
        """Take the head until ``confirm``. ``unreserve`` puts it back, and so does the next opening.

        Args:
            timeout: seconds to wait for an item; 0: do not wait, None: no limit.

        Returns:
            The transaction's id and the item; None if none came in time.
        """
        with self._signal.guard:
            if self._wait(timeout, reserving=True) is None:
                return None
            now = self._now_ms()
            xid, row = self._store.reserve(None if self._open_timeout_ms is None else now)
            self._store.tend(now)
            return xid, item_of(row)

    def number_of(self, xid: int) -> int | None:
        """The number of a reserved item, its own as long as the queue is open; None: it is not reserved."""
        with self._signal.guard:
            row = self._backlog.open.get(xid)
            return None if row is None else row[0]

    def confirm(self, xid: int) -> bool:
        """The reserved item is done with. False if no such transaction is open: the item was put back before."""
        with self._signal.guard:
            if not self._is_open(xid):
                return False
            self._store.confirm(xid)
            return True

    def unreserve(self, xid: int) -> bool:
        """Put the reserved item back at the head. False if no such transaction is open."""
        with self._signal.guard:
            if not self._is_open(xid):
                return False
            self._put_back([xid])
            return True

    def continue_(self, xid: int, data: bytes, *, expiry: int = 0) -> bool:
        """Confirm a reserved item and add another one at the end, as one operation.

        Args:
            xid: of the reserved item.
            data: of the new one.
            expiry: of the new one, in ms since the epoch; 0: never, or by the queue's max_age_s.

        Returns:
            False if no such transaction is open; nothing was added.

        Raises:
            TooLargeError: the item is over the limit for one. Limits on the queue do not count here: no FullError.
        """
        data = self._limits.checked(data)
        _EXPIRY("expiry", expiry)
        with self._signal.guard:
            if not self._is_open(xid):
                return False
            self._add([data], expiry, closes=xid)
            return True

    def flush(self) -> int:
        """Remove all waiting items; reserved ones stay reserved. Returns how many were removed."""
        with self._signal.guard:
            self._fuse.require_open()  # notices a fork
            self._tail.check()
            count = self._store.clear(self._now_ms())
            self._counts["total_flushes"] += 1
            self._store.tend(self._now_ms())
            return count

    def __len__(self) -> int:
        with self._signal.guard:
            return len(self._backlog)

    @property
    def open_transactions(self) -> dict[int, Item]:
        """The reserved items by xid."""
        with self._signal.guard:
            return {xid: item_of(row) for xid, row in self._backlog.open.items()}

    def counters(self) -> Counters:
        """What the original counts."""
        with self._signal.guard:
            store, backlog = self._store, self._backlog
            return Counters(
                items=len(backlog),
                bytes=backlog.data_bytes,
                total_items=backlog.added,
                logsize=store.storage.current.size,
                mem_items=len(backlog.memory),
                mem_bytes=backlog.memory_bytes,
                age=max(self._now_ms() - backlog.taken_add_time, 0) if backlog.data_bytes else 0,
                waiters=self._signal.waiters,
                open_transactions=len(backlog.open),
                transactions=backlog.transactions,
                journal_rewrites=store.rewrites,
                journal_rotations=store.rotations,
                **self._counts,
            )

    # Every method from here on is called under the mutex.

    def _is_open(self, xid: int) -> bool:
        if xid in self._backlog.open:
            return True
        self._fuse.require_open()
        if not isinstance(xid, int):
            raise TypeError(
                f"xid must be an int, got {type(xid).__name__}; `reserve` returns it and the item: xid, item"
            )
        return False

    def _add(self, items: Sequence[bytes], expiry: int, *, closes: int | None = None) -> None:
        """Drop what has expired, make room, keep the journal small, and add items; no limit counts if one is closed."""
        now = self._now_ms()
        self._expire(now)
        if self._limits.bounded and items and closes is None:
            self._make_room(items)
        self._store.tend(now)
        self._store.add(items, now, self._limits.expiry(now, expiry or None) or 0, closes=closes)
        self._signal.notify(len(items))

    def _make_room(self, items: Sequence[bytes]) -> None:
        """Refuse or discard."""
        backlog, full = self._backlog, self._limits.full
        if full(len(backlog), backlog.data_bytes, items) and (not self._discard_oldest or full(0, 0, items)):
            way_out = "take some out, or open it with discard_oldest"
            self._limits.refuse(f"the queue {self.name}", len(backlog), backlog.data_bytes, way_out)
        while backlog.head() is not None and full(len(backlog), backlog.data_bytes, items):
            self._store.remove()
            self._counts["discarded"] += 1

    def _wait(self, timeout: Seconds | None, *, reserving: bool = False) -> Row | None:
        """The head, as soon as the queue has one that has not expired.

        The original counts a transaction when it looks at a queue that is not empty, before expired items go.
        """
        backlog, timeout_ms = self._backlog, self._open_timeout_ms or 0
        for _ in self._signal.turns(timeout):
            self._fuse.require_open()
            if reserving and backlog:
                backlog.transactions += 1
            now = self._now_ms()
            late = [xid for xid, since in self._store.reserved_at.items() if now - since > timeout_ms]
            if late:
                self._put_back(late[::-1])
            self._expire(now)
            row = backlog.head()
            if row is not None:
                return row
            left_ms = [since + timeout_ms - now for since in self._store.reserved_at.values()]
            self._signal.limit_s = max(min(left_ms) / 1000, 0.001) if left_ms else None
        return None

    def _expire(self, now: int) -> None:
        """Remove what has expired at the head."""
        if not self._backlog.expiring and self._limits.max_age_ms is None:
            return
        while (row := self._backlog.head()) is not None:
            _, data, add_time, expiry, _ = row
            ends = self._limits.expiry(now if add_time is None else add_time, expiry or None)
            if not ends or ends >= now:
                break
            if self._expire_to is not None:
                with contextlib.suppress(FullError, TooLargeError):
                    self._expire_to.put(data)
            self._store.remove(expired=True)
            self._counts["expired_items"] += 1

    def _put_back(self, xids: list[int]) -> None:
        self._store.put_back(xids)
        self._counts["canceled_transactions"] += len(xids)
        self._signal.notify(len(xids))


shorten(Queue, "put", "get", "reserve", "confirm")
