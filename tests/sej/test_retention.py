"""Retention: what goes, what stays, and who may be reading meanwhile."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import sej
from sej.journal.directory import Directory
from sej.journal.retention import Retention, at_risk, clean, why_removed
from sej.system.disk import OS, OsDisk
from tests.crash.disk import CrashDisk
from tests.sej.support import join, read_all, segments

pytestmark = pytest.mark.either_codec

COUNT = 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fill(tmp_path)
    return tmp_path


def fill(path: Path | str, **options: object) -> None:
    with sej.Writer(path, segment_bytes=300, **options) as w:  # type: ignore[arg-type]
        for n in range(COUNT):
            w.append(b"%040d" % n)


def values(path: Path | str, offset: int | None = None) -> list[int]:
    return [int(message.value) for message in read_all(path, offset=sej.FIRST if offset is None else offset)]


def test_nothing_is_deleted_without_a_limit(path: Path) -> None:
    assert sej.Journal(path).clean() == []


def test_the_oldest_segments_go_until_the_size_fits(path: Path) -> None:
    before = segments(path)
    removed = sej.Journal(path).clean(max_bytes=1000)
    left = segments(path)
    assert [Path(name).name for name in removed] == list(before)[: len(removed)]
    assert sum(map(len, left.values())) <= 1000 < sum(map(len, left.values())) + 330
    first = sej.Journal(path).first_offset
    assert values(path) == list(range(first, COUNT))
    assert {index.stem for index in (path / "idx").glob("*.idx")} <= {name[:16] for name in left}


def test_age_is_that_of_the_last_append(path: Path) -> None:
    for name in list(segments(path))[:3]:
        os.utime(path / "jnl" / name, (1, 1))
    assert len(sej.Journal(path).clean(max_age_s=3600.0)) == 3


def test_a_dry_run_says_what_would_go_and_takes_nothing(path: Path) -> None:
    before = segments(path)
    would = sej.Journal(path).clean(max_bytes=0, dry_run=True)
    assert segments(path) == before
    assert sej.Journal(path).clean(max_bytes=0) == would


def test_the_last_segment_always_stays(path: Path) -> None:
    last = list(segments(path))[-1]
    sej.Journal(path).clean(max_bytes=0, max_age_s=0.0)
    assert list(segments(path)) == [last]
    with pytest.raises(ValueError, match="keep_segments"):
        sej.Journal(path).clean(max_bytes=0, keep_segments=0)


def test_what_a_reader_needs_stays_unless_the_reader_is_named(path: Path) -> None:
    with sej.Offset(path, "slow", default=20), sej.Offset(path, "fast") as fast:
        fast.commit(50)
    with sej.Offset(path, "slow") as slow:
        slow.reset(20)
    sej.Journal(path).clean(max_bytes=0)
    assert sej.Journal(path).first_offset <= 20
    assert values(path, 20) == list(range(20, COUNT))
    with pytest.raises(sej.InvalidNameError, match="nobody"):
        sej.Journal(path).clean(max_bytes=0, ignore_readers=["nobody"])
    with pytest.raises(sej.InvalidNameError, match=r"got 'slow\.check'; this journal has 'fast', 'slow'"):
        sej.Journal(path).clean(max_bytes=0, ignore_readers=["slow.check"])
    sej.Journal(path).clean(max_bytes=0, ignore_readers=["slow"])
    assert 20 < sej.Journal(path).first_offset <= 50


def test_a_reader_that_never_committed_keeps_everything(path: Path) -> None:
    sej.Offset(path, "new").close()
    assert (path / "ofs" / "new.ofs").read_bytes() == b""
    assert sej.Journal(path).clean(max_bytes=0) == []


def test_a_reader_cannot_go_back_to_what_is_gone(path: Path) -> None:
    with sej.Offset(path, "reader") as kept:
        kept.commit(COUNT)
        sej.Journal(path).clean(max_bytes=0)
        first = sej.Journal(path).first_offset
        with pytest.raises(sej.OffsetTooSmallError) as caught:
            kept.reset(0)
        assert caught.value.first_available == first
        assert kept.value == COUNT


def test_a_writer_with_a_policy_keeps_to_it(tmp_path: Path) -> None:
    fill(tmp_path, retention=sej.Retention(max_bytes=900))
    assert sum(map(len, segments(tmp_path).values())) <= 900 + 330
    assert values(tmp_path)[-1] == COUNT - 1


def test_a_scanner_continues_while_segments_are_joined_and_deleted(path: Path) -> None:
    with sej.Scanner(path, timeout=30.0) as s:
        seen = [int(message.value) for message in s.read(7)]
        join(path, 3)
        seen += [int(message.value) for message in s.read(9)]
        join(path)
        with sej.Writer(path, segment_bytes=300) as w:
            w.append(b"%040d" % COUNT)
        while len(seen) <= COUNT:
            seen += [int(message.value) for message in s.read(9)]
    assert seen == list(range(COUNT + 1))


def test_readers_created_while_segments_are_deleted_lose_no_message(path: Path) -> None:
    failed: list[BaseException] = []
    start = threading.Barrier(3)

    def read(number: int) -> None:
        start.wait(30)
        try:
            for turn in range(20):
                with sej.Offset(path, f"reader{number}.{turn}") as kept, sej.Scanner(path, kept.value) as s:
                    assert [m.offset for m in s] == list(range(kept.value, COUNT))
        except BaseException as error:  # handed to the test
            failed.append(error)

    readers = [threading.Thread(target=read, args=(n,)) for n in range(2)]
    for reader in readers:
        reader.start()
    start.wait(30)
    sej.Journal(path).clean(max_bytes=0)
    for reader in readers:
        reader.join(60)
    assert failed == []


def test_a_crash_at_any_moment_leaves_a_journal_that_reads_on() -> None:
    disk = CrashDisk()
    fill("/j", disk=disk)
    start = disk.settle()
    assert sej.Journal("/j", disk=disk).clean(max_bytes=1500)
    # A reader of the original ends if a name in jnl/ is deleted, or comes into it, and not if one is renamed out of it.
    assert not [at for verb, at in disk.trace[start:] if verb in ("create", "unlink") and at[0] == "/j/jnl"]
    assert not [at for verb, at in disk.trace[start:] if verb == "rename" and "/jnl/" in at[1]]
    states = list(disk.crash_states(since=start))
    assert len(states) > 3
    left = 0
    for crash in states:
        tmp = crash.disk.list("/j/tmp") if crash.disk.status("/j/tmp") else []
        left += any(name.endswith(".removed") for name in tmp)
        with sej.Writer("/j", disk=crash.disk) as w:
            assert w.offset == COUNT
        sej.Journal("/j", disk=crash.disk).clean()
        assert not (tmp and crash.disk.list("/j/tmp")), "the next one deletes what a crash left"
        found = [int(message.value) for message in read_all("/j", disk=crash.disk)]
        assert found == list(range(found[0], COUNT))
        assert sej.Journal("/j", disk=crash.disk).verify() == []
    assert left > 0


class Racing(OsDisk):
    """A directory that names come into while it is listed: one of them is missing in the listing, a later one not."""

    def __init__(self, missing: str, times: int) -> None:
        self.missing, self.times = missing, times

    def list(self, path: Any) -> list[str]:
        names = super().list(path)
        if self.times > 0 and self.missing in names:
            self.times -= 1
            names.remove(self.missing)
        return names


@pytest.mark.parametrize("at", [1, 2])
def test_a_name_that_a_listing_lacks_is_no_gap(path: Path, at: int) -> None:
    missing = list(segments(path))[at]
    first = int(missing[:16], 16)
    with sej.Scanner(path, disk=Racing(missing, 1)) as s:
        assert [int(message.value) for message in s] == list(range(COUNT))
        assert s.gaps == []
    with sej.Scanner(path, first - 1, disk=Racing(missing, 1)) as s:
        assert [int(message.value) for message in s] == list(range(first - 1, COUNT))
    assert [int(m.value) for m in sej.Journal(path, disk=Racing(missing, 1)).reversed()] == list(range(COUNT))[::-1]
    assert sej.Journal(path, disk=Racing(missing, 1)).verify() == []
    assert [int(message.value) for message in read_all(path, disk=Racing(missing, 1000))] == list(range(COUNT))
    with pytest.raises(sej.OffsetGapError):
        list(sej.Journal(path, disk=Racing(missing, 1000)).reversed())
    assert [problem.kind for problem in sej.Journal(path, disk=Racing(missing, 1000)).verify()] == ["gap"]


# --- readers that no program uses: how long they hold segments, and what reports it before


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
