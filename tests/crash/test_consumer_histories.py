"""Random histories of consumers that come and go, fail, stop and die at any call of the disk.

Whatever happened: one at a time has a name; each message comes in order, and before any behind it is begun it was
handled or is among the dead letters; what is kept does not come back; and a dead letter has used its attempts, each of
which is counted.
"""

import random
import time
from collections import Counter
from pathlib import Path

import pytest

import sej
from tests.crash.consuming import MAX_ATTEMPTS, NAMES
from tests.crash.herd import Herd, chance


class World(Herd):
    """A journal, two names, one journal of dead letters, and the processes at them."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        super().__init__(folder, dice)
        self.path = folder / "j"
        with sej.Writer(self.path):
            for name in NAMES:
                sej.Offset(self.path, name).close()

    def words(self, who: str) -> list[str]:
        return ["tests.crash.consuming", str(self.path), who]


def history(folder: Path, seconds: float, processes: int) -> None:
    with World(folder, chance()) as world:
        for _ in range(processes):
            world.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end or "end" not in {row[3] for row in world.lines()}:
            world.wait()
            if world.dice.random() < 0.3:
                world.replace()
    judge(world)


class Past:
    """What was said of one name, told in the order of time."""

    def __init__(self, ended: set[str], buried: set[int]) -> None:
        """ended: runs that may have left in order; buried: the dead letters."""
        self.ended = ended
        self.buried = buried
        self.done: set[int] = set()
        self.kept = 0
        self.run = ""
        self.over: set[str] = set()
        self.in_hand: tuple[int, int] | None = None
        self.reached = 0
        self.noted: Counter[int] = Counter()
        self.tried: Counter[int] = Counter()
        self.failed: Counter[int] = Counter()
        self.used: Counter[int] = Counter()
        self.note = -1

    def tell(self, run: str, word: str, *about: int) -> None:
        if word == "kept":
            self.keep(about[0])
            return
        if word == "over":  # said when somebody else may have the name
            self.keep(about[0])
            return
        if run != self.run:
            self.leave()
            assert run not in self.over, "two had one name at once"
            self.over.add(run)
            self.run = run
        getattr(self, f"_{word}")(*about)

    def keep(self, offset: int) -> None:
        missing = [n for n in range(self.kept, offset) if n not in self.done and n not in self.buried]
        assert not missing, f"{missing} were passed over"
        self.kept = max(self.kept, offset)

    def leave(self) -> None:
        """Whoever had the name is gone."""
        if self.run in self.ended:
            self.tried.clear()
        elif self.note >= 0:
            self.noted[self.note] += 1
            self.used[self.note] = max(self.used[self.note], self.noted[self.note])
        self.failed.clear()
        self.in_hand = None
        self.note = -1

    def _note(self, offset: int, attempts: int) -> None:
        if offset >= 0:
            self.note = offset
            assert self.tried[offset] < attempts <= self.noted[offset] + 1, f"attempts at {offset} are {attempts}"

    def _begin(self, first: int, last: int) -> None:
        assert self.in_hand is None, "one after another"
        assert first >= self.kept, f"{first} came back behind {self.kept}"
        while self.reached in self.done or self.reached in self.buried:
            self.reached += 1
        assert first <= self.reached, f"{first} came before {self.reached}"
        self.in_hand = first, last
        if self.note == first and not self.failed[first]:
            self.tried[first] += 1

    def _fail(self, first: int, last: int) -> None:
        assert self.in_hand == (first, last)
        self.in_hand = None
        if first == last:
            self.failed[first] += 1
            self.used[first] = max(self.used[first], self.noted[first] + self.failed[first])

    def _end(self, first: int, last: int) -> None:
        assert self.in_hand == (first, last)
        self.in_hand = None
        self.done.update(range(first, last + 1))

    def _stop(self) -> None:
        pass


def drained(world: World, name: str) -> list[int]:
    found: list[int] = []
    consumer = sej.Consumer(world.path, name, max_attempts=MAX_ATTEMPTS, dead_letter=f"{world.path}-dead", timeout=0.0)
    consumer.run(lambda message: found.append(message.offset))
    return found


def judge(world: World) -> None:
    lines = sorted(world.lines(), key=lambda row: int(row[0]))
    left = {name: drained(world, name) for name in NAMES}
    journal = sej.Journal(world.path)
    assert journal.verify() == []
    letters = list(sej.dead_letters(f"{world.path}-dead"))
    for name in NAMES:
        rows = [row for row in lines if row[1] == name]
        mine = [letter for letter in letters if letter.reader == name]
        buried = {letter.message.offset for letter in mine}
        past = Past({row[2] for row in rows if row[3] in ("over", "stop")}, buried)
        for _, _, run, word, *about in rows:
            past.tell(run, word, *map(int, about))
        past.leave()
        assert past.kept <= min(left[name], default=past.kept), "what is kept came back"
        past.done.update(left[name])
        past.keep(journal.end_offset)
        assert left[name] == sorted(left[name])
        assert len(buried) == len(mine), "two letters of one message"
        for letter in mine:
            assert past.used[letter.message.offset] >= MAX_ATTEMPTS, f"{letter} was given up early"
            assert letter.attempts == MAX_ATTEMPTS, letter


def test_a_random_history(tmp_path: Path) -> None:
    history(tmp_path, 2.0, 3)


@pytest.mark.torture
def test_a_long_random_history(tmp_path: Path, torture_s: float) -> None:
    history(tmp_path, torture_s, 4)
