"""Random histories of consumers that start, fail, stop and may die at any call of the disk.

After each history: at any time at most one process had a name. The messages were delivered in order, and before the
next one began, each was handled or is a dead letter. No message below the kept offset was delivered again. A dead
letter has used all its attempts, and each attempt is counted.
"""

from pathlib import Path

import pytest

import sej
from tests.crash.consuming import MAX_ATTEMPTS, NAMES
from tests.crash.harness import Harness, dead_letters_in, require_sound, seeded_random
from tests.crash.reader_history import ReaderHistory


def drained(path: Path, name: str) -> list[int]:
    found: list[int] = []
    consumer = sej.Consumer(path, name, max_attempts=MAX_ATTEMPTS, dead_letter=f"{path}-dead", timeout=0.0)
    consumer.run(lambda message: found.append(message.offset))
    return found


@pytest.mark.torture
def test_a_random_history(tmp_path: Path, torture_s: float) -> None:
    path = tmp_path / "j"
    with sej.Writer(path):
        for name in NAMES:
            sej.Offset(path, name).close()
    world = Harness(tmp_path, seeded_random(), "tests.crash.consuming", path)
    world.run_processes(torture_s, 4, lambda: "end" in {row[3] for row in world.lines()}, replacing=0.3)
    lines = sorted(world.lines(), key=lambda row: int(row[0]))
    left = {name: drained(path, name) for name in NAMES}
    require_sound(path)
    letters = dead_letters_in(f"{path}-dead")
    for name in NAMES:
        rows = [row for row in lines if row[1] == name]
        ended, stopped = ({row[2] for row in rows if row[3] == word} for word in ("over", "stop"))
        mine = [letter for letter in letters if letter.reader == name]
        past = ReaderHistory(ended, stopped, mine, MAX_ATTEMPTS)
        for _, _, run, word, *about in rows:
            past.add(run, word, *map(int, about))
        past.end(left[name], sej.Journal(path).end_offset)
