"""What a writer, a scanner and ``verify`` say about damaged segments is what the documents say.

:func:`judge` is a decoder of its own, written from ``docs/formats/sej.md`` and the rules of ``docs/guarantees.md``.
"""

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import sej
from tests.sej.support import by_hand, encoded, segment

Row = tuple[int, int, int, bytes, bytes]
"""Offset, timestamp, type, key, value."""


def whole(data: bytes, at: int) -> tuple[Row, int] | None:
    """The well-formed message at a position and where it ends, whatever its offset is."""
    if len(data) - at < 26:
        return None
    offset, timestamp, type_, key_size = struct.unpack_from(">QqBb", data, at)
    if key_size < 0 or len(data) - at < 26 + key_size:
        return None
    (value_size,) = struct.unpack_from(">i", data, at + 18 + key_size)
    end = at + 26 + key_size + value_size
    if value_size < 0 or end > len(data) or struct.unpack_from(">i", data, end - 4)[0] != end - at:
        return None
    return (offset, timestamp, type_, data[at + 18 : at + 18 + key_size], data[at + 22 + key_size : end - 4]), end


def is_cut_off(data: bytes, at: int, due: int) -> bool:
    """Whether the header of the expected message is there, and its length points past the end of the file."""
    if len(data) - at < 22:
        return False
    offset, _, _, key_size = struct.unpack_from(">QqBb", data, at)
    if offset != due or key_size < 0 or len(data) - at < 22 + key_size:
        return False
    (value_size,) = struct.unpack_from(">i", data, at + 18 + key_size)
    end: int = at + 26 + key_size + value_size
    return value_size >= 0 and len(data) < end < at + 2**31


def followers(data: bytes, at: int, due: int) -> Iterator[tuple[int, int]]:
    """The offset and the end of each message after ``at`` that could belong to the journal."""
    for place in range(at + 1, len(data) - 25):
        found = whole(data, place)
        if found is not None and due < found[0][0] < 2**63 - 1 and (found[0][0] - due) * 26 <= place - at:
            yield found[0][0], found[1]


def is_chain(data: bytes, offset: int, end: int) -> bool:
    """Whether at least one more message follows, and consecutive ones reach the end of the file."""
    messages = 1
    while end < len(data):
        found = whole(data, end)
        if found is None or found[0][0] != offset + messages:
            return False
        messages, end = messages + 1, found[1]
    return messages > 1


def judge(data: bytes, due: int) -> tuple[list[Row], str, int]:
    """The good messages of the last segment, what follows them, and where that begins."""
    rows: list[Row] = []
    at = 0
    while at < len(data):
        found = whole(data, at)
        if found is None:
            follow = list(followers(data, at, due))
            if is_cut_off(data, at, due):
                follow = [one for one in follow if is_chain(data, *one)]
            return rows, "corruption" if follow else "torn tail", at
        if found[0][0] != due:
            return rows, "corruption", at
        rows.append(found[0])
        due, at = due + 1, found[1]
    return rows, "sound", at


def value(dice: random.Random, offset: int) -> bytes:
    if dice.random() < 0.7:
        return dice.randbytes(dice.choice([0, 1, 20, 60]))
    first = max(offset + dice.choice([-3, 0, 1, 2, 7]), 0)
    inside = b"".join(encoded(first + n, 7, 1, b"k", b"vv") for n in range(dice.randrange(1, 4)))
    return dice.randbytes(dice.choice([0, 3])) + inside + dice.randbytes(dice.choice([0, 2]))


def damaged(dice: random.Random, data: bytes) -> bytes:
    at = dice.randrange(len(data))
    end = at + dice.choice([1, 4, 8, 26, 60])
    return {
        "flip": data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :],
        "cut": data[:at],
        "cut out": data[:at] + data[end:],
        "put in": data[:at] + dice.randbytes(end - at) + data[at:],
        "twice": data[:end] + data[at:],
        "zeros": data[:at] + bytes(len(data[at:end])) + data[end:],
        "zeros to the end": data[:at] + bytes(len(data) - at),
        "number": data[:at] + dice.choice([b"\xff" * 4, b"\x7f\xff\xff\xff", bytes(4)]) + data[at + 4 :],
        "none": data,
    }[dice.choice(["flip", "cut", "cut out", "put in", "twice", "zeros", "zeros to the end", "number", "none"])]


def scanned(path: Path) -> tuple[list[Row], int | None]:
    """What a scanner yields, and where it finds corruption."""
    rows: list[Row] = []
    try:
        with sej.Scanner(path) as scanner:
            rows.extend((m.offset, m.timestamp, m.type, m.key, m.value) for m in scanner)
    except sej.CorruptionError as error:
        return rows, error.position
    return rows, None


def opened(path: Path) -> tuple[int | None, int | None]:
    """The next offset of a writer, and where it cuts a torn tail; or None, and where it finds corruption."""
    try:
        with sej.Writer(path) as writer:
            return writer.offset, None if writer.recovery is None else writer.recovery.position
    except sej.CorruptionError as error:
        return None, error.position


@pytest.mark.either_codec
@pytest.mark.parametrize("seed", range(4))
def test_damaged_segments_are_judged_by_the_documents(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    verdicts = set()
    for number in range(40):
        path = tmp_path / str(number)
        first = dice.choice([0, 5, 2**33])
        offsets = range(first, first + dice.randrange(1, 9))
        data = b"".join(
            encoded(
                n,
                dice.choice([-(2**63), -5, 10**18]),
                n % 256,
                dice.randbytes(dice.choice([0, 3, 127])),
                value(dice, n),
            )
            for n in offsets
        )
        data = damaged(dice, data)
        by_hand(path, (first, data))
        rows, verdict, at = judge(data, first)
        verdicts.add(verdict)
        assert scanned(path) == (rows, at if verdict == "corruption" else None)
        problems = [(problem.kind, problem.position) for problem in sej.Journal(path).verify()]
        assert problems[:1] == ([] if verdict == "sound" else [(verdict, at)])
        assert opened(path) == (
            None if verdict == "corruption" else first + len(rows),
            None if verdict == "sound" else at,
        )
        assert segment(path, first).read_bytes() == (data[:at] if verdict == "torn tail" else data)
    assert verdicts == {"sound", "torn tail", "corruption"}
