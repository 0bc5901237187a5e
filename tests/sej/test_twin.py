"""The twin of a kept offset: a changed byte is noticed, another program's commit is not taken for one."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import sej
from sej.journal.directory import Directory
from sej.journal.offset_check import keep_offset, twin_path
from sej.system.disk import OS
from tests.crash.disk import CrashDisk
from tests.sej.support import commit, write
from tests.ticks import next_tick

pytestmark = pytest.mark.either_codec


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
