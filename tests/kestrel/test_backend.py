"""What the two work queues promise beyond the suite that every backend passes: failures, attempts, dead letters."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kestrel
import sej
from kestrel import segmented
from kestrel.errors import BadNameError, FailedError, FullError
from tests.crash.disk import CrashDisk

BACKENDS = ["kestrel", "libkestrel"]


def taken(queue: sej.WorkQueue) -> sej.Item:
    item = queue.get(timeout=0)
    assert item is not None
    return item


@contextlib.contextmanager
def full(monkeypatch: pytest.MonkeyPatch, disk: CrashDisk) -> Iterator[None]:
    """While every write finds no room."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "_do", refuse)
        yield


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_queue_whose_disk_was_full_is_closed_and_opened_anew(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = CrashDisk()
    queue = sej.open_queue("/q/cars", backend=backend, disk=disk)
    queue.put(b"job")
    item = taken(queue)
    with full(monkeypatch, disk), pytest.raises(FailedError):
        queue.put(b"more")
    with pytest.raises(FailedError):
        item.done()
    queue.close()
    queue.close()
    with sej.open_queue("/q/cars", backend=backend, disk=disk) as again:
        assert taken(again).value == b"job"


@pytest.mark.parametrize("backend", BACKENDS)
def test_attempts_are_those_of_the_item_and_not_of_its_like(backend: str, tmp_path: Path) -> None:
    """Equal items, put in the same millisecond."""
    with sej.open_queue(tmp_path / "cars", backend=backend, max_attempts=2, now_ms=lambda: 5) as queue:
        queue.put_many([b"same"] * 6)
        items = queue.get_many(6, timeout=0)
        assert [item.attempts for item in items] == [1] * 6
        for item in items:
            item.retry()
        assert tuple(queue.stats().values())[:2] == (6, 0)
        assert queue.stats().dead == 0
        again = queue.get_many(6, timeout=0)
        assert [item.attempts for item in again] == [2] * 6


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_redrive_that_finds_no_room_leaves_the_dead_letter(backend: str, tmp_path: Path) -> None:
    with sej.open_queue(tmp_path / "cars", backend=backend, max_items=1) as queue:
        queue.put(b"dead")
        taken(queue).fail()
        queue.put(b"full")
        for _ in range(2):
            with pytest.raises(FullError):
                queue.redrive()
            assert queue.stats().dead == 1
        taken(queue).done()
        assert queue.redrive() == 1
        assert taken(queue).value == b"dead"


def test_an_item_that_came_back_in_time_is_not_buried_by_who_had_it(tmp_path: Path) -> None:
    now = [1_500_000_000_000]
    options: dict[str, Any] = {"open_timeout_s": 10, "now_ms": lambda: now[0]}
    with sej.open_queue(tmp_path / "cars", backend="kestrel", **options) as queue:
        queue.put(b"job")
        slow = taken(queue)
        now[0] += 20_000
        fast = taken(queue)
        with pytest.raises(sej.LeaseLostError):
            slow.fail()
        assert queue.stats().dead == 0
        fast.done()


def test_a_name_that_no_reader_can_have_leaves_the_queue_free(tmp_path: Path) -> None:
    with pytest.raises(BadNameError) as caught:
        sej.open_queue(tmp_path / "jobs", "a/b", backend="libkestrel", sync=60.0)
    sej.open_queue(tmp_path / "jobs", "worker", backend="libkestrel").close()
    assert "a/b" in str(caught.value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_power_failure_leaves_an_item_or_its_dead_letter(backend: str) -> None:
    disk = CrashDisk()
    with sej.open_queue("/q/cars", backend=backend, sync="always", disk=disk) as queue:
        queue.put(b"job")
    queue = sej.open_queue("/q/cars", backend=backend, disk=disk)
    for act in (lambda: taken(queue).fail(), queue.redrive):
        since = len(disk.trace)
        act()
        tried, numbers = set(), set()
        for crash in disk.crash_states(since=since):
            files = frozenset(crash.disk.files().items())
            if files in tried:
                continue
            tried.add(files)
            with sej.open_queue("/q/cars", backend=backend, disk=crash.disk) as again:
                again.redrive()
                found = [item.value for item in again.get_many(4, timeout=0)]
                # The formats have no checksums: a letter that was being written may become one of zeros.
                assert b"job" in found and set(found) <= {b"job", bytes(len(b"job"))}, crash.step
                numbers.add(found.count(b"job"))
        assert len(tried) > 3
        assert {1, 2} <= numbers  # a crash between the two files leaves both: the formats do not connect them


def test_dead_letters_of_libkestrel_may_be_a_queue_of_a_worker(tmp_path: Path) -> None:
    """Opening them by name gives the place of the default reader to a named one."""
    for count in range(2):
        with sej.open_queue(tmp_path / "cars", backend="libkestrel") as queue:
            queue.put(b"job")
            taken(queue).fail()
            assert queue.stats().dead == 1
            if count:
                assert queue.redrive() == 1
                assert taken(queue).value == b"job"
        with sej.open_queue(tmp_path / "cars_dead", "person", backend="libkestrel") as letters:
            found = letters.get_many(4, timeout=0)
            assert [item.value for item in found] == [b"job"][count:]
            letters.done_many(found)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_limit_of_a_redrive_is_kept(backend: str, tmp_path: Path) -> None:
    with sej.open_queue(tmp_path / "cars", backend=backend) as queue:
        queue.put_many([b"%d" % number for number in range(70)])
        for item in queue.get_many(70, timeout=0):
            item.fail()
        assert [queue.redrive(limit) for limit in (0, 1, 66, None, None)] == [0, 1, 66, 3, 0]
        assert [item.value for item in queue.get_many(99, timeout=0)] == [b"%d" % number for number in range(70)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seconds", [float("inf"), 1e300, 1e16])
def test_an_item_whose_expiry_the_files_cannot_hold_never_expires(backend: str, seconds: float, tmp_path: Path) -> None:
    with sej.open_queue(tmp_path / "cars", backend=backend, max_age_s=seconds) as queue:
        queue.put(b"job")
        queue.put(b"other", expire_s=seconds)
        queue.put_many([b"last"], expire_s=seconds)
        assert [taken(queue).value for _ in range(3)] == [b"job", b"other", b"last"]


@pytest.mark.parametrize(("wrong", "error"), [(2**63, ValueError), (1.5, TypeError), (True, TypeError)])
def test_a_time_that_the_files_cannot_hold_is_named(wrong: Any, error: type[Exception], tmp_path: Path) -> None:
    with kestrel.Queue(tmp_path, "cars") as cars, segmented.Queue(tmp_path, "jobs") as jobs:
        for call, name in ((cars.put, "expiry"), (jobs.put, "expire_time")):
            with pytest.raises(error, match=f"{name} must be"):
                call(b"x", **{name: wrong})
        for many, name in ((cars.put_many, "expiry"), (jobs.put_many, "expire_time")):
            with pytest.raises(error, match=f"{name} must be"):
                many([b"x"], **{name: wrong})
        assert (len(cars), len(jobs.reader())) == (0, 0)
