"""Take items: which come next, which are no longer delivered, and how many at a time.

The order: the highest priority with a ready item; within it the lowest offset. Fresh messages have priority 0 and are
in the journal in order, so a range of them is one record. Everything runs under the queue's lock, with the log read.

**Limits** say how many items are leased at a time, and how many are delivered in a time, of the whole queue or of each
kind (:class:`sej.queue.log.ready_queue.Kinds`). A pause and the state of a rate are kept in the queue's log, so that
they hold for all processes together and after a restart.

A queue with an order of keys, or with limits by kind, has a :class:`Source` of its own
(:mod:`sej.queue.keyed_take`). It says which item is next; this module takes it.
"""

from __future__ import annotations

import re
from typing import Any, Final, Protocol

from sej.checks import TEXT, instance_of, optional, require
from sej.errors import CorruptionError, OffsetTooSmallError, SejError
from sej.message import NO_TIMESTAMP, Message
from sej.queue.core import QueueCore
from sej.queue.interface.values import Limit
from sej.queue.log import format as records
from sej.queue.log.reader import lost_before
from sej.queue.log.ready_queue import Kinds, Waiting
from sej.system.clock import LONGEST_NS
from sej.system.disk import of_system

PROBE_NS: Final = 100_000_000
"""Nanoseconds between two checks of other holders: items of a process that died are ready after at most this time."""
_DEAD_LETTER_PAUSE_NS: Final = 10_000_000_000
"""If a dead letter could not be written, the next attempt comes after this time: other items do not wait for it."""
_RATE: Final = re.compile(r"([1-9]\d*)\s*/\s*(\d*)\s*(s|m|h|d)")
_UNIT_NS: Final = {"s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9}
Found = list[tuple[Message, int]]
"""Messages that were taken, each with its number of attempts."""


def parse_rate(text: str) -> tuple[int, int]:
    """Return the burst and the interval, in ns, of a rate: ``10/s``, ``100/m``, ``5/h``, ``1/30s``.

    Raises:
        ValueError: the text is not a rate.

    Example:
        >>> parse_rate("10/s"), parse_rate("1/30s")
        ((10, 100000000), (1, 30000000000))
    """
    found = _RATE.fullmatch(text.strip())
    if found is None or found[2] == "0":
        raise ValueError(f"rate must be a number of items per time, as in '10/s', '100/m' or '1/30s', got {text!r}")
    count = int(found[1])
    span_ns = min(int(found[2] or 1) * _UNIT_NS[found[3]], LONGEST_NS)
    return count, max(span_ns // count, 1)


def require_rate(name: str, value: Any) -> None:
    """Check a rate, as a rule of :func:`sej.checks.require`."""
    TEXT(name, value)
    parse_rate(value)


def require_limit(name: str, value: Any) -> None:
    """Check a limit by kind, as a rule of :func:`sej.checks.require`."""
    instance_of(Limit)(name, value)
    require(concurrency=value.concurrency, by=(value.by, TEXT), rate=(value.rate, optional(require_rate)))
    what, _, part = value.by.partition(":")
    if value.by != "key" and (what not in ("key", "header") or not part):
        raise ValueError(f"by must be 'key', 'key:/' or 'header:NAME', got {value.by!r}")


def kinds_of(limit: Limit) -> Kinds:
    """Return a limit as the log has it."""
    return Kinds(*limit, *((1, 0) if limit.rate is None else parse_rate(limit.rate)))


class Source(Protocol):
    """Finds the next item of a queue with an order of keys, or with limits by kind."""

    def begin(self) -> None:
        """A call takes the lock."""

    def take_next(self, n: int, now: int, found: Found) -> bool:
        """Take the next items, at most n, or set one aside; return False if none exists."""

    def next_ns(self) -> list[int]:
        """Return when a limit allows an item, if one waits for that."""


class Taker:
    """The taking side of one open queue.

    Attributes:
        source: finds the next item; None: the queue has neither an order of keys nor limits by kind.
        core: the queue.
        limited: whether this process applies a limit of the whole queue.
        full: whether the next item has too many bytes for this call.
        unfinished: whether there may be an item that the last :meth:`take` did not reach.
    """

    def __init__(self, core: QueueCore, limit: Limit) -> None:
        """Take for this queue; limit: that of the whole queue, which this process applies."""
        self.core = core
        self.source: Source | None = None
        self._log = core.log
        self._limit = kinds_of(limit)
        self.limited = self._limit != Kinds()
        self._max_bytes: int | None = None
        self.full = self.unfinished = False
        self._probe_at = self._dead_letter_at = 0

    def take(self, n: int, now: int, max_bytes: int | None = None) -> Found:
        """Return up to n items that are available now: messages, and their number of attempts.

        Their values have at most ``max_bytes`` together, or it is one item.
        An error in an item is raised only if it comes first: the items before it are already leased.
        """
        log = self._log
        state = log.state
        ready_queue = state.ready_queue
        if ready_queue.timed or now >= ready_queue.earliest_ns:
            ready_queue.tick(now)
        if now >= self._probe_at:
            self._probe_at = now + PROBE_NS
            self.core.requeue_of_dead_holders(now)
        found: Found = []
        self._max_bytes, self.full, self.unfinished = max_bytes, False, False
        take_next = self._take_next if ready_queue.ready or state.out_of_order else self._take_fresh
        if self.source is not None:
            self.source.begin()
            take_next = self.source.take_next
        if state.paused:
            return found
        if self.limited:
            leased = len(state.leased) - len(ready_queue.expired)
            n = self._limit.room(n, leased, state.full_at_ns.get(0, 0), now)
        more = n > 0
        while more and len(found) < n and not self.full:
            try:
                more = take_next(n - len(found), now, found)
            except OffsetTooSmallError as error:
                if not self._lose(error.first_available):
                    raise
            except (MemoryError, OSError, SejError) as error:
                if not found or not self.core.life.open or (isinstance(error, OSError) and not of_system(error)):
                    raise
                self.core.close_readers()  # reopened at their next use
                break
        if self.limited and found and self._limit.interval_ns:
            log.append(records.RATE(self._limit.spent(len(found), log.state.full_at_ns.get(0, 0), now)))
        return found

    # --- the limit of the queue

    def begin(self, now: int) -> None:
        """Record what the rate of this process changes; once, when its queue is opened.

        The bucket is never emptier than empty: otherwise a queue with a new, faster rate would wait for the old one.
        """
        empty_ns = self._limit.spent(self._limit.burst, now, now)
        if self._limit.interval_ns and self._log.state.full_at_ns.get(0, 0) > empty_ns:
            self._log.append(records.RATE(empty_ns))

    def next_ns(self) -> int | None:
        """Return when a rate allows the next item; None: none waits for that."""
        times = [] if self.source is None else self.source.next_ns()
        if self._limit.interval_ns:
            times.append(self._limit.allowed_ns(self._log.state.full_at_ns.get(0, 0)))
        return min(times, default=None)

    def fits(self, message: Message, *taken: Found) -> bool:
        """Return whether an item may be added to those that were taken; if not, nothing more is taken."""
        if self._max_bytes is None or not any(taken):
            return True
        size = sum(len(row[0].value) for rows in taken for row in rows) + len(message.value)
        self.full = size > self._max_bytes
        return not self.full

    # --- one item after another

    def _take_next(self, n: int, now: int, found: Found) -> bool:
        """Take the next item, or set it aside; return False if none exists."""
        state = self._log.state
        if state.out_of_order:
            self.look_ahead()
        ready = state.ready_queue.first_ready() if state.ready_queue.ready else None
        if ready is not None and (ready[0] > 0 or (ready[0] == 0 and ready[1] < state.frontier)):
            self.pick(ready[1], now, found)
        elif not self._take_fresh(n, now, found):
            if ready is None:
                return False
            self.pick(ready[1], now, found)
        return True

    def _take_fresh(self, n: int, now: int, found: Found) -> bool:
        """Lease a range of fresh messages; return False if none exists."""
        log, state, read, core = self._log, self._log.state, self.core.fresh.at, self.core
        out_of_order, expires = state.out_of_order, state.expires or core.delivery.expire_ns is not None
        first = offset = state.frontier
        run: Found = []
        expired: list[bytes] = []
        while len(run) < n and not (out_of_order and offset in out_of_order):
            try:
                message = read(offset)
            except (MemoryError, OSError, SejError) as error:
                if not run or (isinstance(error, OSError) and not of_system(error)):
                    raise
                break
            if message is None or (message.offset != offset and run):
                break
            if message.offset in out_of_order:  # a recorded gap ends at an item that was set aside
                log.append(records.LOST(offset, message.offset))
                return True
            if self._max_bytes is not None and not self.fits(message, found, run):
                break
            if not run:
                first = message.offset  # after a recorded gap, if there was one
            offset = message.offset + 1
            run.append((message, 1))
            if expires and self.is_expired(message, now):
                expired.append(records.DONE(message.offset, offset))
        if not run:
            return False
        holder, deadline, stamp = core.holders.mine, now + core.delivery.lease_ns, run[-1][0].timestamp & 0xFFFFFFFF
        log.write(records.leased(first, offset, holder, deadline, stamp))
        state.lease(first, offset, 1, holder, deadline, stamp)
        if expired:
            log.append(*expired)
            run = [row for row in run if row[0].offset in state.leased]
        found += run
        return True

    def look_ahead(self) -> None:
        """Move the frontier over items that were set aside for the existing messages."""
        state = self._log.state
        while state.frontier in state.out_of_order:
            offset = state.frontier
            intent = state.intents.get(offset)
            if intent is not None:
                try:
                    message = self.core.fresh.at(offset)
                except CorruptionError:
                    if state.ready_queue.ready and state.ready_queue.ready.peekitem(0)[0] < (0, offset):
                        return  # an item before it is delivered first
                    raise
                if message is None:
                    return  # the put died before it wrote the message
                if message.offset != offset or (message.timestamp, records.message_check(message)) != intent:
                    self._log.append(records.DROP(offset))
                    return
            state.matched(offset)

    def pick(self, offset: int, now: int, found: Found, parked: int | None = None, after: bytes = b"") -> None:
        """Lease an item out of order; an exhausted one goes to the dead letters.

        Args:
            offset: the item.
            now: when its lease begins.
            found: it is added here.
            parked: its key, if it is parked; None: it is not.
            after: a record that follows if it is delivered.
        """
        log, state, core = self._log, self._log.state, self.core
        there = state.waiting.get(offset) or state.leased.get(offset)
        attempts, priority = (0, 0) if there is None else (there.attempt, there.priority)
        key, stamp = parked or 0, 0
        message = core.others.at(offset)
        if message is not None and message.offset == offset and state.order.mode:
            key, stamp = state.key_of(message) if parked is None else parked, records.stamp_of(message.timestamp)
        row = (offset, attempts + 1, core.holders.mine, now + core.delivery.lease_ns, priority, key, stamp)
        before = b"" if parked is None else records.picked(*row)  # what ends was delivered
        intent = state.intents.get(offset)
        if message is None or message.offset != offset:  # it was never written, or a repair found it lost
            log.append(before, (records.one_done if offset < state.frontier else records.DROP)(offset))
        elif intent is not None and (message.timestamp, records.message_check(message)) != intent:
            log.append(records.DROP(offset))  # this is another message, and fresh
        elif self.is_expired(message, now):
            log.append(before, records.one_done(offset))
        elif (begun := isinstance(there, Waiting) and there.exhausted) or attempts >= state.max_attempts:
            self._exhaust(message, attempts, now, begun=begun)
        elif self.fits(message, found):
            log.write((before or records.picked(*row)) + after)
            state.pick(*row)
            if after:
                state.apply(after)
            found.append((message, attempts + 1))

    def _exhaust(self, message: Message, attempts: int, now: int, *, begun: bool) -> None:
        """Give an item up; if its dead letter cannot be written now, it waits, and other items do not wait for it."""
        log = self._log
        if now >= self._dead_letter_at:
            try:
                why = self._why(message.offset, attempts, begun=begun)
                self.core.letters.give_up(log, message, attempts, log.state.with_reason(message.offset, why))
                return
            except (OSError, SejError) as error:
                if not self.core.life.open or (isinstance(error, OSError) and not of_system(error)):
                    raise
                self.core.problems.append(
                    f"exhausted items cannot be written to the dead letters ({error}); this is tried again every 10"
                    " seconds, and stats().delayed counts them meanwhile"
                )
                self._dead_letter_at = now + _DEAD_LETTER_PAUSE_NS
        wait = records.exhausted if begun else records.WAIT  # the reason of a later letter is this one's
        log.append(wait(message.offset, self._dead_letter_at, attempts, log.state.priority(message.offset)))

    def _why(self, offset: int, attempts: int, *, begun: bool) -> str:
        """Return the reason of an exhausted item, as far as it is known: a waiting one may also have been returned.

        If ``max_attempts`` was made smaller, items are exhausted that were returned before.
        """
        if begun:
            return "a process died while it gave this item up"
        if offset in self._log.state.leased:
            return f"its holder died or did not end it in time, at attempt {attempts}"
        most = self._log.state.max_attempts
        if attempts > most:
            return f"{attempts} attempts, more than max_attempts={most}"
        return f"its holder died, did not end it in time or returned it, at attempt {attempts} of max_attempts={most}"

    def is_expired(self, message: Message, now: int) -> bool:
        """Return whether a message expired by this time."""
        row = self._log.state.expires.get(message.offset)
        if row is not None and row[0] <= now and row[1:] == (message.timestamp, records.message_check(message)):
            return True
        at, expire_ns = message.timestamp, self.core.delivery.expire_ns
        return expire_ns is not None and at != NO_TIMESTAMP and at + expire_ns <= self.core.clock.wall_ns()

    # --- without delivering them

    def look_for_losses(self) -> None:
        """Check whether messages that were never taken have been deleted."""
        segments, low = self.core.directory.segments(), self._log.state.low()
        if segments and segments[0].first_offset > low:
            self.core.fresh.close()  # it may remember the message
            try:
                self.core.fresh.at(low)
            except OffsetTooSmallError as error:
                self._lose(error.first_available)

    def _lose(self, first: int) -> bool:
        """The journal begins at ``first`` now: drop what waited before it; return False if nothing did."""
        log, state = self._log, self._log.state
        before = state.lost
        ended = [offset for offset in state.ready_queue.expired if offset < first]
        gone = list(state.waiting.irange(maximum=first, inclusive=(True, False)))
        if not ended and not gone and state.low() >= first:
            return False
        log.append(
            *(records.WAIT(offset, 0, state.attempts(offset), state.priority(offset)) for offset in ended),
            lost_before(self.core.directory, state, first, (*ended, *gone)),
        )
        if lost := state.lost - before:
            self.core.problems.append(
                f"retention removed {lost} items from the journal before they were delivered, because its caller"
                " ignored this queue; stats().lost counts them"
            )
        return True

    def purge(self) -> int:
        """Remove every item that is not leased; return how many."""
        log, end = self._log, self._log.tail.end_offset()
        self.core.requeue_expired(self.core.clock.boot_ns())
        state = log.state
        gone = len(state.waiting) - state.void(end) + state.fresh(end)
        log.purge(end)
        return gone

    def cancel(self, offset: int) -> bool:
        """Remove one item, leased or not; return whether it was there.

        It is recorded as set aside first if it is fresh: only then is it counted as done, as when it is delivered.
        """
        log, state = self._log, self._log.state
        order = state.order
        if offset in order.keys and not state.has(offset):  # a dead letter that keeps its key
            log.append(records.BLOCK(offset, order.keys[offset], 0))
            return True
        if offset >= log.tail.end_offset():
            return False
        message = self.core.others.find(offset)
        if message is None:
            return False
        key = state.key_of(message)
        fresh = state.is_fresh(offset, key)
        if not fresh and not state.has(offset):
            return False
        aside = [records.WAIT(offset, 0, 0, 0)] if fresh else []
        if fresh and key and order.mode:
            aside.append(records.KEY(offset, key))
        log.append(*aside, records.DONE(offset, offset + 1, records.stamp_of(message.timestamp)))
        return True
