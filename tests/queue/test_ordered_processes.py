"""Processes that work off an ordered queue while others are killed: no inversion within a key, and nothing is lost."""

import random
import signal
from functools import partial
from pathlib import Path

import pytest

import sej
from tests.crash.harness import fork, seeded_random
from tests.forking import Program
from tests.sej.hooks import until

KEYS = 7


def worked(q: sej.WorkQueue, goal: int) -> bool:
    return q.stats().done >= goal


def history(path: Path, count: int, dice: random.Random) -> None:
    report = path / "report"
    report.touch()
    keys = [b"k%d" % dice.randrange(KEYS) for _ in range(count)]
    with sej.open_queue(path / "q", "worker", order="key") as q:
        q.put_many([b"%d" % n for n in range(count)], keys)
        outputs = iter(range(10**6))

        def start() -> Program:
            return fork(["tests.queue.ordered_worker", str(path / "q"), str(report)], path / f"out{next(outputs)}")

        workers = [start() for _ in range(3)]
        kills = count // 60
        for n in range(1, kills + 1):
            goal = n * count // (kills + 1)
            until(partial(worked, q, goal))
            victim = workers.pop(dice.randrange(len(workers)))
            victim.send_signal(signal.SIGKILL)
            assert victim.wait(30) == -signal.SIGKILL
            workers.append(start())
        until(lambda: q.stats().done == count)
        for worker in workers:
            worker.kill()
            worker.wait()
    ended: dict[str, int] = {}
    begun: dict[str, int] = {}
    for line in report.read_text().splitlines():
        what, key, number = line.split()
        if what == "begin":
            assert int(number) > ended.get(key, -1) or int(number) == begun[key], f"{line}: an earlier item of its key"
            assert begun.get(key, -1) in (-1, int(number), ended.get(key)), f"{line}: {begun[key]} has not ended"
            begun[key] = int(number)
        else:
            assert begun[key] == int(number), f"{line}: {begun[key]} was begun meanwhile"
            ended[key] = int(number)
    assert ended == {key.decode(): max(n for n, other in enumerate(keys) if other == key) for key in keys}


@pytest.mark.torture
def test_no_inversion_within_a_key_though_workers_are_killed(tmp_path: Path, torture_s: float) -> None:
    history(tmp_path, 300 if torture_s < 10 else int(torture_s) * 200, seeded_random())
