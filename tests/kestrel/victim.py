"""A process that works on a queue until it is killed, and says on standard output what it began and what returned."""

import os
import random
import sys
from collections.abc import Callable
from itertools import count
from typing import Any

from tests.kestrel.support import Three, Two


def say(what: str, number: int) -> None:
    os.write(1, b"%s %d\n" % (what.encode(), number))


def done(what: str, number: int, act: Callable[..., object], *arguments: object) -> None:
    say(f"-{what}", number)
    act(*arguments)
    say(f"+{what}", number)


OPTIONS: dict[str, tuple[Any, dict[str, list[Any]]]] = {
    "kestrel": (
        Two,
        {
            "max_memory_bytes": [2000, 20_000, 1 << 20],
            "journal_bytes": [500, 5000],
            "max_journal_bytes": [3000, 1 << 20],
            "compact_delay_s": [0.001],
        },
    ),
    "libkestrel": (Three, {"journal_bytes": [1000, 20_000], "checkpoint_s": [0.001, 0.05]}),
}


def work(kind: str, directory: str, seed: int) -> None:
    """Put and take items, end most of them, and give some back, until death."""
    chance = random.Random(seed)
    opener, options = OPTIONS[kind]
    q = opener.open(directory, **{name: chance.choice(choices) for name, choices in options.items()})
    taken: list[tuple[int, int]] = []
    for step in count():
        number = seed * 10_000_000 + step
        what = chance.random()
        if what < 0.45:
            done("put", number, q.put, b"%d:" % number + b"x" * chance.randrange(100))
        elif what < 0.75:
            if (found := q.take()) is not None:
                taken.append((found[0], int(found[1].partition(b":")[0])))
        elif taken:
            handle, value = taken.pop(chance.randrange(len(taken)))
            if what < 0.95:
                done("take", value, q.end, handle)
            else:
                q.back(handle)


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2], int(sys.argv[3]))
