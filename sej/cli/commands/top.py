"""``sej top``: journals live: their growth, their writers, and how far behind their readers are."""

from __future__ import annotations

import json as jsonlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sej.cli.shared.exits import Exit
from sej.cli.shared.keys import quiet_keys, wait
from sej.cli.shared.options import DURATION, JSON
from sej.cli.shared.output import shown
from sej.cli.shared.parameters import PATH
from sej.cli.shared.units import human_duration, human_size, iso_time
from sej.cli.state.watched import SORTS, Sample, Watched

if TYPE_CHECKING:
    from rich.table import Table

_INTERVAL_MIN_S: Final = 0.05
_CHROME_LINES: Final = 6
"""Lines that the table takes in addition to its rows."""
_NARROW: Final = 80
"""In fewer columns, only journal, next offset and readers are shown."""


@click.command
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=PATH)
@JSON
@click.option("--once", is_flag=True, help="Print one sample without rates.")
@click.option("--interval", type=DURATION, default="1s", show_default=True, help="Time between two samples, as in 5s.")
@click.option(
    "--sort", type=click.Choice(list(SORTS)), default="name", show_default=True, help="The column to sort by."
)
def top(paths: tuple[Path, ...], json: bool, once: bool, interval: float, sort: str) -> None:
    """Watch journals: messages and bytes a second, writers, and how far behind the readers are.

    A PATH is a SEJ directory, or a directory of them (a sharded journal, a hub); default: the current directory.
    Journals that are created later are found too. A terminal shows a table, until q or an interrupt. Otherwise each
    sample prints one line for each journal: time, path, next offset, messages a second, bytes, bytes a second, the
    writer's pid, and each reader as NAME:N, which is N messages behind.

    Example: sej top --sort lag data
    """
    watched = Watched(paths or (Path(),))
    table = not json and sys.stdout.isatty() and not once
    with _screen() if table else _lines(json=json) as show:
        while True:
            rows = sorted(watched.look(), key=SORTS[sort])
            if once and not rows:
                click.echo(f"sej: there is no journal in {', '.join(map(str, watched.paths))}", err=True)
                raise SystemExit(Exit.MISSING)
            show(rows)
            if once or not wait(max(interval, _INTERVAL_MIN_S)):
                return


@contextmanager
def _lines(*, json: bool) -> Iterator[Callable[[list[Sample]], None]]:
    """Give a function that prints rows as lines and flushes them."""

    def show(rows: list[Sample]) -> None:
        for row in rows:
            click.echo(jsonlib.dumps(_object(row)) if json else _line(row))
        sys.stdout.flush()

    yield show


def _object(row: Sample) -> dict[str, Any]:
    readers = [
        {"name": one.name, "offset": one.offset, "behind": one.behind, "rate": rate, "running": one.holder is not None}
        for one, rate in row.readers
    ]
    return row._asdict() | {"time": iso_time(row.time_ns), "readers": readers}


def _line(row: Sample) -> str:
    if row.error is not None:
        return f"{iso_time(row.time_ns)}\t{shown(row.path)}\t{shown(row.error)}"
    readers = " ".join(f"{one.name}:{one.behind}" for one, _ in row.readers) or "-"
    rate, byte_rate = ("-" if one is None else f"{one:.1f}" for one in (row.rate, row.byte_rate))
    cells = (row.end_offset, rate, row.bytes, byte_rate, _pid(row.writer), readers)
    return "\t".join(shown(str(cell)) for cell in (iso_time(row.time_ns), row.path, *cells))


@contextmanager
def _screen() -> Iterator[Callable[[list[Sample]], None]]:
    """Give a function that shows rows as a table that fills the terminal; rich honours NO_COLOR."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with quiet_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        yield lambda rows: live.update(_table(rows, console.height - _CHROME_LINES, console.width), refresh=True)


def _table(rows: list[Sample], lines: int, width: int) -> Table:
    from rich.markup import escape
    from rich.table import Table

    hidden = f"; {len(rows) - lines} more: a taller terminal shows them" if len(rows) > lines else ""
    total = f"{_rate(sum(row.rate or 0 for row in rows))} messages/s, {_bytes(sum(row.bytes for row in rows))}"
    root = os.path.commonpath([os.path.dirname(os.path.abspath(row.path)) for row in rows]) if rows else ""
    table = Table(caption=f"{len(rows)} journals, {total}{hidden}; q ends", expand=True, title=escape(shown(root)))
    table.add_column("journal", overflow="ellipsis", no_wrap=True, ratio=3)
    figures = ("next offset",) if width < _NARROW else ("next offset", "messages/s", "size", "size/s", "last", "writer")
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("readers: behind, messages/s", overflow="ellipsis", no_wrap=True, ratio=4)
    for row in rows[:lines]:
        name = escape(shown(os.path.relpath(row.path, root)))
        if row.error is not None:
            table.add_row(name, *[""] * len(figures), f"[red]{escape(shown(row.error))}")
            continue
        last = "" if row.idle_s is None else f"{human_duration(row.idle_s)} ago"
        cells = (
            f"{row.end_offset:,}",
            _rate(row.rate),
            _bytes(row.bytes),
            _bytes(row.byte_rate),
            last,
            _pid(row.writer),
        )
        table.add_row(name, *cells[: len(figures)], _readers(row))
    return table


def _readers(row: Sample) -> str:
    """Format the readers, the slowest first: green runs at the end, yellow runs behind, red has an error."""
    from rich.markup import escape

    cells = []
    for reader, rate in sorted(row.readers, key=lambda one: -one[0].behind):
        colour = "red" if reader.error else "default" if not reader.holder else "yellow" if reader.behind else "green"
        cells.append(f"[{colour}]{escape(shown(reader.name))} {reader.behind:,}[/] ({_rate(rate)})")
    return "  ".join(cells)


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}"


def _bytes(size: float | None) -> str:
    return "-" if size is None else human_size(size)


def _pid(holder: str | None) -> str:
    return "-" if holder is None else holder.split(" ")[0].removeprefix("pid=")
