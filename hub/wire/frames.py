"""Bytes on the wire and what they mean, both ways; no I/O.

Requests that carry many bytes are not taken apart by protobuf, which copies each field into an allocation of its own:
a :func:`copy_request` is its head and the journal's bytes as they are, and :func:`open_copy_request` looks past the
head. What they write and read is the encoding of ``hub.proto`` all the same, and anybody's protobuf understands it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

from google.protobuf.message import DecodeError as ProtobufDecodeError
from google.protobuf.message import Message as ProtobufMessage

from hub.wire import hub_pb2 as pb
from sej.codec.format import MAX_OFFSET
from sej.errors import InvalidMessageError
from sej.imports import compiled
from sej.message import Message

__all__ = [
    "MAX_MESSAGE_BYTES",
    "copy_request",
    "encode_put_request",
    "from_wire",
    "get_response",
    "large_get_response",
    "open_copy_request",
    "open_put_request",
    "open_read_response",
    "parse",
    "read_response",
    "to_wire",
]

MAX_MESSAGE_BYTES: Final = 1 << 26
"""What one request or reply may hold; a journal's message beyond that needs a larger limit on both sides."""
_ENCODED_TAG: Final = pb.CopyRequest.ENCODED_FIELD_NUMBER << 3 | 2
assert pb.ReadResponse.ENCODED_FIELD_NUMBER == pb.CopyRequest.ENCODED_FIELD_NUMBER
_MESSAGES_TAG: Final = pb.GetResponse.MESSAGES_FIELD_NUMBER << 3 | 2
_VALUE_TAG: Final = pb.Message.VALUE_FIELD_NUMBER << 3 | 2
_VARINT_BYTES: Final = 10


class _Transcode(Protocol):
    def __call__(self, data: bytes) -> tuple[str, str, memoryview] | None: ...


_twin = compiled("hub.wire._put_c")
_transcode: _Transcode | None = _twin and _twin.transcode

_T = TypeVar("_T", bound=ProtobufMessage)


def to_wire(messages: Iterable[Message]) -> list[pb.Message]:
    """Messages as protobuf has them."""
    return [
        pb.Message(Offset=offset, Timestamp=timestamp, Type=type_, Key=key, Value=value)
        for offset, timestamp, type_, key, value in messages
    ]


def from_wire(messages: Iterable[pb.Message]) -> list[Message]:
    """Messages as the journal has them.

    Raises:
        InvalidMessageError: an offset beyond 2^63-1. What else does not fit, the journal's codec refuses.
    """
    found = [Message(m.Offset, m.Timestamp, m.Type, m.Key, m.Value) for m in messages]
    for message in found:
        if message.offset > MAX_OFFSET:
            raise InvalidMessageError(f"offset {message.offset}: at most {MAX_OFFSET} is due")
    return found


def parse(kind: type[_T], data: bytes) -> _T:
    """A message of hub.proto.

    Raises:
        InvalidMessageError: these bytes are none.
    """
    try:
        return kind.FromString(data)
    except ProtobufDecodeError as error:
        raise InvalidMessageError(f"these bytes are no {kind.__name__} of hub.proto") from error


def open_put_request(data: bytes) -> tuple[str, str, list[Message]]:
    """Client id, journal and messages of a PutRequest, whatever they are.

    Raises:
        InvalidMessageError: these bytes are none, or an offset is beyond 2^63-1.
    """
    request = parse(pb.PutRequest, data)
    return request.ClientID, request.JournalDir, from_wire(request.Messages)


def encode_put_request(data: bytes) -> tuple[str, str, bytes | memoryview] | None:
    """Client id, journal and messages of a PutRequest, as they will stand in the journal.

    None where the compiled module is not there, or finds something that is not plain; then :func:`open_put_request`
    says what it is.
    """
    return None if _transcode is None else _transcode(data)


def copy_request(data: bytes, client_id: str = "", journal_dir: str = "", *, create: bool = False) -> bytes:
    """A CopyRequest; the names, and whether it may start the journal, go into the first one of a stream."""
    head = pb.CopyRequest(ClientID=client_id, JournalDir=journal_dir, Create=create).SerializeToString()
    return b"".join((head, bytes((_ENCODED_TAG,)), _varint(len(data)), data))


def open_copy_request(data: bytes) -> tuple[str, str, bytes | memoryview, bool]:
    """Client id, journal (empty where left out), encoded messages and create of a CopyRequest.

    Raises:
        InvalidMessageError: these bytes are none.
    """
    plain = _only_encoded(data)
    if plain is not None:
        return "", "", plain, False
    request = parse(pb.CopyRequest, data)
    return request.ClientID, request.JournalDir, request.Encoded, request.Create


def read_response(*pieces: bytes) -> bytes:
    """A ReadResponse of encoded messages, in pieces."""
    return b"".join((bytes((_ENCODED_TAG,)), _varint(sum(map(len, pieces))), *pieces))


def get_response(messages: Iterable[Message]) -> bytes:
    """A GetResponse; two of them, one after the other, are one with the messages of both."""
    return pb.GetResponse(Messages=to_wire(messages)).SerializeToString()


def large_get_response(message: Message) -> bytes:
    """A GetResponse of one message, without the copies that protobuf makes of its value."""
    offset, timestamp, type_, key, value = message
    head = pb.Message(Offset=offset, Timestamp=timestamp, Type=type_, Key=key).SerializeToString()
    head += bytes((_VALUE_TAG,)) + _varint(len(value))
    return b"".join((bytes((_MESSAGES_TAG,)), _varint(len(head) + len(value)), head, value))


def open_read_response(data: bytes) -> bytes | memoryview:
    """The encoded messages of a ReadResponse.

    Raises:
        InvalidMessageError: these bytes are none.
    """
    plain = _only_encoded(data)
    return parse(pb.ReadResponse, data).Encoded if plain is None else plain


def _only_encoded(data: bytes) -> memoryview | None:
    """The bytes of the field Encoded where there is nothing else, without copying them."""
    if data[:1] == bytes((_ENCODED_TAG,)):
        size = shift = 0
        for at in range(1, min(len(data), 1 + _VARINT_BYTES)):
            size |= (data[at] & 0x7F) << shift
            shift += 7
            if data[at] < 0x80:
                return memoryview(data)[at + 1 :] if at + 1 + size == len(data) else None
    return None


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
