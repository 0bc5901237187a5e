"""``sej bench``: the speed of appends, reads and queues on the user's own disk, compared with system calls."""

from __future__ import annotations

import json as jsonlib
import os
import platform
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import click

import sej
from sej.cli.shared.options import JSON
from sej.cli.shared.parameters import DURATION, PATH, SIZE
from sej.writing.writer import Durability

_ROUNDS: Final = 3
_FIRST_COUNT: Final = 16
_ROUND_ITEMS_MAX: Final = 200_000
_STEADY: Final = 0.25
"""The share of a round's time that one call should take."""
_BATCH: Final = 1000
_VALUE_BYTES_MAX: Final = 1 << 28
_SURVIVES: Final[dict[Durability, str]] = {"buffer": "clean close", "os": "process death", "disk": "power loss"}

Work = Callable[[int], object]
Begin = Callable[[Path, bytes, ExitStack], tuple[Work, Work]]


class Measurement(NamedTuple):
    """One line of the table.

    Attributes:
        operation: the operation on each item.
        call: the function that is called.
        survives: the worst event that an acknowledged item survives; None for an operation that reads.
        begin: opens files in an empty directory, for items of this value. Returns two functions of a count: the first
            prepares the items, untimed; the second handles them, timed.
    """

    operation: str
    call: str
    survives: str | None
    begin: Begin


def _each(call: Callable[[], object]) -> Work:
    def work(count: int) -> None:
        for _ in range(count):
            call()

    return work


def _nothing(count: int) -> None:
    """Do nothing: the operation needs no preparation."""


def _writing(sync: Callable[[int], object], path: Path, value: bytes, opened: ExitStack) -> tuple[Work, Work]:
    fd = opened.enter_context((path / "file").open("ab", buffering=0)).fileno()
    return _nothing, _each(lambda: (os.write(fd, value), sync(fd)))


def _appending(durability: Durability, batch: int, path: Path, value: bytes, opened: ExitStack) -> tuple[Work, Work]:
    writer = opened.enter_context(sej.Writer(path / "j", durability=durability))

    def batches(count: int) -> None:
        for done in range(0, count, batch):
            writer.append_many([value] * min(batch, count - done))

    return _nothing, batches if batch > 1 else _each(lambda: writer.append(value))


def _scanning(path: Path, value: bytes, opened: ExitStack) -> tuple[Work, Work]:
    writer = opened.enter_context(sej.Writer(path / "j", durability="os"))
    scanner = opened.enter_context(sej.Scanner(path / "j", 0))
    return lambda count: writer.append_many([value] * count), lambda count: sum(1 for _ in islice(scanner, count))


def _putting(path: Path, value: bytes, opened: ExitStack) -> tuple[Work, Work]:
    queue = opened.enter_context(sej.open_queue(path / "q"))
    return _nothing, _each(lambda: queue.put(value))


def _taking(path: Path, value: bytes, opened: ExitStack) -> tuple[Work, Work]:
    queue = opened.enter_context(sej.open_queue(path / "q"))
    return lambda count: queue.put_many([value] * count), lambda count: _take(queue, count)


def _take(queue: sej.WorkQueue, count: int) -> None:
    for _ in range(count):
        item = queue.get(timeout=0)
        assert item is not None
        item.done()


def _appends(operation: str, batch: int, *durabilities: Durability) -> Iterator[Measurement]:
    call = "Writer.append_many" if batch > 1 else "Writer.append"
    for kind in durabilities:
        words = f"{call}, durability={kind!r}"
        yield Measurement(operation, words, _SURVIVES[kind], partial(_appending, kind, batch))


_PUT: Final = "put, one by one"
MEASUREMENTS: Final = (
    Measurement(_PUT, "os.write", _SURVIVES["os"], partial(_writing, _nothing)),
    Measurement(_PUT, "os.write + os.fdatasync", _SURVIVES["disk"], partial(_writing, os.fdatasync)),
    *_appends(_PUT, 1, "buffer", "os", "disk"),
    Measurement(_PUT, "open_queue().put", _SURVIVES["os"], _putting),
    *_appends("put, batches of 1,000", _BATCH, "os", "disk"),
    Measurement("get and ack, one by one", "open_queue().get, Item.done", _SURVIVES["os"], _taking),
    Measurement("read in order", "Scanner", None, _scanning),
)


@click.command
@click.argument("directory", metavar="[DIR]", default=".", type=PATH)
@JSON
@click.option(
    "--seconds", type=DURATION, default="1s", show_default=True, help="Time for each line, all three rounds together."
)
@click.option("--value-bytes", type=SIZE, default="100", show_default=True, help="Size of each item.")
@click.option("--only", help="Only lines whose operation or call contains this text.")
def bench(directory: Path, json: bool, seconds: float, value_bytes: int, only: str | None) -> None:
    """Measure this library on the disk that holds DIR, next to bare system calls.

    Each line shows what an acknowledged item survives: compare lines that survive the same. Each line
    runs three times, in turn with the others, and the median is shown. Reads come from memory (the page cache), not
    from the disk. The command removes its files.

    Example: sej bench --only put /var/lib
    """
    if not directory.is_dir():
        raise FileNotFoundError(f"{directory}: the directory does not exist; create it first")
    if value_bytes > _VALUE_BYTES_MAX:
        raise click.UsageError(f"--value-bytes must be at most 256M, got {value_bytes}")
    chosen = [one for one in MEASUREMENTS if (only or "").lower() in f"{one.operation}\n{one.call}".lower()]
    if not chosen:
        raise click.UsageError(
            f"no operation or call contains {only!r}; `sej bench DIR` without --only shows all of them"
        )
    value = b"v" * value_bytes
    signal.signal(signal.SIGTERM, _terminated)
    with tempfile.TemporaryDirectory(prefix="sej-bench-", dir=directory) as root:
        rates = _measured(chosen, Path(root), value, seconds / _ROUNDS)
    head = _machine(directory) | {"value_bytes": value_bytes}
    rows = [_row(one, found, value_bytes) for one, found in zip(chosen, rates, strict=True)]
    if json:
        for row in (head, *rows):
            click.echo(jsonlib.dumps(row))
    else:
        _show(head, rows)


def _measured(chosen: list[Measurement], root: Path, value: bytes, round_s: float) -> list[list[float]]:
    """Return the rates of each measurement, items a second, one for each round."""
    from sej.cli.shared.terminal import progress_bar

    rates: list[list[float]] = [[] for _ in chosen]
    turns = [(one, found) for _ in range(_ROUNDS) for one, found in zip(chosen, rates, strict=True)]
    with progress_bar("measurements") as show:
        for done, (measurement, found) in enumerate(turns):
            show(done, len(turns))
            with tempfile.TemporaryDirectory(dir=root) as path:
                found.append(_rate(measurement, Path(path), value, round_s))
    return rates


def _rate(measurement: Measurement, path: Path, value: bytes, round_s: float) -> float:
    """Return items a second: calls of growing size until the time is up; the first one warms up."""
    handled, passed, count = 0, 0.0, _FIRST_COUNT
    with ExitStack() as opened:
        prepare, work = measurement.begin(path, value, opened)
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


def _row(measurement: Measurement, rates: list[float], value_bytes: int) -> dict[str, Any]:
    rate = statistics.median(rates)
    return {
        "operation": measurement.operation,
        "call": measurement.call,
        "survives": measurement.survives,
        "rate": round(rate, 1),
        "bytes_per_s": round(rate * value_bytes),
        "rounds": [round(one, 1) for one in rates],
    }


def _show(head: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    click.echo(f"{head['path']} ({head['file_system']}), items of {head['value_bytes']} bytes")
    click.echo(f"Python {head['python']}, {head['cpus']} CPUs, load {head['load']:.1f}, codec {head['codec']}")
    if head["file_system"] in ("tmpfs", "ramfs"):
        click.echo("this is memory, not a disk: nothing on it survives a power loss")
    click.echo(f"\n{'operation':24} {'call':38} {'survives':14} {'a second':>11} {'MB/s':>9}")
    for row in rows:
        figures = f"{row['rate']:11,.0f} {row['bytes_per_s'] / 1e6:9,.2f}"
        click.echo(f"{row['operation']:24} {row['call']:38} {row['survives'] or '':14} {figures}")


def _terminated(number: int, _: object) -> NoReturn:
    """Handle SIGTERM like an interrupt, so that the files are removed."""
    raise SystemExit(128 + number)
