"""The content of a new log: the state of a queue as records, without its history.

The state itself does not change. A recovery leaves out what it must (:class:`Contents`), the rest is written as
records, and a new state is built from these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import NamedTuple

from sej.queue.log.format import HEADERS_PART
from sej.queue.log.records import (
    blocked,
    booted,
    counted,
    deduped,
    done,
    exhausted,
    expires,
    headed,
    intended,
    kept,
    keyed,
    ordered,
    parked,
    paused,
    picked,
    rated,
    redriven,
    scanned,
    starts,
    waits,
)
from sej.queue.log.schedule import NEVER, Lease, Waiting
from sej.queue.log.state import QueueState


class Contents(NamedTuple):
    """The part of a state that a new log has; each method returns another one.

    Attributes:
        state: the source of everything else.
        frontier: where fresh messages begin.
        above: offsets from the frontier on that are not fresh.
        leased: items that workers hold.
        waiting: items that are neither fresh nor leased.
        kept: the newest kept offset; None: there was none.
        anchor: (offset, stamp) of the newest message that was taken in order.
        ahead: (offset, stamp) of the newest message that was taken or ended ahead of the others.
        parked: by key: from where on its items are parked; empty without an order of keys.
        parked_count: how many items are parked; None: they must be counted again.
    """

    state: QueueState
    frontier: int
    above: Set[int]
    leased: Mapping[int, Lease]
    waiting: Mapping[int, Waiting]
    kept: int | None
    anchor: tuple[int, int] | None
    ahead: tuple[int, int] | None
    parked: Mapping[int, int]
    parked_count: int | None

    @classmethod
    def of(cls, state: QueueState) -> Contents:
        """Return all of a state."""
        order = state.order
        there = ({}, 0) if order is None else (order.parked, order.count)
        return cls(
            state,
            state.frontier,
            state.above,
            state.leased,
            state.waiting,
            state.kept,
            state.anchor,
            state.ahead,
            *there,
        )

    def from_offset(self, offset: int) -> Contents:
        """Leave out everything below the kept offset, which was moved forwards."""
        return self._replace(
            frontier=max(self.frontier, offset),
            above={number for number in self.above if number >= offset},
            leased={number: lease for number, lease in self.leased.items() if number >= offset},
            waiting={number: there for number, there in self.waiting.items() if number >= offset},
            kept=offset,
            parked={key: max(low, offset) for key, low in self.parked.items()} if offset < self.frontier else {},
            parked_count=None if self.parked else 0,
        )

    def up_to(self, stop: int) -> Contents:
        """Leave out messages from stop on, which were lost; intents and keys are compared with their messages."""
        intents = self.state.intents
        waiting = {number: there for number, there in self.waiting.items() if number < stop or number in intents}
        return self._replace(
            frontier=min(self.frontier, stop),
            above={number for number in self.above if number < stop},
            leased={number: lease for number, lease in self.leased.items() if number < stop or number in intents},
            waiting=waiting,
            anchor=None,
            ahead=None,
            parked={key: low for key, low in self.parked.items() if low < stop},
            parked_count=None if self.parked else 0,
        )

    def given_back(self) -> Contents:
        """Leave out leases: leased items are ready again."""
        ready = {number: Waiting(lease.attempt, 0, lease.priority) for number, lease in self.leased.items()}
        return self._replace(leased={}, waiting={**self.waiting, **ready})

    def records(self, now_ns: int, end: int) -> Iterator[bytes]:
        """Yield the records of a new log.

        Args:
            now_ns: items whose time was over by then are left out.
            end: the journal's end; intents for messages that were never written are left out.
        """
        low = min(self.frontier, *self.parked.values(), NEVER)
        yield from self._queue_records(now_ns, low)
        yield from self._item_records(end)
        yield from self._parked_records()
        for start, stop in _ranges(sorted(self.above - self.leased.keys() - self.waiting.keys())):
            yield done(start, stop)
        yield from self._blocked_records()
        yield from self._detail_records(end, low)
        state = self.state
        for key, meaning in state.dedupe.known.items():
            if meaning.until_ns > now_ns and meaning.offset < end:
                yield deduped(key, *meaning)
        counts = (state.done, state.dead, state.lost)
        yield counted(*(min(count, NEVER) for count in counts))  # the last: without it, the log is not whole

    def _queue_records(self, now_ns: int, low: int) -> Iterator[bytes]:
        """Yield what is true of the whole queue; low: where fresh or parked items begin."""
        state = self.state
        if state.boot is not None:
            yield booted(*state.boot, now_ns)
        yield starts(low, *(self.anchor or (NEVER, 0)))
        yield ordered(state.order is not None, state.order is not None and state.order.block, state.max_attempts)
        if state.order is not None:  # an older version finds fresh messages where the parked ones begin
            yield scanned(self.frontier, 0, 0)
        if state.paused:
            yield paused(1)
        if state.full_at_ns > now_ns:
            yield rated(state.full_at_ns)
        for journal, letter in state.redriven.items():
            yield redriven(journal, letter)
        if self.kept is not None:
            yield kept(self.kept, now_ns)

    def _item_records(self, end: int) -> Iterator[bytes]:
        """Yield the items that wait, each with its key, then the leased ones."""
        intents, order = self.state.intents, self.state.order
        keys = {} if order is None else order.keys
        for offset, there in sorted(self.waiting.items()):
            intent = intents.get(offset)
            if intent is None:
                made = exhausted if there.exhausted else waits
                yield made(offset, there.ready_at_ns, there.attempt, there.priority)
            elif offset < end:
                yield intended(offset, *intent, there.ready_at_ns, there.priority)
            if order is not None and offset in keys:
                yield keyed(offset, keys[offset], offset in order.held.get(keys[offset], ()))
        for offset, lease in self.leased.items():
            yield picked(offset, *lease, keys.get(offset, 0))

    def _blocked_records(self) -> Iterator[bytes]:
        """Yield which keys are held without an item; after the DONE of a dead letter, which frees its key."""
        order = self.state.order
        if order is None:
            return
        for offset, key_id in order.keys.items():
            if not self.state.has(offset) and offset in order.held.get(key_id, ()):
                yield blocked(offset, key_id, 1)

    def _detail_records(self, end: int, low: int) -> Iterator[bytes]:
        """Yield the times when items expire, and their headers."""
        for offset, (at_ns, timestamp, check) in self.state.expires.items():
            if offset < end and self._may_be_item(offset, low):
                yield expires(offset, timestamp, check, at_ns)
        for offset, data in self.state.headers.items():
            if offset < end and self._may_be_item(offset, low):
                for part, at in enumerate(range(0, len(data), HEADERS_PART.size)):
                    yield headed(offset, part, data[at : at + HEADERS_PART.size])

    def _may_be_item(self, offset: int, low: int) -> bool:
        """Return whether an item may have this offset; low: where fresh or parked items begin."""
        order = self.state.order
        if offset in self.leased or offset in self.waiting or offset >= self.frontier:
            return True
        return order is not None and offset >= low and offset not in order.ended

    def _parked_records(self) -> Iterator[bytes]:
        """Yield which items are parked; after those that are held, whose records would move a bound."""
        order = self.state.order
        if order is None:
            return
        for key, low in self.parked.items():
            yield parked(key, low)
        if self.parked:
            first = min(self.parked.values())
            for start, stop in _ranges(sorted(number for number in order.ended if first <= number < self.frontier)):
                yield done(start, stop)
        yield scanned(self.frontier, self.parked_count or 0, 0)


def _ranges(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Return sorted offsets as ranges [start, stop)."""
    start = stop = -1
    for offset in offsets:
        if offset == stop:
            stop += 1
            continue
        if start >= 0:
            yield start, stop
        start, stop = offset, offset + 1
    if start >= 0:
        yield start, stop
