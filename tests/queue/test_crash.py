"""Power loss at every moment, and failures of every call: no acknowledged item is lost, no done one is there again."""

import contextlib
from collections import Counter

import pytest

import sej
from sej.queue.journal_queue import JournalQueue
from sej.system.disk import Disk
from tests.crash.disk import CrashDisk, Fault
from tests.queue.support import FakeClock, crashes, fail_all, failing, kill, opened

PATH = "/q"


def fresh_disk(clock: FakeClock) -> CrashDisk:
    """A queue that exists, everything of it durable."""
    disk = CrashDisk()
    with opened(PATH, clock, disk):
        pass
    return disk.crash()


def workload(disk: CrashDisk, clock: FakeClock, durability: str, compact_bytes: int = 1 << 22) -> JournalQueue:
    """Put, take, done, retry, fail, delay; everything acknowledged is marked."""
    q = opened(PATH, clock, disk, durability=durability, compact_bytes=compact_bytes)
    q.put(b"a")
    disk.mark(("put", b"a"))
    q.put_many([b"b", b"c"])
    disk.mark(("put", b"b"))
    disk.mark(("put", b"c"))
    q.put(b"later", delay_s=1)
    disk.mark(("put", b"later"))
    for end in ("done", "retry", "done"):
        (item,) = q.get_many(1, timeout=0)
        value = item.value
        if end == "done":
            disk.mark(("ending", value))
            item.done()
            disk.mark(("done", value))
        else:
            item.retry(0)
    return q


@pytest.mark.parametrize("compact_bytes", [1 << 22, 100])
def test_power_loss(compact_bytes: int) -> None:
    clock, disk = FakeClock(), CrashDisk()
    q = workload(disk, clock, "disk", compact_bytes)
    for crash in crashes(disk, q, clock, more_than=50):
        said = Counter(crash.marks)
        with opened(PATH, clock, crash.disk) as q:
            clock.move(100)
            left = Counter(item.value for item in q.get_many(100, timeout=0))
        for word, value in said:
            if word == "put" and not said["ending", value]:
                assert left[value] == 1, (crash.step, value, crash.marks)
            if word == "done":
                assert left[value] == 0, (crash.step, value, crash.marks)
        assert max(left.values(), default=1) == 1


def test_power_loss_leaves_no_delayed_item_early_and_no_keyed_one_twice() -> None:
    clock = FakeClock()
    disk = CrashDisk()
    q = opened(PATH, clock, disk, durability="disk")
    q.put(b"once", dedupe_key=b"key")
    q.put_many([b"later", b"much later"], delay_s=1000)
    disk.mark("put")
    kill(q)
    for crash in disk.crash_states():
        with opened(PATH, clock, crash.disk, durability="disk") as q:
            q.put(b"once", dedupe_key=b"key")
            found = [item.value for item in q.get_many(100, timeout=0)]
        assert found == [b"once"], (crash.step, crash.marks)


def test_power_loss_under_os_loses_no_new_message() -> None:
    """What was lost with the power is lost; what is put afterwards must not be taken for done."""
    clock, disk = FakeClock(), CrashDisk()
    q = workload(disk, clock, "os")
    for crash in crashes(disk, q, clock):
        clock.move(100)
        with sej.SharedWriter(PATH, disk=crash.disk) as w:
            w.append_many([b"new %d" % n for n in range(6)])
        with opened(PATH, clock, crash.disk) as q:
            left = [item.value for item in q.get_many(100, timeout=0)]
        assert [value for value in left if value.startswith(b"new")] == [b"new %d" % n for n in range(6)], crash.step


@pytest.mark.parametrize("fault", ["eio", "enospc", "short", "sync-loses"])
@pytest.mark.parametrize("sticky", [False, True])
def test_every_call_failing(fault: Fault, sticky: bool) -> None:
    for inner, disk in failing(fresh_disk(FakeClock()).crash, fault, sticky=sticky):
        clock = FakeClock()
        acknowledged, ending, done = run_until_it_fails(disk, clock)
        with opened(PATH, clock, inner) as q:
            clock.move(100)
            left = Counter(item.value for item in q.get_many(100, timeout=0))
        for value in acknowledged - ending:
            assert left[value] == 1, (disk.calls, disk.failed, value)
        for value in done:
            assert left[value] == 0, (disk.calls, disk.failed, value)


def run_until_it_fails(disk: Disk, clock: FakeClock) -> tuple[set[bytes], set[bytes], set[bytes]]:
    acknowledged: set[bytes] = set()
    ending: set[bytes] = set()
    done: set[bytes] = set()
    q: JournalQueue | None = None
    try:
        q = opened(PATH, clock, disk, durability="disk", compact_bytes=100, segment_bytes=100)
        for n in range(4):
            value = b"%d" % n
            q.put(value, delay_s=n % 2)
            acknowledged.add(value)
        for _ in range(3):
            for item in q.get_many(1, timeout=0):
                ending.add(item.value)
                item.done()
                done.add(item.value)
    except (OSError, sej.SejError):
        pass
    finally:
        if q is not None:
            kill(q)
    return acknowledged, ending, done


def letters(disk: Disk) -> Counter[bytes]:
    try:
        return Counter(letter.message.value for letter in sej.dead_letters(f"{PATH}/dead/worker", disk=disk))
    except sej.JournalNotFoundError:
        return Counter()


def test_a_dead_letter_is_written_once_and_its_item_is_not_lost() -> None:
    clock = FakeClock()
    disk = CrashDisk()
    q = opened(PATH, clock, disk, durability="disk")
    q.put_many([b"a", b"b"])
    since = len(disk.trace)
    for item in q.get_many(2, timeout=0):
        item.fail("why")
        disk.mark(item.value)
    for crash in crashes(disk, q, clock, since, more_than=50):
        given_up = set(crash.marks)
        with opened(PATH, clock, crash.disk) as q:
            clock.move(100)
            items = q.get_many(10, timeout=0)
            dead = letters(crash.disk)
            left = Counter(item.value for item in items)
            for value in (b"a", b"b"):
                assert dead[value] + left[value] == 1
                assert dead[value] or value not in given_up
            for item in items:
                item.fail("again")
        assert letters(crash.disk) == {b"a": 1, b"b": 1}, crash.step


@pytest.mark.parametrize("days", [0, 1000, -1000])
def test_redriven_dead_letters_are_delivered_once_after_any_crash(days: int) -> None:
    clock = FakeClock()
    disk = CrashDisk()
    q = opened(PATH, clock, disk)
    fail_all(q, b"a", b"b", b"c")
    q.sync()
    since = disk.settle()
    assert q.redrive(1) == 1
    assert q.redrive() == 2
    disk.mark("back")
    for crash in crashes(disk, q, clock, since, more_than=50, set_by_s=days * 86400):
        with opened(PATH, clock, crash.disk) as q:
            clock.move(100)
            q.put(b"new")  # takes the place of a message that the power took
            again = q.redrive()
            assert again == 0 if crash.marks else again <= 3
            assert q.stats().dead == 0
            left = Counter(item.value for item in q.get_many(10, timeout=0))
        assert left == {b"a": 1, b"b": 1, b"c": 1, b"new": 1}, crash.step


@pytest.mark.parametrize("fault", ["eio", "short", "sync-loses"])
def test_redrive_with_every_call_failing(fault: Fault) -> None:
    clock = FakeClock()

    def prepared() -> CrashDisk:
        with opened(PATH, clock, inner := CrashDisk()) as q:
            fail_all(q, b"a", b"b")
        return inner

    for inner, disk in failing(prepared, fault):
        with contextlib.suppress(OSError, sej.SejError):
            q = opened(PATH, clock, disk)
            try:
                q.redrive()
            finally:
                kill(q)
        with opened(PATH, clock, inner) as q:
            q.redrive()
            assert Counter(item.value for item in q.get_many(10, timeout=0)) == {b"a": 1, b"b": 1}, disk.failed
            assert q.stats().dead == 0
