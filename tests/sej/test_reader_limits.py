"""Readers that no program uses: how long they hold segments, what their error says, and what reports it before."""

import json
import os
from pathlib import Path

import pytest

import sej
from sej.journal.directory import Directory
from sej.journal.retention import Retention, at_risk, clean, why_removed
from sej.system.disk import OS
from tests.crash.disk import CrashDisk
from tests.sej.support import segments

DAY_NS = 86_400 * 10**9
NOW = 20_000 * DAY_NS


def make(path: Path, *readers: tuple[str, int, float]) -> Directory:
    """Make ten segments, one a day until now, and an empty one; readers with an offset and an age in days."""
    with sej.Writer(path, segment_bytes=1) as w:
        w.append_many([b"v" * 74] * 10, timestamp=0)  # 100 bytes each
    for number, name in enumerate(segments(path)):
        os.utime(path / "jnl" / name, ns=(0, NOW - (9 - number) * DAY_NS))
    for name, offset, days in readers:
        with sej.Offset(path, name) as kept:
            kept.commit(offset)
        os.utime(path / "ofs" / f"{name}.ofs", ns=(0, NOW - int(days * DAY_NS)))
    return Directory(path, OS)


def left(directory: Directory, now_ns: int = NOW, **limits: object) -> int:
    clean(directory, Retention(max_bytes=0, **limits), now_ns=now_ns)  # type: ignore[arg-type]
    return sej.Journal(directory.path).first_offset


def test_a_reader_without_a_commit_for_too_long_holds_nothing(tmp_path: Path) -> None:
    directory = make(tmp_path, ("old", 2, 31), ("used", 6, 1))
    assert left(directory) == 2
    assert left(directory, reader_max_age="32d") == 2
    assert left(directory, reader_max_age="5d") == 6
    with pytest.raises(sej.OffsetTooSmallError) as caught:
        sej.Scanner(tmp_path, sej.read_offset(tmp_path, "old") or 0)
    assert caught.value.first_available == 6
    assert "waits only for" not in str(caught.value)
    rule = "retention does not wait for reader 'old' any more: no commit for 604800 s, and reader_max_age is 432000 s"
    assert rule in str(caught.value) and " at 2024-10-04T00:00:00Z)" in str(caught.value)


def test_a_reader_is_as_young_as_the_message_that_it_needs(tmp_path: Path) -> None:
    """One that has read everything may rest: what is new is not too old for it."""
    directory = make(tmp_path, ("resting", 7, 400))
    assert left(directory, reader_max_age="3d") == 7
    assert left(directory, NOW + 2 * DAY_NS, reader_max_age="3d") == 10  # it has read none since


def test_a_reader_that_is_too_far_behind_holds_nothing(tmp_path: Path) -> None:
    directory = make(tmp_path, ("slow", 2, 0), ("fast", 8, 0))
    assert sum(map(len, segments(tmp_path).values())) == 1000
    assert left(directory, reader_max_lag_bytes=700) == 2
    assert left(directory, reader_max_lag_bytes=699) == 8
    with pytest.raises(sej.OffsetTooSmallError, match=r"'slow' .* 700 bytes behind, and reader_max_lag_bytes is 699"):
        sej.Scanner(tmp_path, 2)


def test_a_passed_reader_holds_again_once_it_has_moved(tmp_path: Path) -> None:
    directory = make(tmp_path, ("old", 2, 31))
    assert left(directory, reader_max_age="6d") == 10
    with sej.Writer(tmp_path, segment_bytes=1) as w:
        w.append_many([b"v"] * 3)
    assert left(directory) == 13, "it was passed, so it holds nothing"
    with sej.Offset(tmp_path, "old") as kept:
        kept.reset(13)
    with sej.Writer(tmp_path, segment_bytes=1) as w:
        w.append_many([b"v"] * 3)
    assert left(directory) == 13
    assert why_removed(directory, 2) == "", "it is forgotten"


def test_no_queue_is_passed(tmp_path: Path) -> None:
    directory = make(tmp_path)
    sej.open_queue(tmp_path, "jobs").close()
    assert left(directory, NOW + 99 * DAY_NS, reader_max_age=0, reader_max_lag_bytes=0) == 0


def test_no_reader_with_a_damaged_offset_is_passed(tmp_path: Path) -> None:
    directory = make(tmp_path, ("odd", 2, 31))
    (tmp_path / "ofs" / "odd.ofs").write_bytes(b"\0\0\1")
    assert left(directory, NOW + 99 * DAY_NS, reader_max_age=0, reader_max_lag_bytes=0) == 0


def test_it_is_reported_before_it_happens(tmp_path: Path) -> None:
    directory = make(tmp_path, ("old", 2, 31), ("end", 10, 400))
    assert at_risk(directory, NOW) == {}
    assert left(directory, reader_max_age="8d") == 2
    assert at_risk(directory, NOW - DAY_NS) == {}
    assert at_risk(directory, NOW) == {
        "old": "retention will soon remove messages that it has not read: no commit for 604800 s, and reader_max_age is"
        " 691200 s"
    }
    assert left(directory, NOW + 2 * DAY_NS) == 2, "without the limit nothing happens, and the limit stays known"
    assert left(directory, NOW + 2 * DAY_NS, reader_max_age="8d") == 10
    assert "retention does not wait for it any more" in at_risk(directory, NOW)["old"]


def test_a_dry_run_stores_nothing_and_damage_stops_no_writer(tmp_path: Path) -> None:
    directory = make(tmp_path, ("old", 2, 31))
    limits = Retention(max_bytes=0, reader_max_age="6d")
    assert len(clean(directory, limits, dry_run=True, now_ns=NOW)) == 10
    assert not (tmp_path / "ofs" / ".limits").exists()
    (tmp_path / "ofs" / ".limits").write_bytes(b"{}\n")
    with pytest.raises(sej.CorruptionError, match="remove it, and clean again"):
        at_risk(directory, NOW)
    assert why_removed(directory, 2) == ""
    with sej.Writer(tmp_path, segment_bytes=1, retention=limits) as w:
        w.append(b"v")
    assert json.loads((tmp_path / "ofs" / ".limits").read_bytes()[9:])["passed"]["old"]["offset"] == 2


def test_what_was_decided_is_on_the_disk_before_a_segment_is_removed() -> None:
    disk = CrashDisk()
    with sej.Writer("/j", segment_bytes=1, disk=disk) as w:
        w.append_many([b"v"] * 5)
        with sej.Offset("/j", "old", disk=disk) as kept:
            kept.commit(1)
        clean(Directory("/j", disk), Retention(max_bytes=0, reader_max_lag_bytes=0))
    for state in disk._states():
        if sej.Journal("/j", disk=state).first_offset > 1:
            assert "old" in why_removed(Directory("/j", state), 1)
