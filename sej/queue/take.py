"""Taking items: which come next, and what is not handed out any more.

The order: the highest priority that has something ready; in it the lowest offset. Fresh messages have priority 0 and
are in the journal in order, so a run of them is one record. Everything runs under the queue's lock, with the state up
to date.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sej.errors import OffsetTooSmallError, SejError
from sej.journal.directory import Directory
from sej.message import NO_TIMESTAMP, Message
from sej.queue.clock import Clock
from sej.queue.liveness import Holders
from sej.queue.log import QueueLog
from sej.queue.reader import MessageReader
from sej.queue.records import done, dropped, exhausted, freed, lost, message_check, picked, stamp_of, waits
from sej.queue.replay import leased
from sej.system.disk import of_system

__all__ = ["PROBE_NS", "Taker"]

PROBE_NS: Final = 100_000_000
"""How often other holders are looked at: items of a process that died are ready so many nanoseconds later."""
_DEAD_LETTER_PAUSE_NS: Final = 10_000_000_000
"""If a dead letter could not be written, the next attempt comes so much later: other items do not wait for it."""


class Taker:
    """The taking side of one open queue.

    Attributes:
        others: looks up messages that are not taken in order.
        lost: how many items were found missing since the last look.
        unwritten: why a dead letter could not be written, since the last look; None: all were.
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
        max_attempts: int,
        expire_ns: int | None,
    ) -> None:
        """Take for this holder.

        Args:
            directory: the journal.
            log: the state.
            holders: which other holders are alive.
            clock: the clocks.
            give_up: puts a message among the dead letters, with its attempts and a reason.
            lease_ns: how long an item is held.
            max_attempts: after so many hand-outs an item becomes a dead letter.
            expire_ns: messages older than this are thrown away; None: none.
        """
        self._directory = directory
        self._log = log
        self._holders = holders
        self._clock = clock
        self._give_up = give_up
        self._lease_ns = lease_ns
        self._max_attempts = max_attempts
        self._expire_ns = expire_ns
        self._probe_at = self._dead_letter_at = self.lost = 0
        self.unwritten: Exception | None = None
        self._fresh = MessageReader(directory)
        self.others = MessageReader(directory, 64)

    def take(self, n: int, now: int) -> list[tuple[Message, int]]:
        """Up to n items that can be had now: messages, and how often each was handed out.

        What is wrong with the next one is raised where it comes first: those before it are somebody's already.
        """
        state = self._log.state
        state.schedule.tick(now)
        if now >= self._probe_at:
            self._probe(now)
        found: list[tuple[Message, int]] = []
        more = True
        while more and len(found) < n:
            try:
                more = self._take_next(n - len(found), now, found)
            except OffsetTooSmallError as error:
                if not self._lose(error.first_available):
                    raise
            except (OSError, SejError) as error:
                if not found or self._log.failed or (isinstance(error, OSError) and not of_system(error)):
                    raise
                self.close()  # they open again where they are asked to
                break
        return found

    def _take_next(self, n: int, now: int, found: list[tuple[Message, int]]) -> bool:
        """Take what comes next, or put it out of the way; False: there is nothing."""
        state = self._log.state
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
        """Take back what is in nobody's hands any more: its holder died, or its lease is over."""
        log, state = self._log, self._log.state
        self._probe(now)
        state.schedule.tick(now)
        back = [waits(at, 0, state.attempts(at), state.priority(at)) for at in sorted(state.schedule.lapsed)]
        if back:
            log.append(*back)

    def look_for_losses(self) -> None:
        """Find out whether messages that nobody has taken yet are gone."""
        segments = self._directory.segments()
        if segments and segments[0].first_offset > self._log.state.frontier:
            try:
                self._fresh.at(self._log.state.frontier)
            except OffsetTooSmallError as error:
                self._lose(error.first_available)

    def _lose(self, first: int) -> bool:
        """The journal begins at first now: nobody waits for what stood before it; False: nothing did."""
        log, state = self._log, self._log.state
        before = state.lost
        ended = [offset for offset in state.schedule.lapsed if offset < first]
        gone = [offset for offset in state.waiting if offset < first]
        if not ended and not gone and state.frontier >= first:
            return False
        log.append(
            *(waits(offset, 0, state.attempts(offset), state.priority(offset)) for offset in ended),
            lost(min([state.frontier, *ended, *gone]), first),
        )
        self.lost += state.lost - before
        return True

    def judge(self) -> None:
        """Nothing has come for a while: raise if what stands at the journal's end is corruption."""
        self._fresh.judge()

    def close(self) -> None:
        """Close what was read from."""
        self._fresh.close()
        self.others.close()

    def _take_fresh(self, n: int, now: int, found: list[tuple[Message, int]]) -> bool:
        """Lease a run of fresh messages; False: there is none."""
        log, state, read = self._log, self._log.state, self._fresh.at
        above, expires = state.above, bool(state.expires) or self._expire_ns is not None
        offset = state.frontier
        run: list[tuple[Message, int]] = []
        expired: list[bytes] = []
        while len(run) < n and not (above and offset in above):
            try:
                message = read(offset)
            except (OSError, SejError) as error:
                if not run or (isinstance(error, OSError) and not of_system(error)):
                    raise
                break
            if message is None or (message.offset != offset and run):
                break
            offset = message.offset + 1  # behind a recorded gap, if there was one
            run.append((message, 1))
            if expires and self._is_expired(message, now):
                expired.append(done(message.offset, offset))
        if not run:
            return False
        stamp = stamp_of(run[-1][0].timestamp)
        first, holder = run[0][0].offset, self._holders.mine
        log.append(leased(first, offset, holder, now + self._lease_ns, stamp), *expired)
        found += [row for row in run if row[0].offset in state.leased] if expired else run
        return True

    def _look_ahead(self) -> None:
        """Let the frontier pass what was set aside, if it was set aside for the messages that are there."""
        state = self._log.state
        while state.frontier in state.above:
            offset = state.frontier
            intent = state.intents.get(offset)
            if intent is not None:
                message = self._fresh.at(offset)
                if message is None:
                    return  # the put died before it wrote the message
                if message.offset != offset or (message.timestamp, message_check(message)) != intent:
                    self._log.append(dropped(offset))
                    return
            state.matched(offset)

    def _pick(self, offset: int, now: int, found: list[tuple[Message, int]]) -> None:
        """Lease an item out of order; one that was tried too often goes to the dead letters."""
        log, state = self._log, self._log.state
        attempts = state.attempts(offset)
        message = self.others.at(offset)
        intent = state.intents.get(offset)
        if message is None or message.offset != offset:  # it was never written, or a repair found it lost
            log.append(dropped(offset) if offset >= state.frontier else done(offset, offset + 1))
        elif intent is not None and (message.timestamp, message_check(message)) != intent:
            log.append(dropped(offset))  # this is another message, and fresh
        elif self._is_expired(message, now):
            log.append(done(offset, offset + 1))
        elif (begun := offset in state.waiting and state.waiting[offset].exhausted) or attempts >= self._max_attempts:
            self._exhaust(message, attempts, now, begun=begun)
        else:
            deadline, priority = now + self._lease_ns, state.priority(offset)
            log.append(picked(offset, attempts + 1, self._holders.mine, deadline, priority))
            found.append((message, attempts + 1))

    def _exhaust(self, message: Message, attempts: int, now: int, *, begun: bool) -> None:
        """Give an item up; if its dead letter cannot be written now, it waits, and other items do not wait for it."""
        log = self._log
        if now >= self._dead_letter_at:
            reason = f"its holder died or did not end it in time, at attempt {attempts}"
            if begun:
                reason = "it was given up by a process that died just then"
            try:
                self._give_up(message, attempts, reason)
                return
            except (OSError, SejError) as error:
                if log.failed or (isinstance(error, OSError) and not of_system(error)):
                    raise
                self.unwritten = error
                self._dead_letter_at = now + _DEAD_LETTER_PAUSE_NS
        wait = exhausted if begun else waits  # the reason of a later letter is this one's
        log.append(wait(message.offset, self._dead_letter_at, attempts, log.state.priority(message.offset)))

    def _is_expired(self, message: Message, now: int) -> bool:
        row = self._log.state.expires.get(message.offset)
        if row is not None and row[0] <= now and row[1:] == (message.timestamp, message_check(message)):
            return True
        at = message.timestamp
        return self._expire_ns is not None and at != NO_TIMESTAMP and at + self._expire_ns <= self._clock.wall_ns()

    def _probe(self, now: int) -> None:
        """Give back what dead processes held."""
        self._probe_at = now + PROBE_NS
        state = self._log.state
        if state.leased:
            dead = self._holders.dead(state.holders())
            if dead:
                self._log.append(*(freed(holder) for holder in sorted(dead)))
                state.schedule.tick(now)
