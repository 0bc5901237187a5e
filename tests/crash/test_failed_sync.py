"""A sync fails, the object is reopened, and later the power goes: what was acknowledged is on the medium.

After a failed sync the pages stay in the cache and are clean. Each process that opens the file reads them, and a later
sync succeeds without writing them. The disk of these tests does the same. The judge reads only what is durable.
"""

import contextlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import hub
import sej
from sej.system.disk import Disk, File
from tests.crash.disk import CrashDisk, Fault, FaultyOnly, faulty
from tests.queue.support import FakeClock, opened
from tests.sej.hooks import PATIENCE_S, HookedDisk, until

ROOT = "/j"
# An index that cannot be written costs time and nothing else; the writer warns.
pytestmark = pytest.mark.filterwarnings("ignore:the index .* could not be written:RuntimeWarning")

Work = Callable[[Disk, int], Iterator[Any]]
"""One process: opens, works, and yields what is acknowledged. Raises where the disk does."""
Judge = Callable[[CrashDisk, list[Any]], None]
"""Looks at what a loss of power left, and at everything that was acknowledged."""


class Case(NamedTuple):
    """What is done, and how it is judged."""

    work: Work
    judge: Judge

    def check_one_fault(self, fault: Fault) -> int:
        """Let each sync, or each call, fail once; returns how many failed."""
        fired = 0
        for k in itertools.count(1):
            inner = CrashDisk()
            said: list[Any] = []
            first = faulty(inner, k, fault)
            run(self.work, first, 1, said)
            run(self.work, inner, 2, said)
            self.judge(inner.crash(), said)
            fired += first.failed is not None
            if first.calls < k:
                break
        return fired

    def two_faults(self, verb: str) -> Iterator[tuple[CrashDisk, list[Any]]]:
        """Let each sync fail, and after the reopening each call of a verb; yields what both left, and what was said."""
        for k in itertools.count(1):
            for j in itertools.count(1):
                inner = CrashDisk()
                said: list[Any] = []
                first, second = FaultyOnly(inner, "sync", k), FaultyOnly(inner, verb, j)
                run(self.work, first, 1, said)
                if first.failed is None:
                    return
                run(self.work, second, 2, said)
                self.judge(inner.crash(), said)
                if second.failed is None:
                    break
                yield inner, said

    def check_two_syncs(self) -> int:
        """Let a sync fail, and one after the reopening; returns how many pairs failed."""
        fired = 0
        for inner, said in self.two_faults("sync"):
            fired += 1
            run(self.work, inner, 3, said)
            self.judge(inner.crash(), said)
        return fired


def values(disk: CrashDisk, path: str = ROOT) -> list[bytes]:
    with contextlib.suppress(sej.JournalNotFoundError, sej.NotAJournalError):
        return [bytes(message.value) for message in sej.Scanner(path, disk=disk)]
    return []


def value(turn: int, n: int) -> bytes:
    return b"%d.%d " % (turn, n) * 40


def all_there(disk: CrashDisk, said: list[Any]) -> None:
    found = values(disk)
    for word, what in said:
        if word == "value":
            assert what in found, (what, found)
        elif word == "durable":
            assert len(found) >= what, (what, found)


def closing(thing: Any) -> contextlib.ExitStack:
    """Close it at the end, whatever became of it; it may say once more that it failed."""
    stack = contextlib.ExitStack()

    def close() -> None:
        with contextlib.suppress(OSError, sej.SejError):
            thing.close()

    stack.callback(close)
    return stack


def appends(kind: type[sej.Writer] | type[sej.SharedWriter]) -> Work:
    def work(disk: Disk, turn: int) -> Iterator[Any]:
        w = kind(ROOT, durability="disk", segment_bytes=2000, disk=disk)
        with closing(w):
            yield "durable", w.durable_offset
            for n in range(4):
                w.append(value(turn, n))
                yield "value", value(turn, n)
                yield "durable", w.durable_offset

    return work


def synced_by_hand(disk: Disk, turn: int) -> Iterator[Any]:
    w = sej.Writer(ROOT, disk=disk)
    with closing(w):
        yield "durable", w.durable_offset
        for n in range(4):
            w.append(value(turn, n))
            if n % 2:
                w.sync()
                yield "value", value(turn, n)
                yield "durable", w.durable_offset


def once(disk: Disk, turn: int) -> Iterator[Any]:
    w = sej.Writer(ROOT, disk=disk)
    with closing(w):
        for n in range(2):
            w.append_once("p", 10 * turn + n, [value(turn, n)])
            yield "value", value(turn, n)


def committing(disk: Disk, turn: int) -> Iterator[Any]:
    """The writer never syncs: the reader does, up to what it keeps."""
    w = sej.Writer(ROOT, disk=disk)
    with closing(w):
        for n in range(3):
            w.append(value(turn, n))
            w.flush()
            o = sej.Offset(ROOT, "r", beyond_end="rewind", disk=disk)
            with closing(o):
                o.commit(w.offset)
                yield "kept", w.offset
                yield "durable", w.offset


def keeping(disk: CrashDisk, said: list[Any]) -> None:
    all_there(disk, said)
    kept = max((what for word, what in said if word == "kept"), default=0)
    if kept:
        found = sej.read_offset(ROOT, "r", disk=disk)
        assert found is not None and kept <= found <= len(values(disk))


def hub_store(disk: Disk, turn: int) -> Iterator[Any]:
    store = hub.Store(ROOT, min_free_bytes=0, disk=disk)
    with closing(store):
        at = store.end_offset("c", "x")
        yield "durable", at
        for _ in range(3):
            batch = [sej.Message(at, at, 0, b"", b"%d" % at * 50)]
            for _try in range(2):  # as clients do: the same again if it was not acknowledged
                with contextlib.suppress(hub.UnavailableError):
                    at = store.put("c", "x", batch)
                    yield "durable", at
                    break
            yield "durable", store.end_offset("c", "x")


def in_hub(disk: CrashDisk, said: list[Any]) -> None:
    found = values(disk, f"{ROOT}/c.x")
    assert found == [b"%d" % n * 50 for n in range(len(found))]
    for _, end in said:
        assert len(found) >= end


def work_queue(disk: Disk, turn: int) -> Iterator[Any]:
    q = opened(ROOT, CLOCK, disk, durability="disk")
    with closing(q):
        for n in range(3):
            q.put(value(turn, n))
            yield "put", value(turn, n)
        for item in q.get_many(2, timeout=0):
            yield "ending", item.value
            item.done()
            yield "done", item.value


def in_queue(disk: CrashDisk, said: list[Any]) -> None:
    counted = Counter(said)
    CLOCK.move(1)
    CLOCK.reboot()
    with opened(ROOT, CLOCK, disk) as q:
        left = Counter(item.value for item in q.get_many(100, timeout=0))
    for word, what in counted:
        if word == "put" and not counted["ending", what]:
            assert left[what] == 1, (what, said)
        if word == "done":
            assert not left[what], (what, said)


CLOCK = FakeClock()
CASES = {
    "Writer": Case(appends(sej.Writer), all_there),
    "sync": Case(synced_by_hand, all_there),
    "SharedWriter": Case(appends(sej.SharedWriter), all_there),
    "append_once": Case(once, all_there),
    "Offset": Case(committing, keeping),
    "Store": Case(hub_store, in_hub),
    "queue": Case(work_queue, in_queue),
}


def run(work: Work, disk: Disk, turn: int, said: list[Any]) -> None:
    with contextlib.suppress(OSError, sej.SejError):
        for what in work(disk, turn):
            said.append(what)


@pytest.mark.parametrize("fault", ["sync-loses", "eio"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_acknowledged_after_a_failed_sync_is_on_the_medium(name: str, fault: Fault) -> None:
    assert CASES[name].check_one_fault(fault) > 2


@pytest.mark.parametrize("name", CASES)
def test_a_second_sync_that_fails_after_reopening_changes_nothing(name: str) -> None:
    assert CASES[name].check_two_syncs() > 4


@pytest.mark.parametrize("name", CASES)
def test_a_rewrite_that_fails_does_not_hinder_the_opening_after_it(name: str) -> None:
    case, fired = CASES[name], 0
    for inner, said in case.two_faults("write_at"):
        fired += 1
        said.extend(case.work(inner, 3))
        case.judge(inner.crash(), said)
    assert fired


def killed(disk: CrashDisk, size: int = 100) -> None:
    """A writer with durability "interval" appends and is killed before its sync comes."""
    w = sej.Writer(ROOT, durability="interval", sync_interval_s=3600.0, disk=disk)
    w.append_many([b"%3d" % n * (size // 3) for n in range(100)])
    w.end.syncer.close()
    w.end.abandon()


def opens_a_writer(disk: CrashDisk) -> None:
    w = sej.Writer(ROOT, disk=disk)
    w.end.abandon()


def opens_a_shared_writer(disk: CrashDisk) -> None:
    w = sej.SharedWriter(ROOT, disk=disk)
    w.append(b"first")
    assert w.durable_offset == 100
    w.life.shut()
    w._appender.lock.release()


def commits(disk: CrashDisk) -> None:
    with sej.Offset(ROOT, "r", disk=disk) as o:
        o.commit(1)


@pytest.mark.parametrize("opens", [opens_a_writer, opens_a_shared_writer, commits])
def test_what_a_killed_process_left_is_synced_by_the_next_one(opens: Callable[[CrashDisk], None]) -> None:
    disk = CrashDisk()
    killed(disk)
    assert not values(disk.crash())
    opens(disk)
    assert len(values(disk.crash())) >= 100


def test_more_than_a_little_is_synced_in_the_background() -> None:
    disk, ready = CrashDisk(), threading.Event()

    def hook(verb: str, file: File | None, data: bytes) -> None:
        if threading.current_thread() is not threading.main_thread():
            assert ready.wait(PATIENCE_S)

    killed(disk, 30_000)
    w = sej.Writer(ROOT, disk=HookedDisk(hook, disk))
    assert w.durable_offset == 0 and w.offset == 100
    ready.set()
    until(lambda: w.durable_offset == 100)
    assert len(values(disk.crash())) == 100
    w.close()
