"""Section core: one journal against queuelib, bare system calls and itself.

Page cache warm, 13-byte keys, 100-byte values; every line names the durability.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, folder, fresh, interleaved, row, timed

KEY = b"k" * 13
VALUE = b"v" * 100
MESSAGE_BYTES = 26 + len(KEY) + len(VALUE)
COUNT = 200_000
BATCH = 1000


def run() -> list[Row]:
    """All lines of the section."""
    with folder() as root:
        return [
            *_appending(root),
            *_opening(root),
            *_reading(root),
            *_syncing(root),
            *_seeking(root),
            *_following(root),
            *_memory(root),
        ]


def _appending(root: Path) -> list[Row]:
    import queuelib

    import sej

    values, keys = [VALUE] * BATCH, [KEY] * BATCH

    def peer_push() -> float:
        path = fresh(root)
        queue = queuelib.FifoDiskQueue(str(path / "q"))
        push, data = queue.push, KEY + VALUE

        def work() -> None:
            for _ in range(COUNT):
                push(data)

        rate = timed(work, COUNT)
        queue.close()
        shutil.rmtree(path)
        return rate

    def one_by_one(durability: Any) -> Callable[[], float]:
        def measure() -> float:
            path = fresh(root)
            with sej.Writer(path, durability=durability) as w:
                append = w.append

                def work() -> None:
                    for _ in range(COUNT):
                        append(VALUE, KEY)

                rate = timed(work, COUNT)
            shutil.rmtree(path)
            return rate

        return measure

    def many() -> float:
        path = fresh(root)
        with sej.Writer(path, durability="buffer") as w:

            def work() -> None:
                for _ in range(5 * COUNT // BATCH):
                    w.append_many(values, keys)

            rate = timed(work, 5 * COUNT)
        shutil.rmtree(path)
        return rate

    def bare_write() -> float:
        path = fresh(root)
        fd = os.open(path / "f", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        data, write = b"x" * MESSAGE_BYTES, os.write

        def work() -> None:
            for _ in range(COUNT):
                write(fd, data)

        rate = timed(work, COUNT)
        os.close(fd)
        shutil.rmtree(path)
        return rate

    found = interleaved(
        {
            "push": peer_push,
            "append": one_by_one("buffer"),
            "many": many,
            "os": one_by_one("os"),
            "write": bare_write,
        }
    )
    bare = interleaved({"many": many, "none": _without_index(many)})
    return [
        row("queuelib push (no durability)", _rate(found["push"]), 1.0),
        row("append, buffer / queuelib push", _rate(found["append"]), found["append"] / found["push"], 6),
        row("append_many of 1,000, buffer / queuelib push", _rate(found["many"]), found["many"] / found["push"], 14),
        row("append, os / bare os.write", _rate(found["os"]), found["os"] / found["write"], 0.7),
        row("append_many with index and checksums / without", _rate(bare["many"]), bare["many"] / bare["none"], 0.92),
        row("append, buffer / bare os.write", _rate(found["append"]), found["append"] / found["write"], 3.5),
    ]


def _opening(root: Path) -> list[Row]:
    """Open a journal, append one message, close: against the calls that nothing can leave out; processor time."""
    import sej

    journal, file = fresh(root), os.fspath(fresh(root) / "f")
    data, rounds = b"x" * MESSAGE_BYTES, 200
    # Else each import would compile all modules again.
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def ours() -> None:
        with sej.Writer(journal) as w:
            w.append(VALUE, KEY)

    def bare() -> None:
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(fd, data)
        os.fdatasync(fd)
        os.close(fd)

    def timed_by_processor(work: Callable[[], None]) -> Callable[[], float]:
        def measure() -> float:
            work()
            start = time.process_time()
            for _ in range(rounds):
                work()
            return (time.process_time() - start) / rounds * 1e6

        return measure

    def importing() -> float:
        program = "import time; t = time.process_time(); import sej; sej.Writer; print(time.process_time() - t)"
        ran = subprocess.run([sys.executable, "-c", program], env=compiled, capture_output=True, check=True)
        return float(ran.stdout) * 1000

    found = interleaved({"ours": timed_by_processor(ours), "bare": timed_by_processor(bare), "import": importing})
    name = "open, append, close / open, write, fdatasync, close: CPU"
    return [
        row(name, f"{found['ours']:.0f} us", found["ours"] / found["bare"], most=5),
        row("import of sej.Writer: CPU, ms", f"{found['import']:.0f} ms", found["import"], most=30),
    ]


def _without_index(many: Callable[[], float]) -> Callable[[], float]:
    """The same writer, but a block that is full is forgotten: no checksum, no entry."""
    from sej.codec import Buffer
    from sej.writing.opening import LastSegment

    def forget(_: LastSegment, buffer: Buffer) -> None:
        buffer.clear()

    def measure() -> float:
        end_block = LastSegment.end_block
        LastSegment.end_block = forget  # type: ignore[method-assign, assignment]
        try:
            return many()
        finally:
            LastSegment.end_block = end_block  # type: ignore[method-assign]

    return measure


def _reading(root: Path) -> list[Row]:
    import queuelib

    import sej
    from sej.codec import walk

    count = 5 * COUNT
    journal = fresh(root)
    with sej.Writer(journal, durability="buffer") as w:
        for _ in range(count // BATCH):
            w.append_many([VALUE] * BATCH, [KEY] * BATCH)

    def peer_pop() -> float:
        path = fresh(root)
        queue = queuelib.FifoDiskQueue(str(path / "q"))
        for _ in range(COUNT):
            queue.push(KEY + VALUE)

        def work() -> None:
            pop = queue.pop
            while pop() is not None:
                pass

        rate = timed(work, COUNT)
        queue.close()
        shutil.rmtree(path)
        return rate

    def read(verify: bool) -> Callable[[], float]:
        def measure() -> float:
            with sej.Scanner(journal, verify=verify) as s:

                def work() -> None:
                    while s.read(1024):
                        pass

                return timed(work, count)

        return measure

    def iterate() -> float:
        with sej.Scanner(journal) as s:

            def work() -> None:
                for _ in s:
                    pass

            return timed(work, count)

    data = next((journal / "jnl").iterdir()).read_bytes()
    columns = [memoryview(array(code, bytes(size * count))) for code, size in (("q", 8), ("q", 8), ("i", 4))]

    def walking() -> float:
        return timed(lambda: walk(data, 0, len(data), 0, *columns), len(data))

    target = bytearray(len(data))

    def copying() -> float:
        def work() -> None:
            memoryview(target)[:] = data

        return timed(work, len(data))

    found = interleaved(
        {
            "pop": peer_pop,
            "read": read(False),
            "verify": read(True),
            "iterate": iterate,
            "walk": walking,
            "copy": copying,
        }
    )
    return [
        row("queuelib pop", _rate(found["pop"]), 1.0),
        row("Scanner.read / queuelib pop", _rate(found["read"]), found["read"] / found["pop"], 10),
        row("iteration / queuelib pop", _rate(found["iterate"]), found["iterate"] / found["pop"], 7),
        row("Scanner.read with verify=True / without", _rate(found["verify"]), found["verify"] / found["read"], 0.88),
        row("columnar walk / memcpy", f"{found['walk'] / 1e9:.1f} GB/s", found["walk"] / found["copy"], 0.9),
    ]


def _syncing(root: Path) -> list[Row]:
    import sej

    def threads(number: int, each: int) -> Callable[[], float]:
        def measure() -> float:
            path = fresh(root)
            with sej.Writer(path, durability="disk") as w:

                def work() -> None:
                    for _ in range(each):
                        w.append(VALUE, KEY)

                def all_of_them() -> None:
                    workers = [threading.Thread(target=work) for _ in range(number)]
                    for worker in workers:
                        worker.start()
                    for worker in workers:
                        worker.join()

                return timed(all_of_them, number * each)

        return measure

    found = interleaved({"one": threads(1, 400), "sixteen": threads(16, 100)})
    return [
        row("append, disk, 1 thread", _rate(found["one"]), 1.0),
        row("append, disk, 16 threads / 1 thread", _rate(found["sixteen"]), found["sixteen"] / found["one"], 2),
    ]


def _seeking(root: Path) -> list[Row]:
    import sej

    million = fresh(root)
    with sej.Writer(million, durability="buffer") as w:
        for _ in range(1000):
            w.append_many([VALUE] * BATCH, [KEY] * BATCH)

    def seek() -> float:
        start = time.perf_counter()
        with sej.Scanner(million, 900_000) as s:
            assert s.read(1)[0].offset == 900_000
        return (time.perf_counter() - start) * 1000

    def opening() -> float:
        start = time.perf_counter()
        with sej.Writer(million) as w:
            assert w.offset == 1_000_000
            return (time.perf_counter() - start) * 1000

    segment = next((million / "jnl").iterdir())

    def torn() -> float:
        path = fresh(root)
        (path / "jnl").mkdir()
        (path / "jnl" / segment.name).write_bytes(segment.read_bytes()[:-20])
        start = time.perf_counter()
        with sej.Writer(path) as w:
            taken = (time.perf_counter() - start) * 1000
            assert w.offset == 999_999
            assert w.recovery is not None
        shutil.rmtree(path)
        return taken

    found = interleaved({"seek": seek, "open": opening, "torn": torn})
    return [
        row("seek to offset 900,000 of a million, ms", f"{found['seek']:.2f} ms", found["seek"], most=0.5),
        row("open a writer at a million, ms", f"{found['open']:.2f} ms", found["open"], most=0.3),
        row("open a torn million without an index, ms", f"{found['torn']:.1f} ms", found["torn"], most=100),
    ]


_FOLLOWER = """
import sys, time, sej
scanner = sej.Scanner(sys.argv[1], timeout=10.0)
print("ready", flush=True)
for message in islice(scanner, int(sys.argv[2])):
    print(time.clock_gettime_ns(time.CLOCK_MONOTONIC) - int(message.value), flush=True)
"""
_BARE = """
import ctypes, os, sys, time
libc = ctypes.CDLL(None)
fd = libc.inotify_init1(0)
libc.inotify_add_watch(fd, os.fsencode(sys.argv[1]), 2)
file = os.open(sys.argv[1] + "/f", os.O_RDONLY)
print("ready", flush=True)
for _ in range(int(sys.argv[2])):
    os.read(fd, 65536)
    data = os.read(file, 65536)
    print(time.clock_gettime_ns(time.CLOCK_MONOTONIC) - int(data), flush=True)
"""


_ASLEEP_S = 0.001  # who has just read a message may find the next one without sleeping: not what is measured here


def _following(root: Path) -> list[Row]:
    import sej

    rounds = 300

    def latency(program: str, path: Path, append: Callable[[bytes], object]) -> float:
        with subprocess.Popen(
            [sys.executable, "-c", "from itertools import islice\n" + program, str(path), str(rounds)],
            stdout=subprocess.PIPE,
            text=True,
        ) as follower:
            assert follower.stdout is not None
            follower.stdout.readline()
            found = []
            for _ in range(rounds):
                time.sleep(_ASLEEP_S)
                append(b"%d" % time.clock_gettime_ns(time.CLOCK_MONOTONIC))
                found.append(int(follower.stdout.readline()) / 1000)
        return statistics.median(found)

    def ours() -> float:
        path = fresh(root)
        with sej.Writer(path) as w:
            return latency(_FOLLOWER, path, w.append)

    def bare() -> float:
        path = fresh(root)
        fd = os.open(path / "f", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            return latency(_BARE, path, lambda data: os.write(fd, data))
        finally:
            os.close(fd)

    found = interleaved({"ours": ours, "bare": bare})
    name = "append in one process to read in another, p50 / bare inotify"
    return [row(name, f"{found['ours']:.0f} us", found["ours"] / found["bare"], most=3)]


_SCAN = """
import sys, sej
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
sej.Scanner
before = peak()
count = 0
with sej.Scanner(sys.argv[1]) as scanner:
    while batch := scanner.read(1024):
        count += len(batch)
print(count, (peak() - before) / 1024)
"""


def _memory(root: Path) -> list[Row]:
    import sej

    path = fresh(root)
    value = b"v" * 4096
    with sej.Writer(path, durability="buffer") as w:
        while w.offset * (len(value) + 26) < 2 << 30:
            w.append_many([value] * 2000)
    output = subprocess.run([sys.executable, "-c", _SCAN, str(path)], capture_output=True, text=True, check=True).stdout
    mebibytes = float(output.split()[1])
    shutil.rmtree(path)
    return [row("memory of scanning 2 GiB, MiB above the start", f"{mebibytes:.0f} MiB", mebibytes, most=4)]


def _rate(per_second: float) -> str:
    return f"{per_second / 1e6:.3f} M/s"
