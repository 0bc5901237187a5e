"""``sej top``: journals live: their growth, their writers, and how far behind their readers are."""

from __future__ import annotations

import json as jsonlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from sej.cli.exits import Exit
from sej.cli.keys import quiet_keys, wait
from sej.cli.options import DURATION, JSON
from sej.cli.reader_state import Reader, holder_of, journals_below, readers_of
from sej.cli.units import human_duration, human_size, iso_time
from sej.errors import SejError
from sej.journal.directory import Directory
from sej.journal.end import Tail
from sej.journal.view import Journal
from sej.system.disk import OS

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["top"]

_SORTS: Final[dict[str, Callable[[_Row], Any]]] = {
    "name": lambda row: row.path,
    "rate": lambda row: (-(row.rate or 0), row.path),
    "lag": lambda row: (-row.behind, row.path),
    "bytes": lambda row: (-row.bytes, row.path),
}
_INTERVAL_MIN_S: Final = 0.05
_CHROME_LINES: Final = 6
"""Lines that the table takes in addition to its rows."""


@click.command
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path(path_type=Path, readable=False))
@JSON
@click.option("--once", is_flag=True, help="Print one sample without rates.")
@click.option("--interval", type=DURATION, default="1s", show_default=True, help="Time between two samples, as in 5s.")
@click.option(
    "--sort", type=click.Choice(list(_SORTS)), default="name", show_default=True, help="The column to sort by."
)
def top(paths: tuple[Path, ...], json: bool, once: bool, interval: float, sort: str) -> None:
    """Watch journals: messages and bytes a second, writers, and how far behind the readers are.

    A PATH is a SEJ directory, or a directory of them (a sharded journal, a hub); default: the current directory.
    Journals that are created later are found too. A terminal shows a table, until q or an interrupt. Otherwise each
    sample prints one line for each journal: time, path, next offset, messages a second, bytes, bytes a second, the
    writer's pid, and each reader as NAME:N, which is N messages behind.

    Example: sej top --sort lag data
    """
    watched = _Watched(paths or (Path(),))
    table = not json and sys.stdout.isatty() and not once
    with _screen() if table else _lines(json=json) as show:
        while True:
            rows = sorted(watched.look(), key=_SORTS[sort])
            if once and not rows:
                click.echo(f"sej: there is no journal in {', '.join(map(str, watched.paths))}", err=True)
                raise SystemExit(Exit.MISSING)
            show(rows)
            if once or not wait(max(interval, _INTERVAL_MIN_S)):
                return


class _Row(NamedTuple):
    """One journal at one moment; a rate is per second since the previous sample, None in the first."""

    path: str
    time_ns: int
    end_offset: int = 0
    rate: float | None = None
    bytes: int = 0
    byte_rate: float | None = None
    writer: str | None = None
    idle_s: float | None = None
    readers: tuple[tuple[Reader, float | None], ...] = ()
    error: str | None = None

    @property
    def behind(self) -> int:
        """Messages that its slowest reader has not read."""
        return max((reader.behind for reader, _ in self.readers), default=0)


class _Watched:
    """The journals below some paths, and their previous sample."""

    def __init__(self, paths: tuple[Path, ...]) -> None:
        self.paths = paths
        self._tails: dict[str, Tail] = {}
        self._before: dict[str, _Row] = {}

    def look(self) -> list[_Row]:
        """Return their current state; a journal that cannot be read has an error, and does not affect the others."""
        found = dict.fromkeys(journal for path in self.paths for journal in journals_below(path))
        self._before = {path: self._row(path) for path in found}
        return list(self._before.values())

    def _row(self, path: str) -> _Row:
        places = Directory(path, OS)
        now = time.time_ns()
        try:
            journal = Journal(path)
            segments = journal.segments
            end = self._tails.setdefault(path, Tail(places)).end_offset()
            size = sum(segment.size for segment in segments)
            changed = max((segment.mtime_ns for segment in segments), default=None)
            readers = readers_of(journal, (segments[0].first_offset if segments else 0, end))
            writer = holder_of(places.at("jnl.lck"))
        except (SejError, OSError) as error:
            return _Row(path, now, error=str(error))
        before = self._before.get(path, _Row(path, now, error="not sampled yet"))
        passed = 0.0 if before.error is not None else (now - before.time_ns) / 1e9
        old_offsets = {reader.name: reader.offset for reader, _ in before.readers}

        def rate(new: int | None, old: int | None) -> float | None:
            """Return the change per second; 0 for a re-created journal or a reader that moved back."""
            return None if new is None or old is None or passed <= 0 else max(new - old, 0) / passed

        return _Row(
            path,
            now,
            end,
            rate(end, before.end_offset),
            size,
            rate(size, before.bytes),
            writer,
            None if changed is None else max(now - changed, 0) / 1e9,
            tuple((reader, rate(reader.offset, old_offsets.get(reader.name))) for reader in readers),
        )


@contextmanager
def _lines(*, json: bool) -> Iterator[Callable[[list[_Row]], None]]:
    """Give a function that prints rows as lines and flushes them."""

    def show(rows: list[_Row]) -> None:
        for row in rows:
            click.echo(jsonlib.dumps(_object(row)) if json else _line(row))
        sys.stdout.flush()

    yield show


def _object(row: _Row) -> dict[str, Any]:
    readers = [
        {"name": one.name, "offset": one.offset, "behind": one.behind, "rate": rate, "running": one.holder is not None}
        for one, rate in row.readers
    ]
    return row._asdict() | {"time": iso_time(row.time_ns), "readers": readers}


def _line(row: _Row) -> str:
    if row.error is not None:
        return f"{iso_time(row.time_ns)}\t{row.path}\t{row.error}"
    readers = " ".join(f"{one.name}:{one.behind}" for one, _ in row.readers) or "-"
    rate, byte_rate = ("-" if one is None else f"{one:.1f}" for one in (row.rate, row.byte_rate))
    cells = (row.end_offset, rate, row.bytes, byte_rate, _pid(row.writer), readers)
    return "\t".join(map(str, (iso_time(row.time_ns), row.path, *cells)))


@contextmanager
def _screen() -> Iterator[Callable[[list[_Row]], None]]:
    """Give a function that shows rows as a table that fills the terminal; rich honours NO_COLOR."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with quiet_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        yield lambda rows: live.update(_table(rows, console.height - _CHROME_LINES), refresh=True)


def _table(rows: list[_Row], lines: int) -> Table:
    from rich.markup import escape
    from rich.table import Table

    hidden = f"; {len(rows) - lines} more: a taller terminal shows them" if len(rows) > lines else ""
    total = f"{_rate(sum(row.rate or 0 for row in rows))} messages/s, {_bytes(sum(row.bytes for row in rows))}"
    root = os.path.commonpath([os.path.dirname(os.path.abspath(row.path)) for row in rows]) if rows else ""
    table = Table(caption=f"{len(rows)} journals, {total}{hidden}; q ends", expand=True, title=escape(root))
    table.add_column("journal", overflow="ellipsis", no_wrap=True, ratio=3)
    for name in ("next offset", "messages/s", "size", "size/s", "last", "writer"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("readers: behind, messages/s", overflow="ellipsis", no_wrap=True, ratio=4)
    for row in rows[:lines]:
        name = escape(os.path.relpath(row.path, root))
        if row.error is not None:
            table.add_row(name, *[""] * 6, f"[red]{escape(row.error)}")
            continue
        last = "" if row.idle_s is None else f"{human_duration(row.idle_s)} ago"
        cells = (f"{row.end_offset:,}", _rate(row.rate), _bytes(row.bytes), _bytes(row.byte_rate), last)
        table.add_row(name, *cells, _pid(row.writer), _readers(row))
    return table


def _readers(row: _Row) -> str:
    """Format the readers, the slowest first: green runs at the end, yellow runs behind, red has an error."""
    shown = []
    for reader, rate in sorted(row.readers, key=lambda one: -one[0].behind):
        colour = "red" if reader.error else "default" if not reader.holder else "yellow" if reader.behind else "green"
        shown.append(f"[{colour}]{reader.name} {reader.behind:,}[/] ({_rate(rate)})")
    return "  ".join(shown)


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}"


def _bytes(size: float | None) -> str:
    return "-" if size is None else human_size(size)


def _pid(holder: str | None) -> str:
    return "-" if holder is None else holder.split(" ")[0].removeprefix("pid=")
