"""Random histories of workers that share the shards of a tree, come and go, fail, stop and die at any call of the disk.

Whatever happened: one at a time has a shard; its messages come in order, each is handled or among the dead letters
before one behind it is begun; what is kept does not come back; and a dead letter has used its attempts.
"""

import random
from pathlib import Path

import pytest

import sej
import shard
from tests.crash.herd import Herd, chance, letters_in
from tests.crash.past import Past
from tests.shard.working import BITS, MAX_ATTEMPTS, NAME


class World(Herd):
    """A tree, one journal of dead letters, and the workers."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        super().__init__(folder, dice)
        self.path = shard.Path(folder / "tree", "s", BITS)
        for index in range(self.path.count):
            sej.Writer(self.path.dir(index)).close()

    def words(self, who: str) -> list[str]:
        return ["tests.shard.working", str(self.path.root), who]


def history(folder: Path, seconds: float, processes: int) -> None:
    world = World(folder, chance())
    world.live(seconds, processes, lambda: "end" in {row[3] for row in world.lines()}, replacing=0.3)
    judge(world)


def judge(world: World) -> None:
    lines = sorted(world.lines(), key=lambda row: int(row[0]))
    left: list[list[int]] = [[] for _ in range(world.path.count)]
    dead = f"{world.path.root}-dead"
    worker = shard.Worker(world.path, NAME, max_attempts=MAX_ATTEMPTS, dead_letter=dead, timeout=0.0)
    worker.run(lambda index, message: left[index].append(message.offset))
    assert sum(row.messages for row in shard.lag(world.path, NAME)) == 0
    letters = letters_in(dead)
    for index in range(world.path.count):
        journal = sej.Journal(world.path.dir(index))
        assert journal.verify() == []
        assert journal.id is not None
        mine = [letter for letter in letters if letter.source == journal.id.hex()]
        buried = {letter.message.offset for letter in mine}
        rows = [row for row in lines if row[1] == str(index)]
        past = Past({row[2] for row in rows if row[3] == "over"}, set(), buried, sure=False)
        for _, _, claim, word, *about in rows:
            past.tell(claim, word, *map(int, about))
        past.end(left[index], journal.end_offset)
        assert len(buried) == len(mine), "two letters of one message"
        for letter in mine:
            assert past.used[letter.message.offset] >= MAX_ATTEMPTS, f"{letter} was given up early"
            assert letter.attempts == MAX_ATTEMPTS, letter


def test_a_random_history(tmp_path: Path) -> None:
    history(tmp_path, 2.0, 3)


@pytest.mark.torture
def test_a_long_random_history(tmp_path: Path, torture_s: float) -> None:
    history(tmp_path, torture_s, 5)
