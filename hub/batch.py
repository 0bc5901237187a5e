"""A batch that a client sends, in two forms: messages, or their bytes as stored in a journal.

The store checks a whole batch before it appends anything: whether it is sound, and which part is already stored.
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

_BytesLike = bytes | bytearray | memoryview


class Batch(Protocol):
    """Messages with consecutive offsets, in either form."""

    first: int
    """The first offset."""
    known: Sequence[Message]
    """After :meth:`look`: the messages below the expected offset."""
    size: int
    """After :meth:`look`: the bytes of the other messages, as stored in the journal."""

    def look(self, due: int | None) -> None:
        """Check the batch, and divide it at the expected offset.

        Args:
            due: the offset that the hub expects; None if it has no such journal, and none is created for an invalid
                batch.
        """

    def append(self, writer: Writer) -> None:
        """Append the messages that are not stored yet; the writer is at the expected offset."""


class Messages:
    """A batch of messages."""

    def __init__(self, messages: Sequence[Message]) -> None:
        """Take at least one message."""
        self.first = messages[0].offset
        if not isinstance(self.first, int):
            raise TypeError(f"an offset must be an int, got {self.first!r} ({type(self.first).__name__})")
        if not 0 <= self.first <= MAX_OFFSET - len(messages):
            raise _beyond(self.first)
        self.known: Sequence[Message] = ()
        self.size = 0
        self._messages = messages

    def look(self, due: int | None) -> None:
        """Check like :meth:`Batch.look`.

        Raises:
            GapError: the offsets are not consecutive.
            InvalidMessageError: a message of a new journal does not fit the format.
        """
        messages, first = self._messages, self.first
        if [message.offset for message in messages] != list(range(first, first + len(messages))):
            at = next(index for index, message in enumerate(messages) if message.offset != first + index)
            raise GapError(
                f"message {at} of the batch must have offset {first + at}, got {messages[at].offset}; the batch was"
                " refused",
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
        """Append like :meth:`Batch.append`."""
        if self._messages:
            writer.append_messages(self._messages)


class Encoded:
    """A batch of encoded messages, which are not decoded."""

    def __init__(self, data: _BytesLike) -> None:
        """Take whole messages.

        Raises:
            DecodeError: the bytes are too few for one message.
            InvalidMessageError: the first offset is beyond the largest one.
        """
        if len(data) < OVERHEAD_SIZE:
            raise DecodeError(f"{len(data)} bytes are too few for a message", position=0)
        self.first: int = OFFSET.unpack_from(data)[0]
        if self.first >= MAX_OFFSET:
            raise _beyond(self.first)
        self.known: Sequence[Message] = ()
        self.size = len(data)
        self._data = data

    def look(self, due: int | None) -> None:
        """Check like :meth:`Batch.look`; if the first offset is the expected one, the writer's own check is enough.

        Raises:
            DecodeError: the bytes are not whole messages, or (``found``) their offsets are not consecutive.
            InvalidMessageError: their offsets exceed the largest one.
        """
        data, size, first = self._data, len(self._data), self.first
        if due == first <= MAX_OFFSET - size // OVERHEAD_SIZE:
            return
        run = measure(data, 0, size, first, size)
        if run.position != size:
            if first + run.messages == MAX_OFFSET:
                raise _beyond(first)
            measure(data, run.position, size, first + run.messages, 1)  # raises DecodeError for wrong bytes
            raise DecodeError(f"the last {size - run.position} bytes are not a whole message", position=run.position)
        if due is not None and due > first:
            self.known, at = decode_many(data, 0, size, first, due - first)
            self._data = memoryview(data)[at:]
            self.size = size - at

    def append(self, writer: Writer) -> None:
        """Append like :meth:`Batch.append`."""
        if self.size:
            writer.tail.append_encoded(self._data)


def _beyond(first: int) -> InvalidMessageError:
    return InvalidMessageError(f"offset must be 0 to {MAX_OFFSET}, and so must the next one, got {first}", offset=first)
