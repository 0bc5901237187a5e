"""End items: mark them done, return them to the queue, give them up, or extend their lease.

A lease is fenced: an item can be ended only if it is still leased to this queue, for the same attempt, in the epoch of
that delivery. Otherwise another worker may have it. This is checked under the queue's lock, but raised without it: an
exception under the lock makes the queue read its log again.
"""

from __future__ import annotations

from collections.abc import Callable

from sej.checks import POSITIVE_SECONDS, SECONDS, a
from sej.errors import LeaseLostError
from sej.message import Message
from sej.queue.disk.lock import Holders
from sej.queue.disk.log import QueueLog
from sej.queue.interface.item import Item
from sej.queue.interface.values import Backoff
from sej.queue.items.item import JournalItem
from sej.queue.log.format import DONE, EXTEND, WAIT, one_done, reason_kept, stamp_of
from sej.system.clock import Clock, span_ns


class Acknowledger:
    """The acknowledging side of one open queue: its items call it."""

    def __init__(
        self,
        log: QueueLog,
        holders: Holders,
        clock: Clock,
        give_up: Callable[[Message, int, str], None],
        backoff: Backoff,
        end: Callable[..., LeaseLostError | None],
    ) -> None:
        """End the items that this queue holds.

        Args:
            log: the state.
            holders: the leases of this queue.
            clock: the clocks.
            give_up: writes a message to the dead letters, with its attempts and a reason.
            backoff: how long ``retry()`` waits.
            end: calls a function with its arguments under the queue's lock, with the log read, and synced if required.
        """
        self._log = log
        self._holders = holders
        self._clock = clock
        self._give_up = give_up
        self._backoff = backoff
        self._end = end

    # --- called by items, without the lock

    def done(self, item: JournalItem) -> None:
        """Mark the item done: it is not delivered again."""
        _raise(self._end(self._done, item))

    def done_many(self, items: list[Item]) -> None:
        """End as many as possible with one write, then raise for the first of the others."""
        _raise(self._end(self._done_many, items))

    def retry(self, item: JournalItem, delay_s: float | None, reason: str) -> None:
        """Return the item to the queue, or to the dead letters after max_attempts."""
        _raise(self._end(self._retry, item, delay_s, reason))

    def give_back(self, item: JournalItem) -> None:
        """Return the item to the queue immediately, with its previous number of attempts."""
        _raise(self._end(self._give_back, item))

    def fail(self, item: JournalItem, reason: str) -> None:
        """Write the item to the dead letters."""
        _raise(self._end(self._fail, item, reason))

    def extend(self, item: JournalItem, lease_s: float) -> None:
        """Extend the lease to ``lease_s`` seconds from now."""
        _raise(self._end(self._extend, item, lease_s))

    # --- under the lock

    def _done(self, item: JournalItem) -> LeaseLostError | None:
        if not self._holds(item):
            return item.lost()
        message = item.message
        self._log.append(one_done(message.offset, message.timestamp & 0xFFFFFFFF))
        item.ended = True
        return None

    def _done_many(self, items: list[Item]) -> LeaseLostError | None:
        lost: LeaseLostError | None = None
        good: list[JournalItem] = []
        check = a(JournalItem)
        for item in items:
            check("items", item)
            assert isinstance(item, JournalItem)
            if self._holds(item):
                good.append(item)
            else:
                lost = lost or item.lost()
        if good:
            self._log.append(*_runs(sorted([item.message for item in good])))
        for item in good:
            item.ended = True
        return lost

    def _retry(self, item: JournalItem, delay_s: float | None, reason: str) -> LeaseLostError | None:
        if delay_s is not None:
            SECONDS("delay_s", delay_s)
        if item.attempts >= self._log.state.max_attempts:
            returned = self._log.state.with_reason(item.message.offset, f"returned at attempt {item.attempts}")
            return self._fail(item, reason or returned)
        if not self._holds(item):
            return item.lost()
        wait_s = self._backoff.after(item.attempts) if delay_s is None else delay_s
        at = self._clock.boot_ns() + span_ns(wait_s) if wait_s else 0
        offset = item.message.offset
        if at:
            self._log.keep_clock()
        wait = WAIT(offset, at, item.attempts, self._log.state.priority(offset))
        self._log.append(reason_kept(offset, reason), wait)
        item.ended = True
        return None

    def _give_back(self, item: JournalItem) -> LeaseLostError | None:
        if not self._holds(item):
            return item.lost()
        offset = item.message.offset
        self._log.append(WAIT(offset, 0, item.attempts - 1, self._log.state.priority(offset)))
        item.ended = True
        return None

    def _fail(self, item: JournalItem, reason: str) -> LeaseLostError | None:
        if not self._holds(item):
            return item.lost()
        if reason:  # for the letter, if this process dies before it has written it
            self._log.append(reason_kept(item.message.offset, reason))
        self._give_up(item.message, item.attempts, reason)
        item.ended = True
        return None

    def _extend(self, item: JournalItem, lease_s: float) -> LeaseLostError | None:
        POSITIVE_SECONDS("lease_s", lease_s)
        if not self._holds(item):
            return item.lost()
        deadline = self._clock.boot_ns() + span_ns(lease_s)
        self._log.append(EXTEND(item.message.offset, deadline, item.attempts))
        return None

    def _holds(self, item: JournalItem) -> bool:
        log = self._log
        there = log.state.leased.get(item.message.offset)
        return (
            there is not None
            and there.attempt == item.attempts
            and there.holder == self._holders.mine
            and item.epoch == log.epoch
            and not item.ended
        )


def _raise(lost: LeaseLostError | None) -> None:
    """Raise for a lost lease. It is returned under the lock and raised here, so that the log is not read again."""
    if lost is not None:
        raise lost


def _runs(messages: list[Message]) -> list[bytes]:
    """Return DONE records for sorted messages."""
    found = []
    last = messages[0]
    start = stop = last.offset
    for message in messages:
        offset = message.offset
        if offset > stop:
            found.append(_run(start, stop, last))
            start = offset
        stop, last = offset + 1, message
    found.append(_run(start, stop, last))
    return found


def _run(start: int, stop: int, last: Message) -> bytes:
    stamp = stamp_of(last.timestamp)
    return one_done(start, stamp) if stop - start == 1 else DONE(start, stop, stamp)
