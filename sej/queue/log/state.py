"""The state of a queue, as its log tells it: who holds what, what waits, what is done. No I/O, no clock.

The invariant: the state is what the records say, applied in their order, and nothing else changes it. A live queue
writes a record and then applies it with the same handler that replays the log of other processes. So two processes
that have read the same records agree on every item.

Each message of the journal is one item. Its state follows from where its offset is found::

    frontier       messages from here on are fresh, except those in ``out_of_order``
    leased         a worker holds the item
    waiting        it was given back, is delayed, has a priority, or waits for its dead letter
    anywhere else  below the frontier or in ``out_of_order``: the item is done, dead or lost

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

:mod:`sej.queue.log.format` has one row for each kind of record: its fields, and the words of the record that hold them.
The handler of a kind is the method ``_on_`` and its name.

Two things do not come from records. None of them changes who holds what:

- the time: which delays have ended and which leases have expired (:class:`~sej.queue.log.ready_queue.ReadyQueue`);
- whether a record that was written before its message matches that message (:meth:`QueueState.matched`,
  :class:`DedupeKeys`): a process that compared them does not do so again.

A recovery leaves out a part of a state (:meth:`QueueState.begin_at`, :meth:`QueueState.end_at`), writes the rest as
records into a new log, and reads that (:func:`snapshot`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

from sortedcontainers import SortedDict, SortedSet

from sej.imports import compiled
from sej.message import Message
from sej.queue.interface.values import PAUSED, REMOVED
from sej.queue.log import format as records
from sej.queue.log.ready_queue import (
    BY_KEY,
    LIMITED,
    NEVER,
    KeyOrder,
    Kinds,
    Lease,
    ReadyQueue,
    Timetable,
    Turn,
    Waiting,
    key_hash,
)

_KEY_BYTES: Final = 12
_MANY_BYTES: Final = records.RECORD_SIZE * 64
_TAKEN: Final = (bytes((records.LEASE.number,)), bytes((records.DONE.number,)))
_take_and_end: Final = getattr(compiled("sej.codec._codec_c"), "take_and_end", records.take_and_end)
_RUNS: Final = {kind.number: kind for kind in (records.WAIT, records.INTENT)}


def hashed(key: bytes) -> bytes:
    """Return the 12 bytes that the log has of a dedupe key."""
    return blake2b(key, digest_size=_KEY_BYTES).digest()


def requeue_key(journal: int, letter_offset: int) -> bytes:
    """Return the key of a dead letter that was put back alone, before the letters in front of it."""
    return hashed(b"requeue %d %d" % (journal, letter_offset))


class DedupeKey(NamedTuple):
    """The meaning of a dedupe key.

    Attributes:
        offset: the offset of its message.
        until_ns: how long it is remembered, on the boot-time clock.
        check: the CRC32C of its message.
    """

    offset: int
    until_ns: int
    check: int


class DedupeKeys:
    """The dedupe keys of a queue, and which of them were compared with their messages.

    A key's record is written before its message. If the process dies between the two, the key has no message, or its
    offset is later used by another one. So a key counts only if the message at its offset has its check.

    Attributes:
        known: the meanings by a key's 12 bytes.
    """

    def __init__(self) -> None:
        """Create it without keys."""
        self.known: dict[bytes, DedupeKey] = {}
        self._unproven = SortedSet()
        """(offset, key) of those that were not compared."""

    def add(self, key: bytes, meaning: DedupeKey, *, compared: bool) -> None:
        """Remember a key; ``compared`` is True if its message is known to exist."""
        self.known[key] = meaning
        if not compared:
            self._unproven.add((meaning.offset, key))

    def requeued(self, journal: int, letter_offset: int) -> bool:
        """Return whether a dead letter was put back alone."""
        return bool(self.known) and requeue_key(journal, letter_offset) in self.known

    def written(self, rows: list[tuple[int, bytes]]) -> None:
        """The messages of these (offset, key) were written by this process, so they match."""
        self._unproven.difference_update(rows)

    def unproven(self, head: int) -> list[tuple[int, bytes, int]]:
        """Return (offset, key, check) of the keys below head that were not compared with their messages.

        A process that committed an offset has compared those below it.
        """
        there = [(offset, key, self.known.get(key)) for offset, key in self._unproven.irange(maximum=(head,))]
        return [(offset, key, found.check) for offset, key, found in there if found and found.offset == offset]

    def compared(self, head: int, void: list[tuple[int, bytes]]) -> None:
        """Only these keys below head have no message."""
        if self._unproven:
            self._unproven.difference_update(list(self._unproven.irange(maximum=(head,))))
            self._unproven.update(void)


class WrongRecordError(Exception):
    """A record is about no message, or about more than :attr:`QueueState.most`: nothing of it was applied."""


class QueueState:
    """The state that the records describe.

    Attributes:
        frontier: the first message that was never taken in order.
        out_of_order: offsets from the frontier on that are not fresh, in their order: the keys of a dict, because an
            empty SortedSet costs a call of Python to find out.
        leased: items that workers hold, by offset.
        waiting: items that were given back, are delayed, have a priority, or wait for their dead letter, by offset.
        ready_queue: which of these may be taken now.
        intents: (timestamp, check) that the message of a waiting item must have, until it was compared.
        expires: (when the item expires, timestamp, check): the message must match.
        headers: the headers of items, as :func:`sej.queue.log.format.packed_headers` packs them, by offset.
        reasons: why the last attempt of an item failed, in UTF-8, by offset.
        keeps: (how long its result is kept, timestamp, check) of an item that has not ended: the message must match.
        results: the results of items, as :func:`sej.queue.log.format.packed_result` packs them, by offset. That of an
            item in ``keeps`` is of an attempt that did not end it.
        dedupe: the dedupe keys.
        timetable: the schedules.
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
        full_at_ns: when the bucket of a rate is full, by the kind that it limits; 0: the whole queue.
        max_attempts: after so many attempts an item becomes a dead letter.
        most: how many messages a record may be about, or pass; a wrong number would cost all memory, or time.
        order: the order of keys. If the queue has one, or limits, there may be parked items below the frontier.
    """

    def __init__(self, frontier: int = 0, order: KeyOrder | None = None) -> None:
        """Create a state in which nothing is taken; fresh messages begin at frontier."""
        self.frontier = frontier
        self.order = order or KeyOrder()
        self.out_of_order = SortedDict()
        self.leased: dict[int, Lease] = {}
        self.waiting = SortedDict()
        self.ready_queue = ReadyQueue(self.leased, self.waiting)
        self.intents: dict[int, tuple[int, int]] = {}
        self.expires: dict[int, tuple[int, int, int]] = {}
        self.headers: dict[int, bytes] = {}
        self.reasons: dict[int, bytes] = {}
        self.keeps: dict[int, tuple[int, int, int]] = {}
        self.results: dict[int, bytes] = {}
        self.dedupe = DedupeKeys()
        self.timetable = Timetable()
        self.done = self.dead = self.lost = 0
        self.redriven: dict[int, int] = {}
        self.kept: int | None = None
        self.anchor: tuple[int, int] | None = None
        self.ahead: tuple[int, int] | None = None
        self.boot: tuple[bytes, int] | None = None
        self.whole = self.paused = False
        self._limits: dict[int, bytes] = {}
        self.full_at_ns: dict[int, int] = {}
        self.max_attempts = 5
        self.most = NEVER
        self.seen_ns = 0

    def apply(self, data: bytes) -> None:
        """Apply whole, checked records. A kind that is not in the table is skipped.

        Many records are those of a log that is read: a run of WAIT or INTENT is sorted at its end, not item by item.
        LEASE and DONE of other processes cancel each other first.
        """
        if data[:1] in _TAKEN and self._is_plain():
            data = self._take_and_end(data)
        # Bytes, not a memoryview: Python 3.11 and 3.12 crash if a traceback keeps iter_unpack over one and is freed.
        known, rows = HANDLERS, records.RECORD.iter_unpack(data)
        if len(data) < _MANY_BYTES:
            runs: Iterable[tuple[int, Iterable[tuple[Any, ...]]]] = ((0, rows),)
        else:
            runs = groupby(rows, itemgetter(0))
        for number, run in runs:
            if number in _RUNS:
                self._wait_all(run, _RUNS[number])
                continue
            for row in run:
                if row[0] in known:
                    handler, fields = known[row[0]]
                    handler(self, *fields(row))

    # --- the handlers: one for each kind of record, with the fields that the table names

    def _on_lease(self, first: int, stop: int, _attempt: int, holder: int, deadline_ns: int, stamp: int) -> None:
        if not first < stop <= min(first, self.frontier) + self.most:
            raise WrongRecordError
        leased, waits, lease = self.leased, self.waiting, Lease(1, holder, deadline_ns, 0)
        for offset in range(first, stop):
            if waits:
                self._unwait(offset)
            leased[offset] = lease
        if deadline_ns < self.ready_queue.earliest_ns:
            self.ready_queue.earliest_ns = deadline_ns
        self.anchor = (stop - 1, stamp)
        if self.out_of_order or self.intents:
            self._pass(stop)
        else:
            self.frontier = stop

    def _on_done(self, first: int, stop: int, _stamp: int) -> None:
        if stop - first > self.most:
            raise WrongRecordError
        order, frontier = self.order, self.frontier
        if stop > frontier:
            self.out_of_order.update(dict.fromkeys(range(max(first, frontier), stop)))
        for offset in range(first, stop):
            known = self._remove(offset)
            self.done += known
            if order.mode:
                order.left(offset, frontier, known=known)
            if offset >= frontier:
                if offset in self.intents:
                    self._found(offset, self.intents[offset][0])
                elif offset in self.expires:
                    self._found(offset, self.expires[offset][1])
            self._forget(offset)
        if self.out_of_order:
            self._settle()

    def _is_plain(self) -> bool:
        """Return whether every item is fresh, leased or done, and has no details."""
        aside = self.out_of_order or self.waiting or self.ready_queue.expired or self.order.mode
        return not (aside or self.expires or self.intents or self.headers or self.reasons or self.keeps)

    def _take_and_end(self, data: bytes) -> bytes:
        """Apply LEASE and DONE as long as the queue is plain; return the records from the first other one on."""
        size, self.frontier, ended, begun, anchor = _take_and_end(data, self.leased, self.frontier, self.most)
        self.done += ended
        self.anchor = anchor or self.anchor
        for offset, (holder, deadline_ns) in begun.items():
            self.leased[offset] = Lease(1, holder, deadline_ns, 0)
            self.ready_queue.earliest_ns = min(self.ready_queue.earliest_ns, deadline_ns)
        return data[size:]

    lease, end = _on_lease, _on_done  # each item has them: they are applied without reading the record again

    def _on_pick(
        self, offset: int, attempt: int, holder: int, deadline_ns: int, priority: int, key_id: int, stamp: int
    ) -> None:
        fresh = not self._remove(offset)
        if self.order.mode:
            self.order.picked(offset, key_id, fresh=fresh, parked=offset < self.frontier)
            if stamp and (self.anchor is None or self.anchor[0] < offset):
                self.anchor = (offset, stamp)
        intent = self.intents.pop(offset, None)
        if intent is not None:
            self._found(offset, intent[0])
        if offset == self.frontier:  # as most are in a queue with an order of keys
            self._pass(offset + 1)
        self._lease(offset, Lease(attempt, holder, deadline_ns, priority))
        self._settle()

    pick = _on_pick  # as that of an item out of order

    def _on_wait(self, offset: int, ready_at_ns: int, attempt: int, priority: int, exhausted: int, _stamp: int) -> None:
        self._wait(offset, self._set_aside(offset, ready_at_ns, attempt, priority, exhausted, _stamp))

    def _set_aside(
        self, offset: int, ready_at_ns: int, attempt: int, priority: int, exhausted: int, _stamp: int
    ) -> Waiting:
        known = self._remove(offset)
        if self.order.mode:
            if known:
                self.order.given_back(offset)
            elif offset < self.frontier:  # it was parked
                self.order.count = max(self.order.count - 1, 0)
        return Waiting(attempt, ready_at_ns, priority, exhausted == records.EXHAUSTED)

    def _on_extend(self, offset: int, deadline_ns: int, _attempt: int) -> None:
        if offset in self.leased:
            self.ready_queue.cancel_expiry(offset)
            self._lease(offset, self.leased[offset]._replace(deadline_ns=deadline_ns))

    def _on_free(self, holder: int) -> None:
        self._requeue([offset for offset, lease in self.leased.items() if lease.holder == holder])

    def _on_dead(self, offset: int, _attempt: int, _stamp: int) -> None:
        known = self._remove(offset)
        if self.order.mode and not (self.order.block and offset in self.order.keys):
            self.order.left(offset, self.frontier, known=known)
        self._forget(offset)
        self.dead += 1

    def _on_intent(self, offset: int, timestamp: int, check: int, ready_at_ns: int, priority: int) -> None:
        self._wait(offset, self._intend(offset, timestamp, check, ready_at_ns, priority))

    def _intend(self, offset: int, timestamp: int, check: int, ready_at_ns: int, priority: int) -> Waiting:
        self._remove(offset)
        self.order.forget(offset)  # the key is that of a message that was never written
        self.intents[offset] = (_signed(timestamp), check)
        return Waiting(0, ready_at_ns, priority)

    def _on_expire(self, offset: int, timestamp: int, check: int, at_ns: int) -> None:
        self.expires[offset] = (at_ns, _signed(timestamp), check)

    def _on_headers(self, offset: int, part: int, text_1: int, text_2: int, text_3: int, text_4: int) -> None:
        records.add_part(self.headers, offset, part, text_1, text_2, text_3, text_4)

    def _on_reason(self, offset: int, part: int, text_1: int, text_2: int, text_3: int, text_4: int) -> None:
        records.add_part(self.reasons, offset, part, text_1, text_2, text_3, text_4)

    def _on_keep(self, offset: int, timestamp: int, check: int, keep_ns: int) -> None:
        self.keeps[offset] = (keep_ns, _signed(timestamp), check)

    def _on_result(self, offset: int, part: int, text_1: int, text_2: int, text_3: int, text_4: int) -> None:
        records.add_part(self.results, offset, part, text_1, text_2, text_3, text_4)

    def _on_dedupe(self, key_high: int, key_low: int, offset: int, until_ns: int, check: int) -> None:
        key = key_high.to_bytes(4, "big") + key_low.to_bytes(8, "big")
        if until_ns:
            compared = self.kept is not None and offset < self.kept
            self.dedupe.add(key, DedupeKey(offset, until_ns, check), compared=compared)
        else:
            self.dedupe.known.pop(key, None)

    def _on_kept(self, offset: int, now_ns: int) -> None:
        self.kept = offset
        self.seen_ns = max(self.seen_ns, now_ns)
        self.dedupe.compared(offset, [])

    def _on_purge(self, _frontier: int, stop: int) -> None:
        self._require_narrow(self.frontier, stop)
        self.order.purged(self.waiting)
        for offset in list(self.waiting):
            self._unwait(offset)
            self._forget(offset)
            if offset >= stop:  # its message was never written: another one will have that offset, and is fresh
                self.out_of_order.pop(offset, None)
        self._pass(max(stop, self.frontier))

    def _on_drop(self, offset: int) -> None:
        self._unwait(offset)
        self.ready_queue.cancel_expiry(offset)
        self.intents.pop(offset, None)  # an expiry may be that of the existing message: it is compared too
        self.order.forget(offset)
        if offset >= self.frontier:
            self.out_of_order.pop(offset, None)

    def _on_boot(self, id_high: int, id_low: int, began_ns: int, now_high: int, now_low: int) -> None:
        """Carry times over a reboot, by the wall clock. Every lease of the old boot is given back.

        If the wall clock was set back meanwhile, no item waits longer than it would have without the reboot.
        """
        boot_id, now = id_high.to_bytes(8, "big") + id_low.to_bytes(8, "big"), now_high << 32 | now_low
        old, self.boot = self.boot, (boot_id, began_ns)
        seen, self.seen_ns = self.seen_ns, now
        if old is None:
            return
        if old[0] == boot_id:
            self.timetable.clock_set(began_ns - old[1])
            return
        self.timetable.restarted(old[1] + seen, began_ns + now)
        shift = old[1] - began_ns

        def carried(at: int) -> int:
            return at if at == NEVER else max(min(at + shift, now + max(at - seen, 0), NEVER), 0)

        self.expires = {
            offset: (carried(at), timestamp, check) for offset, (at, timestamp, check) in self.expires.items()
        }
        keys = self.dedupe.known
        keys.update((key, there._replace(until_ns=carried(there.until_ns))) for key, there in keys.items())
        for offset, data in list(self.results.items()):
            if found := records.result_of(data):
                self.results[offset] = records.packed_result(found.outcome, carried(found.until_ns), found.data)
        self.full_at_ns = {kind: carried(at) for kind, at in self.full_at_ns.items()}
        self._requeue(list(self.leased))
        for offset, there in self.waiting.items():
            self.waiting[offset] = there._replace(ready_at_ns=carried(there.ready_at_ns) if there.ready_at_ns else 0)
        self.ready_queue = ReadyQueue(self.leased, self.waiting)
        self.ready_queue.add_many(self.waiting)

    def _on_start(self, frontier: int, newest: int, stamp: int) -> None:
        self._require_narrow(0, frontier)
        self.frontier = frontier  # records for lower offsets that are not done follow
        self.whole = False
        if newest != NEVER:
            self.anchor = (newest, stamp)

    def _on_counts(self, done: int, dead: int, lost: int) -> None:
        self.done, self.dead, self.lost = done, dead, lost
        self.whole = True

    def _on_lost(self, first: int, stop: int, parked: int) -> None:
        self._require_narrow(min(first, self.frontier), stop)
        self.order.lost(stop, parked)
        self.lost += parked
        for offset in list(self.waiting.irange(first, stop, (True, False))):
            self._unwait(offset)
            self.order.forget(offset)
            self._forget(offset)
            self.lost += 1
        for offset in [number for number in self.keeps if first <= number < stop and number not in self.leased]:
            self._forget(offset)
        if stop > self.frontier:
            fresh = max(first, self.frontier)
            self.lost += max(stop - fresh, 0) - sum(1 for _ in self.out_of_order.irange(fresh, stop, (True, False)))
            self._pass(stop)

    def _on_back(self, journal: int, stop: int, count: int) -> None:
        self.redriven[journal] = stop
        self.dead = max(self.dead - count, 0)

    def _on_order(self, order: int, block: int, max_attempts: int) -> None:
        self.max_attempts = max_attempts or self.max_attempts
        if not (order and self.order.mode):
            self.order = KeyOrder(order and BY_KEY)
        self.order.block = bool(block)
        if order == LIMITED and 0 in self._limits:
            self.order.mode, self.order.kinds = LIMITED, Kinds(*json.loads(self._limits[0].rstrip(b"\0")))

    def _on_limit(self, number: int, part: int, text_1: int, text_2: int, text_3: int, text_4: int) -> None:
        records.add_part(self._limits, number, part, text_1, text_2, text_3, text_4)

    def _on_key(self, offset: int, key_id: int, holds: int) -> None:
        if self.order.mode and self.has(offset):
            self.order.keyed(offset, key_id, holds=bool(holds))

    def _on_scan(self, stop: int, count: int, stamp: int) -> None:
        self._require_narrow(self.frontier, stop)
        if self.order.mode:
            self.order.count = count
            if stop > self.frontier:
                self._pass(stop)
                self._settle()
            if stamp and (self.anchor is None or self.anchor[0] < stop - 1):
                self.anchor = (stop - 1, stamp)

    def _on_park(self, key_id: int, first: int) -> None:
        if self.order.mode:
            self.order.park(key_id, first)

    def _on_block(self, offset: int, key_id: int, on: int) -> None:
        if self.order.mode:
            self.order.blocked(offset, key_id, self.frontier, on=bool(on))

    def _on_pause(self, on: int) -> None:
        self.paused = bool(on)

    def _on_rate(self, full_at_ns: int, key_id: int) -> None:
        self.full_at_ns[key_id] = full_at_ns
        if key_id:
            self.order.released.add(key_id)

    def _on_schedule(self, number: int, part: int, text_1: int, text_2: int, text_3: int, text_4: int) -> None:
        records.add_part(self.timetable.drafts, number, part, text_1, text_2, text_3, text_4)

    def _on_turn(self, number: int, next_ns: int, message: int, check: int, every: int, state: int) -> None:
        next_ns, message = min(next_ns, NEVER), min(message, NEVER)
        turn = Turn(next_ns, state == PAUSED, bool(every), message, check, next_ns)
        self.timetable.turned(number, turn, removed=state == REMOVED)

    # --- what the handlers are made of

    def _require_narrow(self, first: int, stop: int) -> None:
        if stop - first > self.most:
            raise WrongRecordError

    def _pass(self, frontier: int) -> None:
        """Move the frontier here: items before it that were set aside are not fresh now.

        The cost is that of the messages passed, however many items were set aside further ahead.
        """
        while self.out_of_order and self.out_of_order.peekitem(0)[0] < frontier:
            self.out_of_order.popitem(0)
        if self.intents:
            passed = range(self.frontier, frontier)
            for offset in passed if len(passed) < len(self.intents) else list(self.intents):
                if offset < frontier and offset in self.intents and offset not in self.waiting:
                    del self.intents[offset]
        self.frontier = frontier

    def _settle(self) -> None:
        """Move the frontier over items that are not fresh, but not over an intent that was not compared yet."""
        while self.frontier in self.out_of_order and self.frontier not in self.intents:
            self.out_of_order.popitem(0)
            self.frontier += 1

    def _lease(self, offset: int, lease: Lease) -> None:
        self.leased[offset] = lease
        if lease.deadline_ns < self.ready_queue.earliest_ns:
            self.ready_queue.earliest_ns = lease.deadline_ns
        if offset >= self.frontier:
            self.out_of_order[offset] = None

    def _wait(self, offset: int, waiting: Waiting) -> None:
        self.waiting[offset] = waiting
        if offset >= self.frontier:
            self.out_of_order[offset] = None
        self.ready_queue.add(offset, waiting)

    def _unwait(self, offset: int) -> bool:
        there = self.waiting.pop(offset, None)
        if there is not None:
            self.ready_queue.remove(offset, there)
        return there is not None

    def _wait_all(self, rows: Iterable[tuple[Any, ...]], kind: records.Kind) -> None:
        """Apply many WAIT, or many INTENT."""
        found: dict[int, Waiting] = {}
        waiting = self._set_aside if kind is records.WAIT else self._intend
        for fields in map(kind.read, rows):
            if fields[0] in found:  # it waits once
                self._wait_many(found)
                found.clear()
            found[fields[0]] = waiting(*fields)
        self._wait_many(found)

    def _wait_many(self, found: dict[int, Waiting]) -> None:
        self.waiting.update(found)
        self.out_of_order.update((offset, None) for offset in found if offset >= self.frontier)
        self.ready_queue.add_many(found)

    def _requeue(self, offsets: list[int]) -> None:
        for offset in offsets:
            self.ready_queue.cancel_expiry(offset)
            self.order.given_back(offset)
        leases = [self.leased.pop(offset) for offset in offsets]
        self._wait_many(
            {at: Waiting(lease.attempt, 0, lease.priority) for at, lease in zip(offsets, leases, strict=True)}
        )

    def _remove(self, offset: int) -> bool:
        if offset in self.leased:
            if self.ready_queue.expired:
                self.ready_queue.cancel_expiry(offset)
            del self.leased[offset]
            return True
        return bool(self.waiting) and self._unwait(offset)

    def _forget(self, offset: int) -> None:
        if self.expires or self.intents or self.headers or self.reasons or self.keeps:
            for details in (self.expires, self.intents, self.headers, self.reasons, self.keeps):
                details.pop(offset, None)

    def _found(self, offset: int, timestamp: int) -> None:
        if self.ahead is None or self.ahead[0] < offset:
            self.ahead = (offset, timestamp & 0xFFFFFFFF)

    # --- what a recovery leaves out: the rest is written into a new log, and read again

    def begin_at(self, offset: int) -> None:
        """Leave out everything below the kept offset, which was moved forwards."""
        self._drop([number for number in (*self.leased, *self.waiting) if number < offset])
        low = {} if offset >= self.frontier else self.order.parked
        self.order.parked = {key: max(first, offset) for key, first in low.items()}
        self._pass(max(self.frontier, offset))
        self.kept = offset

    def end_at(self, stop: int) -> None:
        """Leave out messages from stop on, which were lost; intents and keys are compared with their messages."""
        held = (*self.leased, *self.waiting)
        self._drop([number for number in held if number >= stop and number not in self.intents])
        self.out_of_order = SortedDict.fromkeys(number for number in self.out_of_order if number < stop)
        self.frontier = min(self.frontier, stop)
        self.anchor = self.ahead = None
        self.results = {number: data for number, data in self.results.items() if number < stop}
        self.order.parked = {key: first for key, first in self.order.parked.items() if first < stop}

    def _drop(self, offsets: list[int]) -> None:
        for offset in offsets:
            self._remove(offset)
            self._forget(offset)
            self.order.forget(offset)

    def requeue_all(self) -> None:
        """End every lease: leased items are ready again."""
        self._requeue(list(self.leased))

    def begun_again(self, frontier: int, order: KeyOrder) -> QueueState:
        """Return a state in which nothing is taken, with attempts, pause and schedules of this one, and this order."""
        fresh = QueueState(frontier, KeyOrder(order.mode, block=order.block, kinds=order.kinds))
        fresh.max_attempts, fresh.paused, fresh.timetable = self.max_attempts, self.paused, self.timetable
        fresh.full_at_ns = self.full_at_ns
        return fresh

    # --- what this process found out by comparing records with the journal

    def matched(self, offset: int) -> None:
        """The message at the frontier was set aside, and is the one that its INTENT names, if it has one."""
        self.intents.pop(offset, None)
        self._settle()

    # --- results

    def has(self, offset: int) -> bool:
        """Return whether the item was taken or set aside, and not ended."""
        return offset in self.leased or offset in self.waiting

    def attempts(self, offset: int) -> int:
        """Return how many attempts an item had."""
        there: Lease | Waiting | None = self.waiting.get(offset) or self.leased.get(offset)
        return there.attempt if there is not None else 0

    def priority(self, offset: int) -> int:
        """Return an item's priority."""
        there: Lease | Waiting | None = self.waiting.get(offset) or self.leased.get(offset)
        return there.priority if there is not None else 0

    def with_reason(self, offset: int, why: str) -> str:
        """Return why an item is given up, with the reason of its last failed attempt if that is known."""
        last = self.reasons.get(offset, b"").rstrip(b"\0").decode(errors="ignore")
        return f"{why}; the last failure before that: {last}" if last else why

    def key_of(self, message: Message) -> int:
        """Return the key of a message that counts in this queue: the hash of its key, or its kind."""
        if self.order.kinds is None:
            return key_hash(message.key)
        return self.order.kinds.of(message.key, records.headers_of(self.headers, message))

    def is_fresh(self, offset: int, key: int) -> bool:
        """Return whether a message of this key was never taken or set aside: it is parked, or from the frontier on."""
        if offset >= self.frontier:
            return offset not in self.out_of_order
        return not self.has(offset) and self.order.may_be_parked(offset, key)

    def holders(self) -> set[int]:
        """Return the numbers of the open queues that hold something."""
        return {lease.holder for lease in self.leased.values()}

    def low(self) -> int:
        """Return the lowest offset that may be parked; the frontier if none is."""
        return self.order.low(self.frontier)

    def head(self) -> int:
        """Return the lowest offset that is not done: where a reader that does not know the queue starts."""
        waits: int = self.waiting.peekitem(0)[0] if self.waiting else NEVER
        return min(self.low(), waits, min(self.leased, default=NEVER))

    def fresh(self, end: int) -> int:
        """Return how many messages below end were never taken or set aside."""
        aside: int = self.out_of_order.bisect_left(end)
        return max(end - self.frontier, 0) - aside + self.order.count

    def void(self, end: int) -> int:
        """Return how many waiting items have no message, because the process that put them died."""
        return sum(offset >= end for offset in self.intents if offset in self.waiting)

    def counts(self, now_ns: int, end: int) -> tuple[int, int, int]:
        """Return (ready, delayed, leased) of the items that are not fresh, in a journal that ends at end."""
        expired = self.ready_queue.expired
        delayed = [offset < end for offset, there in self.waiting.items() if there.ready_at_ns > now_ns]
        ready: int = self.waiting.bisect_left(end) - sum(delayed)
        over = sum(lease.deadline_ns <= now_ns or offset in expired for offset, lease in self.leased.items())
        return ready + over, sum(delayed), len(self.leased) - over


def _signed(timestamp: int) -> int:
    return timestamp if timestamp < 2**63 else timestamp - 2**64


HANDLERS: Final[dict[int, tuple[Callable[..., None], Callable[[tuple[Any, ...]], tuple[int, ...]]]]] = {
    number: (getattr(QueueState, f"_on_{kind.name.lower()}"), kind.read) for number, kind in records.KINDS.items()
}
"""The handler of each kind of record, with the function that takes its fields out of the words of a record."""


def snapshot(state: QueueState, now_ns: int, end: int) -> bytes:
    """Return the records of a new log.

    Args:
        state: the state, which does not change.
        now_ns: items whose time was over by then are left out.
        end: the journal's end; intents for messages that were never written are left out.
    """
    return b"".join(_records(state, now_ns, end))


def _records(state: QueueState, now_ns: int, end: int) -> Iterator[bytes]:
    order, frontier = state.order, state.frontier
    low = min(frontier, *order.parked.values(), NEVER)  # fresh or parked items begin
    # What is true of the whole queue.
    if state.boot is not None:
        yield records.booted(*state.boot, now_ns)
    yield records.START(low, *(state.anchor or (NEVER, 0)))
    if order.kinds is not None:
        yield from records.in_parts(records.LIMIT, 0, json.dumps(order.kinds).encode())
    yield records.ORDER(order.mode, order.block, state.max_attempts)
    if order.mode:
        yield records.SCAN(frontier)
    if state.paused:
        yield records.PAUSE(1)
    for kind, full_at_ns in state.full_at_ns.items():
        if full_at_ns > now_ns:
            yield records.RATE(full_at_ns, kind)
    table = state.timetable
    for number, turn in table.turns.items():
        yield from records.in_parts(records.SCHEDULE, number, table.texts[number])
        if number in table.unproven:
            yield records.TURN(number, turn.before_ns, NEVER, 0, turn.every, turn.paused)
            yield records.TURN(number, turn.next_ns, turn.message, turn.check, turn.every, turn.paused)
        else:
            yield records.TURN(number, turn.next_ns, NEVER, 0, turn.every, turn.paused)
    for journal, letter in state.redriven.items():
        yield records.BACK(journal, letter)
    if state.kept is not None:
        yield records.KEPT(state.kept, now_ns)
    # The items that wait, each with its key, then the leased ones.
    keys = order.keys
    for offset, there in state.waiting.items():
        intent = state.intents.get(offset)
        if intent is None:
            made = records.exhausted if there.exhausted else records.WAIT
            yield made(offset, there.ready_at_ns, there.attempt, there.priority)
        elif offset < end:
            yield records.INTENT(offset, *intent, there.ready_at_ns, there.priority)
        if offset in keys:
            yield records.KEY(offset, keys[offset], offset in order.held.get(keys[offset], ()))
    for offset, lease in state.leased.items():
        yield records.PICK(offset, *lease, keys.get(offset, 0))
    # The parked items, after those that are held: their records would move a bound.
    for key, first in order.parked.items():
        yield records.PARK(key, first)
    if order.parked:
        yield from records.all_done(sorted((number, 0) for number in order.ended if low <= number < frontier))
    if order.mode:
        yield records.SCAN(frontier, order.count)
    yield from records.all_done((offset, 0) for offset in state.out_of_order if not state.has(offset))
    for offset, key in keys.items():  # held without an item: after the DONE of a dead letter, which frees its key
        if not state.has(offset) and offset in order.held.get(key, ()):
            yield records.BLOCK(offset, key, 1)
    # The details of items.
    for offset, (at_ns, timestamp, check) in state.expires.items():
        if offset < end and _may_be_item(state, offset, low):
            yield records.EXPIRE(offset, timestamp, check, at_ns)
    for offset, data in state.headers.items():
        if offset < end and _may_be_item(state, offset, low):
            yield from records.in_parts(records.HEADERS, offset, data)
    for offset, data in state.reasons.items():
        if state.has(offset):
            yield from records.in_parts(records.REASON, offset, data)
    for offset, (keep_ns, timestamp, check) in state.keeps.items():
        if offset < end and _may_be_item(state, offset, low):
            yield records.KEEP(offset, timestamp, check, keep_ns)
    for offset, data in state.results.items():
        found = records.result_of(data)
        if found is not None and found.until_ns > now_ns and offset not in state.keeps:
            yield from records.in_parts(records.RESULT, offset, data)
    for name, meaning in state.dedupe.known.items():
        if meaning.until_ns > now_ns and meaning.offset < end:
            yield records.deduped(name, *meaning)
    counts = (state.done, state.dead, state.lost)
    yield records.COUNTS(*(min(count, NEVER) for count in counts))  # the last: without it, the log is not whole


def _may_be_item(state: QueueState, offset: int, low: int) -> bool:
    """Return whether an item may have this offset; low: where fresh or parked items begin."""
    if state.has(offset) or offset >= state.frontier:
        return True
    return offset >= low and offset not in state.order.ended
