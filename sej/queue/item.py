"""An item of a queue on a journal: a message, and the lease that was given for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sej.errors import LeaseLostError
from sej.message import Message
from sej.queue.held import QueueItem

if TYPE_CHECKING:
    from sej.queue.journal_queue import JournalQueue

__all__ = ["JournalItem"]


class JournalItem(QueueItem):
    """An item of a :class:`JournalQueue`."""

    __slots__ = ("_epoch",)
    _message: Message
    _queue: JournalQueue

    def __init__(self, queue: JournalQueue, message: Message, attempts: int, epoch: int) -> None:
        """Leased to queue."""
        super().__init__(queue, message, attempts)
        self._epoch = epoch

    @property
    def _data(self) -> bytes:
        return self._message.value

    @property
    def key(self) -> bytes:
        """The message's key."""
        return self._message.key

    def done(self) -> None:
        """It never comes back."""
        queue = self._queue
        queue._end_items(queue._ender.done, self)

    def retry(self, delay_s: float | None = None, reason: str = "") -> None:
        """Give it back, or to the dead letters after max_attempts."""
        self._queue._end_items(self._queue._ender.retry, self, delay_s, reason)

    def give_back(self) -> None:
        """Ready again at once, and not tried."""
        self._queue._end_items(self._queue._ender.give_back, self)

    def fail(self, reason: str = "") -> None:
        """To the dead letters."""
        self._queue._end_items(self._queue._ender.fail, self, reason)

    def extend(self, lease_s: float) -> None:
        """Hold it for lease_s seconds from now on."""
        self._queue._end_items(self._queue._ender.extend, self, lease_s)

    def lost(self) -> LeaseLostError:
        """What is to be raised where the lease is not this item's any more."""
        why = (
            "it was ended here already"
            if self._ended
            else "its lease ran out and was given to somebody else, or the queue was rebuilt"
        )
        return LeaseLostError(
            f"attempt {self._attempts} of this item is not held any more: {why}; extend() longer work in time",
            path=self._queue.path,
            offset=self._message.offset,
        )

    def __repr__(self) -> str:
        """Offset and attempts."""
        return f"<sej.Item offset={self._message.offset} attempts={self._attempts}>"
