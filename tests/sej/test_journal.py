"""Looking at a journal: segments, ends, times, backwards, verify; nothing is created, little is read."""

import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

import sej
from sej import CorruptionError
from sej.journal.directory import Directory
from sej.journal.tail import Tail
from sej.system.disk import OsFile, Status
from tests.sej.hooks import CountingDisk, WrappingDisk
from tests.sej.support import STAMP, by_hand, encoded, filled, packed, read_all, sample, segment, segments, write


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
    disk = CountingDisk()
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
