"""Section growth: how the cost rises with messages, directories, bytes, readers, shards, keys and clients of a hub.

Each line does the same work at several sizes and takes the CPU time of this process, with the hub's server in it: the
least of several rounds. Files are in memory if there is a ``/dev/shm``, so that no disk is measured. The exponent of
``cost ~ size ** exponent`` is fitted to the larger half of the sizes, which is on one side of each step, such as the
most open files. A line fails above 1.15, and one that must not depend on the size above 0.2. The points are in
``artifacts/growth.json``.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import sej
from benchmarks.measure import Row, folder, fresh, machine, row

VALUE = bytes(100)
BATCH = 1000
MESSAGES_MAX = int(os.environ.get("SEJ_BENCH_GROWTH_MESSAGES", "10000000"))
LINEAR, FLAT = 1.15, 0.2
POINTS = Path("artifacts/growth.json")
ROUNDS = 2
ROUND_S = 0.3
"""Short work is repeated for so long, because it is disturbed more."""
Points = Iterator[tuple[str, int, float]]
"""A line, a size, and the seconds of CPU at this size."""


def run() -> list[Row]:
    """All lines of the section; stores the points."""
    lines: dict[str, dict[int, float]] = {}
    for subject, sizes in SUBJECTS * ROUNDS:
        with folder("/dev/shm" if os.path.isdir("/dev/shm") else None) as root:
            for name, size, taken in subject(root, sizes):
                points = lines.setdefault(name, {})
                points[size] = min(taken, points.get(size, taken))
    POINTS.parent.mkdir(parents=True, exist_ok=True)
    POINTS.write_text(json.dumps({"machine": machine(), "lines": lines}, indent=1) + "\n")
    return [_line(name, points) for name, points in lines.items()]


def exponent(points: dict[int, float]) -> float:
    """The slope of the cost over the size, both as logarithms, by least squares over the larger half of the sizes."""
    chosen = sorted(points.items())[-max(3, math.ceil(len(points) / 2)) :]
    logs = [(math.log(size), math.log(taken)) for size, taken in chosen]
    x, y = (sum(values) / len(logs) for values in zip(*logs, strict=True))
    slope: float = sum((at - x) * (taken - y) for at, taken in logs) / sum((at - x) ** 2 for at, _ in logs)
    return slope


def _line(name: str, points: dict[int, float]) -> Row:
    size, taken = max(points.items())
    if name.endswith(" (flat)"):
        return row(name, f"{taken * 1e6:,.0f} us at {size:,}", exponent(points), most=FLAT)
    return row(name, f"{taken / size * 1e6:,.3g} us each at {size:,}", exponent(points), most=LINEAR)


def _cost(work: Callable[[], object]) -> float:
    """The CPU seconds of the cheapest of several rounds."""
    best, end = math.inf, time.monotonic() + ROUND_S
    while True:
        begun = time.process_time()
        work()
        best = min(best, time.process_time() - begun)
        if time.monotonic() > end:
            return best


def _closed(make: Callable[[], Any]) -> None:
    make().close()


def _planned(path: Path) -> None:
    """What Spark's driver does before a table is read."""
    from pyspark.sql.types import BinaryType, StructField, StructType

    from pipeline.options import READ, parse
    from pipeline.reading.stream import SejReader

    assert SejReader([str(path)], parse(READ, {}), StructType([StructField("value", BinaryType())]), 2).partitions()


def _asked(path: Path, count: int) -> None:
    """What `sej sql` does, without the start of a process."""
    import pipeline
    from pipeline.tables.query import Query

    with Query({"t": pipeline.table(path)}) as query:
        found = query.run("SELECT sum(octet_length(value_bytes)) AS size FROM t").read_all()
        assert found.to_pylist() == [{"size": len(VALUE) * count}]


# --- subjects


def _messages(root: Path, sizes: Sequence[int]) -> Points:
    for size in sizes:
        path = root / "journal"

        def append(path: Path = path, size: int = size) -> None:
            shutil.rmtree(path, ignore_errors=True)
            with sej.Writer(path) as writer:
                for first in range(0, size, BATCH):
                    writer.append_many([VALUE] * BATCH, timestamp=range(first, first + BATCH))

        def read(path: Path = path, size: int = size, **options: Any) -> None:
            with sej.Scanner(path, **options) as scanner:
                count = 0
                while batch := scanner.read(BATCH):
                    count += len(batch)
            assert count == size

        def opened(path: Path = path, size: int = size) -> None:
            with sej.Writer(path) as writer:
                assert writer.offset == size

        def seek(path: Path = path, size: int = size) -> None:
            with sej.Scanner(path, size * 9 // 10) as scanner:
                assert scanner.read(1)[0].offset == size * 9 // 10

        def look(path: Path = path, size: int = size) -> None:
            journal = sej.Journal(path)
            assert journal.end_offset - journal.first_offset == size and journal.segments

        def find(path: Path = path, size: int = size) -> None:
            assert sej.Journal(path).find_time(size // 3) == size // 3

        yield "messages: append_many of 1,000", size, _cost(append)
        yield "messages: read", size, _cost(read)
        yield "messages: read with verify=True", size, _cost(partial(read, verify=True))
        yield "messages: open a writer (flat)", size, _cost(opened)
        yield "messages: seek an offset (flat)", size, _cost(seek)
        yield "messages: find a time (flat)", size, _cost(find)
        yield "messages: first and end offset, segments (flat)", size, _cost(look)
        yield "messages: plan a table in Spark", size, _cost(partial(_planned, path))
        yield "messages: sej sql, the sum of the sizes", size, _cost(partial(_asked, path, size))


def _items(root: Path, sizes: Sequence[int]) -> Points:
    for size in sizes:
        path = fresh(root)
        with sej.open_queue(path) as queue:
            begun = time.process_time()
            for _ in range(0, size, BATCH):
                queue.put_many([VALUE] * BATCH)
            yield "work queue: put_many of 1,000", size, time.process_time() - begun
            yield "work queue: stats (flat)", size, _cost(queue.stats)
        yield "work queue: open (flat)", size, _cost(partial(_closed, partial(sej.open_queue, path)))
        with sej.open_queue(path) as queue:
            begun = time.process_time()
            while items := queue.get_many(100, timeout=0):
                queue.done_many(items)
            yield "work queue: get_many of 100, done_many", size, time.process_time() - begun
        shutil.rmtree(path)


def _kestrel(root: Path, sizes: Sequence[int]) -> Points:
    import kestrel
    from kestrel import segmented

    for size in sizes:
        path = fresh(root)
        old = partial(kestrel.Queue, path, "cars", max_memory_bytes=16 << 20, max_journal_bytes=1 << 40)
        new = partial(segmented.Queue, path, "jobs", journal_bytes=1 << 40)
        with old() as cars, new() as jobs:
            for _ in range(0, size, BATCH):
                cars.put_many([VALUE] * BATCH)
                jobs.put_many([VALUE] * BATCH)
        yield "Kestrel 2: open, 16 MiB of memory", size, _cost(partial(_closed, old))
        yield "libkestrel: open", size, _cost(partial(_closed, new))
        with old() as cars:
            begun = time.process_time()
            while (found := cars.reserve()) is not None:
                cars.confirm(found[0])
            yield "Kestrel 2: reserve and confirm, 16 MiB of memory", size, time.process_time() - begun
        with new() as jobs:
            begun, reader = time.process_time(), jobs.reader()
            while (item := reader.get()) is not None:
                reader.commit(item.id)
            yield "libkestrel: get and commit", size, time.process_time() - begun
        shutil.rmtree(path)


def _directories(root: Path, sizes: Sequence[int]) -> Points:
    import hub

    for size in sizes:
        path = fresh(root)
        with hub.Store(path) as store:
            begun = time.process_time()
            for number in range(size):
                store.put(f"c{number}", "j", [sej.Message(n, number + n, 0, b"", VALUE) for n in range(10)])
            yield "directories: first batch of each on a hub", size, time.process_time() - begun

        def merge(path: Path = path, size: int = size) -> None:
            with hub.Merge(path, "growth") as merged:
                assert sum(1 for _ in merged) == 10 * size

        yield "directories: hub.stats", size, _cost(partial(hub.stats, path))
        yield "directories: hub.Merge of 10 messages of each, 256 open", size, _cost(merge)
        yield "directories: plan a table in Spark", size, _cost(partial(_planned, path))
        yield "directories: sej sql, the sum of the sizes", size, _cost(partial(_asked, path, 10 * size))
        shutil.rmtree(path)


def _bytes(root: Path, sizes: Sequence[int]) -> Points:
    for size in sizes:
        value, count = bytes(size), max(1, min(1000, (64 << 20) // size))

        def work(value: bytes = value, count: int = count) -> None:
            path = fresh(root)
            with sej.Writer(path) as writer:
                for _ in range(count):
                    writer.append(value)
            with sej.Scanner(path) as scanner:
                assert sum(1 for _ in scanner) == count
            shutil.rmtree(path)

        yield "bytes of a value: append and read one", size, _cost(work) / count


def _readers(root: Path, sizes: Sequence[int]) -> Points:
    for size in sizes:
        path = fresh(root)
        with sej.Writer(path) as writer:
            writer.append(VALUE)
            scanners = [sej.Scanner(path, sej.LAST) for _ in range(size)]

            def follow(writer: sej.Writer = writer, scanners: list[sej.Scanner] = scanners) -> None:
                for _ in range(BATCH):
                    writer.append(VALUE)
                for scanner in scanners:
                    assert len(scanner.read(BATCH)) == BATCH

            yield "readers: 1,000 appends, each reads them", size, _cost(follow)
            for scanner in scanners:
                scanner.close()


def _shards(root: Path, sizes: Sequence[int]) -> Points:
    import shard

    keys = [b"key %d" % (number * 7919) for number in range(4000)]
    for size in sizes:
        path = shard.Path(fresh(root), "orders", size.bit_length() - 1)

        def scan(path: shard.Path = path) -> None:
            with shard.Scanner(path, by="time") as scanner:
                for _ in scanner:
                    pass

        with shard.Writer(path, max_open=1024) as writer:
            taken = []
            for number in range(80):
                begun = time.process_time()
                writer.append_many([VALUE] * len(keys), keys)
                taken.append(time.process_time() - begun)
                if number == 19:
                    yield "shards: open and scan 80,000 messages by time", size, _cost(scan)
            yield "shards: append_many of 4,000 keys", size, min(taken)
        shutil.rmtree(path.root)


def _keys(root: Path, sizes: Sequence[int]) -> Points:
    count = 100_000
    for size in sizes:
        with sej.open_queue(fresh(root), order="key") as queue:
            queue.put_many([VALUE] * count, [b"%d" % (number * 7919 % size) for number in range(count)])
            begun, done = time.process_time(), 0
            while done < 10_000 and (items := queue.get_many(100, timeout=0)):
                queue.done_many(items)
                done += len(items)
            taken = time.process_time() - begun
        yield "keys: get and done in their order", size, taken


def _clients(root: Path, sizes: Sequence[int]) -> Points:
    import hub
    from hub.wire import Client, Server

    with hub.Store(fresh(root)) as store, Server(store, f"unix:{fresh(root)}/hub") as server:
        for size in sizes:
            clients = [Client(server.address, client_id=f"c{size}-{number}") for number in range(size)]
            begun = time.process_time()
            for client in clients:
                client.put("j", [sej.Message(n, n, 0, b"", VALUE) for n in range(100)])
            yield "clients of a hub: connect, first batch of 100", size, time.process_time() - begun
            begun = time.process_time()
            for client in clients:
                client.put("j", [sej.Message(100 + n, n, 0, b"", VALUE) for n in range(100)])
            yield "clients of a hub: next batch of 100, all connected", size, time.process_time() - begun
            for client in clients:
                client.close()


SUBJECTS: tuple[tuple[Callable[[Path, Sequence[int]], Points], tuple[int, ...]], ...] = (
    (_messages, tuple(10**n for n in range(3, 9) if 10**n <= MESSAGES_MAX)),
    (_items, (1_000, 8_000, 64_000, 256_000, 512_000, 1_024_000)),  # the log is compacted from 4 MiB on: the last three
    (_kestrel, (1_000, 10_000, 100_000, 500_000, 1_000_000, 2_000_000)),  # the last three exceed memory and cache
    (_directories, (10, 100, 1_000, 3_000, 10_000)),  # the last three are more than the open files of a merge: 256
    (_bytes, tuple(16 << n for n in range(0, 21, 4))),
    (_readers, (1, 4, 16, 64)),
    (_shards, (1, 4, 16, 64, 256, 1024)),
    (_keys, (1, 10, 100, 1_000, 10_000, 100_000)),
    (_clients, (1, 10, 100, 500, 1_000, 2_000)),  # the last three are more than the open writers: 256
)
