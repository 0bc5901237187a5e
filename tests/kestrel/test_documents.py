"""The pages of both formats say what the code does: their tables are the code's."""

import re
from pathlib import Path

from kestrel.files import READER_MAGIC, WRITER_MAGIC
from kestrel.segmented import Item
from kestrel.segmented import format as segmented_format
from kestrel.v2 import format

PAGES = Path(__file__).resolve().parent.parent.parent / "docs" / "formats"


def rows(page: str, head: str) -> list[list[str]]:
    """The cells of the table whose first header cells are those."""
    (table,) = re.findall(rf"^{re.escape(head)}.*\n.*\n((?:\|.*\n)+)", (PAGES / page).read_text(), re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_the_opcodes_are_those_of_the_code() -> None:
    layouts = [*format.LAYOUTS.values()]
    layouts.insert(9, format.STATE_DUMP)
    assert rows("kestrel-2.md", "| opcode |") == [
        [
            str(layout.opcode),
            layout.name,
            ", ".join(layout.fields),
            "yes" if layout.opcode in format.WRITTEN and layout is not format.STATE_DUMP else "",
        ]
        for layout in layouts
    ]


def test_the_fields_are_those_of_the_code() -> None:
    sizes = {"i": "4", "q": "8"}
    found = {cells[0]: cells[1] for cells in rows("kestrel-2.md", "| field |")}
    assert found == {name: sizes[code] for name, code in format.FIELDS.items()}


def test_the_commands_are_those_of_the_code() -> None:
    assert [cells[:6] for cells in rows("kestrel-3.md", "| command |")] == [
        [
            str(command.command),
            command.name,
            command.file,
            ", ".join(map(str, command.words)),
            ", ".join(f"{command.byte(words):02x}" for words in command.words),
            ", ".join(f"{name} {size}" for name, size in command.fields),
        ]
        for command in segmented_format.COMMANDS.values()
    ]
    for command in segmented_format.COMMANDS.values():
        assert max(command.words) * 4 == sum(size for _, size in command.fields)


def test_the_magics_and_the_limit_are_those_of_the_code() -> None:
    assert {cells[0]: bytes.fromhex(cells[1]) for cells in rows("kestrel-3.md", "| file | magic")} == {
        "writer": WRITER_MAGIC,
        "reader": READER_MAGIC,
    }
    assert f"({segmented_format.MAX_DATA_SIZE})" in (PAGES / "kestrel-3.md").read_text()


def test_the_dumps_are_the_bytes_of_the_examples() -> None:
    operations = (format.REMOVE_TENTATIVE_XID, format.CONFIRM_REMOVE)
    journal = format.addx(b"car", 1475195922485) + b"".join(format.xid_operation(which, 1) for which in operations)
    writer = WRITER_MAGIC + segmented_format.encode_put(Item(7, 1475195922485, None, 0, b"job"))
    reader = READER_MAGIC + segmented_format.encode_head(4) + segmented_format.encode_done([6])
    for page, code in (("kestrel-2.md", journal), ("kestrel-3.md", writer + reader)):
        lines = (PAGES / page).read_text().splitlines()
        assert bytes.fromhex("".join(line[10:49] for line in lines if re.match(r"[0-9]{8}: ", line))) == code
