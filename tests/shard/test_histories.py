"""Random histories of workers that share a sharded journal, start, fail, stop and may die at any call of the disk.

After each history: at any time at most one worker had a shard. Its messages were delivered in order, and before the
next one began, each was handled or is a dead letter. No message below the kept offset was delivered again. A dead
letter has used all its attempts.
"""

from pathlib import Path

import pytest

import sej
import shard
from tests.crash.harness import Harness, dead_letters_in, require_sound, seeded_random
from tests.crash.reader_history import ReaderHistory
from tests.shard.working import BITS, MAX_ATTEMPTS, NAME


@pytest.mark.torture
def test_a_random_history(tmp_path: Path, torture_s: float) -> None:
    path = shard.Path(tmp_path / "tree", "s", BITS)
    for directory in path.dirs():
        sej.Writer(directory).close()
    world = Harness(tmp_path, seeded_random(), "tests.shard.working", path.root)
    world.run_processes(torture_s, 5, lambda: "end" in {row[3] for row in world.lines()}, replacing=0.3)
    lines = sorted(world.lines(), key=lambda row: int(row[0]))
    left: list[list[int]] = [[] for _ in range(path.count)]
    dead = f"{path.root}-dead"
    worker = shard.Worker(path, NAME, max_attempts=MAX_ATTEMPTS, dead_letter=dead, timeout=0.0)
    worker.run(lambda index, message: left[index].append(message.offset))
    assert sum(row.messages for row in shard.lag(path, NAME)) == 0
    letters = dead_letters_in(dead)
    for index, directory in enumerate(path.dirs()):
        require_sound(directory)
        journal = sej.Journal(directory)
        assert journal.id is not None
        mine = [letter for letter in letters if letter.source == journal.id.hex()]
        rows = [row for row in lines if row[1] == str(index)]
        past = ReaderHistory({row[2] for row in rows if row[3] == "over"}, set(), mine, MAX_ATTEMPTS, exact=False)
        for _, _, claim, word, *about in rows:
            past.add(claim, word, *map(int, about))
        past.end(left[index], journal.end_offset)
