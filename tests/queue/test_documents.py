"""The pages on queues say what the code does."""

import re
from pathlib import Path

import pytest

from kestrel.backend import KestrelWorkQueue, SegmentedWorkQueue
from sej.queue.backends import BACKENDS
from sej.queue.interface import CAPABILITIES
from sej.queue.journal_queue import JournalQueue
from sej.queue.log_format import DONE, KINDS, LEASE, RECORD
from sej.queue.records import done_record, head, lease_record, read_head, record
from textqueue.backend import TextWorkQueue

DOCS = Path(__file__).parent.parent.parent / "docs"
CAN = {
    "journal": JournalQueue.can,
    "kestrel": KestrelWorkQueue.can,
    "libkestrel": SegmentedWorkQueue.can,
    "textqueue": TextWorkQueue.can,
}


def rows(page: str, columns: int) -> list[list[str]]:
    text = (DOCS / page).read_text()
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return [row for row in found if len(row) == columns]


def test_the_format_page_has_every_kind() -> None:
    table = {int(row[0]): (row[1], row[2]) for row in rows("formats/queue.md", 3) if row[0].isdecimal()}
    assert table == KINDS


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_the_how_to_says_what_each_backend_can(backend: str) -> None:
    header, _, *table = rows("howto/work-queue.md", 5)
    column = header.index(backend)
    assert {row[0] for row in table} == set(CAPABILITIES)
    assert {row[0] for row in table if row[column] == "yes"} == CAN[backend]


def test_the_dump_is_that_of_the_codec() -> None:
    dump = re.search(r"^00000000:.*?^```", (DOCS / "formats/queue.md").read_text(), re.MULTILINE | re.DOTALL)
    assert dump is not None
    digits = "".join(
        "".join(line[10:].split("  ", 1)[0].split()) for line in dump[0].splitlines() if line.startswith("0")
    )
    assert bytes.fromhex(digits) == head(42) + record(DONE, 7, 8)


def test_short_cuts_write_what_record_writes() -> None:
    assert done_record(7) == record(DONE, 7, 8)
    assert lease_record(3, 9, 5, 2, 77) == record(LEASE, 3, 9, 5, attempt=1, slot=2, extra=77)
    assert read_head(head(42), "jobs") == read_head(head(42, "jobs"), "jobs") == 42
    assert read_head(head(42)[:-1] + b"x", "jobs") is None
    assert read_head(head(42, "jobs"), "mails") is None
    assert RECORD.unpack(record(LEASE, 3, 9, 5, band=-3, attempt=1)) == (LEASE, -3, 1, 0, 3, 9, 5, 0)
