"""Repair: after any damage the rest opens, no undamaged message is lost, and every gap is reported."""

import json
import os
import random
import shutil
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

import sej
import sej.journal.repair
import sej.journal.retention
from sej.codec import find_candidate
from sej.journal.directory import Directory, Gap, count_messages, record_gap
from sej.journal.retention import clean
from sej.system.disk import OS, OsDisk
from tests.crash.disk import CrashDisk
from tests.sej.support import (
    STAMP,
    by_hand,
    commit,
    encoded,
    flip,
    packed,
    read_all,
    sample,
    segment,
    segments,
    values,
    write,
)

MESSAGES = sample(30)


def part(start: int, stop: int, *damages: tuple[int, bytes]) -> bytes:
    """The bytes of messages, some of them damaged."""
    changed = dict(damages)
    return b"".join(changed.get(n, encoded(*MESSAGES[n])) for n in range(start, stop))


def bad(number: int, data: bytes = b"\xff", at: int = 17) -> tuple[int, bytes]:
    """A message and its bytes with other ones in them."""
    sound = encoded(*MESSAGES[number])
    return number, sound[:at] + data + sound[at + len(data) :]


SOUND = {0: part(0, 10), 10: part(10, 20), 20: part(20, 30)}
NESTED = b"".join(encoded(number, 1, 0, b"", b"not ours") for number in range(32, 37))
FAR_LENGTH = bad(22, (1 << 30).to_bytes(4, "big"), 18 + len(MESSAGES[22].key))
FAR_OFFSET = bad(12, (1 << 40).to_bytes(8, "big"), 0)
JOINED = b"\xff\xee\xdd".join(encoded(*message) for message in MESSAGES)


class Case(NamedTuple):
    """A damaged journal, the ranges of offsets that a repair loses, and the bytes that it keeps; None: any."""

    segments: dict[int, bytes]
    lost: list[tuple[int, int]]
    kept: list[bytes] | None = None


def torn(value: bytes, size: int) -> Case:
    """The start of message 30, as a killed writer leaves it: the head and so many bytes of its value."""
    start = encoded(30, 1, 0, b"", value + b"z" * 100)[: 22 + size]
    return Case({**SOUND, 20: SOUND[20] + start}, [], [start])


CASES = {
    **{
        f"message {n}": Case(
            {**SOUND, n // 10 * 10: part(n // 10 * 10, n // 10 * 10 + 10, bad(n))}, [(n, n + 1)], [bad(n)[1]]
        )
        for n in (0, 5, 9, 10, 15, 19, 20, 25)
    },
    "a missing segment": Case({0: SOUND[0], 20: SOUND[20]}, [(10, 20)], []),
    "a torn segment": Case({**SOUND, 10: part(10, 17) + part(17, 18)[:9]}, [(17, 20)], [part(17, 18)[:9]]),
    "no good message": Case({**SOUND, 10: b"\xee" * 300}, [(10, 20)], [b"\xee" * 300]),
    "bytes between": Case({**SOUND, 10: part(10, 13) + b"between" + part(13, 20)}, [], [b"between"]),
    "another offset": Case({**SOUND, 10: part(10, 20, FAR_OFFSET)}, [(12, 13)], [FAR_OFFSET[1]]),
    # a journal in the value of a torn message is not a part of this one
    "a journal inside, up to its end": torn(NESTED, len(NESTED) - 1),
    "a journal inside, and a part": torn(NESTED + NESTED[:20], len(NESTED) + 20),
    "a journal inside, between other bytes": torn(b"z" * 100 + NESTED + b"z" * 50, 150 + len(NESTED)),
    # it looks like a torn write, but the messages after it reach the end, or the size at its own end is right
    "a length": Case({**SOUND, 20: part(20, 30, FAR_LENGTH)}, [(22, 23)]),
    "a length, and a torn tail": Case({**SOUND, 20: part(20, 30, FAR_LENGTH) + b"torn"}, [(22, 23)]),
    "bytes between all": Case({0: JOINED}, [], [JOINED[len(part(0, 1)) : -len(part(29, 30))]]),
    "an overlap": Case({0: part(0, 20, bad(5)), 10: part(10, 30)}, [(5, 6)], [bad(5)[1] + part(6, 20)]),
    "one of two copies": Case({0: part(0, 20), 10: part(10, 30, bad(15))}, []),
    # as after segments of two copies of a journal were mixed
    **{
        f"{name} inside{', at the end' * last}": Case({0: part(0, 20 + 10 * last), **inside, **rest}, [])
        for name, inside in {
            "no bytes": {10: b""},
            "fewer messages": {10: part(10, 13)},
            "no good message": {12: part(0, 5)},
            "two segments, and one has all,": {4: b"", 6: part(6, 30)},
        }.items()
        for last, rest in ((False, {20: SOUND[20]}), (True, dict[int, bytes]()))
    },
    "damage before a segment inside": Case({0: part(0, 20, bad(5)), 10: b"", 20: SOUND[20]}, [(5, 6)]),
    # as after a copy that was resumed with an overlap
    **{
        f"bytes {times} times": Case({0: part(0, 20, bad(5)) + part(15, 20) * times + part(20, 30)}, [(5, 6)])
        for times in (1, 3)
    },
}


@pytest.mark.parametrize("name", CASES)
def test_a_repair_costs_the_damaged_messages_alone(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    journal = sej.Journal(by_hand(tmp_path, *case.segments.items()))
    planned, skipped = journal.repair(dry_run=True), read_all(tmp_path, on_corruption="skip")
    done = journal.repair()
    offsets = [n for n in range(30) if not any(start <= n < stop for start, stop in case.lost)]
    assert read(tmp_path) == (offsets, case.lost)
    assert [message.offset for message in skipped] == offsets
    assert [gap[:2] for gap in planned.gaps] == [gap[:2] for gap in done.gaps] == case.lost
    if case.kept is not None:
        assert [Path(kept).read_bytes() for kept in done.kept] == case.kept
    assert journal.verify() == []
    with sej.Writer(tmp_path) as w:
        assert w.recovery is None and w.append(b"on") == 30


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return by_hand(tmp_path / "j", *SOUND.items())


def at(number: int) -> int:
    """Where a message starts in its segment."""
    return len(packed(MESSAGES[number // 10 * 10 : number]))


def overwrite(path: Path, number: int, data: bytes, into: int = 17) -> None:
    with segment(path, number // 10 * 10).open("r+b") as file:
        file.seek(at(number) + into)
        file.write(data)


def read(path: Path) -> tuple[list[int], list[tuple[int, int]]]:
    with sej.Scanner(path) as s:
        found = list(s)
        assert all(message == MESSAGES[message.offset] for message in found)
        return [message.offset for message in found], [(gap.start, gap.stop) for gap in s.gaps]


def test_a_repaired_segment_keeps_its_age(path: Path) -> None:
    overwrite(path, 1, b"\xff")
    os.utime(segment(path, 0), (1_000_000_000, 1_000_000_000))
    journal = sej.Journal(path)
    assert len(journal.repair().segments) == 2
    assert [segment.mtime_ns for segment in journal.segments[:2]] == [10**18, 10**18]
    assert len(journal.clean(max_age_s=86_400.0)) == 2


def test_a_gap_at_the_start_is_passed_from_any_offset_in_it(path: Path) -> None:
    overwrite(path, 0, b"\xff")
    overwrite(path, 1, b"\xff")
    assert [gap[:2] for gap in sej.Journal(path).repair().gaps] == [(0, 2)]
    for start in (sej.FIRST, 0, 1):
        with sej.Scanner(path, start) as s:
            assert s.offset == 2
            assert [message.offset for message in s] == list(range(2, 30))
            assert [gap[:2] for gap in s.gaps] == [(1 if start == 1 else 0, 2)]
    with sej.Scanner(path, 2) as s:
        assert list(s) and s.gaps == []
    commit(path, "r", 1)
    assert sej.Consumer(path, "r", timeout=0.0).run(lambda message: None) == 28


def test_a_deleted_start_is_no_gap(path: Path) -> None:
    overwrite(path, 10, b"\xff")
    sej.Journal(path).repair()
    segment(path, 0).unlink()
    for start in (sej.FIRST, 10):
        with sej.Scanner(path, start) as s:
            assert [message.offset for message in s] == list(range(11, 30))
            assert [gap[:2] for gap in s.gaps] == [(10, 11)]
    with pytest.raises(sej.OffsetTooSmallError):
        sej.Scanner(path, 9)


def test_a_dry_run_changes_nothing_and_says_the_same(path: Path) -> None:
    overwrite(path, 4, b"\xff")
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "jnl.lck"}
    planned = sej.Journal(path).repair(dry_run=True)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "jnl.lck"} == before
    done = sej.Journal(path).repair()
    assert [gap[:2] for gap in planned.gaps] == [gap[:2] for gap in done.gaps]
    assert planned.notes == done.notes


def test_a_flipped_bit_in_a_value_is_kept_named_and_accepted(tmp_path: Path) -> None:
    path = tmp_path / "j"
    write(path, [b"v" * 1000] * 600)
    file = segment(path, 0)
    flip(file, 1000)
    data = file.read_bytes()
    (problem,) = sej.Journal(path).verify()
    assert problem.kind == "checksum"
    done = sej.Journal(path).repair()
    assert "CRC32C" in done.notes[0]
    assert "unknown which of them changed: all are kept, with a new checksum" in done.notes[0]
    assert Path(done.kept[0]).read_bytes() == data[: len(Path(done.kept[0]).read_bytes())]
    assert sej.Journal(path).verify() == []
    assert sum(1 for _ in read_all(path, verify=True)) == 600


def test_it_is_refused_while_a_writer_is_at_work(path: Path) -> None:
    with sej.Writer(path), pytest.raises(sej.LockedError):
        sej.Journal(path).repair()


def test_reindexing_writes_every_index_again(path: Path) -> None:
    assert sej.Journal(path).reindex() == 3
    assert sorted(file.name for file in (path / "idx").glob("*.idx")) == [f"{n:016x}.idx" for n in (0, 10, 20)]


def test_any_damage_leaves_a_journal_that_opens(tmp_path: Path) -> None:
    torn_seen = 0
    for seed in range(150):
        chance = random.Random(seed)
        path = by_hand(tmp_path / str(seed), (0, packed(MESSAGES[:18])), (18, packed(MESSAGES[18:])))
        for _ in range(chance.randrange(1, 4)):
            file = chance.choice(sorted((path / "jnl").iterdir()))
            data = bytearray(file.read_bytes())
            where, size = chance.randrange(len(data)), chance.randrange(1, 60)
            match chance.randrange(4):
                case 0:
                    data[where] ^= 1 << chance.randrange(8)
                case 1:
                    del data[where : where + size]
                case 2:
                    data[where:where] = chance.randbytes(size)
                case 3:
                    data[where : where + size] = bytes(min(size, len(data) - where))
            file.write_bytes(data)
        torn = cut_by_opening(path, tmp_path / f"{seed} opened")
        torn_seen += len(torn) > 0
        left = b"".join(file.read_bytes() for file in sorted((path / "jnl").iterdir())).removesuffix(torn)
        sej.Journal(path).repair()
        with sej.Scanner(path) as s:
            found = list(s)
            gaps = [(gap.start, gap.stop) for gap in s.gaps]
        offsets_from = [-1, *(message.offset for message in found)]
        holes = [(a + 1, b) for a, b in pairwise(offsets_from) if b != a + 1]
        assert gaps == holes, seed
        whole = [message.offset for message in MESSAGES if encoded(*message) in left]
        offsets = {message.offset for message in found if message.offset < 30 and message == MESSAGES[message.offset]}
        assert set(whole) <= offsets, seed
        assert sej.Journal(path).verify() == [], seed
        write(path, [b"on"])
    assert 0 < torn_seen < 50


def cut_by_opening(path: Path, copy: Path) -> bytes:
    """What opening a journal takes for a torn tail."""
    shutil.copytree(path, copy)
    try:
        with sej.Writer(copy) as w:
            return b"" if w.recovery is None else Path(w.recovery.kept).read_bytes()
    except sej.CorruptionError:
        return b""


def test_what_looks_like_a_message_one_byte_into_a_journal(tmp_path: Path) -> None:
    data = MESSAGES[0].offset.to_bytes(8, "big") + b"t" * 8 + b"\0\0" + bytes([16]) + b"k" * 16 + bytes(4)
    data += (len(data) - 1 + 4).to_bytes(4, "big")
    assert find_candidate(data, 1, len(data), 0, -(1 << 50), len(data)) == (1, len(data), ord("t"))
    done = sej.Journal(by_hand(tmp_path, (0, data))).repair()
    assert read(tmp_path) == ([], [])
    assert [Path(kept).read_bytes() for kept in done.kept] == [data]


def test_damages_far_from_each_other_are_kept_each_for_itself(tmp_path: Path) -> None:
    messages = [encoded(number, 1, 0, b"", b"v" * 30_000) for number in range(5)]
    path = by_hand(tmp_path, (0, messages[0] + b"one" + b"".join(messages[1:4]) + b"two" + messages[4]))
    done = sej.Journal(path).repair()
    assert [Path(kept).read_bytes() for kept in done.kept] == [b"one", b"two"]
    assert segments(path) == {f"{0:016x}.jnl": b"".join(messages)}


def test_lone_messages_between_damages_are_kept(tmp_path: Path) -> None:
    """Zeros over half of the messages, no two good ones side by side, and bytes missing before each."""
    data = bytearray()
    for number in range(400):
        message = encoded(number, 1, 0, b"", b"value %d" % number)
        data += message if number % 2 == 0 else bytes(len(message) - 20)
    path = by_hand(tmp_path, (0, bytes(data)))
    sej.Journal(path).repair()
    assert [message.offset for message in read_all(path)] == list(range(0, 400, 2))


def test_a_journal_in_the_value_of_a_damaged_message_does_not_take_the_place_of_its_own(tmp_path: Path) -> None:
    inside = b"".join(encoded(1000 + number, 1, 0, b"", b"inside") for number in range(10))
    sound = [encoded(number, 1, 0, b"", inside if number == 5 else b"own %d" % number) for number in range(40)]
    damaged = bytearray(sound[5])
    damaged[-1] ^= 0xFF
    path = by_hand(tmp_path, (0, b"".join([*sound[:5], bytes(damaged), *sound[6:]])))
    sej.Journal(path).repair()
    assert [message.offset for message in read_all(path)] == [*range(5), *range(6, 40)]


def test_of_two_messages_with_one_offset_the_one_is_kept_that_fits(tmp_path: Path) -> None:
    messages = [encoded(number, 1, 0, b"", b"%d" % number) for number in (0, 1, 3, 3, 5, 6, 6)]
    path = by_hand(tmp_path, (0, b"".join(messages)))
    sej.Journal(path).repair()
    with sej.Scanner(path) as s:
        assert [(message.offset, message.value) for message in s][:3] == [(0, b"0"), (1, b"1"), (3, b"3")]
        assert [(gap.start, gap.stop) for gap in s.gaps] == [(2, 3), (4, 5)]
    assert (path / "kept").exists()


def test_a_crash_at_any_moment_of_a_repair_is_finished_by_the_next_one() -> None:
    disk = CrashDisk()
    with sej.Writer("/j", disk=disk, segment_bytes=400, durability="disk") as w:
        for message in MESSAGES:
            w.append(message.value, message.key, message.type, message.timestamp)
    first, *_ = disk.list("/j/jnl")
    file = disk.open(f"/j/jnl/{first}", "edit")
    file.write_at(b"\xff", len(encoded(*MESSAGES[0])) + 17)
    file.write_at(b"\xff", len(packed(MESSAGES[:4])) + 17)
    file.sync()
    file.close()
    start = disk.settle()
    sej.Journal("/j", disk=disk).repair()
    states = list(disk.crash_states(since=start))
    assert len(states) > 10
    for crash in states:
        sej.Journal("/j", disk=crash.disk).repair()
        with sej.Scanner("/j", disk=crash.disk) as s:
            assert [message.offset for message in s] == [n for n in range(30) if n not in (1, 4)]
            assert [(gap.start, gap.stop) for gap in s.gaps] == [(1, 2), (4, 5)]
        with sej.Writer("/j", disk=crash.disk) as w:
            assert w.offset == 30


class Killed(BaseException):
    """The process ends here."""


def killed(*_: object) -> None:
    raise Killed


@pytest.mark.parametrize("where", ["before the renames", "between the renames", "while the index is made"])
def test_retention_may_take_what_a_repair_that_was_killed_had_written(
    path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    overwrite(path, 2, b"\xff")
    rename = OsDisk.rename

    def renamed(disk: OsDisk, source: str, target: str) -> None:
        if "/jnl/" in target and where == "before the renames":
            raise Killed
        rename(disk, source, target)
        if "/jnl/" in target and where == "between the renames":
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(OsDisk, "rename", renamed)
        if where == "while the index is made":
            patch.setattr(sej.journal.repair, "_reindex", killed)
        with pytest.raises(Killed):
            sej.Journal(path).repair()
    assert (path / "txn" / "repair").exists()
    sej.Journal(path).clean(max_bytes=0, keep_segments=2)
    first = sej.Journal(path).first_offset
    assert first in (3, 10)
    with sej.Writer(path) as w:
        assert w.append(b"on") == 30
    sej.Journal(path).repair()
    with sej.Scanner(path, sej.FIRST) as s:
        assert [message.offset for message in s] == list(range(sej.Journal(path).first_offset, 31))
    assert sej.Journal(path).first_offset == first
    assert not list((path / "tmp").glob("repair.*"))


def test_retention_waits_for_the_renames_of_a_repair(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overwrite(path, 2, b"\xff")
    rename = OsDisk.rename
    cleaned = []

    def renamed(disk: OsDisk, source: str, target: str) -> None:
        if target == str(segment(path, 0)):
            cleaned.append(clean(Directory(path, OS), sej.Retention(max_bytes=0), wait=False))
        rename(disk, source, target)

    monkeypatch.setattr(OsDisk, "rename", renamed)
    sej.Journal(path).repair()
    assert cleaned == [[]]
    assert read(path) == ([n for n in range(30) if n != 2], [(2, 3)])


@pytest.mark.parametrize("changed", [
    {"runs": None}, {"runs": [[1]]}, {"runs": [["repair.0", "x"]]}, {"runs": [["repair.0", None]]}, {"segment": None},
])  # fmt: skip
def test_an_intent_that_cannot_be_read_says_so(path: Path, changed: dict[str, object]) -> None:
    intent = {"segment": 0, "runs": [["repair.0000000000000000", 0]], "last": False}
    (path / "txn").mkdir()
    for odd in ({**intent, **changed}, {name: intent[name] for name in intent if name not in changed}):
        (path / "txn" / "repair").write_text(json.dumps(odd))
        with pytest.raises(sej.CorruptionError, match="move it to kept/"):
            sej.Journal(path).repair()


# --- well-formed messages with wrong offsets: how much they cost, and what is reported


FAR = 1 << 40


def changed(path: Path, first: int, at: int, offset: int) -> None:
    """Give the at-th message of a segment another offset."""
    file = segment(path, first)
    messages = read_all(path, offset=first, on_corruption="skip")
    data = file.read_bytes()
    position = sum(len(encoded(*message)) for message in messages[:at])
    file.write_bytes(data[:position] + offset.to_bytes(8, "big") + data[position + 8 :])


@pytest.mark.parametrize("offset", [0, 4, 7, 15, FAR], ids=str)
@pytest.mark.parametrize("at", [0, 3])
def test_a_damaged_offset_costs_its_message_alone(at: int, offset: int, tmp_path: Path) -> None:
    rows = sample(20)
    by_hand(tmp_path, (0, packed(rows[:5])), (5, packed(rows[5:10])), (10, packed(rows[10:])))
    changed(tmp_path, 5, at, offset)
    lost = 5 + at
    with pytest.raises(sej.CorruptionError, match=f"the message must have offset {lost}, got {offset}"):
        read_all(tmp_path)
    with sej.Scanner(tmp_path, on_corruption="skip") as s:
        assert list(s) == rows[:lost] + rows[lost + 1 :]
        assert [gap[:2] for gap in s.gaps if gap.missing] == [(lost, lost + 1)]
    (problem,) = sej.Journal(tmp_path).verify()
    assert (problem.kind, problem.offset, problem.next_offset) == ("corruption", lost, lost + 1)
    assert sej.Journal(tmp_path).repair().gaps[0][:2] == (lost, lost + 1)
    assert read_all(tmp_path) == rows[:lost] + rows[lost + 1 :]


def test_messages_that_come_twice_are_one_problem(tmp_path: Path) -> None:
    rows = sample(3000)
    by_hand(tmp_path, (0, packed(rows[:2000]) + packed(rows[:1500]) + packed(rows[2000:])))
    with sej.Scanner(tmp_path, on_corruption="skip") as s:
        assert list(s) == rows
        assert [gap[:2] for gap in s.gaps] == [(2000, 2000)]
    (problem,) = sej.Journal(tmp_path).verify()
    assert (problem.offset, problem.next_offset) == (2000, 2000)
    assert problem.end == len(packed(rows[:2000]) + packed(rows[:1500]))


def test_segments_of_two_writers_that_overlap_are_not_sound(tmp_path: Path) -> None:
    one = [encoded(n, STAMP, 0, b"", b"one") for n in range(10)]
    other = [encoded(n, STAMP, 0, b"", b"other") for n in range(6, 12)]
    by_hand(tmp_path, (0, b"".join(one)), (6, b"".join(other)))
    j = sej.Journal(tmp_path)
    (problem,) = j.verify()
    assert problem.kind == "corruption" and "messages 6 to 9 are in the next segment too" in problem.reason
    assert j.repair(dry_run=True).segments == j.repair().segments == [str(segment(tmp_path, 0))]
    assert j.verify() == [] and j.repair() == sej.Repair([], [], [], [])
    assert values(read_all(tmp_path)) == [b"one"] * 6 + [b"other"] * 6
    assert [file.read_bytes() for file in (tmp_path / "kept").iterdir()] == [b"".join(one[6:])]


# --- recorded gaps


@pytest.mark.either_codec
def test_gaps_of_two_repairs_that_overlap_are_counted_once(tmp_path: Path) -> None:
    directory = Directory(tmp_path, OS)
    sej.Writer(tmp_path).close()
    for start, stop in ((1, 6), (2, 3), (5, 8), (12, 14)):
        record_gap(directory, Gap(start, stop, "a test"))
    there = {*range(20)} - {*range(1, 8), 12, 13}
    for start in range(20):
        for stop in range(start, 20):
            assert count_messages(directory, start, stop) == len(there & {*range(start, stop)})
