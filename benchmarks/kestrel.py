"""Section kestrel: both formats against the SEJ codec's reference, and against bare system calls.

One run, page cache warm, 100-byte items. What is written is not synced. The targets of calls come from the
CPU time of the originals, in bare writes of the machine that ran them; that of libkestrel's get, 0.65, is not reached.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Row, cpu_timed, folder, interleaved, row

VALUE = b"v" * 100
LONG_VALUE = b"v" * 1000
READ_COUNT = 1_000_000
POP_COUNT = 100_000
COUNT = 20_000
ROUNDS = 5
LIMIT_BYTES = 128 << 20
LONG_BYTES = 1 << 30
SLACK_BYTES = 64 << 20
ROTATED_BYTES = 4 << 20  # a file this long is rotated, and the queue is longer than memory before
BLOCK = 1 << 18


def run() -> list[Row]:
    """All lines of the section."""
    with folder() as root:
        return [*_reading(root), *_working(root), *_opening(root), *_memory(root)]


def main() -> None:
    """Print the lines."""
    for found in run():
        print(found)


def _reading(root: Path) -> list[Row]:
    import queuelib

    import kestrel
    from kestrel import segmented
    from kestrel.files import WRITER_MAGIC
    from kestrel.segmented.format import encode_put
    from kestrel.v2.format import addx
    from sej.codec import reference as reference

    journal, writer, segment = root / "cars", root / "jobs.1", root / "segment"
    journal.write_bytes(addx(VALUE, 1_475_195_912_693) * READ_COUNT)
    writer.write_bytes(
        WRITER_MAGIC
        + b"".join(encode_put(segmented.Item(number, 1, None, 0, VALUE)) for number in range(1, READ_COUNT + 1))
    )
    buffer = bytearray()
    for offset in range(READ_COUNT):
        buffer += reference.encode(offset, 1, 0, b"", VALUE)
    segment.write_bytes(buffer)
    del buffer

    def scan() -> None:
        with segment.open("rb") as file:
            data, offset = b"", 0
            while block := file.read(BLOCK):
                data += block
                messages, used = reference.decode_many(data, 0, len(data), offset, READ_COUNT)
                for _ in messages:
                    offset += 1
                data = data[used:]
        assert offset == READ_COUNT

    def read() -> None:
        assert sum(1 for _ in kestrel.read_journal(journal)) == READ_COUNT

    def read_items() -> None:
        assert sum(1 for _ in segmented.read_writer_file(writer)) == READ_COUNT

    def pop() -> float:
        queue = queuelib.FifoDiskQueue(tempfile.mkdtemp(dir=root))
        for _ in range(POP_COUNT):
            queue.push(VALUE)

        def work() -> None:
            while queue.pop() is not None:
                pass

        rate = cpu_timed(work, POP_COUNT)
        queue.close()
        return rate

    found = interleaved(
        {
            "scan": lambda: cpu_timed(scan, READ_COUNT),
            "read": lambda: cpu_timed(read, READ_COUNT),
            "items": lambda: cpu_timed(read_items, READ_COUNT),
            "pop": pop,
        },
        ROUNDS,
    )
    return [
        Row("pure Python SEJ codec, scan (the measure)", _rate(found["scan"]), None, None, None),
        row("Kestrel 2: read_journal", _rate(found["read"]), found["read"] / found["scan"], 1.6),
        row("libkestrel: read_writer_file", _rate(found["items"]), found["items"] / found["scan"]),
        row("libkestrel: read_writer_file / queuelib pop", _rate(found["items"]), found["items"] / found["pop"], 5),
    ]


def _working(root: Path) -> list[Row]:
    """Calls for each item, by CPU time: against bare writes of the same bytes."""
    import kestrel
    from kestrel import segmented

    def write(size: int) -> Callable[[], float]:
        data = b"w" * size

        def run() -> float:
            descriptor, _ = tempfile.mkstemp(dir=root)
            try:

                def work() -> None:
                    for _ in range(COUNT):
                        os.write(descriptor, data)

                return cpu_timed(work, COUNT)
            finally:
                os.close(descriptor)

        return run

    def put() -> float:
        with kestrel.Queue(tempfile.mkdtemp(dir=root), "cars") as queue:

            def work() -> None:
                for _ in range(COUNT):
                    queue.put(VALUE)

            return cpu_timed(work, COUNT)

    def put_behind() -> float:
        with kestrel.Queue(tempfile.mkdtemp(dir=root), "cars", max_memory_bytes=ROTATED_BYTES) as queue:
            while not queue.counters().journal_rotations:
                queue.put_many([VALUE] * 1000)

            def work() -> None:
                for _ in range(COUNT):
                    queue.put(VALUE)

            return cpu_timed(work, COUNT)

    def reserve_behind() -> float:
        with kestrel.Queue(tempfile.mkdtemp(dir=root), "cars", max_memory_bytes=ROTATED_BYTES) as queue:
            while queue.counters().journal_rotations < 2:  # more is left than is taken
                queue.put_many([VALUE] * 1000)

            def work() -> None:
                for _ in range(COUNT):
                    found = queue.reserve()
                    assert found is not None
                    queue.confirm(found[0])

            return cpu_timed(work, COUNT)

    def reserve_confirm() -> float:
        with kestrel.Queue(tempfile.mkdtemp(dir=root), "cars") as queue:
            queue.put_many([VALUE] * COUNT)

            def work() -> None:
                while (found := queue.reserve()) is not None:
                    queue.confirm(found[0])

            return cpu_timed(work, COUNT)

    def segmented_put() -> float:
        with segmented.Queue(tempfile.mkdtemp(dir=root), "jobs") as queue:

            def work() -> None:
                for _ in range(COUNT):
                    queue.put(VALUE)

            return cpu_timed(work, COUNT)

    def segmented_get_commit() -> float:
        with segmented.Queue(tempfile.mkdtemp(dir=root), "jobs") as queue:
            queue.put_many([VALUE] * COUNT)
            reader = queue.reader()

            def work() -> None:
                while (item := reader.get()) is not None:
                    reader.commit(item.id)

            return cpu_timed(work, COUNT)

    found = interleaved(
        {
            "121 bytes": write(121),
            "put": put,
            "put behind": put_behind,
            "5 bytes": write(5),
            "reserve": reserve_confirm,
            "reserve behind": reserve_behind,
            "125 bytes": write(125),
            "segmented put": segmented_put,
            "9 bytes": write(9),
            "segmented get": segmented_get_commit,
        },
        ROUNDS,
    )

    def line(name: str, call: str, bytes_written: str, writes: int, least: float) -> Row:
        return row(name, f"{found[call]:,.0f}/CPU s", writes * found[call] / found[bytes_written], least)

    return [
        Row("bare os.write of 121 bytes (the measure)", f"{found['121 bytes']:,.0f}/CPU s", None, None, None),
        line("Kestrel 2: put, of its write", "put", "121 bytes", 1, 0.61),
        line("Kestrel 2: put behind a rotated file, of its write", "put behind", "121 bytes", 1, 0.61),
        line("Kestrel 2: reserve and confirm, of their two writes", "reserve", "5 bytes", 2, 0.58),
        line("Kestrel 2: the same behind a rotated file", "reserve behind", "5 bytes", 2, 0.15),
        line("libkestrel: put, of its write", "segmented put", "125 bytes", 1, 0.61),
        line("libkestrel: get and commit, of their write", "segmented get", "9 bytes", 1, 0.25),
    ]


def _opening(root: Path) -> list[Row]:
    """Opening a queue of a million items and taking all of them, by CPU time: against bare reads of its files."""
    import kestrel
    from kestrel import segmented

    path = root / "million"
    for _ in range(READ_COUNT // COUNT):
        with kestrel.Queue(path, "cars") as queue:
            queue.put_many([VALUE] * COUNT)
        with segmented.Queue(path, "jobs", journal_bytes=1 << 30) as jobs:
            jobs.put_many([VALUE] * COUNT)
    (writer,) = (found for found in path.glob("jobs.*") if found.suffix[1:].isdigit())

    def read(file: Path) -> Callable[[], float]:
        def run() -> float:
            descriptor = os.open(file, os.O_RDONLY)
            try:

                def work() -> None:
                    position = 0
                    while data := os.pread(descriptor, BLOCK, position):
                        position += len(data)

                return cpu_timed(work, READ_COUNT)
            finally:
                os.close(descriptor)

        return run

    def opened(make: Callable[[], kestrel.Queue | segmented.Queue]) -> Callable[[], float]:
        def run() -> float:
            queues = []
            rate = cpu_timed(lambda: queues.append(make()), READ_COUNT)
            queues.pop().close()
            return rate

        return run

    def get_all() -> float:
        with segmented.Queue(path, "jobs", journal_bytes=1 << 30) as queue:
            reader = queue.reader()

            def work() -> None:
                while reader.get() is not None:
                    pass

            return cpu_timed(work, READ_COUNT)

    found = interleaved(
        {
            "read": read(path / "cars"),
            "open": opened(lambda: kestrel.Queue(path, "cars")),
            "open in memory": opened(lambda: kestrel.Queue(path, "cars", max_memory_bytes=1 << 30)),
            "read segmented": read(writer),
            "segmented open": opened(lambda: segmented.Queue(path, "jobs", journal_bytes=1 << 30)),
            "get": get_all,
        },
        ROUNDS,
    )

    def line(name: str, call: str, measure: str) -> Row:
        return row(name, f"{READ_COUNT / found[call]:.3f} CPU s", found[call] / found[measure])

    return [
        Row(
            "bare os.pread of a million items (the measure)",
            f"{READ_COUNT / found['read']:.3f} CPU s",
            None,
            None,
            None,
        ),
        line("Kestrel 2: open a million items, 128 MiB of memory", "open", "read"),
        line("Kestrel 2: open a million items, all in memory", "open in memory", "read"),
        line("libkestrel: open a million items", "segmented open", "read segmented"),
        line("libkestrel: get a million items", "get", "read segmented"),
    ]


_LONG = """
import re, sys, kestrel
def peak():
    with open("/proc/self/status") as status:
        return int(re.search(r"VmHWM:\\s+([0-9]+)", status.read())[1])
limit, directory = int(sys.argv[1]), sys.argv[2]
start = peak()
with kestrel.Queue(directory, "cars", max_memory_bytes=limit, max_journal_bytes=1 << 40) as queue:
    count = len(queue)
    for _ in range(count // 2):
        queue.get()
print((peak() - start) * 1024)
"""


def _memory(root: Path) -> list[Row]:
    import kestrel

    path = root / "long"
    with kestrel.Queue(path, "cars", max_journal_bytes=1 << 40) as queue:
        for _ in range(LONG_BYTES // (1_000 * len(LONG_VALUE))):
            queue.put_many([LONG_VALUE] * 1_000)
    command = [sys.executable, "-c", _LONG, str(LIMIT_BYTES), str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    peak = int(done.stdout)
    ratio = peak / (LIMIT_BYTES + SLACK_BYTES)
    return [row("1 GiB journal opened and half read, of 128 + 64 MiB", f"{peak >> 20} MiB", ratio, most=1.0)]


def _rate(found: float) -> str:
    return f"{found:,.0f}/s"


if __name__ == "__main__":
    main()
