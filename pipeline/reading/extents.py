"""The extent of a journal: its offsets, its bytes, and how they correspond.

The sidecar index maps bytes to offsets and back, to a block. Without an index (the original writes none) positions are
interpolated between the names of the segments. Only the unindexed tail is walked.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import cached_property
from itertools import accumulate
from typing import Final, Literal, NamedTuple

from pipeline.reading.discovery import Origin, Slice, Way, discover, short_id
from sej.errors import CorruptionError, JournalNotFoundError, NotAJournalError
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory, Segment, containing, count_messages
from sej.journal.index import IndexFile
from sej.journal.segment import Place
from sej.journal.tail import Tail
from sej.journal.tier import Archived, readable
from sej.journal.view import Journal
from sej.system.disk import OS, Status


class _Knot(NamedTuple):
    """A message and its byte position, counted from the journal's beginning."""

    offset: int
    byte: int


class Extent:
    """One origin when this object was created.

    Attributes:
        origin: the journal.
        first: the offset of its first message.
        end: the offset after its last whole message; if damage is skipped, after the damage.
    """

    def __init__(
        self, origin: Origin, *, on_corruption: Literal["raise", "skip"] = "raise", judge: bool = True
    ) -> None:
        """Measure the journal.

        Args:
            origin: the journal.
            on_corruption: what to do if good messages follow damage at its end.
            judge: whether to check the bytes after the last whole message. A torn tail is accepted.

        Raises:
            CorruptionError: they are not a torn tail.
            JournalNotFoundError: the journal does not exist.
        """
        self.origin = origin
        self._directory = Directory(origin.path, OS)
        self._directory.require()
        self._segments: list[Segment] = []
        self._sizes: list[int] = []
        self._identities: list[tuple[int, int]] = []
        self.end = Tail(self._directory).end_offset()
        for segment in readable(self._directory):
            if isinstance(segment, Archived):
                size, identity = segment.listed.size, (0, 0)
            elif (there := OS.status(segment.path)) is not None and segment.first_offset <= self.end:
                size, identity = there.size, there.identity
            else:
                continue
            self._segments.append(segment)
            self._sizes.append(size)
            self._identities.append(identity)
        self._before = list(accumulate(self._sizes, initial=0))
        self._knots: dict[int, list[_Knot]] = {}
        self.first = self._segments[0].first_offset if self._segments else 0
        if judge and self._segments:
            self.end = self._behind_damage(on_corruption)

    @cached_property
    def _id(self) -> str:
        try:
            return short_id(self._directory)
        except CorruptionError:  # of the identity: the messages can be read without it
            return ""

    @property
    def size(self) -> int:
        """The bytes of all its segments."""
        return self._before[-1]

    @property
    def messages(self) -> int:
        """The number of messages: offsets without the recorded gaps."""
        return self.count(self.first, self.end)

    def count(self, start: int, stop: int) -> int:
        """Return the number of messages [start, stop), without the recorded gaps."""
        return count_messages(self._directory, max(start, self.first), min(stop, self.end))

    def find_time(self, timestamp: int) -> int:
        """Return the first offset from a timestamp (ns) on; the end if none exists."""
        return min(Journal(self.origin.path).find_time(timestamp), self.end)

    def slice(self, start: int, stop: int) -> Slice:
        """Return the messages [start, stop) with their size."""
        start, stop = max(start, self.first), min(stop, self.end)
        size = self.byte_of(stop) - self.byte_of(start) if start < stop else 0
        return Slice(self.origin, start, max(start, stop), size, id=self._id)

    def byte_of(self, offset: int) -> int:
        """Return about where a message is, counted from the journal's beginning."""
        if offset <= self.first or not self._segments:
            return 0
        if offset >= self.end:
            return self.size
        at = containing(self._segments, offset)
        if offset == self._segments[at].first_offset:
            return self._before[at]
        knots = self._knots_of(at)
        right = bisect_left(knots, offset, key=lambda knot: knot.offset)
        return _between(offset, knots[right - 1], knots[right])

    def cut(self, part: Slice, size: int) -> tuple[Slice, Slice] | None:
        """Divide a slice so that the first part has about ``size`` bytes; None if it cannot be divided there."""
        byte = self.byte_of(part.start) + size
        at = min(max(bisect_right(self._before, byte) - 1, 0), len(self._segments) - 1)
        knots = self._knots_of(at)
        right = min(max(bisect_left(knots, byte, key=lambda knot: knot.byte), 1), len(knots) - 1)
        left, behind = knots[right - 1], knots[right]
        nearest = left if byte - left.byte < behind.byte - byte else behind
        place = None
        if part.start < nearest.offset < part.stop and abs(nearest.byte - byte) <= max(size // 4, 1 << 16):
            offset, byte = nearest
            if offset < self._end_of(at):
                place = Place(self._identities[at], byte - self._before[at])
        else:
            wide = max(behind.byte - left.byte, 1)
            offset = left.offset + (byte - left.byte) * (behind.offset - left.offset) // wide
        if not part.start < offset < part.stop:
            return None
        done = byte - self.byte_of(part.start)
        return (
            part._replace(stop=offset, size=done),
            part._replace(start=offset, size=max(part.size - done, 1), place=place),
        )

    def _end_of(self, at: int) -> int:
        return self._segments[at + 1].first_offset if at + 1 < len(self._segments) else self.end

    def _knots_of(self, at: int) -> list[_Knot]:
        """Return the known positions of one segment: its beginning, its indexed blocks, its end."""
        if at not in self._knots:
            segment, before = self._segments[at], self._before[at]
            knots = [_Knot(segment.first_offset, before)]
            with suppress(FileNotFoundError):  # merged or deleted in the meantime: the tasks find out
                with OS.open(segment.path, "read") as file:
                    index = IndexFile(self._directory, segment).load(file)
                knots += [_Knot(block.next_offset, before + block.end) for block in index.blocks]
            end = _Knot(self._end_of(at), before + self._sizes[at])
            if knots[-1].offset < end.offset:
                knots.append(end)
            elif len(knots) == 1:
                knots.append(_Knot(knots[0].offset + 1, before + max(self._sizes[at], 1)))
            self._knots[at] = knots
        return self._knots[at]

    def _behind_damage(self, on_corruption: Literal["raise", "skip"]) -> int:
        with closing(Cursor(self._directory, self.end, on_corruption=on_corruption)) as cursor:
            cursor.read_columns(1)
            if cursor.due == self.end and not cursor.judge():
                return self.end
            while cursor.read_columns(1 << 20) is not None or cursor.judge():
                pass
            return cursor.due if cursor.gaps else self.end


def _between(offset: int, left: _Knot, right: _Knot) -> int:
    return left.byte + (offset - left.offset) * (right.byte - left.byte) // max(right.offset - left.offset, 1)


_PLACES: Final = 64
_RESCAN_S: Final = 1.0


class Follower:
    """One growing journal.

    Attributes:
        origin: the journal.
        id: its identity in hex, which shows a re-created journal; empty if it has none.
        first: the offset of its first message, at the last poll.
        end: the offset after its last whole message, at the last poll.
    """

    def __init__(self, origin: Origin, on_corruption: Literal["raise", "skip"]) -> None:
        """Create a follower that has not polled yet."""
        self.origin = origin
        self.id = ""
        self.first = self.end = 0
        self._on_corruption = on_corruption
        self._directory = Directory(origin.path, OS)
        self._tail = Tail(self._directory)
        self._seen: tuple[object, ...] | None = None
        self._last_path: str | None = None
        self._rest: tuple[str, int] | None = None
        self._places: OrderedDict[int, Place] = OrderedDict()

    def look(self) -> int:
        """Poll the journal; return the end.

        Raises:
            JournalNotFoundError: the journal was removed.
            CorruptionError: good messages follow the bytes after the last whole message: the stream would never pass
                them.
        """
        seen = self._state()
        if seen is not None and seen == self._seen:
            return self.end
        identity = short_id(self._directory)
        if identity != self.id:
            self.id = identity
            self._tail = Tail(self._directory)
            self._places.clear()
        segments = readable(self._directory)
        self.first = segments[0].first_offset if segments else 0
        self._last_path = segments[-1].path if segments else None
        self.end = self._tail.end_offset()
        place = self._tail.place
        if place is not None:
            self._places[self.end] = place
            if len(self._places) > _PLACES:
                self._places.popitem(last=False)
            self._judge(place)
        self._seen = seen
        return self.end

    def extent(self, *, judge: bool = False) -> Extent:
        """Return the journal's extent now."""
        return Extent(self.origin, judge=judge)

    def place(self, offset: int) -> Place | None:
        """Return where a message is, if it was the next one at a recent poll."""
        return self._places.get(offset)

    def size_of(self, start: int, stop: int) -> int:
        """Return about how many bytes [start, stop) takes."""
        left, right = self._places.get(start), self._places.get(stop)
        if left is not None and right is not None and left.identity == right.identity:
            return right.position - left.position
        return Extent(self.origin, judge=False).slice(start, stop).size

    def _state(self) -> tuple[object, ...] | None:
        """Return a value that changes with the journal; None if it is unknown yet."""
        if self._last_path is None:
            return None
        jnl = OS.status(self._directory.jnl)
        last = OS.status(self._last_path)
        if jnl is None or last is None:
            return None
        return _mark(jnl), last.identity, last.size

    def _judge(self, place: Place) -> None:
        """Check bytes that follow the last whole message at two polls in a row: an append in progress, or damage?"""
        last = None if self._last_path is None else OS.status(self._last_path)
        if last is None or last.identity != place.identity or last.size <= place.position:
            self._rest = None
            return
        rest = (str(self._last_path), last.size)
        if self._rest == rest:
            self.end = Extent(self.origin, on_corruption=self._on_corruption).end
        else:
            self._rest = rest
            self._last_path = None  # poll again next time, whatever stat returns


def _mark(status: Status) -> tuple[int, int, int]:
    return status.device, status.inode, status.mtime_ns


class Root:
    """The journals below the paths of a stream, including new ones.

    Attributes:
        followers: by name.
    """

    def __init__(self, paths: Sequence[str], way: Way) -> None:
        """Create a root that has not polled yet.

        Args:
            paths: a change of one of them triggers a new discovery.
            way: how they are read. If that must not fail on data loss, a journal may be removed; else that is an error.
        """
        self.followers: dict[str, Follower] = {}
        self._paths = paths
        self._way = way
        self._may_vanish = not way.fail_on_data_loss
        self._marks: list[tuple[int, int, int] | None] = []
        self._scanned_at = float("-inf")

    def check(self) -> None:
        """Do nothing: :meth:`look` raises if a path does not exist."""

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def look(self) -> dict[str, Follower]:
        """Return the existing journals, each polled, without those that were removed."""
        marks = [None if (status := OS.status(path)) is None else _mark(status) for path in self._paths]
        now = time.monotonic()
        if marks != self._marks or now - self._scanned_at >= _RESCAN_S:
            gone = self._may_vanish and self._scanned_at > float("-inf")
            self.followers = {
                origin.name: self.followers.get(origin.name) or Follower(origin, self._way.on_corruption)
                for origin in discover(self._paths, self._way, may_be_empty=True, may_be_gone=gone)
                if self._way.clients is None or origin.client in self._way.clients
            }
            self._marks, self._scanned_at = marks, now
        for name, follower in list(self.followers.items()):
            try:
                follower.look()
            except (JournalNotFoundError, NotAJournalError, FileNotFoundError):
                if not self._may_vanish:
                    raise
                del self.followers[name]  # removed during the poll, or being removed
                self._marks = []
        return self.followers

    def again(self, name: str) -> Follower:
        """Return a known journal, polled now."""
        self.followers[name].look()
        return self.followers[name]
