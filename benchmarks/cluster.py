"""Journals in Spark on a cluster: through a hub, from files and from Parquet. Ratios count, rates are this machine's.

``local-cluster[2,1,1024]``: two executors of one core each, in processes of their own, and hubs in further processes.
All share one disk, so that files and a hub can be compared. 2,000,000 rows (``SEJ_BENCH_CLUSTER_ROWS``), 13-byte keys,
100-byte values that do not compress, 8 journals, page cache warm, median of interleaved rounds after a warm-up.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyspark

import sej
from benchmarks.measure import Row, folder, row, start_session, tree_cpu

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = int(os.environ.get("SEJ_BENCH_CLUSTER_ROWS", "2000000"))
ROUNDS = 5
SHARDS = 8
BATCH = 50_000
KEYS = 200_000
COLUMNS = ("offset BIGINT", "timestamp_ns BIGINT", "type INT", "key BINARY", "value BINARY")
FIVE = ", ".join(f"{column} NOT NULL" for column in COLUMNS)
SOURCE = "bench.orders.3"
STREAM_S = 30.0
WARM_UP_S = 10.0
SERVE = [sys.executable, "-c", "from hub.cli import app; app(prog_name='sej hub')", "serve", "--address", "127.0.0.1:0"]
CERTIFICATE = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=hub"


def run() -> list[Row]:
    """Everything; rows of (name, rate, ratio, target, ok)."""
    with ExitStack() as stack:
        where = stack.enter_context(folder())
        root = where / "hub"
        _fill(root)
        shutil.copytree(root, where / "tls")  # a root has one server
        work = Path(pyspark.__file__).with_name("work")  # where its workers write, whatever is set
        if not work.exists():
            stack.callback(shutil.rmtree, work, ignore_errors=True)
        spark = start_session("local-cluster[2,1,1024]", where, {"spark.executor.memory": "1g", "spark.cores.max": "2"})
        stack.callback(spark.stop)
        plain = {"hub": stack.enter_context(_hub(root))}
        tls = {"hub": stack.enter_context(_hub(where / "tls", *_certificate(where))), "hubCa": str(where / "hub.pem")}
        return [*_reads(spark, where, plain, tls), *_writes(spark, where, plain, tls), *_latency(spark, root, plain)]


def _fill(root: Path) -> None:
    rng = random.Random(1)
    for number in range(SHARDS):
        with sej.Writer(root / f"{SOURCE}.{number:03x}") as writer:
            for _ in range(0, ROWS // SHARDS, BATCH):
                blob = rng.randbytes(100 * BATCH)
                values = [blob[at : at + 100] for at in range(0, len(blob), 100)]
                writer.append_many(values, [b"key%010d" % rng.randrange(KEYS) for _ in range(BATCH)])


def _certificate(folder: Path) -> list[str]:
    certificate, key = str(folder / "hub.pem"), str(folder / "hub.key")
    command = [*CERTIFICATE.split(), "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    return ["--certificate", certificate, "--key", key]


@contextmanager
def _hub(root: Path, *options: str) -> Iterator[str]:
    """The address of a hub in a process of its own."""
    process = subprocess.Popen([*SERVE, *options, str(root)], text=True, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield next(word for word in process.stdout.readline().split() if word.startswith("127.0.0.1:")).rstrip(",;.")
    finally:
        process.kill()
        process.communicate()


class _Took(NamedTuple):
    """Medians of seconds, by the clock and of CPU in all processes."""

    wall: float
    cpu: float


def _interleaved(actions: dict[str, Callable[[], object]]) -> dict[str, _Took]:
    """What each takes, after a first call that compiles its code."""
    found: dict[str, list[_Took]] = {name: [] for name in actions}
    for _ in range(ROUNDS + 1):
        for name, action in actions.items():
            wall, cpu = time.perf_counter(), tree_cpu()
            action()
            found[name].append(_Took(time.perf_counter() - wall, tree_cpu() - cpu))
    return {name: _Took(*map(statistics.median, zip(*took[1:], strict=True))) for name, took in found.items()}


def _beside(name: str, took: _Took, beside: _Took, least: float | None = None) -> Iterator[Row]:
    """Two rows, by the clock and of CPU; the target is of CPU."""
    yield _rate(name, took.wall, beside.wall)
    yield _rate(f"{name}, CPU", took.cpu, beside.cpu, least)


def _rate(name: str, seconds: float, beside: float | None = None, least: float | None = None) -> Row:
    rate = f"{ROWS / seconds / 1e6:.2f} M rows/s"
    return Row(name, rate, None, None, None) if beside is None else row(name, rate, beside / seconds, least)


def _reads(spark: SparkSession, folder: Path, plain: dict[str, str], tls: dict[str, str]) -> list[Row]:
    def load(place: str, **options: str) -> DataFrame:
        return spark.read.format("sej").schema(FIVE).options(**options).load(place)

    load(SOURCE, **plain).write.parquet(str(folder / "parquet"))
    frames = {
        "Parquet": spark.read.parquet(str(folder / "parquet")),
        "files": load(str(folder / "hub")),
        "files, verify=false": load(str(folder / "hub"), verify="false"),
        "hub": load(SOURCE, **plain),
        "hub, verify=false": load(SOURCE, verify="false", **plain),
        "hub, TLS": load(SOURCE, **tls),
    }
    rows = []
    for what, least in (("noop", 1.0), ("group by key", 0.8)):
        took = _interleaved({name: _read(frame, what) for name, frame in frames.items()})
        times = {name: each.wall for name, each in took.items()}
        rows += [
            _rate(f"{what}: Parquet", times["Parquet"]),
            *_beside(f"{what}: files over Parquet", took["files"], took["Parquet"], least),
            *_beside(f"{what}: files, verify=false, over Parquet", took["files, verify=false"], took["Parquet"]),
            _rate(f"{what}: hub over files", times["hub"], times["files"]),
            _rate(f"{what}: hub with TLS over plain", times["hub, TLS"], times["hub"], 0.87),
            _rate(f"{what}: hub over verify=false", times["hub"], times["hub, verify=false"]),
        ]
    return rows


def _read(frame: DataFrame, what: str) -> Callable[[], object]:
    wanted = frame if what == "noop" else frame.groupBy("key").count()
    return lambda: wanted.write.format("noop").mode("overwrite").save()


def _writes(spark: SparkSession, folder: Path, plain: dict[str, str], tls: dict[str, str]) -> list[Row]:
    sent = spark.read.parquet(str(folder / "parquet")).select("key", "value", "type", "timestamp_ns")
    places = {"local": (str(folder / "sink"), {}), "hub": ("spark", plain), "TLS": ("spark", tls)}

    def write(name: str) -> Callable[[], object]:
        place, options = places[name]
        writer = sent.write.format("sej").options(prefix="copied", bits="3", **options).mode("append")
        return lambda: writer.save(place)

    parquet = sent.write.mode("overwrite")
    actions = {name: write(name) for name in places} | {"Parquet": lambda: parquet.parquet(str(folder / "sent"))}
    took = _interleaved(actions)
    times = {name: each.wall for name, each in took.items()}
    return [
        _rate("write: local sink", times["local"]),
        *_beside("write: local sink over Parquet", took["local"], took["Parquet"], 0.5),
        _rate("write: hub over the local sink", times["hub"], times["local"], 0.8),
        _rate("write: hub with TLS over plain", times["TLS"], times["hub"], 0.87),
    ]


def _latency(spark: SparkSession, root: Path, plain: dict[str, str]) -> list[Row]:
    """From append to the rows in foreachBatch, through the hub."""
    delays: list[float] = []
    stop = threading.Event()
    started = time.monotonic()

    def append() -> None:
        with sej.Writer(root / "bench.live") as writer:
            writer.append(b"first")
            while not stop.wait(0.02):
                writer.append(b"x" * 100)

    def see(frame: DataFrame, number: int) -> None:
        stamps = [stamp for (stamp,) in frame.collect()]
        if time.monotonic() - started > WARM_UP_S:
            delays.extend((time.time_ns() - stamp) / 1e6 for stamp in stamps)

    thread = threading.Thread(target=append)
    thread.start()
    try:
        stream = spark.readStream.format("sej").options(startingOffsets="latest", **plain).load("bench.live")
        query = stream.select("timestamp_ns").writeStream.foreachBatch(see)
        running = query.option("checkpointLocation", str(root.parent / "checkpoint")).start()
        running.awaitTermination(int(STREAM_S))
        running.stop()
    finally:
        stop.set()
        thread.join()
    return [
        Row("stream: append to visible, p50", f"{statistics.median(delays):.0f} ms", None, None, None),
        Row("stream: append to visible, p99", f"{np.percentile(delays, 99):.0f} ms", None, None, None),
    ]
