"""Power losses at every moment, and every call of the disk failing once: what was acknowledged is there, nothing twice.

The workloads run under ``sync="always"``: what was acknowledged is state number ``mark``; the operation that was under
way may have happened or not. The formats have no checksums, so an item whose put was not acknowledged may be found with
wrong bytes; it is then the last one.
"""

import contextlib
import itertools
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import kestrel
import sej
from kestrel.errors import FailedError, KestrelError
from kestrel.v2.format import addx
from kestrel.v2.items import item_of
from sej.system.disk import Disk
from tests.cli.command import ROOT
from tests.crash.disk import CrashDisk, Fault, FaultyOnly, faulty
from tests.crash.test_failed_sync import Case
from tests.crash.test_failed_sync import closing as ending
from tests.kestrel.support import Three, Two

Step = Callable[[Any], object]
Work = tuple[Any, dict[str, Any], list[Step]]
Shape = tuple[list[bytes], list[bytes]]


def put(data: bytes) -> Step:
    return lambda q: q.put(data)


def end(handle: int) -> Step:
    return lambda q: q.end(handle)


def take(q: Any) -> object:
    return q.take()


def get(q: Any) -> object:
    return q.get()


def rewriting() -> Work:
    """An empty queue whose journal is restarted, first with an open transaction, then with everything confirmed."""
    pairs = [step for number in range(4) for step in (put(b"%d" % number * 20), get)]
    return Two, {"journal_bytes": 60}, [put(b"open" * 8), take, *pairs, put(b"last"), end(1)]


def compacting() -> Work:
    """A journal over its size, which is rewritten with the waiting items."""
    steps: list[Step] = []
    for number in range(5):
        steps += [put(b"%d" % number * 20), take, end(number + 1) if number % 2 else put(b"+%d" % number)]
    return Two, {"max_journal_bytes": 150, "compact_delay_s": 0}, steps


def packing() -> Work:
    """A queue in read-behind, rotated, read past a checkpoint and packed."""
    steps = [put(b"%02d" % number * 12) for number in range(12)]
    return Two, {"max_memory_bytes": 100}, [*steps, *(get if number % 3 else take for number in range(10))]


def retiring() -> Work:
    """Commits of libkestrel in any order, rotation, checkpoints."""
    steps = [*(put(b"%d" % number * 10) for number in range(1, 9)), *[take] * 8]
    for number in (3, 1, 2, 6, 5, 8, 4):
        steps += [end(number), *[lambda q: q.queue.checkpoint()] * (number in (2, 5))]
    return Three, {"journal_bytes": 120, "checkpoint_s": 1000}, steps


WORKLOADS = {"rewriting": rewriting, "compacting": compacting, "packing": packing, "retiring": retiring}


def opened(kind: Any, disk: Disk, options: dict[str, Any]) -> Any:
    return kind.open("/q", sync="always", disk=disk, now_ms=count(1_500_000_000_000).__next__, **options)


def shape(kind: Any, disk: Disk) -> Shape:
    """What waits, and what is reserved, which libkestrel does not store."""
    if disk.status("/q") is None:
        return [], []
    if kind is Three:
        return Three.left("/q", disk), []
    state = kestrel.replay("/q", "cars", disk=disk)
    return [item.data for item in state.items], [item.data for item in state.open_transactions.values()]


def shapes(kind: Any, options: dict[str, Any], steps: list[Step]) -> tuple[list[Shape], Any, CrashDisk]:
    """The states after each step, by a run in which nothing goes wrong; what was done is on the disk's trace."""
    disk = CrashDisk()
    q = opened(kind, disk, options)
    found = [shape(kind, disk)]
    disk.mark(0)
    for number, step in enumerate(steps):
        step(q)
        found.append(shape(kind, disk))
        assert sum(map(len, found[-1])) == len(q)
        disk.mark(number + 1)
    return found, q, disk


def fits(found: Shape, states: list[Shape], mark: int) -> bool:
    allowed = states[mark : mark + 2]
    torn = len(found[0]) == len(states[mark][0]) + 1 and (found[0][:-1], found[1]) == states[mark]
    return found in allowed or torn


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_power_loss_takes_nothing_that_was_acknowledged(name: str) -> None:
    kind, options, steps = WORKLOADS[name]()
    states, q, disk = shapes(kind, options, steps)
    if kind is Two:
        assert q.queue._store.packs if name == "packing" else q.counters().journal_rewrites
    tried = 0
    for crash in disk.crash_states():
        mark = crash.marks[-1] if crash.marks else 0
        found = shape(kind, crash.disk)
        assert fits(found, states, mark), (crash.step, mark, found, states[mark : mark + 2])
        with closing(opened(kind, crash.disk, options)) as again:
            assert len(again) == len(found[0]) + len(found[1])
        tried += 1
    assert tried > 50


@pytest.mark.parametrize("fault", ["eio", "enospc", "short", "sync-loses"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_call_may_fail_once(name: str, fault: Fault) -> None:
    kind, options, steps = WORKLOADS[name]()
    states, _, _ = shapes(kind, options, steps)
    for number in count(1):
        inner = CrashDisk()
        disk = faulty(inner, number, fault)
        mark, q = 0, None
        try:
            q = opened(kind, disk, options)
            for step in steps:
                step(q)
                mark += 1
        except FailedError:
            if q is not None:
                with pytest.raises(FailedError):
                    q.put(b"never")
        if q is not None:
            q.queue._tail.close()  # without the rewrite or the checkpoint that closing brings
        assert fits(shape(kind, inner), states, mark), (number, disk.failed)
        with closing(opened(kind, inner, options)) as again:
            left = [data for _, data in iter(again.take, None)]
            items, reserved = shape(kind, inner)
            assert sorted(left) == sorted([*items, *reserved])
        if disk.calls < number:
            break
    assert number > 20 or fault == "sync-loses"


def unpacked() -> CrashDisk:
    """Return a disk with open transactions, as a killed process leaves it."""
    _, q, disk = shapes(*packing())
    q.queue._tail.close()
    return disk


@pytest.mark.parametrize("fault", ["eio", "short", "sync-loses"])
def test_a_pack_that_fails_changes_nothing(fault: Fault) -> None:
    due = shape(Two, unpacked())
    assert due[1]
    inner = unpacked()
    for number in count(1):
        inner = unpacked()
        disk = faulty(inner, number, fault)
        try:
            kestrel.pack("/q", "cars", disk=disk)
        except FailedError:
            assert shape(Two, inner) == due
            continue
        assert shape(Two, inner) == due
        if disk.calls < number:
            break
    assert sorted(name for name in inner.list("/q") if "~~" not in name) == ["cars"]


def test_a_pack_survives_a_power_loss() -> None:
    disk = unpacked()
    due, before = shape(Two, disk), len(disk.trace)
    kestrel.pack("/q", "cars", disk=disk)
    late = [crash for crash in disk.crash_states() if crash.step > before]
    assert len(late) > 10
    for crash in late:
        assert shape(Two, crash.disk) == due


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


# --- A sync fails, the queue is opened again, and later the power fails: what was acknowledged is on the medium
#
# The disk does what Linux does: after a failed sync the pages are clean, reads see the bytes, and a later sync does not
# write them.


def value(turn: int, n: int) -> bytes:
    return b"%d.%d " % (turn, n) * 8


def clock(turn: int) -> Callable[[], int]:
    return itertools.count(1_500_000_000_000 + turn * 1_000_000).__next__


def opened_two(disk: Disk, turn: int, **options: Any) -> kestrel.Queue:
    return kestrel.Queue("/q", "cars", disk=disk, now_ms=clock(turn), **options)


def always(kind: Any, disk: Disk, turn: int, **options: Any) -> Iterator[tuple[str, Any]]:
    q = kind.open("/q", sync="always", disk=disk, now_ms=clock(turn), **options)
    with ending(q.queue):
        for n in range(4):
            q.put(value(turn, n))
            yield "put", value(turn, n)
        for n in range(3):
            head = q.peek().data
            yield "ending", head
            if kind is Two and n < 2:
                assert q.get().data == head
            else:
                handle, data = q.take()
                assert data == head and q.end(handle)
            yield "done", head
            if kind is Three and n == 1:
                q.queue.checkpoint()


def by_hand(kind: Any, disk: Disk, turn: int) -> Iterator[tuple[str, Any]]:
    q = kind.open("/q", disk=disk, now_ms=clock(turn))
    with ending(q.queue):
        for n in range(4):
            q.put(value(turn, n))
            if n % 2:
                q.queue.sync()
                yield "put", value(turn, n - 1)
                yield "put", value(turn, n)


def by_closing(disk: Disk, turn: int) -> Iterator[tuple[str, Any]]:
    queue = opened_two(disk, turn)
    try:
        for n in range(2):
            queue.put(value(turn, n))
    finally:
        queue.close()
    for n in range(2):
        yield "put", value(turn, n)


def seen(disk: Disk, turn: int) -> Iterator[tuple[str, Any]]:
    """What was found is durable once a sync succeeds, though it was written by a process that failed or was killed."""
    queue = opened_two(disk, turn)
    with ending(queue):
        found = [item_of(row) for row in queue._backlog.rows()]
        for n in range(2):
            queue.put(value(turn, n))
        queue.sync()
        for item in (*found, None):
            if item is not None:
                yield "put", item.data
        for n in range(2):
            yield "put", value(turn, n)
        queue.put(b"killed here %d" % turn)
        queue._store.storage.tail.lock.release()  # as death does
        queue._store.storage.fuse.live = False
        queue._store.storage.fuse.shut = True


def in_files(kind: Any, disk: CrashDisk, said: list[tuple[str, Any]]) -> None:
    if disk.status("/q") is None:
        assert not said
        return
    left, counted = Counter(kind.left("/q", disk)), Counter(said)
    for word, what in counted:
        if word == "put" and not counted["ending", what]:
            assert left[what] == 1, (what, left)
        if word == "done":
            assert not left[what], (what, left)


WORK: dict[str, tuple[Any, Any]] = {
    "always": (Two, partial(always, Two)),
    "rotating": (Two, partial(always, Two, max_memory_bytes=60)),
    "rewriting": (Two, partial(always, Two, max_journal_bytes=100, compact_delay_s=0)),
    "sync": (Two, partial(by_hand, Two)),
    "close": (Two, by_closing),
    "seen": (Two, seen),
    "segmented": (Three, partial(always, Three, journal_bytes=120, checkpoint_s=1000)),
    "segmented sync": (Three, partial(by_hand, Three)),
}
CASES = {name: Case(work, partial(in_files, kind)) for name, (kind, work) in WORK.items()}


@pytest.mark.parametrize("fault", ["sync-loses", "eio"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_acknowledged_after_a_failed_sync_is_on_the_medium(name: str, fault: Fault) -> None:
    assert CASES[name].check_one_fault(fault)


@pytest.mark.parametrize("name", CASES)
def test_a_second_sync_that_fails_after_reopening_changes_nothing(name: str) -> None:
    assert CASES[name].check_two_syncs()


# --- what an original left

ORIGINAL = b"".join(addx(value(0, n), 1_500_000_000_000 + n) for n in range(3))


@pytest.mark.parametrize("name", ["cars", "cars.1475195912693"])
def test_without_a_kept_position_every_file_is_renewed(name: str) -> None:
    disk = CrashDisk()
    disk.mkdir("/q")
    file = disk.open(f"/q/{name}", "append")
    file.write(ORIGINAL)
    file.lose()
    file.close()
    with opened_two(disk, 1, sync="always") as queue:
        queue.put(b"behind them")
    state = kestrel.replay("/q", "cars", disk=disk.crash())
    assert [item.data for item in state.items] == [*(value(0, n) for n in range(3)), b"behind them"]


def test_the_kept_position_spares_what_is_known_to_be_on_the_medium() -> None:
    disk = CrashDisk()
    with opened_two(disk, 1, sync="always") as queue:
        for n in range(4):
            queue.put(value(1, n))
        size = queue.counters().logsize
    before = len(disk.trace)
    opened_two(disk, 2).close()
    number = disk.dirs["/q"].seen["cars"]
    assert not [step for step in disk.trace[before:] if step[0] == "write" and step[1][0] == number]
    assert disk.status("/q/cars").size == size  # type: ignore[union-attr]


def test_a_cut_below_the_kept_position_is_not_taken_for_durable_when_it_is_written_again() -> None:
    disk = CrashDisk()
    with opened_two(disk, 1, sync="always") as queue:
        for n in range(3):
            queue.put(value(1, n))
    file = disk.open("/q/cars", "edit")
    file.write_at(b"\xff", len(ORIGINAL) // 3)  # the second operation
    file.sync()
    file.close()
    again = opened_two(disk, 2)
    assert again.damage
    for n in range(3):
        again.put(value(2, n))
    again._store.storage.tail.output.file.lose()  # type: ignore[union-attr]
    again._store.storage.tail.lock.release()
    with opened_two(disk, 3) as last:
        last.sync()
        there = len(last)
    assert len(kestrel.replay("/q", "cars", disk=disk.crash()).items) == there


def test_an_export_that_is_finished_by_a_second_call_is_on_the_medium() -> None:
    for k in itertools.count(1):
        inner = CrashDisk()
        with opened_two(inner, 1) as queue:
            queue.put_many(value(1, n) for n in range(3))
        first = FaultyOnly(inner, "sync", k)
        moved = False
        for disk in (first, inner):
            with contextlib.suppress(KestrelError, OSError, sej.SejError):
                w = sej.Writer("/j", disk=disk)
                try:
                    kestrel.export("/q", "cars", w, disk=disk)
                    moved = True
                finally:
                    with contextlib.suppress(OSError, sej.SejError):
                        inner_state = inner.crash()
                        w.close()
                if moved:
                    found = [bytes(m.value) for m in sej.Scanner("/j", disk=inner_state)]
                    assert found == [value(1, n) for n in range(3)]
                    break
        assert moved
        if first.failed is None:
            break
    assert k > 3
