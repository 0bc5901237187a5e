"""Ending items: done, given back, given up, or held for longer. Everything runs under the queue's lock, caught up.

A lease is fenced: what is ended must still be leased to this slot, as the attempt that the item was handed out for, in
the epoch of that hand-out. Whatever else is true, the item is somebody else's, and a LeaseLostError that is returned
says so: an exception out of here makes the queue read its log again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import NamedTuple

from sej.checks import POSITIVE_SECONDS, SECONDS, TEXT, a
from sej.errors import LeaseLostError
from sej.message import Message
from sej.queue.clock import Clock, span_ns
from sej.queue.interface import Item
from sej.queue.item import JournalItem
from sej.queue.liveness import Slots
from sej.queue.log import QueueLog
from sej.queue.records import done, extended, stamp_of, waits
from sej.queue.replay import one_done

__all__ = ["Backoff", "Ender"]


class Backoff(NamedTuple):
    """How long an item waits after a failed attempt.

    Attributes:
        first_s: after the first attempt; doubled after each further one.
        longest_s: at most.
    """

    first_s: float = 1.0
    longest_s: float = 600.0

    def after(self, attempts: int) -> float:
        """Seconds, with jitter: between a half and the whole, so that what failed together does not return together."""
        return min(self.first_s * 2.0 ** min(attempts - 1, 60), self.longest_s) * random.uniform(0.5, 1.0)


class Ender:
    """The ending side of one open queue."""

    def __init__(
        self,
        log: QueueLog,
        slots: Slots,
        clock: Clock,
        bury: Callable[[Message, int, str], None],
        backoff: Backoff,
        *,
        max_attempts: int,
    ) -> None:
        """End what the slot holds.

        Args:
            log: the state.
            slots: whose leases they are.
            clock: the clocks.
            bury: puts a message among the dead letters, with its attempts and a reason.
            backoff: how long ``retry()`` waits.
            max_attempts: after so many hand-outs an item is buried instead.
        """
        self._log = log
        self._slots = slots
        self._clock = clock
        self._bury = bury
        self._backoff = backoff
        self._max_attempts = max_attempts

    def done(self, item: JournalItem) -> LeaseLostError | None:
        """It never comes back."""
        if not self._holds(item):
            return item.lost()
        message = item._message
        self._log.append(one_done(message.offset, message.timestamp & 0xFFFFFFFF))
        item._ended = True
        return None

    def done_many(self, items: Iterable[Item]) -> LeaseLostError | None:
        """End those that can be ended with one write; returns what is to be raised for the first of the others."""
        lost: LeaseLostError | None = None
        good: list[JournalItem] = []
        for item in items:
            a(JournalItem)("items", item)
            assert isinstance(item, JournalItem)
            if self._holds(item):
                good.append(item)
            else:
                lost = lost or item.lost()
        if good:
            self._log.append(*_runs(sorted([item._message for item in good])))
        for item in good:
            item._ended = True
        return lost

    def retry(self, item: JournalItem, delay_s: float | None, reason: str) -> LeaseLostError | None:
        """Give it back, or to the dead letters after max_attempts."""
        if delay_s is not None:
            SECONDS("delay_s", delay_s)
        TEXT("reason", reason)
        if item._attempts >= self._max_attempts:
            return self.fail(item, reason or f"given back at attempt {item._attempts}")
        if not self._holds(item):
            return item.lost()
        wait = self._backoff.after(item._attempts) if delay_s is None else delay_s
        at = self._clock.boot_ns() + span_ns(wait) if wait else 0
        offset = item._message.offset
        self._log.append(waits(offset, at, item._attempts, self._log.state.priority(offset)))
        item._ended = True
        return None

    def give_back(self, item: JournalItem) -> LeaseLostError | None:
        """It was handed out to nobody: ready again, with the attempts that it had before."""
        if not self._holds(item):
            return item.lost()
        offset = item._message.offset
        self._log.append(waits(offset, 0, item._attempts - 1, self._log.state.priority(offset)))
        item._ended = True
        return None

    def fail(self, item: JournalItem, reason: str) -> LeaseLostError | None:
        """To the dead letters."""
        TEXT("reason", reason)
        if not self._holds(item):
            return item.lost()
        self._bury(item._message, item._attempts, reason)
        item._ended = True
        return None

    def extend(self, item: JournalItem, lease_s: float) -> LeaseLostError | None:
        """Hold it for lease_s seconds from now on."""
        POSITIVE_SECONDS("lease_s", lease_s)
        if not self._holds(item):
            return item.lost()
        deadline = self._clock.boot_ns() + span_ns(lease_s)
        self._log.append(extended(item._message.offset, deadline, item._attempts))
        return None

    def _holds(self, item: JournalItem) -> bool:
        log = self._log
        there = log.state.leased.get(item._message.offset)
        return (
            there is not None
            and there.attempt == item._attempts
            and there.holder == self._slots.mine
            and item._epoch == log.epoch
            and not item._ended
        )


def _runs(messages: list[Message]) -> list[bytes]:
    """DONE records for sorted messages."""
    found = []
    last = messages[0]
    start = stop = last.offset
    for message in messages:
        offset = message.offset
        if offset > stop:
            found.append(done(start, stop, stamp_of(last.timestamp)))
            start = offset
        stop, last = offset + 1, message
    found.append(done(start, stop, stamp_of(last.timestamp)))
    return found
