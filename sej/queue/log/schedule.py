"""Which items may be taken now: the consequences of time, as one process sees it.

The log records until when a lease lasts and from when on an item may be taken. Whether that time has come is each
process's own view. It has an effect only through a record: the item is leased, or it is returned.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

NEVER: Final = 2**63 - 1
_HEAP_SLACK: Final = 1000


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

    Attributes:
        lapsed: leased items whose time is over, or whose holder is dead.
        earliest_ns: no other lease ends before this.
    """

    def __init__(self, leased: dict[int, Lease], waiting: dict[int, Waiting]) -> None:
        """Observe these items, which the records change.

        Args:
            leased: by offset.
            waiting: by offset.
        """
        self._leased = leased
        self._waiting = waiting
        self.lapsed: set[int] = set()
        self.earliest_ns = NEVER
        self._now_ns = 0
        self._timed: list[tuple[int, int]] = []
        self._ready: dict[int, list[int]] = {}

    def add(self, offset: int, ready_at_ns: int) -> None:
        """Add a waiting item, to be found when its time comes."""
        heappush(self._timed, (ready_at_ns, offset))
        if len(self._timed) > 2 * len(self._waiting) + _HEAP_SLACK:
            self.rebuild()

    def rebuild(self) -> None:
        """Read every waiting and lapsed item again."""
        self._timed = [(there.ready_at_ns, offset) for offset, there in self._waiting.items()]
        heapify(self._timed)
        self._ready = {}
        for offset in self.lapsed:
            heappush(self._ready.setdefault(self._leased[offset].priority, []), offset)

    def tick(self, now_ns: int) -> None:
        """Make items whose time has come available to :meth:`first_ready`."""
        self._now_ns = now_ns
        timed = self._timed
        while timed and timed[0][0] <= now_ns:
            ready_at_ns, offset = heappop(timed)
            there = self._waiting.get(offset)
            if there is not None and there.ready_at_ns == ready_at_ns:
                heappush(self._ready.setdefault(there.priority, []), offset)
        if now_ns >= self.earliest_ns:
            self.lapse(offset for offset, lease in self._leased.items() if lease.deadline_ns <= now_ns)
            left = [lease.deadline_ns for offset, lease in self._leased.items() if offset not in self.lapsed]
            self.earliest_ns = min(left, default=NEVER)

    def lapse(self, offsets: Iterable[int]) -> None:
        """Add leased items whose time is over, or whose holder is dead."""
        for offset in [offset for offset in offsets if offset not in self.lapsed]:
            self.lapsed.add(offset)
            heappush(self._ready.setdefault(self._leased[offset].priority, []), offset)

    def first_ready(self) -> tuple[int, int] | None:
        """Return (priority, offset) of the item to take before all others that are not fresh; None: none is ready."""
        if not self._ready:
            return None
        for priority in sorted(self._ready, reverse=True):
            heap = self._ready[priority]
            while heap:
                offset = heap[0]
                there = self._waiting.get(offset)
                if offset in self.lapsed or (
                    there is not None and there.priority == priority and there.ready_at_ns <= self._now_ns
                ):
                    return priority, offset
                heappop(heap)
            del self._ready[priority]
        return None

    def push(self, offset: int, priority: int) -> None:
        """Make a waiting item available to :meth:`first_ready` that was put off; a second time changes nothing."""
        heappush(self._ready.setdefault(priority, []), offset)

    def put_off(self, priority: int) -> None:
        """Leave the first ready item of a priority out, until it is pushed again."""
        heappop(self._ready[priority])

    def next_due_ns(self) -> int | None:
        """Return when the next item may become ready on its own; None: never."""
        due = min(self._timed[0][0] if self._timed else NEVER, self.earliest_ns)
        return None if due == NEVER else due
