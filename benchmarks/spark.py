"""Journals in Spark against the same rows in Parquet, in one session: ratios count, rates are this machine's.

local[2], 5,000,000 rows (``SEJ_BENCH_ROWS``), 13-byte keys, 100-byte values that do not compress, 8 shards, page cache
warm, best of three interleaved rounds. The columns are offset, timestamp_ns, type, key, value on both sides.
"""

from __future__ import annotations

import os
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pipeline
import sej
import shard
from benchmarks.measure import Row, fill, folder, start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = int(os.environ.get("SEJ_BENCH_ROWS", "5000000"))
ROUNDS = 3
BATCH = 100_000
COLUMNS = ("offset BIGINT", "timestamp_ns BIGINT", "type INT", "key BINARY", "value BINARY")
FIVE = ", ".join(f"{column} NOT NULL" for column in COLUMNS)
STREAM_BATCHES = 30
STREAM_LIMIT_S = 40.0


def run() -> list[Row]:
    """Everything; rows of (name, rate, ratio, target, ok)."""
    with folder() as where:
        spark = start_session("local[2]", where, {"spark.driver.memory": "4g"})
        try:
            fill(where / "tree", ROWS)
            journals = spark.read.format("sej").schema(FIVE).load(str(where / "tree"))
            journals.write.parquet(str(where / "parquet"))
            table = spark.read.parquet(str(where / "parquet"))
            return [*_reads(spark, where, journals, table), *_sink(where, table), *_count(where, journals),
                    *_streams(spark, where)]  # fmt: skip
        finally:
            spark.stop()


# --- reading


def _reads(spark: SparkSession, folder: Path, journals: DataFrame, table: DataFrame) -> list[Row]:
    everything = spark.read.format("sej").load(str(folder / "tree"))
    spark.dataSource.register(_tuple_source())
    tuples = spark.read.format("tuples").schema(FIVE).load(str(folder / "tree"))
    out = str(folder / "out")

    def noop(frame: DataFrame) -> Callable[[], object]:
        return lambda: frame.write.format("noop").mode("overwrite").save()

    def group(frame: DataFrame) -> Callable[[], object]:
        return lambda: frame.groupBy("key").count().write.format("noop").mode("overwrite").save()

    def parquet(frame: DataFrame) -> Callable[[], object]:
        return lambda: frame.write.mode("overwrite").parquet(out)

    times = _interleaved(
        {
            "noop": noop(journals),
            "noop parquet": noop(table),
            "group": group(journals),
            "group parquet": group(table),
            "write": parquet(journals),
            "write parquet": parquet(table),
            "ten": noop(everything),
            "tuples": noop(tuples),
        }
    )
    rows = []
    for name, what, least in (
        ("noop", "read, 5 columns", 0.75),
        ("group", "group by key", 0.38),
        ("write", "write as Parquet", 0.82),
    ):
        rows.append(_rate(f"{what}: Parquet", times[f"{name} parquet"]))
        rows.append(_rate(f"{what}: journals", times[name], times[f"{name} parquet"], least))
    rows.append(_rate("read, all 10 columns: journals", times["ten"], times["noop parquet"]))
    rows.append(_rate("read, 5 columns: as tuples", times["tuples"]))
    rows.append(_rate("read, 5 columns: journals over tuples", times["noop"], times["tuples"], 3.0))
    return rows


def _tuple_source() -> Any:
    """What a source is like that yields a tuple a message."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from pyspark.sql.types import StructType

    class TupleReader(DataSourceReader):
        def __init__(self, root: str) -> None:
            self.root = root

        def partitions(self) -> list[InputPartition]:
            paths = [found.path for found in shard.find(self.root)]
            return [InputPartition(paths[:4]), InputPartition(paths[4:])]

        def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
            for path in partition.value:
                with sej.Scanner(path) as scanner:
                    yield from scanner

    class TupleSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "tuples"

        def reader(self, schema: StructType) -> DataSourceReader:
            return TupleReader(self.options["path"])

    return TupleSource


def _sink(folder: Path, table: DataFrame) -> list[Row]:
    tree, out = folder / "sink", folder / "sink-parquet"
    sent = table.select("key", "value", "type", "timestamp_ns")

    def journals() -> None:
        shutil.rmtree(tree, ignore_errors=True)
        sent.write.format("sej").option("prefix", "bench").option("bits", 3).mode("append").save(str(tree))

    times = _interleaved(
        {"sink": journals, "parquet": lambda: sent.write.mode("overwrite").parquet(str(out))}, rounds=2
    )
    assert pipeline.count(tree) == ROWS
    rows = [_rate("sink: Parquet", times["parquet"]), _rate("sink: 8 shards", times["sink"], times["parquet"], 0.4)]
    shutil.rmtree(tree)
    shutil.rmtree(out)
    return rows


def _count(folder: Path, journals: DataFrame) -> list[Row]:
    times = _interleaved({"spark": lambda: journals.count(), "index": lambda: pipeline.count(folder / "tree")})
    return [
        _rate("count: df.count()", times["spark"]),
        _rate("count: pipeline.count(root)", times["index"], times["spark"], 20.0),
    ]


# --- streams


def _streams(spark: SparkSession, folder: Path) -> list[Row]:
    rate = _micro_batches(
        spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 8).load(), folder / "checkpoint-rate"
    )
    rows = [Row("micro-batch: Spark's rate source", f"{rate * 1000:.0f} ms", None, None, None)]
    for count, most in ((8, 2.0), (512, 4.0)):
        root = folder / f"many-{count}"
        bits = count.bit_length() - 1
        with _appending(shard.Path(root, "many", bits)):
            frame = spark.readStream.format("sej").schema("offset BIGINT, value BINARY").load(str(root))
            took = _micro_batches(frame, folder / f"checkpoint-{count}")
        ratio = took / rate
        rows.append(
            Row(f"micro-batch: {count} directories", f"{took * 1000:.0f} ms", ratio, f"<= {most:g}", ratio <= most)
        )
    return rows


def _micro_batches(frame: DataFrame, checkpoint: Path) -> float:
    """The median time of a micro-batch with rows in it, s."""
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    running = query.trigger(processingTime="0 seconds").start()
    found: dict[int, float] = {}
    ends = time.monotonic() + STREAM_LIMIT_S
    while len(found) < STREAM_BATCHES and time.monotonic() < ends and running.isActive:
        for progress in running.recentProgress:
            if progress.numInputRows:
                found[progress.batchId] = progress.durationMs["triggerExecution"] / 1000
        running.awaitTermination(1)
    running.stop()
    return statistics.median(list(found.values())[3:])  # the first ones compile


@contextmanager
def _appending(path: shard.Path) -> Iterator[None]:
    """Eight of the shards grow all the time, all of them are there."""
    stop = threading.Event()
    for directory in path.dirs():
        with sej.Writer(directory) as writer:
            writer.append(b"first")

    def append() -> None:
        writers = [sej.Writer(directory) for directory in path.dirs()[:8]]
        while not stop.wait(0.01):
            for writer in writers:
                writer.append(b"x" * 100)
        for writer in writers:
            writer.close()

    thread = threading.Thread(target=append)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


# --- measuring


def _interleaved(what: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, float]:
    """The best time of each, s, after one warm-up each."""
    best = dict.fromkeys(what, float("inf"))
    for turn in range(rounds + 1):
        for name, action in what.items():
            started = time.perf_counter()
            action()
            took = time.perf_counter() - started
            if turn:
                best[name] = min(best[name], took)
    return best


def _rate(name: str, seconds: float, beside: float | None = None, least: float | None = None) -> Row:
    rate = f"{ROWS / seconds / 1e6:.2f} M rows/s"
    if beside is None:
        return Row(name, rate, None, None, None)
    ratio = beside / seconds
    if least is None:
        return Row(name, rate, ratio, None, None)
    return Row(name, rate, ratio, f">= {least:g}", ratio >= least)


def main() -> None:
    """Print the rows."""
    for row in run():
        print(*row, sep="\t")


if __name__ == "__main__":
    main()
