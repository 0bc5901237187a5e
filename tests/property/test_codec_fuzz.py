"""Mutated and made-up bytes: the twins agree on everything, and the only error is DecodeError."""

import threading
from array import array
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sej import DecodeError
from sej.codec.format import MAX_OFFSET
from tests.sej.support import encoded, packed, sample
from tests.sej.test_codec import REFERENCE, TWINS, buffer_of, outcome

pytestmark = [pytest.mark.timeout(120), pytest.mark.both_codecs]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Good messages with bytes flipped, cut out, doubled, or lengths and offsets replaced by lies."""
    first = draw(st.sampled_from([0, 0, MAX_OFFSET - 2, MAX_OFFSET]))
    rows = sample(draw(st.integers(0, 4)), size=draw(st.sampled_from([8, 40])))
    data = bytearray(packed(row._replace(offset=first + row.offset) for row in rows))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 5)):
            case 0:
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case 1:
                del data[at : at + draw(st.integers(1, 40))]
            case 2:
                data[at:at] = data[: draw(st.integers(0, 60))]
            case 3:
                data[at : at + 4] = draw(st.sampled_from([2**31 - 1, 2**31 - 27, 2**31, 2**32 - 1, 0, 26])).to_bytes(
                    4, "big"
                )
            case 4:
                offset = draw(st.sampled_from([1, MAX_OFFSET - 1, MAX_OFFSET, MAX_OFFSET + 1, 2**64 - 1]))
                data[at : at + 8] = offset.to_bytes(8, "big")
            case _:
                data[at:at] = bytes(draw(st.integers(1, 60)))
    return bytes(data)


@given(
    data=st.one_of(mutated(), st.binary(max_size=200)),
    position=st.integers(0, 60),
    due=st.integers(0, 5) | st.integers(MAX_OFFSET - 4, MAX_OFFSET),
)
def test_twins_agree_on_whatever_bytes(data: bytes, position: int, due: int) -> None:
    position = min(position, len(data))
    for name, arguments in (
        ("message_size", (data, position, len(data))),
        ("decode", (data, position, len(data))),
        ("decode_many", (data, position, len(data), due, 100)),
        ("measure", (data, position, len(data), due, 1 << 20)),
        ("measure", (data, position, len(data), due, 30)),
        ("columns", (data, position, len(data), due, 100)),
        ("columns", (data, position, len(data), due, 100, False, False)),
        ("find_candidate", (data, position, len(data), due, position - 1, len(data))),
        ("find_candidate", (data, position, len(data), due, -300, len(data) + 100)),
        ("find_candidate", (data, position, len(data), -1, -(1 << 50), len(data) + 100)),
    ):
        found = [outcome(getattr(codec, name), *arguments) for codec in TWINS]
        assert all(each == found[0] for each in found), name
        if isinstance(found[0], tuple) and found[0] and isinstance(found[0][0], type):
            assert found[0][0] is DecodeError, name
    changed = []
    for codec in TWINS:
        offsets, timestamps, sizes = (array(kind, [0] * 3) for kind in "qqi")
        views = (memoryview(offsets), memoryview(timestamps), memoryview(sizes))
        copy = bytearray(data)
        filled = outcome(codec.walk, data, position, len(data), due, *views)
        renumbered = outcome(codec.renumber, copy, position, len(data), due, MAX_OFFSET - 1)
        changed.append((filled, offsets, timestamps, sizes, renumbered, copy))
    assert all(each == changed[0] for each in changed)


@given(data=mutated(), due=st.integers(0, 5))
def test_decoding_and_encoding_again_gives_the_same_bytes(data: bytes, due: int) -> None:
    for codec in TWINS:
        try:
            messages, end = codec.decode_many(data, 0, len(data), due, 1000)
        except DecodeError:
            continue
        assert packed(messages) == data[:end]
        assert [message.offset for message in messages] == list(range(due, due + len(messages)))
        assert codec.measure(data, 0, len(data), due, 1 << 30)[:2] == (len(messages), end)


def first_that_could_belong(data: bytes, position: int, due: int, damage: int, file_end: int) -> Any:
    """The rule of the document, byte by byte."""
    for at in range(position, len(data) - 25):
        try:
            size = REFERENCE.message_size(data, at, len(data))
            if size is None or at + size > file_end:
                continue
            if at + size <= len(data) and REFERENCE.decode(data, at, len(data)) is None:
                continue
        except DecodeError:
            continue
        offset = int.from_bytes(data[at : at + 8], "big")
        if due < offset <= due + (at - damage) // 26:
            return at, at + size, offset
    return None


noise = st.one_of(st.binary(max_size=120), st.integers(0, 200).map(bytes), mutated())
strays = st.builds(encoded, st.integers(0, 12), st.just(5), st.just(0), st.binary(max_size=3), st.binary(max_size=12))


@given(parts=st.lists(st.one_of(noise, strays), max_size=5), due=st.integers(-1, 6), passed=st.integers(0, 400))
@example(parts=[], due=-1, passed=0)
@example(parts=[bytes(500), encoded(3, 0, 0, b"", b"")], due=2, passed=0)
@example(parts=[bytes(500), encoded(0, 7, 0, b"", b"")], due=-1, passed=1 << 50)
@example(parts=[bytes(70000), encoded(300, 0, 0, b"", b"")], due=255, passed=0)
@example(parts=[bytes(70000), encoded(65536, 0, 0, b"", b"")], due=65530, passed=1 << 21)
def test_the_candidate_is_the_first_message_that_could_belong(parts: list[bytes], due: int, passed: int) -> None:
    data = b"".join(parts)
    for position in (0, min(7, len(data))):
        expected = first_that_could_belong(data, position, due, -passed, len(data) + 50)
        for codec in TWINS:
            found = codec.find_candidate(data, position, len(data), due, -passed, len(data) + 50)
            assert (None if found is None else tuple(found)) == expected


class Side:
    """A buffer and what it drained."""

    def __init__(self, codec: Any, first: int) -> None:
        self.file = bytearray()
        self.buffer = buffer_of(codec)(first, self.drain, threading.Lock())
        self.calls = 0

    def drain(self) -> None:
        self.calls += 1
        with self.buffer.pending() as view:
            self.file += view
        self.buffer.drained()
        if len(self.buffer) > 300:
            self.buffer.clear()

    def state(self) -> tuple[Any, ...]:
        times = (self.buffer.first_timestamp, self.buffer.last_timestamp, self.buffer.newest_timestamp)
        return bytes(self.file), self.calls, self.buffer.offset, len(self.buffer), times


rows = st.tuples(st.binary(max_size=60), st.binary(max_size=5), st.integers(0, 255), st.integers(-5, 5))


@given(
    steps=st.lists(st.one_of(rows, st.lists(rows, max_size=6), st.just("flush")), max_size=12),
    limits=st.tuples(st.sampled_from([1, 100, 1000]), st.sampled_from([1, 80, 1000])),
)
def test_buffers_drain_the_same_bytes_at_the_same_moments(steps: list[Any], limits: tuple[int, int]) -> None:
    sides = [Side(codec, 3) for codec in TWINS]
    appended: list[tuple[bytes, bytes, int, int]] = []
    for side in sides:
        side.buffer.limit, side.buffer.batch_limit = limits
    for step in steps:
        results = []
        for side in sides:
            if step == "flush":
                results.append(side.buffer.flush())
            elif isinstance(step, tuple):
                results.append(side.buffer.append(*step))
            else:
                values, keys, types, times = ([row[n] for row in step] for n in range(4))
                results.append(side.buffer.append_many(values, keys, types, times))
        assert all(each == results[0] for each in results)
        appended += [step] if isinstance(step, tuple) else [] if step == "flush" else step
        assert all(side.state() == sides[0].state() for side in sides)
    for side in sides:
        side.buffer.flush()
        assert side.file == b"".join(encoded(3 + n, row[3], row[2], row[1], row[0]) for n, row in enumerate(appended))
