"""Processes that do things at random until they are killed or die by themselves, and are replaced."""

import functools
import os
import random
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

import sej
from tests.forking import Forkserver, Program

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = [
    *("tests.crash.chaos", "tests.crash.consuming", "tests.queue.chaos", "tests.queue.crowd", "tests.queue.worker"),
    "tests.shard.working",
]


@functools.cache
def _forkserver() -> Forkserver:
    """One for all tests of a run: a process that is killed every moment must not spend its life on imports."""
    return Forkserver(*PROGRAMS, env={**os.environ, "PYTHONPATH": str(ROOT)})


def fork(words: list[str], said: Path) -> Program:
    """Start ``python -m WORDS``; what it says goes to a file, so that nothing it said is lost with it."""
    with said.open("wb") as out, open(os.devnull) as nothing:
        return _forkserver().start(words, [nothing.fileno(), out.fileno(), 2])


def chance() -> random.Random:
    """Dice for one history; SEJ_SEED throws as they were thrown before."""
    seed = int(os.environ.get("SEJ_SEED") or random.randrange(2**32))
    print(f"SEJ_SEED={seed}")
    return random.Random(seed)


def letters_in(path: str) -> list[sej.DeadLetter]:
    """The dead letters there; none where nothing was given up yet."""
    try:
        return list(sej.dead_letters(path))
    except sej.JournalNotFoundError:
        return []


class Herd(ABC):
    """Those who are alive, and what each of them has said. None may fail: a signal is the only end."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self.dice = dice
        self.said = folder / "said"
        self.said.mkdir()
        self.alive: list[Program] = []
        self.started = 0

    @abstractmethod
    def words(self, who: str) -> list[str]:
        """The module that one of them runs, and its arguments."""

    def start(self) -> None:
        who = f"w{self.started}"
        self.started += 1
        self.alive.append(fork([*self.words(who), str(self.dice.randrange(2**32))], self.said / who))

    def kill(self, child: Program) -> None:
        child.kill()
        assert child.wait(30) < 0, "it failed"
        self.alive.remove(child)

    def replace(self) -> None:
        self.kill(self.dice.choice(self.alive))
        self.start()

    def wait(self) -> None:
        """Let some time go by; who died at the disk meanwhile is replaced."""
        with suppress(subprocess.TimeoutExpired):
            self.alive[0].wait(self.dice.uniform(0.05, 0.4))
        for child in [child for child in self.alive if child.poll() is not None]:
            self.kill(child)
            self.start()

    def live(self, seconds: float, processes: int, enough: Callable[[], bool], *, replacing: float = 0.5) -> None:
        """Let so many be at work for so long, and until they have done enough; none is alive at the end.

        Each time that somebody looks, one of them is replaced with that probability.
        """
        with self:
            for _ in range(processes):
                self.start()
            end = time.monotonic() + seconds
            while time.monotonic() < end or not enough():
                self.wait()
                if self.dice.random() < replacing:
                    self.replace()

    def lines(self) -> list[list[str]]:
        """What was said; the last line of who was killed may be half there."""
        found = []
        for path in self.said.iterdir():
            text = path.read_text()
            found += [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Kill whoever is there; that one of them had failed is not passed over."""
        for child in list(self.alive):
            if kind is None:
                self.kill(child)
            else:
                child.kill()
                child.wait(30)
