"""``sej spark count | archive | restore | reshard | compact | dedupe | stats | import-kestrel | finish``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["app", "archive", "compact", "count", "dedupe", "finish", "import_kestrel", "reshard", "restore", "stats"]

_PATH: Final = click.Path(path_type=Path)
_PREFIX: Final = click.option("--prefix", help="Of the target's shards.")
_BITS: Final = click.option("--bits", type=click.IntRange(0, 10), help="2**bits shards.")
_MASTER: Final = click.option("--master", help="Spark's master; not given: as Spark is set up, else all cores here.")


@click.group("spark")
def app() -> None:
    """Jobs over journals with Spark. Each may be stopped, and goes on where it was when it is run again."""


@contextmanager
def _spark(master: str | None) -> Iterator[SparkSession]:
    import pipeline

    conf = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    session = pipeline.session("sej spark", master=master, conf=conf)
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _bar(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error: standard output is for results."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)


def _total(root: Path) -> int:
    import pipeline

    return pipeline.count(root)


@app.command()
@click.argument("root", type=_PATH)
def count(root: Path) -> None:
    """How many messages are below ROOT, from the index, without Spark."""
    click.echo(_total(root))


@app.command()
@click.argument("root", type=_PATH)
@click.argument("target", type=_PATH)
@click.option("--reader", help="Keep the progress under this name, so that retention waits for the archive.")
@_MASTER
def archive(root: Path, target: Path, reader: str | None, master: str | None) -> None:
    """Add what is new below ROOT to an archive of Parquet files by day and shard."""
    from pipeline import jobs

    with _spark(master) as spark, _bar("archive", _total(root)) as progress:
        added = jobs.archive(spark, root, target, reader=reader, progress=progress)
    click.echo(f"{added} messages added to {target}")


@app.command()
@click.argument("source", type=_PATH)
@click.argument("root", type=_PATH)
@_PREFIX
@_BITS
@click.option("--where", help="A condition on the archive's columns.")
@_MASTER
def restore(
    source: Path, root: Path, prefix: str | None, bits: int | None, where: str | None, master: str | None
) -> None:
    """Write an archive back into journals."""
    from pipeline import jobs

    with _spark(master) as spark, _bar("restore", None):
        jobs.restore(spark, source, root, prefix=prefix, bits=bits, where=where)
    click.echo(f"{_total(root)} messages in {root}")


@app.command()
@click.argument("source", type=_PATH)
@click.argument("target", type=_PATH)
@_PREFIX
@click.option("--bits", type=click.IntRange(0, 10), required=True, help="2**bits shards.")
@click.option("--pattern", help="Only source directories whose name matches.")
@_MASTER
def reshard(source: Path, target: Path, prefix: str | None, bits: int, pattern: str | None, master: str | None) -> None:
    """Copy journals into a tree with another number of shards."""
    from pipeline import jobs

    with _spark(master) as spark, _bar("reshard", _total(source)) as progress:
        copied = jobs.reshard(spark, source, target, prefix=prefix, bits=bits, pattern=pattern, progress=progress)
    click.echo(f"{copied} messages copied to {target}")


@app.command()
@click.argument("source", type=_PATH)
@click.argument("target", type=_PATH)
@_PREFIX
@_BITS
@click.option("--keep-deleted", is_flag=True, help="Keep messages with an empty value.")
@_MASTER
def compact(
    source: Path, target: Path, prefix: str | None, bits: int | None, keep_deleted: bool, master: str | None
) -> None:
    """Keep the latest message of each key."""
    from pipeline import jobs

    with _spark(master) as spark, _bar("compact", None):
        jobs.compact(spark, source, target, prefix=prefix, bits=bits, keep_deleted=keep_deleted)
    click.echo(f"{_total(target)} messages in {target}")


@app.command()
@click.argument("source", type=_PATH)
@click.argument("target", type=_PATH)
@_PREFIX
@_BITS
@click.option("--by", default="key,value", show_default=True, help="Columns that make messages equal.")
@_MASTER
def dedupe(source: Path, target: Path, prefix: str | None, bits: int | None, by: str, master: str | None) -> None:
    """Keep the first of equal messages."""
    from pipeline import jobs

    with _spark(master) as spark, _bar("dedupe", None):
        jobs.dedupe(spark, source, target, by=by.split(","), prefix=prefix, bits=bits)
    click.echo(f"{_total(target)} messages in {target}")


@app.command()
@click.argument("root", type=_PATH)
@click.option("--chart", type=_PATH, help="Draw a PNG file as well.")
@_MASTER
def stats(root: Path, chart: Path | None, master: str | None) -> None:
    """Sizes, rates, skewed keys, gaps and disorder, by directory."""
    from rich.console import Console
    from rich.table import Table

    from pipeline import jobs

    with _spark(master) as spark, _bar("stats", None):
        found = jobs.stats(spark, root)
    table = Table()
    for name in ("directory", "messages", "missing", "bytes", "mean", "max", "a second", "keys", "top key", "disorder"):
        table.add_column(name, justify="left" if name in ("directory", "top key") else "right")
    for stat in found:
        table.add_row(stat.name, *_cells(stat))
    (Console() if sys.stdout.isatty() else Console(width=200)).print(table)
    if chart is not None:
        jobs.draw(found, chart)
        click.echo(f"drawn to {chart}")


def _cells(stat: Any) -> list[str]:
    rate = "" if stat.rate is None else f"{stat.rate:,.1f}"
    key = stat.top_key.decode("utf-8", "replace")
    return [
        f"{stat.messages:,}",
        f"{stat.missing:,}",
        f"{stat.size:,}",
        f"{stat.mean_value_bytes:,.0f}",
        f"{stat.max_value_bytes:,}",
        rate,
        f"{stat.keys:,}",
        f"{key} ({stat.top_key_share:.0%})",
        f"{stat.disordered:,}",
    ]


@app.command("import-kestrel")
@click.argument("directory", type=_PATH)
@click.argument("queue")
@click.argument("target", type=_PATH)
@click.option("--kind", type=click.Choice(["kestrel", "libkestrel"]), help="Who wrote it; else as its files say.")
@click.option("--reader", help="Of libkestrel: only what this reader has not confirmed.")
def import_kestrel(directory: Path, queue: str, target: Path, kind: Any, reader: str | None) -> None:
    """Append the items of a Kestrel queue to a journal; needs no Spark."""
    from pipeline import jobs

    with _bar("import", None) as progress:
        added = jobs.import_kestrel(directory, queue, target, kind=kind, reader=reader, progress=progress)
    click.echo(f"{added} messages appended to {target}")


@app.command()
@click.argument("root", type=_PATH)
def finish(root: Path) -> None:
    """Finish what dead jobs had committed to ROOT, and remove what others left; needs no Spark.

    The next job on ROOT does the same.
    """
    from pipeline.committing import finish_dead_jobs
    from pipeline.target import Target

    single = (root / "jnl").is_dir()
    finish_dead_jobs(Target(str(root.absolute()), None, None if single else 1))
    click.echo(f"nothing is left to finish in {root}")
