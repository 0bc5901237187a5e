"""The state of a queue, as its log tells it: who holds what, what waits, what is done. No I/O, no clock.

Messages below ``frontier`` were taken at least once; those from it on are fresh, except the ones in ``above``, which
were delayed, put into a band of their own, or taken out of order. What was not done stands in ``leased`` or in
``waiting``; everything else below the frontier is done, so that the state is as large as what is in flight.

Two processes that have read the same records have the same ``leased`` and ``waiting``. What is derived from the time,
which items are due and which leases ran out, is each process' own view: it counts only once a record says so.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from sej.queue.log_format import (
    BACK,
    BOOT,
    COUNTS,
    DEAD,
    DEDUPE,
    DONE,
    DOOMED,
    DROP,
    EXPIRE,
    EXTEND,
    FREE,
    INTENT,
    KEPT,
    LEASE,
    LOST,
    PICK,
    PURGE,
    RECORD,
    START,
    WAIT,
)

__all__ = ["NEVER", "Lease", "QueueState", "Waiting"]

NEVER: Final = 2**63 - 1
_HEAP_SLACK: Final = 1000


class Lease(NamedTuple):
    """An item in somebody's hands.

    Attributes:
        attempt: which hand-out this is, from 1.
        slot: whose.
        deadline: when it ends, ns of the boot-time clock.
        band: its priority.
    """

    attempt: int
    slot: int
    deadline: int
    band: int


class Waiting(NamedTuple):
    """An item that is not fresh and not leased.

    Attributes:
        attempt: how often it was handed out.
        ready_at: from when on it may be taken, ns of the boot-time clock.
        band: its priority.
        doomed: whether somebody was about to bury it.
    """

    attempt: int
    ready_at: int
    band: int
    doomed: bool = False


class QueueState:
    """What the records say.

    Attributes:
        frontier: the first message that nobody has taken in order.
        above: offsets from the frontier on that are not fresh.
        leased: items in hands.
        waiting: items that were given back, are delayed, or stand in a band of their own.
        lapsed: leased items whose time is over or whose holder is dead, as this process sees it.
        intents: (timestamp, check) that the message of a waiting item must have, until somebody looked.
        expires: (when nobody wants an item any more, timestamp, check): the message must match.
        first_expiry: before that nothing of them is due.
        dedupe: by a key's 12 bytes: (offset, until, check).
        done: how many items were done.
        dead: how many are dead letters.
        lost: how many were taken out of the journal before they were done.
        redriven: by the first 8 bytes of the id of a journal of dead letters: up to which of them they were put back.
        kept: what the kept offset was last said to be; None: never.
        anchor: (offset, stamp) of the newest message that was taken in order; None: none yet.
        ahead: (offset, stamp) of the newest message that was taken or ended out of order, ahead of the others.
        boot: (boot id, when that boot began by the wall clock) that times belong to.
    """

    def __init__(self, frontier: int = 0) -> None:
        """Nothing is taken; fresh messages begin at frontier."""
        self.frontier = frontier
        self.above: set[int] = set()
        self.leased: dict[int, Lease] = {}
        self.waiting: dict[int, Waiting] = {}
        self.intents: dict[int, tuple[int, int]] = {}
        self.expires: dict[int, tuple[int, int, int]] = {}
        self.first_expiry = NEVER
        self.dedupe: dict[bytes, tuple[int, int, int]] = {}
        self.done = self.dead = self.lost = 0
        self.redriven: dict[int, int] = {}
        self.kept: int | None = None
        self.anchor: tuple[int, int] | None = None
        self.ahead: tuple[int, int] | None = None
        self.boot: tuple[bytes, int] | None = None
        self._unproven: list[tuple[int, bytes]] = []
        self._head = frontier
        self._earliest = NEVER
        self._now = self._seen = 0
        self.lapsed: set[int] = set()
        self._timed: list[tuple[int, int]] = []
        self._ready: dict[int, list[int]] = {}

    # --- what the records say

    def apply(self, data: bytes | memoryview) -> None:
        """Take in whole, checked records."""
        leased, waiting = self.leased, self.waiting
        new = tuple.__new__
        for kind, band, attempt, slot, offset, a, b, extra in RECORD.iter_unpack(data):
            if kind == LEASE:
                if a - offset == 1:
                    if waiting:
                        waiting.pop(offset, None)
                    leased[offset] = new(Lease, (1, slot, b, 0))
                else:
                    for number in range(offset, a):
                        waiting.pop(number, None)
                        leased[number] = new(Lease, (1, slot, b, 0))
                if b < self._earliest:
                    self._earliest = b
                self.anchor = (a - 1, extra)
                self._pass(a)
            elif kind == DONE and a <= self.frontier and not self.above:
                for number in range(offset, a):
                    if leased.pop(number, None) is not None or waiting.pop(number, None) is not None:
                        self.done += 1
                if self.lapsed or self.expires or self.intents:
                    for number in range(offset, a):
                        self._forget(number)
            else:
                self._apply(kind, band, attempt, slot, offset, a, b, extra)

    def _apply(self, kind: int, band: int, attempt: int, slot: int, offset: int, a: int, b: int, extra: int) -> None:
        if kind == DONE:
            self._done(offset, a)
        elif kind == PICK:
            self._remove(offset)
            intent = self.intents.pop(offset, None)
            if intent is not None:
                self._found(offset, intent[0])
            self._lease(offset, Lease(attempt, slot, b, band))
            self.settle()
        elif kind == EXTEND:
            if offset in self.leased:
                self.lapsed.discard(offset)
                self._lease(offset, self.leased[offset]._replace(deadline=b))
        elif kind == WAIT:
            self._remove(offset)
            self._wait(offset, Waiting(attempt, b, band, extra == DOOMED))
        elif kind == FREE:
            for number in [number for number, lease in self.leased.items() if lease.slot == slot]:
                self._give_back(number)
        elif kind == DEAD:
            self._remove(offset)
            self._forget(offset)
            self.dead += 1
        elif kind == INTENT:
            self._remove(offset)
            self.intents[offset] = (_signed(a), extra)
            self._wait(offset, Waiting(0, b, band))
        elif kind == DROP:
            self._drop(offset)
        elif kind == EXPIRE:
            self.expires[offset] = (b, _signed(a), extra)
            self.first_expiry = min(self.first_expiry, b)
        elif kind == DEDUPE:
            key = slot.to_bytes(4, "big") + a.to_bytes(8, "big")
            if b:
                self.dedupe[key] = (offset, b, extra)
                if self.kept is None or offset >= self.kept:
                    if self._unproven and self._unproven[-1] > (offset, key):
                        insort(self._unproven, (offset, key))
                    else:
                        self._unproven.append((offset, key))
            else:
                self.dedupe.pop(key, None)
        elif kind == KEPT:
            self.kept = offset
            self._seen = max(self._seen, b)
            self.compared(offset, [])
        elif kind == PURGE:
            self._purge(a)
        elif kind == BOOT:
            self._start_boot(offset.to_bytes(8, "big") + a.to_bytes(8, "big"), b, slot << 32 | extra)
        elif kind == START:
            self.frontier, self._head = offset, 0  # what is below and not done follows
            if a != NEVER:
                self.anchor = (a, extra)
        elif kind == COUNTS:
            self.done, self.dead, self.lost = offset, a, b
        elif kind == LOST:
            self._lose(offset, a)
        elif kind == BACK:
            self.redriven[a] = offset
            self.dead = max(self.dead - extra, 0)

    def _pass(self, frontier: int) -> None:
        if self.above:
            self.above = {offset for offset in self.above if offset >= frontier}
        if self.intents:
            for offset in [offset for offset in self.intents if offset < frontier and offset not in self.waiting]:
                del self.intents[offset]
        self.frontier = frontier

    def _lease(self, offset: int, lease: Lease) -> None:
        self.leased[offset] = lease
        self._earliest = min(self._earliest, lease.deadline)
        if offset >= self.frontier:
            self.above.add(offset)

    def _wait(self, offset: int, waiting: Waiting) -> None:
        self.waiting[offset] = waiting
        heappush(self._timed, (waiting.ready_at, offset))
        if offset >= self.frontier:
            self.above.add(offset)
        if len(self._timed) > 2 * len(self.waiting) + _HEAP_SLACK:
            self._timed = [(there.ready_at, number) for number, there in self.waiting.items()]
            heapify(self._timed)
            self._ready = {}

    def _remove(self, offset: int) -> bool:
        self.lapsed.discard(offset)
        return self.leased.pop(offset, None) is not None or self.waiting.pop(offset, None) is not None

    def _forget(self, offset: int) -> None:
        self.lapsed.discard(offset)
        self.expires.pop(offset, None)
        self.intents.pop(offset, None)

    def _done(self, start: int, stop: int) -> None:
        if stop > self.frontier:
            self.above.update(range(max(start, self.frontier), stop))
        for offset in range(start, stop):
            if self._remove(offset):
                self.done += 1
            if offset in self.intents:
                self._found(offset, self.intents[offset][0])
            elif offset in self.expires:
                self._found(offset, self.expires[offset][1])
            self._forget(offset)
        self.settle()

    def _found(self, offset: int, timestamp: int) -> None:
        if self.ahead is None or self.ahead[0] < offset:
            self.ahead = (offset, timestamp & 0xFFFFFFFF)

    def cut(self, stop: int) -> None:
        """Forget what was said of messages from stop on, which were lost; intents and keys are compared with others."""
        for held in (self.leased, self.waiting):
            for offset in [offset for offset in held if offset >= stop and offset not in self.intents]:
                del held[offset]
        self.lapsed &= self.leased.keys()
        self.frontier = min(self.frontier, stop)
        self.above = {offset for offset in self.above if offset < stop}
        self.above |= {offset for offset in self.intents if offset >= self.frontier and offset in self.waiting}
        self._head = min(self._head, stop)
        self.anchor = self.ahead = None

    def _give_back(self, offset: int) -> None:
        lease = self.leased.pop(offset)
        self.lapsed.discard(offset)
        self._wait(offset, Waiting(lease.attempt, 0, lease.band))

    def _drop(self, offset: int) -> None:
        self.waiting.pop(offset, None)
        self.lapsed.discard(offset)
        self.intents.pop(offset, None)  # an expiry may be that of the message that is there: it is compared, too
        if offset >= self.frontier:
            self.above.discard(offset)

    def _lose(self, start: int, stop: int) -> None:
        for offset in [offset for offset in self.waiting if start <= offset < stop]:
            del self.waiting[offset]
            self._forget(offset)
            self.lost += 1
        if stop > self.frontier:
            first = max(start, self.frontier)
            self.lost += stop - first - sum(first <= offset < stop for offset in self.above)
            self._pass(stop)

    def _purge(self, stop: int) -> None:
        for offset in list(self.waiting):
            self._forget(offset)
            if offset >= stop:  # its message was never written: another one will have that offset, and is fresh
                self.above.discard(offset)
        self.waiting.clear()
        self._pass(max(stop, self.frontier))

    def _start_boot(self, boot_id: bytes, began: int, now: int) -> None:
        """Carry times over a reboot, by the wall clock; every lease of the old boot is given back.

        Where the wall clock was set back meanwhile, nobody waits longer than he would have without a reboot.
        """
        old, self.boot = self.boot, (boot_id, began)
        seen, self._seen = self._seen, now
        if old is None or old[0] == boot_id:
            return
        shift = old[1] - began

        def carried(at: int) -> int:
            return at if at == NEVER else max(min(at + shift, now + max(at - seen, 0)), 0)

        self._earliest, self.first_expiry = NEVER, 0
        self.expires = {
            offset: (carried(at), timestamp, check) for offset, (at, timestamp, check) in self.expires.items()
        }
        self.dedupe = {key: (offset, carried(until), check) for key, (offset, until, check) in self.dedupe.items()}
        for offset in list(self.leased):
            self._give_back(offset)
        for offset, there in self.waiting.items():
            if there.ready_at:
                self.waiting[offset] = there._replace(ready_at=carried(there.ready_at))
        self._timed = [(there.ready_at, offset) for offset, there in self.waiting.items()]
        heapify(self._timed)
        self._ready = {}

    def settle(self) -> None:
        """Let the frontier pass what is not fresh, but for intents that nobody has compared with their message."""
        while self.frontier in self.above and self.frontier not in self.intents:
            self.above.discard(self.frontier)
            self.frontier += 1

    # --- what follows from the time

    def tick(self, now: int) -> None:
        """Let what is due by now be found by :meth:`first_ready`."""
        self._now = now
        timed = self._timed
        while timed and timed[0][0] <= now:
            ready_at, offset = heappop(timed)
            there = self.waiting.get(offset)
            if there is not None and there.ready_at == ready_at:
                heappush(self._ready.setdefault(there.band, []), offset)
        if now >= self._earliest:
            self.lapse(offset for offset, lease in self.leased.items() if lease.deadline <= now)
            left = [lease.deadline for offset, lease in self.leased.items() if offset not in self.lapsed]
            self._earliest = min(left, default=NEVER)

    def lapse(self, offsets: Iterable[int]) -> None:
        """Let leased items be found: their time is over, or their holder is dead."""
        for offset in [offset for offset in offsets if offset not in self.lapsed]:
            self.lapsed.add(offset)
            heappush(self._ready.setdefault(self.leased[offset].band, []), offset)

    def first_ready(self) -> tuple[int, int] | None:
        """(band, offset) of the item that is to be taken before all others that are not fresh; None: none is ready."""
        if not self._ready:
            return None
        for band in sorted(self._ready, reverse=True):
            heap = self._ready[band]
            while heap:
                offset = heap[0]
                there = self.waiting.get(offset)
                if offset in self.lapsed or (there is not None and there.band == band and there.ready_at <= self._now):
                    return band, offset
                heappop(heap)
            del self._ready[band]
        return None

    def has(self, offset: int) -> bool:
        """Whether it was taken or set aside, and not ended."""
        return offset in self.leased or offset in self.waiting

    def attempts(self, offset: int) -> int:
        """How often an item was handed out."""
        there = self.waiting.get(offset) or self.leased.get(offset)
        return there.attempt if there is not None else 0

    def band(self, offset: int) -> int:
        """An item's priority."""
        there = self.waiting.get(offset) or self.leased.get(offset)
        return there.band if there is not None else 0

    def next_due(self) -> int | None:
        """When the next item may become ready by itself; None: never."""
        due = min(self._timed[0][0] if self._timed else NEVER, self._earliest)
        return None if due == NEVER else due

    def slots(self) -> set[int]:
        """The slots that hold something."""
        return {lease.slot for lease in self.leased.values()}

    def of_slots(self, slots: set[int]) -> list[int]:
        """The items that slots hold."""
        return [offset for offset, lease in self.leased.items() if lease.slot in slots]

    def written(self, rows: list[tuple[int, bytes]]) -> None:
        """The messages of the newest (offset, dedupe key) were written: who did it has no need to compare them."""
        if rows and self._unproven[-len(rows) :] == rows:  # else they are compared later
            del self._unproven[-len(rows) :]

    def unproven(self, head: int) -> list[tuple[int, bytes, int]]:
        """(offset, key, check) of the dedupe keys below head that nobody has compared with their message.

        Whoever kept an offset has done that below it.
        """
        rows = self._unproven[: bisect(self._unproven, (head,))]
        there = [(offset, key, self.dedupe.get(key, (-1, 0, 0))) for offset, key in rows]
        return [(offset, key, found[2]) for offset, key, found in there if found[0] == offset]

    def compared(self, head: int, void: list[tuple[int, bytes]]) -> None:
        """Of the dedupe keys below head only these have no message."""
        self._unproven[: bisect(self._unproven, (head,))] = void

    # --- what it adds up to

    def head(self) -> int:
        """The lowest offset that is not done: what a reader that knows nothing of the queue starts with."""
        leased, waiting, head = self.leased, self.waiting, self._head
        if self.frontier - head > 2 * (len(leased) + len(waiting)):
            head = min((offset for held in (leased, waiting) for offset in held), default=self.frontier)
            head = min(head, self.frontier)
        while head not in leased and head not in waiting and (head < self.frontier or head in self.above):
            head += 1
        self._head = head
        return head

    def fresh(self, end: int) -> int:
        """How many messages below end nobody has taken or set aside."""
        return max(end - self.frontier, 0) - sum(offset < end for offset in self.above)

    def void(self, end: int) -> int:
        """How many items wait whose message was never written: whoever was to write it died."""
        return sum(offset >= end for offset in self.intents if offset in self.waiting)

    def counts(self, now: int, end: int) -> tuple[int, int, int]:
        """(ready, delayed, leased) of what is not fresh, in a journal that ends at end."""
        delayed = [offset < end for offset, there in self.waiting.items() if there.ready_at > now]
        ready = sum(offset < end for offset in self.waiting) - sum(delayed)
        lapsed = sum(lease.deadline <= now or offset in self.lapsed for offset, lease in self.leased.items())
        return ready + lapsed, sum(delayed), len(self.leased) - lapsed


def _signed(a: int) -> int:
    return a if a < 2**63 else a - 2**64
