"""Retention and merging: what goes, what stays, and who may be reading meanwhile."""

import errno
import json
import os
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import sej
from sej.system.disk import OS, File, OsDisk, OsFile
from sej.system.sealed import unseal
from tests.crash.disk import CrashDisk
from tests.sej.hooks import HookedDisk
from tests.sej.support import segments

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
    with sej.Scanner(path, sej.FIRST if offset is None else offset) as s:
        return [int(message.value) for message in s]


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


def test_a_merge_leaves_the_age_of_the_last_append(path: Path) -> None:
    for at, name in enumerate(list(segments(path))[:5]):
        os.utime(path / "jnl" / name, (at, at))
    assert sej.Journal(path).merge(1500) > 3
    joined = sej.Journal(path).segments[0]
    assert (joined.first_offset, joined.mtime_ns) == (0, 4 * 10**9)
    assert len(sej.Journal(path).clean(max_age_s=3600.0)) == 1


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


def test_a_damaged_offset_keeps_everything(path: Path) -> None:
    (path / "ofs").mkdir(exist_ok=True)
    (path / "ofs" / "odd.ofs").write_bytes(b"\0\0\1")
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


def test_small_segments_are_joined_and_nothing_else_changes(path: Path) -> None:
    before = segments(path)
    gone = sej.Journal(path).merge(1000)
    after = segments(path)
    assert gone == len(before) - len(after) > 0
    assert list(after)[-1] == list(before)[-1], "the last segment is the writer's"
    assert b"".join(after.values()) == b"".join(before.values())
    assert all(len(data) >= 1000 for data in list(after.values())[:-2])
    assert values(path) == list(range(COUNT))
    assert sej.Journal(path).verify() == []
    assert [message.offset for message in sej.Journal(path).reversed()] == list(range(COUNT))[::-1]
    with sej.Writer(path) as w:
        assert w.append(b"next") == COUNT


@pytest.mark.parametrize("which", [1, 2])
def test_a_segment_that_is_damaged_during_a_merge_is_named(
    path: Path, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    monkeypatch.setattr("sej.journal.retention._ends_at", lambda *_: True)  # it was good when the merge began
    name = list(segments(path))[which]
    (path / "idx" / name).with_suffix(".idx").unlink()
    data = bytearray((path / "jnl" / name).read_bytes())
    data[18] ^= 0x7F  # the size of the first value
    (path / "jnl" / name).write_bytes(data)
    before = segments(path)
    with pytest.raises(sej.CorruptionError, match="damaged while segments were merged") as caught:
        sej.Journal(path).merge(1000)
    assert (str(caught.value.path), caught.value.position) == (str(path / "jnl" / name), 0)
    assert segments(path) == before


def test_a_scanner_continues_while_segments_are_joined_and_deleted(path: Path) -> None:
    with sej.Scanner(path, timeout=30.0) as s:
        seen = [int(message.value) for message in s.read(7)]
        sej.Journal(path).merge(800)
        seen += [int(message.value) for message in s.read(9)]
        sej.Journal(path).merge(100_000)
        with sej.Writer(path, segment_bytes=300) as w:
            w.append(b"%040d" % COUNT)
        while len(seen) <= COUNT:
            seen += [int(message.value) for message in s.read(9)]
    assert seen == list(range(COUNT + 1))


def test_a_damaged_segment_is_left_alone(path: Path) -> None:
    damaged = path / "jnl" / list(segments(path))[2]
    data = bytearray(damaged.read_bytes())
    data[17] = 0xFF
    damaged.write_bytes(data)
    sej.Journal(path).merge(100_000)
    assert damaged.read_bytes() == data
    with sej.Scanner(path) as s, pytest.raises(sej.CorruptionError):
        list(s)


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


@pytest.mark.parametrize("what", ["clean", "merge"])
def test_a_crash_at_any_moment_leaves_a_journal_that_reads_on(what: str) -> None:
    disk = CrashDisk()
    fill("/j", disk=disk)
    start = disk.settle()
    journal = sej.Journal("/j", disk=disk)
    if what == "clean":
        journal.clean(max_bytes=1500)
    else:
        journal.merge(900)
    states = list(disk.crash_states(since=start))
    assert len(states) > 3
    for crash in states:
        with sej.Writer("/j", disk=crash.disk) as w:
            assert w.offset == COUNT
        with sej.Scanner("/j", disk=crash.disk) as s:
            found = [int(message.value) for message in s]
        assert found == list(range(found[0], COUNT))
        assert what == "clean" or found[0] == 0
        assert sej.Journal("/j", disk=crash.disk).verify() == []


def test_a_writer_does_not_wait_for_a_process_that_deletes_segments(tmp_path: Path) -> None:
    (tmp_path / "ofs").mkdir()
    with closing(OS.open(tmp_path / "ofs" / ".lock", "append")) as held:
        assert held.lock()
        fill(tmp_path, retention=sej.Retention(max_bytes=0))
        assert values(tmp_path) == list(range(COUNT))
    fill(tmp_path, retention=sej.Retention(max_bytes=0))
    assert len(segments(tmp_path)) == 1


class Killed(BaseException):
    """The process ends here."""


def kill_a_merge(path: Path, where: str) -> None:
    """Join all sealed segments, and die behind the rename or in the removal of what was joined."""
    rename, unlink = OsDisk.rename, OsDisk.unlink

    def renamed(disk: OsDisk, source: str, target: str) -> None:
        if target.endswith(".jnl") and where == "before the rename":
            raise Killed
        rename(disk, source, target)
        if target.endswith(".jnl") and where == "behind the rename":
            raise Killed

    def unlinked(disk: OsDisk, name: str) -> None:
        unlink(disk, name)
        if name.endswith(".idx") and where == "while parts are removed":
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OsDisk, "rename", renamed)
        patch.setattr(OsDisk, "unlink", unlinked)
        with pytest.raises(Killed):
            sej.Journal(path).merge(100_000)
    assert (path / "txn" / "merge").exists()


KILLED = ["before the rename", "behind the rename", "while parts are removed"]


@pytest.mark.parametrize("where", KILLED)
def test_the_checksums_of_the_parts_outlive_a_merge_that_was_killed(path: Path, where: str) -> None:
    kill_a_merge(path, where)
    joined = path / "jnl" / f"{0:016x}.jnl"
    data = bytearray(joined.read_bytes())
    data[60] ^= 1
    joined.write_bytes(data)
    with sej.Writer(path):
        pass
    (problem,) = sej.Journal(path).verify()
    assert (problem.kind, problem.offset) == ("checksum", 0)
    assert not (path / "txn" / "merge").exists()


@pytest.mark.parametrize("gone", [0, 2])
@pytest.mark.parametrize(("changed", "finished"), [(None, True), (30, True), (70, False), (-30, False)])
def test_a_merge_whose_marker_is_lost_is_finished_if_the_joined_segment_has_the_parts(
    path: Path, gone: int, changed: int | None, finished: bool
) -> None:
    names = list(segments(path))
    joined = bytearray(b"".join((path / "jnl" / name).read_bytes() for name in names[1:6]))
    if changed is not None:
        joined[changed] ^= 1
    for name in names[2 : 2 + gone]:
        (path / "jnl" / name).unlink()
    before = list(segments(path))
    (path / "jnl" / names[1]).write_bytes(joined)
    with sej.Writer(path) as w:
        assert w.offset == COUNT
    assert list(segments(path)) == ([*names[:2], *names[6:]] if finished else before)
    if changed is None:
        assert values(path) == list(range(COUNT))
        assert sej.Journal(path).verify() == []


def test_segments_whose_marker_would_be_too_large_are_joined_in_parts(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sej.journal.retention.MARKER_BYTES", 900)
    before, removed = len(segments(path)), sej.Journal(path).merge(1 << 20)
    assert 2 < len(segments(path)) == before - removed < before / 2
    assert sej.Journal(path).merge(1 << 20) == 0
    assert sej.Journal(path).verify() == []
    with sej.Writer(path) as w:
        w.append(b"%d" % COUNT)
    assert values(path) == list(range(COUNT + 1))


def test_a_marker_of_a_merge_that_cannot_be_read_says_so(path: Path) -> None:
    kill_a_merge(path, "before the rename")
    marker = path / "txn" / "merge"
    plan = unseal(marker, marker.read_bytes())
    for odd in (*({name: plan[name] for name in plan if name != gone} for gone in plan), {**plan, "blocks": [[1]]}, 5):
        marker.write_text(json.dumps(odd))
        with pytest.raises(sej.CorruptionError, match="move it to kept/"):
            sej.Writer(path)


@pytest.mark.parametrize("where", KILLED)
def test_a_merge_that_was_killed_takes_nothing_from_a_reader(path: Path, where: str) -> None:
    last = int(list(segments(path))[-2][:16], 16)
    with sej.Offset(path, "slow") as slow:
        slow.commit(last)
    kill_a_merge(path, where)
    would = sej.Journal(path).clean(max_bytes=0, dry_run=True)
    assert sej.Journal(path).clean(max_bytes=0) == would
    assert values(path, last) == list(range(last, COUNT))
    with sej.Writer(path) as w:
        assert w.offset == COUNT
    assert values(path, last) == list(range(last, COUNT))


@pytest.mark.parametrize("where", KILLED)
def test_a_repair_of_what_a_killed_merge_left_loses_only_what_is_damaged(path: Path, where: str) -> None:
    kill_a_merge(path, where)
    joined = path / "jnl" / f"{0:016x}.jnl"
    data = bytearray(joined.read_bytes())
    data[2 * 66 + 17] = 0xFF
    joined.write_bytes(data)
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "jnl.lck"}
    planned = sej.Journal(path).repair(dry_run=True)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "jnl.lck"} == before
    done = sej.Journal(path).repair()
    assert [gap[:2] for gap in done.gaps] == [(2, 3)] == [gap[:2] for gap in planned.gaps]
    assert (done.segments, done.notes) == (planned.segments, planned.notes)
    assert values(path, 0) == [n for n in range(COUNT) if n != 2]
    assert sej.Journal(path).verify() == []


def test_readers_find_everything_at_every_moment_of_a_merge(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    firsts = [int(name[:16], 16) for name in segments(path)]
    parked = []
    for first in firsts:
        s = sej.Scanner(path)
        read = 0
        while read < first:
            read += len(s.read(first - read))
        parked.append(s)
    waiting = iter(parked)
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        assert values(path) == list(range(COUNT))
        assert [values(path, first) for first in firsts] == [list(range(first, COUNT)) for first in firsts]
        assert [int(message.value) for message in sej.Journal(path).reversed()] == list(range(COUNT))[::-1]
        assert sej.Journal(path).verify() == []
        for s in [s for s, _ in zip(waiting, range(1), strict=False)]:
            start = s.offset
            assert [int(message.value) for message in s] == list(range(start, COUNT))
            s.close()

    rename = OsDisk.rename

    def renamed(disk: OsDisk, source: str, target: str) -> None:
        rename(disk, source, target)
        if target.endswith(".jnl") or source.endswith(".jnl"):  # a part is renamed out of jnl/, then deleted
            look()

    monkeypatch.setattr(OsDisk, "rename", renamed)
    sej.Journal(path).merge(100_000)
    assert looks == len(firsts) - 1
    for s in parked:
        s.close()


@pytest.mark.parametrize("behind", [1, 2])
def test_a_time_is_found_past_a_merge_that_comes_between(
    path: Path, behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sej.Scanner(path) as s:
        stamps = [message.timestamp for message in s]
    opened, left = OsDisk.open, behind

    def open_(disk: OsDisk, name: str, mode: Any) -> OsFile:
        nonlocal left
        file = opened(disk, name, mode)
        left -= name.endswith(f"{0:016x}.jnl")
        if left == 0:
            monkeypatch.undo()
            assert sej.Journal(path).merge(100_000) > 1
        return file

    monkeypatch.setattr(OsDisk, "open", open_)
    assert sej.Journal(path).find_time(stamps[20]) == stamps.index(stamps[20])


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
    with sej.Scanner(path, disk=Racing(missing, 1000)) as s:  # it asks for the next segment by name
        assert [int(message.value) for message in s] == list(range(COUNT))
    with pytest.raises(sej.OffsetGapError):
        list(sej.Journal(path, disk=Racing(missing, 1000)).reversed())
    assert [problem.kind for problem in sej.Journal(path, disk=Racing(missing, 1000)).verify()] == ["gap"]


def test_a_merge_that_fails_or_dies_leaves_no_large_file(path: Path) -> None:
    def refuse(verb: str, file: File | None, _: bytes) -> None:
        if verb == "write" and file is not None and file.path.endswith("tmp/merge") and file.size() > 500:
            raise OSError(errno.ENOSPC, "No space left on device", file.path)

    with pytest.raises(OSError, match="No space left"):
        sej.Journal(path, disk=HookedDisk(refuse)).merge(1 << 20)
    assert not (path / "tmp" / "merge").exists()
    (path / "tmp" / "merge").write_bytes(bytes(1000))  # what a merge leaves that is killed
    sej.Journal(path).clean()
    assert not (path / "tmp" / "merge").exists()
    assert values(path) == list(range(COUNT))
