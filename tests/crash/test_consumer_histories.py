"""Random histories of consumers that start, fail, stop and may die at any call of the disk.

After each history: at any time at most one process had a name. The messages were delivered in order, and before the
next one began, each was handled or is a dead letter. No message below the kept offset was delivered again. A dead
letter has used all its attempts, and each attempt is counted.
"""

import random
from pathlib import Path

import pytest

import sej
from tests.crash.consuming import MAX_ATTEMPTS, NAMES
from tests.crash.harness import SHORT_S, Harness, dead_letters_in, seeded_random
from tests.crash.reader_history import ReaderHistory


class World(Harness):
    """A journal, two names, one journal of dead letters, and the processes that use them."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        super().__init__(folder, dice)
        self.path = folder / "j"
        with sej.Writer(self.path):
            for name in NAMES:
                sej.Offset(self.path, name).close()

    def command(self, process: str) -> list[str]:
        return ["tests.crash.consuming", str(self.path), process]


def history(folder: Path, seconds: float, processes: int) -> None:
    world = World(folder, seeded_random())
    world.run_processes(seconds, processes, lambda: "end" in {row[3] for row in world.lines()}, replacing=0.3)
    judge(world)


def drained(world: World, name: str) -> list[int]:
    found: list[int] = []
    consumer = sej.Consumer(world.path, name, max_attempts=MAX_ATTEMPTS, dead_letter=f"{world.path}-dead", timeout=0.0)
    consumer.run(lambda message: found.append(message.offset))
    return found


def judge(world: World) -> None:
    lines = sorted(world.lines(), key=lambda row: int(row[0]))
    left = {name: drained(world, name) for name in NAMES}
    journal = sej.Journal(world.path)
    with sej.Writer(world.path):
        pass  # cuts the torn tail of a process that died in the last write of all
    assert journal.verify() == []
    letters = dead_letters_in(f"{world.path}-dead")
    for name in NAMES:
        rows = [row for row in lines if row[1] == name]
        mine = [letter for letter in letters if letter.reader == name]
        dead = {letter.message.offset for letter in mine}
        ended, stopped = ({row[2] for row in rows if row[3] == word} for word in ("over", "stop"))
        past = ReaderHistory(ended, stopped, dead)
        for _, _, run, word, *about in rows:
            past.add(run, word, *map(int, about))
        past.end(left[name], journal.end_offset)
        assert len(dead) == len(mine), "two letters of one message"
        for letter in mine:
            assert past.used[letter.message.offset] >= MAX_ATTEMPTS, f"{letter} was given up early"
            assert letter.attempts == MAX_ATTEMPTS, letter


@pytest.mark.torture
def test_a_random_history(tmp_path: Path, torture_s: float) -> None:
    history(tmp_path, max(torture_s, SHORT_S), 3 if torture_s < SHORT_S else 4)
