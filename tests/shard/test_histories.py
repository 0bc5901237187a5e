"""Random histories of workers that share a sharded journal, start, fail, stop and may die at any call of the disk.

After each history: at any time at most one worker had a shard. Its messages were delivered in order, and before the
next one began, each was handled or is a dead letter. No message below the kept offset was delivered again. A dead
letter has used all its attempts.
"""

import random
from pathlib import Path

import pytest

import sej
import shard
from tests.crash.harness import SHORT_S, Harness, dead_letters_in, seeded_random
from tests.crash.reader_history import ReaderHistory
from tests.shard.working import BITS, MAX_ATTEMPTS, NAME


class World(Harness):
    """A sharded journal, one journal of dead letters, and the workers."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        super().__init__(folder, dice)
        self.path = shard.Path(folder / "tree", "s", BITS)
        for index in range(self.path.count):
            sej.Writer(self.path.dir(index)).close()

    def command(self, process: str) -> list[str]:
        return ["tests.shard.working", str(self.path.root), process]


def history(folder: Path, seconds: float, processes: int) -> None:
    world = World(folder, seeded_random())
    world.run_processes(seconds, processes, lambda: "end" in {row[3] for row in world.lines()}, replacing=0.3)
    judge(world)


def judge(world: World) -> None:
    lines = sorted(world.lines(), key=lambda row: int(row[0]))
    left: list[list[int]] = [[] for _ in range(world.path.count)]
    dead = f"{world.path.root}-dead"
    worker = shard.Worker(world.path, NAME, max_attempts=MAX_ATTEMPTS, dead_letter=dead, timeout=0.0)
    worker.run(lambda index, message: left[index].append(message.offset))
    assert sum(row.messages for row in shard.lag(world.path, NAME)) == 0
    letters = dead_letters_in(dead)
    for index in range(world.path.count):
        journal = sej.Journal(world.path.dir(index))
        with sej.Writer(journal.path):
            pass  # cuts the torn tail of a process that died in the last write of all
        assert journal.verify() == []
        assert journal.id is not None
        mine = [letter for letter in letters if letter.source == journal.id.hex()]
        given_up = {letter.message.offset for letter in mine}
        rows = [row for row in lines if row[1] == str(index)]
        past = ReaderHistory({row[2] for row in rows if row[3] == "over"}, set(), given_up, exact=False)
        for _, _, claim, word, *about in rows:
            past.add(claim, word, *map(int, about))
        past.end(left[index], journal.end_offset)
        assert len(given_up) == len(mine), "two letters of one message"
        for letter in mine:
            assert past.used[letter.message.offset] >= MAX_ATTEMPTS, f"{letter} was given up early"
            assert letter.attempts == MAX_ATTEMPTS, letter


@pytest.mark.torture
def test_a_random_history(tmp_path: Path, torture_s: float) -> None:
    history(tmp_path, max(torture_s, SHORT_S), 3 if torture_s < SHORT_S else 5)
