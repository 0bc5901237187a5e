"""Random histories of processes that use every operation of one journal and may die at any call of the disk.

After each history: every acknowledged message is in the journal once, at its acknowledged offset. A batch is there as a
whole or not at all. The journal is sound.
"""

from pathlib import Path

import pytest

import sej
from tests.crash.consuming import MAX_ATTEMPTS, NAMES
from tests.crash.harness import Harness, dead_letters_in, require_sound, seeded_random
from tests.crash.reader_history import ReaderHistory


def judge(path: Path, lines: list[list[str]]) -> None:
    found: dict[int, str] = {}
    for word, *about in lines:
        if word == "seen":
            offset, name = int(about[0]), about[1]
            assert found.setdefault(offset, name) == name, f"message {offset} was another one before"
    with sej.Writer(path), sej.Offset(path, "reader") as kept:
        assert set(range(kept.value)) <= set(found), "the kept offset is above a message that the reader has not seen"
    journal = sej.Journal(path)
    assert journal.first_offset <= kept.value, "retention deleted a message that the reader had not seen"
    assert journal.verify() == []
    with sej.Scanner(path, timeout=0, verify=True) as s:
        for message in s:
            name = message.value.split()[0].decode()
            assert found.setdefault(message.offset, name) == name, f"message {message.offset} was another one before"
        assert not s.gaps
    assert sorted(found) == list(range(journal.end_offset))
    names = [found[offset] for offset in range(journal.end_offset)]
    assert len(set(names)) == len(names), "a message is there twice"
    for word, *about in lines:
        if word == "put":
            assert found.get(int(about[0])) == about[1], f"message {about[0]} was acknowledged"
    batches = [tuple(map(int, name.split("-")[1:])) for name in names if name.startswith("p-")]
    assert batches == sorted(batches), "batches are in order"
    assert sorted({number for number, _ in batches}) == list(range(1, 1 + len({number for number, _ in batches})))


@pytest.mark.torture
def test_a_random_history(tmp_path: Path, torture_s: float) -> None:
    path = tmp_path / "j"
    with sej.Writer(path), sej.Offset(path, "reader"):
        pass
    world = Harness(tmp_path, seeded_random(), "tests.crash.chaos", path)
    world.run_processes(torture_s, 5, lambda: {"put", "seen"} <= {row[0] for row in world.lines()})
    judge(path, world.lines())


# --- consumers that start, fail, stop and may die at any call of the disk


def drained(path: Path, name: str) -> list[int]:
    found: list[int] = []
    consumer = sej.Consumer(path, name, max_attempts=MAX_ATTEMPTS, dead_letter=f"{path}-dead", timeout=0.0)
    consumer.run(lambda message: found.append(message.offset))
    return found


@pytest.mark.torture
def test_a_random_history_of_consumers(tmp_path: Path, torture_s: float) -> None:
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
