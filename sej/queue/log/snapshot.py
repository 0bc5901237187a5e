"""The content of a new log: the state of a queue as records, without its history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sej.queue.log.format import (
    BACK,
    BLOCK,
    COUNTS,
    DONE,
    HEADERS,
    KEPT,
    KEY,
    ORDER,
    PARK,
    PAUSE,
    PICK,
    RATE,
    REASON,
    SCAN,
    START,
    WAIT,
    booted,
    deduped,
    exhausted,
    expires,
    in_parts,
    intended,
)
from sej.queue.log.schedule import NEVER
from sej.queue.log.state import QueueState


def snapshot(state: QueueState, now_ns: int, end: int) -> bytes:
    """Return the records of a new log.

    Args:
        state: the state, which does not change.
        now_ns: items whose time was over by then are left out.
        end: the journal's end; intents for messages that were never written are left out.
    """
    return b"".join(_records(state, now_ns, end))


def _records(state: QueueState, now_ns: int, end: int) -> Iterator[bytes]:
    order, frontier = state.order, state.frontier
    low = frontier if order is None else min(frontier, *order.parked.values(), NEVER)  # fresh or parked items begin
    # What is true of the whole queue.
    if state.boot is not None:
        yield booted(*state.boot, now_ns)
    yield START(low, *(state.anchor or (NEVER, 0)))
    yield ORDER(order is not None, order is not None and order.block, state.max_attempts)
    if order is not None:
        yield SCAN(frontier)
    if state.paused:
        yield PAUSE(1)
    if state.full_at_ns > now_ns:
        yield RATE(state.full_at_ns)
    for journal, letter in state.redriven.items():
        yield BACK(journal, letter)
    if state.kept is not None:
        yield KEPT(state.kept, now_ns)
    # The items that wait, each with its key, then the leased ones.
    keys = {} if order is None else order.keys
    for offset, there in state.waiting.items():
        intent = state.intents.get(offset)
        if intent is None:
            made = exhausted if there.exhausted else WAIT
            yield made(offset, there.ready_at_ns, there.attempt, there.priority)
        elif offset < end:
            yield intended(offset, *intent, there.ready_at_ns, there.priority)
        if order is not None and offset in keys:
            yield KEY(offset, keys[offset], offset in order.held.get(keys[offset], ()))
    for offset, lease in state.leased.items():
        yield PICK(offset, *lease, keys.get(offset, 0))
    # The parked items, after those that are held: their records would move a bound.
    if order is not None:
        for key, first in order.parked.items():
            yield PARK(key, first)
        if order.parked:
            yield from _ranges(sorted(number for number in order.ended if low <= number < frontier))
        yield SCAN(frontier, order.count)
    yield from _ranges(offset for offset in state.above if not state.has(offset))
    if order is not None:  # keys that are held without an item: after the DONE of a dead letter, which frees its key
        for offset, key in keys.items():
            if not state.has(offset) and offset in order.held.get(key, ()):
                yield BLOCK(offset, key, 1)
    # The details of items.
    for offset, (at_ns, timestamp, check) in state.expires.items():
        if offset < end and _may_be_item(state, offset, low):
            yield expires(offset, timestamp, check, at_ns)
    for offset, data in state.headers.items():
        if offset < end and _may_be_item(state, offset, low):
            yield from in_parts(HEADERS, offset, data)
    for offset, data in state.reasons.items():
        if state.has(offset):
            yield from in_parts(REASON, offset, data)
    for name, meaning in state.dedupe.known.items():
        if meaning.until_ns > now_ns and meaning.offset < end:
            yield deduped(name, *meaning)
    counts = (state.done, state.dead, state.lost)
    yield COUNTS(*(min(count, NEVER) for count in counts))  # the last: without it, the log is not whole


def _may_be_item(state: QueueState, offset: int, low: int) -> bool:
    """Return whether an item may have this offset; low: where fresh or parked items begin."""
    if state.has(offset) or offset >= state.frontier:
        return True
    return state.order is not None and offset >= low and offset not in state.order.ended


def _ranges(offsets: Iterable[int]) -> Iterator[bytes]:
    """Yield the DONE of sorted offsets."""
    start = stop = -1
    for offset in offsets:
        if offset != stop:
            if start >= 0:
                yield DONE(start, stop)
            start = offset
        stop = offset + 1
    if start >= 0:
        yield DONE(start, stop)
