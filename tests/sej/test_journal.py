"""Looking at a journal: segments, ends, times, backwards, verify; nothing is created, little is read."""

import os
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest

import sej
from sej import CorruptionError
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory
from sej.journal.tail import Tail
from sej.system.disk import OsFile, Status
from tests.cli.inside import inside
from tests.queue.support import FakeClock
from tests.sej.hooks import LookingDisk, WrappingDisk
from tests.sej.support import (
    STAMP,
    by_hand,
    encoded,
    filled,
    overwrite,
    packed,
    read_all,
    sample,
    segment,
    segments,
    values,
    write,
)


@pytest.mark.parametrize("segment_bytes", [1, 200, 1 << 30])
def test_what_it_says_of_segments_and_offsets(segment_bytes: int, tmp_path: Path) -> None:
    j = sej.Journal(filled(tmp_path, segment_bytes=segment_bytes))
    assert (j.first_offset, j.end_offset) == (0, 30)
    assert [(each.name, each.size) for each in j.segments] == [(n, len(d)) for n, d in segments(tmp_path).items()]
    assert [each.first_offset for each in j.segments] == [int(name[:16], 16) for name in segments(tmp_path)]
    assert all(each.mtime_ns > STAMP and each.path == str(tmp_path / "jnl" / each.name) for each in j.segments)
    assert j.id is not None and len(j.id) == 16
    assert sej.Journal(tmp_path).id == j.id


def test_looking_at_an_empty_journal(tmp_path: Path) -> None:
    sej.Writer(tmp_path, first_offset=7).close()
    j = sej.Journal(tmp_path)
    assert (j.first_offset, j.end_offset, j.tail(), list(j.reversed()), j.find_time(0)) == (7, 7, [], [], 7)
    assert j.verify() == [] and j.offsets() == {}
    segment(tmp_path, 7).unlink()
    assert (j.first_offset, j.end_offset, j.tail(), j.segments) == (0, 0, [], [])


def test_backwards_costs_what_it_returns(tmp_path: Path) -> None:
    write(tmp_path, [b"v" * 100] * 100_000, durability="buffer")
    disk = LookingDisk()
    j = sej.Journal(tmp_path, disk=disk)
    assert [message.offset for message in j.tail(5)] == list(range(99_995, 100_000))
    assert disk.bytes_read < 1 << 18
    disk.bytes_read = 0
    assert j.end_offset == 100_000
    assert disk.bytes_read < 1 << 18


@pytest.mark.parametrize("at", [0, 9, 17, -1])
def test_damage_found_backwards_is_loud(at: int, tmp_path: Path) -> None:
    rows = sample(20)
    first = bytearray(packed(rows[:10]))
    start = len(packed(rows[:6]))
    size = len(packed(rows[6:7]))
    first[start + at % size] ^= 0x80
    by_hand(tmp_path, (0, bytes(first)), (10, packed(rows[10:])))
    j = sej.Journal(tmp_path)
    assert list(islice(j.reversed(), 13)) == rows[:6:-1]
    if at == 9:  # inside the timestamp: nothing in the format tells
        assert len(list(j.reversed())) == 20
        return
    with pytest.raises(CorruptionError) as raised:
        list(j.reversed())
    assert (raised.value.path, raised.value.offset) == (str(segment(tmp_path, 0)), 6)
    assert raised.value.position == start + size


def test_a_gap_is_loud_backwards_too(tmp_path: Path) -> None:
    rows = sample(30)
    by_hand(tmp_path, (0, packed(rows[:10])), (20, packed(rows[20:])))
    j = sej.Journal(tmp_path)
    assert j.tail(10) == rows[20:]
    with pytest.raises(CorruptionError):
        j.tail(11)


def test_verify_names_everything_that_is_wrong(tmp_path: Path) -> None:
    rows = sample(60)
    bad = bytearray(packed(rows[10:20]))
    where = len(packed(rows[10:13]))
    bad[where + len(packed(rows[13:14])) - 1] ^= 1
    by_hand(
        tmp_path,
        (0, packed(rows[:10])),
        (10, bytes(bad)),
        (20, packed(rows[20:30])[:-3]),
        (40, packed(rows[40:]) + b"torn"),
    )
    (tmp_path / "jnl" / "notes.txt").write_bytes(b"")
    (tmp_path / "jnl" / "5.jnl").write_bytes(b"")
    before = segments(tmp_path)
    found = [(each.kind, Path(each.path).name, each.position, each.offset) for each in sej.Journal(tmp_path).verify()]
    assert sorted(found) == sorted([
        ("corruption", segment(tmp_path, 10).name, where, 13),
        ("corruption", segment(tmp_path, 20).name, len(packed(rows[20:29])), 29),
        ("gap", segment(tmp_path, 20).name, len(packed(rows[20:30])) - 3, 29),
        ("torn tail", segment(tmp_path, 40).name, len(packed(rows[40:])), 60),
        ("foreign file", "notes.txt", 0, 0),
        ("foreign file", "5.jnl", 0, 0),
    ])  # fmt: skip
    assert segments(tmp_path) == before
    assert str(tmp_path) in str(sej.Journal(tmp_path).verify()[0])


@pytest.mark.parametrize("name", ["5.jnl", "00000000000000FF.jnl", "000000000000000g.jnl", "0000000000000000.jnl.tmp"])
def test_names_that_are_no_segments_are_not_read(name: str, tmp_path: Path) -> None:
    j = sej.Journal(filled(tmp_path, 5))
    (tmp_path / "jnl" / name).write_bytes(b"not a message")
    assert j.end_offset == 5 and len(list(sej.Scanner(tmp_path))) == 5
    with sej.Writer(tmp_path) as w:
        assert w.append(b"v") == 5
    assert [each.kind for each in j.verify()] == ["foreign file"]


@pytest.mark.parametrize("first", [2**63, 2**64 - 1])
def test_a_segment_that_no_journal_reaches_is_refused(first: int, tmp_path: Path) -> None:
    filled(tmp_path, 5)
    segment(tmp_path, first).write_bytes(b"")
    for call in (sej.Writer, sej.Scanner, lambda path: sej.Journal(path).end_offset):
        with pytest.raises(CorruptionError, match=str(first)) as raised:
            call(tmp_path)
        assert raised.value.path == str(segment(tmp_path, first))


@pytest.mark.parametrize("count", [2, 3])
def test_a_message_after_the_last_offsets_that_fit_is_corruption(count: int, tmp_path: Path) -> None:
    last = 2**63 - 2
    rows = [encoded(last + n, STAMP, 0, b"", b"value") for n in range(count)]
    by_hand(tmp_path, (last, b"".join(rows)))
    j = sej.Journal(tmp_path)
    with sej.Scanner(tmp_path) as s:
        assert [message.offset for message in s.read(9)] == [last]
        with pytest.raises(CorruptionError, match="exceeds the largest offset") as raised:
            s.read(9)
    assert (raised.value.position, raised.value.offset) == (len(rows[0]), last + 1)
    assert [each.position for each in j.verify()] == [len(rows[0])]
    for look in (lambda: j.end_offset, lambda: j.tail(3)):
        with pytest.raises(CorruptionError):
            look()
    assert [message.offset for message in read_all(tmp_path, on_corruption="skip")] == [last]
    with pytest.raises(CorruptionError, match="exceeds the largest offset"):
        sej.Writer(tmp_path)
    j.repair()
    assert b"".join(file.read_bytes() for file in sorted((tmp_path / "kept").iterdir())) == b"".join(rows[1:])
    with sej.Writer(tmp_path) as w:
        assert w.recovery is None
    assert (j.end_offset, [message.offset for message in j.reversed()]) == (last + 1, [last])


def test_a_repair_passes_over_a_message_that_has_the_largest_offset(tmp_path: Path) -> None:
    good = [encoded(n, STAMP, 0, b"", b"value") for n in range(4)]
    far = encoded(2**63 - 1, STAMP, 0, b"", b"".join(good[1:3]))  # all of them, if its sizes were believed
    by_hand(tmp_path, (0, bytes(30) + far + good[3]))
    j = sej.Journal(tmp_path)
    assert [message.offset for message in read_all(tmp_path, on_corruption="skip")] == [1, 2, 3]
    j.repair()
    assert [message.offset for message in read_all(tmp_path)] == [1, 2, 3]


class _Numbered(OsFile):
    def status(self) -> Status:
        return super().status()._replace(device=1, inode=1)


class OneNumber(WrappingDisk):
    """Gives every file the number that the last one had, as file systems do."""

    kind = _Numbered


@pytest.mark.parametrize(
    "new", [lambda w: w.append_many([b"y" * 33] * 15), lambda w: w.append_many([b"x" * 20] * 12, timestamp=7)]
)
def test_the_number_of_a_file_says_not_that_it_is_the_same(new: Callable[[sej.Writer], range], tmp_path: Path) -> None:
    tail = Tail(Directory(tmp_path / "j", OneNumber()))
    write(tmp_path / "j", [b"x" * 20] * 10)
    assert tail.end_offset() == 10
    shutil.rmtree(tmp_path / "j")
    with sej.Writer(tmp_path / "j") as w:
        end = new(w).stop
    assert tail.end_offset() == end


# --- the end of a journal whose last segment is damaged: it is never reported as empty


FAR = (1 << 63).to_bytes(8, "big")


@pytest.fixture(params=["by hand", "indexed"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Twenty messages in one segment."""
    by_hand(tmp_path, (0, packed(sample(20))))
    if request.param == "indexed":
        sej.Journal(tmp_path).reindex()
    return tmp_path


LOOKS: dict[str, Callable[[sej.Journal], object]] = {
    "end_offset": lambda j: j.end_offset,
    "tail": lambda j: j.tail(3),
    "reversed": lambda j: list(j.reversed()),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize(
    "damage",
    [(0, FAR), (7, b"\x05"), (17, b"\x90"), (18, b"\xff" * 4), (0, bytes(40))],
    ids=["far", "near", "key size", "value size", "zeros"],
)
def test_a_damaged_first_message_is_not_an_empty_journal(look: str, damage: tuple[int, bytes], path: Path) -> None:
    overwrite(segment(path, 0), *damage)
    knows = (path / "idx").exists() and damage[0] > 16  # the index is believed: it confirms the first message's head
    if knows and look != "reversed":
        assert LOOKS[look](sej.Journal(path)) == (20 if look == "end_offset" else sample(3, start=17))
    else:
        with pytest.raises(sej.CorruptionError) as raised:
            LOOKS[look](sej.Journal(path))
        assert raised.value.path == str(segment(path, 0))
        assert knows or (raised.value.position, raised.value.offset) == (0, 0)
    sej.Journal(path).repair()
    assert sej.Journal(path).end_offset == 20
    assert values(sej.Journal(path).tail(3)) == values(sample(3, start=17))


def test_a_single_message_with_another_offset_is_not_an_empty_journal(tmp_path: Path) -> None:
    message = encoded(0, 5, 0, b"", b"value")
    for wrong in (5, 1 << 63):
        by_hand(tmp_path, (0, wrong.to_bytes(8, "big") + message[8:]))
        for look in LOOKS.values():
            with pytest.raises(sej.CorruptionError):
                look(sej.Journal(tmp_path))
        with pytest.raises(sej.CorruptionError), sej.Scanner(tmp_path, sej.LAST):
            pass


@pytest.mark.parametrize("command", ["count", "tail"])
def test_the_commands_say_so(command: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overwrite(segment(path, 0), 0, FAR)
    done = inside(monkeypatch, command, path)
    assert (done.code, done.out) == (1, b"")
    assert "position 0" in done.err


@pytest.mark.parametrize("command", ["doctor", "stat"])
def test_what_looks_at_the_whole_works_on_a_damaged_journal(
    command: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overwrite(segment(path, 0), 0, FAR)
    assert b"messages" in inside(monkeypatch, command, path).out


@pytest.mark.parametrize("timeout", [0, 0.01])
@pytest.mark.parametrize("trailer", [False, True], ids=["head", "head and trailer"])
def test_a_reader_does_not_end_before_messages_of_the_index(trailer: bool, timeout: float, tmp_path: Path) -> None:
    """A damaged length with more damage after it looks like a torn tail; the index shows that it is not one."""
    rows = [sej.Message(n, n, 0, b"", b"message %02d" % n) for n in range(20)]
    size = len(packed(rows[:1]))
    by_hand(tmp_path, (0, packed(rows)))
    sej.Journal(tmp_path).reindex()
    overwrite(segment(tmp_path, 0), 5 * size + 18, b"\x7f")
    overwrite(segment(tmp_path, 0), 18 * size + 18, b"\x7f")
    if trailer:
        overwrite(segment(tmp_path, 0), 6 * size - 1, b"\x01")
    assert sej.Journal(tmp_path).end_offset == 20, "a writer continues after message 19"
    (problem,) = sej.Journal(tmp_path).verify()
    assert (problem.kind, problem.position, problem.offset) == ("corruption", 5 * size, 5)
    with sej.Scanner(tmp_path, timeout=timeout) as scanner:
        assert scanner.read() == rows[:5]
        for _ in range(3):
            with pytest.raises(sej.CorruptionError, match="index has messages 5 to 19") as raised:
                scanner.read()
            assert (raised.value.position, raised.value.offset) == (5 * size, 5)
    with sej.Scanner(tmp_path, timeout=timeout, on_corruption="skip") as scanner:
        found = [message.offset for message in scanner]
        missing = {offset for gap in scanner.gaps for offset in range(gap.start, gap.stop)}
    assert found == [*range(5), *range(6, 18), 19], "the index shows that no later message is part of a torn one"
    assert missing == {5, 18}
    done = sej.Journal(tmp_path).repair()
    assert [gap[:2] for gap in done.gaps] == [(5, 6), (18, 19)]
    assert [message.offset for message in read_all(tmp_path)] == found
    with sej.Writer(tmp_path) as writer:
        assert writer.append(b"") == 20, "no offset of a lost message is used again"


@pytest.mark.parametrize("tail", [bytes(4096), bytes(17) + b"\x90" * 30], ids=["zeros", "key size"])
def test_a_time_is_found_before_a_torn_tail(tail: bytes, tmp_path: Path) -> None:
    rows = sample(3)
    by_hand(tmp_path, (0, packed(rows) + tail))
    journal = sej.Journal(tmp_path)
    assert [journal.find_time(row.timestamp) for row in rows] == [0, 1, 2]
    assert journal.find_time(rows[-1].timestamp + 1) == 3
    by_hand(tmp_path, (0, packed(rows) + tail + packed(sample(5, start=4))))
    with pytest.raises(sej.CorruptionError):
        journal.find_time(rows[-1].timestamp + 1)
    by_hand(tmp_path, (0, packed(rows) + tail), (4, packed(sample(1, start=4))))
    with pytest.raises(sej.CorruptionError):
        journal.find_time(rows[-1].timestamp + 1)


@pytest.mark.parametrize("last", [False, True], ids=["an earlier segment", "the last segment"])
def test_a_time_is_not_searched_after_an_incomplete_message(last: bool, tmp_path: Path) -> None:
    """A damaged length may hide the messages of the rest of the segment, and one of them may have the time."""
    rows = sample(20)
    by_hand(tmp_path, (0, packed(rows[:10])), *([] if last else [(10, packed(rows[10:]))]))
    sej.Journal(tmp_path).reindex()
    overwrite(segment(tmp_path, 0), len(packed(rows[:3])) + 18, b"\x7f")
    journal = sej.Journal(tmp_path)
    assert [journal.find_time(row.timestamp) for row in rows[:3]] == [0, 1, 2]
    for row in rows[3:10]:
        with pytest.raises(sej.CorruptionError) as raised:
            journal.find_time(row.timestamp)
        assert (raised.value.position, raised.value.offset) == (len(packed(rows[:3])), 3)
    journal.repair()
    assert [journal.find_time(row.timestamp) for row in rows[4:10]] == list(range(4, 10))


# --- what a journal of many segments costs, counted in calls to the disk, which no busy machine changes


FEW, MANY = 20, 80


def journal(path: Path, count: int) -> Path:
    """A journal of so many segments of one message each."""
    write(path, [b"%d" % n for n in range(count)], segment_bytes=1)
    for n, file in enumerate(sorted((path / "jnl").iterdir())):  # on a coarse clock, some would have equal times
        os.utime(file, ns=(10**18 + n, 10**18 + n))
    return path


def scan(path: Path, disk: LookingDisk) -> None:
    assert len(read_all(path, disk=disk)) in (FEW, MANY)


def scan_verified(path: Path, disk: LookingDisk) -> None:
    assert len(read_all(path, verify=True, disk=disk)) in (FEW, MANY)


def consume(path: Path, disk: LookingDisk) -> None:
    consumer = sej.Consumer(path, "reader", timeout=0.0, commit_interval_s=3600.0, disk=disk)
    assert consumer.run(lambda message: None) in (FEW, MANY)


def work(path: Path, disk: LookingDisk) -> None:
    with sej.open_queue(path, "queue", disk=disk, clock=FakeClock()) as q:
        while item := q.get(timeout=0.0):
            item.done()
        assert q.stats().ready == 0


def backwards(path: Path, disk: LookingDisk) -> None:
    assert len(list(sej.Journal(path, disk=disk).reversed())) in (FEW, MANY)


OPERATIONS: dict[str, Callable[[Path, LookingDisk], object]] = {
    "scan": scan,
    "scan_verified": scan_verified,
    "consume": consume,
    "queue": work,
    "reversed": backwards,
    "writer": lambda path, disk: sej.Writer(path, disk=disk).close(),
    "segments": lambda path, disk: sej.Journal(path, disk=disk).segments,
    "find_time": lambda path, disk: sej.Journal(path, disk=disk).find_time(1 << 62),
    "verify": lambda path, disk: sej.Journal(path, disk=disk).verify(),
    "repair": lambda path, disk: sej.Journal(path, disk=disk).repair(),
    "reindex": lambda path, disk: sej.Journal(path, disk=disk).reindex(),
    "clean": lambda path, disk: sej.Journal(path, disk=disk).clean(max_bytes=1),
}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time pass, in a year when no directory has changed for long: the clock decides no call."""
    monkeypatch.setattr("sej.journal.cursor.time", SimpleNamespace(time_ns=lambda: 1 << 62, monotonic_ns=lambda: 0))
    monkeypatch.setattr("sej.writing.appender._LOOK_S", 3600.0)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("name", OPERATIONS)
def test_costs_no_more_than_linear(name: str, tmp_path: Path) -> None:
    few, many = LookingDisk(), LookingDisk()
    OPERATIONS[name](journal(tmp_path / "few", FEW), few)
    OPERATIONS[name](journal(tmp_path / "many", MANY), many)
    assert many.looks["list"] <= few.looks["list"]
    for verb in ("open", "status"):
        assert many.looks[verb] <= (MANY // FEW) * few.looks[verb]


def test_a_parked_reader_is_opened_again_without_a_listing(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as w:
        w.append_many([b"%d" % n for n in range(100)])
    disk = LookingDisk()
    cursor = Cursor(Directory(tmp_path, disk), 0)
    assert len(cursor.read(10)) == 10
    cursor.park()
    listed = disk.looks["list"]
    assert cursor.read(1)[0].offset == 10
    assert disk.looks["list"] == listed
    cursor.close()
