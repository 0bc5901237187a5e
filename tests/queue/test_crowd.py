"""Random histories of two queues on one journal, with all their faces, and of those who read beside them.

Processes put plainly, with delays, bands, expiries and dedupe keys, through the adapters and asyncio; they get, end,
give up, put back and purge; and retention, a consumer and a reader by the original's rules share the directory. They
die at any call of the disk. Whatever happened: a message is there once, and once more for each time that it was put
back; each queue has done it, has it still, or has given it up; and no holder loses what he holds.
"""

import random
from collections import Counter
from pathlib import Path

import pytest

import sej
from sej.queue.journal_queue import JournalQueue
from tests.crash.herd import Herd, chance, letters_in
from tests.queue.crowd import NAMES, OUTSIDE, PURGED, outside


class World(Herd):
    """A journal, its queues, and the processes at them."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        super().__init__(folder, dice)
        self.path = folder / "q"
        with sej.Writer(self.path), sej.Offset(self.path, OUTSIDE):
            pass

    def words(self, who: str) -> list[str]:
        return ["tests.queue.crowd", str(self.path), who]


def history(world: World, seconds: float, processes: int) -> dict[int, str]:
    """Let them be at work, and judge; returns what stands in the journal."""
    world.live(seconds, processes, lambda: {"put", "done"} <= {row[1] for row in world.lines()})
    return judge(world)


def drained(world: World) -> dict[str, Counter[int]]:
    """What each queue still has: what was given up is put back, and each gets what another one put back."""
    left: dict[str, Counter[int]] = {name: Counter() for name in NAMES}
    back = 1
    while back:
        back = 0
        for name in NAMES:
            with JournalQueue(world.path, name, create=True, max_attempts=10**4, dead_letter=f"{world.path}-dead") as q:
                assert q.recovered is None
                while sum(q.stats()[:3]):
                    items = q.get_many(1000, timeout=1.0)
                    left[name].update(item.message.offset for item in items)
                    q.done_many(items)
                back += q.redrive()
                assert (q.stats().dead, q.stats().lost) == (0, 0)
    for name in NAMES:
        with JournalQueue(world.path, name, create=True, dead_letter=f"{world.path}-dead") as q:
            assert sum(q.stats()[:3]) == 0
    return left


def judge(world: World) -> dict[int, str]:
    stands: dict[int, str] = {}
    lines = sorted(world.lines(), key=lambda row: int(row[0]))
    for _, word, *about in lines:
        if word == "stands":
            assert stands.setdefault(int(about[1]), about[0]) == about[0], f"{about} was another message before"
    left = drained(world)
    outside(world.path, OUTSIDE, 2**63, lambda offset, value: stands.update({offset: value}))
    assert sorted(stands) == list(range(sej.Journal(world.path).end_offset))
    with sej.Writer(world.path):
        pass  # cuts the torn tail of a process that died in the last write of all
    assert sej.Journal(world.path).verify() == []
    letters = letters_in(f"{world.path}-dead")
    origins = [(letter.reader, letter.message.offset) for letter in letters]
    assert len(set(origins)) == len(origins), "two letters of one item"
    put: dict[str, int | None] = {about[1]: None for _, word, *about in lines if word == "added"}
    for _, word, *about in lines:
        if word == "put":
            assert put.setdefault(about[1], int(about[2])) == int(about[2]), f"{about} has two offsets"
            assert stands[int(about[2])] == about[1], f"{about} was acknowledged, and is not there"
    there = Counter(stands.values())
    back = Counter(letter.message.value.decode() for letter in letters)
    for value in there | back:
        assert there[value] - back[value] in ((1,) if value in put else (0, 1)), f"{value}: {there[value]}"
    for name in NAMES:
        judge_queue(name, lines, stands, left[name], {offset for reader, offset in origins if reader == name})
    return stands


def judge_queue(name: str, lines: list[list[str]], stands: dict[int, str], left: Counter[int], dead: set[int]) -> None:
    done: set[int] = set()
    doubt: set[int] = set()
    purging = Counter(row[1] for row in lines if row[2] == name)
    purged = 2**63 if purging["purging"] > purging["purged"] else 0  # who died at it may have done it
    for _, word, *about in lines:
        if not about or about[0] != name:
            continue
        if word == "got":
            assert int(about[1]) not in done, f"{about[1]} came back after it was done"
        elif word == "ending":
            doubt.add(int(about[1]))
        elif word == "done":
            assert int(about[1]) not in done, f"{about[1]} was done twice"
            done.add(int(about[1]))
        elif word == "purged":
            purged = max(purged, int(about[1]))
    assert max(left.values(), default=1) == 1, "doubled"
    assert not done & set(left), "what was done is still there"
    assert not dead & set(left), "what was given up is still there"
    assert not done & dead, "done and given up"
    missing = set(stands) - done - doubt - dead - set(left)
    missing = {offset for offset in missing if not stands[offset].startswith(f"e{name}")}
    if name == PURGED:
        missing = {offset for offset in missing if offset >= purged}
    assert not missing, f"{name} lost {[(offset, stands[offset]) for offset in sorted(missing)]}"


def test_a_random_history(tmp_path: Path) -> None:
    history(World(tmp_path, chance()), 2.0, 3)


@pytest.mark.torture
def test_a_long_random_history(tmp_path: Path, torture_s: float) -> None:
    history(World(tmp_path, chance()), torture_s, 5)
