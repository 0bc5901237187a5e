"""An item of a queue on a journal: a message and its lease."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from sej.checks import reason_of
from sej.durations import Seconds, seconds
from sej.errors import LeaseLostError
from sej.message import Message
from sej.queue.interface.held import QueueItem
from sej.queue.interface.queue import WorkQueue


class Acks(Protocol):
    """Ends an item under the lock of its queue; each method may raise LeaseLostError."""

    def done(self, item: JournalItem) -> None:
        """Mark the item done: it is not delivered again."""

    def retry(self, item: JournalItem, delay_s: float | None, reason: str) -> None:
        """Return the item to the queue, or to the dead letters after max_attempts."""

    def give_back(self, item: JournalItem) -> None:
        """Return the item to the queue immediately, with its previous number of attempts."""

    def fail(self, item: JournalItem, reason: str) -> None:
        """Write the item to the dead letters."""

    def extend(self, item: JournalItem, lease_s: float) -> None:
        """Extend the lease to ``lease_s`` seconds from now."""


class JournalItem(QueueItem):
    """An item of a :class:`~sej.queue.journal_queue.JournalQueue`."""

    __slots__ = ("_acks", "_headers", "epoch")
    message: Message

    def __init__(
        self,
        queue: WorkQueue,
        acks: Acks,
        message: Message,
        attempts: int,
        epoch: int,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Create an item that is leased to ``queue``."""
        super().__init__(queue, message, attempts)
        self._acks = acks
        self.epoch = epoch
        self._headers = headers

    @property
    def _data(self) -> bytes:
        return self.message.value

    @property
    def key(self) -> bytes:
        """The message's key."""
        return self.message.key

    @property
    def headers(self) -> dict[str, str]:
        """The headers that were put, a new dict at each access; empty if there are none."""
        return dict(self._headers or {})

    def done(self) -> None:
        """Mark the item done: it is not delivered again."""
        self._acks.done(self)

    def retry(self, delay_s: Seconds | None = None, reason: str | BaseException = "") -> None:
        """Return the item to the queue, or to the dead letters after max_attempts."""
        self._acks.retry(self, seconds("delay_s", delay_s), reason_of(reason))

    def give_back(self) -> None:
        """Return the item to the queue immediately, with its previous number of attempts."""
        self._acks.give_back(self)

    def fail(self, reason: str | BaseException = "") -> None:
        """Write the item to the dead letters."""
        self._acks.fail(self, reason_of(reason))

    def extend(self, lease_s: Seconds) -> None:
        """Extend the lease to ``lease_s`` seconds from now."""
        self._acks.extend(self, seconds("lease_s", lease_s))

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
