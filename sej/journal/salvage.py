"""Which messages of a damaged segment are good: one rule, for repair and for readers that skip damage.

The messages up to the first damage are good. After it every run of well-formed, consecutive messages is a candidate,
wherever it starts, because bytes may be missing. Of the candidates, those are good that increase in offsets and hold
the most messages. The others have a damaged offset, or are messages in the value of a damaged one::

    0..9  [damage]  12..19  [5..7]  20..30  [900]  31..40  [end]
    good            good    no      good    no     good

Two more limits: offsets that the next segment has belong to it, and a single message far ahead at the very end of a
segment is not accepted. If the last segment only ends with a torn write, nothing after it counts. Bytes that the index
covers are not a torn write.

A segment may have messages at and after the start of the next one. If the segments after it have all of these offsets
too, they belong to those segments. Otherwise the segment keeps them (:func:`plan_between`), and a segment that starts
inside it keeps only what comes after::

    0..34         keeps 0..9     |  0..34         keeps 0..34
        10..40    keeps 10..40   |      10..20    keeps nothing: it lacks 21..34

Reads with bounded memory, except for one small entry for each run.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from sej.codec import decode_many
from sej.codec.format import MAX_OFFSET, OVERHEAD_SIZE
from sej.journal.directory import Directory, Segment
from sej.journal.recovery import ANY_REACH, good_end, is_torn, next_candidate, what_is_wrong
from sej.system.disk import File, open_existing

_STEP_BYTES: Final = 1 << 16
_JUMP_MAX: Final = 1 << 20
"""A single message at a segment's end is accepted only if it is at most this far ahead."""
_EARLIER: Final = "messages that an earlier segment has"


class Run(NamedTuple):
    """Good messages: bytes [start, end) of a segment, offsets [first, stop)."""

    start: int
    end: int
    first: int
    stop: int


class Plan(NamedTuple):
    """The plan for one segment: the good runs, and the bytes between them with their reasons."""

    runs: list[Run]
    damage: list[tuple[int, int, str]]


def plan_between(
    directory: Directory, segments: list[Segment], at: int, file: File, *, floor: int = 0, indexed: int = 0
) -> tuple[Plan, int]:
    """Plan one of several segments, with regard to those after it.

    Args:
        directory: the journal.
        segments: its segments.
        at: the number of the segment.
        file: the segment.
        floor: as for :func:`plan_segment`.
        indexed: as for :func:`plan_segment`.

    Returns:
        The plan, and the offset from which on the messages belong to a later segment; MAX_OFFSET: there is none.
    """
    first_offset = segments[at].first_offset
    ceiling = segments[at + 1].first_offset if at + 1 < len(segments) else MAX_OFFSET
    plan = plan_segment(file, first_offset, ceiling, floor=floor, indexed=indexed)
    if plan.runs and plan.runs[-1].stop == ceiling:
        _, stop = good_end(file, plan.runs[-1].end, ceiling)
        if stop > ceiling and not _have(directory, segments, at + 1, stop):
            later = (segment.first_offset for segment in islice(segments, at + 1, None))
            ceiling = next((offset for offset in later if offset >= stop), MAX_OFFSET)
            plan = plan_segment(file, first_offset, ceiling, floor=floor, indexed=indexed)
    return plan, ceiling


def _have(directory: Directory, segments: list[Segment], at: int, stop: int) -> bool:
    """Return whether the segments from one on have every message from its start to stop."""
    due = segments[at].first_offset
    for segment in islice(segments, at, None):
        if segment.first_offset > due or due >= stop:
            break
        file = open_existing(directory.disk, segment.path, "read")
        if file is None:
            break
        with file:
            due = max(due, good_end(file, 0, segment.first_offset)[1])
    return due >= stop


def plan_segment(file: File, first_offset: int, ceiling: int, *, floor: int = 0, indexed: int = 0) -> Plan:
    """Find the good messages of a segment, and the bytes between them. Reads the segment once, in pieces.

    Args:
        file: the segment.
        first_offset: its first offset, by its name.
        ceiling: where the next segment starts; MAX_OFFSET if this is the last one.
        floor: offsets below it are in an earlier segment.
        indexed: the position up to which the index has messages.
    """
    size = file.status().size
    end, stop = good_end(file, 0, first_offset)
    runs = [Run(0, end, first_offset, stop)]
    if stop > ceiling:
        runs = [Run(0, _place(file, runs[0], ceiling), first_offset, ceiling)]
    if first_offset < floor:
        first = min(floor, runs[0].stop)
        runs = [Run(_place(file, runs[0], first), runs[0].end, first, runs[0].stop)]
    # The last segment may end with a torn write, as opening would cut it; the others were whole when they were sealed.
    torn = ceiling == MAX_OFFSET and indexed <= end < size and is_torn(file, end, stop)
    if end < size and stop <= ceiling and not torn:
        runs = _rising([*runs, *_islands(file, end, max(stop, floor), ceiling)])
    if len(runs) > 1 and _is_far(*runs[-2:]):
        runs.pop()
    if runs[0].start == runs[0].end:
        del runs[0]
    damage = []
    position, due = 0, first_offset
    for run in runs:
        if (run.start, run.first) != (position, due):
            known = _EARLIER if due < floor else "bytes between good messages"
            damage.append((position, run.start, what_is_wrong(file, position, due) or known))
        position, due = run.end, run.stop
    if position < size:
        known = _EARLIER if due < floor else "messages that the next segment has"
        damage.append((position, size, what_is_wrong(file, position, due) or known))
    return Plan(runs, damage)


def _islands(file: File, position: int, due: int, ceiling: int) -> Iterator[Run]:
    """Yield every run of well-formed, consecutive messages from position on with offsets from due to below ceiling.

    Recovery requires a reachable offset; here bytes may be missing, so any later offset is accepted. A run is cut where
    an earlier one stops inside it: if ranges of the file overlap, each has messages that the others lack.
    """
    size = file.status().size
    stops = [ceiling]
    while (found := next_candidate(file, position, size, due - 1, position - ANY_REACH)) is not None:
        position, stop = good_end(file, found.position, found.offset)
        run = Run(found.position, position, found.offset, stop)
        for cut in stops[bisect_right(stops, run.first) : bisect_left(stops, stop)]:
            at = _place(file, run, cut)
            yield Run(run.start, at, run.first, cut)
            run = Run(at, position, cut, stop)
        if run.first < ceiling:
            yield run
        if stop < ceiling and stops[bisect_left(stops, stop)] != stop:
            insort(stops, stop)


def _place(file: File, run: Run, offset: int) -> int:
    """Return where a message of a run starts."""
    position, due = run.start, run.first
    size = _STEP_BYTES
    while due < offset:
        data = file.read(min(size, run.end - position), position)
        messages, end = decode_many(data, 0, len(data), due, offset - due)
        position, due = position + end, due + len(messages)
        size = _STEP_BYTES if messages else 2 * size
    return position


def _rising(runs: list[Run]) -> list[Run]:
    """Return the first of the runs and those that follow each other in offsets, so that they hold the most messages.

    The others have a damaged offset, or are messages in the value of a damaged one. Of choices with the same number of
    messages, the one with room for more of the lost ones is taken.
    """
    stops = [runs[0].stop]  # where a choice may end,
    scores = [(0, 0)]  # what it is worth at most, rising with it,
    lasts = [0]  # and which run it ends with
    before = [-1]
    for at, run in enumerate(runs[1:], 1):
        place = bisect_right(stops, run.first) - 1
        messages, near = scores[place]
        score = (messages + run.stop - run.first, near + _has_room(runs[lasts[place]], run))
        before.append(lasts[place])
        if scores[bisect_right(stops, run.stop) - 1] < score:
            left = bisect_left(stops, run.stop)
            right = bisect_right(scores, score, left)
            stops[left:right], scores[left:right], lasts[left:right] = [run.stop], [score], [at]
    chosen = []
    at = lasts[-1]
    while at >= 0:
        chosen.append(runs[at])
        at = before[at]
    return chosen[::-1]


def _has_room(last: Run, run: Run) -> bool:
    """Return whether the messages missing between two runs may have been between them in the file."""
    return run.first - last.stop <= (run.start - last.end) // OVERHEAD_SIZE


def _is_far(last: Run, run: Run) -> bool:
    """Return whether a run is a single message, too far ahead to be accepted."""
    return run.stop - run.first == 1 and run.first - last.stop >= _JUMP_MAX and not _has_room(last, run)
