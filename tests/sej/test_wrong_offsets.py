"""Well-formed messages with wrong offsets: how much they cost, and what is reported."""

from pathlib import Path

import pytest

import sej
from tests.sej.support import STAMP, by_hand, encoded, packed, read_all, sample, segment, values

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
