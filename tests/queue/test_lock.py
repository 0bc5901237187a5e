"""The queue's lock: a process in a hurry gets turns, a waiting one gets ahead, and a claim never stops a process."""

import os
from pathlib import Path

import pytest

from sej.journal.directory import Directory
from sej.queue.disk import lock as queue_lock
from sej.queue.disk.lock import QueueLock
from sej.queue.log.format import CLAIM
from sej.system.disk import OS, Mode, OsDisk, OsFile

TURN_NS = queue_lock._TURN_NS


class Time:
    """A clock that advances when the lock sleeps, by exactly that time."""

    def __init__(self) -> None:
        self.now = 10**12
        self.slept = 0.0

    def monotonic_ns(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.now += int(seconds * 10**9)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    fake = Time()
    monkeypatch.setattr(queue_lock, "time", fake)
    return fake


class Others:
    """The other processes, as the lock sees them: whether they have written."""

    def __init__(self, working: bool) -> None:
        self.working = working

    def read_ahead(self) -> bool:
        return self.working


@pytest.fixture
def others() -> Others:
    return Others(True)


@pytest.fixture
def lock(tmp_path: Path, others: Others, time: Time) -> QueueLock:
    (tmp_path / "ofs").mkdir()
    lock = QueueLock(Directory(tmp_path, OS), "worker", others.read_ahead)
    operation(lock, True)
    return lock


def operation(lock: QueueLock, others: bool = False) -> None:
    lock.take()
    lock.noticed(others)
    lock.release()


def claimed(lock: QueueLock) -> bytes:
    return Path(lock._path).read_bytes()


def claim(lock: QueueLock, ends: int) -> None:
    Path(lock._path).write_bytes(CLAIM.pack(7, ends))


def test_one_alone_claims_nothing(tmp_path: Path, time: Time) -> None:
    (tmp_path / "ofs").mkdir()
    alone = QueueLock(Directory(tmp_path, OS), "worker", lambda: False)
    for _ in range(100):
        operation(alone)
    assert claimed(alone) == b""
    assert time.slept == 0


def test_operations_in_a_row_become_a_turn_and_then_others_get_ahead(lock: QueueLock, time: Time) -> None:
    for _ in range(queue_lock._ROW):
        assert claimed(lock) == b""
        operation(lock)
    who, ends = CLAIM.unpack(claimed(lock))
    assert (who, ends) == (lock._me, time.now + TURN_NS)
    time.now = ends - 1
    operation(lock)
    assert time.slept == 0
    time.now = ends
    operation(lock)
    assert time.slept == queue_lock._REST_S


def test_a_process_that_works_between_operations_claims_nothing(lock: QueueLock, time: Time) -> None:
    for _ in range(20):
        time.now += 10**6
        operation(lock)
    assert claimed(lock) == b""
    assert time.slept == 0


def test_the_turn_of_another_is_waited_for(lock: QueueLock, time: Time) -> None:
    ends = time.now + TURN_NS
    claim(lock, ends)
    operation(lock, True)
    assert time.now == ends


def test_no_process_claims_in_the_turn_of_another(lock: QueueLock, time: Time) -> None:
    for _ in range(queue_lock._ROW - 1):
        operation(lock)
    lock.take()
    claim(lock, time.now + TURN_NS)
    before = claimed(lock)
    lock.noticed(False)
    lock.release()
    assert claimed(lock) == before


def test_a_turn_that_its_owner_does_not_use_is_passed_over(lock: QueueLock, time: Time, others: Others) -> None:
    claim(lock, time.now + TURN_NS)
    others.working = False
    operation(lock, True)
    assert time.slept <= queue_lock._LOOK_S


def test_patience_ends(lock: QueueLock, time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    start = time.now

    def claim_again(seconds: float) -> None:
        time.now += int(seconds * 10**9)
        claim(lock, time.now + TURN_NS)

    claim_again(0)
    monkeypatch.setattr(time, "sleep", claim_again)
    operation(lock, True)
    assert queue_lock._PATIENCE_NS <= time.now - start <= queue_lock._PATIENCE_NS + TURN_NS


@pytest.mark.parametrize("content", [b"", b"short", CLAIM.pack(7, 0), CLAIM.pack(7, 2**64 - 1)])
def test_nonsense_in_the_file_delays_no_process(lock: QueueLock, time: Time, content: bytes) -> None:
    Path(lock._path).write_bytes(content)
    operation(lock, True)
    assert time.slept == 0


def test_a_lock_file_that_lost_its_name_does_not_count(
    lock: QueueLock, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(lock._path)
    path.unlink()
    other = QueueLock(Directory(path.parent.parent, OS), "worker", lambda: False)
    other.take()
    waited = []

    def release(seconds: float) -> None:
        waited.append(seconds)
        other.release()

    monkeypatch.setattr(time, "sleep", release)
    lock.take()
    assert waited
    assert lock.replaced
    assert path.stat().st_ino == lock._file.status().inode
    assert not other._file.lock(wait=False)


def test_a_lock_file_that_was_moved_away_is_noticed_by_a_check(lock: QueueLock) -> None:
    path = Path(lock._path)
    path.rename(path.with_name("elsewhere"))
    lock.take()
    lock.check()
    assert lock.replaced
    other = QueueLock(Directory(path.parent.parent, OS), "worker", lambda: False)
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
    lock = QueueLock(Directory(tmp_path, Removing()), "worker", lambda: False)
    operation(lock)
    assert not lock.replaced
