"""The codec, both implementations side by side: bytes by the format table, the three outcomes, and no difference."""

from __future__ import annotations

import importlib
import pickle
import threading
from array import array
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sej.codec
from sej import DecodeError, InvalidMessageError, Message
from sej.codec.format import MAX_OFFSET
from sej.system.checksum import crc32c
from tests.sej.hooks import bounded
from tests.sej.support import encoded, packed, sample

pytestmark = pytest.mark.both_codecs

REFERENCE = importlib.import_module("sej.codec.reference")
try:
    TWINS = [REFERENCE, importlib.import_module("sej.codec._codec_c")]
except ImportError:
    TWINS = [REFERENCE]
both = pytest.mark.parametrize("codec", TWINS, ids=lambda module: module.__name__.rpartition("_")[2])

EDGES = [
    Message(0, 0, 0, b"", b""),
    Message(1, 1_500_000_000_000_000_000, 255, b"k", b"v"),
    Message(2**32 + 5, -1, 127, b"k" * 127, b"v" * 70000),
    Message(2**63 - 1, 2**63 - 1, 128, b"\xff" * 5, b"\0"),
    Message(7, sej.NO_TIMESTAMP, 1, b"\0", b"v" * 255),
    Message(8, sej.NO_TIMESTAMP + 1, 1, b"", b"v" * 256),
]
messages = st.builds(
    Message,
    st.integers(0, 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 255),
    st.binary(max_size=127),
    st.binary(max_size=300),
)


def buffer_of(codec: ModuleType) -> Any:
    """Return the buffer class of a codec, which is in a module of its own."""
    name = "sej.codec.buffer_reference" if codec is REFERENCE else "sej.codec._codec_c"
    return importlib.import_module(name).Buffer


def outcome(call: Any, *arguments: Any) -> Any:
    """A value, or the error with everything that it carries."""
    try:
        return call(*arguments)
    except (DecodeError, InvalidMessageError, TypeError, ValueError) as error:
        return type(error), str(error), {k: v for k, v in vars(error).items() if k != "path"}


def test_the_chosen_one_is_named() -> None:
    assert sej.codec.IMPLEMENTATION in ("c", "python")
    chosen = "sej.codec._codec_c" if sej.codec.IMPLEMENTATION == "c" else "sej.codec.reference"
    assert sej.codec.decode is importlib.import_module(chosen).decode


@both
@pytest.mark.parametrize("message", EDGES, ids=range(len(EDGES)))
def test_bytes_are_those_of_the_format_table(codec: ModuleType, message: Message) -> None:
    data = encoded(*message)
    assert codec.encode(*message) == data
    assert codec.decode(data, 0, len(data)) == (message, len(data))
    assert codec.message_size(data, 0, len(data)) == len(data)
    assert type(codec.decode(data, 0, len(data))[0]) is Message


@both
@given(message=messages, before=st.binary(max_size=20), after=st.binary(max_size=40))
def test_round_trip_from_any_position(codec: ModuleType, message: Message, before: bytes, after: bytes) -> None:
    data = before + codec.encode(*message) + after
    assert codec.decode(data, len(before), len(data)) == (message, len(data) - len(after))


@both
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_any_bytes_like_is_read_and_bytes_come_out(codec: ModuleType, wrap: Any) -> None:
    data = wrap(packed(EDGES[1:2]))
    found, _ = codec.decode(data, 0, len(data))
    many, end = codec.decode_many(data, 0, len(data), 1, 10)
    assert many == [found] == EDGES[1:2] and end == len(data)
    assert type(many[0].key) is type(many[0].value) is type(found.value) is bytes


@both
def test_fields_are_read_by_name_and_never_set(codec: ModuleType) -> None:
    class Named(Message):
        """A subclass, as a caller may define one."""

    fields = (7, -5, 255, b"key", b"value")
    for message in (codec.decode(encoded(*fields), 0, 34)[0], Message(*fields), Message._make(fields), Named(*fields)):
        assert (message.offset, message.timestamp, message.type, message.key, message.value) == fields
        for name in Message._fields:
            with pytest.raises(AttributeError):
                setattr(message, name, 0)
    assert pickle.loads(pickle.dumps(Message(*fields))) == Message(*fields)._replace(type=255)


@both
def test_every_cut_asks_for_more(codec: ModuleType) -> None:
    data = encoded(5, 6, 7, b"key", b"value")
    for cut in range(len(data)):
        assert codec.decode(data[:cut], 0, cut) is None
        assert codec.decode(data, 0, cut) is None, "end counts, not what stands behind it"
        assert codec.decode_many(data, 0, cut, 5, 10) == ([], 0)
        assert codec.measure(data, 0, cut, 5, 1 << 20)[:2] == (0, 0)
        assert codec.columns(data, 0, cut, 5, 10).messages == 0


def spoilt(message: bytes, at: int, field: bytes) -> bytes:
    return message[:at] + field + message[at + len(field) :]


WRONG = {
    "negative key size": spoilt(encoded(5, 6, 7, b"key", b"value"), 17, b"\xff"),
    "negative value size": spoilt(encoded(5, 6, 7, b"key", b"value"), 21, b"\xff\xff\xff\xff"),
    "value size over the limit": spoilt(encoded(5, 6, 7, b"key", b"value"), 21, b"\x7f\xff\xff\xff"),
    "trailing size too small": spoilt(encoded(5, 6, 7, b"key", b"value"), 30, b"\0\0\0\x21"),
    "trailing size negative": spoilt(encoded(5, 6, 7, b"key", b"value"), 30, b"\xff\xff\xff\xff"),
}


@both
@pytest.mark.parametrize("what", WRONG)
def test_wrong_lengths_are_decode_errors_with_their_position(codec: ModuleType, what: str) -> None:
    data = b"???" + WRONG[what]
    for name, more in (("decode", ()), ("decode_many", (5, 10)), ("measure", (5, 1 << 20)), ("columns", (5, 10))):
        with pytest.raises(DecodeError) as raised:
            getattr(codec, name)(data, 3, len(data), *more)
        assert raised.value.position == 3 and raised.value.found is None


@both
def test_a_foreign_offset_is_an_error_that_names_it(codec: ModuleType) -> None:
    data = encoded(9, 6, 7, b"key", b"value")
    with pytest.raises(DecodeError) as raised:
        codec.decode_many(data, 0, len(data), 5, 10)
    assert (raised.value.found, raised.value.offset, raised.value.position) == (9, 5, 0)


@both
@pytest.mark.parametrize("tail", [b"", b"\0" * 30, WRONG["negative key size"], encoded(77, 0, 0, b"", b"")])
def test_a_batch_ends_before_what_is_wrong(codec: ModuleType, tail: bytes) -> None:
    good = sample(5, start=10)
    data = packed(good) + tail
    assert codec.decode_many(data, 0, len(data), 10, 100) == (good, len(packed(good)))
    assert codec.decode_many(data, 0, len(data), 10, 2) == (good[:2], len(packed(good[:2])))
    run = codec.measure(data, 0, len(data), 10, 1 << 20)
    assert tuple(run) == (5, len(packed(good)), good[0].timestamp, good[4].timestamp, good[4].timestamp)
    assert codec.measure(data, 0, len(data), 10, 1).messages == 1


@both
def test_the_largest_message_is_believed_and_one_byte_more_is_not(codec: ModuleType) -> None:
    head = encoded(0, 0, 0, b"kk", b"")[:20]
    largest = 2**31 - 1 - 26 - 2
    data = head + largest.to_bytes(4, "big")
    assert codec.message_size(data, 0, len(data)) == 2**31 - 1
    data = head + (largest + 1).to_bytes(4, "big")
    with pytest.raises(DecodeError):
        codec.message_size(data, 0, len(data))


@both
@pytest.mark.parametrize("claim", [2**31 - 1 - 26, 2**30, 10**6])
def test_lengths_that_lie_allocate_nothing(codec: ModuleType, claim: int) -> None:
    data = encoded(0, 0, 0, b"", b"")[:18] + claim.to_bytes(4, "big") + bytes(100)
    with bounded(1 << 17):
        assert codec.decode(data, 0, len(data)) is None
        assert codec.decode_many(data, 0, len(data), 0, 1 << 30) == ([], 0)
        assert codec.columns(data, 0, len(data), 0, 1000).messages == 0
        assert codec.measure(data, 0, len(data), 0, 1 << 40).messages == 0


@both
@given(found=st.lists(messages, max_size=8), room=st.integers(0, 10))
def test_columns_and_walk_say_what_decoding_says(codec: ModuleType, found: list[Message], room: int) -> None:
    rows = [message._replace(offset=3 + n) for n, message in enumerate(found)]
    data = packed(rows)
    fields = codec.columns(data, 0, len(data), 3, room)
    rows = rows[:room]
    assert (fields.messages, fields.position) == (len(rows), len(packed(rows)))
    assert array("q", fields.timestamps).tolist() == [row.timestamp for row in rows]
    assert array("i", fields.types).tolist() == [row.type for row in rows]
    for ends, joined, parts in (
        (fields.key_ends, fields.key_data, [row.key for row in rows]),
        (fields.value_ends, fields.value_data, [row.value for row in rows]),
    ):
        at = array("i", ends).tolist()
        assert [joined[a:b] for a, b in pairwise(at)] == parts
    for keys in (True, False):
        for values in (True, False):
            fewer = codec.columns(data, 0, len(data), 3, room, keys, values)
            asked = fields if keys else fields._replace(key_ends=b"", key_data=b"")
            assert fewer == (asked if values else asked._replace(value_ends=b"", value_data=b""))
    offsets, timestamps, sizes = (memoryview(array(kind, [0] * room)) for kind in "qqi")
    assert codec.walk(data, 0, len(data), 3, offsets, timestamps, sizes) == (len(rows), len(packed(rows)))
    assert offsets.tolist()[: len(rows)] == [row.offset for row in rows]
    assert timestamps.tolist()[: len(rows)] == [row.timestamp for row in rows]
    assert sizes.tolist()[: len(rows)] == [len(encoded(*row)) for row in rows]


@both
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"key": b"k" * 128}, InvalidMessageError),
        ({"type": 256}, InvalidMessageError),
        ({"type": -1}, InvalidMessageError),
        ({"timestamp": 2**63}, InvalidMessageError),
        ({"timestamp": -(2**63) - 1}, InvalidMessageError),
        ({"value": 2**31 - 26}, InvalidMessageError),
        ({"key": b"k" * 127, "value": 2**31 - 26 - 127}, InvalidMessageError),
        ({"value": "text"}, TypeError),
        ({"key": "text"}, TypeError),
        ({"value": None}, TypeError),
        ({"type": "1"}, TypeError),
        ({"timestamp": 1.5}, TypeError),
    ],
)
def test_what_the_format_cannot_hold_is_refused(codec: ModuleType, fields: dict[str, Any], error: Any) -> None:
    row: dict[str, Any] = {"offset": 0, "timestamp": 0, "type": 0, "key": b"", "value": b"", **fields}
    if isinstance(row["value"], int):  # no such parameter: a report that prints it would take minutes
        row["value"] = bytes(row["value"])
    found = outcome(codec.encode, *row.values())
    assert found[0] is error
    assert found == outcome(REFERENCE.encode, *row.values())
    buffer = buffer_of(codec)(0, lambda: None, threading.Lock())
    given = (row["value"], row["key"], row["type"], row["timestamp"])
    assert outcome(buffer.append, *given)[:2] == found[:2]
    assert outcome(buffer.append_many, [b"good", given[0]], [b"", given[1]], [0, given[2]], [0, given[3]])[0] is error
    if not {"key", "value"} & fields.keys() and all(isinstance(number, int) for number in given[2:]):
        assert outcome(buffer.append_many, [], [], given[2], given[3])[0] is error, "also for no messages"
    assert (buffer.offset, len(buffer)) == (0, 0), "nothing of a refused batch is taken"


@both
def test_a_buffer_encodes_keys_of_every_size(codec: ModuleType) -> None:
    buffer = buffer_of(codec)(0, lambda: None, threading.Lock())
    buffer.limit = 1 << 30
    keys = [bytes(range(1, size + 1)) for size in range(128)]
    for key in keys:
        buffer.append(b"value", key, timestamp=1)
    with buffer.block() as view:
        assert bytes(view) == b"".join(encoded(offset, 1, 0, key, b"value") for offset, key in enumerate(keys))


class Kind(int):
    """A type whose comparison, which is a part of the check, runs other code."""

    then: Any

    def __ge__(self, other: int) -> bool:
        Kind.then()
        return True

    __le__ = __ge__


@both
def test_a_batch_is_what_it_was_when_the_call_began(codec: ModuleType) -> None:
    for keys, type in ((True, 0), (False, [0] * 999 + [Kind(0)])):
        values = [b"value"] * 1000

        def spoil(values: list[Any] = values) -> bytes:
            values[:] = ["text"]
            return b"k"

        Kind.then = spoil
        buffer = buffer_of(codec)(0, lambda: None, threading.Lock())
        buffer.limit = buffer.batch_limit = 1 << 30
        assert buffer.append_many(values, (spoil() for _ in range(1000)) if keys else None, type) == range(1000)
        with buffer.block() as view:
            found, _ = codec.decode_many(view, 0, len(view), 0, 1000)
        assert [message.value for message in found] == [b"value"] * 1000


@pytest.mark.skipif(len(TWINS) == 1, reason="the compiled codec is not built here")
@both
@given(found=st.lists(messages, max_size=6), first=st.integers(0, 2**62), cut=st.integers(0, 60))
def test_messages_are_renumbered_in_place(codec: ModuleType, found: list[Message], first: int, cut: int) -> None:
    rows = [message._replace(offset=5 + at) for at, message in enumerate(found)]
    whole, rest = packed(rows), encoded(5 + len(rows), 1, 0, b"k", b"v" * 30)[:-1][:cut]
    data = bytearray(b"#" + whole + rest)
    assert codec.renumber(data, 1, len(data), 5, first) == (len(rows), 1 + len(whole))
    assert data == b"#" + packed([row._replace(offset=first + at) for at, row in enumerate(rows)]) + rest
    if rows:
        before = bytes(data)
        with pytest.raises(DecodeError):
            codec.renumber(data, 1, len(data), first + 1, 0)
        assert data == before


def filled(codec: ModuleType, data: bytes, position: int, due: int) -> tuple[int, int]:
    arrays = (memoryview(array(kind, [0] * 9)) for kind in "qqi")
    found: tuple[int, int] = codec.walk(data, position, len(data), due, *arrays)
    return found


@both
def test_no_message_has_the_largest_offset(codec: ModuleType) -> None:
    """It would leave no offset for the next one."""
    data = b"".join(encoded(MAX_OFFSET - 1 + n, 1, 2, b"k", b"v") for n in range(3))
    size = len(data) // 3
    for name, more in (
        ("decode_many", (9,)), ("measure", (1 << 20,)), ("columns", (9,)), ("columns", (9, False, False)),
    ):  # fmt: skip
        found = getattr(codec, name)(data, 0, len(data), MAX_OFFSET - 1, *more)
        assert (len(found[0]) if name == "decode_many" else found[0], found[1]) == (1, size), name
        with pytest.raises(DecodeError, match=f"exceeds the largest offset, {MAX_OFFSET - 1}") as raised:
            getattr(codec, name)(data, size, len(data), MAX_OFFSET, *more)
        assert (raised.value.position, raised.value.offset, raised.value.found) == (size, MAX_OFFSET, MAX_OFFSET)
        assert getattr(codec, name)(data[:-1], 2 * size, len(data) - 1, MAX_OFFSET, *more)[1] == 2 * size
    assert filled(codec, data, 0, MAX_OFFSET - 1) == (1, size)
    with pytest.raises(DecodeError, match="exceeds the largest offset"):
        filled(codec, data, size, MAX_OFFSET)
    assert codec.renumber(bytearray(data), 0, len(data), MAX_OFFSET - 1, 0) == (1, size)
    with pytest.raises(DecodeError, match="exceeds the largest offset"):
        codec.renumber(bytearray(data), size, len(data), MAX_OFFSET, 0)


@both
@pytest.mark.parametrize("due", [-1, 0, MAX_OFFSET - 2, MAX_OFFSET - 1, MAX_OFFSET])
def test_no_message_with_the_largest_offset_follows_damage(codec: ModuleType, due: int) -> None:
    data = b"".join(encoded(MAX_OFFSET + n, 1, 2, b"k", b"v") for n in range(2)) + encoded(due % 2**64, 1, 2, b"k", b"")
    assert codec.find_candidate(data, 0, len(data), due, -(1 << 62), len(data)) is None


def test_there_is_a_twin() -> None:
    made = {"IMPLEMENTATION", "Buffer", "Candidate", "Columns", "Run"}
    assert set(sej.codec.__all__) - made <= set(dir(TWINS[-1]))
    assert buffer_of(TWINS[-1]) is not buffer_of(REFERENCE)


# --- CRC32C, as published


@pytest.mark.parametrize(
    ("data", "expected"),
    [  # RFC 3720, B.4, and the check value of the catalogue of CRCs
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_published_values(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected
