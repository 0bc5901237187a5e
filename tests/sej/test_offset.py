"""Kept offsets: eight bytes, never a silent jump, never ahead of the journal, one reader of a name."""

import os
import shutil
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sej
from sej import BadOffsetFileError, LockedError, OffsetBeyondEndError
from sej.journal.directory import Directory
from sej.journal.offset_check import keep_offset, twin_path
from sej.system.disk import OS, File
from tests.crash.disk import CrashDisk
from tests.sej.hooks import HookedDisk, ReadOnlyDisk, Worker
from tests.sej.support import commit, filled, overwrite, read_all, write
from tests.ticks import next_tick


def kept(path: Path, name: str = "r") -> bytes:
    return (path / "ofs" / f"{name}.ofs").read_bytes()


def test_the_file_is_eight_bytes_big_endian(tmp_path: Path) -> None:
    with sej.Offset(filled(tmp_path, 20), "r") as o:
        assert (o.value, sej.read_offset(tmp_path, "r"), kept(tmp_path)) == (0, None, b"")
        o.commit(7)
        assert (o.value, sej.read_offset(tmp_path, "r"), kept(tmp_path)) == (7, 7, bytes(7) + b"\7")
    with sej.Offset(tmp_path, "r", default=3) as o:
        assert o.value == 7, "the default is for a reader that never committed"
    assert sej.Journal(tmp_path).offsets() == {"r": 7}
    assert not list((tmp_path / "tmp").iterdir())


def test_a_commit_never_goes_back_but_reports_it_once_and_reset_may(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with sej.Offset(filled(tmp_path, 20), "r") as o:
        for offset in (9, 9, 4, 3):
            o.commit(offset)
            assert (o.value, sej.read_offset(tmp_path, "r")) == (9, 9)
        (found,) = caplog.records
        text = f"{tmp_path}: reader 'r' is at offset 9: commit(4) changes nothing, reset(4) goes back"
        assert found.getMessage() == text
        for call, offset in ((o.reset, 4), (o.commit, 5)):
            call(offset)
            assert (o.value, sej.read_offset(tmp_path, "r")) == (offset, offset)


@pytest.mark.parametrize("default", [sej.FIRST, 6, 12])
def test_committing_the_default_is_kept_too(default: int, tmp_path: Path) -> None:
    """A reader that confirms where it started has committed: its next default must not apply."""
    with sej.Offset(filled(tmp_path, 20, first=5), "r", default) as o:
        start = o.value
        o.commit(start)
    assert sej.read_offset(tmp_path, "r") == start
    with sej.Offset(tmp_path, "r", sej.LAST) as o:
        assert o.value == start


def test_last_means_the_end_of_the_first_opening(tmp_path: Path) -> None:
    sej.Offset(filled(tmp_path, 20), "r", sej.LAST).close()
    filled(tmp_path, 10)
    with sej.Offset(tmp_path, "r", sej.LAST) as o:
        assert o.value == 20, "what was written meanwhile is not skipped"


@pytest.mark.parametrize("size", [*range(1, 8), 9])
def test_a_short_or_long_file_is_an_error_and_the_lock_is_free_again(size: int, tmp_path: Path) -> None:
    filled(tmp_path, 20)
    (tmp_path / "ofs" / "r.ofs").write_bytes(b"\1" * size)
    for _ in range(2):
        with pytest.raises(BadOffsetFileError, match=f"{size}") as raised:
            sej.Offset(tmp_path, "r")
        assert raised.value.path == str(tmp_path / "ofs" / "r.ofs")
    with pytest.raises(BadOffsetFileError):
        sej.read_offset(tmp_path, "r")
    assert kept(tmp_path) == b"\1" * size


@pytest.mark.parametrize("index", [True, False])
def test_a_commit_past_damage_that_a_reader_has_skipped(tmp_path: Path, index: bool) -> None:
    write(tmp_path, [b"value %d" % number for number in range(10)])
    segment = next((tmp_path / "jnl").iterdir())
    data = segment.read_bytes()
    head = data.index(b"value 5") - 20
    segment.write_bytes(data[:head] + b"\xff" * 20 + data[head + 20 :])
    if not index:
        shutil.rmtree(tmp_path / "idx")
    with sej.Offset(tmp_path, "r") as o, sej.Scanner(tmp_path, on_corruption="skip") as s:
        assert [message.offset for message in (*s.read(8), *s.read(3))] == [0, 1, 2, 3, 4, 6, 7, 8]
        o.commit(s.offset)
        with pytest.raises(OffsetBeyondEndError):
            o.commit(11)
    with sej.Offset(tmp_path, "r") as o, sej.Scanner(tmp_path, o.value, on_corruption="skip") as s:
        assert [message.offset for message in s] == [9]
        o.commit(10)
    with pytest.raises(sej.CorruptionError):
        list(sej.Scanner(tmp_path))
    if not index:  # with one, a writer relies on the durable position that is stored next to it
        with pytest.raises(sej.CorruptionError):
            sej.Writer(tmp_path)


def test_a_reader_beyond_the_end_gets_an_error_or_is_reset_by_option(tmp_path: Path) -> None:
    filled(tmp_path, 20)
    (tmp_path / "ofs" / "r.ofs").write_bytes((21).to_bytes(8, "big"))
    with pytest.raises(OffsetBeyondEndError, match="ends at 20") as raised:
        sej.Offset(tmp_path, "r")
    assert raised.value.offset == 21
    assert kept(tmp_path) == (21).to_bytes(8, "big")
    with sej.Offset(tmp_path, "r", beyond_end="rewind") as o:
        assert o.value == 20
    assert sej.read_offset(tmp_path, "r") == 20
    with pytest.raises(ValueError, match="beyond_end"):
        sej.Offset(tmp_path, "r", beyond_end="wait")


@pytest.mark.parametrize("call", ["commit", "reset"])
def test_what_is_not_in_the_journal_cannot_be_kept(call: str, tmp_path: Path) -> None:
    with sej.Offset(filled(tmp_path, 20), "r") as o:
        o.commit(20)
        o.reset(3)
        with pytest.raises(OffsetBeyondEndError):
            getattr(o, call)(21)
        for bad in (-1, 2**63):
            with pytest.raises(ValueError, match=str(bad)):
                getattr(o, call)(bad)
        with pytest.raises(TypeError):
            getattr(o, call)("4")
        assert (o.value, sej.read_offset(tmp_path, "r")) == (3, 3)


def test_one_reader_of_a_name_at_a_time(tmp_path: Path) -> None:
    with sej.Offset(filled(tmp_path, 20), "r"):
        with pytest.raises(LockedError, match="reader 'r'") as raised:
            sej.Offset(tmp_path, "r")
        assert f"pid={os.getpid()}" in (raised.value.holder or "")
        with sej.Offset(tmp_path, "other"):
            assert sej.read_offset(tmp_path, "r") is None, "looking takes no lock"
    sej.Offset(tmp_path, "r").close()


def test_a_lost_lock_keeps_nothing(tmp_path: Path) -> None:
    with sej.Offset(filled(tmp_path, 20), "r") as o:
        o.commit(3)
        (tmp_path / "ofs" / "r.lck").unlink()
        with pytest.raises(sej.LockLostError):
            o.commit(4)
    assert sej.read_offset(tmp_path, "r") == 3


def test_readers_are_listed_with_what_they_kept(tmp_path: Path) -> None:
    filled(tmp_path, 20)
    for name, value in (("a", 3), ("b.c", 20), ("d-e_F", 0)):
        with sej.Offset(tmp_path, name) as o:
            o.reset(value)
    sej.Offset(tmp_path, "never").close()
    assert sej.Journal(tmp_path).offsets() == {"a": 3, "b.c": 20, "d-e_F": 0, "never": None}


@pytest.mark.parametrize("default", [-1, 1 << 63])
def test_a_default_that_no_journal_reaches_is_refused(default: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="default must be 0 to"):
        sej.Offset(filled(tmp_path, 20), "r", default=default)
    with pytest.raises(TypeError, match="must be an int"):
        sej.Offset(tmp_path, "r", default="first")  # type: ignore[arg-type]
    assert sej.Journal(tmp_path).offsets() == {}


def test_closing_waits_for_a_commit_in_another_thread(tmp_path: Path) -> None:
    inside, on = threading.Event(), threading.Event()

    def hook(verb: str, file: File | None, data: bytes) -> None:
        if verb == "rename" and threading.current_thread() is committing:
            inside.set()
            assert on.wait(30)

    filled(tmp_path, 20)
    committing: Worker | None = None
    o = sej.Offset(tmp_path, "r", disk=HookedDisk(hook))
    with o._guard:
        committing = Worker(lambda: o.commit(5))
    assert inside.wait(30)
    closing = Worker(o.close)
    closing.join(0.05)
    with pytest.raises(LockedError):
        sej.Offset(tmp_path, "r")
    on.set()
    committing.result()
    closing.result()
    with sej.Offset(tmp_path, "r") as again:
        assert again.value == 5


@pytest.mark.parametrize("call", ["commit", "reset", "close"])
def test_in_the_middle_of_a_commit_a_handler_is_refused(call: str, tmp_path: Path) -> None:
    def hook(verb: str, file: File | None, data: bytes) -> None:
        if verb == "rename" and armed:
            armed.clear()
            with pytest.raises(LockedError, match="signal handler"):
                getattr(o, call)(*() if call == "close" else (8,))

    filled(tmp_path, 20)
    armed: list[bool] = []
    with sej.Offset(tmp_path, "r", disk=HookedDisk(hook)) as o:
        armed.append(True)
        o.commit(5)
        assert not armed and o.value == 5
        with pytest.raises(LockedError):
            sej.Offset(tmp_path, "r")
    assert sej.read_offset(tmp_path, "r") == 5


def test_a_reader_needs_no_permission_to_write_segments(tmp_path: Path) -> None:
    write(tmp_path, [b"v"] * 5)
    commit(tmp_path, "r", 5, disk=ReadOnlyDisk(".jnl"))
    assert sej.read_offset(tmp_path, "r") == 5


def lost(path: Path, count: int, **options: Any) -> None:
    """Remove the last messages of a journal, as damage or a restored copy may do."""
    messages = read_all(path)
    for name in ("jnl", "idx"):
        shutil.rmtree(path / name, ignore_errors=True)
    (path / "jnl.lck").unlink()
    with sej.Writer(path, **options) as w:
        w.append_messages(messages[:-count])


def refilled(path: Path, count: int) -> None:
    write(path, [b"new"] * count)


@pytest.mark.parametrize("more", [1, 4])
def test_fewer_messages_than_were_lost_are_not_skipped(tmp_path: Path, more: int) -> None:
    path = filled(tmp_path / "j", 20, segment_bytes=1 << 30)
    commit(path, "r", 20)
    lost(path, 5)
    refilled(path, more)
    with pytest.raises(OffsetBeyondEndError, match=f"ends at {15 + more}"):
        sej.Offset(path, "r")
    with sej.Offset(path, "r", beyond_end="rewind") as o, sej.Scanner(path, o.value) as s:
        assert [message.value for message in s] == [b"new"] * more
    with sej.Offset(path, "r") as o:
        assert o.value == 15


@pytest.mark.parametrize("more", [5, 6, 100])
@pytest.mark.parametrize("behind", [0, 2])
def test_other_messages_where_the_lost_ones_were_are_noticed(tmp_path: Path, more: int, behind: int) -> None:
    path = filled(tmp_path / "j", 20, segment_bytes=1 << 30)
    with sej.Offset(path, "r") as o:
        o.commit(20)
        refilled(path, behind)
        o.commit(20 + behind)
    if behind:  # what it knows is about an earlier message
        with sej.Offset(path, "r") as o:
            refilled(path, 1)
            o.commit(22)
    lost(path, 5 + behind + bool(behind))
    refilled(path, more + behind)
    with pytest.raises(OffsetBeyondEndError, match="is not the one that it has read") as raised:
        sej.Offset(path, "r")
    assert raised.value.offset == 20 + behind
    with sej.Offset(path, "r", beyond_end="rewind") as o:
        assert o.value == 15, "the first message that was not read"
    with sej.Offset(path, "r") as o:
        assert o.value == 15


@pytest.mark.parametrize("cause", ["largest timestamp", "damage"])
def test_if_newer_messages_cannot_be_found_the_end_is_taken(tmp_path: Path, cause: str) -> None:
    path, times = tmp_path / "j", [*range(1, 12), 12 if cause == "damage" else 2**63 - 1]
    write(path, [b"m%d" % n for n in range(12)], timestamp=times, segment_bytes=80)  # three messages
    commit(path, "r", 12)
    lost(path, 4, segment_bytes=80)
    if cause == "damage":
        shutil.rmtree(path / "idx", ignore_errors=True)
        segment = sorted((path / "jnl").glob("*.jnl"))[1]
        overwrite(segment, 10, b"\xff" * 8)
        with pytest.raises(sej.CorruptionError):
            sej.Journal(path).find_time(13)
    with pytest.raises(OffsetBeyondEndError, match="ends at 8"):
        sej.Offset(path, "r")
    with sej.Offset(path, "r", beyond_end="rewind") as o:
        assert o.value == 8


def test_a_reader_that_was_reset_does_not_miss_what_was_lost(tmp_path: Path) -> None:
    path = filled(tmp_path / "j", 20, segment_bytes=1 << 30)
    commit(path, "r", 20)
    lost(path, 5)
    refilled(path, 10)
    with sej.Offset(path, "r", beyond_end="rewind") as o:
        o.reset(10)
        o.commit(22)
    assert sej.Offset(path, "r").value == 22


def test_deleted_messages_and_those_of_the_original_are_not_missed(tmp_path: Path) -> None:
    path = filled(tmp_path / "j", 20, segment_bytes=1 << 30)
    commit(path, "r", 20)
    refilled(path, 10)
    write(path, [b"x", b"y"], segment_bytes=1)
    next_tick(path / "ofs" / "r.ofs")
    (path / "ofs" / "r.ofs").write_bytes((31).to_bytes(8, "big"))  # by the original
    sej.Journal(path).clean(max_bytes=1)
    assert sej.Journal(path).first_offset >= 20
    with sej.Offset(path, "r") as o:
        assert o.value == 31


# --- readers of the original may have names that ours may not: their offsets are read and moved, and retention waits


NAMES = ["a b", "host:1", "é", "-x", "a" * 240, "a\nb", "\udcff"]


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    write(tmp_path / "j", [b"%d" % number for number in range(20)], segment_bytes=100)
    (tmp_path / "j" / "ofs").mkdir(exist_ok=True)
    for name in NAMES:
        (tmp_path / "j" / "ofs" / f"{name}.ofs").write_bytes(struct.pack(">Q", 7))
    return tmp_path / "j"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_there_is_read_and_moved(foreign: Path, name: str) -> None:
    with sej.Offset(foreign, name) as kept:
        assert kept.value == 7
        kept.commit(9)
    assert sej.Journal(foreign).offsets()[name] == 9
    assert (foreign / "ofs" / f"{name}.ofs").read_bytes() == struct.pack(">Q", 9)


def test_retention_waits_for_them(foreign: Path) -> None:
    sej.Journal(foreign).clean(max_bytes=1)
    assert sej.Journal(foreign).first_offset <= 7
    assert sej.Journal(foreign).first_offset > 0


@pytest.mark.parametrize("name", ["new one", "host:2", "../ofs/a b", "/etc/passwd", "..", "", "a\0b", "b" * 300])
def test_a_new_reader_takes_no_such_name(foreign: Path, name: str) -> None:
    before = sorted(os.listdir(foreign / "ofs"))
    with pytest.raises(sej.InvalidNameError, match="a reader's name"):
        sej.Offset(foreign, name)
    assert sorted(os.listdir(foreign / "ofs")) == before


# --- the twin of a kept offset: a changed byte is noticed, another program's commit is not taken for one


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    write(tmp_path, [b"v"] * 40, segment_bytes=100)
    with sej.Offset(tmp_path, "reader") as kept:
        kept.commit(8)
        kept.commit(9)
    return tmp_path


def ofs(path: Path, name: str = "reader") -> Path:
    return path / "ofs" / f"{name}.ofs"


def as_a_medium(path: Path, data: bytes) -> None:
    """Change a file's bytes, and nothing else of it."""
    status = path.stat()
    with path.open("r+b") as file:
        file.truncate(len(data))
        file.write(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def flips(data: bytes) -> Iterator[bytes]:
    for bit in range(8 * len(data)):
        yield (int.from_bytes(data, "big") ^ 1 << bit).to_bytes(len(data), "big")


def test_every_flipped_bit_of_an_offset_is_noticed(journal: Path) -> None:
    for data in flips((9).to_bytes(8, "big")):
        as_a_medium(ofs(journal), data)
        with pytest.raises(sej.BadOffsetFileError, match="expected 9: its bytes"):
            sej.read_offset(journal, "reader")
        with pytest.raises(sej.BadOffsetFileError):
            sej.Offset(journal, "reader")
    first = sej.Journal(journal).first_offset
    assert sej.Journal(journal).clean(max_bytes=1) == []
    assert sej.Journal(journal).first_offset == first


def test_the_original_may_move_a_reader_between_ours(journal: Path) -> None:
    for offset in (5, 17):  # in place, and by a new file
        next_tick(ofs(journal))
        ofs(journal).write_bytes(offset.to_bytes(8, "big"))
        assert sej.read_offset(journal, "reader") == offset
        ofs(journal).unlink()
        ofs(journal).write_bytes((offset + 1).to_bytes(8, "big"))
        with sej.Offset(journal, "reader") as kept:
            assert kept.value == offset + 1
            kept.commit(offset + 2)
        for data in flips((offset + 2).to_bytes(8, "big")):
            as_a_medium(ofs(journal), data)
            with pytest.raises(sej.BadOffsetFileError):
                sej.read_offset(journal, "reader")
        as_a_medium(ofs(journal), (offset + 2).to_bytes(8, "big"))


def test_a_reader_that_is_removed_begins_again(journal: Path) -> None:
    ofs(journal).unlink()
    sej.Offset(journal, "reader").close()
    with sej.Offset(journal, "reader") as kept:
        assert kept.value == 0


@pytest.mark.parametrize("name", ["x" * 249, "x" * 250, "é" * 125 + "x"])
def test_a_reader_of_the_original_with_a_long_name(journal: Path, name: str) -> None:
    ofs(journal, name).write_bytes((3).to_bytes(8, "big"))
    commit(journal, name, 5)
    assert sej.read_offset(journal, name) == 5
    ofs(journal, name).unlink()
    with sej.Offset(journal, name[:200].replace("é", "e")) as kept:
        assert kept.value == 0
    if len(name.encode()) < 250:  # this name is not one for a new reader
        with pytest.raises(sej.InvalidNameError):
            sej.Offset(journal, name)


def test_a_copied_journal_is_read(journal: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    copy = tmp_path_factory.mktemp("copy")
    (copy / "jnl").mkdir()
    (copy / "ofs").mkdir()
    for path in [*(journal / "jnl").iterdir(), ofs(journal), journal / "ofs" / "reader.check"]:
        (copy / path.parent.name / path.name).write_bytes(path.read_bytes())
    with sej.Offset(copy, "reader") as kept:
        assert kept.value == 9
        kept.commit(10)
    assert sej.read_offset(copy, "reader") == 10


def test_a_queue_refuses_an_offset_that_another_program_wrote(tmp_path: Path) -> None:
    with sej.open_queue(tmp_path, "jobs") as q:
        for n in range(9):
            q.put(b"%d" % n)
        for item in q.get_many(5, timeout=0):
            item.done()
    before = ofs(tmp_path, "jobs").read_bytes()
    for data in flips(before):
        ofs(tmp_path, "jobs").write_bytes(data)  # not as a medium: by another program
        with pytest.raises(sej.SejError):
            sej.open_queue(tmp_path, "jobs")
    ofs(tmp_path, "jobs").write_bytes(before)
    with sej.open_queue(tmp_path, "jobs") as q:
        assert [item.value for item in q.get_many(9, timeout=0)] == [b"5", b"6", b"7", b"8"]


@pytest.mark.parametrize(("strict", "full"), [(False, False), (True, False), (False, True)])
def test_every_crash_of_a_commit_leaves_an_offset_that_can_be_read(strict: bool, full: bool) -> None:
    disk = CrashDisk()
    write("/j", [b"v"] * 9, disk=disk)
    disk.mkdir("/j/tmp")
    directory = Directory("/j", disk)
    disk.open(directory.at("ofs", "r.ofs"), "append").close()
    since = len(disk.trace)
    for offset in (3, 4, 5):
        keep_offset(directory, "r", offset, strict=strict)
        disk.mark(offset)
        disk.capacity = 0 if full else None  # the first commit has made the file
    count = 0
    for crash in disk.crash_states(since=since):
        count += 1
        said = crash.marks[-1] if crash.marks else None
        found = sej.read_offset("/j", "r", disk=crash.disk)
        assert found == said or found == (said or 2) + 1
        commit("/j", "r", 6, disk=crash.disk)
        assert sej.read_offset("/j", "r", disk=crash.disk) == 6
    assert count > 10


def test_readers_without_the_lock_see_old_or_new_and_no_damage(journal: Path) -> None:
    """Any number of commits between reading the offset and reading its twin."""
    directory = Directory(journal, OS)
    real = OS.open
    commits = iter(range(10, 14))

    class Racing(type(OS)):  # type: ignore[misc]
        def open(self, path: str | os.PathLike[str], mode: str) -> object:
            if os.fspath(path) == twin_path(directory, "reader") and (offset := next(commits, None)):
                keep_offset(directory, "reader", offset, strict=True)
                keep_offset(directory, "reader", offset + 10, strict=True)
            return real(path, mode)  # type: ignore[arg-type]

    assert sej.read_offset(journal, "reader", disk=Racing()) in range(10, 24)
