"""The end of a segment: sound, a torn tail, or corruption. Which messages of a damaged segment are good.

**The end.** The rules (docs/guarantees) apply at the byte where the next message is expected. A well-formed message
with the expected offset is good; a well-formed one with another offset is corruption; anything else is damage. Damage
is a torn tail unless a possible message follows: well formed, with a higher offset that is reachable (at most one
message for each 26 bytes skipped). If the header is sound and its length exceeds the end of the file, the ordinary torn
write, only a chain counts: at least two such messages, consecutive and reaching the end of the file, because a value
may hold whole messages.

Reads with bounded memory; changes nothing. :func:`keep` copies bytes to ``kept/`` before a writer cuts them.

**A damaged segment**: one rule, for repair and for readers that skip damage. The messages up to the first damage are
good. After it every run of well-formed, consecutive messages is a candidate, wherever it starts, because bytes may be
missing. Of the candidates, those are good that increase in offsets and hold the most messages. The others have a
damaged offset, or are messages in the value of a damaged one::

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

import os
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from sej.codec import Candidate, decode_many, find_candidate, measure, message_size
from sej.codec.format import HEAD_SIZE, INT32, INT32_SIZE, MAX_KEY_SIZE, MAX_OFFSET, OFFSET, OVERHEAD_SIZE
from sej.errors import CorruptionError, DecodeError
from sej.journal.directory import Directory, Segment
from sej.system.disk import File, open_existing, pieces

ANY_REACH: Final = 1 << 50
"""Starting there, any offset is reachable."""
_WINDOW_BYTES: Final = 1 << 22
_FIRST_WINDOW_BYTES: Final = 1 << 16
_HEADS_BYTES: Final = HEAD_SIZE + MAX_KEY_SIZE + INT32_SIZE
_TAIL_BYTES: Final = 1 << 10
"""One read of this many bytes usually has the whole last message."""
_STEP_BYTES: Final = 1 << 16
_JUMP_MAX: Final = 1 << 20
"""A single message at a segment's end is accepted only if it is at most this far ahead."""
_EARLIER: Final = "messages that an earlier segment has"


class Recovery(NamedTuple):
    """What a writer cut when it opened: a torn tail.

    Attributes:
        path: the segment.
        position: the position of the cut, in bytes.
        offset: the offset that was expected there. The next message gets it.
        size: how many bytes were cut.
        kept: the file that holds them.
        reason: what was wrong with them.
    """

    path: str
    position: int
    offset: int
    size: int
    kept: str
    reason: str


class Damage(NamedTuple):
    """Bytes after the good messages that are not a message.

    Attributes:
        position: where they start.
        offset: the offset that is expected there.
        size: bytes up to the end of the file.
        reason: what was found.
        follower: a good message after them: then this is corruption.
        indexed: the offset after the last message in the index, if that is after them: then this is corruption too.
    """

    position: int
    offset: int
    size: int
    reason: str
    follower: Candidate | None
    indexed: int | None = None

    @property
    def torn(self) -> bool:
        """Whether they are a torn tail, if this is the last segment."""
        return self.follower is None and self.indexed is None

    @property
    def resume(self) -> tuple[int, int] | None:
        """The position and expected offset from which on messages may be good again; None: unknown.

        An older message that is there again, or one with an offset that no message has, is a part of the damage.
        """
        if self.follower is None:
            return None
        if self.offset <= self.follower.offset < MAX_OFFSET:
            return self.follower.position, self.follower.offset
        return self.follower.end, self.offset

    @property
    def found(self) -> str:
        """What was found, and what shows that it is corruption."""
        if self.follower is not None:
            return f"{self.reason}; message {self.follower.offset} follows at position {self.follower.position}"
        if self.indexed is not None:
            return f"{self.reason}; the index has messages {self.offset} to {self.indexed - 1} from there on"
        return self.reason

    def error(self, path: str) -> CorruptionError:
        """Return the damage as an error, if it is not a torn tail."""
        journal = os.path.dirname(os.path.dirname(path))
        return CorruptionError(
            f"{self.found}; nothing was cut, see `sej verify {journal}` and `sej repair {journal}`",
            path=path,
            position=self.position,
            offset=self.offset,
        )


def good_end(file: File, position: int, due: int) -> tuple[int, int]:
    """Return where the good messages from position on end: (position, expected offset there)."""
    size = file.size()
    window = _FIRST_WINDOW_BYTES
    while position < size:
        data = file.read(min(window, size - position), position)
        try:
            run = measure(data, 0, len(data), due, len(data))
        except DecodeError:
            break
        if run.messages == 0:
            try:
                claimed = message_size(data, 0, len(data))
            except DecodeError:
                break
            if claimed is None or claimed > size - position or claimed <= window:
                break
            window = claimed  # one message is larger than the window
            continue
        position += run.position
        due += run.messages
        window = min(4 * window, _WINDOW_BYTES)
    return position, due


class _Look(NamedTuple):
    """What is wrong at a position.

    The reason, another message there if there is one, and whether only a chain counts after it.
    """

    reason: str
    instead: Candidate | None = None
    chained: bool = False


def _look(file: File, position: int, due: int, size: int) -> _Look | None:
    if position >= size:
        return None
    head = file.read(min(_HEADS_BYTES, size - position), position)
    try:
        claimed = message_size(head, 0, len(head))
    except DecodeError as error:
        return _Look(error.reason)
    if claimed is None:
        return _Look(f"{size - position} bytes are too few for a message")
    (offset,) = OFFSET.unpack_from(head)
    if claimed > size - position:
        reason = f"a message of {claimed} bytes begins here, but the file holds {size - position} of them"
        return _Look(reason, chained=offset == due)
    trailer = size_before(file, position + claimed)
    if trailer != claimed:
        return _Look(f"the size field at the message's end must be {claimed}, got {trailer}")
    if offset == due < MAX_OFFSET:
        return None
    if offset >= MAX_OFFSET:
        reason = f"offset {offset} exceeds the largest offset, {MAX_OFFSET - 1}"
    else:
        reason = f"the message must have offset {due}, got {offset}"
    return _Look(reason, Candidate(position, position + claimed, offset))


def frame_end(file: File, position: int) -> int | None:
    """Return where the message that starts at position ends, whatever offset it has; None: it is not whole."""
    size = file.size()
    head = file.read(min(_HEADS_BYTES, max(size - position, 0)), position)
    try:
        claimed = message_size(head, 0, len(head))
    except DecodeError:
        return None
    if claimed is None or claimed > size - position or size_before(file, position + claimed) != claimed:
        return None
    return position + claimed


def what_is_wrong(file: File, position: int, due: int) -> str | None:
    """Return why no message with the expected offset starts at position; None: one does, or the file ends there."""
    found = _look(file, position, due, file.size())
    return None if found is None else found.reason


def find_damage(file: File, position: int, due: int) -> Damage | None:
    """Decide about the bytes at position, where the caller found no good message with the expected offset.

    None: nothing is wrong. The file ends there, or a writer has completed the message in the meantime.
    """
    size = file.size()
    found = _look(file, position, due, size)
    if found is None:
        return None
    if found.instead is not None:
        # If the message after it has the next expected offset, only this one's offset is damaged.
        after, behind = found.instead.end, found.instead
        if (end := frame_end(file, after)) is not None and _look(file, after, due + 1, size) is None:
            behind = Candidate(after, end, due + 1)
        return Damage(position, due, size - position, found.reason, behind)
    if found.chained:
        chains = _chains(file, position, due, size, position)
        follower = next((start for start, reaches_end in chains if reaches_end), None)
    else:
        follower = next_candidate(file, position + 1, size, due, position)
    if follower is not None and _look(file, position, due, file.size()) is None:
        return None  # a writer has cut a torn tail and appended in the meantime: the follower follows its message
    return Damage(position, due, size - position, found.reason, follower)


def corruption_at(file: File, position: int, due: int) -> CorruptionError | None:
    """Return the error for the end of the last segment's good messages; None: the end of the file, or a torn tail.

    A whole message with another offset is not a torn tail either, even if nothing follows it. A message that a writer
    completes in the meantime is not damaged.
    """
    damage = find_damage(file, position, due)
    return None if damage is None or damage.torn else damage.error(file.path)


def is_torn(file: File, position: int, due: int) -> bool:
    """Return whether the expected message begins at position and the file lacks its end.

    Then message-like bytes after it are its value.

    False if its length may be damaged: a chain that reaches the end of the file follows it, with any later offsets, or
    a message directly after a size field that confirms a message from position to there.
    """
    size = file.size()
    found = _look(file, position, due, size)
    if found is None or not found.chained:
        return False
    for start, reaches_end in _chains(file, position, due, size, position - ANY_REACH):
        passed = start.position - position
        if reaches_end or (passed >= OVERHEAD_SIZE and size_before(file, start.position) == passed):
            return False
    return True


def next_candidate(file: File, start: int, size: int, due: int, damage: int) -> Candidate | None:
    """Return the first message from start on that could follow the damage."""
    window = _FIRST_WINDOW_BYTES
    while start <= size - OVERHEAD_SIZE:
        data = file.read(min(window, size - start), start)
        window = min(4 * window, _WINDOW_BYTES)
        last = start + len(data) >= size
        found = find_candidate(data, 0, len(data), due, damage - start, size - start)
        if found is None:
            if last:
                return None
            start += len(data) - _HEADS_BYTES
            continue
        whole = Candidate(start + found.position, start + found.end, found.offset)
        if found.end <= len(data) or size_before(file, whole.end) == whole.end - whole.position:
            return whole
        start = whole.position + 1
    return None


def _chains(file: File, position: int, due: int, size: int, damage: int) -> Iterator[tuple[Candidate, bool]]:
    """Yield where consecutive messages start after position, and whether a chain of them reaches the end."""
    start = position + 1
    while (found := next_candidate(file, start, size, due, damage)) is not None:
        start, stop = good_end(file, found.position, found.offset)
        yield found, start == size and stop - found.offset >= 2


def size_before(file: File, position: int) -> int:
    """Return the size field before position: if a message ends there, its own size."""
    size: int = INT32.unpack(file.read(INT32_SIZE, position - INT32_SIZE))[0]
    return size


def last_message(file: File, end: int) -> tuple[int, bytes] | None:
    """Return where the message that ends at ``end`` starts, and its first bytes; None if there is no sound message.

    For reading backwards, the purpose of the trailing size. The header that it leads to is checked.

    Returns:
        The position, and at least the first 18 bytes: offset, timestamp, type and the size of the key.
    """
    tail = file.read(min(_TAIL_BYTES, end), max(end - _TAIL_BYTES, 0))
    if end < OVERHEAD_SIZE or len(tail) < min(_TAIL_BYTES, end):
        return None
    size: int = INT32.unpack(tail[-INT32_SIZE:])[0]
    if not OVERHEAD_SIZE <= size <= end:
        return None
    head = tail[-size:] if size <= len(tail) else file.read(min(_HEADS_BYTES, size), end - size)
    try:
        claimed = message_size(head, 0, len(head))
    except DecodeError:
        return None
    return (end - size, head) if claimed == size else None


def keep(directory: Directory, file: File, position: int, size: int, name: str) -> str:
    """Copy bytes of a file into ``kept/`` and sync them; return the path of the copy."""
    directory.disk.mkdir(directory.at("kept"))
    number = 0
    while directory.disk.status(path := directory.at("kept", name + (f".{number}" if number else ""))) is not None:
        number += 1
    with directory.disk.open(path, "new") as copy:
        for data in pieces(file, position, position + size):
            copy.write(data)
        copy.sync()
    return os.fspath(path)


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
        The plan, and the offset from which on the messages belong to a later segment; MAX_OFFSET: this is the last one.
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
