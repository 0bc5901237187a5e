"""The kept position of a file: what is believed of it, and what is renewed."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import sej
from sej.journal.directory import Directory
from sej.system.disk import OS, File
from sej.system.durable import RECORD_SIZE, Kept, KeptPosition, renew
from tests.crash.disk import CrashDisk, FaultyDisk
from tests.sej.hooks import HookedDisk
from tests.sej.interrupts import descriptors_below, open_below
from tests.sej.support import commit, overwrite, write


def make(path: Path, data: bytes) -> File:
    path.write_bytes(data)
    return OS.open(path, "append")


def test_a_record_of_another_file_says_that_nothing_is_known(tmp_path: Path) -> None:
    file = make(tmp_path / "f", b"x" * 100)
    kept = KeptPosition(OS, os.fspath(tmp_path / "kept"))
    kept.store(file, 7, 100, 3)
    assert kept.load(file, 8) == Kept(0, 8)
    assert kept.load(make(tmp_path / "g", b"x" * 100), 7) == Kept(0, 7)  # another inode
    with open(tmp_path / "f", "r+b") as again:  # the inode was used again
        again.write(b"y")
    assert kept.load(file, 7) == Kept(0, 7)
    (tmp_path / "f").write_bytes(b"x" * 99)
    assert kept.load(file, 7) == Kept(0, 7)


def test_every_flipped_bit_and_every_length_says_that_nothing_is_known(tmp_path: Path) -> None:
    file = make(tmp_path / "f", b"x" * 100)
    kept = KeptPosition(OS, os.fspath(tmp_path / "kept"))
    kept.store(file, 0, 100, 3)
    sound = (tmp_path / "kept").read_bytes()
    for bit in range(8 * RECORD_SIZE):
        changed = bytearray(sound)
        changed[bit // 8] ^= 1 << bit % 8
        (tmp_path / "kept").write_bytes(changed)
        assert kept.load(file, 0) == Kept(0, 0), bit
    for size in range(RECORD_SIZE):
        (tmp_path / "kept").write_bytes(sound[:size])
        assert kept.load(file, 0) == Kept(0, 0), size


def test_a_position_above_the_end_is_reported_as_lost(tmp_path: Path) -> None:
    path = tmp_path / "f"
    file = make(path, b"x" * 100)
    kept = KeptPosition(OS, os.fspath(tmp_path / "kept"))
    kept.store(file, 7, 100, 9)
    for size in (99, 64, 63, 0):
        path.write_bytes(b"x" * size)
        assert (kept.load(file, 7), kept.lost) == (Kept(0, 7), Kept(100, 9))
    path.write_bytes(b"y" * 99)
    assert (kept.load(file, 7), kept.lost) == (Kept(0, 7), None)
    path.write_bytes(b"x" * 99)
    assert (kept.load(make(tmp_path / "g", b"x" * 99), 7), kept.lost) == (Kept(0, 7), None)


def test_a_cut_below_the_kept_position_lowers_it(tmp_path: Path) -> None:
    write(tmp_path, [b"value"] * 10)
    segment = tmp_path / "jnl" / "0000000000000000.jnl"
    overwrite(segment, -1, b"\xff")
    with sej.Writer(tmp_path, durability="buffer") as w:
        assert (w.offset, w.recovery is not None) == (9, True)
        opened = OS.open(segment, "read")
        with opened.closing():
            assert Directory(tmp_path, OS).kept_position().load(opened, 0) == Kept(31 * 9, 9)


def test_nothing_of_a_removed_directory_is_created_again(tmp_path: Path) -> None:
    path = tmp_path / "q"
    queue = sej.open_queue(path, "worker")
    queue.put_many([b"job", b"another job"])
    item = queue.get(timeout=0)
    assert item is not None
    item.done()
    shutil.rmtree(path)
    for call in (queue.sync, queue.close):
        with pytest.raises(sej.JournalNotFoundError):
            call()
    assert not path.exists()


@pytest.fixture
def often(tmp_path: Path) -> tuple[KeptPosition, File]:
    """A record that was stored so often that it stays open, and its file."""
    kept = KeptPosition(OS, os.fspath(tmp_path / "kept"))
    file = make(tmp_path / "f", b"x" * 1000)
    for position in (100, 101, 102):
        kept.store(file, 7, position, 3)
    assert descriptors_below(kept.path)
    return kept, file


def removed(kept: KeptPosition) -> None:
    os.unlink(kept.path)


def replaced(kept: KeptPosition) -> None:
    Path(f"{kept.path}.other").write_bytes(bytes(RECORD_SIZE))
    os.replace(f"{kept.path}.other", kept.path)


def copied(kept: KeptPosition) -> None:
    Path(f"{kept.path}.other").write_bytes(Path(kept.path).read_bytes())
    os.replace(f"{kept.path}.other", kept.path)


def forgotten(kept: KeptPosition) -> None:
    kept.forget()
    assert not descriptors_below(kept.path)


@pytest.mark.parametrize("change", [lambda _: None, removed, replaced, copied, forgotten])
@pytest.mark.parametrize("cut", [False, True])
def test_the_record_that_stays_open_is_the_one_at_the_path(
    change: Callable[[KeptPosition], None], cut: bool, often: tuple[KeptPosition, File]
) -> None:
    kept, file = often
    change(kept)
    if cut and change in (removed, replaced):
        return  # nothing is known that a cut could lower
    kept.lower(file, 7, 90, 2) if cut else kept.store(file, 7, 103, 3)
    assert KeptPosition(OS, kept.path).load(file, 7) == (Kept(90, 2) if cut else Kept(103, 3))


def test_a_writer_and_a_forked_child_close_the_record(tmp_path: Path) -> None:
    with sej.Writer(tmp_path, durability="disk") as writer:
        for _ in range(3):
            writer.append(b"v")
        if (child := os.fork()) == 0:
            os._exit("durable" in open_below(tmp_path / "idx"))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert "durable" in open_below(tmp_path / "idx")
    assert "durable" not in open_below(tmp_path / "idx")


def test_a_record_of_a_later_segment_stays(tmp_path: Path) -> None:
    old, new = make(tmp_path / "old", b"x" * 100), make(tmp_path / "new", b"y" * 100)
    KeptPosition(OS, os.fspath(tmp_path / "kept")).store(new, 5, 100, 9)
    KeptPosition(OS, os.fspath(tmp_path / "kept")).store(old, 0, 100, 5)
    assert KeptPosition(OS, os.fspath(tmp_path / "kept")).load(new, 5) == Kept(100, 9)


def test_a_copy_of_a_journal_is_not_trusted(tmp_path: Path) -> None:
    write(tmp_path / "a", [b"v"] * 10)
    shutil.copytree(tmp_path / "a", tmp_path / "b")

    def durable_offset(path: Path) -> int:
        directory = Directory(path, OS)
        (segment,) = directory.segments()
        return directory.kept_position().load(OS.open(segment.path, "read"), segment.first_offset).offset

    assert durable_offset(tmp_path / "a") == 10
    assert durable_offset(tmp_path / "b") == 0


def test_a_journal_that_is_durable_is_not_synced_again(tmp_path: Path) -> None:
    with sej.Writer(tmp_path / "j", durability="disk") as w:
        w.append_many([b"v"] * 10)
        syncs: list[str] = []
        disk = HookedDisk(lambda verb, file, data: syncs.append(file.path) if verb == "sync" and file else None)
        commit(tmp_path / "j", "r", 10, disk=disk)
    assert not [path for path in syncs if path.endswith(".jnl")]


def lossy(data: bytes, lost: bytes) -> tuple[CrashDisk, File]:
    """A file whose second part is in the cache alone."""
    disk = CrashDisk()
    file = disk.open("/f", "append")
    file.write(data)
    file.sync()
    file.write(lost)
    file.lose()
    return disk, file


def test_only_what_the_medium_lacks_is_written_again() -> None:
    data = bytes(range(256)) * 20
    disk, file = lossy(data[:3000], data[3000:])
    renew(disk, file, 100, 5000, piece_bytes=1000)
    written = [arguments[1:] for what, arguments in disk.trace if what == "rewrite"]
    assert [(at, len(piece)) for at, piece in written] == [(2100, 1000), (3100, 1000), (4100, 900)]
    assert disk.files()["/f"] == data
    assert disk.crash().files()["/f"][:5000] == data[:5000]


def test_without_a_look_past_the_cache_all_of_it_is_written_again() -> None:
    inner = CrashDisk()
    inner.open("/f", "append").write(bytes(5000))
    disk = FaultyDisk(inner, 0)
    disk.blind = True
    renew(disk, disk.open("/f", "append"), 100, 5000, piece_bytes=1000)
    written = [arguments[1:] for what, arguments in inner.trace if what == "rewrite"]
    assert [(at, len(piece)) for at, piece in written] == [
        (100 + n * 1000, min(1000, 4900 - n * 1000)) for n in range(5)
    ]


def test_a_medium_that_keeps_nothing_is_an_error() -> None:
    disk, file = lossy(b"x" * 512, b"lost")

    def forgets(verb: str, *_: object) -> None:
        if verb == "sync":
            disk.nodes[1].lost.add(1)

    with pytest.raises(OSError, match="does not have the bytes that were written"):
        renew(HookedDisk(forgets, disk), file, 512, 516)


def test_the_real_disk_reads_and_writes_past_the_cache(disk_path: Path) -> None:
    data = os.urandom(10_000)
    make(disk_path / "f", data).close()
    file = OS.open(disk_path / "f", "edit")
    file.sync()
    stored = file.stored(5000, 3000)
    assert stored in (None, data[3000:8000])  # None: this file system cannot
    assert stored is None or file.stored(5000, 9000) == data[9000:]
    file.rewrite(data[100:9100][::-1], 100)
    file.sync()
    assert file.read(20_000, 0) == data[:100] + data[100:9100][::-1] + data[9100:]
    file.write_at(b"y", 9999)
    assert file.read(1, 9999) == b"y"


@pytest.mark.parametrize("size", [100, 4096, 5000, 1 << 20])
@pytest.mark.parametrize("lost", [False, True], ids=["cut", "lost"])
def test_bytes_that_others_write_after_these_stay(
    disk_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, lost: bool
) -> None:
    """A reader renews without the writer's lock: meanwhile a writer may cut a torn tail and append."""
    good, torn, fresh = os.urandom(size), b"t" * 5000, b"f" * 6000
    path = disk_path / "f"
    make(path, good + torn).close()
    drop = os.posix_fadvise

    def meanwhile(*arguments: int) -> None:
        drop(*arguments)
        with open(path, "r+b") as other:
            other.seek(size)
            if lost:
                other.write(bytes(5000))
            else:
                other.truncate()
                other.write(fresh)

    monkeypatch.setattr(os, "posix_fadvise", meanwhile)
    OS.open(path, "edit").rewrite(good, 0)
    assert path.read_bytes() == good + (torn if lost else fresh)


def test_a_file_that_lost_its_name_is_not_renewed() -> None:
    disk = CrashDisk()
    file = disk.open("/f", "append")
    file.write(b"old")
    other = disk.open("/g", "append")
    other.write(b"new")
    disk.rename("/g", "/f")
    renew(disk, file, 0, 3)
    disk.unlink("/f")
    renew(disk, file, 0, 3)
    assert len([what for what, _ in disk.trace if what == "write"]) == 2


def test_what_is_not_what_was_written_is_not_renewed() -> None:
    disk = CrashDisk()
    file = disk.open("/f", "append")
    file.write(b"bytes")

    def check(data: bytes, position: int) -> None:
        raise ValueError(data, position)

    with pytest.raises(ValueError, match="bytes"):
        renew(disk, file, 0, 5, check=check)
    assert len([what for what, _ in disk.trace if what == "write"]) == 1
