"""``sej queue put | get | stats | dead | redrive | purge``: work queues from the command line, of any backend."""

from __future__ import annotations

import glob
import json as jsonlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from sej.backends import BACKENDS, open_queue
from sej.cli.choosing import DURATION, JSON, form_options
from sej.cli.exits import Exit
from sej.cli.output import print_messages, text_or_b64
from sej.cli.programs import require_program
from sej.directory import Directory
from sej.disk import OS
from sej.work import Item, WorkQueue

__all__ = ["dead", "get", "purge", "put", "queue", "redrive", "stats"]

_KESTREL: Final = "its dead are a queue of their own beside it, QUEUE_dead: `sej queue get` takes from that"
_ELSEWHERE: Final = {
    "textqueue": "a .tq file keeps its dead itself: `sej tq list --status critical` prints them",
    "kestrel": _KESTREL,
    "libkestrel": _KESTREL,
}


class _Place(NamedTuple):
    """Which queue is meant."""

    path: Path
    name: str
    backend: str

    def open(self, **options: Any) -> WorkQueue:
        """Open it; made if missing."""
        return open_queue(self.path, self.name, backend=self.backend, **options)

    def open_existing(self, **options: Any) -> WorkQueue:
        """Open a queue over a journal or file that is there: taking makes neither."""
        if not self._stands():
            raise FileNotFoundError(f"{self.path}: there is no queue; `sej queue put` makes one")
        if self.backend == "journal":
            Directory(self.path, OS).require()
        return self.open(**options)

    def require(self) -> None:
        """Make sure that there is this queue: opening one makes it, and retention would wait for it from then on."""
        journal = self.backend == "journal"
        if not ((self.path / "ofs" / f"{self.name}.ofs").exists() if journal else self._stands()):
            raise FileNotFoundError(f"{self.path}: there is no queue {self.name!r}; `sej queue put` makes one")

    def _stands(self) -> bool:
        """Whether there is something; a queue of Kestrel is files that begin with its name."""
        return self.path.exists() or bool(glob.glob(f"{glob.escape(str(self.path))}.*"))


def _place(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the queue that its argument and options name."""

    @click.argument("path", metavar="QUEUE", type=click.Path(path_type=Path))
    @click.option("--name", default="queue", show_default=True, help="The queue's, where a journal has several.")
    @click.option(
        "--backend",
        metavar="NAME",
        help=f"What keeps it: {', '.join(BACKENDS)}, or another that is installed; without it QUEUE tells.",
    )
    @wraps(command)
    def placed(path: Path, name: str, backend: str | None, **options: Any) -> None:
        kind = backend or ("textqueue" if path.suffix == ".tq" else "journal")
        command(_Place(path, name, kind), **options)

    return placed


@click.group
def queue() -> None:
    """Work queues: items that are put, taken under a lease, and done.

    QUEUE is a SEJ directory or a .tq file; with --backend kestrel or libkestrel DIRECTORY/NAME, as in spool/cars.
    """


@queue.command
@_place
@click.argument("values", metavar="[VALUE]...", nargs=-1)
@click.option("--key", default="", help="The key of every item.")
@click.option("--delay", type=DURATION, default=0.0, help="How long nobody may take it, as in 10m.")
@click.option(
    "--priority", type=click.IntRange(-3, 3), default=0, show_default=True, help="The highest is served first."
)
def put(place: _Place, values: tuple[str, ...], key: str, delay: float, priority: int) -> None:
    r"""Put items: the values, or each line of standard input.

    Example: sej queue put mails 'to alice' 'to bob'
    """
    items = [os.fsencode(value) for value in values] or _lines(sys.stdin.buffer.read())
    with place.open() as opened:
        if items:
            opened.put_many(items, [os.fsencode(key)] * len(items) if key else None, delay_s=delay, priority=priority)
    if sys.stderr.isatty():
        click.echo(f"put {len(items)}", err=True)


@queue.command
@_place
@click.argument("command", metavar="[COMMAND]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--count", type=click.IntRange(min=1), help="Items to take; without it one, or with a COMMAND all.")
@click.option("--timeout", type=DURATION, default=0.0, help="How long to wait for an item, as in 30s.")
@click.option("--lease", type=DURATION, default="60s", show_default=True, help="How long an item may take.")
@click.option(
    "--max-attempts", type=click.IntRange(min=1), default=5, show_default=True, help="After so many it is dead."
)
@click.option("--json", is_flag=True, help="Without a COMMAND: one JSON object an item.")
def get(
    place: _Place,
    command: tuple[str, ...],
    count: int | None,
    timeout: float,
    lease: float,
    max_attempts: int,
    json: bool,
) -> None:
    """Take items. Alone: print the value and be done with it; with a command: run it with the value as its input.

    The command's environment has SEJ_ATTEMPT and SEJ_KEY. An item is done when it ends with 0, and goes back when it
    does not; after --max-attempts it is dead. Exit code 4: nothing was there; 1: the command failed for an item.

    Example: sej queue get --timeout 30s mails -- ./send-mail
    """
    require_program(command)
    taken, failed = 0, False
    with place.open_existing(lease_s=lease, max_attempts=max_attempts) as opened:
        limit = count if count is not None else sys.maxsize if command else 1
        while taken < limit and (item := opened.get(timeout)) is not None:
            taken += 1
            if command:
                failed = not _work(place.path, item, command) or failed
            else:
                sys.stdout.buffer.write(_row(item) if json else item.value + b"\n")
                sys.stdout.flush()
                item.done()
    if not taken:
        raise SystemExit(Exit.MISSING)
    if failed:
        raise SystemExit(Exit.WRONG)


@queue.command
@_place
@JSON
def stats(place: _Place, json: bool) -> None:
    """Print how many items are ready, delayed, leased, done and dead.

    Example: sej queue stats mails
    """
    place.require()
    with place.open_existing() as opened:
        row = opened.stats()._asdict()
    click.echo(jsonlib.dumps(row) if json else "\n".join(f"{what:8} {many}" for what, many in row.items()))


@queue.command
@_place
@form_options
@click.option(
    "--dead-letter", type=click.Path(path_type=Path), help="The journal of the dead; without it the queue's own."
)
def dead(place: _Place, form: str, dead_letter: Path | None) -> None:
    """Print the dead letters: the items as they were; the reason on standard error.

    Example: sej queue dead mails
    """
    from sej.dead import dead_letters

    if place.backend in _ELSEWHERE:
        raise click.UsageError(_ELSEWHERE[place.backend])
    place.require()
    journal = place.path / "dead" / place.name if dead_letter is None else dead_letter
    if not journal.exists():
        return
    for letter in dead_letters(journal):
        print_messages([letter.message], form)
        sys.stdout.flush()
        click.echo(f"message {letter.message.offset}, {letter.attempts} attempts: {letter.reason}", err=True)


@queue.command
@_place
@click.option("--limit", type=click.IntRange(min=1), help="So many at most, the oldest first.")
def redrive(place: _Place, limit: int | None) -> None:
    """Put the dead letters back; prints how many.

    Example: sej queue redrive mails
    """
    place.require()
    with place.open_existing() as opened:
        click.echo(opened.redrive(limit))


@queue.command
@_place
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(place: _Place, yes: bool) -> None:
    """Throw away every item that nobody holds; shows how many and asks.

    Example: sej queue purge --yes mails
    """
    place.require()
    with place.open_existing() as opened:
        if not yes:
            click.confirm(f"Throw away {len(opened)} items?", abort=True)
        click.echo(opened.purge())


def _lines(data: bytes) -> list[bytes]:
    r"""What stands between line ends, ``\n`` or ``\r\n``; a carriage return anywhere else is part of its item."""
    *lines, last = re.split(rb"\r?\n", data)
    return [*lines, last] if last else lines


def _row(item: Item) -> bytes:
    row = {**text_or_b64("key", item.key), **text_or_b64("value", item.value), "attempts": item.attempts}
    return jsonlib.dumps(row, ensure_ascii=False).encode() + b"\n"


def _work(path: Path, item: Item, command: tuple[str, ...]) -> bool:
    """Run the command for an item; whether it ended well."""
    key = item.key.decode(errors="surrogateescape")
    environment = {**os.environ, "SEJ_ATTEMPT": str(item.attempts), **({} if "\0" in key else {"SEJ_KEY": key})}
    done = subprocess.run(command, input=item.value, env=environment, check=False)
    if done.returncode == 0:
        item.done()
        return True
    reason = f"exit code {done.returncode}"
    click.echo(f"sej: {path}: attempt {item.attempts} of an item: {command[0]}: {reason}", err=True)
    item.retry(reason=reason)
    return False
