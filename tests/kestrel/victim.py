"""A process that works on a queue until it is killed, and says on standard output what it began and what returned."""

import os
import random
import sys
from collections.abc import Callable
from itertools import count
from typing import Any

import kestrel
from kestrel import segmented


def say(what: str, number: int) -> None:
    os.write(1, b"%s %d\n" % (what.encode(), number))


def done(what: str, number: int, act: Callable[..., object], *arguments: object) -> None:
    say(f"-{what}", number)
    act(*arguments)
    say(f"+{what}", number)


def work(
    chance: random.Random, seed: int, queue: Any, take: Callable[[], tuple[Any, bytes] | None], end: Any, undo: Any
) -> None:
    """Put and take items, end most of them, and give some back, until death."""
    taken: list[tuple[Any, int]] = []
    for step in count():
        number = seed * 10_000_000 + step
        what = chance.random()
        if what < 0.45:
            done("put", number, queue.put, b"%d:" % number + b"x" * chance.randrange(100))
        elif what < 0.75:
            if (found := take()) is not None:
                taken.append((found[0], int(found[1].partition(b":")[0])))
        elif taken:
            identity, value = taken.pop(chance.randrange(len(taken)))
            if what < 0.95:
                done("take", value, end, identity)
            else:
                undo(identity)


def work_on_kestrel(directory: str, seed: int) -> None:
    chance = random.Random(seed)
    queue = kestrel.Queue(
        directory,
        "cars",
        max_memory_bytes=chance.choice([2000, 20_000, 1 << 20]),
        journal_bytes=chance.choice([500, 5000]),
        max_journal_bytes=chance.choice([3000, 1 << 20]),
        compact_delay_s=0.001,
    )

    def take() -> tuple[int, bytes] | None:
        found = queue.reserve()
        return None if found is None else (found[0], found[1].data)

    work(chance, seed, queue, take, queue.confirm, queue.unreserve)


def work_on_libkestrel(directory: str, seed: int) -> None:
    chance = random.Random(seed)
    queue = segmented.Queue(
        directory, "jobs", journal_bytes=chance.choice([1000, 20_000]), checkpoint_s=chance.choice([0.001, 0.05])
    )
    reader = queue.reader("r")

    def take() -> tuple[int, bytes] | None:
        item = reader.get()
        return None if item is None else (item.id, item.data)

    work(chance, seed, queue, take, reader.commit, reader.unget)


if __name__ == "__main__":
    {"kestrel": work_on_kestrel, "libkestrel": work_on_libkestrel}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
