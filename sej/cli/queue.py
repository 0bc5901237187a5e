"""``sej queue put | get | stats | dead | redrive | purge``: work queues from the command line."""

from __future__ import annotations

import json as jsonlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import click

from sej.backends import open_queue
from sej.cli.choosing import DURATION, JSON, form_options
from sej.cli.exits import Exit
from sej.cli.output import print_messages, text_or_b64
from sej.cli.programs import require_program
from sej.directory import Directory
from sej.disk import OS
from sej.work import Item, WorkQueue

__all__ = ["dead", "get", "purge", "put", "queue", "redrive", "stats"]

_PATH: Final = click.argument("path", metavar="QUEUE", type=click.Path(path_type=Path))
_NAME: Final = click.option(
    "--name", default="queue", show_default=True, help="The queue's, where a journal has several."
)


@click.group
def queue() -> None:
    """Work queues: items that are put, taken under a lease, and done.

    QUEUE is a SEJ directory, or a .tq file.
    """


@queue.command
@_PATH
@click.argument("values", metavar="[VALUE]...", nargs=-1)
@_NAME
@click.option("--key", default="", help="The key of every item.")
@click.option("--delay", type=DURATION, default=0.0, help="How long nobody may take it, as in 10m.")
@click.option(
    "--priority", type=click.IntRange(-3, 3), default=0, show_default=True, help="The highest is served first."
)
def put(path: Path, values: tuple[str, ...], name: str, key: str, delay: float, priority: int) -> None:
    r"""Put items: the values, or each line of standard input.

    Example: sej queue put mails 'to alice' 'to bob'
    """
    items = [os.fsencode(value) for value in values] or sys.stdin.buffer.read().splitlines()
    with open_queue(path, name) as opened:
        if items:
            opened.put_many(items, [key.encode()] * len(items) if key else None, delay_s=delay, priority=priority)
    if sys.stderr.isatty():
        click.echo(f"put {len(items)}", err=True)


@queue.command
@_PATH
@click.argument("command", metavar="[COMMAND]...", nargs=-1, type=click.UNPROCESSED)
@_NAME
@click.option("--count", type=click.IntRange(min=1), help="Items to take; without it one, or with a COMMAND all.")
@click.option("--timeout", type=DURATION, default=0.0, help="How long to wait for an item, as in 30s.")
@click.option("--lease", type=DURATION, default="60s", show_default=True, help="How long an item may take.")
@click.option(
    "--max-attempts", type=click.IntRange(min=1), default=5, show_default=True, help="After so many it is dead."
)
@click.option("--json", is_flag=True, help="Without a COMMAND: one JSON object an item.")
def get(
    path: Path,
    command: tuple[str, ...],
    name: str,
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
    with _opened(path, name, lease_s=lease, max_attempts=max_attempts) as opened:
        limit = count if count is not None else sys.maxsize if command else 1
        while taken < limit and (item := opened.get(timeout)) is not None:
            taken += 1
            if command:
                failed = not _work(path, item, command) or failed
            else:
                sys.stdout.buffer.write(_row(item) if json else item.value + b"\n")
                sys.stdout.flush()
                item.done()
    if not taken:
        raise SystemExit(Exit.MISSING)
    if failed:
        raise SystemExit(Exit.WRONG)


@queue.command
@_PATH
@_NAME
@JSON
def stats(path: Path, name: str, json: bool) -> None:
    """Print how many items are ready, delayed, leased, done and dead.

    Example: sej queue stats mails
    """
    _require(path, name)
    with _opened(path, name) as opened:
        row = opened.stats()._asdict()
    click.echo(jsonlib.dumps(row) if json else "\n".join(f"{what:8} {many}" for what, many in row.items()))


@queue.command
@_PATH
@_NAME
@form_options
@click.option(
    "--dead-letter", type=click.Path(path_type=Path), help="The journal of the dead; without it the queue's own."
)
def dead(path: Path, name: str, form: str, dead_letter: Path | None) -> None:
    """Print the dead letters: the items as they were; the reason on standard error.

    Example: sej queue dead mails
    """
    from sej.dead import dead_letters

    if path.suffix == ".tq":
        raise click.UsageError("a .tq file keeps its dead itself: `sej tq list --status critical` prints them")
    _require(path, name)
    place = path / "dead" / name if dead_letter is None else dead_letter
    if not place.exists():
        return
    for letter in dead_letters(place):
        print_messages([letter.message], form)
        sys.stdout.flush()
        click.echo(f"message {letter.message.offset}, {letter.attempts} attempts: {letter.reason}", err=True)


@queue.command
@_PATH
@_NAME
@click.option("--limit", type=click.IntRange(min=1), help="So many at most, the oldest first.")
def redrive(path: Path, name: str, limit: int | None) -> None:
    """Put the dead letters back; prints how many.

    Example: sej queue redrive mails
    """
    _require(path, name)
    with _opened(path, name) as opened:
        click.echo(opened.redrive(limit))


@queue.command
@_PATH
@_NAME
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(path: Path, name: str, yes: bool) -> None:
    """Throw away every item that nobody holds; shows how many and asks.

    Example: sej queue purge --yes mails
    """
    _require(path, name)
    with _opened(path, name) as opened:
        if not yes:
            click.confirm(f"Throw away {len(opened)} items?", abort=True)
        click.echo(opened.purge())


def _require(path: Path, name: str) -> None:
    """Make sure that there is this queue: opening one makes it, and retention would wait for it from then on."""
    there = path.exists() if path.suffix == ".tq" else (path / "ofs" / f"{name}.ofs").exists()
    if not there:
        raise FileNotFoundError(f"{path}: there is no queue {name!r}; `sej queue put` makes one")


def _opened(path: Path, name: str, **options: Any) -> WorkQueue:
    """A queue over a journal or file that is there: taking makes neither."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no queue; `sej queue put` makes one")
    if path.suffix != ".tq":
        Directory(path, OS).require()
    return open_queue(path, name, **options)


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
