"""A queue's state as the records that say it: what a compacted log holds, without its history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sej.queue.log_format import BACK, COUNTS, DONE, DOOMED, EXPIRE, INTENT, KEPT, PICK, START, WAIT
from sej.queue.records import boot_record, dedupe_record, record
from sej.queue.state import NEVER, QueueState

__all__ = ["snapshot"]


def snapshot(state: QueueState, now: int, end: int) -> Iterator[bytes]:
    """The state as records: what a compacted log holds.

    Args:
        state: what is to be written down.
        now: what is over by then is left out.
        end: where the journal ends; intents for messages that were never written are left out.
    """
    if state.boot is not None:
        yield boot_record(*state.boot, now)
    anchor = state.anchor or (NEVER, 0)
    yield record(START, state.frontier, anchor[0], extra=anchor[1])
    yield record(COUNTS, state.done, state.dead, state.lost)
    for journal, letter in state.redriven.items():
        yield record(BACK, letter, journal)
    if state.kept is not None:
        yield record(KEPT, state.kept, b=now)
    for offset, there in sorted(state.waiting.items()):
        intent = state.intents.get(offset)
        if intent is None:
            extra = DOOMED if there.doomed else 0
            yield record(WAIT, offset, b=there.ready_at, band=there.band, attempt=there.attempt, extra=extra)
        elif offset < end:
            yield record(INTENT, offset, intent[0] % 2**64, there.ready_at, band=there.band, extra=intent[1])
    for offset, lease in state.leased.items():
        yield record(PICK, offset, 0, lease.deadline, band=lease.band, attempt=lease.attempt, slot=lease.slot)
    for start, stop in _ranges(sorted(state.above - state.leased.keys() - state.waiting.keys())):
        yield record(DONE, start, stop)
    for offset, (at, timestamp, check) in state.expires.items():
        if offset < end and (offset >= state.frontier or state.has(offset)):  # others were purged, or lost
            yield record(EXPIRE, offset, timestamp % 2**64, at, extra=check)
    for key, (offset, until, check) in state.dedupe.items():
        if until > now and offset < end:
            yield dedupe_record(key, offset, until, check)


def _ranges(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Sorted offsets as runs [start, stop)."""
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
