"""Run the whole way once: ``python -m demo`` (or ``make demo``, which sets everything up first).

Three airports append, a hub collects, Spark reads the hub's root: as a stream while they write, and as a table at the
end. Polars then answers the same question. Every number on the way is compared with the input;
the exit code is 1 if one differs. Everything that it writes is in ``artifacts/demo``.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import hub
import pipeline
from demo import again, analysis, chart, flights, review
from demo.live import Live
from demo.report import Report
from hub.wire import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path("artifacts/demo")
MACHINES, HUB, CHECKPOINT, DELAYS, CHART, AGAIN, REVIEW = (
    ROOT / name
    for name in ("machines", "hub", "checkpoint", "delays.parquet", "delays.png", "delays-polars.png", "review.tq")
)


def main() -> int:
    """Everything; returns the exit code."""
    console = Console() if sys.stdout.isatty() else Console(width=100)
    report = Report(console)
    console.rule("[bold]SEJ: a year of New York's flights, from append to result")
    for old in (MACHINES, HUB, CHECKPOINT):  # the last run's; review.tq stays, it may hold a person's work
        shutil.rmtree(old, ignore_errors=True)
    ROOT.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(1) as aside:
        starting = aside.submit(start_spark)  # takes seconds: meanwhile the others work
        with report.timed("read the input"):
            expected = flights.totals()
        report.expect(expected)
        with report.timed("append, collect and stream"):
            moved = transport(console, expected, starting)
    report.check_transport(moved)
    spark = starting.result()
    try:
        analyse(console, report, spark)
    finally:
        spark.stop()
    return report.summary(ROOT)


def start_spark() -> SparkSession:
    """A session for two cores, quiet."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return pipeline.session(
        "demo",
        master="local[2]",
        conf={
            "spark.log.level": "ERROR",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str((ROOT / "warehouse").resolve()),
        },
    )


def transport(
    console: Console, expected: dict[str, flights.Totals], starting: Future[SparkSession]
) -> dict[str, dict[str, int]]:
    """Run the airports' processes, the hub, and Spark's stream; returns what each stage counted, by airport."""
    total = sum(airport.flights for airport in expected.values())
    appended: dict[str, int] = {}
    with bars(console) as progress, hub.Store(HUB) as store, Server(store, "127.0.0.1:0") as server:
        tasks = {name: progress.add_task(f"{name} appends", total=expected[name].flights) for name in expected}
        hub_task = progress.add_task("the hub takes", total=total)
        stream_task = progress.add_task("Spark streams", total=total)
        copied: dict[str, int] = {}

        def show(name: str, count: int, there: int) -> None:
            appended[name], copied[name] = count, there
            progress.update(tasks[name], completed=count)
            progress.update(hub_task, completed=sum(copied.values()))

        watchers = [
            threading.Thread(target=watch, args=(name, start_producer(name, server.address), show)) for name in expected
        ]
        for watcher in watchers:
            watcher.start()
        live = Live(starting.result(), HUB, CHECKPOINT, lambda count: progress.update(stream_task, completed=count))
        for watcher in watchers:
            watcher.join()
        taken = {name: sum(store.end_offset(name, journal) for journal in store.journals(name)) for name in expected}
        live.finish()
    return {
        "appended": appended,
        "taken by the hub": taken,
        "seen by the stream": {name: live.counts.get(name, 0) for name in expected},
    }


def start_producer(airport: str, address: str) -> subprocess.Popen[str]:
    """One airport's process."""
    command = [sys.executable, "-m", "demo.producer", airport, str(MACHINES / airport), address]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def watch(name: str, producer: subprocess.Popen[str], show: Callable[[str, int, int], None]) -> None:
    """Show how far a producer is, until it ends."""
    assert producer.stdout is not None
    show(name, 0, 0)
    with producer.stdout as lines:
        for line in lines:
            count, there = line.split()
            show(name, int(count), int(there))
    if producer.wait() != 0:
        show(name, -1, 0)


@contextmanager
def bars(console: Console) -> Iterator[Progress]:
    """Progress bars; on an output that is not a terminal, only their last state."""
    columns = (
        TextColumn("{task.description:>16}"), BarColumn(40), MofNCompleteColumn(), TextColumn("flights"),
        TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        yield progress


def analyse(console: Console, report: Report, spark: SparkSession) -> None:
    """Ask Spark, draw, and hand the odd ones to a person."""
    with console.status("Spark reads the hub's root"):
        with report.timed("Spark: delays to Parquet"):
            table = analysis.read_flights(spark, HUB)
            delays = analysis.delays(table, DELAYS)
        with report.timed("Spark: flights over six hours late"):
            late = analysis.late_flights(table)
        counted_s = time.perf_counter()
        counted = pipeline.count(HUB)
        counted_s = time.perf_counter() - counted_s
    names = flights.airlines()
    report.show_delays(delays, names)
    chart.draw(delays, names, CHART)
    found = review.fill(REVIEW, late)
    report.check_analysis(delays, late, found, counted, counted_s)
    with report.timed("Polars: the same delays, without Spark"):
        same = again.delays(HUB)
    chart.draw(same, names, AGAIN)
    report.check_again(delays, again.differences(delays, same))
    report.show_review(REVIEW, found)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    sys.exit(main())
