"""Measuring fairly: interleaved rounds in one run, medians, ratios; the machine, the files and the Spark sessions."""

from __future__ import annotations

import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BATCH = 100_000


class Row(NamedTuple):
    """One line of a report.

    Attributes:
        name: what was measured, with its durability.
        rate: the figure, with its unit.
        ratio: against what the target speaks of; None if nothing is compared.
        target: the least (or with ``<``: the most) that the ratio may be; None: for information.
        ok: whether the ratio reaches the target.
    """

    name: str
    rate: str
    ratio: float | None
    target: str | None
    ok: bool | None


def interleaved(candidates: dict[str, Callable[[], float]], rounds: int = 5) -> dict[str, float]:
    """Run each candidate once a round, one after the other; the median of what each returned."""
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, candidate in candidates.items():
            found[name].append(candidate())
    return {name: statistics.median(values) for name, values in found.items()}


def timed(work: Callable[[], object], count: int) -> float:
    """Operations a second of work, which does count of them."""
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


def cpu_timed(work: Callable[[], object], count: int) -> float:
    """Operations a second of this process's CPU time, of work, which does count of them."""
    start = time.process_time_ns()
    work()
    return count * 1e9 / (time.process_time_ns() - start)


def tree_cpu() -> float:
    """CPU seconds of this process and of all below it, with those of their children that have ended."""
    parents, taken = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)], taken[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    found, total = [os.getpid()], 0
    for pid in found:
        total += taken[pid]
        found += [child for child, parent in parents.items() if parent == pid]
    return total / os.sysconf("SC_CLK_TCK")


def row(name: str, rate: str, ratio: float, least: float | None = None, *, most: float | None = None) -> Row:
    """A line with its verdict."""
    if least is not None:
        return Row(name, rate, ratio, f">= {least:g}", ratio >= least)
    if most is not None:
        return Row(name, rate, ratio, f"<= {most:g}", ratio <= most)
    return Row(name, rate, ratio, None, None)


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    from sej.codec import IMPLEMENTATION

    return {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "codec": IMPLEMENTATION,
    }


@contextmanager
def folder(place: str | None = None) -> Iterator[Path]:
    """Create a folder for a section, in a place or where temporary files are, and remove it afterwards."""
    with tempfile.TemporaryDirectory(prefix="sej-bench-", dir=place, ignore_cleanup_errors=True) as name:
        yield Path(name)


def fresh(root: Path) -> Path:
    """Create a new, empty folder below another one."""
    return Path(tempfile.mkdtemp(dir=root))


def fill(root: Path, rows: int) -> None:
    """Append rows of 100 bytes with 200,000 different keys of 13 bytes to eight shards."""
    import shard

    rng = random.Random(1)
    with shard.Writer(shard.Path(root, "bench", 3)) as writer:
        for _ in range(0, rows, _BATCH):
            blob = rng.randbytes(100 * _BATCH)
            values = [blob[at : at + 100] for at in range(0, len(blob), 100)]
            writer.append_many(values, [b"key%010d" % rng.randrange(200_000) for _ in range(_BATCH)])


def start_session(master: str, folder: Path, conf: Mapping[str, str]) -> SparkSession:
    """Start a session whose files are below a folder."""
    import pipeline

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    quiet = {
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    return pipeline.session("benchmarks", master=master, conf={**quiet, **conf})
