"""``sej bench``: how fast this library and its peers are on the user's own disk."""

from __future__ import annotations

import json as jsonlib
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from sej.cli.choosing import DURATION, JSON, SIZE

if TYPE_CHECKING:
    from sej.cli.contestants import Contestant

__all__ = ["bench"]

_ROUNDS: Final = 3
_FIRST_COUNT: Final = 16
_ROUND_ITEMS_MAX: Final = 200_000
_STEADY: Final = 0.25
"""The share of a round's time that one call should take."""


@click.command
@click.argument("directory", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@JSON
@click.option("--seconds", type=DURATION, default="1s", show_default=True, help="For each line, in three rounds.")
@click.option("--value-bytes", type=SIZE, default="100", show_default=True, help="How large each item is.")
@click.option("--only", help="Only lines whose operation, library or call has this in it.")
def bench(directory: Path, json: bool, seconds: float, value_bytes: int, only: str | None) -> None:
    """Measure this library on the disk that holds DIR, beside bare system calls and the peers that are installed.

    Each line says what an acknowledged item survives: compare those that survive the same. The page cache is warm; all
    take turns, and the median of three rounds is shown. Peers are queuelib, litequeue, persist-queue, huey and
    diskcache: pip install 'sej-journals[bench]'. The files go when it ends.

    Example: sej bench --only put /var/lib
    """
    from sej.cli.contestants import CONTESTANTS, installed

    if not directory.is_dir():
        raise FileNotFoundError(f"{directory}: there is no such directory")
    chosen = [one for one in CONTESTANTS if installed(one) and _asked(one, only)]
    if not chosen:
        raise click.UsageError(f"nothing that is installed has {only!r} in it")
    value = b"v" * value_bytes
    signal.signal(signal.SIGTERM, _terminated)
    with tempfile.TemporaryDirectory(prefix="sej-bench-", dir=directory) as root:
        rates = _measured(chosen, Path(root), value, seconds / _ROUNDS)
    missing = sorted({one.distribution for one in CONTESTANTS if not installed(one)})
    head = _machine(directory) | {"value_bytes": value_bytes, "not_installed": missing}
    rows = [_row(one, found, value_bytes) for one, found in zip(chosen, rates, strict=True)]
    if json:
        for row in (head, *rows):
            click.echo(jsonlib.dumps(row))
    else:
        _show(head, rows)


def _asked(contestant: Contestant, only: str | None) -> bool:
    words = (contestant.operation, contestant.library, contestant.distribution, contestant.call)
    return only is None or any(only.lower() in word.lower() for word in words)


def _measured(chosen: list[Contestant], root: Path, value: bytes, round_s: float) -> list[list[float]]:
    """The rates of each contestant, a second, one a round."""
    from sej.cli.progress import progress_bar

    rates: list[list[float]] = [[] for _ in chosen]
    turns = [(one, found) for _ in range(_ROUNDS) for one, found in zip(chosen, rates, strict=True)]
    with progress_bar("measurements") as show:
        for done, (contestant, found) in enumerate(turns):
            show(done, len(turns))
            with tempfile.TemporaryDirectory(dir=root) as path:
                try:
                    found.append(_rate(contestant, Path(path), value, round_s))
                except Exception as error:  # a peer of another version, or one that cannot take such values
                    if contestant.library in ("sej", "system"):
                        raise
                    click.echo(f"sej: {contestant.distribution}: {contestant.call}: {error!r}", err=True)
    return rates


def _rate(contestant: Contestant, path: Path, value: bytes, round_s: float) -> float:
    """Items a second: calls of growing size until the time is up, the first one for warming up."""
    handled, passed, count = 0, 0.0, _FIRST_COUNT
    with contestant.begin(path, value) as (prepare, work):
        prepare(1)
        work(1)
        while not handled or (passed < round_s and handled < _ROUND_ITEMS_MAX):
            prepare(count)
            start = time.perf_counter()
            work(count)
            took = time.perf_counter() - start
            handled, passed = handled + count, passed + took
            if took < _STEADY * round_s:
                count = min(2 * count, _ROUND_ITEMS_MAX)
    return handled / passed


def _machine(directory: Path) -> dict[str, Any]:
    from sej.codec import IMPLEMENTATION
    from sej.system.disk import file_system

    return {
        "path": os.path.realpath(directory),
        "file_system": file_system(directory),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "codec": IMPLEMENTATION,
    }


def _row(contestant: Contestant, rates: list[float], value_bytes: int) -> dict[str, Any]:
    rate = statistics.median(rates) if rates else 0.0
    return {
        "operation": contestant.operation,
        "library": contestant.library,
        "version": contestant.version,
        "call": contestant.call,
        "survives": contestant.survives,
        "rate": round(rate, 1),
        "bytes_per_s": round(rate * value_bytes),
        "rounds": [round(one, 1) for one in rates],
    }


def _show(head: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    title = f"{head['path']} ({head['file_system']}), items of {head['value_bytes']} bytes"
    caption = f"Python {head['python']}, {head['cpus']} CPUs, load {head['load']:.1f}, codec {head['codec']}"
    if head["file_system"] in ("tmpfs", "ramfs"):
        caption += "; this is memory, not a disk: what survives a power loss there is nothing"
    if head["not_installed"]:
        caption += f"; not installed: {', '.join(head['not_installed'])}"
    table = Table(title=title, caption=caption)
    for name in ("operation", "library", "call", "survives"):
        table.add_column(name)
    for name in ("a second", "MB/s"):
        table.add_column(name, justify="right", no_wrap=True)
    before = rows[0]["operation"]
    for row in rows:
        if row["operation"] != before:
            table.add_section()
            before = row["operation"]
        library = f"{row['library']} {row['version'] or ''}".strip()
        figures = (f"{row['rate']:,.0f}", f"{row['bytes_per_s'] / 1e6:,.2f}")
        table.add_row(row["operation"], library, row["call"], row["survives"] or "", *figures)
    (Console() if sys.stdout.isatty() else Console(width=140)).print(table)


def _terminated(number: int, _: object) -> NoReturn:
    """SIGTERM: end as after an interrupt, so that the files go."""
    raise SystemExit(128 + number)
