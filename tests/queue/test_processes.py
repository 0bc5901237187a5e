"""Schedules, results, order, delays, dead letters and limits together, while processes are killed; stopped ones."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

import sej
from sej.queue.listing import QueueLook
from tests.crash.harness import fork, seeded_random
from tests.forking import Program
from tests.queue.support import take
from tests.sej.interrupts import locked_below

EVERY_S = 0.05
RATE = 200
"""With limits, so many items of a key in a second."""


def lines(output: Path) -> list[list[str]]:
    return [line.split() for line in output.read_text().splitlines()] if output.exists() else []


def soak(path: Path, output: Path, seconds: float, dice: random.Random) -> None:
    """Run processes, and kill one after another."""

    def start(kind: str) -> Program:
        return fork(["tests.queue.soaker", kind, str(path), str(output)], output.with_suffix(".err"))

    alive = [(kind, start(kind)) for kind in ("put", "work", "work", "limited", "limited")]
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(lines(output)) < 2000:
        try:
            alive[0][1].wait(dice.uniform(0.3, 1.5))
            raise AssertionError(f"a process ended by itself: {output.read_text()[-500:]}")
        except subprocess.TimeoutExpired:
            pass
        kind, victim = alive.pop(dice.randrange(len(alive)))
        victim.send_signal(signal.SIGKILL)
        assert victim.wait(30) == -signal.SIGKILL, "it ended by itself"
        alive.append((kind, start(kind)))
    for _, process in alive:
        process.kill()
        process.wait()


@pytest.mark.torture
@pytest.mark.timeout(4 * 3600)
def test_every_put_is_accounted_for(tmp_path: Path, torture_s: float) -> None:
    path, output = tmp_path / "q", tmp_path / "output"
    with sej.open_queue(path, "worker", order="key", max_attempts=3, compact_bytes=1 << 20) as q:
        for name in ("one", "two"):
            q.put(b"", b"s" + name.encode(), every=EVERY_S, schedule=name, missed="all")
    limit = sej.Limit("key", concurrency=1, rate=f"{RATE}/s")
    sej.open_queue(path, "limited", create=True, limit=limit, max_attempts=1000).close()
    soak(path, output, torture_s, seeded_random())
    rows = lines(output)
    begun = defaultdict(list)
    times: dict[str, dict[int, str]] = {"sone": {}, "stwo": {}}
    for _, key, offset, attempts, at in (row for row in rows if row[0] == "begin"):
        begun[key].append((int(offset), int(attempts)))
        if at != "-":
            times[key][int(offset)] = at
    with sej.open_queue(path, "worker") as q:
        assert q.recovered is None  # type: ignore[attr-defined]
        for schedule in list(q.schedules):
            q.schedules.remove(schedule.name)
        left = set()
        while not q.wait_empty(0):
            if (item := q.get(timeout=1)) is not None:
                left.add(item.message.offset)
                if "schedule" in item.headers:
                    times[item.key.decode()][item.message.offset] = item.headers["schedule-time"]
                item.done(b"result of " + item.value)
        dead = Counter(letter.message.offset for letter in sej.dead_letters(path / "dead" / "worker"))
        failed, put = set(), {int(number): value.replace("/", " ") for _, number, value in _of(rows, "put")}
        for number, value in put.items():
            try:
                assert q.result(number, 0) == b"result of " + value.encode()
            except sej.ItemFailedError:
                failed.add(number)
    assert not list(_of(rows, "LOST")), "a living worker lost a lease before its deadline"
    assert failed <= dead.keys() and max(dead.values()) == 1
    for key, deliveries in begun.items():
        assert max(Counter(deliveries).values()) == 1, "one attempt was delivered twice"
        if key != "d":  # a delay gives an item a later place
            assert all(one[0] <= other[0] for one, other in pairwise(deliveries)), f"an inversion within {key}"
    current: dict[str, int] = {}
    ended = set(dead)
    for word, key, offset, *_ in (row for row in rows if row[0] in ("begin", "end")):
        if word == "end":
            ended.add(int(offset))
        else:
            before, current[key] = current.get(key, int(offset)), int(offset)
            assert before == int(offset) or before in ended, f"{before} had not ended when {offset} began, of one key"
    for found in times.values():
        stamps = [datetime.fromisoformat(at).timestamp() for _, at in sorted(found.items())]
        assert all(abs(after - before - EVERY_S) < 0.002 for before, after in pairwise(stamps)), "a time has no item"
    assert len({offset for found in times.values() for offset in found}) == _count(path, b"s")
    given = check_limits(path, rows)
    assert sej.Journal(path).verify() == []
    times_count = sum(map(len, times.values()))
    print(f"{len(put)} puts, {len(failed)} failed, {times_count} times, {len(left)} left, {given} given with limits")


def check_limits(path: Path, rows: list[list[str]]) -> int:
    """Check that each message was done once, and that no key had two holders, or more than its rate."""
    rows = [row for row in rows if row[0] in ("take", "give")]
    last = {row[2]: index for index, row in enumerate(rows)}
    held: dict[str, str] = {}
    times = defaultdict(list)
    for index, (word, key, pid, *at) in enumerate(rows):
        if word == "take":
            assert key not in held or last[held[key]] < index, "a key had two holders that lived"
            held[key] = pid
            times[key].append(float(at[0]))
        elif held.get(key) == pid:
            del held[key]
    assert {"a", "b", "c", "d", "sone", "stwo"} <= times.keys()
    for found in times.values():
        assert len(found) <= 2 * RATE + RATE * (found[-1] - found[0]), "a key had more than its rate"
    with sej.open_queue(path, "limited", limit=sej.Limit("key")) as q:
        while items := q.get_many(100, timeout=1):
            q.done_many(items)
        assert tuple(q.stats().values())[:6] == (0, 0, 0, sej.Journal(path).end_offset, 0, 0)
        return q.stats().done


def _of(rows: list[list[str]], word: str) -> list[list[str]]:
    return [row for row in rows if row[0] == word]


def _count(path: Path, key: bytes) -> int:
    with sej.Scanner(path) as scanner:
        return sum(message.key.startswith(key) for message in scanner)


STOPPED = """
import os, signal, sys
from sej.queue.journal_queue import JournalQueue
q = JournalQueue(sys.argv[1], "worker")
q._core.log.guard.take()
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_process_that_is_stopped_inside_a_call_delays_others_until_it_is_killed(tmp_path: Path) -> None:
    with sej.open_queue(tmp_path, "worker") as q, ThreadPoolExecutor() as pool:
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
        item = take(q)
        found = subprocess.run([*unshare, sys.executable, "-c", there, q.path], check=True, capture_output=True)
        assert found.stdout == b"None Stats(ready=0, delayed=1, leased=1, done=0, dead=0, lost=0)\n"
        item.done()
