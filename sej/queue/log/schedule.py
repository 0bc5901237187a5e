"""Which items may be taken now: the consequences of time, as one process sees it.

The log records until when a lease lasts and from when on an item may be taken. Whether that time has come is each
process's own view. It has an effect only through a record: the item is leased, or it is returned.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from sortedcontainers import SortedDict

NEVER: Final = 2**63 - 1


class Lease(NamedTuple):
    """An item that a worker holds.

    Attributes:
        attempt: the attempt, from 1.
        holder: the number of the open queue that holds it.
        deadline_ns: when it ends, on the boot-time clock.
        priority: of the item.
    """

    attempt: int
    holder: int
    deadline_ns: int
    priority: int


class Waiting(NamedTuple):
    """An item that is neither fresh nor leased.

    Attributes:
        attempt: its number of attempts.
        ready_at_ns: from when on it may be taken, on the boot-time clock.
        priority: of the item.
        exhausted: whether a process began to give it up: it only waits for its dead letter.
    """

    attempt: int
    ready_at_ns: int
    priority: int
    exhausted: bool = False


class Schedule:
    """The order in which leased and waiting items become ready.

    Leases end in about the order in which they began, so they are not sorted: the items whose lease is over are looked
    for when the first one is.

    Attributes:
        lapsed: leased items whose time is over.
        earliest_ns: no other lease ends before this.
        ready: (-priority, offset) of the items that may be taken, the next one first: the keys of a dict, because an
            empty SortedSet costs a call of Python to find out.
    """

    def __init__(self, leased: dict[int, Lease], waiting: SortedDict) -> None:
        """Observe these items, which the records change.

        Args:
            leased: by offset.
            waiting: by offset.
        """
        self._leased = leased
        self._waiting = waiting
        self.lapsed: set[int] = set()
        self.earliest_ns = NEVER
        self.ready = SortedDict()
        self._timed = SortedDict()
        self._now_ns = 0

    def add(self, offset: int, there: Waiting) -> None:
        """Add a waiting item, to be found when its time comes."""
        if there.ready_at_ns <= self._now_ns:
            self.ready[-there.priority, offset] = None
        else:
            self._timed[there.ready_at_ns, offset] = None

    def remove(self, offset: int, there: Waiting) -> None:
        """Remove an item that waits no more."""
        self.ready.pop((-there.priority, offset), None)
        self._timed.pop((there.ready_at_ns, offset), None)

    def rebuild(self) -> None:
        """Read every waiting and lapsed item again."""
        self.ready = SortedDict.fromkeys((-self._leased[offset].priority, offset) for offset in self.lapsed)
        self._timed = SortedDict.fromkeys((there.ready_at_ns, offset) for offset, there in self._waiting.items())

    def tick(self, now_ns: int) -> None:
        """Make items whose time has come ready."""
        self._now_ns = now_ns
        timed = self._timed
        while timed and timed.peekitem(0)[0][0] <= now_ns:
            (_, offset), _ = timed.popitem(0)
            self.ready[-self._waiting[offset].priority, offset] = None
        if now_ns >= self.earliest_ns:
            self.lapse(offset for offset, lease in self._leased.items() if lease.deadline_ns <= now_ns)
            left = [lease.deadline_ns for offset, lease in self._leased.items() if offset not in self.lapsed]
            self.earliest_ns = min(left, default=NEVER)

    def lapse(self, offsets: Iterable[int]) -> None:
        """Add leased items whose time is over."""
        for offset in offsets:
            self.lapsed.add(offset)
            self.ready[-self._leased[offset].priority, offset] = None

    def keep(self, offset: int) -> None:
        """A leased item was ended, or its lease is longer: its time is not over."""
        if offset in self.lapsed:
            self.lapsed.discard(offset)
            self.ready.pop((-self._leased[offset].priority, offset), None)

    def first_ready(self) -> tuple[int, int] | None:
        """Return (priority, offset) of the item to take before all others that are not fresh; None: none is ready."""
        if not self.ready:
            return None
        (priority, offset), _ = self.ready.peekitem(0)
        return -priority, offset

    def push(self, offset: int) -> None:
        """Make a waiting item ready that was put off; a second time changes nothing."""
        self.ready[-self._waiting[offset].priority, offset] = None

    def put_off(self) -> None:
        """Leave the first ready item out, until it is pushed again."""
        self.ready.popitem(0)

    def next_due_ns(self) -> int | None:
        """Return when the next item may become ready on its own; None: never."""
        due = min(self._timed.peekitem(0)[0][0] if self._timed else NEVER, self.earliest_ns)
        return None if due == NEVER else due
