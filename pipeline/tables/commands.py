"""``sej sql``, ``sej export`` and ``sej ship``."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from hub.credentials import credentials, option_names
from pipeline.options import VALUE_FORMATS, VALUE_MODES
from sej.cli.shared.command import DURATION, PLACE, SIZE
from sej.cli.shared.options import range_options
from sej.cli.shared.text import counted

if TYPE_CHECKING:
    import pyarrow as pa

    from hub.wire import ClientTLS
    from pipeline.tables.table import Table


_COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "none")
_FORMATS: Final = ("table", "csv", "json", "parquet")
_BATCH_ROWS: Final = 1 << 20
_NAMED: Final = re.compile(r"([A-Za-z_]\w*)=(.+)", re.DOTALL)
Given = dict[str, Any]
"""Arguments of a table, from the command line."""


_COLUMNS: Final = click.option("--columns", help="Names of columns, separated by commas; default: all.")
_WHERE: Final = click.option("--where", help='Conditions joined by AND, as in "shard = 3 AND offset >= 1000".')
_START: Final = click.option("--start", type=PLACE, help="Start at this offset or time; default: the first message.")


def hub_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a hub; the command gets ``way``: arguments of a table."""

    @click.option("--hub", help="Read from a hub, host:port; the first path is then a client or journal there.")
    @credentials
    @functools.wraps(command)
    def run(hub: str | None, token: str | None, tls: ClientTLS | None, **rest: Any) -> None:
        if hub is None and not (token is None and tls is None):
            raise click.UsageError("the options of tokens and certificates are for a hub: pass its address with --hub")
        if hub is not None:
            from pipeline.connection import Remote

            with option_names():
                Remote.named(hub, token, tls)
        command(way={"hub": hub, "token": token, "tls": tls}, **rest)

    return run


def _reading_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say how journals are read; the command gets them as ``way``."""

    @click.option("--pattern", help="Only directories whose whole name matches, a regular expression or a glob.")
    @click.option("--client", "clients", multiple=True, help="Only this client of a hub; may be repeated.")
    @hub_options
    @click.option("--no-verify", is_flag=True, help="Do not check the messages against the index's checksums.")
    @click.option("--skip-damage", is_flag=True, help="Pass damaged messages, and log each place.")
    @click.option("--schema", help="Columns from the values, as 'id bigint, at timestamp'; default: as kept.")
    @click.option("--value-format", type=click.Choice(VALUE_FORMATS), default="json", help="What the values are.")
    @click.option("--definition", help="Avro: the schema, as JSON or a file. Protobuf: FILE:MESSAGE.")
    @click.option("--mode", type=click.Choice(VALUE_MODES), default="permissive", help="If a value does not fit.")
    @functools.wraps(command)
    def run(pattern: str | None, clients: tuple[str, ...], way: Given, **rest: Any) -> None:
        how = {"verify": not rest.pop("no_verify"), "on_corruption": "skip" if rest.pop("skip_damage") else "raise"}
        values = {name: rest.pop(name) for name in ("schema", "definition", "mode")}
        values |= {"format": rest.pop("value_format"), "pattern": pattern, "clients": clients or None}
        command(way=way | how | values, **rest)

    return run


def _table(path: str | None, way: Given, **more: Any) -> Table:
    from pipeline.tables.table import table

    return table(path, **way, **more)


def _write_file(found: pa.RecordBatchReader, form: str, path: str) -> None:
    from pipeline.tables.output import write_file

    click.echo(f"{counted(write_file(found, form, path), 'row')} written to {path}", err=True)


def _names(columns: str | None) -> list[str] | None:
    return None if columns is None else [name.strip() for name in columns.split(",")]


def _named(paths: tuple[str, ...], *, from_hub: bool) -> dict[str, str | None]:
    """Return the paths by the names of their tables.

    Raises:
        click.UsageError: two paths have one name.
    """
    found: dict[str, str | None] = {} if paths or not from_hub else {"hub": None}
    for given in paths:
        match = None if os.path.lexists(given) else _NAMED.fullmatch(given)
        path = given if match is None else match[2]
        base = path if from_hub else os.path.basename(os.path.abspath(path)).removesuffix(".tq")
        name = match[1] if match is not None else re.sub(r"\W", "_", base, flags=re.ASCII)
        name = f"_{name}" if name[:1].isdigit() or not name else name
        if name.lower() in {known.lower() for known in found}:
            raise click.UsageError(
                f"two paths would be the table {name!r}; give one another name, as in {name}2={path}"
            )
        found[name] = path
    if not found:
        raise click.UsageError("expected at least one PATH, the table of the query")
    return found


@click.command
@click.argument("query")
@click.argument("paths", metavar="[NAME=]PATH...", nargs=-1)
@click.option(
    "--format",
    "form",
    type=click.Choice(_FORMATS),
    help="json: one object per line. Default: the suffix of --output, else table.",
)
@click.option("--json", is_flag=True, help="Like --format json.")
@click.option("-o", "--output", help="Write to this file, which is replaced when the query has ended.")
@range_options
@_reading_options
def sql(query: str, paths: tuple[str, ...], form: str | None, json: bool, output: str | None, **given: Any) -> None:
    """Answer a SQL QUERY over journals, hubs, .tq files and Kestrel queues, with DuckDB.

    Each PATH is a table with the name of its last part, without .tq; all characters but letters, digits and _ become
    _. NAME=PATH gives another name. key and value are text: JSON is read by value->>'$.x'. key_bytes and value_bytes
    are the bytes. timestamp is a time in UTC. Write the column offset as "offset", because OFFSET is a word of SQL.

    Example: sej sql "SELECT key, count(*) FROM orders GROUP BY key" orders
    """
    from pipeline.paths import local_target
    from pipeline.tables.output import SUFFIXES, format_of, write_text
    from pipeline.tables.query import Query

    output = None if output is None else local_target(output)
    if json and form not in (None, "json"):
        raise click.UsageError(f"--json and --format {form} exclude each other; leave out one")
    form = "json" if json else form
    if form is None:
        form = "table" if output is None else format_of(output)
    if form is None:
        *most, last = SUFFIXES
        known = f"{', '.join(most)} or {last}"
        raise click.UsageError(f"--output {output}: expected a file that ends with {known}, or a --format")
    if form == "parquet" and output is None:
        raise click.UsageError("--format parquet needs --output: Parquet is not for a terminal or a pipe")
    names = _named(paths, from_hub=given["way"]["hub"] is not None)
    with Query({name: _table(path, **given) for name, path in names.items()}) as opened:
        found = opened.run(query)
        if output is None:
            write_text(found, form, sys.stdout.buffer)
        else:
            _write_file(found, form, output)


@click.command
@click.argument("path")
@click.argument("target")
@_COLUMNS
@_WHERE
@range_options
@_reading_options
def export(path: str, target: str, columns: str | None, where: str | None, **given: Any) -> None:
    """Write the messages of PATH to one file: TARGET ends with .parquet, .arrow, .csv or .jsonl.

    TARGET is replaced when everything is written: if the command dies, it is as it was.

    Example: sej export --start yesterday orders orders.parquet
    """
    from pipeline.paths import local_target
    from pipeline.tables.output import format_of

    target = local_target(target)
    form = "arrow" if target.lower().endswith((".arrow", ".feather")) else format_of(target)
    if form in (None, "table"):
        raise click.UsageError(f"{target}: expected a file that ends with .parquet, .arrow, .csv or .jsonl")
    found = _table(path, **given, columns=_names(columns), where=where).to_reader()
    _write_file(found, form, target)


@click.command
@click.argument("path")
@click.argument("target", metavar="parquet:DIR|delta:DIR|iceberg:DIR")
@click.option("-f", "--follow", is_flag=True, help="Then ship new messages as they arrive, until interrupted.")
@click.option("--reader", help="Commit the progress under this reader name; default: one for each target.")
@click.option("--batch-bytes", type=SIZE, default="64M", show_default=True, help="The size of a file or commit.")
@click.option(
    "--batch-age", type=DURATION, default="60s", show_default=True, help="With --follow: ship at least this often."
)
@click.option("--join", is_flag=True, help="Add rows to the newest file while it is smaller than --batch-bytes.")
@click.option(
    "--compression", type=click.Choice(_COMPRESSIONS), default="zstd", show_default=True, help="Of the Parquet files."
)
@_COLUMNS
@_WHERE
@_START
@_reading_options
def ship(
    path: str,
    target: str,
    follow: bool,
    reader: str | None,
    batch_bytes: int,
    batch_age: float,
    join: bool,
    compression: str,
    columns: str | None,
    where: str | None,
    start: Any,
    way: Given,
) -> None:
    """Add new messages of PATH to a directory of Parquet files, a Delta table or an Iceberg table, each message once.

    The target keeps the offsets with the rows, so the command continues there whenever it was killed. It also commits
    them under a reader name in the journals, so that retention waits; with --hub only if --reader is given. --start
    applies to journals that the target and the reader do not know. With --join, a run replaces the newest Parquet file
    by one that also has the new rows, or compacts the Delta table.

    Example: sej ship --follow orders delta:/lake/orders
    """
    from pipeline.tables.shipping import default_reader, target_of
    from pipeline.tables.shipping import ship as run

    place = target_of(target, compression=compression, join_bytes=batch_bytes if join else 0)
    name = reader or (default_reader(target) if way["hub"] is None else None)  # a hub's token may only read
    rows = run(
        path,
        place,
        reader=name,
        columns=_names(columns),
        start=start,
        where=where,
        batch_rows=_BATCH_ROWS,
        batch_bytes=batch_bytes,
        batch_age_s=batch_age if follow else float("inf"),
        timeout=None if follow else 0.0,
        **way,
    )
    click.echo(f"{counted(rows, 'row')} added to {target}", err=True)
