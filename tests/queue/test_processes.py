"""Processes that put and get while others are killed: no acknowledged item is lost, no item is done twice."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import sej
from sej.queue.interface.queue import open_queue
from sej.queue.listing import QueueLook
from sej.writing.shared_writer import SharedDurability
from tests.crash.harness import fork
from tests.sej.interrupts import locked_below


class Worker:
    """A child process. Its output goes to a file, which is still there after the process died."""

    def __init__(self, kind: str, path: Path, durability: str, output: Path) -> None:
        self.output = output
        self.kind = kind
        self.child = fork(["tests.queue.worker", kind, str(path), "worker", durability, output.stem], output)

    def kill(self) -> None:
        self.child.send_signal(signal.SIGKILL)
        assert self.child.wait(30) == -signal.SIGKILL, "it ended by itself"

    def lines(self) -> list[list[str]]:
        text = self.output.read_text()
        return [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]


def torture(path: Path, output: Path, durability: SharedDurability, seconds: float, each: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    path.mkdir()
    output.mkdir()
    names = iter(range(10**6))
    workers: list[Worker] = []

    def start(kind: str) -> Worker:
        worker = Worker(kind, path, durability, output / f"{kind}{next(names)}")
        workers.append(worker)
        return worker

    alive = [start(kind) for kind in ("put", "get") for _ in range(each)]
    end = time.monotonic() + seconds
    # On a machine that is busy with other things a process may need the whole time only to start.
    while time.monotonic() < end or not have_worked(workers):
        try:
            alive[0].child.wait(dice.uniform(0.05, 0.4))
            raise AssertionError(f"a worker ended by itself: {alive[0].output.read_text()[-500:]}")
        except subprocess.TimeoutExpired:
            pass
        victim = dice.choice(alive)
        if dice.random() < 0.8 and not victim.lines():
            continue  # on a busy machine it would only ever start
        alive.remove(victim)
        victim.kill()
        alive.append(start(victim.kind))
    for worker in alive:
        worker.kill()

    put: set[str] = set()
    done: Counter[str] = Counter()
    hands: Counter[tuple[str, str]] = Counter()
    for worker in workers:
        for word, *rest in worker.lines():
            assert word != "LOST", "a living worker lost a lease before its deadline"
            if word == "put":
                put.add(rest[0])
            elif word == "got":
                hands[rest[1], rest[2]] += 1
            elif word == "done":
                done[rest[0]] += 1
    assert put, "no item was put"
    assert not [row for row, count in hands.items() if count > 1], "one attempt was delivered twice"
    assert not [value for value, count in done.items() if count > 1], "an item was delivered after it was done"
    with open_queue(path, "worker", max_attempts=1000) as q:
        left: Counter[str] = Counter()
        while items := q.get_many(1000, timeout=0):
            left.update(item.value.decode() for item in items)
            q.done_many(items)
        assert q.recovered is None  # type: ignore[attr-defined]
        assert tuple(q.stats().values())[:3] == (0, 0, 0)
    assert not [value for value in left if value in done], "an item is still there after it was done"
    assert not [value for value, count in left.items() if count > 1]
    assert not put - done.keys() - left.keys() - ended(workers), "an item was lost"
    assert sej.Journal(path).verify() == []


def have_worked(workers: list[Worker]) -> bool:
    """Return whether an item was put and one was done."""
    words = {row[0] for worker in workers for row in worker.lines()}
    return words >= {"put", "done"}


def ended(workers: list[Worker]) -> set[str]:
    """Return the values whose worker was killed between its reports that it ends them and that it has ended them."""
    values = set()
    for worker in workers:
        offsets = {}
        last = ""
        for word, *rest in worker.lines():
            if word == "got":
                offsets[rest[1]] = rest[0]
            last = offsets.get(rest[0], "") if word == "ending" else last if word == "got" else ""
        values.add(last)
    return values


@pytest.mark.torture
@pytest.mark.parametrize("durability", ["os", "interval", "disk"])
def test_killed_at_random(tmp_path: Path, durability: SharedDurability, torture_s: float) -> None:
    torture(tmp_path / "q", tmp_path / "output", durability, max(torture_s, 1.0), 2 if torture_s < 10 else 3)


STOPPED = """
import os, signal, sys
from sej.queue.journal_queue import JournalQueue
q = JournalQueue(sys.argv[1], "worker")
q._core.log.guard.take()
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_process_that_is_stopped_inside_a_call_delays_others_until_it_is_killed(tmp_path: Path) -> None:
    with open_queue(tmp_path, "worker") as q, ThreadPoolExecutor() as pool:
        q.put(b"a")
        with subprocess.Popen([sys.executable, "-c", STOPPED, str(tmp_path)]) as child:
            assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
            try:
                assert "ofs/worker.queue.lck" in locked_below(tmp_path)
                taken = pool.submit(q.get, timeout=1)
                assert [item.value for item in QueueLook(tmp_path, "worker").peek(1)] == [b"a"]
                assert not taken.done()
            finally:
                child.kill()
        item = taken.result(timeout=30)
        assert item is not None
        assert item.value == b"a"
        item.done()


@pytest.mark.parametrize("shift_s", [100_000, -600])
def test_a_process_of_another_time_namespace_takes_no_item_early(shift_s: int, tmp_path: Path) -> None:
    there = "import sej, sys\nwith sej.open_queue(sys.argv[1]) as q: print(q.get(timeout=0), q.stats())"
    unshare = ["unshare", "--map-root-user", "--time", "--boottime", str(shift_s), "--fork"]
    with sej.open_queue(tmp_path / "q", lease_s=60) as q:
        q.put(b"held")
        q.put(b"delayed", delay_s=300)
        item = q.get(timeout=0)
        assert item is not None
        found = subprocess.run([*unshare, sys.executable, "-c", there, q.path], check=True, capture_output=True)
        assert found.stdout == b"None Stats(ready=0, delayed=1, leased=1, done=0, dead=0, lost=0)\n"
        item.done()
