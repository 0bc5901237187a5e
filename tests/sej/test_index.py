"""The sidecar index: written as the journal grows, rebuilt when it is missing or wrong, never believed over it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sej
from sej import CorruptionError
from sej.codec import IMPLEMENTATION, decode_many
from sej.journal import cursor as cursor_module
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory
from sej.journal.index import ENTRY_SIZE, HEAD_SIZE, Block, IndexFile, check_block
from sej.journal.segment import Place
from sej.system.checksum import crc32c
from sej.system.disk import OS
from sej.writing.shared_writer import SharedWriter
from tests.sej.hooks import HookedDisk, LookingDisk, ReadOnlyDisk
from tests.sej.support import encoded, flip, packed, read_all, segment, segments, write

COUNT = 12_000
ROWS = [sej.Message(n, n * 10, 0, b"", bytes([n % 251]) * 130) for n in range(COUNT)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Some blocks and a bit in a sealed segment, and a second segment."""
    with sej.Writer(tmp_path, segment_bytes=len(packed(ROWS[:-10])), durability="buffer") as w:
        fill(w)
    assert len(segments(tmp_path)) == 2
    return tmp_path


def fill(w: sej.Writer, start: int = 0) -> None:
    """One by one, as they come in life: so blocks end at 256 KiB."""
    for row in ROWS[start:]:
        w.append(row.value, row.key, row.type, row.timestamp)


def index(path: Path, first: int = 0) -> Path:
    return path / "idx" / f"{first:016x}.idx"


def entries(path: Path) -> list[bytes]:
    data = index(path).read_bytes()
    assert data[:16] == b"SEJINDEX" + (1).to_bytes(4, "big") + bytes(4)
    assert len(data) % 64 == 16
    return [data[at : at + 64] for at in range(16, len(data), 64)]


def covered(path: Path) -> int:
    """The bytes of the first segment that its index covers, after comparing every entry with them."""
    data = segment(path, 0).read_bytes()
    position, offset = 0, 0
    for entry in entries(path):
        number = [int.from_bytes(entry[at : at + 8], "big") for at in (0, 8, 16, 32, 40, 48)]
        end, count = number[1], int.from_bytes(entry[24:28], "big")
        if offset + count > COUNT:
            break  # not of these rows alone
        rows = ROWS[offset : offset + count]
        assert number == [position, end, offset, rows[0].timestamp, rows[-1].timestamp, rows[-1].timestamp]
        assert data[position:end] == packed(rows)
        assert int.from_bytes(entry[28:32], "big") == crc32c(data[position:end])
        assert int.from_bytes(entry[60:], "big") == crc32c(entry[:60])
        position, offset = end, offset + count
    return position


def test_every_block_has_its_place_times_and_checksum(path: Path) -> None:
    assert covered(path) == segment(path, 0).stat().st_size, "a sealed segment is covered to its end"
    assert len(entries(path)) > 2


def test_seeking_reads_one_block_not_the_segment(path: Path) -> None:
    disk = LookingDisk()
    with sej.Scanner(path, 2000, disk=disk) as s:
        assert s.read(1) == [ROWS[2000]]
    assert disk.bytes_read < 3 << 18 < len(packed(ROWS)), "a block, and what a read takes at once"
    disk.bytes_read = 0
    assert sej.Journal(path, disk=disk).find_time(ROWS[1500].timestamp) == 1500
    assert disk.bytes_read < len(packed(ROWS))


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "missing": lambda _: b"",
    "empty": lambda _: b"",
    "foreign": lambda _: b"this is something else entirely, and long enough to hold entries" * 20,
    "cut": lambda data: data[:-30],
    "head": lambda data: b"SEJINDEX" + (2).to_bytes(4, "big") + data[12:],
    "zeros": lambda data: data + bytes(640),
    "flipped": lambda data: flipped(data, min(16 + 64, len(data) - 64) + 20),
    "last doubled": lambda data: data + data[-64:],
    "order": lambda data: data[:16] + data[80:144] + data[16:80] + data[144:],
}


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def damage(file: Path, name: str) -> None:
    file.write_bytes(DAMAGE[name](file.read_bytes()))
    if name == "missing":
        file.unlink()


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_index_costs_time_and_nothing_else(name: str, path: Path) -> None:
    for first in (0, COUNT - 10):
        if index(path, first).exists():
            damage(index(path, first), name)
    before = {file.name: file.read_bytes() for file in (path / "idx").iterdir()}
    for verify in (False, True):
        assert read_all(path, verify=verify) == ROWS
        assert read_all(path, offset=1777, verify=verify) == ROWS[1777:]
    j = sej.Journal(path)
    assert (j.end_offset, j.find_time(12_340), j.tail(2)) == (COUNT, 1234, ROWS[-2:])
    assert j.verify() == []
    assert {file.name: file.read_bytes() for file in (path / "idx").iterdir()} == before, "readers write no index"
    with sej.Writer(path) as w:
        assert w.recovery is None and w.append(b"v") == COUNT
    assert sej.Journal(path).verify() == []


@pytest.mark.parametrize("name", DAMAGE)
def test_a_writer_rebuilds_the_index_of_the_segment_it_appends_to(name: str, tmp_path: Path) -> None:
    with sej.Writer(tmp_path, durability="buffer") as w:
        fill(w)
    damage(index(tmp_path), name)
    with sej.Writer(tmp_path) as w:
        fill(w)
    if name not in ("flipped", "order"):  # an odd entry in the middle is found by its reader
        assert covered(tmp_path) > len(packed(ROWS[:7500]))
    assert sej.Journal(tmp_path).verify() == []
    assert read_all(tmp_path, verify=True)[:COUNT] == ROWS
    flip(segment(tmp_path, 0), len(packed(ROWS[:7500])) + 40)
    if name not in ("flipped", "order"):
        with pytest.raises(CorruptionError, match="CRC32C"):
            read_all(tmp_path, verify=True)


def test_an_index_of_other_bytes_is_stale_not_damage(path: Path) -> None:
    """The segment was replaced by one with other messages: what differs in offsets or times is dropped."""
    others = [row._replace(timestamp=row.timestamp + 1, value=b"w" * 100) for row in ROWS[:-10]]
    segment(path, 0).write_bytes(packed(others))
    assert sej.Journal(path).verify() == []
    assert read_all(path, verify=True) == others + ROWS[-10:]


def test_an_index_longer_than_its_segment_is_stale(path: Path) -> None:
    segment(path, COUNT - 10).unlink()
    segment(path, 0).write_bytes(packed(ROWS[:1000]))
    assert read_all(path, verify=True) == ROWS[:1000]
    with sej.Writer(path) as w:
        assert w.offset == 1000 and w.recovery is None
        fill(w, 1000)
    assert read_all(path, verify=True) == ROWS
    assert sej.Journal(path).verify() == []


def kinds(path: Path) -> list[str]:
    return [problem.kind for problem in sej.Journal(path).verify()]


@pytest.mark.parametrize("how", ["append", "append much", "rotate"])
def test_a_closed_journal_has_a_checksum_for_every_message(how: str, tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as w:
        w.append(b"value")
        if how == "append much":
            w.append_many([b"v" * 100_000] * 30)  # more than an opening syncs by itself
        elif how == "rotate":
            w.end.rotate()
            w.append(b"value")
    for file in sorted((tmp_path / "jnl").iterdir()):
        flip(file, 24)
        assert kinds(tmp_path) == ["checksum"]
        with sej.Scanner(tmp_path, verify=True) as s, pytest.raises(CorruptionError):
            list(s)
        flip(file, 24)
    assert kinds(tmp_path) == []


def test_a_writer_continues_the_short_block_of_the_one_before(tmp_path: Path) -> None:
    for start in range(0, COUNT // 2, 400):
        with sej.Writer(tmp_path) as w:
            w.append_messages(ROWS[start : start + 400])
        with sej.Writer(tmp_path):
            pass  # appends nothing
        assert len(entries(tmp_path)) <= len(packed(ROWS[: start + 400])) // (1 << 18) + 1
        assert covered(tmp_path) == len(packed(ROWS[: start + 400]))
    flip(segment(tmp_path, 0), 24)
    assert kinds(tmp_path) == ["checksum"]


def test_a_short_block_has_its_checksum_whenever_the_next_writer_dies(tmp_path: Path) -> None:
    write(tmp_path, [b"important"])
    found: list[bytes] = []

    def hook(*_: object) -> None:
        (entry,) = entries(tmp_path)
        found.append(entry)

    write(tmp_path, [b"more"], disk=HookedDisk(hook))
    hook()
    assert len(set(found)) == 2
    assert all(int.from_bytes(entry[60:], "big") == crc32c(entry[:60]) for entry in found)


def test_messages_after_a_short_block_get_a_block_of_their_own(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as w:
        w.append_messages(ROWS[:5])
    with open(segment(tmp_path, 0), "ab") as original:
        original.write(packed(ROWS[5:8]))
    with sej.Writer(tmp_path) as w:
        w.append_messages(ROWS[8:12])
    assert len(entries(tmp_path)) == 2 and covered(tmp_path) == len(packed(ROWS[:12]))
    assert kinds(tmp_path) == []


def test_an_entry_with_another_field_is_not_of_the_segment(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as w:
        for size in (0, 10, 900, 3, 2000):
            w.append(bytes(size), b"key", timestamp=2**60 + size)
    rows, place = read_all(tmp_path), segment(tmp_path, 0)
    data = place.read_bytes()
    file = OS.open(place, "edit")
    with file.closing():
        for first, last in ((0, 0), (0, 1), (0, 2), (1, 3), (3, 3), (0, 4), (4, 4)):
            start, end = len(packed(rows[:first])), len(packed(rows[: last + 1]))
            times = rows[first].timestamp, rows[last].timestamp
            block = Block(start, end, first, last + 1 - first, 0, *times, 2**61)
            assert check_block(file, block)
            for field in ("position", "end", "first_offset", "messages", "first_timestamp", "last_timestamp"):
                for change in (1, 26, 2**62):
                    assert not check_block(file, block._replace(**{field: getattr(block, field) + change}))
            for at in (start, start + 9, end - 4, end - 1):
                file.write_at(bytes([data[at] ^ 0x81]), at)
                assert not check_block(file, block)
                file.write_at(data[at : at + 1], at)


def test_the_newest_time_never_falls_whatever_the_clock_does(tmp_path: Path) -> None:
    times = [(n * 7919) % 9001 for n in range(COUNT)]
    write(tmp_path, [b"v" * 100] * COUNT, timestamp=times, durability="buffer")
    newest = [int.from_bytes(entry[48:56], "big") for entry in entries(tmp_path)]
    assert newest == sorted(newest) and newest[-1] <= max(times)
    for asked in (0, 1, 1000, 8990, 9000, 9001):
        due = next((n for n, at in enumerate(times) if at >= asked), COUNT)
        assert sej.Journal(tmp_path).find_time(asked) == due


def test_a_journal_of_the_original_gets_its_index_from_the_first_writer(tmp_path: Path) -> None:
    (tmp_path / "jnl").mkdir()
    segment(tmp_path, 0).write_bytes(packed(ROWS))
    with sej.Writer(tmp_path) as w:
        w.end.append_encoded(encoded(COUNT, 0, 0, b"", b"v"))
    assert len(entries(tmp_path)) > 2
    assert len(read_all(tmp_path, verify=True)) == COUNT + 1


@pytest.mark.parametrize("small", [1, 200_000])
@pytest.mark.parametrize("large", [1 << 20, 3 << 20])
def test_a_message_that_is_larger_than_a_read_ends_a_block(tmp_path: Path, small: int, large: int) -> None:
    values = [bytes(small), bytes(large), b"behind"]
    with SharedWriter(tmp_path) as w:  # it opens at the end, and indexes the messages before it
        for value in values:
            w.append(value)
    assert [message.value for message in read_all(tmp_path, offset=1)] == values[1:]
    with sej.Writer(tmp_path) as w:
        assert w.append(b"on") == 3
    with SharedWriter(tmp_path) as w:
        assert w.append(b"and on") == 4
    assert sej.Journal(tmp_path).verify() == []
    whole = entries(tmp_path)[0]
    assert int.from_bytes(whole[24:28], "big") == 2
    segment(tmp_path, 0).write_bytes(segment(tmp_path, 0).read_bytes()[:-40] + bytes(40))  # what is torn is in no block
    index(tmp_path).unlink()
    with sej.Writer(tmp_path) as w:
        assert w.recovery is not None and w.offset == 3
    assert sej.Journal(tmp_path).verify() == []


def test_an_index_that_is_removed_while_a_writer_has_it_open_is_written_again(tmp_path: Path) -> None:
    write(tmp_path, [b"a"])
    with sej.Writer(tmp_path) as w:
        w.append(b"b")
        index(tmp_path).unlink()
    assert [int.from_bytes(entry[8:16], "big") for entry in entries(tmp_path)] == [segment(tmp_path, 0).stat().st_size]
    (tmp_path / "idx" / "durable").unlink()
    with sej.Writer(tmp_path) as w:
        assert w.append(b"c") == 2
    assert sej.Journal(tmp_path).verify() == []


def test_a_writer_that_may_only_read_the_index_appends_without_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, [b"a"])
    there = index(tmp_path).read_bytes()
    with sej.Writer(tmp_path, disk=ReadOnlyDisk("/idx/")) as w:
        assert w.append(b"b") == 1
    assert "could not be written: [Errno 13] Permission denied" in caplog.text
    assert index(tmp_path).read_bytes() == there
    with sej.Writer(tmp_path) as w:
        assert w.append(b"c") == 2
    assert sej.Journal(tmp_path).verify() == []
    assert int.from_bytes(entries(tmp_path)[-1][8:16], "big") == segment(tmp_path, 0).stat().st_size


# --- the cursor: asks a caller with little memory before it reads a large message; checks blocks before messages


MANY = 4000
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
    (only,) = directory.segments()
    with OS.open(only.path, "read") as file:
        return IndexFile(directory, only).load(file).blocks


def fill_blocks(path: Path, value: bytes = b"", timestamp: int = 1) -> None:
    with sej.Writer(path) as writer:
        for first in range(0, MANY, 125):
            writer.append_many([value + b"%0800d" % n for n in range(first, first + 125)], timestamp=timestamp)


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
    fill_blocks(tmp_path)
    blocks, file = blocks_of(tmp_path), segment(tmp_path, 0)
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
            kept = [n for n in range(start, MANY) if n not in lost]
            assert offsets_of(tmp_path, start, chunk_bytes=chunk_bytes, on_corruption="skip") == kept
        assert offsets_of(tmp_path, block.next_offset) == list(range(block.next_offset, MANY))


@pytest.mark.either_codec
@pytest.mark.parametrize("large", [False, True], ids=["small messages", "large messages"])
@pytest.mark.parametrize("missing", [False, True], ids=["a damaged entry", "a missing entry"])
@pytest.mark.parametrize("chunk_bytes", [1 << 16, 1 << 18, 1 << 20])
def test_a_block_after_one_without_an_entry_is_checked(
    chunk_bytes: int, missing: bool, large: bool, tmp_path: Path
) -> None:
    """An entry may be damaged; and one that the disk had no room for is missing."""
    count = 12 if large else MANY
    if large:
        write(tmp_path, [b"%0300000d" % n for n in range(count)])
    else:
        fill_blocks(tmp_path)
    blocks, file = blocks_of(tmp_path), segment(tmp_path, 0)
    whole, sound = index(tmp_path).read_bytes(), file.read_bytes()
    for at in (0, 1, 5, len(blocks) - 2):
        place = HEAD_SIZE + at * ENTRY_SIZE
        other = b"" if missing else bytes(ENTRY_SIZE - 1) + b"\x01"
        index(tmp_path).write_bytes(whole[:place] + other + whole[place + ENTRY_SIZE :])
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
    fill_blocks(tmp_path / "older")
    fill_blocks(tmp_path / "newer", timestamp=2)
    segment(tmp_path / "newer", 0).rename(segment(tmp_path / "older", 0))
    assert offsets_of(tmp_path / "older") == list(range(MANY))


def test_a_reader_that_starts_at_a_known_place_of_a_small_segment_checks_it(tmp_path: Path) -> None:
    write(tmp_path, [b"%08d" % n for n in range(100)])
    file = segment(tmp_path, 0)
    there = file.stat()
    file.write_bytes(file.read_bytes().replace(b"00000070", b"X0000070"))
    place = Place((there.st_dev, there.st_ino), 50 * 34)
    assert offsets_of(tmp_path, 50) == [-1]
    assert offsets_of(tmp_path, 50, place=place) == [-1]
