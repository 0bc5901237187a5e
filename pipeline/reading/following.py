"""The ends of growing journals, read repeatedly: what a stream polls.

Without new data Spark polls every 10 ms. A poll of an unchanged journal costs two calls of ``stat``, and one of a
journal that grew walks the new messages. These objects are never pickled: they live in the one process that plans a
stream.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Literal

from pipeline.reading.extents import Extent
from pipeline.reading.places import Origin, short_id
from sej.errors import JournalNotFoundError, NotAJournalError
from sej.journal.directory import Directory
from sej.journal.end import Tail
from sej.journal.segment import Place
from sej.system.disk import OS, Status

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
        segments = self._directory.segments()
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

    def __init__(
        self,
        paths: list[str],
        discover: Callable[[bool], list[Origin]],
        make: Callable[[Origin], Follower],
        *,
        may_vanish: bool = False,
    ) -> None:
        """Create a root that has not polled yet.

        Args:
            paths: a change of one of them triggers a new discovery.
            discover: returns the origins; its argument is whether a path may be missing.
            make: creates the follower of an origin.
            may_vanish: whether a journal may be removed; else that is an error.
        """
        self.followers: dict[str, Follower] = {}
        self._paths = paths
        self._may_vanish = may_vanish
        self._discover = discover
        self._make = make
        self._marks: list[tuple[int, int, int] | None] = []
        self._scanned_at = float("-inf")

    def look(self) -> dict[str, Follower]:
        """Return the existing journals, each polled, without those that were removed."""
        marks = [None if (there := OS.status(path)) is None else _mark(there) for path in self._paths]
        now = time.monotonic()
        if marks != self._marks or now - self._scanned_at >= _RESCAN_S:
            seen_before = self._scanned_at > float("-inf")
            found = {origin.name: origin for origin in self._discover(self._may_vanish and seen_before)}
            self.followers = {name: self.followers.get(name) or self._make(origin) for name, origin in found.items()}
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
