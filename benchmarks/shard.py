"""Section shard: the sharded writer against one journal and against itself, readers, workers and a reshard.

Page cache warm, 13-byte keys, 100-byte values, batches of 4,000 with random keys; durability "os" everywhere: every
batch has reached the kernel when append_many returns. Journals are made and opened before the clock starts. The rounds
of what is compared take about as long as each other, so that a busy machine takes its part of each.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import sej
import shard
from benchmarks.measure import Row, folder, fresh, interleaved, row, timed

BATCH = 4_000
KEYS = [b"key %09d" % number for number in random.Random(64).sample(range(10**9), BATCH)]
VALUES = [b"v" * 100] * BATCH


def run() -> list[Row]:
    """All lines of the section."""
    with folder() as root:
        return [*_appending(root), *_many_shards(root), *_reading(root)]


def _rate(append: Callable[[list[bytes], list[bytes]], object], rounds: int) -> float:
    def some() -> None:
        for _ in range(rounds):
            append(VALUES, KEYS)

    return timed(some, rounds * BATCH)


def _appending(root: Path) -> list[Row]:
    with (
        sej.Writer(fresh(root)) as one,
        shard.Writer(shard.Path(fresh(root), "orders", 6)) as many,
        shard.Writer(shard.Path(fresh(root), "orders", 6)) as single,
    ):
        many.append_many(VALUES, KEYS)

        def one_by_one() -> float:
            def some() -> None:
                for key in KEYS * 5:
                    single.append(VALUES[0], key)

            return timed(some, 5 * BATCH)

        single.append_many(VALUES, KEYS)
        found = interleaved(
            {
                "unsharded": lambda: _rate(one.append_many, 150),
                "64 shards": lambda: _rate(many.append_many, 50),
                "one by one": one_by_one,
            }
        )
    base = found["unsharded"]
    return [
        _row("unsharded append_many, batches of 4,000, os", base),
        _row("64 shards, append_many, batches of 4,000, os", found["64 shards"], base, least=0.25),
        _row("64 shards, append one by one, os", found["one by one"]),
    ]


def _many_shards(root: Path) -> list[Row]:
    with (
        shard.Writer(shard.Path(fresh(root), "orders", 10), max_open=1024) as wide,
        shard.Writer(shard.Path(fresh(root), "orders", 10), max_open=256) as narrow,
    ):
        for writer in (wide, narrow):
            for _ in range(2):
                writer.append_many(VALUES, KEYS)
        found = interleaved(
            {
                "wide": lambda: _rate(wide.append_many, 80),
                "narrow": lambda: _rate(narrow.append_many, 10),
            }
        )
    return [
        _row("1,024 shards, all open, batches of 4,000, os", found["wide"]),
        _row("1,024 shards, max_open 256, batches of 4,000, os", found["narrow"], found["wide"], least=1 / 12),
    ]


def _reading(root: Path) -> list[Row]:
    path = shard.Path(fresh(root), "orders", 6)
    one = fresh(root)
    with shard.Writer(path) as writer, sej.Writer(one) as single:
        for number in range(50):
            writer.append_many(VALUES, KEYS, timestamp=number)
            single.append_many(VALUES, KEYS, timestamp=number)
    total = 50 * BATCH

    def scan_one() -> float:
        def everything() -> None:
            with sej.Scanner(one) as scanner:
                assert sum(1 for _ in scanner) == total

        return timed(everything, total)

    def scan(by: str) -> float:
        def everything() -> None:
            with shard.Scanner(path, by=by) as scanner:  # type: ignore[arg-type]
                assert sum(1 for _ in scanner) == total

        return timed(everything, total)

    def reshard() -> float:
        target = shard.Path(fresh(root), "orders", 4)
        return timed(lambda: shard.reshard(path, target), total)

    names = iter(range(1_000_000))

    def work() -> float:
        worker = shard.Worker(path, f"worker-{next(names)}", timeout=0.0)
        return timed(lambda: worker.run(lambda index, message: None), total)

    found = interleaved(
        {
            "one": scan_one,
            "turn": lambda: scan("turn"),
            "time": lambda: scan("time"),
            "work": work,
            "reshard": reshard,
        }
    )
    return [
        _row("one journal, scan", found["one"]),
        _row("64 shards, scan in turn", found["turn"], found["one"]),
        _row("64 shards, scan by time", found["time"], found["one"]),
        _row("64 shards, one worker, a handler that does nothing", found["work"], found["one"]),
        _row("64 shards to 16, reshard, durable", found["reshard"]),
    ]


def _row(name: str, rate: float, base: float | None = None, *, least: float | None = None) -> Row:
    shown = f"{rate / 1e6:.2f} M/s"
    return Row(name, shown, None, None, None) if base is None else row(name, shown, rate / base, least)


def main() -> None:
    """Print the section."""
    for line in run():
        print(line)


if __name__ == "__main__":
    main()
