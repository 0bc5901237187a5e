"""The queue's lock: whatever becomes of its file, two processes never hold it."""

import os
from pathlib import Path

import pytest

from sej.journal.directory import Directory
from sej.queue.log.lock import QueueLock
from sej.system.disk import OS, Mode, OsDisk, OsFile


@pytest.fixture
def lock(tmp_path: Path) -> QueueLock:
    (tmp_path / "ofs").mkdir()
    lock = QueueLock(Directory(tmp_path, OS), "worker")
    lock.take()
    lock.release()
    return lock


@pytest.mark.parametrize("moved", [False, True])
def test_a_lock_file_that_lost_its_name_does_not_count(lock: QueueLock, moved: bool) -> None:
    path = Path(lock._path)
    path.rename(path.with_name("elsewhere")) if moved else path.unlink()
    other = QueueLock(Directory(path.parent.parent, OS), "worker")
    other.take()
    other.release()
    lock.take()
    if moved:  # noticed from time to time only
        lock.check()
    assert lock.replaced
    assert path.stat().st_ino == lock._file.status().inode
    assert not other._file.lock(wait=False)


def test_a_lock_file_that_is_removed_while_it_is_opened_is_created_again(tmp_path: Path) -> None:
    class Removing(OsDisk):
        left = 2

        def open(self, path: str | os.PathLike[str], mode: Mode) -> OsFile:
            if mode == "edit" and self.left:
                self.left -= 1
                os.unlink(path)
            return super().open(path, mode)

    (tmp_path / "ofs").mkdir()
    lock = QueueLock(Directory(tmp_path, Removing()), "worker")
    lock.take()
    assert not lock.replaced
