"""Random histories of many processes that are killed, with clocks that jump and machines that reboot.

After each history: every acknowledged item is done or is still in the queue, once. None is lost, duplicated or stuck.
"""

import random
import time
from collections import Counter
from pathlib import Path

import pytest

import sej
from sej.queue.journal_queue import JournalQueue
from tests.crash.harness import SHORT_S, Harness, seeded_random
from tests.queue.chaos import CLOCKS, SharedClock, name_of
from tests.queue.support import NS


class World(Harness):
    """A queue, its clocks, and the processes that use it."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        super().__init__(folder, dice)
        self.path, self.clock = folder / "q", folder / "clock"
        self.ahead, self.wall, self.boot = 0, 10**18, 1
        self.clock.write_bytes(bytes(CLOCKS.size))
        self.set_clock()

    def command(self, process: str) -> list[str]:
        return ["tests.queue.chaos", str(self.path), str(self.clock), process]

    def set_clock(self) -> None:
        with self.clock.open("r+b") as file:
            file.write(CLOCKS.pack(self.ahead, self.wall, self.boot))

    def pass_time(self) -> None:
        self.ahead += self.dice.choice([1, 5, 25]) * NS
        self.set_clock()

    def set_wall_clock(self) -> None:
        self.wall += self.dice.choice([-1, 1]) * self.dice.choice([10, 10**4, 10**7]) * NS
        self.set_clock()

    def reboot(self) -> None:
        count = len(self.running)
        for child in list(self.running):
            self.kill(child)
        self.ahead = NS - time.monotonic_ns()
        self.boot += 1
        self.set_wall_clock()
        for _ in range(count):
            self.start()

    def events(self) -> list[list[str]]:
        """Return the reports of all processes, in the order of time."""
        return sorted(self.lines(), key=lambda row: int(row[0]))


def history(folder: Path, seconds: float, processes: int) -> None:
    with World(folder, seeded_random()) as world:
        acts = [world.replace] * 4 + [world.pass_time] * 3 + [world.set_wall_clock] * 2 + [world.reboot]
        for _ in range(processes):
            world.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end or not {"put", "done"} <= {row[1] for row in world.events()}:
            world.wait()
            world.dice.choice(acts)()
    judge(world)


def judge(world: World) -> None:
    put: set[str] = set()
    done: Counter[str] = Counter()
    ended: dict[
        str, tuple[int, int]
    ] = {}  # offset and attempts of the last delivery; earlier ones may be reported late
    hands: Counter[tuple[str, ...]] = Counter()
    doubt: set[tuple[str, ...]] = set()
    for _, word, *about in world.events():
        if word == "put":
            put.add(about[0])
        elif word == "got":
            hand = int(about[1]), int(about[2])
            assert hand < ended.get(about[0], (2**63, 0)), f"{about} was delivered again after it was done"
            hands[tuple(about)] += 1
        elif word == "ending":
            doubt.add(tuple(about))
        else:
            doubt.discard(tuple(about))
            if word == "done":
                done[about[0]] += 1
                ended[about[0]] = int(about[1]), int(about[2])
    assert put
    assert max(hands.values()) == 1, "one attempt was delivered twice"
    assert max(done.values()) == 1, "done twice"
    with JournalQueue(world.path, "worker", clock=SharedClock(world.clock), max_attempts=10**4) as q:
        assert q.recovered is None
        world.ahead += 1000 * NS
        world.set_clock()
        before = q.stats()
        left = drained(q)
        stats = q.stats()
        assert stats.ready == stats.delayed == stats.leased == stats.lost == 0
        assert sum(left.values()) + stats.dead - before.dead == before.ready + before.delayed + before.leased
        assert q.redrive() == stats.dead
        left += drained(q)
    assert not [name for name in left if name in done], "what was done is still there"
    assert not [name for name, count in left.items() if count > 1], "doubled"
    in_doubt = {name for name, *_ in doubt}
    assert not [name for name in put if name not in done and name not in left and name not in in_doubt], "lost"
    with sej.Writer(world.path):
        pass  # cuts the torn tail of a process that died in the last write of all
    assert sej.Journal(world.path).verify() == []


def drained(q: JournalQueue) -> Counter[str]:
    found: Counter[str] = Counter()
    while items := q.get_many(1000, timeout=0):
        found.update(name_of(item) for item in items)
        q.done_many(items)
    return found


@pytest.mark.torture
def test_a_random_history(tmp_path: Path, torture_s: float) -> None:
    history(tmp_path, max(torture_s, SHORT_S), 3 if torture_s < SHORT_S else 5)
