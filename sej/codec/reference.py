"""The codec in pure Python: the reference for the compiled twin.

Bytes in, values out, no I/O. Every reader has three outcomes: a value; "need more bytes" (``None``, or a list that ends
early); a :class:`DecodeError`. Positions count from the start of the passed bytes, ``end`` is where they end, and no
length is trusted before it was checked against both.

:class:`Buffer` is the writer's part: messages are encoded into memory that the writer drains to its file.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from sej.codec.arguments import as_bytes, check_message
from sej.codec.format import (
    HEAD,
    HEAD_SIZE,
    INT32,
    INT32_SIZE,
    MAX_KEY_SIZE,
    MAX_MESSAGE_SIZE,
    MAX_OFFSET,
    NO_TIMESTAMP,
    OFFSET,
    OFFSET_SIZE,
    OVERHEAD_SIZE,
)
from sej.errors import DecodeError
from sej.message import BytesLike, Message

_type = type


class Run(NamedTuple):
    """A run of good messages: their number, their end, and their times (ns; meaningless if there are none)."""

    messages: int
    position: int
    first_timestamp: int
    last_timestamp: int
    newest_timestamp: int


class Candidate(NamedTuple):
    """A well-formed message found after damage: where it starts and ends, and its offset."""

    position: int
    end: int
    offset: int


class Columns(NamedTuple):
    """Messages as columns, in the machine's byte order, ready for Arrow.

    Attributes:
        messages: the number of messages.
        position: where the next one starts.
        timestamps: int64 each.
        types: int32 each.
        key_ends: messages + 1 int32, from 0; message i has key_data[key_ends[i]:key_ends[i + 1]]. Empty if the keys
            were not requested.
        key_data: all keys, one after the other.
        value_ends: as key_ends.
        value_data: as key_data.
    """

    messages: int
    position: int
    timestamps: bytes
    types: bytes
    key_ends: bytes
    key_data: bytes
    value_ends: bytes
    value_data: bytes


def encode(offset: int, timestamp: int, type: int, key: BytesLike, value: BytesLike) -> bytes:
    """Return one message as stored in a segment.

    Raises:
        InvalidMessageError: a field is out of its range.
        TypeError: key or value is not bytes, or a number is not an int.

    Example:
        >>> encode(1, 2, 3, b"k", b"v").hex(" ", 4)
        '00000000 00000001 00000000 00000002 03016b00 00000176 0000001c'
    """
    key = as_bytes(key, "key")
    value = as_bytes(value, "value")
    check_message(key, value, type, timestamp)
    size = OVERHEAD_SIZE + len(key) + len(value)
    return b"".join(
        (HEAD.pack(offset, timestamp, type, len(key)), key, INT32.pack(len(value)), value, INT32.pack(size))
    )


def message_size(data: BytesLike, position: int, end: int) -> int | None:
    """Return the size in the lengths of the message at position, in bytes; None if the lengths are incomplete.

    Raises:
        DecodeError: the lengths cannot be those of a message.
    """
    if end - position < HEAD_SIZE:
        return None
    key_size = HEAD.unpack_from(data, position)[3]
    if key_size < 0:
        raise DecodeError(f"the key size must be 0 to {MAX_KEY_SIZE}, got {key_size}", position=position)
    at = position + HEAD_SIZE + key_size
    if end - at < INT32_SIZE:
        return None
    value_size = INT32.unpack_from(data, at)[0]
    size: int = OVERHEAD_SIZE + key_size + value_size
    if value_size < 0 or size > MAX_MESSAGE_SIZE:
        raise DecodeError(
            f"the value size must be 0 to {MAX_MESSAGE_SIZE - OVERHEAD_SIZE - key_size}, got {value_size}",
            position=position,
        )
    return size


def decode(data: BytesLike, position: int, end: int) -> tuple[Message, int] | None:
    """Return the message at position and where it ends; None if it is incomplete.

    Raises:
        DecodeError: the bytes are not a message.
    """
    size = message_size(data, position, end)
    if size is None or end - position < size:
        return None
    offset, timestamp, type, key_size = HEAD.unpack_from(data, position)
    trailer = INT32.unpack_from(data, position + size - INT32_SIZE)[0]
    if trailer != size:
        raise DecodeError(f"the size field at the message's end must be {size}, got {trailer}", position=position)
    key_end = position + HEAD_SIZE + key_size
    key = bytes(data[position + HEAD_SIZE : key_end])
    value = bytes(data[key_end + INT32_SIZE : position + size - INT32_SIZE])
    return Message(offset, timestamp, type, key, value), position + size


def decode_many(data: BytesLike, position: int, end: int, due: int, limit: int) -> tuple[list[Message], int]:
    """Return the messages due, due + 1, ... from position on, at most limit, and where the next one starts.

    The list ends early before a message that is incomplete, and before a wrong one: the call that starts there raises.

    Raises:
        DecodeError: the first message is not a message, or (``found``) has another offset.
    """
    messages: list[Message] = []
    add = messages.append
    head, int32, make = HEAD.unpack_from, INT32.unpack_from, Message._make
    most = min(limit, MAX_OFFSET - due)  # the largest offset is only expected, never used
    while len(messages) < most and end - position >= OVERHEAD_SIZE:
        offset, timestamp, type, key_size = head(data, position)
        key_end = position + HEAD_SIZE + key_size
        if key_size < 0 or key_end > end - 8:
            break
        value_end = key_end + INT32_SIZE + int32(data, key_end)[0]
        if value_end < key_end + INT32_SIZE or value_end > end - INT32_SIZE or offset != due:
            break
        following = value_end + INT32_SIZE
        if int32(data, value_end)[0] != following - position:
            break
        key = data[position + HEAD_SIZE : key_end]
        value = data[key_end + INT32_SIZE : value_end]
        if _type(data) is not bytes:
            key, value = bytes(key), bytes(value)
        add(make((offset, timestamp, type, key, value)))
        position = following
        due += 1
    if not messages and limit > 0:
        _check_due(data, position, end, due)
    return messages, position


def measure(data: BytesLike, position: int, end: int, due: int, limit: int) -> Run:
    """Return the run of good messages from position on, up to the first that ends ``limit`` or more bytes further.

    Raises:
        DecodeError: as :func:`decode_many`, if the first message is wrong.
    """
    start, count = position, 0
    first = last = newest = NO_TIMESTAMP
    while position - start < limit and end - position >= OVERHEAD_SIZE and due + count < MAX_OFFSET:
        offset, timestamp, _, key_size = HEAD.unpack_from(data, position)
        key_end = position + HEAD_SIZE + key_size
        if key_size < 0 or key_end > end - 8 or offset != due + count:
            break
        value_end = key_end + INT32_SIZE + INT32.unpack_from(data, key_end)[0]
        if value_end < key_end + INT32_SIZE or value_end > end - INT32_SIZE:
            break
        if INT32.unpack_from(data, value_end)[0] != value_end + INT32_SIZE - position:
            break
        if not count:
            first = newest = timestamp
        last = timestamp
        newest = max(newest, timestamp)
        position = value_end + INT32_SIZE
        count += 1
    if not count and limit > 0:
        _check_due(data, position, end, due)
    return Run(count, position, first, last, newest)


def walk(
    data: BytesLike, position: int, end: int, due: int, offsets: memoryview, timestamps: memoryview, sizes: memoryview
) -> tuple[int, int]:
    """Fill three arrays with the offset, timestamp (ns) and size (bytes) of the messages from position on.

    Args:
        data: the bytes.
        position: where the first message starts.
        end: where the bytes end.
        due: the offset of the first.
        offsets: int64, writable; its length is the most that is filled.
        timestamps: int64, as long.
        sizes: int32, as long.

    Returns:
        How many were filled, and where the next message starts.

    Raises:
        DecodeError: as :func:`decode_many`.
    """
    count = 0
    for run in islice(_one_by_one(data, position, end, due), min(len(offsets), len(timestamps), len(sizes))):
        offsets[count] = due + count
        timestamps[count] = run.first_timestamp
        sizes[count] = run.position - position
        position = run.position
        count += 1
    return count, position


def renumber(data: bytearray, position: int, end: int, due: int, first: int) -> tuple[int, int]:
    """Overwrite the offsets of the messages from position on, in place.

    Args:
        data: the bytes.
        position: where the first message starts.
        end: where the bytes end.
        due: the offset of the first; the others follow it.
        first: the new offset of the first; the others follow it.

    Returns:
        How many messages there were, and where the next message starts.

    Raises:
        DecodeError: as :func:`decode_many`; nothing was changed.
    """
    count = 0
    for run in _one_by_one(data, position, end, due):
        OFFSET.pack_into(data, position, first + count)
        position = run.position
        count += 1
    return count, position


def columns(
    data: BytesLike, position: int, end: int, due: int, limit: int, keys: bool = True, values: bool = True
) -> Columns:
    """Return at most limit messages from position on, as columns.

    Without ``keys`` or ``values`` these are not copied: both fields of that column are empty.

    Raises:
        DecodeError: as :func:`decode_many`.
    """
    from array import array
    from itertools import accumulate

    def joined(parts: list[bytes]) -> tuple[bytes, bytes]:
        return array("i", accumulate(map(len, parts), initial=0)).tobytes(), b"".join(parts)

    messages, position = decode_many(data, position, end, due, limit)
    return Columns(
        len(messages),
        position,
        array("q", [message.timestamp for message in messages]).tobytes(),
        array("i", [message.type for message in messages]).tobytes(),
        *(joined([message.key for message in messages]) if keys else (b"", b"")),
        *(joined([message.value for message in messages]) if values else (b"", b"")),
    )


def find_candidate(data: BytesLike, position: int, end: int, due: int, damage: int, file_end: int) -> Candidate | None:
    """Return the first message from position on that could follow damage, for recovery.

    Args:
        data: the bytes.
        position: where to start searching.
        end: where the bytes end.
        due: the offset that was expected where the damage starts.
        damage: the byte where the damage starts; negative if it is before these bytes.
        file_end: where the file ends, at or after end.

    Returns:
        The first well-formed message whose offset is above due and reachable: at most one for each 26 bytes passed.
        One that ends after these bytes but inside the file is returned too: its trailing size is still to be checked.
    """
    reach = (end - damage) // OVERHEAD_SIZE
    if reach < 1 or due >= MAX_OFFSET - 1:
        return None
    low, high = OFFSET.pack(due + 1), OFFSET.pack(min(due + reach, MAX_OFFSET - 1))
    same = next((i for i in range(8) if low[i] != high[i]), 8)
    prefix = low[:same]
    text = bytes(data[position:end])
    at = text.find(prefix)
    while 0 <= at <= len(text) - OVERHEAD_SIZE:
        offset = OFFSET.unpack_from(text, at)[0]
        if not offset and prefix and not prefix.strip(b"\0"):  # a zero-filled range matches everywhere
            at = _skip_zeros(text, at, OFFSET_SIZE if due >= 0 else OVERHEAD_SIZE)
        if due < offset <= min(due + (position + at - damage) // OVERHEAD_SIZE, MAX_OFFSET - 1):
            found = _whole(text, at, file_end - position)
            if found is not None:
                return Candidate(position + at, position + found, offset)
        at = text.find(prefix, at + 1)
    return None


def _skip_zeros(text: bytes, at: int, left: int) -> int:
    """Return the position ``left`` bytes before the end of the zeros at a position, or that position."""
    first, step = at, 1 << 16
    while at < len(text) and not text[at : at + step].strip(b"\0"):
        at += step
    rest = text[at : at + step]
    zeros = len(rest) - len(rest.lstrip(b"\0"))
    return max(at + zeros - left, first)


def _whole(data: bytes, position: int, file_end: int) -> int | None:
    """Return where the message at position ends, or None if it is not whole. Checks its trailing size if it can."""
    try:
        size = message_size(data, position, len(data))
        if size is None or position + size > file_end:
            return None
        if position + size <= len(data):
            decode(data, position, len(data))
    except DecodeError:
        return None
    return position + size


def _one_by_one(data: BytesLike, position: int, end: int, due: int) -> Iterator[Run]:
    """Yield a run for each good message from position on; raises if the first one is wrong."""
    first = due
    while True:
        try:
            run = measure(data, position, end, due, 1)
        except DecodeError:
            if due == first:
                raise
            return
        if not run.messages:
            return
        yield run
        position, due = run.position, due + 1


def _check_due(data: BytesLike, position: int, end: int, due: int) -> None:
    """Raise if the message at position is wrong; return if it is only incomplete."""
    try:
        found = decode(data, position, end)
    except DecodeError as error:
        error.offset = due
        raise
    if found is None:
        return
    offset = found[0].offset
    reason = f"the message must have offset {due}, got {offset}"
    if offset == due:
        reason = f"offset {offset} exceeds the largest offset, {MAX_OFFSET - 1}"
    raise DecodeError(reason, position=position, offset=due, found=offset)
