"""Blocks as columns by one call: the messages that were written, or nothing, so that the ordinary way decides."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sej
from sej.codec import IMPLEMENTATION, Columns, Views
from sej.journal import blocks as blocks_module
from sej.journal.blocks import BlockColumns
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory
from sej.journal.gaps import Gap
from sej.journal.index import Block
from sej.system.checksum import crc32c
from sej.system.disk import OS, File, OsFile
from tests.sej.support import packed

FIRST = 7
FIXED = BlockColumns(1 << 20)
sizes = st.sampled_from([0, 1, 4, 11, 12, 13, 100])


def memory(size: int) -> tuple[memoryview, bool]:
    return memoryview(mmap.mmap(-1, size)), True


def used_memory(size: int) -> tuple[memoryview, bool]:
    return memoryview(bytearray(b"\xff" * size)), False


EVERYTHING = BlockColumns(1 << 20, True, True, True, memory)
AVAILABLE = IMPLEMENTATION == "c" and BlockColumns(1).is_available
"""Pure Python reads everything the ordinary way, and so does a processor without the instructions."""


@st.composite
def journals(draw: st.DrawFn) -> tuple[list[sej.Message], list[int]]:
    """Messages from FIRST on, and the numbers of messages in their blocks."""
    counts = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    shapes = draw(st.lists(st.tuples(sizes, sizes), min_size=sum(counts), max_size=sum(counts)))
    rows = [
        sej.Message(FIRST + n, n * 10 - 5, n % 256, bytes([n + 1]) * key, bytes([n + 101]) * value)
        for n, (key, value) in enumerate(shapes)
    ]
    return rows, counts


def blocks_of(rows: Sequence[sej.Message], counts: Sequence[int]) -> tuple[bytes, list[Block]]:
    """The bytes of messages, and their blocks as a cursor holds them: from the last to the first."""
    data, found, at = b"", [], 0
    for count in counts:
        part = packed(rows[at : at + count])
        found.append(Block(len(data), len(data) + len(part), FIRST + at, count, crc32c(part), 0, 0, 0))
        data, at = data + part, at + count
    return data, found[::-1]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blocks") / "segment"


def opened(place: Path, data: bytes) -> File:
    place.write_bytes(data)
    return OS.open(place, "read")


def read(place: Path, data: bytes, blocks: list[Block], wanted: BlockColumns, limit: int) -> Columns | Views | None:
    file = opened(place, data)
    try:
        return wanted.read(file, blocks, blocks[-1].position if blocks else 0, FIRST, limit)
    finally:
        file.close()


def viewed(views: memoryview, data: memoryview) -> Iterator[bytes]:
    """Decode views as Arrow's format describes them."""
    for at in range(0, len(views), 16):
        size = struct.unpack_from("i", views, at)[0]
        if size <= 12:
            assert not any(views[at + 4 + size : at + 16])
            yield bytes(views[at + 4 : at + 4 + size])
        else:
            buffer, start = struct.unpack_from("ii", views, at + 8)
            assert buffer == 0 and bytes(views[at + 4 : at + 8]) == bytes(data[start : start + 4])
            yield bytes(data[start : start + size])


def assert_are(found: Columns | Views | None, rows: Sequence[sej.Message], wanted: BlockColumns, end: int) -> None:
    if not rows or not AVAILABLE:
        assert found is None
        return
    assert found is not None and found.messages == len(rows) and found.position == end
    assert list(memoryview(found.timestamps).cast("B").cast("q")) == [row.timestamp for row in rows]
    assert list(memoryview(found.types).cast("B").cast("i")) == [row.type for row in rows if wanted.types]
    if wanted.allocate is None:
        assert isinstance(found, Columns)
        assert found[4:] == (b"", b"", b"", b"")
    else:
        assert isinstance(found, Views)
        assert list(found.offsets.cast("B").cast("q")) == [row.offset for row in rows]
        assert list(viewed(found.keys, found.data)) == [row.key for row in rows if wanted.keys]
        assert list(viewed(found.values, found.data)) == [row.value for row in rows if wanted.values]


@settings(max_examples=60)
@given(
    journals(),
    st.sampled_from([FIXED, FIXED._replace(types=False), EVERYTHING]) | st.builds(
        BlockColumns, st.just(1 << 20), *[st.booleans()] * 3, st.sampled_from([memory, used_memory])
    ),
    st.integers(0, 25),
)  # fmt: skip
def test_whole_blocks_within_the_limit_are_read(
    place: Path, journal: tuple[list[sej.Message], list[int]], wanted: BlockColumns, limit: int
) -> None:
    rows, counts = journal
    data, blocks = blocks_of(rows, counts)
    fitting = [block for block in blocks if block.next_offset - FIRST <= limit]
    taken = fitting[0].next_offset - FIRST if fitting else 0
    assert_are(read(place, data, blocks, wanted, limit), rows[:taken], wanted, fitting[0].end if fitting else 0)


@settings(max_examples=60)
@given(journals(), st.sampled_from([FIXED, EVERYTHING]), st.data())
def test_a_changed_byte_ends_the_read_before_its_block(
    place: Path, journal: tuple[list[sej.Message], list[int]], wanted: BlockColumns, draw: st.DataObject
) -> None:
    rows, counts = journal
    data, blocks = blocks_of(rows, counts)
    at = draw.draw(st.integers(0, len(data) - 1))
    changed = data[:at] + bytes([data[at] ^ draw.draw(st.integers(1, 255))]) + data[at + 1 :]
    good = [block for block in blocks if block.end <= at]
    taken = good[0].next_offset - FIRST if good else 0
    assert_are(read(place, changed, blocks, wanted, 1000), rows[:taken], wanted, good[0].end if good else 0)
    cut = [block for block in blocks if block.end <= at]
    assert_are(read(place, data[:at], blocks, wanted, 1000), rows[:taken], wanted, cut[0].end if cut else 0)


ROWS = [sej.Message(FIRST + n, n, 0, b"", b"%0100d" % n) for n in range(30)]
COUNTS = [10, 10, 10]


@pytest.mark.parametrize("wanted", [FIXED, EVERYTHING], ids=["fixed", "everything"])
@pytest.mark.parametrize(
    "change",
    [
        {"messages": 9},
        {"messages": 11},
        {"messages": 2**32 - 1},
        {"first_offset": FIRST + 9},
        {"position": 1},
        {"end": 2**63},
        {"end": 2**64 - 1},
        {"end": 1 << 20},
        {"crc32c": 0},
    ],
    ids=str,
)
def test_a_wrong_entry_ends_the_read_before_its_block(
    place: Path, change: dict[str, int], wanted: BlockColumns
) -> None:
    data, blocks = blocks_of(ROWS, COUNTS)
    for at in (0, 1):
        wrong = [*blocks[:at], blocks[at]._replace(**change), *blocks[at + 1 :]]
        taken = (2 - at) * 10
        assert_are(read(place, data, wrong, wanted, 1 << 40), ROWS[:taken], wanted, blocks[at].position)


@pytest.mark.parametrize("wanted", [FIXED, EVERYTHING], ids=["fixed", "everything"])
def test_blocks_with_other_messages_are_not_read_although_the_checksum_is_right(
    place: Path, wanted: BlockColumns
) -> None:
    for number, offset in ((3, 99), (9, 2**63)):
        row = packed([ROWS[number]])
        other = bytearray(packed(ROWS[:number]) + offset.to_bytes(8, "big") + row[8:] + packed(ROWS[number + 1 : 10]))
        block = Block(0, len(other), FIRST, 10, crc32c(other), 0, 0, 0)
        assert read(place, bytes(other), [block], wanted, 1000) is None


def test_a_call_is_limited_in_bytes(place: Path) -> None:
    data, blocks = blocks_of(ROWS, COUNTS)
    for wanted in (FIXED, EVERYTHING):
        for size, taken in ((blocks[-1].end - 1, 0), (blocks[-1].end, 10), (blocks[0].position + 1, 20)):
            limited = wanted._replace(size=size)
            end = len(data) * taken // 30
            assert_are(read(place, data, blocks, limited, 1000), ROWS[:taken], limited, end)


def test_memory_holds_the_bytes_that_views_refer_to_alone(place: Path) -> None:
    """Unless they are most of the bytes: then nothing is moved."""
    rows = [sej.Message(FIRST + n, n, 0, b"k" * 20, b"%0400d" % n) for n in range(20)]
    data, blocks = blocks_of(rows, [10, 10])
    for keys, values, size in ((True, False, 20 * 20), (False, True, len(data)), (True, True, len(data))):
        wanted = BlockColumns(1 << 20, False, keys, values, memory)
        found = read(place, data, blocks, wanted, 1000)
        assert_are(found, rows, wanted, len(data))
        if AVAILABLE:
            assert isinstance(found, Views)
            assert size <= len(found.data) <= size + 2 * 64


def test_too_little_memory_is_refused(place: Path) -> None:
    data, blocks = blocks_of(ROWS, COUNTS)
    wanted = EVERYTHING._replace(allocate=lambda size: used_memory(size - 1))
    if AVAILABLE:
        with pytest.raises(ValueError, match="the memory must have"):
            read(place, data, blocks, wanted, 1000)
    else:
        assert read(place, data, blocks, wanted, 1000) is None


class _OtherFile(OsFile):
    """A file that is not read by the system alone."""


def test_a_file_of_another_kind_is_read_the_ordinary_way(place: Path) -> None:
    data, blocks = blocks_of(ROWS, COUNTS)
    place.write_bytes(data)
    file = _OtherFile(os.open(place, os.O_RDWR), str(place))
    try:
        assert FIXED.read(file, blocks, 0, FIRST, 1000) is None
    finally:
        file.close()


def test_a_processor_without_the_instructions_reads_the_ordinary_way(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, blocks = blocks_of(ROWS, COUNTS)
    assert_are(read(place, data, blocks, FIXED, 1000), ROWS, FIXED, len(data))
    monkeypatch.setattr(blocks_module, "_compiled", None)
    assert read(place, data, blocks, FIXED, 1000) is None


Read = list[tuple[bool, int, int]]


def runs_of(path: Path, start: int, wanted: BlockColumns | None, **options: Any) -> tuple[Read, str, list[Gap]]:
    """How a cursor reads a journal: whether as blocks, the first and last offset of each read; the error, the gaps."""
    cursor = Cursor(Directory(path, OS), start, **options)
    found: Read = []
    try:
        while True:
            columns = None if wanted is None else cursor.read_blocks(10_000, wanted)
            quick = columns is not None
            columns = columns or cursor.read_columns(10_000)
            if columns is None:
                return found, "", cursor.gaps
            found.append((quick, cursor.due - columns.messages, cursor.due - 1))
    except sej.CorruptionError as error:
        return found, str(error), cursor.gaps
    finally:
        cursor.close()


def offsets_in(found: Read) -> list[int]:
    return [offset for _, first, last in found for offset in range(first, last + 1)]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Three segments of several blocks, and messages that are in no block."""
    with sej.Writer(tmp_path / "journal", segment_bytes=1 << 20) as writer:
        for _ in range(24):
            writer.append_many([b"x" * 1000] * 100)
    return tmp_path / "journal"


def test_a_cursor_reads_blocks_between_what_it_reads_the_ordinary_way(journal: Path) -> None:
    """A block that is entered in the middle, and messages after the last block, belong to no whole block."""
    for start in (0, 1):
        found, error, gaps = runs_of(journal, start, FIXED, verify=True)
        assert (offsets_in(found), error, gaps) == (list(range(start, 2400)), "", [])
        if AVAILABLE:
            assert found[start][0] and [quick for quick, _, _ in found].count(True) >= 2
    for wanted, verify in ((FIXED, False), (BlockColumns(1), True)):
        found, *_ = runs_of(journal, 0, wanted, verify=verify)
        assert offsets_in(found) == list(range(2400)) and not any(quick for quick, _, _ in found)


@pytest.mark.parametrize("on_corruption", ["raise", "skip"])
def test_a_cursor_meets_damage_as_without_blocks(journal: Path, on_corruption: str) -> None:
    """In the first, the second and the last block, in an entry of the index, and both."""
    segment, index = journal / "jnl" / f"{0:016x}.jnl", journal / "idx" / f"{0:016x}.idx"
    for file, at in [(segment, 5000), (segment, 300_000), (segment, -5), (index, 16 + 70), (index, -1)]:
        sound = file.read_bytes()
        changed = bytearray(sound)
        changed[at] ^= 1
        file.write_bytes(changed)
        options = {"verify": True, "on_corruption": on_corruption}
        plain, *outcome = runs_of(journal, 0, None, **options)
        for wanted in (FIXED, EVERYTHING):
            found, *same = runs_of(journal, 0, wanted, **options)
            assert offsets_in(found) == offsets_in(plain) and same == outcome
        assert bool(outcome[0]) == (file is segment and on_corruption == "raise")
        assert bool(outcome[1]) == (file is segment and on_corruption == "skip")
        file.write_bytes(sound)
