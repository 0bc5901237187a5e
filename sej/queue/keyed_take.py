"""Take items in the order of their keys; the rules are in :mod:`sej.queue.log.schedule`.

The next item is the head of a free key, by priority, then by offset. Heads come from three places:

- the schedule: items that are aside or held, and ready. One that is not the head of a free key is put off: it leaves
  the schedule until an item of its key ends.
- a heap of free keys with parked items, by offset.
- the journal from the frontier on. An item whose key is not free is passed by, and parked.

An item that is aside may be the head only if no earlier message of its key is fresh. So before an item with a priority
is delivered ahead of the frontier, the messages before it are passed by.

Parked items cost more than fresh ones. So a batch that has an item passes only a few messages by to find more.

Under one hold of the lock at most :data:`_MESSAGES` messages are passed by or looked up, so that a key with many items
does not stop other workers. Then ``unfinished`` is set, and the caller takes the lock again.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush, heapreplace
from typing import Final

from sej.errors import SejError
from sej.message import Message
from sej.queue.core import QueueCore
from sej.queue.log.format import DONE, PARK, SCAN, picked, stamp_of
from sej.queue.log.reader import Budget, UnfinishedError
from sej.queue.log.schedule import NEVER, KeyOrder
from sej.queue.take import Flow, Found, Taker
from sej.system.disk import of_system

_MESSAGES: Final = 4096
_IN_ROW: Final = 16
"""So many messages in a row are passed by to find more for a batch that has an item."""


class KeyedTaker(Taker):
    """The taking side of one open queue with an order of keys."""

    keyed = 1

    def __init__(self, core: QueueCore, flow: Flow) -> None:
        """Take for this queue, within limits."""
        super().__init__(core, flow)
        self._per_key = core.delivery.per_key
        self._free: list[tuple[int, int]] = []
        self._queued: set[int] = set()
        self._again = False
        self._budget = Budget(_MESSAGES)

    def take(self, n: int, now: int, max_bytes: int | None = None) -> Found:
        """Return up to n items that are available now; messages that are passed by are counted from here."""
        self._budget.left = _MESSAGES
        return super().take(n, now, max_bytes)

    def _take_next(self, n: int, now: int, found: Found) -> bool:
        """Take the next items, at most n, or set one aside; return False if none exists."""
        order = self._log.state.order
        assert order is not None
        try:
            while not self._next(order, n, now, found):
                if not self._again:
                    return False
                if self._budget.left <= 0:
                    raise UnfinishedError
            return True
        except UnfinishedError:
            self.unfinished = True
            return False

    def _next(self, order: KeyOrder, n: int, now: int, found: Found) -> bool:
        """Return whether an item was taken or set aside; ``_again``: whether another call may find one."""
        state = self._log.state
        self._refresh(order, now)
        if state.frontier in state.above:
            self.look_ahead()
        self._again = False
        waits = self._first_parked(order, now)
        ready = self._first_ready(order, now)
        if self._again:
            return False
        if ready is not None and ready[0] >= 0:
            priority, offset = ready
            if priority or (offset < state.frontier and (waits is None or offset < waits[0])):
                self.pick(offset, now, found)
                return True
        if waits is not None:
            offset, key = waits
            self._unqueue()
            self.pick(offset, now, found, key)
            self._queue(order, key)
            return True
        before, frontier = len(found), state.frontier
        if self._take_or_pass(order, n, now, found):
            self._again = True
            return len(found) > before or (before > 0 and self._log.state.frontier == frontier)
        if ready is not None:
            self.pick(ready[1], now, found)
            return True
        return False

    def _refresh(self, order: KeyOrder, now: int) -> None:
        """Look again at keys that were released."""
        state = self._log.state
        for key in order.take_released():
            head = order.first_aside(key, now, state.waiting)
            if head is not None:
                state.schedule.push(head)
            self._queue(order, key)

    def _queue(self, order: KeyOrder, key: int) -> None:
        bound = order.parked.get(key)
        if bound is not None and key not in self._queued and order.free(key, self._per_key):
            self._queued.add(key)
            heappush(self._free, (bound, key))

    def _unqueue(self) -> None:
        self._queued.discard(heappop(self._free)[1])

    def _first_ready(self, order: KeyOrder, now: int) -> tuple[int, int] | None:
        """Return (priority, offset) of the first item of the schedule that is the head of a free key."""
        state = self._log.state
        schedule = state.schedule
        while (ready := schedule.first_ready()) is not None:
            priority, offset = ready
            key = order.keys.get(offset, 0)
            if not key or offset in order.held.get(key, ()):
                return ready
            if not order.free(key, self._per_key):
                schedule.put_off()
                continue
            head = order.first_aside(key, now, state.waiting)
            if head is not None and head < offset:
                schedule.put_off()
                schedule.push(head)
                continue
            if order.parked.get(key, offset) < offset:
                first = self._find_parked(key)
                if first is not None and first < offset:
                    schedule.put_off()
                    self._queue(order, key)
                    self._again = True
                    continue
            if priority > 0 and offset > state.frontier:
                if state.frontier in state.above:
                    self.look_ahead()
                if state.frontier not in state.above and self._take_or_pass(order, 0, now, [], offset):
                    self._budget.spend()
                    self._refresh(order, now)
                    continue
            return ready
        return None

    def _first_parked(self, order: KeyOrder, now: int) -> tuple[int, int] | None:
        """Return (offset, key) of the first parked item that is the head of a free key."""
        state = self._log.state
        while self._free:
            bound, key = self._free[0]
            if key not in order.parked or not order.free(key, self._per_key):
                self._unqueue()
                continue
            first = self._find_parked(key)
            if first is None:
                self._unqueue()
                continue
            head = order.first_aside(key, now, state.waiting) if key else None
            if head is not None and head < first:
                self._unqueue()
                state.schedule.push(head)
                continue
            if first != bound:
                heapreplace(self._free, (first, key))
                continue
            return first, key
        return None

    def _find_parked(self, key: int) -> int | None:
        """Return the first parked item of a key; if it has none, record that."""
        log = self._log
        first = self.core.parked.first(log.state, log.epoch, key, self._budget)
        if first is None:
            log.append(PARK(key, NEVER))
        return first

    def _is_free(self, order: KeyOrder, key: int, taken: Mapping[int, int], offset: int, now: int) -> bool:
        """Return whether the item at an offset is the next of its key, and the key has room for one more.

        Args:
            order: the order of keys.
            key: the key's hash.
            taken: how many items of each key this batch has.
            offset: the item's.
            now: for items aside whose time comes.
        """
        if len(order.held.get(key, ())) + taken.get(key, 0) >= self._per_key or key in order.parked:
            return False
        if not order.has_aside(key):
            return True
        first = order.first_aside(key, now, self._log.state.waiting)
        return first is None or first > offset

    def _take_or_pass(self, order: KeyOrder, n: int, now: int, found: Found, stop: int | None = None) -> bool:
        """Take up to n messages from the frontier on whose keys are free, and pass the others by.

        With ``stop``, pass by all messages before it. Return whether there was a message.
        """
        if self._budget.left <= 0:  # what follows is unknown, and may come before an item that is aside
            raise UnfinishedError
        log = self._log
        batch = _Batch(log.state.frontier, self.core.holders.mine, now + self.core.delivery.lease_ns)
        short = self._fill(batch, order, n, now, found, stop)
        if batch.rows or batch.gap:
            count = min(order.count + len(batch.rows), batch.offset)  # what is read may be nonsense
            batch.records.append(SCAN(batch.offset, count, batch.stamp))
        if batch.records:
            log.append(*batch.records)
        if batch.rows:
            self.core.parked.passed(log.state, log.epoch, batch.start, batch.rows)
        found += batch.run
        if short:
            raise UnfinishedError
        return bool(batch.records) or self._full

    def _fill(self, batch: _Batch, order: KeyOrder, n: int, now: int, found: Found, stop: int | None) -> bool:
        """Take messages whose keys are free, until the batch has n; with ``stop`` pass by all messages before it.

        Return whether too many in a row were passed by to find more.
        """
        in_row = 0
        while len(batch.run) < n if stop is None else batch.offset < stop:
            message = self._read_next(batch, stop)
            if message is None:
                break
            key = self._log.state.key_of(message)
            if stop is None and self.is_expired(message, now):
                batch.expire(key, message)
            elif stop is None and (
                not key or (key not in batch.passed and self._is_free(order, key, batch.taken, message.offset, now))
            ):
                if not self.fits(message, found, batch.run):
                    break
                in_row = 0
                batch.take(key, message)
            else:
                in_row += 1
                if stop is None and in_row > _IN_ROW and (batch.run or found):
                    return True
                self._budget.left -= 1
                batch.pass_by(key, message, is_parked=key in order.parked)
        return False

    def _read_next(self, batch: _Batch, stop: int | None) -> Message | None:
        """Return the message at the batch's offset, or after a gap there; None: the batch ends before it."""
        above = self._log.state.above
        offset = batch.offset
        if self._budget.left <= 0 or (above and offset in above):
            return None
        try:
            message = self.core.fresh.at(offset)
        except (OSError, SejError) as error:
            if not batch.records or (isinstance(error, OSError) and not of_system(error)):
                raise
            return None
        if message is None or message.offset == offset:
            return message
        if batch.records:
            return None
        batch.skip(message.offset)
        return None if message.offset in above or (stop is not None and message.offset >= stop) else message


class _Batch:
    """The messages from the frontier on that one call takes or passes by, and the records of that.

    Attributes:
        start: the frontier.
        offset: after the last message.
        run: the messages that it takes, each with its number of attempts.
        records: for the log.
        rows: the key and the offset of each message that it passes by.
        passed: the keys of these.
        taken: how many it takes of each key.
        stamp: of the last message.
        gap: whether it begins after a gap.
    """

    __slots__ = ("_lease", "gap", "offset", "passed", "records", "rows", "run", "stamp", "start", "taken")

    def __init__(self, start: int, holder: int, deadline: int) -> None:
        """Begin at the frontier, with the lease of what it takes."""
        self.start = self.offset = start
        self.run: Found = []
        self.records: list[bytes] = []
        self.rows: list[tuple[int, int]] = []
        self.passed: set[int] = set()
        self.taken: dict[int, int] = {}
        self.stamp = 0
        self.gap = False
        self._lease = holder, deadline

    def take(self, key: int, message: Message) -> None:
        """Deliver the next message."""
        self.taken[key] = self.taken.get(key, 0) + 1
        self.records.append(self._picked(key, message))
        self.run.append((message, 1))
        self._go_past(message)

    def expire(self, key: int, message: Message) -> None:
        """End the next message: its time is over."""
        self.records += (self._picked(key, message), DONE(message.offset, message.offset + 1))
        self._go_past(message)

    def pass_by(self, key: int, message: Message, *, is_parked: bool) -> None:
        """Park the next message; its key may have parked ones already."""
        if not is_parked and key not in self.passed:
            self.records.append(PARK(key, message.offset))
        self.passed.add(key)
        self.rows.append((key, message.offset))
        self._go_past(message)

    def skip(self, offset: int) -> None:
        """Begin after a gap."""
        self.gap, self.offset, self.stamp = True, offset, 0

    def _picked(self, key: int, message: Message) -> bytes:
        return picked(message.offset, *self._lease, key, stamp_of(message.timestamp))

    def _go_past(self, message: Message) -> None:
        self.offset = message.offset + 1
        self.stamp = stamp_of(message.timestamp)
