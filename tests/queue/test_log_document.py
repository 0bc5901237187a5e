"""The log of a queue is as ``docs/formats/queue.md`` says, and the pages on queues say what the code does.

:class:`Replay` is a decoder of its own, written from that page. It is compared with the queue after each operation.
"""

import inspect
import random
import re
import struct
from pathlib import Path
from typing import Any

import pytest

import sej
from kestrel.backend import KestrelWorkQueue
from sej.queue.interface.queue import BACKENDS, CAPABILITIES
from sej.queue.journal_queue import JournalQueue
from sej.queue.log import format as made
from sej.queue.log.format import KINDS, RECORD, WORDS, read_fields
from sej.queue.log.state import HANDLERS
from sej.system.checksum import crc32c
from tests.queue.support import NS, FakeClock, opened
from textqueue.backend import TextWorkQueue

LEASE, DONE, PICK, WAIT, EXTEND, FREE, DEAD, INTENT = range(1, 9)
PURGE, DROP, BOOT, START, COUNTS, LOST, BACK = 12, 13, 14, 15, 16, 17, 18


class Replay:
    """The state of a queue, by its log."""

    def __init__(self, log: bytes, name: str) -> None:
        assert log[:12] == b"SEJQUEUE\0\0\0\1" and log[16:20] == crc32c(name.encode()).to_bytes(4, "big")
        assert log[36:40] == crc32c(log[:36]).to_bytes(4, "little")
        self.frontier = self.done = self.dead = self.lost = 0
        self.leased: dict[int, int] = {}
        """The holder of each leased item."""
        self.waiting: dict[int, int] = {}
        """When each waiting item may be taken."""
        self.above: set[int] = set()
        """Items from the frontier on that are not fresh."""
        for at in range(40, len(log), 40):
            record = log[at : at + 40]
            assert record[36:] == crc32c(record[:36]).to_bytes(4, "little") and crc32c(record) == 0x48674BC7
            self.apply(*struct.unpack(">BbHIQQQI", record[:36]))

    def take(self, offset: int) -> bool:
        """Make an item neither leased nor waiting nor fresh; return whether it was leased or waiting."""
        if offset >= self.frontier:
            self.above.add(offset)
        return self.leased.pop(offset, None) is not None or self.waiting.pop(offset, None) is not None

    def move(self, frontier: int) -> None:
        self.frontier = max(self.frontier, frontier)
        self.above = {offset for offset in self.above if offset >= self.frontier}

    def free(self, holders: set[int]) -> None:
        for offset in [offset for offset, holder in self.leased.items() if holder in holders]:
            del self.leased[offset]
            self.waiting[offset] = 0

    def apply(self, kind: int, _priority: int, _attempt: int, holder: int, offset: int, a: int, b: int, _: int) -> None:
        if kind == LEASE:
            for each in range(offset, a):
                self.take(each)
                self.leased[each] = holder
            self.move(a)
        elif kind == DONE:
            self.done += sum([self.take(each) for each in range(offset, a)])
        elif kind == PICK:
            self.take(offset)
            self.leased[offset] = holder
        elif kind in (WAIT, INTENT):
            self.take(offset)
            self.waiting[offset] = b
        elif kind == FREE:
            self.free({holder})
        elif kind == DEAD:
            self.dead += self.take(offset)
        elif kind == PURGE:
            self.waiting = {each: at for each, at in self.waiting.items() if each >= a}
            self.move(a)
        elif kind == DROP:
            self.waiting.pop(offset, None)
            self.above.discard(offset)
        elif kind == START:
            self.frontier = offset
        elif kind == COUNTS:
            self.done, self.dead, self.lost = offset, a, b
        elif kind == BACK:
            self.dead -= _
        elif kind == LOST:
            self.lost += sum([self.take(each) for each in range(offset, a)])
            self.move(a)

    def stats(self, end: int, now: int) -> tuple[int, int, int, int, int]:
        """Ready, delayed, leased, done and dead items of a journal with this end."""
        delayed = sum(at > now for at in self.waiting.values())
        fresh = end - self.frontier - len(self.above)
        return fresh + len(self.waiting) - delayed, delayed, len(self.leased), self.done, self.dead


def act(q: JournalQueue, held: list[sej.Item], dice: random.Random) -> None:
    """Do one random operation."""
    if held and dice.random() < 0.7:
        item = held.pop(dice.randrange(len(held)))
        match dice.randrange(4):
            case 0:
                item.done()
            case 1:
                item.give_back()
            case 2:
                item.retry(delay_s=dice.choice([0, 50]))
            case 3:
                item.fail("no")
        return
    options: dict[str, Any] = dice.choice([
        {}, {}, {"delay_s": 30}, {"priority": dice.randrange(-3, 4)}, {"dedupe_key": b"ab"[dice.randrange(2) :]},
        {"expire_s": 5000}, {"headers": {"a": "b" * dice.randrange(40)}},
    ])  # fmt: skip
    match dice.randrange(6):
        case 0 | 1:
            q.put(b"value", **options)
        case 2:
            q.put_many([b"a", b"b", b"c"])
        case 3:
            held.extend(q.get_many(dice.randrange(1, 5), timeout=0))
        case 4:
            ready = list(q.peek(9))
            if ready:
                q.cancel(dice.choice(ready).offset)
        case 5:
            q.redrive()


@pytest.mark.parametrize("seed", range(4))
def test_the_state_is_what_the_log_says(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    clock = FakeClock()
    held: list[sej.Item] = []
    q = opened(tmp_path, clock, name="q")
    for number in range(60):
        act(q, held, dice)
        if number % 7 == 0:
            clock.move(dice.choice([1, 20]))
        if number % 25 == 24:
            q.close()  # rewrites the log
            held.clear()
            q = opened(tmp_path, clock, name="q")
        stats = q.stats()
        end = sej.Journal(tmp_path).end_offset if (tmp_path / "jnl").exists() else 0
        replay = Replay((tmp_path / "ofs" / "q.queue").read_bytes(), "q")
        assert replay.stats(end, clock.boot) == (stats.ready, stats.delayed, stats.leased, stats.done, stats.dead)
    q.close()


def test_a_log_that_was_written_by_hand_is_read(tmp_path: Path) -> None:
    """The lease of a holder that does not live is given back, and a key of before the reboot still counts."""
    clock = FakeClock()
    with sej.Writer(tmp_path) as w:
        w.append_many([b"%d" % n for n in range(8)], timestamp=range(1000, 1008))

    def record(
        kind: int, offset: int = 0, a: int = 0, b: int = 0, extra: int = 0, holder: int = 0, attempt: int = 0
    ) -> bytes:
        body = struct.pack(">BbHIQQQI", kind, 0, attempt, holder, offset, a, b, extra)
        return body + crc32c(body).to_bytes(4, "little")

    head = b"SEJQUEUE" + (1).to_bytes(4, "big") + b"abcd" + crc32c(b"q").to_bytes(4, "big") + bytes(16)
    high, low = struct.unpack(">QQ", clock.id)
    (tmp_path / "ofs").mkdir(exist_ok=True)
    (tmp_path / "ofs" / "q.queue").write_bytes(
        head + crc32c(head).to_bytes(4, "little")
        + record(START, 4, 3, extra=1003) + record(WAIT, 1, b=clock.boot + 9 * NS, attempt=2) + record(COUNTS, 3)
        + record(BOOT, high, low, clock.wall - clock.boot, extra=clock.boot & 0xFFFFFFFF, holder=clock.boot >> 32)
        + record(LEASE, 4, 6, clock.boot + 99 * NS, extra=1005, holder=7, attempt=1)
    )  # fmt: skip
    with opened(tmp_path, clock, name="q") as q:
        assert [(item.offset, item.state, item.attempts) for item in q.items()] == [
            (1, "delayed", 2), (4, "ready", 1), (5, "ready", 1), (6, "ready", 0), (7, "ready", 0),
        ]  # fmt: skip
        assert q.stats().done == 3
        clock.move(9)
        assert {item.value: item.attempts for item in q.get_many(9, timeout=0)}[b"1"] == 3


# --- the pages

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
    [(_, boot)] = read_fields(made.booted(bytes(range(1, 17)), 5, (6 << 32) + 7))
    assert [f"{boot[name]:x}" for name in ("id_high", "id_low")] == ["102030405060708", "90a0b0c0d0e0f10"]
    assert (boot["began_ns"], boot["now_high"], boot["now_low"]) == (5, 6, 7)
    [(_, key)] = read_fields(made.deduped(bytes(range(1, 13)), 5, 6, 7))
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
    assert bytes.fromhex(digits) == made.head(42, "") + made.DONE(7, 8)


def test_short_cuts_write_what_the_table_says() -> None:
    assert made.one_done(7, 5) == made.DONE(7, 8, 5)
    assert made.picked(7, 3, 2, 5, -1, 9, 77) == made.PICK(7, 3, 2, 5, -1, 9, 77)
    [(kind, fields)] = read_fields(made.leased(3, 9, 2, 5, 77))
    assert (kind.number, fields) == (
        1,
        {"first": 3, "stop": 9, "attempt": 1, "holder": 2, "deadline_ns": 5, "stamp": 77},
    )


def test_a_head_names_its_queue() -> None:
    assert made.read_head(made.head(42, "jobs"), "jobs") == 42
    assert made.read_head(made.head(42, "jobs")[:-1] + b"x", "jobs") is None
    assert made.read_head(made.head(42, "jobs"), "mails") is None


def test_priorities_and_timestamps_have_a_sign() -> None:
    assert RECORD.unpack(made.PICK(3, 1, 2, 5, -3)) == (3, -3, 1, 2, 3, 0, 5, 0)
    assert RECORD.unpack(made.EXPIRE(3, -1, 7, 5)) == (9, 0, 0, 0, 3, 2**64 - 1, 5, 7)
