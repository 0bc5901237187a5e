"""Messages on the wire: encode and decode. No I/O.

Requests with many bytes are not decoded by protobuf, which copies each field into an allocation of its own: a
:func:`copy_request` is its head and the journal's bytes unchanged, and :func:`open_copy_request` skips the head. The
encoding is still that of ``hub.proto``, and any protobuf library reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError as ProtobufDecodeError
from google.protobuf.message import Message as ProtobufMessage

from hub.errors import UnavailableError
from hub.wire import hub_pb2 as pb
from sej.checks import require_message
from sej.codec.format import MAX_OFFSET, OVERHEAD_SIZE
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


def batches(
    messages: Iterable[Message], *, most_bytes: int = BATCH_BYTES, most_messages: int = _BATCH_MESSAGES
) -> Iterator[list[Message]]:
    """Yield messages in batches, each with as many as fit in a request.

    Args:
        messages: only those of the next batch, and one more, are taken from the iterable.
        most_bytes: the most bytes of a batch, as stored in a journal; a larger message is alone.
        most_messages: the most messages of a batch.

    Raises:
        TypeError: this is not a message.
    """
    batch: list[Message] = []
    size = 0
    for message in messages:
        each = _weigh(message)
        if batch and (size + each > most_bytes or len(batch) == most_messages):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += each
    if batch:
        yield batch


def _weigh(message: Message) -> int:
    """Return the bytes of a message as stored in a journal."""
    require_message(message)
    if not isinstance(message.offset, int):
        raise TypeError(f"an offset must be an int, got {message.offset!r}")
    return OVERHEAD_SIZE + len(message.key) + len(message.value)


def open_put_request(data: bytes) -> tuple[str, str, list[Message]]:
    """Return client id, journal and messages of a PutRequest of any form.

    Raises:
        InvalidMessageError: the bytes cannot be decoded, or an offset is beyond 2^63-1.
    """
    request = parse(pb.PutRequest, data)
    return request.ClientID, request.JournalDir, from_wire(request.Messages)


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
    request, encoded = _open(pb.CopyRequest, data)
    if request.HasField("Checksum") and request.Checksum != crc32c(encoded):
        raise UnavailableError(
            "the messages changed on the way to the hub: their checksum is another one than the client sent; nothing of"
            " them was stored, send them again. If this happens again, check the network, or use TLS"
        )
    return request, encoded


def stage_request(request: pb.StageRequest | pb.CopyRequest, data: bytes | memoryview) -> bytes:
    """Encode a request with ``data`` as its field Encoded, copied once."""
    return b"".join((request.SerializeToString(), bytes((_ENCODED_TAG,)), _varint(len(data)), data))


def open_stage_request(data: bytes) -> tuple[pb.StageRequest, bytes | memoryview]:
    """Return a StageRequest, and the bytes of its field Encoded, which may be left out of it.

    Raises:
        InvalidMessageError: the bytes cannot be decoded.
    """
    return _open(pb.StageRequest, data)


def _open(kind: type[_T], data: bytes) -> tuple[_T, bytes | memoryview]:
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


def open_read_response(data: bytes) -> bytes | memoryview:
    """Return the encoded messages of a ReadResponse.

    Raises:
        InvalidMessageError: the bytes cannot be decoded.
    """
    return _open(pb.ReadResponse, data)[1]


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
