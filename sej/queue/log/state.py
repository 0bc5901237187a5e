"""The state of a queue, as its log tells it: who holds what, what waits, what is done. No I/O, no clock.

The invariant: the state is what the records say, applied in their order, and nothing else changes it. A live queue
writes a record and then applies it with the same handler that replays the log of other processes. So two processes
that have read the same records agree on every item.

Each message of the journal is one item. Its state follows from where its offset is found::

    frontier       messages from here on are fresh, except those in ``above``
    leased         a worker holds the item
    waiting        it was given back, is delayed, has a priority, or waits for its dead letter
    anywhere else  below the frontier or in ``above``: the item is done, dead or lost

The state is therefore as large as what is in flight. These are the states of an item, with the records that make the
transitions (a fresh message is ready and needs no record)::

      put                       put with a delay or a priority
       |                                      | INTENT
       v             the time comes           v
     ready <------------------------------ delayed
      | ^                                     ^
      | | WAIT until 0, FREE, BOOT            | WAIT until later
      | |                                     | (retry with a delay)
      | +------------------+------------------+
      |                    |
      | LEASE, PICK        |      EXTEND: a later deadline
      +----------------> leased   PICK: leased again, once the deadline has passed or the holder has died
                           |
             +-------------+-------------+
             | DONE                      | WAIT exhausted (before the dead letter is written)
             v                           v      DEAD                BACK
           done                      exhausted -------> dead ----------------> ready, as a new message

    ready, delayed  -- DONE ---->  done  (the item expired)
    ready, delayed  -- PURGE --->  removed, counted nowhere
    ready, delayed  -- LOST ---->  lost  (retention removed the message)
    ready, delayed  -- DROP ---->  fresh (no message matches the INTENT)

:data:`sej.queue.log.kinds.KINDS` has one row for each kind of record: its fields, and the words of the record that hold
them. :data:`HANDLERS` at the end of this module has the handlers, and :mod:`sej.queue.log.records` the constructors.

Three things do not come from records. None of them changes who holds what:

- the time: which delays have ended and which leases have expired (:class:`~sej.queue.log.schedule.Schedule`);
- whether a record that was written before its message matches that message (:meth:`QueueState.matched`,
  :class:`~sej.queue.log.dedupe_keys.DedupeKeys`): a process that compared them does not do so again;
- what is remembered of a result that can be computed (:meth:`QueueState.head`, :attr:`QueueState.first_expiry`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sej.queue.log.dedupe_keys import DedupeKey, DedupeKeys
from sej.queue.log.format import (
    BACK,
    BLOCK,
    BOOT,
    COUNTS,
    DEAD,
    DEDUPE,
    DONE,
    DROP,
    EXHAUSTED,
    EXPIRE,
    EXTEND,
    FREE,
    HEADERS,
    HEADERS_PART,
    INTENT,
    KEPT,
    KEY,
    LEASE,
    LOST,
    ORDER,
    PARK,
    PAUSE,
    PICK,
    PURGE,
    RATE,
    RECORD,
    SCAN,
    START,
    WAIT,
)
from sej.queue.log.key_order import KeyOrder
from sej.queue.log.kinds import KINDS
from sej.queue.log.schedule import NEVER, Lease, Schedule, Waiting

_new: Final = tuple.__new__


class WrongRecordError(Exception):
    """A record is about no message, or about more than :attr:`QueueState.most`: nothing of it was applied."""


class QueueState:
    """The state that the records describe.

    Attributes:
        frontier: the first message that was never taken in order.
        above: offsets from the frontier on that are not fresh.
        leased: items that workers hold, by offset.
        waiting: items that were given back, are delayed, have a priority, or wait for their dead letter, by offset.
        schedule: which of these may be taken now.
        intents: (timestamp, check) that the message of a waiting item must have, until it was compared.
        expires: (when the item expires, timestamp, check): the message must match.
        first_expiry: nothing expires before this.
        headers: the headers of items, as :mod:`sej.queue.log.headers` packs them, by offset.
        dedupe: the dedupe keys.
        done: how many items were done.
        dead: how many are dead letters.
        lost: how many were removed from the journal before they were done.
        redriven: by the first 8 bytes of the id of a journal of dead letters: those below this offset were put back.
        kept: the newest kept offset; None: there was none.
        anchor: (offset, stamp) of the newest message that was taken in order; None: none yet.
        ahead: (offset, stamp) of the newest message that was taken or ended out of order, ahead of the others.
        boot: (boot id, when that boot began by the wall clock) that times belong to.
        seen_ns: the newest time of the boot-time clock that a record has.
        whole: whether all records of the last compaction were applied: COUNTS is the last of them, START the first.
        paused: whether no item is delivered.
        full_at_ns: when the bucket of the rate is full; 0: it is.
        max_attempts: after so many attempts an item becomes a dead letter.
        most: how many messages a record may be about, or pass; a wrong number would cost all memory, or time.
        order: the order of keys; None: the queue has none. Below the frontier there may then be parked items.
    """

    def __init__(self, frontier: int = 0, order: KeyOrder | None = None) -> None:
        """Create a state in which nothing is taken; fresh messages begin at frontier."""
        self.frontier = frontier
        self.order = order
        self.above: set[int] = set()
        self.leased: dict[int, Lease] = {}
        self.waiting: dict[int, Waiting] = {}
        self.schedule = Schedule(self.leased, self.waiting)
        self._lapsed = self.schedule.lapsed
        self.intents: dict[int, tuple[int, int]] = {}
        self.expires: dict[int, tuple[int, int, int]] = {}
        self.first_expiry = NEVER
        self.headers: dict[int, bytes] = {}
        self.dedupe = DedupeKeys()
        self.done = self.dead = self.lost = 0
        self.redriven: dict[int, int] = {}
        self.kept: int | None = None
        self.anchor: tuple[int, int] | None = None
        self.ahead: tuple[int, int] | None = None
        self.boot: tuple[bytes, int] | None = None
        self.whole = self.paused = False
        self.full_at_ns = 0
        self.max_attempts = 5
        self.most = NEVER
        self._head = frontier
        self.seen_ns = 0

    def apply(self, data: bytes | memoryview) -> None:
        """Apply whole, checked records. A kind that is not in the table is skipped."""
        # Every item has a LEASE and a DONE. In their usual shape they are applied here, without the calls that the
        # table costs: a replay takes 30 % less time.
        leased, waiting = self.leased, self.waiting
        for row in RECORD.iter_unpack(data):
            kind, _, _, holder, first, stop, deadline_ns, stamp = row
            if kind == LEASE and stop - first == 1 and first == self.frontier and self.order is None:
                if waiting:
                    waiting.pop(first, None)
                leased[first] = _new(Lease, (1, holder, deadline_ns, 0))
                if deadline_ns < self.schedule.earliest_ns:
                    self.schedule.earliest_ns = deadline_ns
                self.anchor = (first, stamp)
                self._pass(stop)
            elif kind == DONE and stop - first == 1 and stop <= self.frontier and not self.above and self.order is None:
                if leased.pop(first, None) is not None or waiting.pop(first, None) is not None:
                    self.done += 1
                if self._lapsed or self.expires or self.intents or self.headers:
                    self._forget(first)
            elif kind in HANDLERS:
                handler, fields = HANDLERS[kind]
                handler(self, *fields(row))

    # --- the handlers: one for each kind of record, with the fields that the table names

    def _leased(self, first: int, stop: int, _attempt: int, holder: int, deadline_ns: int, stamp: int) -> None:
        self._require_narrow(min(first, self.frontier), stop)
        if stop <= first:
            raise WrongRecordError
        for offset in range(first, stop):
            self.waiting.pop(offset, None)
            self.leased[offset] = Lease(1, holder, deadline_ns, 0)
        self.schedule.earliest_ns = min(self.schedule.earliest_ns, deadline_ns)
        self.anchor = (stop - 1, stamp)
        self._pass(stop)

    def _done(self, first: int, stop: int, _stamp: int) -> None:
        self._require_narrow(first, stop)
        order, frontier = self.order, self.frontier
        if stop > frontier:
            self.above.update(range(max(first, frontier), stop))
        for offset in range(first, stop):
            known = self._remove(offset)
            if known:
                self.done += 1
            if order is not None:
                order.left(offset, frontier, known=known)
            if offset >= frontier:
                if offset in self.intents:
                    self._found(offset, self.intents[offset][0])
                elif offset in self.expires:
                    self._found(offset, self.expires[offset][1])
            self._forget(offset)
        self._settle()

    def _picked(
        self, offset: int, attempt: int, holder: int, deadline_ns: int, priority: int, key_id: int, stamp: int
    ) -> None:
        fresh = not self._remove(offset)
        if self.order is not None:
            self.order.picked(offset, key_id, fresh=fresh, parked=offset < self.frontier)
            if stamp and (self.anchor is None or self.anchor[0] < offset):
                self.anchor = (offset, stamp)
        intent = self.intents.pop(offset, None)
        if intent is not None:
            self._found(offset, intent[0])
        self._lease(offset, Lease(attempt, holder, deadline_ns, priority))
        self._settle()

    def _waits(self, offset: int, ready_at_ns: int, attempt: int, priority: int, exhausted: int, _stamp: int) -> None:
        if not self._remove(offset) and self.order is not None:
            self.order.set_aside(parked=offset < self.frontier)
        self._wait(offset, Waiting(attempt, ready_at_ns, priority, exhausted == EXHAUSTED))

    def _extended(self, offset: int, deadline_ns: int, _attempt: int) -> None:
        if offset in self.leased:
            self._lapsed.discard(offset)
            self._lease(offset, self.leased[offset]._replace(deadline_ns=deadline_ns))

    def _freed(self, holder: int) -> None:
        for offset in [offset for offset, lease in self.leased.items() if lease.holder == holder]:
            self._give_back(offset)

    def _died(self, offset: int, _attempt: int, _stamp: int) -> None:
        known = self._remove(offset)
        if self.order is not None and not self.order.died(offset):
            self.order.left(offset, self.frontier, known=known)
        self._forget(offset)
        self.dead += 1

    def _intended(self, offset: int, timestamp: int, check: int, ready_at_ns: int, priority: int) -> None:
        self._remove(offset)
        if self.order is not None:  # the key is that of a message that was never written
            self.order.forget(offset)
        self.intents[offset] = (_signed(timestamp), check)
        self._wait(offset, Waiting(0, ready_at_ns, priority))

    def _expires(self, offset: int, timestamp: int, check: int, at_ns: int) -> None:
        self.expires[offset] = (at_ns, _signed(timestamp), check)
        self.first_expiry = min(self.first_expiry, at_ns)

    def _headed(self, offset: int, part: int, text_1: int, text_2: int, text_3: int, text_4: int) -> None:
        data = HEADERS_PART.pack(text_1, text_2, text_3, text_4)
        if part == 0:
            self.headers[offset] = data
        elif len(self.headers.get(offset, b"")) == part * len(data):
            self.headers[offset] += data

    def _deduped(self, key_high: int, key_low: int, offset: int, until_ns: int, check: int) -> None:
        key = key_high.to_bytes(4, "big") + key_low.to_bytes(8, "big")
        if until_ns:
            compared = self.kept is not None and offset < self.kept
            self.dedupe.add(key, DedupeKey(offset, until_ns, check), compared=compared)
        else:
            self.dedupe.remove(key)

    def _kept(self, offset: int, now_ns: int) -> None:
        self.kept = offset
        self.seen_ns = max(self.seen_ns, now_ns)
        self.dedupe.compared(offset, [])

    def _purged(self, _frontier: int, stop: int) -> None:
        self._require_narrow(self.frontier, stop)
        if self.order is not None:
            self.order.purged(self.waiting)
        for offset in list(self.waiting):
            self._forget(offset)
            if offset >= stop:  # its message was never written: another one will have that offset, and is fresh
                self.above.discard(offset)
        self.waiting.clear()
        self._pass(max(stop, self.frontier))

    def _dropped(self, offset: int) -> None:
        self.waiting.pop(offset, None)
        self._lapsed.discard(offset)
        self.intents.pop(offset, None)  # an expiry may be that of the existing message: it is compared too
        if self.order is not None:
            self.order.forget(offset)
        if offset >= self.frontier:
            self.above.discard(offset)

    def _booted(self, id_high: int, id_low: int, began_ns: int, now_high: int, now_low: int) -> None:
        """Carry times over a reboot, by the wall clock. Every lease of the old boot is given back.

        If the wall clock was set back meanwhile, no item waits longer than it would have without the reboot.
        """
        boot_id, now = id_high.to_bytes(8, "big") + id_low.to_bytes(8, "big"), now_high << 32 | now_low
        old, self.boot = self.boot, (boot_id, began_ns)
        seen, self.seen_ns = self.seen_ns, now
        if old is None or old[0] == boot_id:
            return
        shift = old[1] - began_ns

        def carried(at: int) -> int:
            return at if at == NEVER else max(min(at + shift, now + max(at - seen, 0), NEVER), 0)

        self.schedule.earliest_ns, self.first_expiry = NEVER, 0
        self.expires = {
            offset: (carried(at), timestamp, check) for offset, (at, timestamp, check) in self.expires.items()
        }
        self.dedupe.carry(carried)
        self.full_at_ns = carried(self.full_at_ns) if self.full_at_ns else 0
        for offset in list(self.leased):
            self._give_back(offset)
        for offset, there in self.waiting.items():
            if there.ready_at_ns:
                self.waiting[offset] = there._replace(ready_at_ns=carried(there.ready_at_ns))
        self.schedule.rebuild()

    def _starts(self, frontier: int, newest: int, stamp: int) -> None:
        self._require_narrow(0, frontier)
        self.frontier, self._head = frontier, 0  # records for lower offsets that are not done follow
        self.whole = False
        if newest != NEVER:
            self.anchor = (newest, stamp)

    def _counted(self, done: int, dead: int, lost: int) -> None:
        self.done, self.dead, self.lost = done, dead, lost
        self.whole = True

    def _lost(self, first: int, stop: int, parked: int) -> None:
        self._require_narrow(min(first, self.frontier), stop)
        if self.order is not None:
            self.order.lost(stop, parked)
            self.lost += parked
        for offset in [offset for offset in self.waiting if first <= offset < stop]:
            del self.waiting[offset]
            if self.order is not None:
                self.order.forget(offset)
            self._forget(offset)
            self.lost += 1
        if stop > self.frontier:
            fresh = max(first, self.frontier)
            self.lost += max(stop - fresh, 0) - sum(fresh <= offset < stop for offset in self.above)
            self._pass(stop)

    def _redriven(self, journal: int, stop: int, count: int) -> None:
        self.redriven[journal] = stop
        self.dead = max(self.dead - count, 0)

    def _ordered(self, order: int, block: int, max_attempts: int) -> None:
        self.max_attempts = max_attempts or self.max_attempts
        if not order:
            self.order = None
        elif self.order is None:
            self.order = KeyOrder(block=bool(block))
            self.order.ended = self.above - self.leased.keys() - self.waiting.keys()
        else:
            self.order.block = bool(block)

    def _keyed(self, offset: int, key_id: int, holds: int) -> None:
        if self.order is not None and self.has(offset):
            self.order.keyed(offset, key_id, holds=bool(holds))

    def _scanned(self, stop: int, count: int, stamp: int) -> None:
        self._require_narrow(self.frontier, stop)
        if self.order is not None:
            self.order.count = count
            if stop > self.frontier:
                self._pass(stop)
                self._settle()
            if stamp and (self.anchor is None or self.anchor[0] < stop - 1):
                self.anchor = (stop - 1, stamp)

    def _parked(self, key_id: int, first: int) -> None:
        if self.order is not None:
            self.order.park(key_id, first)

    def _blocked(self, offset: int, key_id: int, on: int) -> None:
        if self.order is not None:
            self.order.blocked(offset, key_id, self.frontier, on=bool(on))

    def _paused(self, on: int) -> None:
        self.paused = bool(on)

    def _rated(self, full_at_ns: int) -> None:
        self.full_at_ns = full_at_ns

    # --- what the handlers are made of

    def _require_narrow(self, first: int, stop: int) -> None:
        if stop - first > self.most:
            raise WrongRecordError

    def _pass(self, frontier: int) -> None:
        """Move the frontier here: items before it that were set aside are not fresh now.

        The cost is that of the messages passed, however many items were set aside further ahead.
        """
        count = frontier - self.frontier
        passed = range(self.frontier, frontier)
        if self.above:
            if count < len(self.above):
                self.above.difference_update(passed)
            else:
                self.above = {offset for offset in self.above if offset >= frontier}
        if self.intents:
            for offset in passed if count < len(self.intents) else list(self.intents):
                if offset < frontier and offset in self.intents and offset not in self.waiting:
                    del self.intents[offset]
        self.frontier = frontier

    def _settle(self) -> None:
        """Move the frontier over items that are not fresh, but not over an intent that was not compared yet."""
        while self.frontier in self.above and self.frontier not in self.intents:
            self.above.discard(self.frontier)
            self.frontier += 1

    def _lease(self, offset: int, lease: Lease) -> None:
        self.leased[offset] = lease
        if lease.deadline_ns < self.schedule.earliest_ns:
            self.schedule.earliest_ns = lease.deadline_ns
        if offset >= self.frontier:
            self.above.add(offset)

    def _wait(self, offset: int, waiting: Waiting) -> None:
        self.waiting[offset] = waiting
        if offset >= self.frontier:
            self.above.add(offset)
        self.schedule.add(offset, waiting.ready_at_ns)

    def _give_back(self, offset: int) -> None:
        lease = self.leased.pop(offset)
        self._lapsed.discard(offset)
        self._wait(offset, Waiting(lease.attempt, 0, lease.priority))

    def _remove(self, offset: int) -> bool:
        self._lapsed.discard(offset)
        return self.leased.pop(offset, None) is not None or self.waiting.pop(offset, None) is not None

    def _forget(self, offset: int) -> None:
        self._lapsed.discard(offset)
        self.expires.pop(offset, None)
        self.intents.pop(offset, None)
        self.headers.pop(offset, None)

    def _found(self, offset: int, timestamp: int) -> None:
        if self.ahead is None or self.ahead[0] < offset:
            self.ahead = (offset, timestamp & 0xFFFFFFFF)

    def limit(self, most: int) -> None:
        """Set how many messages a record may be about, or pass; without a limit: NEVER."""
        self.most = most

    # --- what this process found out by comparing records with the journal

    def matched(self, offset: int) -> None:
        """The message at the frontier was set aside, and is the one that its INTENT names, if it has one."""
        self.intents.pop(offset, None)
        self._settle()

    def nothing_expires_before(self, at_ns: int) -> None:
        """All expiries were looked at: those that match a message and can be ended are not before this."""
        self.first_expiry = at_ns

    # --- results

    def has(self, offset: int) -> bool:
        """Return whether the item was taken or set aside, and not ended."""
        return offset in self.leased or offset in self.waiting

    def attempts(self, offset: int) -> int:
        """Return how many attempts an item had."""
        there = self.waiting.get(offset) or self.leased.get(offset)
        return there.attempt if there is not None else 0

    def priority(self, offset: int) -> int:
        """Return an item's priority."""
        there = self.waiting.get(offset) or self.leased.get(offset)
        return there.priority if there is not None else 0

    def is_fresh(self, offset: int, key: int) -> bool:
        """Return whether a message of this key was never taken or set aside: it is parked, or from the frontier on."""
        if offset >= self.frontier:
            return offset not in self.above
        return self.order is not None and not self.has(offset) and self.order.may_be_parked(offset, key)

    def holders(self) -> set[int]:
        """Return the numbers of the open queues that hold something."""
        return {lease.holder for lease in self.leased.values()}

    def head(self) -> int:
        """Return the lowest offset that is not done: where a reader that does not know the queue starts."""
        leased, waiting, head = self.leased, self.waiting, self._head
        if self.frontier - head > 2 * (len(leased) + len(waiting)):
            head = min((offset for held in (leased, waiting) for offset in held), default=self.frontier)
            head = min(head, self.frontier)
        while head not in leased and head not in waiting and (head < self.frontier or head in self.above):
            head += 1
        if self.order is not None:  # a parked item may be leased later: the search must not begin after it
            head = min(head, self.order.low(self.frontier))
        self._head = head
        return head

    def fresh(self, end: int) -> int:
        """Return how many messages below end were never taken or set aside."""
        parked = 0 if self.order is None else self.order.count
        return max(end - self.frontier, 0) - sum(offset < end for offset in self.above) + parked

    def void(self, end: int) -> int:
        """Return how many waiting items have no message, because the process that put them died."""
        return sum(offset >= end for offset in self.intents if offset in self.waiting)

    def counts(self, now_ns: int, end: int) -> tuple[int, int, int]:
        """Return (ready, delayed, leased) of the items that are not fresh, in a journal that ends at end."""
        lapsed = self._lapsed
        delayed = [offset < end for offset, there in self.waiting.items() if there.ready_at_ns > now_ns]
        ready = sum(offset < end for offset in self.waiting) - sum(delayed)
        over = sum(lease.deadline_ns <= now_ns or offset in lapsed for offset, lease in self.leased.items())
        return ready + over, sum(delayed), len(self.leased) - over


def _signed(timestamp: int) -> int:
    return timestamp if timestamp < 2**63 else timestamp - 2**64


_HANDLERS: Final[dict[int, Callable[..., None]]] = {
    LEASE: QueueState._leased,
    DONE: QueueState._done,
    PICK: QueueState._picked,
    WAIT: QueueState._waits,
    EXTEND: QueueState._extended,
    FREE: QueueState._freed,
    DEAD: QueueState._died,
    INTENT: QueueState._intended,
    EXPIRE: QueueState._expires,
    DEDUPE: QueueState._deduped,
    KEPT: QueueState._kept,
    PURGE: QueueState._purged,
    DROP: QueueState._dropped,
    BOOT: QueueState._booted,
    START: QueueState._starts,
    COUNTS: QueueState._counted,
    LOST: QueueState._lost,
    BACK: QueueState._redriven,
    ORDER: QueueState._ordered,
    KEY: QueueState._keyed,
    SCAN: QueueState._scanned,
    PARK: QueueState._parked,
    BLOCK: QueueState._blocked,
    PAUSE: QueueState._paused,
    RATE: QueueState._rated,
    HEADERS: QueueState._headed,
}
HANDLERS: Final = {number: (apply, KINDS[number].read()) for number, apply in _HANDLERS.items()}
"""The handler of each kind of record, with the function that takes its fields out of the words of a record."""
