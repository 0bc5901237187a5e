"""Section kestrel: both formats against the SEJ codec's reference and the SEJ writer.

One run, page cache warm, 100-byte items; every line names the durability.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Row, interleaved, row, timed

VALUE = b"v" * 100
LONG_VALUE = b"v" * 1000
READ_COUNT = 1_000_000
COUNT = 20_000
ROUNDS = 5
LIMIT_BYTES = 128 << 20
LONG_BYTES = 1 << 30
SLACK_BYTES = 64 << 20
BLOCK = 1 << 18


def run() -> list[Row]:
    """All lines of the section."""
    root = Path(tempfile.mkdtemp(prefix="kestrel-bench-"))
    try:
        return [*_reading(root), *_working(root), *_memory(root)]
    finally:
        shutil.rmtree(root)


def main() -> None:
    """Print the lines."""
    for found in run():
        print(found)


def _reading(root: Path) -> list[Row]:
    import kestrel
    from kestrel import segmented
    from kestrel.segmented.codec import encode_put
    from kestrel.segmented.format import WRITER_MAGIC
    from kestrel.v2.codec import addx
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

    found = interleaved(
        {
            "scan": lambda: timed(scan, READ_COUNT),
            "read": lambda: timed(read, READ_COUNT),
            "items": lambda: timed(read_items, READ_COUNT),
        },
        ROUNDS,
    )
    return [
        Row("pure Python SEJ codec, scan (the measure)", _rate(found["scan"]), None, None, None),
        row("Kestrel 2: read_journal", _rate(found["read"]), found["read"] / found["scan"], 0.5),
        row("libkestrel: read_writer_file", _rate(found["items"]), found["items"] / found["scan"]),
    ]


def _working(root: Path) -> list[Row]:
    import kestrel
    import sej
    from kestrel import segmented

    def append() -> float:
        path = Path(tempfile.mkdtemp(dir=root))
        with sej.Writer(path, durability="os") as writer:

            def work() -> None:
                for _ in range(COUNT):
                    writer.append(VALUE)

            return timed(work, COUNT)

    def put() -> float:
        with kestrel.Queue(tempfile.mkdtemp(dir=root), "cars") as queue:

            def work() -> None:
                for _ in range(COUNT):
                    queue.put(VALUE)

            return timed(work, COUNT)

    def reserve_confirm() -> float:
        with kestrel.Queue(tempfile.mkdtemp(dir=root), "cars") as queue:
            queue.put_many([VALUE] * COUNT)

            def work() -> None:
                while (found := queue.reserve()) is not None:
                    queue.confirm(found[0])

            return timed(work, COUNT)

    def segmented_put() -> float:
        with segmented.Queue(tempfile.mkdtemp(dir=root), "jobs") as queue:
            return timed(lambda: [queue.put(VALUE) for _ in range(COUNT)], COUNT)

    def segmented_get_commit() -> float:
        with segmented.Queue(tempfile.mkdtemp(dir=root), "jobs") as queue:
            queue.put_many([VALUE] * COUNT)
            reader = queue.reader()

            def work() -> None:
                while (item := reader.get()) is not None:
                    reader.commit(item.id)

            return timed(work, COUNT)

    found = interleaved(
        {
            "append": append,
            "put": put,
            "reserve": reserve_confirm,
            "segmented put": segmented_put,
            "segmented get": segmented_get_commit,
        },
        ROUNDS,
    )
    measure = found["append"]
    return [
        Row('SEJ append, "os" (the measure)', _rate(measure), None, None, None),
        row("Kestrel 2: put, every one written", _rate(found["put"]), found["put"] / measure, 0.3),
        row("Kestrel 2: reserve and confirm, every one written", _rate(found["reserve"]), found["reserve"] / measure),
        row("libkestrel: put, every one written", _rate(found["segmented put"]), found["segmented put"] / measure),
        row(
            "libkestrel: get and commit, every one written",
            _rate(found["segmented get"]),
            found["segmented get"] / measure,
        ),
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
        while queue.counters().logsize < LONG_BYTES:
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
