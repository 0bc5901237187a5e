"""A batch as it comes in, in two shapes: messages, or their bytes as they stand in a journal.

The store looks at a whole batch before it appends anything: is it sound, and what of it is there already?
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hub.errors import GapError
from sej.codec import decode_many, encode, measure
from sej.codec.format import MAX_OFFSET, OFFSET, OVERHEAD_SIZE
from sej.errors import DecodeError, InvalidMessageError
from sej.message import Message
from sej.writing.writer import Writer

__all__ = ["Batch", "Encoded", "Messages"]

_BytesLike = bytes | bytearray | memoryview


class Batch(Protocol):
    """Messages with consecutive offsets, in some shape."""

    first: int
    """The first offset."""
    known: Sequence[Message]
    """After :meth:`look`: the messages below the due offset."""
    size: int
    """After :meth:`look`: the bytes of the others, as they will stand in the journal."""

    def look(self, due: int | None) -> None:
        """Make sure that the batch is sound, and divide it at the offset that is due.

        Args:
            due: what the hub expects; None: it has no such journal, and none is made for what cannot be written.
        """

    def append(self, writer: Writer) -> None:
        """Append what is not known; the writer is at the due offset."""


class Messages:
    """A batch of messages."""

    def __init__(self, messages: Sequence[Message]) -> None:
        """At least one."""
        self.first = messages[0].offset
        if not isinstance(self.first, int):
            raise TypeError(f"an offset must be an int, not {type(self.first).__name__}")
        if not 0 <= self.first <= MAX_OFFSET - len(messages):
            raise _beyond(self.first)
        self.known: Sequence[Message] = ()
        self.size = 0
        self._messages = messages

    def look(self, due: int | None) -> None:
        """As :meth:`Batch.look`.

        Raises:
            GapError: the offsets do not count up by one.
            InvalidMessageError: a message of a new journal does not fit the format.
        """
        messages, first = self._messages, self.first
        if [message.offset for message in messages] != list(range(first, first + len(messages))):
            at = next(index for index, message in enumerate(messages) if message.offset != first + index)
            raise GapError(
                f"message {at} of the batch has offset {messages[at].offset} where {first + at} is due: offsets in a"
                " batch are consecutive; nothing of it was taken",
                expected=first if due is None else due,
                offset=messages[at].offset,
            )
        if due is None:
            for message in messages:
                encode(*message)
        elif due > first:
            self.known, self._messages = messages[: due - first], messages[due - first :]
        self.size = sum([OVERHEAD_SIZE + len(message.key) + len(message.value) for message in self._messages])

    def append(self, writer: Writer) -> None:
        """As :meth:`Batch.append`."""
        if self._messages:
            writer.append_messages(self._messages)


class Encoded:
    """A batch of bytes, not taken apart."""

    def __init__(self, data: _BytesLike) -> None:
        """Whole messages.

        Raises:
            DecodeError: too few bytes for one.
            InvalidMessageError: no journal has such an offset.
        """
        if len(data) < OVERHEAD_SIZE:
            raise DecodeError(f"{len(data)} bytes are no whole message", position=0)
        self.first: int = OFFSET.unpack_from(data)[0]
        if self.first > MAX_OFFSET:
            raise _beyond(self.first)
        self.known: Sequence[Message] = ()
        self.size = len(data)
        self._data = data

    def look(self, due: int | None) -> None:
        """As :meth:`Batch.look`; where the first offset is the due one, the writer's own check is enough.

        Raises:
            DecodeError: these are no whole messages, or (``found``) their offsets do not count up by one.
            InvalidMessageError: their offsets reach beyond what a journal may have.
        """
        data, size, first = self._data, len(self._data), self.first
        if due == first <= MAX_OFFSET - size // OVERHEAD_SIZE:
            return
        run = measure(data, 0, size, first, size)
        if first + run.messages > MAX_OFFSET:
            raise _beyond(first)
        if run.position != size:
            measure(data, run.position, size, first + run.messages, 1)  # raises where it is wrong
            raise DecodeError(f"the last {size - run.position} bytes are no whole message", position=run.position)
        if due is not None and due > first:
            self.known, at = decode_many(data, 0, size, first, due - first)
            self._data = memoryview(data)[at:]
            self.size = size - at

    def append(self, writer: Writer) -> None:
        """As :meth:`Batch.append`."""
        if self.size:
            writer.append_encoded(self._data)


def _beyond(first: int) -> InvalidMessageError:
    return InvalidMessageError(f"offset {first}: 0 to {MAX_OFFSET} is due, for the next one as well", offset=first)
