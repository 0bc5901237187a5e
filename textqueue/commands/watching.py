"""``sej tq watch``: a queue live."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from sej.cli.shared.parameters import DURATION
from sej.cli.shared.terminal import quiet_keys, wait
from sej.cli.shared.units import human_duration, iso_time
from textqueue.commands.opening import JSON, QUEUE, name_of, opened, print_json, print_line, report, shown
from textqueue.format.grammar import MessageStatus
from textqueue.queue import TextQueue
from textqueue.reading.details import Detail, details

if TYPE_CHECKING:
    from rich.table import Table

_STATUSES: Final = (MessageStatus.queued, MessageStatus.cleared, MessageStatus.critical)
_COLOURS: Final = {MessageStatus.cleared: "green", MessageStatus.critical: "red"}
_INTERVAL_MIN_S: Final = 0.05
_CHROME_LINES: Final = 6
"""Lines that the table takes in addition to its rows."""
_NARROW: Final = 70
"""In fewer columns, only line, status and text are shown."""


@click.command
@QUEUE
@JSON
@click.option("--once", is_flag=True, help="Print one sample.")
@click.option("--interval", type=DURATION, default="1s", show_default=True, help="Time between two samples, as in 5s.")
def watch(path: Path, json: bool, once: bool, interval: float) -> None:
    """Watch a queue: its messages, which of them a process has claimed, and how many have each status.

    A terminal shows a table, until q or an interrupt: first the claimed messages, then the queued ones, the errors, and
    the newest cleared ones. Otherwise each sample prints one line: the time, and a count for each status and for the
    claims, as in queued=3.

    Example: sej tq watch jobs.tq
    """
    table = not json and sys.stdout.isatty() and not once
    with opened(path) as queue, _screen(path) if table else _lines(json=json) as show:
        while True:
            show(_look(queue))
            if not table:
                report(queue)
            if once or not wait(max(interval, _INTERVAL_MIN_S)):
                return


class _Sample(NamedTuple):
    time_ns: int
    counts: dict[str, int]
    messages: list[Detail]


def _look(queue: TextQueue) -> _Sample:
    now = time.time_ns()
    found = list(details(queue.messages(_STATUSES), now_ns=now))
    counts = Counter(one.message.status for one in found)
    named = {status.name: counts[status] for status in _STATUSES}
    return _Sample(now, named | {"claimed": sum(one.holder is not None for one in found)}, found)


@contextmanager
def _lines(*, json: bool) -> Iterator[Callable[[_Sample], None]]:
    def show(sample: _Sample) -> None:
        if json:
            print_json({"time": iso_time(sample.time_ns), "time_ns": sample.time_ns, **sample.counts})
        else:
            print_line(iso_time(sample.time_ns) or "-", *(f"{name}={count}" for name, count in sample.counts.items()))
        sys.stdout.flush()

    yield show


@contextmanager
def _screen(path: Path) -> Iterator[Callable[[_Sample], None]]:
    """Give a function that shows a sample as a table that fills the terminal; rich honours NO_COLOR."""
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with quiet_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        yield lambda sample: live.update(
            _table(path, sample, max(console.height - _CHROME_LINES, 1), console.width), refresh=True
        )


def _table(path: Path, sample: _Sample, lines: int, width: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    order = {MessageStatus.queued: 1, MessageStatus.critical: 2, MessageStatus.cleared: 3}
    rows = [one for one in sample.messages if one.message.status is not MessageStatus.cleared]
    rows.sort(key=lambda one: 0 if one.holder else order[one.message.status])
    rows += [one for one in reversed(sample.messages) if one.message.status is MessageStatus.cleared]
    hidden = f"; {len(rows) - lines} more: a taller terminal shows them" if len(rows) > lines else ""
    counts = ", ".join(f"{count:,} {name}" for name, count in sample.counts.items())
    table = Table(caption=f"{counts}{hidden}; q ends", expand=True, title=Text(str(path)))
    narrow = width < _NARROW
    for name in ("line", "status") if narrow else ("message", "line", "status", "age"):
        table.add_column(name, no_wrap=True)
    if not narrow:
        table.add_column("claim", overflow="ellipsis", no_wrap=True, ratio=1)
    table.add_column("text", overflow="ellipsis", no_wrap=True, ratio=3)
    for one in rows[:lines]:
        status = one.message.status
        text = shown(one.message.value_bytes).decode(errors="backslashreplace")
        place = (str(one.line), Text(status.name, style=_COLOURS.get(status, "")))
        if narrow:
            table.add_row(*place, Text(text, style="yellow" if one.holder else ""))
            continue
        claim = Text(one.holder or "", style="yellow")
        table.add_row(Text(name_of(one.message, path)), *place, human_duration(one.age_s), claim, Text(text))
    return table
