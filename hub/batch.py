"""A batch that a client sends: messages as stored in a journal. Those that are stored already are compared.

The store checks a whole batch before it appends anything: whether it is sound, and which part is already stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hub.errors import ConflictError
from hub.naming import Source
from sej.codec import decode_many, encode, measure
from sej.codec.format import MAX_OFFSET, OFFSET, OVERHEAD_SIZE
from sej.errors import DecodeError, InvalidMessageError, OffsetTooSmallError
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory
from sej.message import Message
from sej.writing.writer import Writer


def encoded(messages: Sequence[Message]) -> bytes:
    """Return messages as stored in a journal.

    Raises:
        InvalidMessageError: one does not fit the format.
        TypeError: one has a wrong type.
    """
    for message in messages:
        if not isinstance(message.offset, int):
            raise TypeError(f"an offset must be an int, got {message.offset!r} ({type(message.offset).__name__})")
        if not 0 <= message.offset < MAX_OFFSET:
            raise _beyond(message.offset)
    return b"".join([encode(*message) for message in messages])


class Batch:
    """Messages with consecutive offsets, or their bytes, which are decoded only to compare them.

    Attributes:
        first: the first offset.
        known: after :meth:`look`, the messages below the expected offset.
        size: after :meth:`look`, the bytes of the other messages.
    """

    def __init__(self, given: bytes | bytearray | memoryview | list[Message]) -> None:
        """Take whole messages, at least one.

        Raises:
            DecodeError: the bytes are too few for one message.
            InvalidMessageError: the first offset is beyond the largest one, or a message does not fit the format.
        """
        self.known: Sequence[Message] = ()
        self._messages: list[Message] = []
        """Not encoded yet: the writer encodes all of them together, which is faster."""
        self._data: bytes | bytearray | memoryview = b""
        if isinstance(given, list):
            if _are_consecutive(given):
                self._messages, self.first = given, given[0].offset
                self.size = sum([OVERHEAD_SIZE + len(message.key) + len(message.value) for message in given])
                return
            given = encoded(given)
        if len(given) < OVERHEAD_SIZE:
            raise DecodeError(f"{len(given)} bytes are too few for a message", position=0)
        self.first = OFFSET.unpack_from(given)[0]
        if self.first >= MAX_OFFSET:
            raise _beyond(self.first)
        self.size = len(given)
        self._data = given

    def look(self, due: int | None) -> None:
        """Check the batch, and divide it at the expected offset. If it begins there, the writer's own check is enough.

        Args:
            due: the offset that the hub expects; None if it has no such journal, and none is created for an invalid
                batch.

        Raises:
            DecodeError: the bytes are not whole messages, or (``found``) their offsets are not consecutive.
            InvalidMessageError: their offsets exceed the largest one.
        """
        first = self.first
        if due == first <= MAX_OFFSET - self.size // OVERHEAD_SIZE:
            return
        if self._messages:
            self._data, self._messages = encoded(self._messages), []
        data, size = self._data, len(self._data)
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
        """Append the messages that are not stored yet; the writer is at the expected offset."""
        if self._messages:
            writer.append_messages(self._messages)
        elif self.size:
            writer.end.append_encoded(self._data)


def _are_consecutive(messages: list[Message]) -> bool:
    first: Any = messages[0].offset
    if not isinstance(first, int) or not 0 <= first < MAX_OFFSET:
        return False
    return [message.offset for message in messages] == list(range(first, first + len(messages)))


def _beyond(first: int) -> InvalidMessageError:
    return InvalidMessageError(f"offset must be 0 to {MAX_OFFSET}, and so must the next one, got {first}", offset=first)


def compare(directory: Directory, source: Source, messages: Sequence[Message]) -> tuple[int, int]:
    """Compare messages that were sent again with the stored ones.

    Returns:
        How many are the same, and how many the hub has deleted and therefore accepts unchecked.

    Raises:
        ConflictError: a message differs.
    """
    index = same = 0
    cursor = Cursor(directory, messages[0].offset)
    try:
        while index < len(messages):
            try:
                stored = cursor.read(len(messages) - index)
            except OffsetTooSmallError as error:
                index = error.first_available - messages[0].offset
                cursor.close()
                cursor = Cursor(directory, error.first_available)
                continue
            if not stored:
                break
            index = stored[0].offset - messages[0].offset  # a recorded gap may lie between
            sent = messages[index : index + len(stored)]
            if sent != stored[: len(sent)]:
                at = next(k for k, (mine, theirs) in enumerate(zip(stored, sent, strict=False)) if mine != theirs)
                raise ConflictError(
                    f"{source}: the hub has another message with offset {sent[at].offset}: two machines or journals use"
                    " this name, or the client's was re-created; copy it under another one (--client, --journal)",
                    path=directory.path,
                    offset=sent[at].offset,
                )
            same += len(sent)
            index += len(sent)
    finally:
        cursor.close()
    return same, len(messages) - same
