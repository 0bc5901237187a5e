"""Tables without Spark against memory copies, Parquet and Spark: ratios count, rates are this machine's.

10,000,000 rows (``SEJ_BENCH_ROWS``) in 8 journals, 13-byte keys, 100-byte values that do not compress, page cache warm,
median of interleaved rounds. Two columns against memcpy are CPU time of all threads; the others are elapsed time.
Targets are for tables as they are by default, which verify checksums, as Spark does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import pyarrow.parquet as pq

import pipeline
import sej
from benchmarks.measure import Row, fill, folder, interleaved, row
from pipeline.columns import SEJ

ROWS = int(os.environ.get("SEJ_BENCH_ROWS", "10000000"))
ROUNDS = 3
FIVE = ["offset", "timestamp_ns", "type", "key", "value"]
SUM = "SELECT count(*), sum(octet_length(value)) FROM t"
GROUP = "SELECT sum(n), count(*) FROM (SELECT key, count(*) AS n FROM t GROUP BY key)"
PEAK = "from benchmarks.tables import peak; peak({!r})"


def run() -> list[Row]:
    """Everything; rows of (name, rate, ratio, target, ok)."""
    with folder() as where:
        root = where / "data"
        fill(root, ROWS)
        return [
            *_copies(root),
            *_duckdb(root, where / "data.parquet"),
            *_polars(root),
            *_first_answer(where),
            *_memory(root),
        ]


def _cpu(work: Callable[[], object]) -> Callable[[], float]:
    def measured() -> float:
        before = time.process_time()
        work()
        return time.process_time() - before

    return measured


def _elapsed(work: Callable[[], object]) -> Callable[[], float]:
    def measured() -> float:
        before = time.perf_counter()
        work()
        return time.perf_counter() - before

    return measured


def _consume(table: pipeline.Table) -> None:
    assert sum(batch.num_rows for batch in table.to_batches()) == ROWS


def _copies(root: Path) -> list[Row]:
    size = sum(path.stat().st_size for path in root.glob("*/jnl/*"))
    source = np.ones(64 << 20, np.uint8)
    target = np.empty_like(source)

    def copy() -> None:
        for at in range(0, size, len(source)):
            left = min(len(source), size - at)
            np.copyto(target[:left], source[:left])

    two = pipeline.table(root, columns=["offset", "timestamp_ns"])
    five = pipeline.table(root, columns=FIVE)
    unverified = pipeline.table(root, columns=["offset", "timestamp_ns"], verify=False)
    tables = {"two": two, "five": five, "plain": unverified}
    candidates = {name: _cpu(partial(_consume, table)) for name, table in tables.items()}
    times = interleaved({"memcpy": _cpu(copy), **candidates}, ROUNDS)

    def rate(name: str) -> str:
        return f"{size / times[name] / 1e9:.2f} GB/s CPU"

    return [
        row("memcpy of the journals' bytes", rate("memcpy"), 1.0),
        row("two fixed-size columns, verify=False", rate("plain"), times["memcpy"] / times["plain"]),
        row("two fixed-size columns, checksums verified", rate("two"), times["memcpy"] / times["two"], 0.4),
        row("5 columns, checksums verified", rate("five"), times["memcpy"] / times["five"], 0.3),
    ]


def _duckdb(root: Path, parquet: Path) -> list[Row]:
    reader = pipeline.table(root, columns=FIVE).to_reader()
    with pq.ParquetWriter(parquet, reader.schema, compression="none", use_dictionary=False) as writer:
        for batch in reader:
            writer.write_batch(batch)

    def ask(question: str, thing: object) -> Callable[[], float]:
        def work() -> None:
            with duckdb.connect() as connection:
                if isinstance(thing, Path):
                    connection.execute(f"CREATE VIEW t AS SELECT * FROM read_parquet('{thing}')")
                else:
                    connection.register("t", thing)
                found = connection.execute(question).fetchone()
                assert found is not None and found[0] == ROWS

        return _cpu(work)

    candidates = {
        "parquet": ask(SUM, parquet),
        "table": ask(SUM, pipeline.table(root, columns=["value"])),
        "plain": ask(SUM, pipeline.table(root, columns=["value"], verify=False)),
        "group parquet": ask(GROUP, parquet),
        "group table": ask(GROUP, pipeline.table(root, columns=["key"])),
    }
    times = interleaved(candidates, ROUNDS)

    def rate(name: str) -> str:
        return f"{ROWS / times[name] / 1e6:.1f} M rows/s CPU"

    return [
        row("DuckDB, count and sum of sizes: Parquet, uncompressed", rate("parquet"), 1.0),
        row("DuckDB, count and sum of sizes: verify=False", rate("plain"), times["parquet"] / times["plain"]),
        row(
            "DuckDB, count and sum of sizes: checksums verified", rate("table"), times["parquet"] / times["table"], 0.5
        ),
        row("DuckDB, group by key: Parquet, uncompressed", rate("group parquet"), 1.0),
        row(
            "DuckDB, group by key: checksums verified",
            rate("group table"),
            times["group parquet"] / times["group table"],
        ),
    ]


def _polars(root: Path) -> list[Row]:
    conf = {"spark.log.level": "ERROR", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spark = pipeline.session("benchmarks", master="local[2]", conf=conf)
    try:
        schema = ", ".join(f"{name} {SEJ[name]} NOT NULL" for name in FIVE)
        frame = spark.read.format("sej").schema(schema).load(str(root))

        def polars() -> None:
            assert pipeline.table(root, columns=FIVE).to_polars().height == ROWS

        times = interleaved(
            {
                "spark": _elapsed(lambda: frame.write.format("noop").mode("overwrite").save()),
                "polars": _elapsed(polars),
            },
            ROUNDS,
        )
    finally:
        spark.stop()
    ratio = times["spark"] / times["polars"]
    return [
        row("read 5 columns: Spark, local[2], to nowhere", f"{ROWS / times['spark'] / 1e6:.1f} M rows/s", 1.0),
        row("read 5 columns: to Polars", f"{ROWS / times['polars'] / 1e6:.1f} M rows/s", ratio, 3),
    ]


def _first_answer(folder: Path) -> list[Row]:
    with sej.Writer(folder / "small") as writer:
        writer.append_many([b'{"x": 1}'] * 1000)
    question = "SELECT sum((value->>'$.x')::INT) FROM small"
    command = [sys.executable, "-m", "sej", "sql", question, str(folder / "small")]
    run = _elapsed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
    seconds = interleaved({"sql": run}, 5)["sql"]
    return [row("sej sql, first answer, ms", f"{seconds * 1000:.0f} ms", seconds * 1000, most=400)]


def _memory(root: Path) -> list[Row]:
    found = subprocess.run([sys.executable, "-c", PEAK.format(str(root))], check=True, capture_output=True, text=True)
    mib = float(found.stdout)
    return [row("DuckDB over all columns: memory at its peak, MiB", f"{mib:.0f} MiB", mib, most=400)]


def peak(root: str) -> None:
    """Ask over all columns and print this process's peak of memory, in MiB."""
    with duckdb.connect() as connection:
        connection.execute("SET enable_progress_bar = false")
        connection.register("t", pipeline.table(root))
        connection.execute("SELECT count(*), sum(octet_length(value)), max(key) FROM t").fetchall()
    status = Path("/proc/self/status").read_text()  # getrusage() would count the parent's memory at the fork
    print(int(status.partition("VmHWM:")[2].split()[0]) / 1024)
