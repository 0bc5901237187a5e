"""Find the next item of a queue with an order of keys, or with limits by kind.

The rules are in :mod:`sej.queue.log.ready_queue`.

An item comes from three places:

- *aside*: what waits for a retry or a delay, or has a priority. Once it is ready, it is in a heap of its key.
- *parked*: fresh messages that were passed by. The log has the lowest one of each key.
- *fresh*: the messages from the frontier on.

A key has a turn if it is free and has an item that is aside or parked. The turns are sorted::

    order="key"   by the priority of the key's head, then by its offset. The head is the lowest offset.
    limits        by priority, then by the last turn of the kind. Within a kind: by priority, then by offset.

An item without a key, or one that holds its key already, has a turn of its own in a queue with an order of keys.
Nothing of this is in the log. So a turn is checked when it comes first: another process may have changed it.

**Fresh messages.** In the order of keys they are taken as they come, between the turns; one whose key is not free is
parked. An item that is aside may be the head only if no earlier message of its key is fresh. So before an item with a
priority is delivered ahead of the frontier, the messages before it are parked. With limits, fresh messages are parked
before a turn is chosen: a kind with many items delays no other kind for long.

Parked items cost more than fresh ones. So a batch that has an item parks only a few messages to find more. Under one
hold of the lock at most :data:`_MESSAGES` messages are parked or looked up, so that a key with many items does not stop
other workers. Then ``unfinished`` is set, and the caller takes the lock again.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final, NamedTuple

from sej.errors import SejError
from sej.message import Message
from sej.queue.core import QueueCore
from sej.queue.log import format as records
from sej.queue.log.reader import UnfinishedError
from sej.queue.log.ready_queue import NEVER, KeyOrder
from sej.queue.log.state import QueueState
from sej.queue.take import Found, Taker
from sej.system.disk import of_system

_MESSAGES: Final = 4096
_IN_ROW: Final = 16
"""So many messages in a row are parked to find more for a batch that has an item."""
_AHEAD: Final = 1024
"""With limits, so many fresh messages are parked before a turn is chosen."""
_TURNS: Final = 16
"""After so many turns, fresh messages are looked for again."""
_ALONE: Final = -1


class Turn(NamedTuple):
    """A key that has a turn; the lowest one is the next.

    Attributes:
        rank: the priority of its next item, negative.
        last: when it had its last turn; 0 in the order of keys.
        offset: its next item; if that is parked, perhaps a lower number.
        key: the key, or _ALONE: this item's own turn.
        parked: whether the item is parked.
    """

    rank: int
    last: int
    offset: int
    key: int
    parked: bool = False


class KeyedSource:
    """The next item of one open queue; one object for each queue that takes."""

    def __init__(self, core: QueueCore, taker: Taker) -> None:
        """Find items for this taker."""
        self._core, self._log, self._taker = core, core.log, taker
        self._per_key = core.delivery.per_key
        self._parked = core.parked
        self._look_in = 0
        self._state: QueueState | None = None
        self._begin()

    def _begin(self) -> None:
        self._turns: list[Turn] = []
        """A heap of turns; those of keys count if they are in the next field."""
        self._placed: dict[int, Turn] = {}
        self._heaps: dict[int, list[tuple[int, int]]] = {}
        """By key: (rank, offset) of the items that are aside and ready; in the order of keys, all have rank 0."""
        self._later: list[tuple[int, int]] = []
        """(when it has a token, kind)."""

    def begin(self) -> None:
        """A call takes the lock: messages that are parked are counted from here."""
        self._parked.left = _MESSAGES
        self._look_in -= 1

    def next_ns(self) -> list[int]:
        """Return when the rate of a kind allows its next item, if one waits for that."""
        return [at for at, _ in self._later[:1]]

    def take_next(self, n: int, now: int, found: Found) -> bool:
        """Take the next items, at most n, or set one aside; return False if none exists."""
        try:
            return self._next(n, now, found)
        except UnfinishedError:
            self._taker.unfinished = True
            return False

    def _next(self, n: int, now: int, found: Found) -> bool:
        while True:
            state, before = self._log.state, len(found)
            order, frontier = state.order, state.frontier
            self._look(order, state, now)
            turn = self._first(order, state, now)
            moved = False
            if order.kinds is not None:
                if turn is None or turn.rank > 0 or self._look_in <= 0:
                    moved = self._look_for_kinds(order, state, now)
            elif turn is None or (turn.rank, turn.offset) >= (0, frontier):
                if frontier in state.out_of_order:
                    self._taker.look_ahead()
                moved = state.frontier > frontier or self._scan(order, state, n, now, found)
                if len(found) > before or self._taker.full:
                    return True
            if turn is not None and not moved:
                self._deliver(order, state, turn, now, found)
                return True
            if not moved:
                return False

    def _deliver(self, order: KeyOrder, state: QueueState, turn: Turn, now: int, found: Found) -> None:
        """Take the item of a turn, or set it aside."""
        after, kinds, key = b"", order.kinds, turn.key
        if key == _ALONE:
            self._taker.pick(turn.offset, now, found)
            return
        if kinds is not None and kinds.interval_ns and key:
            after = records.RATE(kinds.spent(1, state.full_at_ns.get(key, 0), now), key)
        self._placed.pop(key, None)
        order.released.add(key)
        self._taker.pick(turn.offset, now, found, key if turn.parked else None, after)

    # --- turns

    def _look(self, order: KeyOrder, state: QueueState, now: int) -> None:
        """Find the keys that may have a turn now."""
        if state is not self._state:
            self._state = state
            self._begin()
            order.released |= order.parked.keys()
        ready_queue, limited = state.ready_queue, order.kinds is not None
        if limited and ready_queue.expired:
            self._core.requeue_expired(now)  # or they would keep their places while others of their kinds come first
        while ready_queue.ready:
            (rank, offset), _ = ready_queue.ready.popitem(0)
            key = order.keys.get(offset, 0)
            if limited or (key and offset not in order.held.get(key, ())):
                heappush(self._heaps.setdefault(key, []), (rank if limited else 0, offset))
                order.released.add(key)
            else:
                heappush(self._turns, Turn(rank, 0, offset, _ALONE))
        while self._later and self._later[0][0] <= now:
            order.released.add(heappop(self._later)[1])
        for key in tuple(order.released):
            self._place(key, self._turn(order, state, key, now, order.parked.get(key)))
            order.released.discard(key)  # now: the call before may have raised UnfinishedError

    def _place(self, key: int, turn: Turn | None) -> None:
        """Let a key have this turn, or none."""
        if turn is None:
            self._placed.pop(key, None)
        elif turn != self._placed.get(key):
            self._placed[key] = turn
            heappush(self._turns, turn)

    def _first(self, order: KeyOrder, state: QueueState, now: int) -> Turn | None:
        """Return the next turn; None: there is none."""
        while self._turns:
            turn = self._turns[0]
            offset, key = turn.offset, turn.key
            if key == _ALONE:
                if self._is_ready(state, offset, now):
                    return turn
                heappop(self._turns)
                continue
            if self._placed.get(key) is not turn:
                heappop(self._turns)
                continue
            low = order.parked.get(key)
            if low is not None and turn.parked:
                low = max(low, turn.offset)  # the record may have a lower number than the turn, which was looked up
            if not key and (there := self._turn(order, state, key, now, low)) != turn:
                self._place(key, there)  # the log does not say that items without a key have changed
            elif turn.parked and (first := self._find_parked(key)) != offset:
                if first is not None and order.kinds is not None:
                    return turn._replace(offset=first)  # the lower number was as good: it decides between equals only
                self._place(key, self._turn(order, state, key, now, first))
            elif order.kinds is not None or turn.rank >= 0 or offset <= state.frontier:
                return turn
            elif state.frontier in state.out_of_order:
                self._taker.look_ahead()
                if state.frontier in state.out_of_order:
                    return turn
            elif self._scan(order, state, 0, now, [], offset):
                self._parked.spend()
                self._look(order, state, now)
            else:
                return turn
        return None

    def _turn(self, order: KeyOrder, state: QueueState, key: int, now: int, parked: int | None) -> Turn | None:
        """Return the turn of a key; None: it is not free, or has no item that is aside or parked.

        Args:
            order: the order.
            state: the state.
            key: the key.
            now: for rates, and for items aside whose time comes.
            parked: the first parked item of the key, or a lower number.
        """
        kinds = order.kinds
        if key:
            most = self._per_key if kinds is None else kinds.concurrency
            if most is not None and len(order.held.get(key, ())) >= most:
                return None
            if kinds is not None and kinds.interval_ns:
                allowed = kinds.allowed_ns(state.full_at_ns.get(key, 0))
                if allowed > now:
                    heappush(self._later, (allowed, key))
                    return None
        aside = self._first_aside(order, state, key, now) if key in self._heaps else None
        if aside is None:
            return None if parked is None else Turn(0, order.served.get(key, 0), parked, key, True)
        rank, offset = aside
        if kinds is None:
            rank = -state.waiting[offset].priority
            if rank < 0 and parked is not None and parked < offset:
                parked = self._find_parked(key)  # now: if there is none, this turn comes earlier
        if parked is not None and (0, parked) < aside:
            return Turn(0, order.served.get(key, 0), parked, key, True)
        return Turn(rank, order.served.get(key, 0), offset, key)

    def _first_aside(self, order: KeyOrder, state: QueueState, key: int, now: int) -> tuple[int, int] | None:
        """Return the rank and the offset of the next item of a key that is aside and ready; None: there is none."""
        heap = self._heaps.get(key)
        if heap is None:
            return None
        while heap:
            offset = heap[0][1]
            if self._is_ready(state, offset, now) and (order.kinds or offset not in order.held.get(key, ())):
                return heap[0]
            heappop(heap)
        del self._heaps[key]
        return None

    def _is_ready(self, state: QueueState, offset: int, now: int) -> bool:
        there = state.waiting.get(offset)
        return offset in state.ready_queue.expired if there is None else there.ready_at_ns <= now

    def _find_parked(self, key: int) -> int | None:
        """Return the first parked item of a key; if it has none, record that."""
        log = self._log
        first = self._parked.first(log.state, log.epoch, key)
        if first is None:
            log.append(records.PARK(key, NEVER))
        return first

    # --- fresh messages

    def _look_for_kinds(self, order: KeyOrder, state: QueueState, now: int) -> bool:
        """Park fresh messages under their kinds; return whether there were any."""
        begun, before = state.frontier, -1
        while before < state.frontier < begun + _AHEAD:
            before = state.frontier
            if before in state.out_of_order:
                self._taker.look_ahead()
            elif not self._scan(order, state, 0, now, [], begun + _AHEAD):
                break
        self._look_in = _TURNS if state.frontier < begun + _AHEAD else 1
        return state.frontier > begun

    def _is_free(
        self, order: KeyOrder, key: int, taken: dict[int, int], parked: set[int], offset: int, now: int
    ) -> bool:
        """Return whether a fresh item is the next of its key, and the key has room for it.

        Args:
            order: the order of keys.
            key: the key's hash.
            taken: how many items of each key this batch has.
            parked: the keys that have items which this batch parks.
            offset: the item's.
            now: for items aside whose time comes.
        """
        if not key:
            return True
        if key in parked or key in order.parked:
            return False
        if len(order.held.get(key, ())) + taken.get(key, 0) >= self._per_key:
            return False
        aside = self._first_aside(order, self._log.state, key, now) if self._heaps else None
        return aside is None or aside[1] > offset

    def _scan(
        self, order: KeyOrder, state: QueueState, n: int, now: int, found: Found, stop: int | None = None
    ) -> bool:
        """Take up to n messages from the frontier on whose keys are free, and park the others.

        With ``stop``, park all messages before it. Return whether there was a message.
        """
        if self._parked.left <= 0:  # what follows is unknown, and may come before an item that is aside
            raise UnfinishedError
        taker, core = self._taker, self._core
        holder, deadline = core.holders.mine, now + core.delivery.lease_ns
        start = offset = state.frontier
        data: list[bytes] = []
        run: Found = []
        rows: list[tuple[int, int]] = []
        taken: dict[int, int] = {}
        parked: set[int] = set()
        stamp = in_row = 0
        gap = False
        while (len(run) < n if stop is None else offset < stop) and in_row <= _IN_ROW:
            message = self._read(state, offset, begun=bool(data))
            if message is None:
                break
            if message.offset != offset:
                offset, gap = message.offset, True
                if offset in state.out_of_order or (stop is not None and offset >= stop):
                    break
            key, at = state.key_of(message), records.stamp_of(message.timestamp)
            if stop is None and taker.is_expired(message, now):
                data += records.picked(offset, 1, holder, deadline, 0, key, at), records.one_done(offset)
            elif stop is None and self._is_free(order, key, taken, parked, offset, now):
                if not taker.fits(message, found, run):
                    break
                data.append(records.picked(offset, 1, holder, deadline, 0, key, at))
                run.append((message, 1))
                taken[key], in_row = taken.get(key, 0) + 1, 0
            else:
                in_row += stop is None and bool(run or found)
                self._parked.left -= 1
                if key not in order.parked and key not in parked:
                    data.append(records.PARK(key, offset))
                parked.add(key)
                rows.append((key, offset))
            offset, stamp = offset + 1, at
        if rows or gap:
            count = min(order.count + len(rows), offset)  # what is read may be nonsense
            data.append(records.SCAN(offset, count, stamp))
        if data:
            self._log.append(*data)
        if rows:
            self._parked.passed(state, self._log.epoch, start, rows)
        found += run
        if in_row > _IN_ROW:
            raise UnfinishedError
        return bool(data) or taker.full

    def _read(self, state: QueueState, offset: int, *, begun: bool) -> Message | None:
        """Return the message at an offset, or after a gap if the batch begins there; None: the batch ends before it."""
        if self._parked.left <= 0 or (state.out_of_order and offset in state.out_of_order):
            return None
        try:
            message = self._core.fresh.at(offset)
        except (OSError, SejError) as error:
            if not begun or (isinstance(error, OSError) and not of_system(error)):
                raise
            return None
        return None if begun and message is not None and message.offset != offset else message
