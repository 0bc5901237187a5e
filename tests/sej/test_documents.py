"""docs/formats/sej.md says what the code does: its tables are the code's layouts, its dumps the code's bytes."""

import json
import re
from pathlib import Path

import pytest

import sej
from sej.codec import encode, format
from sej.journal import index, offset_check
from sej.journal.directory import Directory
from sej.journal.index import Block
from sej.reading.attempts import Attempts
from sej.system.checksum import crc32c
from sej.system.disk import OS
from tests.sej.support import by_hand, packed, sample

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
