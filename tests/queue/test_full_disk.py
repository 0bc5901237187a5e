"""A full disk: nothing is put any more, but work is ended; what is done can be removed, and then puts work again."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sej
from sej.queue.journal_queue import JournalQueue
from sej.system.disk import Disk, Mode, OsDisk, OsFile
from tests.crash.disk import CrashDisk
from tests.queue.support import SMALL_FILE_SYSTEM, FakeClock, take

ROOM = 1 << 20
SEGMENT = 1 << 15
PIECE = bytes(4000)
SCRIPT = Path(__file__).with_name("full_disk.py")


def queue(path: Path, disk: Disk) -> JournalQueue:
    return JournalQueue(path, "worker", disk=disk, clock=FakeClock(), segment_bytes=SEGMENT)


@pytest.fixture
def disk(tmp_path: Path) -> CrashDisk:
    disk = CrashDisk()
    disk.mkdir(tmp_path)
    disk.capacity = ROOM
    return disk


def fill(q: JournalQueue, why: str = " bytes free): ") -> list[bytes]:
    """Put until the disk is full; what was acknowledged."""
    put: list[bytes] = []

    def put_on() -> None:
        while True:
            value = b"%06d" % len(put) + PIECE
            q.put(value)
            put.append(value)

    with pytest.raises(sej.WriterFailedError) as raised:
        put_on()
    text = str(raised.value)
    assert q.path in text and "No space left on device" in text
    assert "bytes free" in text and why in text and "sej clean" in text
    return put


def end_all(q: JournalQueue) -> list[bytes]:
    done: list[bytes] = []
    while (item := q.get(timeout=0)) is not None:
        item.extend(30.0)
        if item.attempts == 1 and len(done) % 50 == 0:
            item.retry(delay_s=0.0)
            continue
        item.done()
        done.append(item.value)
    return done


@pytest.mark.filterwarnings("ignore:.*cannot be made")
@pytest.mark.parametrize("again", [False, True], ids=["the same queue", "opened again"])
def test_on_a_full_disk_a_schedule_waits_and_other_work_is_ended(again: bool, disk: CrashDisk, tmp_path: Path) -> None:
    q, clock = queue(tmp_path, disk), FakeClock()
    clock.boot, clock.wall = q._clock.boot_ns(), q._clock.wall_ns()
    q.put(PIECE, every=1, schedule="s")
    put = fill(q)
    q.close()
    clock.move(2)
    q = JournalQueue(tmp_path, "worker", disk=disk, clock=clock, segment_bytes=SEGMENT)
    done: list[bytes] = []
    while len(done) < len(put):
        clock.move(11 if again else 0.01)  # it is tried every 10 seconds
        item = take(q)
        done.append(item.value)
        item.done()
    assert sorted(done) == put
    q.close()
    sej.Journal(tmp_path, disk=disk).clean(max_bytes=0)
    with JournalQueue(tmp_path, "worker", disk=disk, clock=clock, segment_bytes=SEGMENT) as q:
        item = q.get(timeout=0)
        assert item is not None and item.headers["schedule"] == "s"


@pytest.mark.parametrize("again", [False, True], ids=["the same queue", "opened again"])
def test_on_a_full_disk_work_is_ended_and_after_clean_it_is_put_again(
    again: bool, disk: CrashDisk, tmp_path: Path
) -> None:
    q = queue(tmp_path, disk)
    put = fill(q)
    assert len(put) > 100
    if again:
        q.close()
        q = queue(tmp_path, disk)
    assert sorted(end_all(q)) == put
    assert tuple(q.stats().values())[:4] == (0, 0, 0, len(put))
    with pytest.raises(sej.SejError):  # the room that is left is for ending items
        q.put(bytes(20_000))
    q.close()
    removed = sej.Journal(tmp_path, disk=disk).clean(max_bytes=0)
    assert len(removed) > 10
    with queue(tmp_path, disk) as q:
        more = [b"more %d" % number + PIECE for number in range(100)]
        for value in more:
            q.put(value)
        assert sorted(end_all(q)) == sorted(more)


def test_a_dead_letter_is_written_on_a_full_disk(disk: CrashDisk, tmp_path: Path) -> None:
    q = queue(tmp_path, disk)
    fill(q)
    item = take(q)
    item.fail("broken")
    assert q.stats().dead == 1
    letters = list(sej.dead_letters(q.dead_letter, disk=disk))
    assert [(letter.message.value, letter.reason) for letter in letters] == [(item.value, "broken")]


def test_while_the_reserve_is_spent_nothing_is_put_and_it_is_filled_when_there_is_room(
    disk: CrashDisk, tmp_path: Path
) -> None:
    with queue(tmp_path, disk) as q:
        q.put(b"first")
        assert disk.status(tmp_path / "ofs" / "worker.reserve") is not None
        disk.capacity = ROOM - disk.free_bytes("/")
        item = q.get(timeout=0)  # its lease finds the disk full
        assert item is not None
        assert disk.status(tmp_path / "ofs" / "worker.reserve") is None
        with pytest.raises(sej.QueueFullError, match=r"nothing is put: .*bytes free.*sej clean"):
            q.put(b"second")
        item.done()
        disk.capacity = ROOM
        q.put(b"third")
        assert disk.status(tmp_path / "ofs" / "worker.reserve") is not None
        assert end_all(q) == [b"third"]


class NewFilesNeedMore(OsDisk):
    """A full disk of a file system that needs more for a new file than the reserve has."""

    full = False

    def open(self, path: str | os.PathLike[str], mode: Mode) -> OsFile:
        if self.full and mode == "temp":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))
        return super().open(path, mode)


def test_items_are_taken_though_the_reserve_is_too_small_for_a_new_file(tmp_path: Path) -> None:
    disk, clock = NewFilesNeedMore(), FakeClock()
    with JournalQueue(tmp_path, "worker", disk=disk, clock=clock) as q:
        q.put_many([b"a", b"b", b"c"])
        disk.full = True
        for _ in range(3):
            item = take(q)
            item.done()
            clock.move(2)  # after a second, the next get saves the position
        assert q.get(timeout=0) is None
        assert not sej.read_offset(tmp_path, "worker")
        disk.full = False
        clock.move(2)
        assert q.get(timeout=0) is None
        assert sej.read_offset(tmp_path, "worker") == 3


class FewInodes(OsDisk):
    """A disk with room for a number of files and folders."""

    def __init__(self, root: Path) -> None:
        self.root, self.inodes = root, 1000

    def free_files(self, path: str | os.PathLike[str]) -> int:
        return self.inodes - sum(len(folders) + len(files) for _, folders, files in os.walk(self.root))

    def _need(self, path: str | os.PathLike[str]) -> None:
        if not os.path.lexists(path) and self.free_files(path) <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))

    def open(self, path: str | os.PathLike[str], mode: Mode) -> OsFile:
        if mode not in ("read", "edit"):
            self._need(path)
        return super().open(path, mode)

    def mkdir(self, path: str | os.PathLike[str], *, parents: bool = False) -> None:
        self._need(path)
        super().mkdir(path, parents=parents)


def test_without_an_inode_work_is_ended_and_cleaned_and_put_again(tmp_path: Path) -> None:
    disk = FewInodes(tmp_path)
    queue(tmp_path, disk).close()
    disk.inodes -= disk.free_files(tmp_path) - 12
    q = queue(tmp_path, disk)
    fill(q, ", but no inode for a new file): ")
    q.close()
    assert disk.free_files(tmp_path) == 0
    with queue(tmp_path, disk) as q:  # opening creates nothing
        assert len(end_all(q)) > 10
    assert len(sej.Journal(tmp_path, disk=disk).clean(max_bytes=0)) > 3
    with queue(tmp_path, disk) as q:
        q.put(b"again")
        assert end_all(q) == [b"again"]


def test_the_reserve_has_room_on_the_disk(tmp_path: Path) -> None:
    with sej.open_queue(tmp_path, "worker"):
        there = (tmp_path / "ofs" / "worker.reserve").stat()
    assert there.st_blocks * 512 >= there.st_size == 1 << 18


@pytest.mark.torture
@pytest.mark.parametrize("size", ["size=4m", "size=50m,nr_inodes=60"])
def test_a_real_small_file_system(tmp_path: Path, size: str) -> None:
    """In a mount namespace of its own, with a tmpfs of 4 MiB or with room for 60 files."""
    mount = [part.replace("size=4m", size) for part in SMALL_FILE_SYSTEM]
    command = [*mount, str(tmp_path), sys.executable, str(SCRIPT), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "ok", done.stdout
