"""Power losses at every moment, and every call of the disk failing once: what was acknowledged is there, nothing twice.

The workloads run under ``sync="always"``: what was acknowledged is state number ``mark``; the operation that was under
way may have happened or not. The formats have no checksums, so an item whose put was not acknowledged may be found with
wrong bytes; it is then the last one.
"""

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import kestrel
from kestrel import segmented
from kestrel.errors import FailedError
from sej.system.disk import Disk
from tests.cli.command import ROOT
from tests.crash.disk import CrashDisk, Fault, faulty
from tests.kestrel.support import Three, Two

Step = Callable[[kestrel.Queue], object]
Shape = tuple[list[bytes], list[bytes]]


def rewriting() -> tuple[dict[str, Any], list[Step]]:
    """An empty queue whose journal is restarted, first with an open transaction, then with everything confirmed."""
    steps: list[Step] = [lambda q: q.put(b"open" * 8), lambda q: q.reserve()]
    for number in range(4):
        steps += [lambda q, number=number: q.put(b"%d" % number * 20), lambda q: q.get()]  # type: ignore[misc]
    steps += [lambda q: q.put(b"last"), lambda q: q.confirm(1)]
    return {"journal_bytes": 60}, steps


def compacting() -> tuple[dict[str, Any], list[Step]]:
    """A journal over its size, which is rewritten with the waiting items."""
    steps: list[Step] = []
    for number in range(5):
        steps += [lambda q, number=number: q.put(b"%d" % number * 20), lambda q: q.reserve()]  # type: ignore[misc]
        steps += [lambda q, number=number: q.confirm(number + 1) if number % 2 else q.put(b"+%d" % number)]  # type: ignore[misc]
    return {"max_journal_bytes": 150, "compact_delay_s": 0}, steps


def packing() -> tuple[dict[str, Any], list[Step]]:
    """A queue in read-behind, rotated, read past a checkpoint and packed."""
    steps: list[Step] = [lambda q, number=number: q.put(b"%02d" % number * 12) for number in range(12)]  # type: ignore[misc]
    for number in range(10):
        steps.append((lambda q: q.get()) if number % 3 else (lambda q: q.reserve()))
    return {"max_memory_bytes": 100}, steps


WORKLOADS = {"rewriting": rewriting, "compacting": compacting, "packing": packing}


def opened(disk: Disk, options: dict[str, Any]) -> kestrel.Queue:
    ticks = count(1_500_000_000_000)
    return kestrel.Queue("/q", "cars", sync="always", disk=disk, now_ms=lambda: next(ticks), **options)


def shape(disk: Disk) -> Shape:
    if disk.status("/q") is None:
        return [], []
    state = kestrel.replay("/q", "cars", disk=disk)
    return [item.data for item in state.items], [item.data for item in state.open_transactions.values()]


def shapes(options: dict[str, Any], steps: list[Step]) -> tuple[list[Shape], kestrel.Queue, CrashDisk]:
    """The states after each step, by a run in which nothing goes wrong; what was done is on the disk's trace."""
    disk = CrashDisk()
    queue = opened(disk, options)
    found = [shape(disk)]
    disk.mark(0)
    for number, step in enumerate(steps):
        step(queue)
        found.append(shape(disk))
        disk.mark(number + 1)
    return found, queue, disk


def fits(found: Shape, states: list[Shape], mark: int) -> bool:
    allowed = states[mark : mark + 2]
    torn = len(found[0]) == len(states[mark][0]) + 1 and (found[0][:-1], found[1]) == states[mark]
    return found in allowed or torn


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_power_loss_takes_nothing_that_was_acknowledged(name: str) -> None:
    options, steps = WORKLOADS[name]()
    states, queue, disk = shapes(options, steps)
    counters = queue.counters()
    assert queue._contents.growth.packs if name == "packing" else counters.journal_rewrites
    tried = 0
    for crash in disk.crash_states():
        mark = crash.marks[-1] if crash.marks else 0
        found = shape(crash.disk)
        assert fits(found, states, mark), (crash.step, mark, found, states[mark : mark + 2])
        with opened(crash.disk, options) as again:  # the open ones are put back, and nothing else changes
            assert len(again) == len(found[0]) + len(found[1])
        tried += 1
    assert tried > 50


@pytest.mark.parametrize("fault", ["eio", "enospc", "short", "sync-loses"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_call_may_fail_once(name: str, fault: Fault) -> None:
    options, steps = WORKLOADS[name]()
    states, _, _ = shapes(options, steps)
    for number in count(1):
        inner = CrashDisk()
        disk = faulty(inner, number, fault)
        mark = 0
        queue: kestrel.Queue | None = None
        try:
            queue = opened(disk, options)
            for step in steps:
                step(queue)
                mark += 1
        except FailedError:
            if queue is not None:
                with pytest.raises(FailedError):
                    queue.put(b"never")
        if queue is not None:
            queue._contents.storage.tail.close()  # without the rewrite that closing an empty queue brings
        assert fits(shape(inner), states, mark), (number, disk.failed)
        with opened(inner, options) as again:
            assert again.open_transactions == {}
        if disk.calls < number:
            break
    assert number > 20 or fault == "sync-loses"


def unpacked() -> CrashDisk:
    """Return a disk with open transactions, as a killed process leaves it."""
    _, queue, disk = shapes(*packing())
    queue._contents.storage.tail.close()
    return disk


@pytest.mark.parametrize("fault", ["eio", "short", "sync-loses"])
def test_a_pack_that_fails_changes_nothing(fault: Fault) -> None:
    due = shape(unpacked())
    assert due[1]
    inner = unpacked()
    for number in count(1):
        inner = unpacked()
        disk = faulty(inner, number, fault)
        try:
            kestrel.pack("/q", "cars", disk=disk)
        except FailedError:
            assert shape(inner) == due
            continue
        assert shape(inner) == due
        if disk.calls < number:
            break
    assert sorted(name for name in inner.list("/q") if "~~" not in name) == ["cars"]


def test_a_pack_survives_a_power_loss() -> None:
    disk = unpacked()
    due, before = shape(disk), len(disk.trace)
    kestrel.pack("/q", "cars", disk=disk)
    late = [crash for crash in disk.crash_states() if crash.step > before]
    assert len(late) > 10
    for crash in late:
        assert shape(crash.disk) == due


def segmented_workload(disk: Disk) -> Iterator[tuple[set[int], set[int]]]:
    """Puts, commits in any order, rotation, checkpoints; yields (put, committed) so far."""
    ticks = count(1_500_000_000_000)
    queue = segmented.Queue(
        "/q", "jobs", sync="always", disk=disk, journal_bytes=120, checkpoint_s=1000, now_ms=lambda: next(ticks)
    )
    put: set[int] = set()
    done: set[int] = set()
    try:
        reader = queue.reader("r")
        yield put, done
        for number in range(1, 9):
            queue.put(b"%d" % number * 10)
            put.add(number)
            yield put, done
        for _ in range(8):
            reader.get()
        for number in (3, 1, 2, 6, 5, 8, 4):
            reader.commit(number)
            done.add(number)
            yield put, done
            if number in (2, 5):
                queue.checkpoint()
                yield put, done
    except FailedError:
        with pytest.raises(FailedError):
            queue.put(b"never")
        raise
    finally:
        queue.files.tail.close()


def test_a_power_loss_takes_no_item_and_no_commit() -> None:
    disk = CrashDisk()
    for put, done in segmented_workload(disk):
        disk.mark((frozenset(put), frozenset(done)))
    tried = 0
    for crash in disk.crash_states():
        put, done = crash.marks[-1] if crash.marks else (frozenset(), frozenset())
        ids = segmented_outcome(crash.disk)
        if ids is None:
            assert not put
            continue
        missing = (put - done) - ids
        extra = ids - (put - done)
        assert len(missing) <= 1, (crash.step, missing)  # the commit under way
        assert len(extra) <= 1, (crash.step, extra)  # the put under way
        tried += 1
    assert tried > 100


def segmented_outcome(disk: Disk) -> set[int] | None:
    ticks = count(1_600_000_000_000)
    with segmented.Queue("/q", "jobs", disk=disk, journal_bytes=120, now_ms=lambda: next(ticks)) as queue:
        if "r" not in queue.readers:
            return None
        reader = queue.reader("r")
        got = [item.id for _ in range(20) if (item := reader.get()) is not None]
        assert len(got) == len(set(got))
        return set(got)


@pytest.mark.parametrize("fault", ["eio", "enospc", "short", "sync-loses"])
def test_every_call_of_a_segmented_queue_may_fail_once(fault: Fault) -> None:
    for number in count(1):
        inner = CrashDisk()
        disk = faulty(inner, number, fault)
        put: set[int] = set()
        done: set[int] = set()
        try:
            for one, two in segmented_workload(disk):
                put, done = set(one), set(two)
        except FailedError:
            pass
        ids = segmented_outcome(inner)
        if ids is None:
            assert not put
        else:
            assert len((put - done) - ids) <= 1, (number, disk.failed)
            assert len(ids - (put - done)) <= 1, (number, disk.failed)
        if disk.calls < number:
            break
    assert number > 20 or fault == "sync-loses"


KINDS: dict[str, Any] = {"kestrel": Two, "libkestrel": Three}

# --- SIGKILL of real processes at random moments: no confirmed item is delivered again, no unconfirmed item is lost


def run_and_kill(kind: str, directory: Path, seed: int, seconds: float) -> list[tuple[str, int]]:
    """What the process said until it was killed, seconds after its first word."""
    command = [sys.executable, "-m", "tests.kestrel.victim", kind, str(directory), str(seed)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            said += process.stdout.readline()
        process.kill()
        said += process.stdout.read()
    assert process.returncode == -9
    words = [line.split() for line in said.splitlines() if line]
    return [(word.decode(), int(number)) for word, number in words]


def numbers_in(kind: str, directory: Path) -> list[int]:
    q = KINDS[kind].open(directory)
    assert q.queue.damage == []
    q.close()
    return [int(data.partition(b":")[0]) for data in q.left(directory)]


def rounds(kind: str, directory: Path, budget_s: float) -> int:
    chance = random.Random(kind)
    there: set[int] = set()
    deadline = time.monotonic() + budget_s
    seed = 0
    while time.monotonic() < deadline or seed < 2:
        seed += 1
        said = run_and_kill(kind, directory, seed, chance.uniform(0.0, 0.25))
        spoken = {
            what: {number for word, number in said if word == what} for what in ("-put", "+put", "-take", "+take")
        }
        there = (there | spoken["+put"]) - spoken["-take"]
        perhaps = (spoken["-put"] - spoken["+put"]) | (spoken["-take"] - spoken["+take"])
        assert len(perhaps) <= 1
        found = numbers_in(kind, directory)
        assert len(found) == len(set(found)), "an item is there twice"
        assert there - set(found) == set(), "an unconfirmed item is lost"
        assert set(found) - there <= perhaps, "a confirmed item came back"
        there = set(found)
    return seed


@pytest.mark.torture
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_costs_nothing(kind: str, tmp_path: Path, torture_s: float) -> None:
    assert rounds(kind, tmp_path, max(torture_s, 1.0)) >= 2
