"""Take items of a queue with limits by kind: the free kinds in turn.

A kind is free while it has fewer leased items than ``concurrency``, and a token of its ``rate``. Of the free kinds
whose next item has the highest priority, the one comes whose last turn is longest ago. The log has the turns, so all
processes share them.

The kinds of fresh messages are not known. So each call first passes some of them by, and parks them under their kinds
(:mod:`sej.queue.log.schedule`): a kind with many items delays no other kind for long. Items that are aside, for a retry
for example, leave the schedule and wait in a heap of their kind. What the heap holds is checked when it comes first:
another process may have taken it.
"""

from __future__ import annotations

from heapq import heappop, heappush

from sortedcontainers import SortedDict

from sej.queue.core import QueueCore
from sej.queue.keyed_take import KeyedTaker
from sej.queue.log.format import RATE
from sej.queue.log.schedule import KeyOrder, Kinds
from sej.queue.log.state import QueueState
from sej.queue.take import Flow, Found

_PASS = 1024
"""So many fresh messages are passed by before an item is taken."""


class LimitedTaker(KeyedTaker):
    """The taking side of one open queue with limits by kind."""

    keyed = 2

    def __init__(self, core: QueueCore, flow: Flow) -> None:
        """Take for this queue, within limits."""
        super().__init__(core, flow)
        self._state: QueueState | None = None
        self._passed = False
        self._begin()

    def _begin(self) -> None:
        self._heaps: dict[int, list[tuple[int, int]]] = {}
        """By kind: (-priority, offset) of the items that are aside and ready."""
        self._turns = SortedDict()
        """(-priority, last turn, next offset, kind) of the free kinds that have an item, as the keys of a dict."""
        self._placed: dict[int, tuple[int, int, int, int]] = {}
        self._later: list[tuple[int, int]] = []
        """(when it has a token, kind)."""

    def take(self, n: int, now: int, max_bytes: int | None = None) -> Found:
        """Return up to n items, as :meth:`Taker.take` does."""
        self._passed = False
        return super().take(n, now, max_bytes)

    def next_ns(self) -> int | None:
        """Return when a rate allows the next item; None: no kind waits for that."""
        times = [at for at in (super().next_ns(), self._later[0][0] if self._later else None) if at is not None]
        return min(times, default=None)

    def _next(self, order: KeyOrder, n: int, now: int, found: Found) -> bool:
        """Return whether an item was taken or set aside; ``_again``: whether another call may find one."""
        kinds, state = order.kinds, self._log.state
        assert kinds is not None
        self._again = False
        if not self._passed:
            self._passed = True
            self._pass(order, state, now)
        self._look(order, kinds, state, now)
        while self._turns:
            kind: int = self._turns.peekitem(0)[0][-1]
            offset = self._head(order, state, kind, now)
            parked = kind if offset is None else None
            if offset is None:
                offset = self._find_parked(kind) if kind in order.parked else None
            if offset is not None:
                before = len(found)
                self.pick(offset, now, found, parked)
                if len(found) == before:
                    self._place(order, kinds, state, kind, now)
                elif kinds.interval_ns and kind:
                    self._log.append(RATE(max(kinds.full_at_ns.get(kind, 0), now) + kinds.interval_ns, kind))
                return True
            self._place(order, kinds, state, kind, now)
        self._passed = not self._pass(order, state, now)
        self._again = not self._passed
        return False

    def _pass(self, order: KeyOrder, state: QueueState, now: int) -> bool:
        """Park fresh messages; return whether there were any."""
        begun, before = state.frontier, -1
        while before < state.frontier < begun + _PASS:
            before = state.frontier
            if before in state.above:
                self.look_ahead()
            elif self.core.fresh.at(before) is None:  # as in most calls
                break
            if state.frontier not in state.above:
                self._take_or_pass(order, 0, now, [], begun + _PASS)
        return state.frontier > begun

    def _look(self, order: KeyOrder, kinds: Kinds, state: QueueState, now: int) -> None:
        """Find the kinds that may have become free, or have a new item."""
        if state is not self._state:
            self._begin()
            self._state = state
            order.released |= order.parked.keys()
        if state.schedule.lapsed:
            self.core.take_back(now)  # or they would keep their places while others of their kinds come first
        while (ready := state.schedule.first_ready()) is not None:
            state.schedule.put_off()
            kind = order.keys.get(ready[1], 0)
            heappush(self._heaps.setdefault(kind, []), (-ready[0], ready[1]))
            order.released.add(kind)
        while self._later and self._later[0][0] <= now:
            order.released.add(heappop(self._later)[1])
        for kind in order.take_released():
            self._place(order, kinds, state, kind, now)

    def _place(self, order: KeyOrder, kinds: Kinds, state: QueueState, kind: int, now: int) -> None:
        """Let a kind have its place among the free ones, if it is free and has an item."""
        before = self._placed.pop(kind, None)
        if before is not None:
            self._turns.pop(before, None)
        offset = self._head(order, state, kind, now)
        if offset is None and kind not in order.parked:
            return
        if kind and kinds.concurrency is not None and not order.free(kind, kinds.concurrency):
            return
        if kind and kinds.interval_ns and (at := kinds.allowed_ns(kind)) > now:
            heappush(self._later, (at, kind))
            return
        priority, first = (0, order.parked[kind]) if offset is None else self._heaps[kind][0]
        self._placed[kind] = place = (priority, kinds.served.get(kind, 0), first, kind)
        self._turns[place] = None

    def _head(self, order: KeyOrder, state: QueueState, kind: int, now: int) -> int | None:
        """Return the next item of a kind that is aside; None: the next one is parked, if there is one."""
        heap = self._heaps.get(kind)
        while heap:
            priority, offset = heap[0]
            there = state.waiting.get(offset)
            if there is not None and there.ready_at_ns <= now:
                return None if priority > 0 and kind in order.parked else offset
            heappop(heap)
        self._heaps.pop(kind, None)
        return None
