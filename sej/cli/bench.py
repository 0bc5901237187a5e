"""``sej bench``: the speed of appends, reads and queues on the user's own disk, compared with system calls."""

from __future__ import annotations

import os
import platform
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, Final, NoReturn

import click

import sej
from sej.cli.shared.command import DURATION, JSON, PATH, SIZE, print_row

_ROUNDS: Final = 3
_ROUND_ITEMS_MAX: Final = 200_000
_STEADY: Final = 0.25
"""The share of a round's time that one call should take."""
_BATCH: Final = 1000
_VALUE_BYTES_MAX: Final = 1 << 28
_PUT: Final = "put, one by one"
_BATCHES: Final = "put, batches of 1,000"
MEASUREMENTS: Final = (
    (_PUT, "os.write", "process death"),
    (_PUT, "os.write + os.fdatasync", "power loss"),
    (_PUT, "Writer.append, durability='buffer'", "clean close"),
    (_PUT, "Writer.append, durability='os'", "process death"),
    (_PUT, "Writer.append, durability='disk'", "power loss"),
    (_PUT, "open_queue().put", "process death"),
    (_BATCHES, "Writer.append_many, durability='os'", "process death"),
    (_BATCHES, "Writer.append_many, durability='disk'", "power loss"),
    ("get and ack, one by one", "open_queue().get, Item.done", "process death"),
    ("read in order", "Scanner", None),
)
"""The operation on each item, the function that is called, and the worst event that an acknowledged item survives."""


def _begin(call: str, path: Path, value: bytes, opened: ExitStack) -> tuple[int, Any, Any]:
    """Open files in an empty directory.

    Returns:
        How many items one call handles, the call, and a function of a count that prepares so many items, untimed.
    """
    batch = [value] * max(min(_BATCH, _VALUE_BYTES_MAX // max(len(value), 1)), 1)
    if "os.write" in call:
        fd = opened.enter_context((path / "file").open("ab", buffering=0)).fileno()
        sync = os.fdatasync if "fdatasync" in call else int
        return 1, lambda: (os.write(fd, value), sync(fd)), None
    if "queue" in call:
        queue: Any = opened.enter_context(sej.open_queue(path / "q"))
        if "put" in call:
            return 1, lambda: queue.put(value), None
        return 1, lambda: queue.get(timeout=0).done(), lambda count: queue.put_many([value] * count)
    durability: Any = call.partition("durability=")[2].strip("'") or "os"
    writer = opened.enter_context(sej.Writer(path / "j", durability=durability))
    if call == "Scanner":
        scanner = opened.enter_context(sej.Scanner(path / "j", 0))
        read = lambda: sum(1 for _ in islice(scanner, len(batch)))  # noqa: E731
        return len(batch), read, lambda count: writer.append_many([value] * count)
    if "append_many" in call:
        return len(batch), lambda: writer.append_many(batch), None
    return 1, lambda: writer.append(value), None


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
    chosen = [one for one in MEASUREMENTS if (only or "").lower() in f"{one[0]}\n{one[1]}".lower()]
    if not chosen:
        raise click.UsageError(
            f"no operation or call contains {only!r}; `sej bench DIR` without --only shows all of them"
        )
    value = b"v" * value_bytes
    signal.signal(signal.SIGTERM, _terminated)
    with tempfile.TemporaryDirectory(prefix="sej-bench-", dir=directory) as root:
        rates = _measured(chosen, Path(root), value, seconds / _ROUNDS)
    head = _machine(directory) | {"value_bytes": value_bytes}
    print_row(head, "\n".join(_lines(head)), json)
    for (operation, call, survives), found in zip(chosen, rates, strict=True):
        rate = statistics.median(found)
        row = {
            "operation": operation,
            "call": call,
            "survives": survives,
            "rate": round(rate, 1),
            "bytes_per_s": round(rate * value_bytes),
            "rounds": [round(one, 1) for one in found],
        }
        figures = f"{rate:11,.0f} {rate * value_bytes / 1e6:9,.2f}"
        print_row(row, f"{operation:24} {call:38} {survives or '':14} {figures}", json)


def _measured(chosen: Sequence[Any], root: Path, value: bytes, round_s: float) -> list[list[float]]:
    """Return the rates of each measurement, items a second, one for each round."""
    from sej.cli.shared.command import progress_bar

    rates: list[list[float]] = [[] for _ in chosen]
    with progress_bar("measurements") as show:
        for done in range(_ROUNDS * len(chosen)):
            at = done % len(chosen)
            show(done, _ROUNDS * len(chosen))
            with tempfile.TemporaryDirectory(dir=root) as path, ExitStack() as opened:
                rates[at].append(_rate(*_begin(chosen[at][1], Path(path), value, opened), round_s))
    return rates


def _rate(items: int, call: Any, prepare: Any, round_s: float) -> float:
    """Return items a second: more and more calls until the time is up; the first ones warm up."""
    handled, passed, calls = 0, 0.0, 1
    while not handled or (passed < round_s and handled < _ROUND_ITEMS_MAX):
        if prepare is not None:
            prepare(calls * items)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        took = time.perf_counter() - start
        if calls > 1:
            handled, passed = handled + calls * items, passed + took
        if took < _STEADY * round_s or calls == 1:
            calls = max(min(2 * calls, _ROUND_ITEMS_MAX // items), 2)
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


def _lines(head: dict[str, Any]) -> Iterator[str]:
    yield f"{head['path']} ({head['file_system']}), items of {head['value_bytes']} bytes"
    yield f"Python {head['python']}, {head['cpus']} CPUs, load {head['load']:.1f}, codec {head['codec']}"
    if head["file_system"] in ("tmpfs", "ramfs"):
        yield "this is memory, not a disk: nothing on it survives a power loss"
    yield f"\n{'operation':24} {'call':38} {'survives':14} {'a second':>11} {'MB/s':>9}"


def _terminated(number: int, _: object) -> NoReturn:
    """Handle SIGTERM like an interrupt, so that the files are removed."""
    raise SystemExit(128 + number)
