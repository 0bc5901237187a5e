"""Journals that the original wrote: read as their manifests say, continued, and written again byte for byte."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import sej
from sej import CorruptionError, OffsetGapError
from sej.codec import encode, format
from sej.journal import index, offset_check
from sej.journal.directory import Directory
from sej.journal.index import Block
from sej.reading.attempts import Attempts
from sej.system.checksum import crc32c
from sej.system.disk import OS
from tests.sej.support import by_hand, cases, expected, golden, manifest, packed, read_all, sample, segment, segments

CORRUPT = ["corrupt-middle-good-tail", "torn-nonlast", "torn-nonlast-first-message", "wrong-offset-tail"]
GAPS = ["gap-middle-segment-missing"]
TORN = [case for case in cases() if "torn" in manifest(case) and case not in CORRUPT]
SOUND = [case for case in cases() if case not in (*CORRUPT, *GAPS, *TORN)]


def damage_at(found: dict[str, Any]) -> tuple[str, int]:
    """Return the segment and the position after the good messages."""
    messages = expected(found["messages"])
    end = found["next_offset"]
    first = max(int(each["name"][:16], 16) for each in found["segments"] if int(each["name"][:16], 16) <= end)
    return f"{first:016x}.jnl", len(packed(message for message in messages if message.offset >= first))


def test_every_kind_of_case_is_there() -> None:
    assert (len(SOUND), len(TORN), len(CORRUPT), len(GAPS)) == (10, 14, 4, 1)
    assert sorted([*SOUND, *TORN, *CORRUPT, *GAPS]) == cases()


@pytest.mark.parametrize("case", SOUND)
def test_sound_journal_reads_as_written(case: str, tmp_path: Path) -> None:
    found = manifest(case)
    path = golden(case, tmp_path)
    before = segments(path)
    messages = expected(found["messages"])
    assert read_all(path) == messages
    assert read_all(path, verify=True) == messages
    journal = sej.Journal(path)
    assert (journal.first_offset, journal.end_offset) == (found["first_offset"], found["next_offset"])
    assert [(each.name, each.size) for each in journal.segments] == [
        (each["name"], each["size"]) for each in found["segments"]
    ]
    assert list(journal.reversed()) == messages[::-1]
    assert journal.tail(3) == messages[-3:]
    assert journal.verify() == []
    assert segments(path) == before
    assert {each.name for each in path.iterdir()} <= {"jnl", "ofs"}, "looking creates nothing"


@pytest.mark.parametrize("case", SOUND)
def test_writer_continues_where_the_original_ended(case: str, tmp_path: Path) -> None:
    found = manifest(case)
    path = golden(case, tmp_path)
    before = segments(path)
    with sej.Writer(path) as w:
        assert w.recovery is None
        assert w.offset == found["next_offset"]
        assert segments(path) == before
        assert w.append(b"more", b"key", 3, 4) == found["next_offset"]
    more = sej.Message(found["next_offset"], 4, 3, b"key", b"more")
    assert read_all(path) == [*expected(found["messages"]), more]
    assert all(data.startswith(before[name]) for name, data in segments(path).items())
    assert sej.Journal(path).verify() == []


@pytest.mark.parametrize("durability", ["buffer", "os"])
@pytest.mark.parametrize("case", SOUND)
def test_written_again_the_segments_are_the_same_bytes(case: str, durability: Any, tmp_path: Path) -> None:
    found = manifest(case)
    messages = expected(found["messages"])
    again = tmp_path / "again"
    firsts = [int(each["name"][:16], 16) for each in found["segments"]]
    for each, stop in zip(found["segments"], [*firsts[1:], 1 << 62], strict=True):
        # A segment is ended by the message that makes it as long as asked: its own size ends it at the same one.
        size = each["size"] if stop < 1 << 62 else 1 << 30
        options: Any = {"segment_bytes": size, "durability": durability, "first_offset": found["first_offset"]}
        with sej.Writer(again, **options) as w:
            for message in (m for m in messages if w.offset <= m.offset < stop):
                assert w.append(message.value, message.key, message.type, message.timestamp) == message.offset
    assert segments(again) == segments(golden(case, tmp_path))


@pytest.mark.parametrize("case", [case for case in SOUND if "segment_size" in manifest(case)])
def test_one_writer_with_the_same_segment_size_cuts_the_same_segments(case: str, tmp_path: Path) -> None:
    found = manifest(case)
    with sej.Writer(tmp_path / "again", segment_bytes=found["segment_size"]) as w:
        w.append_messages(expected(found["messages"]))
    assert segments(tmp_path / "again") == segments(golden(case, tmp_path))


@pytest.mark.parametrize("case", TORN)
def test_torn_tail_is_read_up_to_the_tear(case: str, tmp_path: Path) -> None:
    found = manifest(case)
    path = golden(case, tmp_path)
    before = segments(path)
    assert read_all(path) == expected(found["messages"])
    journal = sej.Journal(path)
    assert journal.end_offset == found["next_offset"]
    assert list(journal.reversed()) == expected(found["messages"])[::-1]
    name, position = damage_at(found)
    problems = journal.verify()
    if len(before[name]) == position:  # torn-cut-all: cut exactly between two messages
        assert problems == []
    else:
        assert [(each.kind, Path(each.path).name, each.position, each.offset) for each in problems] == [
            ("torn tail", name, position, found["next_offset"])
        ]
    assert segments(path) == before


@pytest.mark.parametrize("case", TORN)
def test_torn_tail_is_cut_kept_and_reported(case: str, tmp_path: Path) -> None:
    found = manifest(case)
    path = golden(case, tmp_path)
    before = segments(path)
    name, position = damage_at(found)
    assert (name, position) == (found["torn"]["file"], found["torn"]["good_size"])
    cut = before[name][position:]
    with sej.Writer(path) as w:
        assert w.offset == found["next_offset"]
        assert segments(path) == {**before, name: before[name][:position]}
        if cut:
            assert w.recovery is not None
            assert (w.recovery.path, w.recovery.position) == (str(path / "jnl" / name), position)
            assert (w.recovery.offset, w.recovery.size) == (found["next_offset"], len(cut))
            assert Path(w.recovery.kept).read_bytes() == cut
            assert Path(w.recovery.kept).parent == path / "kept"
        else:
            assert w.recovery is None and not (path / "kept").exists()
        assert w.append(b"after", timestamp=1) == found["next_offset"]
    with sej.Writer(path) as w:
        assert w.recovery is None
    after = sej.Message(found["next_offset"], 1, 0, b"", b"after")
    assert read_all(path) == [*expected(found["messages"]), after]


@pytest.mark.parametrize("timeout", [0.0, None])
@pytest.mark.parametrize("case", [*CORRUPT, *GAPS])
def test_corruption_is_loud_and_nothing_is_cut(case: str, timeout: float | None, tmp_path: Path) -> None:
    found = manifest(case)
    path = golden(case, tmp_path)
    before = segments(path)
    name, position = damage_at(found)
    read: list[sej.Message] = []
    with sej.Scanner(path, timeout=timeout) as scanner, pytest.raises(CorruptionError) as raised:
        read.extend(scanner)
    assert read == expected(found["messages"])
    place = (str(path / "jnl" / name), position, found["next_offset"])
    assert (raised.value.path, raised.value.position, raised.value.offset) == place
    assert isinstance(raised.value, OffsetGapError) == (case in GAPS)
    problems = sej.Journal(path).verify()
    assert problems[0][1:4] == place
    assert segments(path) == before


@pytest.mark.parametrize("case", ["corrupt-middle-good-tail", "wrong-offset-tail"])
def test_writer_refuses_a_damaged_last_segment(case: str, tmp_path: Path) -> None:
    found = manifest(case)
    path = golden(case, tmp_path)
    before = segments(path)
    name, position = damage_at(found)
    place = (str(path / "jnl" / name), position, found["next_offset"])
    for _ in range(2):  # the lock is free again after the refusal
        with pytest.raises(CorruptionError) as raised:
            sej.Writer(path)
        assert (raised.value.path, raised.value.position, raised.value.offset) == place
    assert segments(path) == before and not (path / "kept").exists()


@pytest.mark.parametrize("case", ["torn-nonlast", "torn-nonlast-first-message", *GAPS])
def test_writer_continues_after_damage_in_older_segments(case: str, tmp_path: Path) -> None:
    found = manifest(case)
    path = golden(case, tmp_path)
    before = segments(path)
    after = expected(found["messages_after_damage"])
    with sej.Writer(path) as w:
        assert w.offset == after[-1].offset + 1 and w.recovery is None
    assert segments(path) == before


@pytest.mark.parametrize("case", [*CORRUPT, *GAPS])
def test_skipping_passes_the_damage_and_counts_it(case: str, tmp_path: Path) -> None:
    found = manifest(case)
    path = golden(case, tmp_path)
    with sej.Scanner(path, on_corruption="skip") as scanner:
        read = list(scanner)
        gaps = scanner.gaps
    good = expected(found["messages"])
    # The messages of wrong-offset-tail are well formed, and no reader can decide whether they belong to the journal.
    after = expected(found.get("messages_after_damage", [])) or read[len(good) :]
    assert read == [*good, *after]
    assert [gap.start for gap in gaps] == [found["next_offset"]]
    assert sum(gap.missing for gap in gaps) == after[0].offset - found["next_offset"]


def test_kept_offsets_of_the_original_are_read(tmp_path: Path) -> None:
    found = manifest("offsets")
    path = golden("offsets", tmp_path)
    for file, written in found["offset_files_hex"].items():
        assert (path / "ofs" / file).read_bytes().hex() == written
        name = file.removesuffix(".ofs")
        assert sej.read_offset(path, name) == (int(written, 16) if written else None)
    for name in ("fresh-first", "commit-default", "reader1", "reader2"):
        default = sej.LAST if name == "commit-default" else sej.FIRST
        with sej.Offset(path, name, default) as o:
            assert o.value == found["offset_values_after_open"][name]
    with pytest.raises(sej.OffsetBeyondEndError) as raised:
        sej.Offset(path, "reader3")
    assert raised.value.offset == 0x0102030405060708
    with sej.Offset(path, "reader3", beyond_end="rewind") as o:
        assert o.value == 40


def test_only_empty_high_segment_gives_the_next_offset(tmp_path: Path) -> None:
    path = golden("only-empty-high", tmp_path)
    with sej.Writer(path) as w:
        assert w.append(b"five") == 5
    assert list(segments(path)) == [segment(path, 5).name]


# --- docs/formats/sej.md: its tables are the code's layouts, its dumps the code's bytes


PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "formats" / "sej.md").read_text()
CODES = {"uint64": "Q", "int64": "q", "uint32": "I", "int32": "i", "uint8": "B", "int8": "b"}
MESSAGE = encode(0, 1357034400000000000, 0, b"alice", b"3 apples")


def tables() -> list[list[list[str]]]:
    """The cells of each table of the page, without its head."""
    found = re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE)
    rows = [[line.strip("|").split("|") for line in table.splitlines()[2:]] for table in found]
    return [[[cell.strip() for cell in row] for row in table] for table in rows]


def dumps() -> list[bytes]:
    """The bytes of each hex dump of the page."""
    found = re.findall(r"```\n((?:[0-9a-f]{8}: .*\n)+)```", PAGE)
    return [b"".join(bytes.fromhex(line[10:49].split("  ")[0]) for line in dump.splitlines()) for dump in found]


def test_the_message_is_as_the_table_says() -> None:
    rows = tables()[0]
    assert [row[0] for row in rows] == [
        "offset", "timestamp", "type", "key_size", "key", "value_size", "value", "size",
    ]  # fmt: skip
    fixed = [row for row in rows if row[2]]
    assert ">" + "".join(CODES[row[2]] for row in fixed[:4]) == format.HEAD.format
    assert {">" + CODES[row[2]] for row in fixed[4:]} == {format.INT32.format}
    assert sum(int(row[1]) for row in fixed) == format.OVERHEAD_SIZE == 26


def test_the_index_entry_is_as_the_table_says() -> None:
    rows = tables()[4]
    assert [row[0] for row in rows[:8]] == list(Block._fields)
    assert ">" + "".join(CODES[row[2]] for row in rows) == index.ENTRY.format
    assert sum(int(row[1]) for row in rows) == index.ENTRY_SIZE
    assert f"{index.BLOCK_BYTES} bytes long" in PAGE


def test_the_twin_is_as_its_docstring_says() -> None:
    """The page shows that."""
    text = offset_check.__doc__ or ""
    assert "automodule:: sej.journal.offset_check\n" in PAGE
    sizes = {"u32": "I", "u64": "Q", "i64": "q"}
    (fields,) = re.findall(r'slot = "SEJTWIN\\0" (.*)', text)
    assert ">8s" + "".join(sizes[size] for size in re.findall(r"\((\w+)\)", fields)) == offset_check.SLOT.format
    assert f"at bytes 0 and {offset_check.STRIDE}" in text


def test_the_small_files_have_the_members_of_the_table(tmp_path: Path) -> None:
    members = {row[0].split("`")[1]: re.findall(r"`(\w+)`", row[1]) for row in tables()[2]}
    by_hand(tmp_path, (0, packed(sample(2))), (5, packed(sample(2, start=5))))
    sej.Journal(tmp_path).repair()
    for _ in range(2):
        Attempts(Directory(str(tmp_path), OS), "worker", 9).begin(1, 9)
    with sej.Writer(tmp_path) as w:
        w.append_once("sender", 1, [b"value"])
    for name, row in {
        "gaps/0000000000000002.gap": "gaps/<start>.gap",
        "ofs/worker.tries": "ofs/<name>.tries",
        "txn/sender.done": "txn/<name>.done",
    }.items():
        digits, text = (tmp_path / name).read_text().splitlines()[0].rstrip().split(" ", 1)
        assert int(digits, 16) == crc32c(Path(name).name.encode() + bytes(1) + text.encode())
        assert list(json.loads(text)) == members[row]


@pytest.mark.parametrize("number", [0, 1])
def test_the_dumps_are_the_codes_bytes(number: int) -> None:
    times = [1357034400000000000] * 3
    expected = [MESSAGE, Block(0, len(MESSAGE), 0, 1, crc32c(MESSAGE), *times).pack()]
    assert dumps()[number] == expected[number]
