"""Random histories of two queues on one journal, with every interface, and of other readers of the journal.

Processes put with and without delays, priorities, expiries and dedupe keys, also through the adapters and asyncio. They
get, end, give up, redrive and purge. Retention, a consumer and a reader like the original's share the directory. They
may die at any call of the disk.

After each history: a message is in the journal once, and once more for each redrive. Each queue has done it, still has
it, or has given it up. No holder lost its items.
"""

import random
from collections import Counter
from pathlib import Path

import pytest

import sej
from sej.queue.journal_queue import JournalQueue
from tests.crash.harness import SHORT_S, Harness, dead_letters_in, seeded_random
from tests.queue.workload import NAMES, OUTSIDE, PURGED, outside


class World(Harness):
    """A journal, its queues, and the processes that use them."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        super().__init__(folder, dice)
        self.path = folder / "q"
        with sej.Writer(self.path), sej.Offset(self.path, OUTSIDE):
            pass

    def command(self, process: str) -> list[str]:
        return ["tests.queue.workload", str(self.path), process]


def history(world: World, seconds: float, processes: int) -> dict[int, str]:
    """Run processes and judge what they left; return the offset and the value of each message."""
    world.run_processes(seconds, processes, lambda: {"put", "done"} <= {row[1] for row in world.lines()})
    return judge(world)


def drained(world: World) -> dict[str, Counter[int]]:
    """Return the items that each queue still has. Dead letters are redriven, which both queues get."""
    left: dict[str, Counter[int]] = {name: Counter() for name in NAMES}
    back = 1
    while back:
        back = 0
        for name in NAMES:
            with JournalQueue(world.path, name, create=True, max_attempts=10**4, dead_letter=f"{world.path}-dead") as q:
                assert q.recovered is None
                while sum(tuple(q.stats().values())[:3]):
                    items = q.get_many(1000, timeout=1.0)
                    left[name].update(item.message.offset for item in items)
                    q.done_many(items)
                back += q.redrive()
                assert (q.stats().dead, q.stats().lost) == (0, 0)
    for name in NAMES:
        with JournalQueue(world.path, name, create=True, dead_letter=f"{world.path}-dead") as q:
            assert sum(tuple(q.stats().values())[:3]) == 0
    return left


def judge(world: World) -> dict[int, str]:
    found: dict[int, str] = {}
    lines = sorted(world.lines(), key=lambda row: int(row[0]))
    for _, word, *about in lines:
        if word == "found":
            assert found.setdefault(int(about[1]), about[0]) == about[0], f"{about} was another message before"
    left = drained(world)
    outside(world.path, OUTSIDE, 2**63, lambda offset, value: found.update({offset: value}))
    assert sorted(found) == list(range(sej.Journal(world.path).end_offset))
    with sej.Writer(world.path):
        pass  # cuts the torn tail of a process that died in the last write
    assert sej.Journal(world.path).verify() == []
    letters = dead_letters_in(f"{world.path}-dead")
    origins = [(letter.reader, letter.message.offset) for letter in letters]
    assert len(set(origins)) == len(origins), "two letters of one item"
    put: dict[str, int | None] = {about[1]: None for _, word, *about in lines if word == "added"}
    for _, word, *about in lines:
        if word == "put":
            assert put.setdefault(about[1], int(about[2])) == int(about[2]), f"{about} has two offsets"
            assert found[int(about[2])] == about[1], f"{about} was acknowledged, and is not there"
    there = Counter(found.values())
    back = Counter(letter.message.value.decode() for letter in letters)
    for value in there | back:
        assert there[value] - back[value] in ((1,) if value in put else (0, 1)), f"{value}: {there[value]}"
    for name in NAMES:
        judge_queue(name, lines, found, left[name], {offset for reader, offset in origins if reader == name})
    return found


def judge_queue(name: str, lines: list[list[str]], found: dict[int, str], left: Counter[int], dead: set[int]) -> None:
    done: set[int] = set()
    doubt: set[int] = set()
    purging = Counter(row[1] for row in lines if row[2] == name)
    purged = 2**63 if purging["purging"] > purging["purged"] else 0  # a process that died may have purged
    for _, word, *about in lines:
        if not about or about[0] != name:
            continue
        if word == "got":
            assert int(about[1]) not in done, f"{about[1]} was delivered again after it was done"
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
    missing = set(found) - done - doubt - dead - set(left)
    missing = {offset for offset in missing if not found[offset].startswith(f"e{name}")}
    if name == PURGED:
        missing = {offset for offset in missing if offset >= purged}
    assert not missing, f"{name} lost {[(offset, found[offset]) for offset in sorted(missing)]}"


@pytest.mark.torture
def test_a_random_history(tmp_path: Path, torture_s: float) -> None:
    history(World(tmp_path, seeded_random()), max(torture_s, SHORT_S), 3 if torture_s < SHORT_S else 5)
