"""An item of a queue on a journal: a message and its lease; and how it is ended.

A lease is fenced: an item can be ended only if it is still leased to this queue, for the same attempt, in the epoch of
that delivery. Otherwise another worker may have it. This is checked under the queue's lock, but raised without it: an
exception under the lock makes the queue read its log again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sej.checks import POSITIVE_SECONDS, SECONDS, instance_of, reason_of
from sej.durations import Seconds, seconds
from sej.errors import LeaseLostError
from sej.message import Message
from sej.queue.core import QueueCore
from sej.queue.interface.queue import Item, WorkQueue
from sej.queue.log.format import DONE, EXTEND, NO_RESULT, RESULT_KEPT, WAIT, one_done, reason_kept, stamp_of
from sej.system.clock import span_ns


class JournalItem(Item):
    """An item of a :class:`~sej.queue.journal_queue.JournalQueue`."""

    __slots__ = ("_core", "_headers", "epoch")
    message: Message

    def __init__(
        self,
        queue: WorkQueue,
        core: QueueCore,
        message: Message,
        attempts: int,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Create an item that is leased to ``queue``."""
        self._queue, self._core, self._headers = queue, core, headers
        self.message, self.attempts, self.ended = message, attempts, False
        self.epoch = core.log.epoch

    @property
    def key(self) -> bytes:
        """The message's key."""
        return self.message.key

    @property
    def headers(self) -> dict[str, str]:
        """The headers that were put, a new dict at each access; empty if there are none."""
        return dict(self._headers or {})

    def done(self, result: Any = None) -> None:
        """Mark the item done: it is not delivered again; see :meth:`sej.Item.done`."""
        data = None if result is None else self._queue.result_data(result)
        if not self._core.end(self._done, data):
            raise self.lost()

    def retry(self, delay_s: Seconds | None = None, reason: str | BaseException = "") -> None:
        """Return the item to the queue, or to the dead letters after max_attempts."""
        delay_s = seconds("delay_s", delay_s)
        if delay_s is not None:
            SECONDS("delay_s", delay_s)
        self._if_held(self._retry, delay_s, reason_of(reason))

    def give_back(self) -> None:
        """Return the item to the queue immediately, with its previous number of attempts."""
        self._if_held(self._wait, self.attempts - 1)

    def fail(self, reason: str | BaseException = "") -> None:
        """Write the item to the dead letters."""
        self._if_held(self._fail, reason_of(reason))

    def extend(self, lease_s: Seconds) -> None:
        """Extend the lease to ``lease_s`` seconds from now."""
        lease_s = seconds("lease_s", lease_s)
        POSITIVE_SECONDS("lease_s", lease_s)
        self._if_held(self._extend, lease_s)

    def lost(self) -> LeaseLostError:
        """Return the error to raise if another worker may have the item."""
        why = (
            "it was ended here already"
            if self.ended
            else "its lease ran out and another worker has it, or the queue was rebuilt; extend() longer work in time"
        )
        return LeaseLostError(
            f"attempt {self.attempts} of this item is no longer held: {why}",
            path=self._queue.path,
            offset=self.message.offset,
        )

    def __repr__(self) -> str:
        """Show offset and attempts."""
        return f"<sej.Item offset={self.message.offset} attempts={self.attempts}>"

    # --- under the lock

    def _if_held(self, act: Callable[..., None], *arguments: object) -> None:
        if not self._core.end(self._act, act, arguments):
            raise self.lost()

    def _act(self, act: Callable[..., None], arguments: tuple[object, ...]) -> bool:
        if not self.is_held():
            return False
        act(*arguments)
        return True

    def is_held(self) -> bool:
        """Return whether no other worker may have the item."""
        log = self._core.log
        there = log.state.leased.get(self.message.offset)
        return (
            there is not None
            and there.attempt == self.attempts
            and there.holder == self._core.holders.mine
            and self.epoch == log.epoch
            and not self.ended
        )

    def _done(self, result: bytes | None) -> bool:
        if not self.is_held():
            return False
        log, message = self._core.log, self.message
        offset, stamp = message.offset, message.timestamp & 0xFFFFFFFF
        if log.state.keeps:  # before the record that ends the item: a crash between them delivers it again
            log.append(log.result(message, NO_RESULT if result is None else RESULT_KEPT, result or b""))
        log.write(one_done(offset, stamp))
        log.state.end(offset, offset + 1, stamp)
        self.ended = True
        return True

    def _retry(self, delay_s: float | None, reason: str) -> None:
        core, offset, attempts = self._core, self.message.offset, self.attempts
        if attempts >= core.log.state.max_attempts:
            self._fail(reason or core.log.state.with_reason(offset, f"returned at attempt {attempts}"))
            return
        wait_s = core.delivery.backoff.after(attempts) if delay_s is None else delay_s
        at = core.clock.boot_ns() + span_ns(wait_s) if wait_s else 0
        if at:
            core.log.keep_clock()
        self._wait(attempts, at, reason)

    def _wait(self, attempts: int, ready_at_ns: int = 0, reason: str = "") -> None:
        log, offset = self._core.log, self.message.offset
        log.append(reason_kept(offset, reason), WAIT(offset, ready_at_ns, attempts, log.state.priority(offset)))
        self.ended = True

    def _fail(self, reason: str) -> None:
        if reason:  # for the letter, if this process dies before it has written it
            self._core.log.append(reason_kept(self.message.offset, reason))
        self._core.letters.give_up(self.message, self.attempts, reason)
        self.ended = True

    def _extend(self, lease_s: float) -> None:
        deadline = self._core.clock.boot_ns() + span_ns(lease_s)
        self._core.log.append(EXTEND(self.message.offset, deadline, self.attempts))


def end_all(core: QueueCore, items: list[Item]) -> LeaseLostError | None:
    """End as many items as possible with one write, under the lock; return the error of the first of the others."""
    lost: LeaseLostError | None = None
    good: list[JournalItem] = []
    check = instance_of(JournalItem)
    for item in items:
        check("items", item)
        assert isinstance(item, JournalItem)
        if item.is_held():
            good.append(item)
        else:
            lost = lost or item.lost()
    if good:
        found = [core.log.result(item.message, NO_RESULT) for item in good] if core.log.state.keeps else ()
        core.log.append(*found, *_runs(sorted([item.message for item in good])))
    for item in good:
        item.ended = True
    return lost


def _runs(messages: list[Message]) -> list[bytes]:
    """Return DONE records for sorted messages."""
    found = []
    start, last = messages[0].offset, messages[0]
    for message in messages[1:]:
        if message.offset > last.offset + 1:
            found.append(DONE(start, last.offset + 1, stamp_of(last.timestamp)))
            start = message.offset
        last = message
    found.append(DONE(start, last.offset + 1, stamp_of(last.timestamp)))
    return found
