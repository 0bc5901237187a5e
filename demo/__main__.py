"""Run the whole way once: ``python -m demo`` (or ``make demo``, which sets everything up first).

Three airports append, a hub collects, Spark reads the hub's root. Every number on the way is compared with the input;
the exit code is 1 if one differs. Everything that it writes is in ``artifacts/demo``.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

import hub
import pipeline
from demo import analysis, chart, flights, review
from demo.collect import collect
from demo.report import Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path("artifacts/demo")
MACHINES, HUB, DELAYS, CHART, REVIEW = (
    ROOT / name for name in ("machines", "hub", "delays.parquet", "delays.png", "review.tq")
)


def main() -> int:
    """Everything; returns the exit code."""
    console = Console() if sys.stdout.isatty() else Console(width=100)
    report = Report(console)
    console.rule("[bold]SEJ: a year of New York's flights, from append to result")
    for old in (MACHINES, HUB):  # the last run's; review.tq stays, it may hold a person's work
        shutil.rmtree(old, ignore_errors=True)
    ROOT.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(1) as aside:
        starting = aside.submit(start_spark)  # takes seconds: meanwhile the others work
        with report.timed("read the input"):
            expected = flights.totals()
        report.expect(expected)
        with report.timed("append and collect"):
            appended, collected = transport(console, expected)
        with report.timed("start Spark (beside the others)"):
            spark = starting.result()
    try:
        analyse(console, report, spark)
    finally:
        spark.stop()
    report.check_transport(appended, collected)
    return report.summary(ROOT)


def start_spark() -> SparkSession:
    """A session for two cores, quiet."""
    spark = pipeline.session(
        "demo",
        master="local[2]",
        conf={
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": str((ROOT / "warehouse").resolve()),
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def transport(console: Console, expected: dict[str, flights.Totals]) -> tuple[dict[str, int], dict[str, int]]:
    """Run the airports' processes, and the hub beside them; returns what each appended and what the hub took."""
    total = sum(airport.flights for airport in expected.values())
    with bars(console) as progress, hub.Store(HUB) as store, ThreadPoolExecutor(len(expected)) as copiers:
        tasks = {name: progress.add_task(f"{name} appends", total=expected[name].flights) for name in expected}
        hub_task = progress.add_task("the hub takes", total=total)
        producers = {name: start_producer(name) for name in expected}
        ends = {name: threading.Event() for name in expected}
        copying: dict[str, Future[int]] = {
            name: copiers.submit(
                collect, store, name, MACHINES / name, ends[name], lambda count: progress.advance(hub_task, count)
            )
            for name in expected
        }
        appended: dict[str, int] = {}
        watchers = [
            threading.Thread(target=watch, args=(producers[name], progress, tasks[name], appended, name))
            for name in expected
        ]
        for watcher in watchers:
            watcher.start()
        for watcher, end in zip(watchers, ends.values(), strict=True):
            watcher.join()
            end.set()
        return appended, {name: copied.result() for name, copied in copying.items()}


def start_producer(airport: str) -> subprocess.Popen[str]:
    """One airport's process."""
    command = [sys.executable, "-m", "demo.producer", airport, str(MACHINES / airport)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def watch(
    producer: subprocess.Popen[str], progress: Progress, task: TaskID, appended: dict[str, int], name: str
) -> None:
    """Show how far a producer is, until it ends."""
    assert producer.stdout is not None
    appended[name] = 0
    with producer.stdout as lines:
        for line in lines:
            appended[name] = int(line)
            progress.update(task, completed=appended[name])
    if producer.wait() != 0:
        appended[name] = -1


@contextmanager
def bars(console: Console) -> Iterator[Progress]:
    """Progress bars; on something that is no terminal, their last state."""
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
    report.show_review(REVIEW, found)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    sys.exit(main())
