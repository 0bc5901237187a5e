"""Random histories of processes that write, read, publish, retain, merge and look at one journal, and die anywhere.

Whatever happened: each message that was acknowledged stands once, where it was said to stand; a batch stands whole or
not at all; and what is left is sound.
"""

import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import sej

ROOT = Path(__file__).parent.parent.parent


class World:
    """A journal and the processes at it."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self.dice = dice
        self.path, self.said = folder / "j", folder / "said"
        self.said.mkdir()
        self.alive: list[subprocess.Popen[bytes]] = []
        self.started = 0
        with sej.Writer(self.path), sej.Offset(self.path, "reader"):
            pass

    def start(self) -> None:
        who = f"w{self.started}"
        self.started += 1
        words = [str(self.path), who, str(self.dice.randrange(2**32))]
        with (self.said / who).open("wb") as out:
            self.alive.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.crash.chaos", *words],
                    cwd=ROOT,
                    stdout=out,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                )
            )

    def kill(self, child: subprocess.Popen[bytes]) -> None:
        child.kill()
        assert child.wait(30) < 0, "it failed"
        self.alive.remove(child)

    def stop(self) -> None:
        """Kill whoever is there."""
        for child in self.alive:
            child.kill()
        for child in self.alive:
            child.wait(30)

    def wait(self) -> None:
        """Let some time go by; who died at the disk meanwhile is replaced."""
        with suppress(subprocess.TimeoutExpired):
            self.alive[0].wait(self.dice.uniform(0.05, 0.4))
        for child in [child for child in self.alive if child.poll() is not None]:
            self.kill(child)
            self.start()

    def lines(self) -> list[list[str]]:
        """What was said; the last line of who was killed may be half there."""
        found = []
        for path in self.said.iterdir():
            text = path.read_text()
            found += [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
        return found


def history(folder: Path, seconds: float, processes: int) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    world = World(folder, random.Random(seed))
    try:
        for _ in range(processes):
            world.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end or not {"put", "seen"} <= {row[0] for row in world.lines()}:
            world.wait()
            if world.dice.random() < 0.5:
                world.kill(world.dice.choice(world.alive))
                world.start()
    finally:
        world.stop()
    judge(world)


def judge(world: World) -> None:
    stands: dict[int, str] = {}
    lines = world.lines()
    for word, *about in lines:
        if word == "seen":
            offset, name = int(about[0]), about[1]
            assert stands.setdefault(offset, name) == name, f"message {offset} was another one before"
    with sej.Writer(world.path), sej.Offset(world.path, "reader") as kept:
        assert set(range(kept.value)) <= set(stands), "the reader kept an offset behind what it has seen"
    journal = sej.Journal(world.path)
    assert journal.first_offset <= kept.value, "retention took what the reader had not seen"
    assert journal.verify() == []
    with sej.Scanner(world.path, timeout=0, verify=True) as s:
        for message in s:
            name = message.value.split()[0].decode()
            assert stands.setdefault(message.offset, name) == name, f"message {message.offset} was another one before"
        assert not s.gaps
    assert sorted(stands) == list(range(journal.end_offset))
    names = [stands[offset] for offset in range(journal.end_offset)]
    assert len(set(names)) == len(names), "a message stands twice"
    for word, *about in lines:
        if word == "put":
            assert stands.get(int(about[0])) == about[1], f"message {about[0]} was acknowledged"
    there = set(names)
    for word, *about in lines:
        if word == "whole":
            who, _, number = about[0].partition("-")
            parts = [f"{who}-{int(number) + part}" in there for part in range(int(about[1]))]
            assert all(parts) or not any(parts), f"{about[0]} was published in part"
    batches = [tuple(map(int, name.split("-")[1:])) for name in names if name.startswith("p-")]
    assert batches == sorted(batches), "batches are in order"
    assert sorted({number for number, _ in batches}) == list(range(1, 1 + len({number for number, _ in batches})))


def test_a_random_history(tmp_path: Path) -> None:
    history(tmp_path, 2.0, 3)


@pytest.mark.torture
def test_a_long_random_history(tmp_path: Path, torture_s: float) -> None:
    history(tmp_path, torture_s, 5)
