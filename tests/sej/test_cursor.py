"""The cursor: asks a caller with little memory before it reads a large message; checks blocks before messages."""

from pathlib import Path
from typing import Any

import pytest

import sej
from sej.codec import IMPLEMENTATION, decode_many
from sej.journal import cursor as cursor_module
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory
from sej.journal.index import ENTRY_SIZE, HEAD_SIZE, Block, IndexFile
from sej.journal.segment import Place
from sej.system.disk import OS
from tests.sej.support import write

COUNT = 16_000
STEP = 1 if IMPLEMENTATION == "c" else 2
"""Pure Python, which reads much slower, tries every other case."""


def test_a_large_message_is_read_only_if_there_is_room(tmp_path: Path) -> None:
    values = [b"a", b"b" * 10_000, b"c" * 3000, b"d" * 20_000]
    write(tmp_path, values)
    asked: list[int] = []
    refuse = True

    class Limit:
        def make_room(self, size: int) -> None:
            asked.append(size)
            if refuse:
                raise MemoryError

    cursor = Cursor(Directory(tmp_path, OS), 0, chunk_bytes=4096, room=Limit())
    found = cursor.read_encoded(1)[0]
    assert len(found) == 27
    for _ in range(2):
        with pytest.raises(MemoryError):
            cursor.read_encoded(1)
        assert cursor.due == 1
    refuse = False
    while (data := cursor.read_encoded(1)[0]) != b"":
        found += data
    cursor.close()
    assert asked == [10_026, 10_026, 10_026, 20_026]
    assert [message.value for message in decode_many(found, 0, len(found), 0, 10)[0]] == values


def blocks_of(path: Path) -> list[Block]:
    directory = Directory(path, OS)
    (segment,) = directory.segments()
    with OS.open(segment.path, "read") as file:
        return IndexFile(directory, segment).load(file).blocks


def segment_of(path: Path) -> Path:
    (file,) = (path / "jnl").iterdir()
    return file


def fill(path: Path, value: bytes = b"", timestamp: int = 1) -> None:
    with sej.Writer(path) as writer:
        for first in range(0, COUNT, 500):
            writer.append_many([value + b"%0200d" % n for n in range(first, first + 500)], timestamp=timestamp)


def offsets_of(path: Path, start: int = 0, **options: Any) -> list[int]:
    """Return the offsets that a verifying cursor returns; then -1 if a checksum is wrong."""
    cursor = Cursor(Directory(path, OS), start, verify=True, **options)
    found: list[int] = []
    try:
        while (columns := cursor.read_columns(700)) is not None:
            found.extend(range(cursor.due - columns.messages, cursor.due))
    except sej.CorruptionError as error:
        found.append(-1 if "CRC32C" in error.reason else -2)
    finally:
        cursor.close()
    return found


@pytest.mark.either_codec
@pytest.mark.parametrize(("chunk_bytes", "ahead"), [(1 << 16, 1), (1 << 18, 64), (1 << 20, 3)])
def test_a_block_is_checked_before_its_messages_are_returned(
    ahead: int, chunk_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursor_module, "_BLOCKS_AHEAD", ahead)
    fill(tmp_path)
    blocks, file = blocks_of(tmp_path), segment_of(tmp_path)
    assert len(blocks) > 8
    sound = file.read_bytes()
    for block in [blocks[at] for at in (0, 1, 5, 6, -1)][::STEP]:
        data = bytearray(sound)
        data[block.position + 100] ^= 1
        file.write_bytes(data)
        lost = range(block.first_offset, block.next_offset)
        for start in (0, 1, block.first_offset + 5, block.first_offset, block.next_offset - 1)[::STEP]:
            before = list(range(start, block.first_offset))
            assert offsets_of(tmp_path, start, chunk_bytes=chunk_bytes) == [*before, -1]
            kept = [n for n in range(start, COUNT) if n not in lost]
            assert offsets_of(tmp_path, start, chunk_bytes=chunk_bytes, on_corruption="skip") == kept
        assert offsets_of(tmp_path, block.next_offset) == list(range(block.next_offset, COUNT))


@pytest.mark.either_codec
@pytest.mark.parametrize("large", [False, True], ids=["small messages", "large messages"])
@pytest.mark.parametrize("missing", [False, True], ids=["a damaged entry", "a missing entry"])
@pytest.mark.parametrize("chunk_bytes", [1 << 16, 1 << 18, 1 << 20])
def test_a_block_after_one_without_an_entry_is_checked(
    chunk_bytes: int, missing: bool, large: bool, tmp_path: Path
) -> None:
    """An entry may be damaged; and one that the disk had no room for is missing."""
    count = 12 if large else COUNT
    if large:
        write(tmp_path, [b"%0300000d" % n for n in range(count)])
    else:
        fill(tmp_path)
    blocks, file = blocks_of(tmp_path), segment_of(tmp_path)
    (index,) = (tmp_path / "idx").glob("0*")
    entries, sound = index.read_bytes(), file.read_bytes()
    for at in (0, 1, 5, len(blocks) - 2):
        place = HEAD_SIZE + at * ENTRY_SIZE
        other = b"" if missing else bytes(ENTRY_SIZE - 1) + b"\x01"
        index.write_bytes(entries[:place] + other + entries[place + ENTRY_SIZE :])
        assert offsets_of(tmp_path, chunk_bytes=chunk_bytes) == list(range(count))
        block = blocks[at + 1]
        data = bytearray(sound)
        data[block.position + 100] ^= 1
        file.write_bytes(data)
        for start in (0, blocks[at].first_offset, block.first_offset - 1):
            before = list(range(start, block.first_offset))
            assert offsets_of(tmp_path, start, chunk_bytes=chunk_bytes) == [*before, -1]
        file.write_bytes(sound)


@pytest.mark.parametrize("ahead", [1, 3, 64])
def test_entries_of_an_older_segment_are_dropped(ahead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor_module, "_BLOCKS_AHEAD", ahead)
    fill(tmp_path / "older")
    fill(tmp_path / "newer", timestamp=2)
    segment_of(tmp_path / "newer").rename(segment_of(tmp_path / "older"))
    assert offsets_of(tmp_path / "older") == list(range(COUNT))


def test_a_reader_that_starts_at_a_known_place_of_a_small_segment_checks_it(tmp_path: Path) -> None:
    write(tmp_path, [b"%08d" % n for n in range(100)])
    file = segment_of(tmp_path)
    there = file.stat()
    file.write_bytes(file.read_bytes().replace(b"00000070", b"X0000070"))
    place = Place((there.st_dev, there.st_ino), 50 * 34)
    assert offsets_of(tmp_path, 50) == [-1]
    assert offsets_of(tmp_path, 50, place=place) == [-1]
