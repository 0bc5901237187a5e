"""Write the files of this version to `tests/golden/releases/VERSION`, for tests/golden/test_releases.py.

    .venv/bin/python -m tools.golden_release

Run for each release, before its tag. Later versions must read these files for as long as they are supported, so a part
that exists is never written again. A run adds the parts that are missing.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import sej
import shard
import textqueue

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "golden" / "releases" / sej.__version__
START = 1_700_000_000_000_000_000
"""Nanoseconds since the epoch: all messages have fixed times."""


def main() -> None:
    """Write the missing parts, and the offsets, values and states that a later version must find."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    os.chdir(FOLDER)  # dead letters have the path of their queue
    note = Path("expected.json")
    expected = json.loads(note.read_text()) if note.exists() else {}
    parts = {
        "journal": lambda: journal(Path("journal")),
        "queue": lambda: queue(Path("queue")),
        "keyed": lambda: keyed(Path("keyed")),
        "shards": lambda: shards(Path("shards")),
        "text": lambda: text(Path("text")),
        "kestrel": lambda: kestrel(Path("spool", "cars"), "kestrel"),
        "libkestrel": lambda: kestrel(Path("segmented", "cars"), "libkestrel"),
    }
    missing = [name for name in parts if name not in expected]
    if not missing:
        sys.exit(f"{FOLDER} has every part: files of a release do not change")
    expected |= {name: parts[name]() for name in missing}
    # Locks are not data, and name the machine. The reserve for a full disk is made again.
    for pattern in ("*.lck", "*~~lock", "*.reserve"):
        for path in FOLDER.rglob(pattern):
            path.unlink()
    note.write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
    shutil.rmtree(FOLDER / "journal" / "tmp", ignore_errors=True)


def journal(path: Path) -> object:
    """Segments, an index, a kept offset, an exactly-once batch, a recorded gap."""
    with sej.Writer(path, segment_bytes=4096) as writer:
        for number in range(60):
            writer.append(b"value %d" % number * 8, b"key %d" % (number % 3), number % 256, START + number)
        writer.append_once("producer", 1, [b"once", b"and once"], timestamp=START + 60)
        writer.end.rotate()
        writer.append_many([b"together", b"with this"], timestamp=START + 61)
        writer.append(b"\x00\xff", b"", 255, sej.NO_TIMESTAMP)
    with sej.Offset(path, "billing") as kept:
        kept.commit(17)
    messages = [[m.offset, m.timestamp, m.type, m.key.hex(), m.value.hex()] for m in sej.Scanner(path)]
    return {"messages": messages, "offset": {"billing": 17}, "batch": ["producer", 1, [60, 62]]}


def queue(path: Path) -> object:
    """Items that are ready, delayed, done and dead."""
    with sej.open_queue(path, "worker", max_attempts=1) as opened:
        for number in range(6):
            opened.put(b"job %d" % number)
        opened.put(b"in the year 2100", delay_s=2_000_000_000.0)
        for _ in range(2):
            item = opened.get(timeout=0)
            assert item is not None
            item.done()
        item = opened.get(timeout=0)
        assert item is not None
        item.fail("it cannot be done")
        stats = opened.stats()
    return {"ready": ["job 3", "job 4", "job 5"], "delayed": stats.delayed, "dead": [["job 2", "it cannot be done"]]}


class FixedClock:
    """A clock that does not move. A later test sets its own clock to the next moment, after a restart."""

    def boot_ns(self) -> int:
        """Return nanoseconds since the machine started."""
        return 1_000_000_000_000

    def wall_ns(self) -> int:
        """Return nanoseconds since the epoch."""
        return START

    def boot_id(self) -> bytes:
        """Return 16 bytes."""
        return b"golden releases."


def keyed(path: Path) -> object:
    """A paused queue with order per key, headers, a rate, and a dead letter whose key is blocked."""
    with sej.open_queue(
        path, "worker", order="key", on_dead="block", max_attempts=1, rate="3/d", clock=FixedClock()
    ) as opened:
        for number in range(6):
            opened.put(b"job %d" % number, b"key %d" % (number % 2), headers={"number": str(number), "ünï": "cödé"})
        opened.put(b"without a key or headers")
        item = opened.get(timeout=0)
        assert item is not None
        item.done()
        item = opened.get(timeout=0)
        assert item is not None
        item.fail("it cannot be done")
        opened.pause()
    return {
        "headers": {f"job {number}": {"number": str(number), "ünï": "cödé"} for number in range(1, 6)},
        "ready": ["job 2", "job 4", "without a key or headers"],
        "redriven": ["job 3", "job 5", "job 1"],
        "dead": ["job 1", "it cannot be done"],
    }


def shards(path: Path) -> object:
    """Two shards by key."""
    with shard.Writer(shard.Path(path, prefix="orders", bits=1)) as writer:
        for number in range(20):
            writer.append(b"value %d" % number, b"key %d" % number)
    with shard.Scanner(shard.Path(path, prefix="orders", bits=1)) as scanner:
        return sorted([m.key.decode(), m.value.decode()] for _, m in scanner)


def text(path: Path) -> object:
    """A text queue with a handled, a failed and a queued message."""
    path.mkdir()
    with textqueue.TextQueue(path / "jobs.tq") as opened:
        for number in range(3):
            opened.append(f"ship order {number}\nto Bern")
        first, second, _ = list(opened.messages())
        first.mark_as_cleared()
        second.mark_as_critical_error()
    return {mark: f"ship order {number}\nto Bern" for number, mark in enumerate("=!-")}


def kestrel(path: Path, backend: str) -> object:
    """A queue of Kestrel with one item removed and one that was leased when the program ended."""
    with sej.open_queue(path, backend=backend) as opened:
        for number in range(4):
            opened.put(b"item %d" % number)
        item = opened.get(timeout=0)
        assert item is not None
        item.done()
    return ["item 1", "item 2", "item 3"]


if __name__ == "__main__":
    main()
