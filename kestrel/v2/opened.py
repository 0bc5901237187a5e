"""An open Kestrel 2 queue's machinery: options, opening and closing, and what every verb must see to first.

:class:`Opened` holds the state; ``queue`` puts the verbs on top. Relies on ``storage`` (one write per operation, one
rename per replacement) and ``backlog`` (a queue longer than memory). Every method with an underscore is called under
the lock.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from kestrel.clock import wall_clock_ms
from kestrel.errors import Damage, FullError, ShutError, TooLargeError
from kestrel.files import check_name, check_numbers, join
from kestrel.fuse import opening
from kestrel.syncing import Sync, check_sync
from kestrel.v2.backlog import MEMORY_PER_BYTE, Backlog
from kestrel.v2.codec import removes, xid_operation
from kestrel.v2.format import MAX_ITEM_SIZE, UNREMOVE
from kestrel.v2.growth import Growth
from kestrel.v2.journal import DIALECT, Dialect
from kestrel.v2.packing import load
from kestrel.v2.replay import Entry, Item
from kestrel.v2.storage import Storage
from sej.checks import CALLABLE, COUNT, DISK, FLAG, PATH, SECONDS, optional, refuse_pickling, require, with_methods
from sej.system.disk import OS, Disk

__all__ = ["Counters", "Opened", "Sink"]


class Sink(Protocol):
    """What expired items are put into; a queue is one."""

    def put(self, data: bytes) -> None:
        """Add an item."""


class Counters(NamedTuple):
    """What the original counts, by its names; since the queue was opened where it is no size.

    Attributes:
        items: waiting.
        bytes: of these.
        total_items: put.
        logsize: bytes of all files.
        expired_items: that expired.
        mem_items: waiting items that are in memory.
        mem_bytes: of these.
        age: ms that the item taken last had waited.
        discarded: dropped at a limit.
        waiters: calls that wait for an item.
        open_transactions: reserved items.
        transactions: items that were reserved.
        canceled_transactions: that were put back.
        total_flushes: calls of flush.
        journal_rewrites: how often the journal was written anew.
        journal_rotations: how often a file was ended.
    """

    items: int
    bytes: int
    total_items: int
    logsize: int
    expired_items: int
    mem_items: int
    mem_bytes: int
    age: int
    discarded: int
    waiters: int
    open_transactions: int
    transactions: int
    canceled_transactions: int
    total_flushes: int
    journal_rewrites: int
    journal_rotations: int


class Opened:
    """One open queue, without its verbs.

    Attributes:
        name: the queue's name.
        directory: where its files are.
        damage: what was unreadable when it was opened; those bytes are in ``kept/``.
    """

    __reduce__ = refuse_pickling

    def __init__(
        self,
        directory: str | os.PathLike[str],
        name: str,
        *,
        max_items: int | None = None,
        max_bytes: int | None = None,
        max_item_bytes: int | None = None,
        discard_oldest: bool = False,
        max_age_s: float | None = None,
        expire_to: Sink | None = None,
        open_timeout_s: float | None = None,
        max_queue_age_s: float | None = None,
        sync: Sync = "never",
        max_memory_bytes: int = 128 << 20,
        journal_bytes: int = 16 << 20,
        max_journal_bytes: int = 1 << 30,
        compact_delay_s: float = 60.0,
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
            max_queue_age_s: after how many seconds an empty queue ``is_stale``.
            sync: when writes are forced to the medium: ``"never"``, ``"always"`` or every so many seconds.
            max_memory_bytes: what waiting items may take in memory; also the size at which a file is rotated.
            journal_bytes: the size at which the journal of an empty queue begins anew.
            max_journal_bytes: the size of all files at which a queue that is in memory is written anew.
            compact_delay_s: the least time between two of these.
            dialect: what opcode 8 means in the files that are there.
            now_ms: the clock, in ms since the epoch.
            disk: the seam.

        Raises:
            BusyError: somebody else has the queue open.
            BadNameError: no queue can have this name.
            DamageError: the files are those of a Kestrel 3 queue.
            FailedError: the lock or a write failed.
            ValueError: a size, count or time is below 0.
        """
        require(
            directory=(directory, PATH),
            discard_oldest=(discard_oldest, FLAG),
            expire_to=(expire_to, optional(with_methods("a queue", "put"))),
            max_memory_bytes=(max_memory_bytes, COUNT),
            journal_bytes=(journal_bytes, COUNT),
            max_journal_bytes=(max_journal_bytes, COUNT),
            compact_delay_s=(compact_delay_s, SECONDS),
            dialect=(dialect, DIALECT),
            now_ms=(now_ms, CALLABLE),
            disk=(disk, DISK),
        )
        check_name(name)
        check_sync(sync)
        check_numbers(max_items=max_items, max_bytes=max_bytes, max_item_bytes=max_item_bytes, max_age_s=max_age_s)
        check_numbers(open_timeout_s=open_timeout_s, max_queue_age_s=max_queue_age_s)
        self.name = name
        self.directory = os.fspath(directory)
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._max_item_bytes = MAX_ITEM_SIZE if max_item_bytes is None else max_item_bytes
        self._discard_oldest = discard_oldest
        self._max_age_ms = None if max_age_s is None else int(max_age_s * 1000)
        self._expire_to = expire_to
        self._open_timeout_ms = None if open_timeout_s is None else int(open_timeout_s * 1000)
        self._max_queue_age_s = max_queue_age_s
        self._now_ms = now_ms
        self._guard = threading.RLock()
        self._changed = threading.Condition(self._guard)
        self._closed = False
        self._plain_below = 0  # the size of the current file from which on a put must look for what is due
        self._limited = max_items is not None or max_bytes is not None
        self._eventful = self._limited or max_age_s is not None
        self._evictions = 0
        self._waiters = 0
        self._added_before = 0
        self._age_ms = 0
        self._reserved_at: dict[int, int] = {}
        self._counts = dict.fromkeys(("expired", "discarded", "opened", "canceled", "flushes"), 0)
        self._opened_ms = now_ms()
        with opening(join(directory, name)):
            self._open(name, sync, dialect, disk, max_memory_bytes, journal_bytes, max_journal_bytes, compact_delay_s)

    def _open(
        self,
        name: str,
        sync: Sync,
        dialect: Dialect,
        disk: Disk,
        max_memory_bytes: int,
        journal_bytes: int,
        max_journal_bytes: int,
        compact_delay_s: float,
    ) -> None:
        self._storage = Storage(self.directory, name, sync=sync, sync_soon=self.sync, disk=disk, now_ms=self._now_ms)
        self._fuse = self._storage.fuse
        self._backlog = Backlog(self._storage, max_memory_bytes, dialect=dialect, disk=disk)
        self._growth = Growth(
            self._storage,
            self._backlog,
            max_memory_bytes=max_memory_bytes,
            journal_bytes=journal_bytes,
            max_journal_bytes=max_journal_bytes,
            compact_delay_s=compact_delay_s,
        )
        try:
            self._storage.renew()
            self._machine, damage = load(
                self._storage, self._backlog, dialect=dialect, disk=disk, at_end=self._growth.remember
            )
            self._added_before = self._machine.added
            self._storage.ready(damage)
            self.damage: list[Damage] = damage
            with self._guard:
                self._back_out(sorted(self._machine.open, reverse=True))
        except BaseException:
            self._backlog.close()
            self._storage.close()
            raise

    def __len__(self) -> int:
        with self._guard:
            return len(self._backlog)

    @property
    def open_transactions(self) -> dict[int, Item]:
        """The reserved items by xid."""
        with self._guard:
            return {xid: entry.item for xid, entry in self._machine.open.items() if entry.item is not None}

    @property
    def is_stale(self) -> bool:
        """Whether it may be deleted, as the queue is empty and older than ``max_queue_age_s``."""
        with self._guard:
            limit = self._max_queue_age_s
            idle = not self._backlog and not self._machine.open and not self._waiters
            return limit is not None and idle and self._now_ms() - self._opened_ms > limit * 1000

    def counters(self) -> Counters:
        """What the original counts."""
        with self._guard:
            counts = self._counts
            return Counters(
                items=len(self._backlog),
                bytes=self._backlog.data_bytes,
                total_items=self._machine.added - self._added_before,
                logsize=self._storage.total_size,
                expired_items=counts["expired"],
                mem_items=len(self._backlog.memory),
                mem_bytes=self._backlog.memory_bytes,
                age=self._age_ms if len(self._backlog) else 0,
                discarded=counts["discarded"],
                waiters=self._waiters,
                open_transactions=len(self._machine.open),
                transactions=counts["opened"],
                canceled_transactions=counts["canceled"],
                total_flushes=counts["flushes"],
                journal_rewrites=self._growth.rewrites,
                journal_rotations=self._growth.rotations,
            )

    def sync(self) -> None:
        """Force everything that was written to the medium."""
        with self._guard:
            if not self._closed:
                self._storage.sync()

    def expire_into(self, sink: Sink | None) -> None:
        """From now on put what expires into another queue, or drop it."""
        with self._guard:
            self._expire_to = sink

    def evict_waiters(self) -> None:
        """Let every waiting get, peek and reserve return None now."""
        with self._guard:
            self._evictions += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Sync and close. What is reserved comes back at the next opening; an empty queue's journal begins anew."""
        self._shut(self._leave)

    def _leave(self) -> None:
        try:
            if not self._storage.failed and not self._backlog and self._storage.total_size:
                self._growth.rewrite(self._machine, self._now_ms())
        finally:
            self._storage.close()

    def _shut(self, leave: Callable[[], None]) -> None:
        with self._guard:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        self._storage.stop()
        with self._guard:
            try:
                leave()
            finally:
                self._backlog.close()

    def delete(self) -> None:
        """Remove the queue's files and close it; its lock file stays."""
        self._shut(self._storage.erase)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _checked(self, data: bytes) -> bytes:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"an item is bytes, not {type(data).__name__}")
        data = bytes(data)
        if len(data) > self._max_item_bytes:
            raise TooLargeError(
                f"an item of {len(data)} bytes; max_item_bytes is {self._max_item_bytes}", path=self.directory
            )
        return data

    def _check_open(self) -> None:
        if self._closed:
            raise ShutError("the queue is closed; open it anew", path=self.directory)

    def _capped(self, start_ms: int, expiry: int) -> int:
        if self._max_age_ms is None:
            return expiry
        latest = start_ms + self._max_age_ms
        return min(expiry, latest) if expiry else latest

    def _make_room(self, items: Sequence[bytes]) -> None:
        """Refuse or discard. The last item is the one that may pass max_bytes, as a single one may."""
        more, extra = len(items) - 1, sum(map(len, items[:-1]))

        def over(count: int, size: int) -> bool:
            return (self._max_items is not None and count + more >= self._max_items) or (
                self._max_bytes is not None and size + extra >= self._max_bytes
            )

        backlog = self._backlog
        if over(len(backlog), backlog.data_bytes) and (not self._discard_oldest or over(0, 0)):
            raise FullError(
                f"the queue {self.name} holds {len(backlog)} items of {backlog.data_bytes} bytes; its limits are"
                f" {self._max_items} items and {self._max_bytes} bytes: take some out, or open it with discard_oldest",
                path=self.directory,
            )
        while backlog.head() is not None and over(len(backlog), backlog.data_bytes):
            self._storage.append(removes(1))
            backlog.popleft()
            self._counts["discarded"] += 1
            self._fuse.live = True

    def _wait(self, timeout: float | None) -> Entry | None:
        """The head, once there is one that has not expired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        evictions = self._evictions
        while True:
            self._check_open()
            now = self._now_ms()
            self._time_out(now)
            if self._backlog.expiring or self._max_age_ms is not None:
                self._expire(now)
            entry = self._backlog.head()
            if entry is not None:
                if entry.item is not None and entry.item.add_time is not None:
                    self._age_ms = max(now - entry.item.add_time, 0)
                return entry
            left = None if deadline is None else deadline - time.monotonic()
            if (left is not None and left <= 0) or evictions != self._evictions:
                return None
            if self._open_timeout_ms is not None and self._reserved_at:
                due = (min(self._reserved_at.values()) + self._open_timeout_ms - now) / 1000
                left = max(due, 0.001) if left is None else min(left, max(due, 0.001))
            self._waiters += 1
            try:
                self._changed.wait(left)
            finally:
                self._waiters -= 1

    def _prepare(self, items: Sequence[bytes]) -> int:
        """Before items are added: drop what has expired, make room, keep the journal small; returns the time."""
        now = self._now_ms()
        if self._backlog.expiring or self._max_age_ms is not None:
            self._expire(now)
        if self._limited and items:
            self._make_room(items)
        if self._storage.size >= self._growth.quiet_below:
            self._growth.tend(self._machine, now)
        return now

    def _look_ahead(self) -> None:
        """How far the current file may grow by plain items before anything but adding is to be thought of."""
        backlog = self._backlog
        if self._eventful or backlog.expiring or backlog.behind:
            self._plain_below = 0
        else:
            self._plain_below = min(self._growth.quiet_below, self._storage.size + backlog.room // MEMORY_PER_BYTE)

    def _removed(self, now: int) -> None:
        """After an item was taken: keep the journal small."""
        if self._storage.size >= self._growth.quiet_below:
            self._growth.tend(self._machine, now)
            self._look_ahead()

    def _expire(self, now: int) -> None:
        """Remove what has expired at the head."""
        while (entry := self._backlog.head()) is not None:
            item = entry.item
            assert item is not None
            expiry = self._capped(now if item.add_time is None else item.add_time, item.expiry)
            if not expiry or expiry >= now:
                break
            if self._expire_to is not None:
                with contextlib.suppress(FullError, TooLargeError):
                    self._expire_to.put(item.data)
            self._storage.append(removes(1))
            self._backlog.popleft()
            self._counts["expired"] += 1
            self._fuse.live = True

    def _time_out(self, now: int) -> None:
        if self._open_timeout_ms is not None and self._reserved_at:
            late = [xid for xid, since in self._reserved_at.items() if now - since > self._open_timeout_ms]
            self._back_out(late[::-1])

    def _back_out(self, xids: list[int]) -> None:
        """Put reserved items back, one after another; so the last of xids ends at the head."""
        if not xids:
            return
        self._storage.append(b"".join(xid_operation(UNREMOVE, xid) for xid in xids))
        for xid in xids:
            self._backlog.appendleft(self._machine.open.pop(xid))
            if self._reserved_at.pop(xid, None) is not None:
                self._counts["canceled"] += 1
        self._fuse.live = True
        self._look_ahead()
        self._changed.notify(len(xids))
