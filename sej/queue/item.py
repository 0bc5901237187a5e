"""An item of a queue on a journal: a message, and the lease that was given for it."""

from __future__ import annotations

from typing import Protocol

from sej.errors import LeaseLostError
from sej.message import Message
from sej.queue.held import QueueItem
from sej.queue.interface import WorkQueue

__all__ = ["Acks", "JournalItem"]


class Acks(Protocol):
    """What ends an item, under the lock of its queue; each method may raise LeaseLostError."""

    def done(self, item: JournalItem) -> None:
        """It is not delivered again."""

    def retry(self, item: JournalItem, delay_s: float | None, reason: str) -> None:
        """Give it back, or to the dead letters after max_attempts."""

    def give_back(self, item: JournalItem) -> None:
        """Ready again immediately, with the attempts that it had before."""

    def fail(self, item: JournalItem, reason: str) -> None:
        """To the dead letters."""

    def extend(self, item: JournalItem, lease_s: float) -> None:
        """Hold it for lease_s seconds from now on."""


class JournalItem(QueueItem):
    """An item of a :class:`~sej.queue.journal_queue.JournalQueue`."""

    __slots__ = ("_acks", "epoch")
    message: Message

    def __init__(self, queue: WorkQueue, acks: Acks, message: Message, attempts: int, epoch: int) -> None:
        """Leased to queue."""
        super().__init__(queue, message, attempts)
        self._acks = acks
        self.epoch = epoch

    @property
    def _data(self) -> bytes:
        return self.message.value

    @property
    def key(self) -> bytes:
        """The message's key."""
        return self.message.key

    def done(self) -> None:
        """It is not delivered again."""
        self._acks.done(self)

    def retry(self, delay_s: float | None = None, reason: str = "") -> None:
        """Give it back, or to the dead letters after max_attempts."""
        self._acks.retry(self, delay_s, reason)

    def give_back(self) -> None:
        """Ready again immediately, with the attempts that it had before."""
        self._acks.give_back(self)

    def fail(self, reason: str = "") -> None:
        """To the dead letters."""
        self._acks.fail(self, reason)

    def extend(self, lease_s: float) -> None:
        """Hold it for lease_s seconds from now on."""
        self._acks.extend(self, lease_s)

    def lost(self) -> LeaseLostError:
        """The error to raise if another worker may have the item."""
        why = (
            "it was ended here already"
            if self.ended
            else "its lease ran out and was given to somebody else, or the queue was rebuilt"
        )
        return LeaseLostError(
            f"attempt {self.attempts} of this item is not held any more: {why}; extend() longer work in time",
            path=self._queue.path,
            offset=self.message.offset,
        )

    def __repr__(self) -> str:
        """Offset and attempts."""
        return f"<sej.Item offset={self.message.offset} attempts={self.attempts}>"
