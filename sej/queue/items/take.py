"""Take items: which come next, and which are no longer delivered.

The order: the highest priority with a ready item; within it the lowest offset. Fresh messages have priority 0 and are
in the journal in order, so a range of them is one record. Everything runs under the queue's lock, with the log read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sej.errors import OffsetTooSmallError, SejError
from sej.journal.directory import Directory
from sej.message import NO_TIMESTAMP, Message
from sej.queue.disk.lock import Holders
from sej.queue.disk.log import QueueLog
from sej.queue.disk.parked import parked_offsets
from sej.queue.disk.reader import MessageReader
from sej.queue.items.flow import UNLIMITED, Flow
from sej.queue.items.keyed_take import KeyedTaker
from sej.queue.log.format import DONE, DROP, FREE, LOST, PICK, WAIT, exhausted, leased, message_check, stamp_of
from sej.queue.log.key_order import key_hash
from sej.system.clock import Clock
from sej.system.disk import of_system

PROBE_NS: Final = 100_000_000
"""Nanoseconds between two checks of other holders: items of a process that died are ready after at most this time."""
_DEAD_LETTER_PAUSE_NS: Final = 10_000_000_000
"""If a dead letter could not be written, the next attempt comes after this time: other items do not wait for it."""


class Taker:
    """The taking side of one open queue.

    Attributes:
        others: looks up messages that are not taken in order.
        lost: how many items were found missing since the last check.
        unwritten: why a dead letter could not be written since the last check; None: all were.
    """

    def __init__(
        self,
        directory: Directory,
        log: QueueLog,
        holders: Holders,
        clock: Clock,
        give_up: Callable[[Message, int, str], None],
        *,
        lease_ns: int,
        expire_ns: int | None,
        per_key: int = 1,
        flow: Flow = UNLIMITED,
    ) -> None:
        """Take for this holder.

        Args:
            directory: the journal.
            log: the state.
            holders: which other holders are alive.
            clock: the clocks.
            give_up: writes a message to the dead letters, with its attempts and a reason.
            lease_ns: how long an item is leased.
            expire_ns: messages older than this are removed; None: none.
            per_key: how many items of a key may be leased in a queue with an order of keys.
            flow: the limits of the whole queue.
        """
        self._directory = directory
        self._log = log
        self._holders = holders
        self._clock = clock
        self._give_up = give_up
        self._lease_ns = lease_ns
        self._expire_ns = expire_ns
        self._flow = flow
        self._max_bytes: int | None = None
        self._full = False
        self._probe_at = self._dead_letter_at = self.lost = 0
        self.unwritten: Exception | None = None
        self._fresh = MessageReader(directory)
        self.others = MessageReader(directory, 64)
        self._keyed = KeyedTaker(
            directory,
            log,
            self._fresh,
            self.others,
            per_key=per_key,
            pick=self._pick,
            look_ahead=self._look_ahead,
            is_expired=self._is_expired,
            lease=lambda now: (holders.mine, now + lease_ns),
            fits=self._fits,
            unlimited=lambda: self._max_bytes is None and not self._expires,
        )

    @property
    def unfinished(self) -> bool:
        """Whether there may be an item that the last :meth:`take` did not reach."""
        return self._keyed.unfinished

    def begin(self, now: int) -> None:
        """Record what the rate of this process changes; once, when its queue is opened."""
        opened = self._flow.opened(self._log.state, now)
        if opened:
            self._log.append(*opened)

    def take(self, n: int, now: int, max_bytes: int | None = None) -> list[tuple[Message, int]]:
        """Return up to n items that are available now: messages, and their number of attempts.

        Their values have at most ``max_bytes`` together, or it is one item.
        An error in an item is raised only if it comes first: the items before it are already leased.
        """
        state = self._log.state
        state.schedule.tick(now)
        if now >= self._probe_at:
            self._probe(now)
        found: list[tuple[Message, int]] = []
        self._keyed.begin()
        self._max_bytes, self._full = max_bytes, False
        n = self._flow.room(state, n, now)
        more = n > 0
        while more and len(found) < n and not self._full:
            try:
                more = self._take_next(n - len(found), now, found)
            except OffsetTooSmallError as error:
                if not self._lose(error.first_available):
                    raise
            except (OSError, SejError) as error:
                if not found or self._log.failed or (isinstance(error, OSError) and not of_system(error)):
                    raise
                self.close()  # reopened at their next use
                break
        spent = self._flow.spent(self._log.state, len(found), now)
        if spent:
            self._log.append(*spent)
        return found

    def next_ns(self) -> int | None:
        """Return when the rate allows the next item; None: it has no limit."""
        return self._flow.next_ns(self._log.state)

    def problems(self) -> list[str]:
        """Return why items were not delivered since the last call, for the user."""
        (lost, self.lost), (error, self.unwritten) = (self.lost, 0), (self.unwritten, None)
        found = []
        if lost:
            found.append(
                f"retention removed {lost} items from the journal before they were delivered, because its caller"
                " ignored this queue; stats().lost counts them"
            )
        if error is not None:
            found.append(
                f"exhausted items cannot be written to the dead letters ({error}); this is tried again every 10"
                " seconds, and stats().delayed counts them meanwhile"
            )
        return found

    def _fits(self, message: Message, *taken: list[tuple[Message, int]]) -> bool:
        """Return whether an item may be added to those that were taken; if not, nothing more is taken."""
        if self._max_bytes is None or not any(taken):
            return True
        size = sum(len(row[0].value) for rows in taken for row in rows) + len(message.value)
        self._full = size > self._max_bytes
        return not self._full

    def _take_next(self, n: int, now: int, found: list[tuple[Message, int]]) -> bool:
        """Take the next item, or set it aside; return False if none exists."""
        state = self._log.state
        if state.order is not None:
            return self._keyed.next(state.order, n, now, found)
        if state.frontier in state.above:
            self._look_ahead()
        ready = state.schedule.first_ready()
        if ready is not None and (ready[0] > 0 or (ready[0] == 0 and ready[1] < state.frontier)):
            self._pick(ready[1], now, found)
        elif not self._take_fresh(n, now, found):
            if ready is None:
                return False
            self._pick(ready[1], now, found)
        return True

    def take_back(self, now: int) -> None:
        """Return items to the queue whose holder died, or whose lease is over."""
        log, state = self._log, self._log.state
        self._probe(now)
        state.schedule.tick(now)
        back = [WAIT(at, 0, state.attempts(at), state.priority(at)) for at in sorted(state.schedule.lapsed)]
        if back:
            log.append(*back)

    def look_for_losses(self) -> None:
        """Check whether messages that were never taken have been deleted."""
        segments, state = self._directory.segments(), self._log.state
        low = state.frontier if state.order is None else state.order.low(state.frontier)
        if segments and segments[0].first_offset > low:
            try:
                self._fresh.at(low)
            except OffsetTooSmallError as error:
                self._lose(error.first_available)

    def _lose(self, first: int) -> bool:
        """The journal begins at ``first`` now: drop what waited before it; return False if nothing did."""
        log, state = self._log, self._log.state
        before = state.lost
        ended = [offset for offset in state.schedule.lapsed if offset < first]
        gone = [offset for offset in state.waiting if offset < first]
        low = state.frontier if state.order is None else state.order.low(state.frontier)
        if not ended and not gone and low >= first:
            return False
        parked = 0
        if state.order is not None and state.order.count:
            parked = state.order.count - sum(offset >= first for offset, _ in parked_offsets(self._directory, state))
        log.append(
            *(WAIT(offset, 0, state.attempts(offset), state.priority(offset)) for offset in ended),
            LOST(min([low, *ended, *gone]), first, parked),
        )
        self.lost += state.lost - before
        return True

    def judge(self) -> None:
        """Nothing was appended for a while: raise if the bytes at the journal's end are corruption."""
        self._fresh.judge()

    def close(self) -> None:
        """Close the readers."""
        self._fresh.close()
        self.others.close()
        self._keyed.close()

    def _take_fresh(self, n: int, now: int, found: list[tuple[Message, int]]) -> bool:
        """Lease a range of fresh messages; return False if none exists."""
        log, state, read = self._log, self._log.state, self._fresh.at
        above, expires = state.above, self._expires
        offset = state.frontier
        run: list[tuple[Message, int]] = []
        expired: list[bytes] = []
        while len(run) < n and not (above and offset in above):
            try:
                message = read(offset)
            except MemoryError as error:
                if not run:
                    self._too_large(offset, error, now, found)
                    return True
                break
            except (OSError, SejError) as error:
                if not run or (isinstance(error, OSError) and not of_system(error)):
                    raise
                break
            if message is None or (message.offset != offset and run):
                break
            if message.offset in above:  # a recorded gap ends at an item that was set aside
                log.append(LOST(offset, message.offset))
                return True
            if not self._fits(message, found, run):
                break
            offset = message.offset + 1  # after a recorded gap, if there was one
            run.append((message, 1))
            if expires and self._is_expired(message, now):
                expired.append(DONE(message.offset, offset))
        if not run:
            return False
        stamp = stamp_of(run[-1][0].timestamp)
        first, holder = run[0][0].offset, self._holders.mine
        log.append(leased(first, offset, holder, now + self._lease_ns, stamp), *expired)
        found += [row for row in run if row[0].offset in state.leased] if expired else run
        return True

    def _look_ahead(self) -> None:
        """Move the frontier over items that were set aside for the existing messages."""
        state = self._log.state
        while state.frontier in state.above:
            offset = state.frontier
            intent = state.intents.get(offset)
            if intent is not None:
                message = self._fresh.at(offset)
                if message is None:
                    return  # the put died before it wrote the message
                if message.offset != offset or (message.timestamp, message_check(message)) != intent:
                    self._log.append(DROP(offset))
                    return
            state.matched(offset)

    def _pick(self, offset: int, now: int, found: list[tuple[Message, int]]) -> None:
        """Lease an item out of order; an exhausted one goes to the dead letters."""
        log, state = self._log, self._log.state
        attempts = state.attempts(offset)
        try:
            message = self.others.at(offset)
        except MemoryError as error:
            self._too_large(offset, error, now, found)
            return
        intent = state.intents.get(offset)
        if message is None or message.offset != offset:  # it was never written, or a repair found it lost
            log.append(DROP(offset) if offset >= state.frontier else DONE(offset, offset + 1))
        elif intent is not None and (message.timestamp, message_check(message)) != intent:
            log.append(DROP(offset))  # this is another message, and fresh
        elif self._is_expired(message, now):
            log.append(DONE(offset, offset + 1))
        elif (begun := offset in state.waiting and state.waiting[offset].exhausted) or attempts >= state.max_attempts:
            self._exhaust(message, attempts, now, begun=begun)
        elif self._fits(message, found):
            deadline, priority = now + self._lease_ns, state.priority(offset)
            key, stamp = (0, 0) if state.order is None else (key_hash(message.key), stamp_of(message.timestamp))
            log.append(PICK(offset, attempts + 1, self._holders.mine, deadline, priority, key, stamp))
            found.append((message, attempts + 1))

    def _exhaust(self, message: Message, attempts: int, now: int, *, begun: bool) -> None:
        """Give an item up; if its dead letter cannot be written now, it waits, and other items do not wait for it."""
        log = self._log
        if now >= self._dead_letter_at:
            try:
                why = self._why(message.offset, attempts, begun=begun)
                self._give_up(message, attempts, log.state.with_reason(message.offset, why))
                return
            except (OSError, SejError) as error:
                if log.failed or (isinstance(error, OSError) and not of_system(error)):
                    raise
                self.unwritten = error
                self._dead_letter_at = now + _DEAD_LETTER_PAUSE_NS
        wait = exhausted if begun else WAIT  # the reason of a later letter is this one's
        log.append(wait(message.offset, self._dead_letter_at, attempts, log.state.priority(message.offset)))

    def _too_large(self, offset: int, error: MemoryError, now: int, found: list[tuple[Message, int]]) -> None:
        """Count an attempt for an item that this process has no memory for, and raise.

        An exhausted one waits for a process that has the memory for its dead letter, and other items do not.
        """
        self.close()
        if found:  # they are leased; the next call reaches this item first
            self._full = True
            return
        log, state = self._log, self._log.state
        attempts = state.attempts(offset)
        if attempts < state.max_attempts:
            log.append(WAIT(offset, 0, attempts + 1, state.priority(offset)))
            raise error
        self.unwritten = error
        begun = offset in state.waiting and state.waiting[offset].exhausted
        wait = exhausted if begun else WAIT
        log.append(wait(offset, now + _DEAD_LETTER_PAUSE_NS, attempts, state.priority(offset)))

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

    @property
    def _expires(self) -> bool:
        """Whether a message may expire."""
        return bool(self._log.state.expires) or self._expire_ns is not None

    def _is_expired(self, message: Message, now: int) -> bool:
        row = self._log.state.expires.get(message.offset)
        if row is not None and row[0] <= now and row[1:] == (message.timestamp, message_check(message)):
            return True
        at = message.timestamp
        return self._expire_ns is not None and at != NO_TIMESTAMP and at + self._expire_ns <= self._clock.wall_ns()

    def _probe(self, now: int) -> None:
        """Return the items of holders that died."""
        self._probe_at = now + PROBE_NS
        state = self._log.state
        if state.leased:
            dead = self._holders.dead(state.holders())
            if dead:
                self._log.append(*(FREE(holder) for holder in sorted(dead)))
                state.schedule.tick(now)
