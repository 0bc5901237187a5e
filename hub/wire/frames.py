"""Messages and columns on the wire: encode and decode. No I/O.

Requests with many bytes are not decoded by protobuf, which copies each field into an allocation of its own: a
:func:`copy_request` is its head and the journal's bytes unchanged, and :func:`open_copy_request` skips the head. The
encoding is still that of ``hub.proto``, and any protobuf library reads it.

A reader may request some columns only, and about some times.

The hub leaves out columns that were not requested, and messages before the first and after the last one in the
requested time, piece by piece. The reader compares the time of each message that it gets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

from google.protobuf.message import DecodeError as ProtobufDecodeError
from google.protobuf.message import Message as ProtobufMessage

from hub.errors import UnavailableError
from hub.wire import hub_pb2 as pb
from sej.checks import require_message
from sej.codec import Columns, columns
from sej.codec.format import INT32_SIZE, MAX_OFFSET, OFFSET, OFFSET_SIZE, OVERHEAD_SIZE
from sej.errors import InvalidMessageError
from sej.message import Message
from sej.system.checksum import crc32c

MAX_MESSAGE_BYTES: Final = 1 << 26
"""The largest request or reply; a journal's message beyond that needs a larger limit on both sides."""
BATCH_BYTES: Final = 1 << 20
"""The most bytes of the messages in one request of a put, unless a single one is larger."""
_BATCH_MESSAGES: Final = 10_000
_ENCODED_TAG: Final = pb.CopyRequest.ENCODED_FIELD_NUMBER << 3 | 2
assert pb.ReadResponse.ENCODED_FIELD_NUMBER == pb.CopyRequest.ENCODED_FIELD_NUMBER
assert pb.StageRequest.ENCODED_FIELD_NUMBER == pb.CopyRequest.ENCODED_FIELD_NUMBER
_VARINT_BYTES: Final = 10


_T = TypeVar("_T", bound=ProtobufMessage)


def to_wire(messages: Iterable[Message]) -> list[pb.Message]:
    """Return messages in protobuf's form."""
    return [
        pb.Message(Offset=offset, Timestamp=timestamp, Type=type_, Key=key, Value=value)
        for offset, timestamp, type_, key, value in messages
    ]


def from_wire(messages: Iterable[pb.Message]) -> list[Message]:
    """Return messages in the journal's form.

    Raises:
        InvalidMessageError: an offset beyond 2^63-1. The journal's codec checks the other limits.
    """
    found = [Message(m.Offset, m.Timestamp, m.Type, m.Key, m.Value) for m in messages]
    for message in found:
        if message.offset > MAX_OFFSET:
            raise InvalidMessageError(f"offset must be at most {MAX_OFFSET}, got {message.offset}")
    return found


def parse(kind: type[_T], data: bytes) -> _T:
    """Decode a message of hub.proto.

    Raises:
        InvalidMessageError: the bytes cannot be decoded.
    """
    try:
        return kind.FromString(data)
    except ProtobufDecodeError as error:
        raise InvalidMessageError(f"these bytes are not a {kind.__name__} of hub.proto") from error


def batches(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Yield messages in batches, each with as many as fit in a request.

    Args:
        messages: only those of the next batch, and one more, are taken from the iterable.

    Raises:
        TypeError: this is not a message.
    """
    batch: list[Message] = []
    size = 0
    for message in messages:
        require_message(message)
        if not isinstance(message.offset, int):
            raise TypeError(f"an offset must be an int, got {message.offset!r}")
        each = OVERHEAD_SIZE + len(message.key) + len(message.value)
        if batch and (size + each > BATCH_BYTES or len(batch) == _BATCH_MESSAGES):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += each
    if batch:
        yield batch


def copy_request(
    data: bytes, client_id: str = "", journal_dir: str = "", *, create: bool = False, lost_from: int | None = None
) -> bytes:
    """Encode a CopyRequest; the names, and whether it may start the journal, belong to the first one of a stream."""
    names = pb.CopyRequest(ClientID=client_id, JournalDir=journal_dir, Create=create, LostFrom=lost_from)
    names.Checksum = crc32c(data)
    return stage_request(names, data)


def open_copy_request(data: bytes) -> tuple[pb.CopyRequest, bytes | memoryview]:
    """Return a CopyRequest, and the bytes of its field Encoded, which may be left out of it.

    Raises:
        InvalidMessageError: the bytes cannot be decoded.
        UnavailableError: the messages changed on the way.
    """
    request, encoded = open_encoded(pb.CopyRequest, data)
    if request.HasField("Checksum") and request.Checksum != crc32c(encoded):
        raise UnavailableError(
            "the messages changed on the way to the hub: their checksum is not the one that the client sent. None was"
            " stored; send them again. If this happens again, check the network, or use TLS"
        )
    return request, encoded


def stage_request(request: pb.StageRequest | pb.CopyRequest, data: bytes | memoryview) -> bytes:
    """Encode a request with ``data`` as its field Encoded, copied once."""
    return b"".join((request.SerializeToString(), bytes((_ENCODED_TAG,)), _varint(len(data)), data))


def open_encoded(kind: type[_T], data: bytes) -> tuple[_T, bytes | memoryview]:
    """Return a message of hub.proto, and the bytes of its field Encoded, which may be left out of it.

    Raises:
        InvalidMessageError: the bytes cannot be decoded.
    """
    found = _split(data)
    if found is None:
        request: Any = parse(kind, data)
        return request, request.Encoded
    return parse(kind, found[0]), found[1]


def read_response(*pieces: bytes) -> bytes:
    """Encode a ReadResponse from pieces of encoded messages."""
    return b"".join((bytes((_ENCODED_TAG,)), _varint(sum(map(len, pieces))), *pieces))


def get_response(messages: Iterable[Message]) -> bytes:
    """Encode a GetResponse; two of them, one after the other, are one with the messages of both."""
    return pb.GetResponse(Messages=to_wire(messages)).SerializeToString()


def large_get_response(message: Message) -> bytes:
    """Encode a GetResponse of one message, without the copies that protobuf makes of its value."""
    offset, timestamp, type_, key, value = message
    return nested(
        pb.GetResponse.MESSAGES_FIELD_NUMBER,
        pb.Message(Offset=offset, Timestamp=timestamp, Type=type_, Key=key),
        pb.Message.VALUE_FIELD_NUMBER,
        value,
    )


def nested(outer: int, message: ProtobufMessage, inner: int, data: bytes) -> bytes:
    """Encode a message as the field ``outer`` of another one, with ``data`` as its field ``inner``, copied once.

    The numbers of the fields are less than 16.
    """
    head = message.SerializeToString() + bytes((inner << 3 | 2,)) + _varint(len(data))
    return b"".join((bytes((outer << 3 | 2,)), _varint(len(head) + len(data)), head, data))


def _split(data: bytes) -> tuple[bytes, memoryview] | None:
    """Return the fields before the field Encoded, and its bytes without copying them.

    None: protobuf must read the message. It must if other fields follow, or if the size has more bytes than it needs.
    """
    at = 0
    while at < len(data) and data[at] != _ENCODED_TAG:
        kind = data[at] & 7
        number = _read_varint(data, at + 1) if data[at] < 0x80 and kind in (0, 2) else None
        if number is None:
            return None
        at = number[1] + (number[0] if kind == 2 else 0)
    size = _read_varint(data, at + 1)
    if size is None or size[0] + size[1] != len(data) or size[1] - at - 1 != len(_varint(size[0])):
        return None
    return data[:at], memoryview(data)[size[1] :]


def _read_varint(data: bytes, at: int) -> tuple[int, int] | None:
    """Return a number and the position after it; None if it does not end."""
    number = shift = 0
    for position in range(at, min(len(data), at + _VARINT_BYTES)):
        number |= (data[position] & 0x7F) << shift
        shift += 7
        if data[position] < 0x80:
            return number, position + 1
    return None


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


COLUMNS: Final = {"offset": 1, "timestamp": 2, "type": 4, "key": 8, "value": 16}
"""The bits of ReadRequest.Columns."""
_ALL: Final = sum(COLUMNS.values())
_ROWS: Final = 1 << 14
_TIMESTAMP_SIZE: Final = 8
_ROWS_TAG: Final = bytes((pb.ReadResponse.ROWS_FIELD_NUMBER << 3 | 2,))
"""Whether this machine's numbers are those of the wire; other machines send and request whole messages."""


class Rows(NamedTuple):
    """Some messages, as columns.

    Attributes:
        begin: the offset of the first message that the hub looked at.
        stop: the offset after the last one.
        first: the offset of the first message in ``found``; the next ones have consecutive offsets.
        found: the messages. A column that was not requested may be empty.
    """

    begin: int
    stop: int
    first: int
    found: Columns


def bits_of(names: Iterable[str], since: int | None, until: int | None) -> int:
    """Return the columns of a request; 0 if whole messages are requested, or this machine cannot read columns.

    Raises:
        ValueError: a name is not that of a column.
    """
    bits = COLUMNS["offset"]
    for name in names:
        if name not in COLUMNS:
            raise ValueError(f"columns must be some of {', '.join(COLUMNS)}, got {name!r}")
        bits |= COLUMNS[name]
    if since is not None or until is not None:
        bits |= COLUMNS["timestamp"]
    elif bits == _ALL:
        return 0
    return bits


def rows_response(pieces: list[bytes], request: pb.ReadRequest) -> bytes | None:
    """Encode a ReadResponse with the requested columns of pieces of encoded messages, whose offsets are consecutive.

    Returns None if the request is for whole messages. Otherwise the list of pieces is emptied, so that a large value is
    in memory twice at most.
    """
    since = request.Since if request.HasField("Since") else None
    until = request.Until if request.HasField("Until") else None
    bits = request.Columns or _ALL * (since is not None or until is not None)
    if not bits:
        return None
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    pieces.clear()
    begin: int = OFFSET.unpack(data[:OFFSET_SIZE])[0]
    most = len(data) // OVERHEAD_SIZE
    if request.StopOffset:
        most = max(min(most, request.StopOffset - begin), 0)
    found = columns(data, 0, len(data), begin, most, keys=False, values=False)
    stop = begin + found.messages
    low, high = _within(found.timestamps, since, until)
    if low or high < found.messages or bits & (COLUMNS["key"] | COLUMNS["value"]):
        at = columns(data, 0, len(data), begin, low, keys=False, values=False).position if low else 0
        keys, values = bool(bits & COLUMNS["key"]), bool(bits & COLUMNS["value"])
        found = columns(data, at, len(data), begin + low, high - low, keys=keys, values=values)
    del data
    rows = pb.Rows(
        Begin=begin,
        Stop=stop,
        First=begin + low,
        Count=high - low,
        Timestamps=found.timestamps if bits & COLUMNS["timestamp"] else b"",
        Types=found.types if bits & COLUMNS["type"] else b"",
        KeyEnds=found.key_ends,
        Keys=found.key_data,
        ValueEnds=found.value_ends,
    )
    return nested(pb.ReadResponse.ROWS_FIELD_NUMBER, rows, pb.Rows.VALUES_FIELD_NUMBER, found.value_data)


def open_rows(data: bytes, stop: int, bits: int, *, keys: bool, values: bool) -> Iterator[Rows]:
    """Yield the messages of a ReadResponse of either form below the offset ``stop`` (0: all).

    Args:
        data: the response.
        stop: as in the request.
        bits: the columns in the request.
        keys: whether keys are needed.
        values: whether values are needed.

    Raises:
        InvalidMessageError: the bytes cannot be decoded, or columns have other lengths than their number of messages.
        DecodeError: they are not whole messages.
    """
    answer = parse(pb.ReadResponse, data) if data[:1] == _ROWS_TAG else None
    if answer is not None and answer.HasField("Rows"):
        rows = answer.Rows
        found = Columns(
            rows.Count, 0, rows.Timestamps, rows.Types, rows.KeyEnds, rows.Keys, rows.ValueEnds, rows.Values
        )
        if not (rows.Begin <= rows.First <= rows.First + rows.Count <= rows.Stop <= MAX_OFFSET + 1):
            raise InvalidMessageError(
                f"the hub's answer covers offsets {rows.Begin} to {rows.Stop}, but has {rows.Count} messages from"
                f" {rows.First} on; update the hub"
            )
        for column, wrong in _wrong(found).items():
            if bits & COLUMNS[column] and wrong:
                raise InvalidMessageError(f"the hub's answer has a column {column} that does not fit {rows.Count} rows")
        yield Rows(rows.Begin, rows.Stop, rows.First, found)
        return
    chunk = open_encoded(pb.ReadResponse, data)[1]
    position, due = 0, OFFSET.unpack(chunk[:OFFSET_SIZE])[0]
    if stop and due >= stop:  # messages before the stop are missing: the caller must know that the hub looked at them
        yield Rows(due, due, due, columns(chunk, 0, len(chunk), due, 0, keys=False, values=False))
    while position < len(chunk) and (not stop or due < stop):
        most = min(_ROWS, stop - due) if stop else _ROWS
        found = columns(chunk, position, len(chunk), due, most, keys=keys, values=values)
        yield Rows(due, due + found.messages, due, found)
        position = found.position
        due += found.messages


def _wrong(found: Columns) -> dict[str, bool]:
    """Return for each column whether its bytes do not fit the number of messages: a reader trusts these lengths."""
    count = found.messages
    return {
        "timestamp": len(found.timestamps) != count * _TIMESTAMP_SIZE,
        "type": len(found.types) != count * INT32_SIZE,
        "key": count > 0 and not _fits(found.key_ends, found.key_data, count),
        "value": count > 0 and not _fits(found.value_ends, found.value_data, count),
    }


def _fits(ends: bytes, data: bytes, count: int) -> bool:
    if len(ends) != (count + 1) * INT32_SIZE:
        return False
    at = memoryview(ends).cast("i")
    return at[0] == 0 and at[count] == len(data)


def _within(timestamps: bytes, since: int | None, until: int | None) -> tuple[int, int]:
    """Return the range from the first message in the requested time up to the last one."""
    times = memoryview(timestamps).cast("q")
    low, high = 0, len(times)
    if since is None and until is None:
        return low, high
    least = since if since is not None else -(1 << 63)
    most = until if until is not None else (1 << 63) - 1
    if high and not least <= times[0] <= most and (max(times) < least or min(times) > most):
        return 0, 0
    while low < high and not least <= times[low] <= most:
        low += 1
    while low < high and not least <= times[high - 1] <= most:
        high -= 1
    return low, high
