"""An item of a queue on a journal: a message, and the lease that was given for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sej.errors import InvalidMessageError, LeaseLostError
from sej.message import Message
from sej.work import Item

if TYPE_CHECKING:
    from sej.queue import JournalQueue

__all__ = ["JournalItem"]


class JournalItem(Item):
    """An item of a :class:`JournalQueue`."""

    __slots__ = ("_attempts", "_ended", "_epoch", "_message", "_queue")

    def __init__(self, queue: JournalQueue, message: Message, attempts: int, epoch: int) -> None:
        """Leased to queue."""
        self._queue = queue
        self._message = message
        self._attempts = attempts
        self._epoch = epoch
        self._ended = False

    @property
    def value(self) -> Any:
        """What was put.

        Raises:
            InvalidMessageError: the serializer cannot read it.
        """
        serializer = self._queue._serializer
        if serializer is None:
            return self._message.value
        try:
            return serializer.decode(self._message.value)
        except Exception as error:
            raise InvalidMessageError(
                f"{serializer.name} cannot read this value ({error}): was it put by other means? fail() the item",
                path=self._queue.path,
                offset=self._message.offset,
            ) from error

    @property
    def key(self) -> bytes:
        """The message's key."""
        return self._message.key

    @property
    def message(self) -> Message:
        """The message as it stands in the journal."""
        return self._message

    @property
    def attempts(self) -> int:
        """How often it was handed out, from 1."""
        return self._attempts

    @property
    def ended(self) -> bool:
        """Whether it was ended here."""
        return self._ended

    def done(self) -> None:
        """It never comes back."""
        self._queue._done_one(self)

    def retry(self, delay_s: float | None = None, reason: str = "") -> None:
        """Give it back, or to the dead letters after max_attempts."""
        self._queue._retry(self, delay_s, reason)

    def fail(self, reason: str = "") -> None:
        """To the dead letters."""
        self._queue._fail_item(self, reason)

    def extend(self, lease_s: float) -> None:
        """Hold it for lease_s seconds from now on."""
        self._queue._extend(self, lease_s)

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
