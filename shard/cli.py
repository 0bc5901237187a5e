"""``sej shard ls | check | reshard | work``: sharded journals from the command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path as FilePath
from typing import Any, Final

import click

from sej.cli.shared.command import (
    DURATION,
    JSON,
    PATH,
    Exit,
    IntRange,
    ProgramCommand,
    print_row,
    progress_bar,
    require_program,
    run_program,
)
from sej.journal.directory import is_journal
from sej.journal.view import Journal
from sej.message import Message
from sej.system.disk import OS
from shard.checking import check as check_root
from shard.names import Path, find
from shard.routing import HASHES, Hash
from shard.scanner import lag
from shard.worker import Worker

_ROOT: Final = click.argument("root", metavar="ROOT", type=PATH)
_TREE: Final = click.argument("tree", metavar="ROOT/PREFIX.BIT")


@click.group("shard")
def app() -> None:
    """Sharded journals: list and check them, change the number of shards, run workers.

    A sharded journal is named ROOT/PREFIX.BIT, like its shards without their index: data/orders.3 is data/orders.3.000
    to data/orders.3.007. The bit is hexadecimal.
    """


@app.command("ls")
@_ROOT
@JSON
@click.option("--reader", help="Also show the lag of the reader of this name; for sharded journals.")
def list_(root: FilePath, json: bool, reader: str | None) -> None:
    """List the SEJ directories under a root: first offset, next offset, bytes, and the fields of the name.

    Example: sej shard ls --reader mailer data
    """
    tree = find(root)
    behind: dict[tuple[str | None, int | None, int | None], Any] = {}
    if reader is not None:
        for path in tree.paths:
            behind |= {(path.prefix, path.bits, row.index): row for row in lag(path, reader)}
    for found in tree:
        journal = Journal(found.path)
        row: dict[str, Any] = {
            "path": found.path,
            "layout": tree.layout,
            "client": found.client,
            "prefix": found.prefix,
            "bits": found.bits,
            "index": found.index,
            "first_offset": journal.first_offset,
            "end_offset": journal.end_offset,
            "bytes": sum(segment.size for segment in journal.segments),
        }
        late = behind.get((found.prefix, found.bits, found.index))
        if late is not None:
            row |= {"lag_messages": late.messages, "lag_bytes": late.bytes, "lag_s": round(late.seconds, 3)}
        shown = [found.name, row["first_offset"], row["end_offset"], row["bytes"]]
        shown += [f"{late.messages} behind, {late.seconds:.1f} s"] if late is not None else []
        print_row(row, "\t".join(map(str, shown)), json)


@app.command()
@_ROOT
@JSON
def check(root: FilePath, json: bool) -> None:
    """Report problems of a root: two bit counts, missing shards, keys in two shards, foreign files.

    Exit code 1: there are problems. Of each shard, the first and last 1,000 messages are read for their keys.

    Example: sej shard check data
    """
    problems = check_root(root)
    for problem in problems:
        print_row(problem._asdict(), problem, json)
    if problems:
        raise SystemExit(Exit.WRONG)


@app.command()
@click.argument("source", metavar="ROOT/PREFIX.BIT")
@click.argument("target", metavar="ROOT/PREFIX.BIT")
@click.option(
    "--route",
    type=click.Choice(HASHES),
    help="The hash of the keys: xxh64, or fnv as in the original's example; default: the hash of the old one.",
)
def reshard(source: str, target: str, route: Hash | None) -> None:
    """Copy a sharded journal into one with another number of shards; after an interrupt, the same command starts again.

    Example: sej shard reshard data/orders.3 data/orders.5
    """
    from shard.resharding import reshard as run

    with progress_bar("messages") as progress:
        done = run(tree_of(source), tree_of(target), route=route, progress=progress)
    readers = f"; readers moved: {', '.join(done.readers)}" if done.readers else ""
    click.echo(f"{done.messages} messages in {done.shards} shards{readers}; the old sharded journal still exists")


@app.command(cls=ProgramCommand)
@_TREE
@click.argument("name", metavar="NAME")
@click.argument("command", metavar="-- PROGRAM [ARGUMENT]...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--max-attempts",
    type=IntRange(min=1),
    default=5,
    show_default=True,
    help="Attempts before a message becomes a dead letter.",
)
@click.option("--dead-letter", type=PATH, help="The journal for dead letters.")
@click.option("--timeout", type=DURATION, help="End after this time without a message, as in 30s.")
def work(tree: str, name: str, command: tuple[str, ...], timeout: float | None, **options: Any) -> None:
    """Run a program for each message, as one of the workers NAME; the value is the program's standard input.

    The environment has SEJ_SHARD, SEJ_OFFSET, SEJ_TYPE, SEJ_TIMESTAMP_NS and SEJ_KEY. An exit code other than 0 is a
    failure. SIGTERM ends the worker after the current message.

    Example: sej shard work data/orders.3 mailer -- ./send-mail
    """

    def handle(index: int, message: Message) -> None:
        variables = {"offset": message.offset, "type": message.type, "timestamp_ns": message.timestamp}
        failed = run_program(command, message.value, message.key, shard=index, **variables)
        if failed is not None:
            raise RuntimeError(f"{command[0]}: {failed}")

    require_program(command)
    path = tree_of(tree)
    if os.path.isdir(path.root) and not any(is_journal(OS, path.dir(index)) for index in range(path.count)):
        others = [other.name for other in find(path.root).paths]
        has = f"; {path.root} has {', '.join(others)}" if others else ""
        if timeout == 0:
            raise FileNotFoundError(f"{tree}: this sharded journal has no shard{has}")
        click.echo(f"sej: {tree}: this sharded journal has no shard yet{has}; waiting for the first", err=True)
    handled = Worker(path, name, timeout=timeout, **options).run(handle)
    if sys.stderr.isatty():
        click.echo(f"{handled} messages handled", err=True)


def tree_of(text: str) -> Path:
    """Return a sharded journal by its name on the command line: ``data/orders.3``, ``data/3`` or ``data/orders``.

    Example:
        >>> tree_of("data/orders.a/"), tree_of("orders")
        (shard.Path('data', prefix='orders', bits=10), shard.Path('.', prefix='orders', bits=0))
        >>> tree_of("/abs/3")
        shard.Path('/abs', prefix='', bits=3)
    """
    root, _, name = text.rstrip("/").rpartition("/")
    prefix, _, bit = name.rpartition(".")
    if len(bit) == 1 and bit in "123456789a":
        return Path(root or ".", prefix, int(bit, 16))
    return Path(root or ".", name, 0)
