"""The pages on queues say what the code does."""

import inspect
import re
from pathlib import Path

import pytest

from kestrel.backend import KestrelWorkQueue
from sej.queue.interface.queue import BACKENDS, CAPABILITIES
from sej.queue.journal_queue import JournalQueue
from sej.queue.log.format import (
    DONE,
    EXPIRE,
    KINDS,
    PICK,
    RECORD,
    WORDS,
    booted,
    deduped,
    head,
    leased,
    one_done,
    picked,
    read_fields,
    read_head,
)
from sej.queue.log.state import HANDLERS
from textqueue.backend import TextWorkQueue

DOCS = Path(__file__).parent.parent.parent / "docs"
CAN = {
    "journal": JournalQueue.can,
    "kestrel": KestrelWorkQueue.can,
    "libkestrel": KestrelWorkQueue.can,
    "textqueue": TextWorkQueue.can,
}


def rows(page: str, columns: int) -> list[list[str]]:
    text = (DOCS / page).read_text()
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return [row for row in found if len(row) == columns]


def test_the_format_page_shows_every_kind_with_its_meaning() -> None:
    page = (DOCS / "formats/queue.md").read_text()
    path, start, end = re.findall(r"literalinclude\} (\S+)\n.*\n:start-after: \"(.*)\"\n:end-before: \"(.*)\"", page)[0]
    shown = (DOCS / "formats" / path).read_text().split(start, 1)[1].split(end, 1)[0]
    assert re.findall(r"(?<=\n)# [^\n]+\n(\w+): Final = Kind\((\d+),", shown) == [
        (kind.name, str(number)) for number, kind in KINDS.items()
    ]


@pytest.mark.parametrize("number", KINDS)
def test_each_kind_has_one_handler_for_its_fields_and_reads_what_it_wrote(number: int) -> None:
    kind = KINDS[number]
    assert HANDLERS.keys() == KINDS.keys()
    handled = [name.lstrip("_") for name in inspect.signature(HANDLERS[number][0]).parameters if name != "self"]
    assert handled == list(kind.fields)
    data = kind(*range(1, len(handled) + 1))
    assert list(read_fields(data)) == [(kind, dict(zip(handled, range(1, 9), strict=False)))]
    unused = set(WORDS) - {"kind", *kind.fields.values()}
    assert not any(value for word, value in zip(WORDS, RECORD.unpack(data), strict=True) if word in unused)
    assert kind(1) == kind(1, *(0,) * (len(handled) - 1))


def test_composed_fields() -> None:
    [(_, boot)] = read_fields(booted(bytes(range(1, 17)), 5, (6 << 32) + 7))
    assert [f"{boot[name]:x}" for name in ("id_high", "id_low")] == ["102030405060708", "90a0b0c0d0e0f10"]
    assert (boot["began_ns"], boot["now_high"], boot["now_low"]) == (5, 6, 7)
    [(_, key)] = read_fields(deduped(bytes(range(1, 13)), 5, 6, 7))
    assert [f"{key[name]:x}" for name in ("key_high", "key_low")] == ["1020304", "5060708090a0b0c"]


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_the_reference_says_what_each_backend_can(backend: str) -> None:
    shown = dict(rows("reference/queues.md", 2))[backend]
    found = set(CAPABILITIES) if shown == "everything" else set(re.findall(r"`(\w+)`", shown))
    assert found == CAN[backend]


def test_the_dump_is_that_of_the_codec() -> None:
    dump = re.search(r"^00000000:.*?^```", (DOCS / "formats/queue.md").read_text(), re.MULTILINE | re.DOTALL)
    assert dump is not None
    digits = "".join(
        "".join(line[10:].split("  ", 1)[0].split()) for line in dump[0].splitlines() if line.startswith("0")
    )
    assert bytes.fromhex(digits) == head(42, "") + DONE(7, 8)


def test_short_cuts_write_what_the_table_says() -> None:
    assert one_done(7, 5) == DONE(7, 8, 5)
    assert picked(7, 3, 2, 5, -1, 9, 77) == PICK(7, 3, 2, 5, -1, 9, 77)
    [(kind, fields)] = read_fields(leased(3, 9, 2, 5, 77))
    assert (kind.number, fields) == (
        1,
        {"first": 3, "stop": 9, "attempt": 1, "holder": 2, "deadline_ns": 5, "stamp": 77},
    )


def test_a_head_names_its_queue() -> None:
    assert read_head(head(42, "jobs"), "jobs") == 42
    assert read_head(head(42, "jobs")[:-1] + b"x", "jobs") is None
    assert read_head(head(42, "jobs"), "mails") is None


def test_priorities_and_timestamps_have_a_sign() -> None:
    assert RECORD.unpack(PICK(3, 1, 2, 5, -3)) == (3, -3, 1, 2, 3, 0, 5, 0)
    assert RECORD.unpack(EXPIRE(3, -1, 7, 5)) == (9, 0, 0, 0, 3, 2**64 - 1, 5, 7)
