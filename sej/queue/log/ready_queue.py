"""What is ready: items by the time, as one process sees it, and by their keys; schedules. No I/O, no clock.

The log records until when a lease lasts and from when on an item may be taken. Whether that time has come is each
process's own view. It has an effect only through a record: the item is leased, or it is returned.

``order="key"`` keeps the order of each key, too.

**The promise.** Items of one key are delivered in the order of their offsets, and at most ``per_key`` of them (1,
unless the opener says otherwise) are delivered and not ended at the same time. A key that waits delays no other key.

**The order of one key.** Its items are of four kinds::

    held      delivered and not ended: leased, waiting for a retry, being given up, or a dead letter that blocks
    aside     put with a delay or a priority, and not delivered so far: in ``waiting``
    parked    below the frontier, and passed by because the key was not free
    fresh     from the frontier on

A key is *free* if it has fewer than ``per_key`` held items. Its *head* is its lowest offset that is aside and ready,
parked or fresh. Only the head of a free key is delivered. An item that is aside and not ready yet is not counted: it
holds its key only from the time when it is ready. The head's priority is the priority of the key.

**The size.** Of parked items only the lowest offset of each key is kept (``parked``), and their total number. Every
message of that key from there to the frontier is parked, unless it is leased, waiting or in ``ended``. Which messages
these are is found in the journal (:class:`sej.queue.log.reader.ParkedItems`), or remembered by the process that passed
them. So the state is as large as what is in flight, plus the keys that wait, however many items they have.

The bound of a key only rises. It may be too low: then no message of the key is there, or the next one is later. It is
never too high: an item would be lost. A bound without messages is removed when the key is free and looked up.

**A crash between two records** of one operation leaves a prefix of them. So a PARK is written before the SCAN that
passes its message. Without the SCAN the message is still fresh, and the bound is too low, which is allowed.

**Limits by kind** use the same: the key of an item is then its kind. A kind is free if it has fewer than
``concurrency`` leased items, and a token; an item that waits for its retry is aside. The order within a kind is not
kept: an item that is aside may come before the parked ones, so only the delivery of a parked item raises the bound.

The key of an item is a hash of 64 bits. Two keys with the same hash are one key here: their items wait for each other.
The empty key is not a key (hash 0): its items never wait for each other. If they are passed by, because an item far
ahead has a priority, they are parked under 0.

**Schedules: one item for each time.** A process that finds the time of a schedule over, under both locks, writes a
TURN: the time after it, and the message that is about to be appended. Then it appends the message. If it dies between
the two, the message of the TURN is not in the journal. The next process that has the lock compares them, and takes the
turn back::

    next 03:00  --TURN next 04:00, message 17-->  unproven  --message 17 is there-->  next 04:00
                                                      |
                                                      +--it is not: TURN next 03:00-->  next 03:00

A definition is written before a TURN, and counts from that record on: of a change, all or nothing is read.

**The clock.** Times are those of the wall clock. If it was set, BOOT says by how much. The times of ``every`` are then
moved by as much: they keep their distance. The times of cron stay, and one that had its item gets no second one. If the
clock was set back by more than three hours, the next time is computed again: it may have been wrong before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from sortedcontainers import SortedDict
from xxhash import xxh3_64_intdigest

from sej.queue.interface.values import Plan, Schedule, Serializer, read_plan
from sej.queue.log import format as records

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


class ReadyQueue:
    """The order in which leased and waiting items become ready.

    Leases end in about the order in which they began, so they are not sorted: the items whose lease is over are looked
    for when the first one is.

    Attributes:
        expired: leased items whose time is over.
        earliest_ns: no other lease ends before this.
        ready: (-priority, offset) of the items that may be taken, the next one first: the keys of a dict, because an
            empty SortedSet costs a call of Python to find out.
        timed: (the time from which it is ready, offset) of the items that wait for it, as the keys of a dict, too.
    """

    def __init__(self, leased: dict[int, Lease], waiting: SortedDict) -> None:
        """Observe these items, which the records change.

        Args:
            leased: by offset.
            waiting: by offset.
        """
        self._leased = leased
        self._waiting = waiting
        self.expired: set[int] = set()
        self.earliest_ns = NEVER
        self.ready = SortedDict()
        self.timed = SortedDict()
        self._now_ns = 0

    def add(self, offset: int, there: Waiting) -> None:
        """Add a waiting item, to be found when its time comes."""
        if there.ready_at_ns <= self._now_ns:
            self.ready[-there.priority, offset] = None
        else:
            self.timed[there.ready_at_ns, offset] = None

    def add_many(self, found: Mapping[int, Waiting]) -> None:
        """Add waiting items that are not known yet."""
        now = self._now_ns
        self.ready.update(((-there.priority, at), None) for at, there in found.items() if there.ready_at_ns <= now)
        self.timed.update(((there.ready_at_ns, at), None) for at, there in found.items() if there.ready_at_ns > now)

    def remove(self, offset: int, there: Waiting) -> None:
        """Remove an item that waits no more."""
        self.ready.pop((-there.priority, offset), None)
        self.timed.pop((there.ready_at_ns, offset), None)

    def tick(self, now_ns: int) -> None:
        """Make items whose time has come ready."""
        self._now_ns = now_ns
        timed = self.timed
        while timed and timed.peekitem(0)[0][0] <= now_ns:
            (_, offset), _ = timed.popitem(0)
            self.ready[-self._waiting[offset].priority, offset] = None
        if now_ns >= self.earliest_ns:
            self.expire(offset for offset, lease in self._leased.items() if lease.deadline_ns <= now_ns)
            left = [lease.deadline_ns for offset, lease in self._leased.items() if offset not in self.expired]
            self.earliest_ns = min(left, default=NEVER)

    def expire(self, offsets: Iterable[int]) -> None:
        """Add leased items whose time is over."""
        for offset in offsets:
            self.expired.add(offset)
            self.ready[-self._leased[offset].priority, offset] = None

    def cancel_expiry(self, offset: int) -> None:
        """A leased item was ended, or its lease is longer: its time is not over."""
        if offset in self.expired:
            self.expired.discard(offset)
            self.ready.pop((-self._leased[offset].priority, offset), None)

    def first_ready(self) -> tuple[int, int] | None:
        """Return (priority, offset) of the item to take before all others that are not fresh; None: none is ready."""
        if not self.ready:
            return None
        (priority, offset), _ = self.ready.peekitem(0)
        return -priority, offset

    def next_due_ns(self) -> int | None:
        """Return when the next item may become ready on its own; None: never."""
        due = min(self.timed.peekitem(0)[0][0] if self.timed else NEVER, self.earliest_ns)
        return None if due == NEVER else due


UNORDERED, BY_KEY, LIMITED = range(3)
"""Items are delivered as they are ready; those of a key in order; kinds of items are limited."""
_MANY: Final = 1000
_TURNS: Final = 10_000
"""So many kinds have a last turn; an older one counts as never served."""


def key_hash(key: bytes) -> int:
    """Return the number of a key; 0 for the empty key only."""
    return (xxh3_64_intdigest(key) or 1) if key else 0


class Kinds(NamedTuple):
    """A limit of each kind of items. The limit of a whole queue is one whose only kind is 0.

    The rate is a token bucket. One for ``10/s`` holds 10 tokens, an item takes one, and one is added each 100 ms. It is
    one number, the time at which the bucket is full again::

        tokens now = burst - (full_at_ns - now) / interval_ns          at most the burst
        n items are taken:  full_at_ns = max(full_at_ns, now) + n * interval_ns

    Attributes:
        by: what an item's kind is: ``key``, ``key:`` and the characters that end a prefix, or ``header:`` and a name.
        concurrency: how many items of a kind may be leased; None: no limit.
        rate: how many may be delivered in a time, as a text; None: no limit.
        burst: how many at most immediately after one another.
        interval_ns: the time that one item takes; 0: without a rate.
    """

    by: str = ""
    concurrency: int | None = None
    rate: str | None = None
    burst: int = 1
    interval_ns: int = 0

    def of(self, key: bytes, headers: Mapping[str, str]) -> int:
        """Return the kind of an item; 0: none, so that no limit of a kind holds for it."""
        what, _, name = self.by.partition(":")
        if what == "header":
            return key_hash(headers.get(name, "").encode(errors="replace"))
        return key_hash(key.partition(name.encode())[0] if name else key)

    def room(self, n: int, leased: int, full_at_ns: int, now_ns: int) -> int:
        """Return how many of n items of a kind may be delivered now."""
        if self.concurrency is not None:
            n = min(n, self.concurrency - leased)
        if self.interval_ns:
            n = min(n, self.burst - -(-max(full_at_ns - now_ns, 0) // self.interval_ns))
        return n

    def spent(self, n: int, full_at_ns: int, now_ns: int) -> int:
        """Return when the bucket is full after n items."""
        return max(full_at_ns, now_ns) + n * self.interval_ns

    def allowed_ns(self, full_at_ns: int) -> int:
        """Return from when on the bucket has a token."""
        return full_at_ns - (self.burst - 1) * self.interval_ns


class KeyOrder:
    """Which keys are held, and which have items that wait for them. It has no items if the queue needs neither.

    Attributes:
        mode: one of the three above: which taker takes, and the field of ORDER.
        block: whether a dead letter keeps its key.
        keys: the key of each item that is held or aside, by offset; items without a key are left out.
        held: by key: the items that are delivered and not ended.
        parked: by key: no item of it below this offset is parked.
        count: how many items are parked.
        ended: items that are not parked although they are at or above their key's bound, because they have ended.
        aside: how many items of a key wait and do not hold it; keys without such items are left out.
        released: keys that may have become free, or have a new head, since the taker looked at them.
        kinds: the limits by kind; None: there are none.
        served: when each kind had its last turn: a number that rises. Kinds whose turn is long ago are left out.
    """

    def __init__(self, mode: int = UNORDERED, *, block: bool = False, kinds: Kinds | None = None) -> None:
        """Create it without items."""
        self.mode, self.block, self.kinds = mode, block, kinds
        self.keys: dict[int, int] = {}
        self.held: dict[int, tuple[int, ...]] = {}
        self.parked: dict[int, int] = {}
        self.count = 0
        self.ended: set[int] = set()
        self.released: set[int] = set()
        self.aside: dict[int, int] = {}
        self.served: dict[int, int] = {}
        self._turn = 0
        self._prune_at = _MANY

    # --- what the handlers of the state call

    def given_back(self, offset: int) -> None:
        """An item is not leased any more, and not ended."""
        key = self.keys.get(offset, 0)
        if self.kinds is not None and key:
            self.keyed(offset, key, holds=False)

    def keyed(self, offset: int, key: int, *, holds: bool) -> None:
        """An item that is leased or waiting has this key."""
        if key:
            self.forget(offset)
            self.keys[offset] = key
            if holds:
                self.held[key] = (*self.held.get(key, ()), offset)
            else:
                self.aside[key] = self.aside.get(key, 0) + 1
            self.released.add(key)

    def picked(self, offset: int, key: int, *, fresh: bool, parked: bool) -> None:
        """An item was delivered.

        Args:
            offset: the item.
            key: its key; 0: none, or the one that is known.
            fresh: whether it was neither leased nor waiting before.
            parked: whether it was below the frontier.
        """
        key = key or self.keys.get(offset, 0)
        if self.keys.get(offset, key) != key:
            self.forget(offset)  # a damaged log gives it two keys
        if fresh and parked:
            self.count = max(self.count - 1, 0)
        held = self.held.get(key, ())
        bound = self.parked.get(key)
        was_aside = offset in self.keys and offset not in held
        if self.kinds is not None:
            self._turn += 1
            self.served.pop(key, None)
            self.served[key] = self._turn
            if len(self.served) > _TURNS:
                del self.served[next(iter(self.served))]
        if bound is not None and bound <= offset and (parked if fresh else was_aside and self.kinds is None):
            self.parked[key] = offset + 1  # what is below is held, or not ready
        if key:
            if was_aside:
                self._take_aside(key)
            if offset not in held:
                self.held[key] = (*held, offset)
            self.keys[offset] = key
            if key in self.parked or key in self.aside:  # it may be free for another one
                self.released.add(key)

    def left(self, offset: int, frontier: int, *, known: bool) -> None:
        """An item ended; known: whether it was leased or waiting.

        One that ended ahead of the frontier is remembered: the frontier may pass it while its key has a lower bound. So
        is one whose message looks as if it had no kind, because the headers of items that ended are forgotten.
        """
        key = self.forget(offset)
        bound = self.parked.get(key, NEVER)
        if self.kinds is not None:
            bound = min(bound, self.parked.get(0, NEVER))
        if offset >= frontier or (self.parked and (not known or bound <= offset)):
            self.ended.add(offset)
            if len(self.ended) > self._prune_at:
                low = self.low(frontier)
                self.ended = {number for number in self.ended if number >= low}
                self._prune_at = _MANY + 2 * len(self.ended)

    def blocked(self, offset: int, key: int, frontier: int, *, on: bool) -> None:
        """A dead letter keeps its key, or does not any more."""
        if on:
            self.keyed(offset, key, holds=True)
        else:
            self.left(offset, frontier, known=False)

    def park(self, key: int, first: int) -> None:
        """From first on, items of a key are parked; NEVER: none is."""
        self.released.add(key)
        if first == NEVER:
            self.parked.pop(key, None)
        else:
            self.parked[key] = first

    def purged(self, waiting: Mapping[int, Waiting]) -> None:
        """Everything that is not leased was removed; waiting: what waited."""
        self.released.update(self.parked)
        self.parked.clear()
        self.ended.clear()
        self.count = 0
        for offset in waiting:
            self.forget(offset)

    def lost(self, first: int, count: int) -> None:
        """Messages below first were removed from the journal; so many of them were parked."""
        self.count = max(self.count - count, 0)
        self.parked = {key: max(bound, first) for key, bound in self.parked.items()}
        self.ended = {offset for offset in self.ended if offset >= first}
        self.released.update(self.parked)

    def forget(self, offset: int) -> int:
        """Remove an item from its key, and return the key; 0: it has none."""
        key = self.keys.pop(offset, 0)
        if key:
            held = self.held.get(key, ())
            if offset in held:
                if len(held) == 1:
                    del self.held[key]
                else:
                    self.held[key] = tuple(number for number in held if number != offset)
            else:
                self._take_aside(key)
            if key in self.parked or key in self.aside:
                self.released.add(key)
        return key

    def _take_aside(self, key: int) -> None:
        """One item fewer of a key is aside."""
        self.released.add(key)
        self.aside[key] -= 1
        if not self.aside[key]:
            del self.aside[key]

    # --- results

    def may_be_parked(self, offset: int, key: int) -> bool:
        """Return whether a message below the frontier is parked, if it is neither leased nor waiting."""
        bound = self.parked.get(key)
        return bound is not None and bound <= offset and offset not in self.ended and offset not in self.keys

    def low(self, frontier: int) -> int:
        """Return the lowest offset that may be parked; the frontier if none is."""
        return min(self.parked.values(), default=frontier)


_BACK_NS: Final = 3 * 3600 * 10**9


class Turn(NamedTuple):
    """The turn of a schedule.

    Attributes:
        next_ns: its next time, by the wall clock; 0: not computed.
        paused: whether its times pass without items.
        every: whether its times keep their distance when the clock is set.
        message: the offset of its last item; NEVER: that is compared, or there is none.
        check: the CRC32C of that message.
        before_ns: the next time if that message does not exist.
    """

    next_ns: int
    paused: bool
    every: bool
    message: int
    check: int
    before_ns: int


class Timetable:
    """The schedules by their numbers.

    Attributes:
        texts: their definitions, as :func:`sej.queue.log.format.packed_schedule` packs them.
        drafts: definitions that do not count yet.
        turns: the turn of each.
        due: (the next time, number) of those that are not paused, as the keys of a dict.
        unproven: those whose last message was not compared with the journal.
    """

    def __init__(self) -> None:
        """Create it without schedules."""
        self.texts: dict[int, bytes] = {}
        self.turns: dict[int, Turn] = {}
        self.due = SortedDict()
        self.unproven: set[int] = set()
        self.drafts: dict[int, bytes] = {}

    def defined(self, number: int) -> tuple[Plan, bytes, bytes]:
        """Return the plan, the key and the value of a schedule."""
        found = records.schedule_of(self.texts[number])
        assert found is not None
        return read_plan(found[0]), *found[1:]

    def shown(self, serializer: Serializer | None) -> list[Schedule]:
        """Return the schedules as users see them, in the order of their names."""
        found = []
        for number, turn in self.turns.items():
            plan, key, value = self.defined(number)
            found.append(plan.shown(turn.next_ns, turn.paused, key, value, serializer))
        return sorted(found, key=lambda schedule: schedule.name)

    def turned(self, number: int, turn: Turn, *, removed: bool) -> None:
        """A schedule has its next time, and what was defined before counts."""
        draft = self.drafts.pop(number, None)
        if records.schedule_of(draft) is not None:
            assert draft is not None
            self.texts[number] = draft
        old = self.turns.get(number, turn)
        self._drop(number)
        if removed or number not in self.texts:
            self.texts.pop(number, None)
            return
        self._set(number, turn._replace(before_ns=old.next_ns))
        if turn.message != NEVER:
            self.unproven.add(number)

    def proven(self, number: int) -> None:
        """The last message of a schedule exists."""
        self.unproven.discard(number)

    def put_off(self, number: int) -> None:
        """Leave a schedule out until another process has made its item."""
        self.due.pop((self.turns[number].next_ns, number), None)

    def clock_set(self, by_ns: int) -> None:
        """The wall clock was set by so much."""
        for number, turn in list(self.turns.items()):
            if turn.every:
                self._move(number, turn, by_ns)
            elif by_ns < -_BACK_NS:
                self._set(number, turn._replace(next_ns=0))

    def restarted(self, seen_ns: int, now_ns: int) -> None:
        """The machine was restarted; these are the last known time of the wall clock, and the time now.

        If it was set back meanwhile, no interval is longer than without the restart.
        """
        for number, turn in list(self.turns.items()):
            late = turn.next_ns - now_ns - max(turn.next_ns - seen_ns, 0)
            if turn.every and late > 0:
                self._move(number, turn, -late)

    def _move(self, number: int, turn: Turn, by_ns: int) -> None:
        next_ns, before_ns = (max(min(at + by_ns, NEVER), 1) for at in (turn.next_ns, turn.before_ns))
        self._set(number, turn._replace(next_ns=next_ns, before_ns=before_ns))

    def _set(self, number: int, turn: Turn) -> None:
        self._drop(number, keep=True)
        self.turns[number] = turn
        if not turn.paused:
            self.due[turn.next_ns, number] = None

    def _drop(self, number: int, *, keep: bool = False) -> None:
        there = self.turns.pop(number, None)
        if there is not None:
            self.due.pop((there.next_ns, number), None)
        if not keep:
            self.unproven.discard(number)
