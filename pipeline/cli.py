"""``sej spark count | archive | restore | reshard | compact | dedupe | stats | finish``."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from pipeline.tables.commands import Given, hub_options
from sej.cli.shared.command import JSON, IntRange, print_row
from sej.errors import JournalNotFoundError, SejError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PREFIX: Final = click.option("--prefix", help="Prefix of the target's shards.")
_BITS: Final = click.option("--bits", type=IntRange(0, 10), help="2**bits shards.")
_MASTER: Final = click.option(
    "--master", help="Spark's master; default: Spark's own setting, or all cores of this machine."
)


def _local(_: click.Context, __: click.Parameter, given: str) -> Path:
    """Return a path on a local disk, or a name on a hub; an address raises OptionError with its own slashes."""
    from pipeline.paths import local_path

    return Path(local_path(given))


_ROOT: Final = click.argument("root", callback=_local)
_SOURCE: Final = click.argument("source", callback=_local)
_TARGET: Final = click.argument("target", callback=_local)


@click.group("spark")
def app() -> None:
    """Jobs over journals with Spark. A job that was stopped continues when it is run again."""


@contextmanager
def _spark(master: str | None) -> Iterator[SparkSession]:
    """Start a session, with Spark's own progress bar; a Spark error is reduced to its first lines."""
    from pyspark.errors import PySparkException

    from pipeline.sessions import session

    conf = {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(), "spark.log.level": "ERROR"}
    try:
        spark = session("sej spark", master=master, conf=conf)
        try:
            yield spark
        finally:
            spark.stop()
    except PySparkException as error:
        raise SejError(_reason(str(error))) from None


def _reason(text: str) -> str:
    """Return the essential lines of a Spark error: its first line, and the error of a Python worker."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"(?:\w+\.)+\w*Error: ", line)]
    return "; ".join(dict.fromkeys([*lines[:1], *raised[:1]])) or "Spark failed without a message"


def _total(root: Path, way: Given | None = None) -> int:
    import pipeline

    return pipeline.count(root, **(way or {}))


@app.command()
@_ROOT
@click.option("--json", is_flag=True, help="Print one JSON object.")
@hub_options
def count(root: Path, json: bool, way: Given) -> None:
    """Print how many messages are below ROOT, from the index, without Spark.

    Lost messages are counted until `sej repair` has recorded their gap. `sej count` fails there.

    Example: sej spark count data
    """
    messages = _total(root, way)
    print_row({"messages": messages}, messages, json)


def _run(job: str, *places: Path | str, master: str | None, way: Given, **options: Any) -> Any:
    """Run a job of :mod:`pipeline.jobs`; without a journal it fails before Spark starts, which takes long."""
    from pipeline import jobs

    _total(Path(places[0]), way)
    with _spark(master) as spark:
        return getattr(jobs, job)(spark, *places, **options, **way)


@app.command()
@_ROOT
@click.argument("target")
@click.option("--reader", help="Commit the progress under this reader name, so that retention waits for the archive.")
@hub_options
@_MASTER
def archive(root: Path, target: str, **options: Any) -> None:
    """Add new messages below ROOT to an archive of Parquet files by day and shard.

    TARGET is a path, or the address of a file system that Spark can write, as in s3a://bucket/orders.

    Example: sej spark archive --reader archive data /archive/orders
    """
    click.echo(f"{_run('archive', root, target, **options)} messages added to {target}")


@app.command()
@click.argument("source")
@_ROOT
@_PREFIX
@_BITS
@click.option("--where", help="A condition on the archive's columns.")
@_MASTER
def restore(source: str, root: Path, master: str | None, **options: Any) -> None:
    """Write an archive back into journals: ROOT is one SEJ directory, or with --bits a sharded journal.

    Example: sej spark restore --prefix orders --bits 3 --where "day >= '2026-01-01'" /archive/orders restored
    """
    from pipeline import jobs
    from pipeline.paths import file_system, spark_path

    if file_system(source) is None and not os.path.exists(
        spark_path(source)
    ):  # Spark starts slowly and has a less clear error for this
        raise FileNotFoundError(f"{source}: there is no archive; `sej spark archive` creates one")
    with _spark(master) as spark:
        jobs.restore(spark, source, root, **options)
    click.echo(f"{_total(root)} messages in {root}")


@app.command()
@_SOURCE
@_TARGET
@_PREFIX
@click.option("--bits", type=IntRange(0, 10), required=True, help="2**bits shards.")
@click.option("--pattern", help="Only source directories whose name matches.")
@hub_options
@_MASTER
def reshard(source: Path, target: Path, **options: Any) -> None:
    """Copy journals into a sharded journal with another number of shards.

    Example: sej spark reshard --prefix orders --bits 5 data wider
    """
    click.echo(f"{_run('reshard', source, target, **options)} messages copied to {target}")


@app.command()
@_SOURCE
@_TARGET
@_PREFIX
@_BITS
@click.option("--keep-deleted", is_flag=True, help="Keep messages with an empty value.")
@hub_options
@_MASTER
def compact(source: Path, target: Path, **options: Any) -> None:
    """Copy the latest message of each key; an empty value deletes its key.

    Example: sej spark compact state compacted
    """
    _run("compact", source, target, **options)
    click.echo(f"{_total(target)} messages in {target}")


@app.command()
@_SOURCE
@_TARGET
@_PREFIX
@_BITS
@click.option("--by", default="key,value", show_default=True, help="Columns that decide whether messages are equal.")
@hub_options
@_MASTER
def dedupe(source: Path, target: Path, by: str, **options: Any) -> None:
    """Copy only the first of equal messages.

    Example: sej spark dedupe --by key,type,value data distinct
    """
    _run("dedupe", source, target, by=by.split(","), **options)
    click.echo(f"{_total(target)} messages in {target}")


@app.command()
@_ROOT
@JSON
@hub_options
@_MASTER
def stats(root: Path, json: bool, **options: Any) -> None:
    """Print sizes, rates, skewed keys, gaps and disorder, by directory.

    Example: sej spark stats data
    """
    import pyarrow as pa

    from pipeline.tables.output import write_text

    rows = [
        {"directory": stat.name, **stat._asdict(), "top_key": stat.top_key.decode("utf-8", "backslashreplace")}
        for stat in _run("stats", root, **options)
    ]
    write_text(pa.Table.from_pylist(rows).to_reader(), "json" if json else "table", sys.stdout.buffer)


@app.command()
@_ROOT
@click.option("--discard", is_flag=True, help="Remove jobs whose staged rows were lost; prints what is missing.")
def finish(root: Path, discard: bool) -> None:
    """Finish jobs that had committed to ROOT and died, and remove the files of other dead jobs; needs no Spark.

    The next job on ROOT does the same. A committed job whose staged rows were lost stops both: --discard removes it.

    Example: sej spark finish data
    """
    from pipeline.health import target_of
    from shard.committing import discard_dead_jobs, finish_dead_jobs

    if not root.exists():
        raise JournalNotFoundError("the path does not exist; expected a directory of journals", path=root)
    with target_of(root) as target:
        if discard:
            for job in discard_dead_jobs(target):
                click.echo(
                    f"discarded job {job.job}: {job.appended} of its messages are in the journals, {job.lost} are lost"
                    f" unless it is run again; {job.reason}"
                )
        else:
            finish_dead_jobs(target)
    click.echo(f"no unfinished jobs in {root}")
