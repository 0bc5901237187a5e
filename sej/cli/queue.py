"""``sej queue put | get | stats | dead | redrive | purge``: work queues from the command line, of any backend."""

from __future__ import annotations

import glob
import json as jsonlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import wraps
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from sej.cli.choosing import DURATION, JSON, form_options
from sej.cli.exits import Exit
from sej.cli.output import as_json, print_messages, text_or_b64
from sej.cli.programs import require_program
from sej.errors import LeaseLostError, SejError
from sej.journal.directory import Directory
from sej.message import Message
from sej.queue.backends import BACKENDS, open_queue
from sej.queue.interface import Item, WorkQueue, require_known
from sej.queue.log import queue_names
from sej.system.disk import OS

__all__ = ["dead", "get", "purge", "put", "queue", "redrive", "stats"]

_SLICE_S: Final = 0.5
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
        """Make sure that there is this queue."""
        if self.backend == "journal":
            directory = Directory(self.path, OS)
            directory.require()
            require_known(self.name, queue_names(directory), False, directory.path)
        elif not self._stands():
            raise FileNotFoundError(f"{self.path}: there is no queue; `sej queue put` makes one")

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


_CREATE: Final = click.option(
    "--create", is_flag=True, help="Make this queue beside others; it is handed every message of the journal again."
)


@queue.command
@_place
@_CREATE
@click.argument("values", metavar="[VALUE]...", nargs=-1)
@click.option("--key", default="", help="The key of every item.")
@click.option("--delay", type=DURATION, default=0.0, help="How long nobody may take it, as in 10m.")
@click.option(
    "--priority", type=click.IntRange(-3, 3), default=0, show_default=True, help="The highest is served first."
)
@click.option("--expire", type=DURATION, help="After how long nobody wants it any more, as in 1d.")
@click.option("--dedupe-key", help="Put nothing where the same was put within the hour; for one item.")
def put(
    place: _Place,
    create: bool,
    values: tuple[str, ...],
    key: str,
    delay: float,
    priority: int,
    expire: float | None,
    dedupe_key: str | None,
) -> None:
    r"""Put items: the values, or each line of standard input.

    Example: sej queue put mails 'to alice' 'to bob'
    """
    items = [os.fsencode(value) for value in values] or _lines(sys.stdin.buffer.read())
    if dedupe_key is not None and len(items) != 1:
        raise click.UsageError(f"--dedupe-key is of one item, and there are {len(items)}")
    with place.open(create=create or None) as opened:
        if items:
            opened.put_many(
                items,
                [os.fsencode(key)] * len(items) if key else None,
                delay_s=delay,
                priority=priority,
                expire_s=expire,
                dedupe_keys=None if dedupe_key is None else [os.fsencode(dedupe_key)],
            )
    if sys.stderr.isatty():
        click.echo(f"put {len(items)}", err=True)


@queue.command
@_place
@_CREATE
@click.argument("command", metavar="[COMMAND]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--count", type=click.IntRange(min=1), help="Items to take; without it one, or with a COMMAND all.")
@click.option("--timeout", type=DURATION, default=0.0, help="How long to wait for an item, as in 30s.")
@click.option("-f", "--follow", is_flag=True, help="Wait for ever.")
@click.option(
    "--lease",
    type=DURATION,
    default="60s",
    show_default=True,
    help="How long an item is held; that is renewed while COMMAND runs.",
)
@click.option(
    "--max-attempts", type=click.IntRange(min=1), default=5, show_default=True, help="After so many it is dead."
)
@click.option("--json", is_flag=True, help="Without a COMMAND: one JSON object an item.")
def get(
    place: _Place,
    create: bool,
    command: tuple[str, ...],
    count: int | None,
    timeout: float,
    follow: bool,
    lease: float,
    max_attempts: int,
    json: bool,
) -> None:
    """Take items. Alone: print the value and be done with it; with a command: run it with the value as its input.

    The command's environment has SEJ_ATTEMPT and SEJ_KEY. An item is done when it ends with 0, and goes back when it
    does not; after --max-attempts it is dead. Exit code 4: nothing was there; 1: the command failed for an item.
    SIGTERM ends after the item in hand.

    Example: sej queue get --timeout 30s mails -- ./send-mail
    """
    require_program(command)
    taken, failed = 0, False
    limit = count if count is not None else sys.maxsize if command else 1
    until = _until_sigterm() if command else _until_reader_leaves()
    options = {"lease_s": lease, "max_attempts": max_attempts, "create": create or None}
    with place.open_existing(**options) as opened, until as stopped:
        renewed_s = lease if "extend" in opened.can else None
        while taken < limit and (item := stopped.get(opened, None if follow else timeout)) is not None:
            taken += 1
            if command:
                failed = not _work(place.path, item, command, renewed_s) or failed
            else:
                sys.stdout.buffer.write(_row(item) if json else item.value + b"\n")
                sys.stdout.flush()
                item.done()
    if not taken and not stopped.asked.is_set():
        raise SystemExit(Exit.MISSING)
    if failed:
        raise SystemExit(Exit.WRONG)


class _Stop:
    """Whether to stop before the next item."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    def get(self, opened: WorkQueue, timeout: float | None) -> Item | None:
        """The next item; None where there is none, or none is wanted any more.

        A wait is cut into slices instead of being broken off anywhere: no item is taken and then lost on the way here.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.asked.is_set():
            left = _SLICE_S if deadline is None else max(deadline - time.monotonic(), 0.0)
            item = opened.get(min(left, _SLICE_S))
            if item is not None and self.asked.is_set():
                item.give_back()
            elif item is not None or left <= 0:
                return item
        return None

    def ask(self, *_: object) -> None:
        """As the handler of a signal."""
        self.asked.set()


@contextmanager
def _until_sigterm() -> Iterator[_Stop]:
    """SIGTERM lets the command end that works on an item: nobody else may get the item meanwhile."""
    stop = _Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGTERM, stop.ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _until_reader_leaves() -> Iterator[_Stop]:
    """The command ends between two items when nothing reads its output any more."""
    from sej.cli.pipes import until_reader_leaves

    stop = _Stop()
    with until_reader_leaves(stop.ask):
        yield stop


@queue.command
@_place
@JSON
def stats(place: _Place, json: bool) -> None:
    """Print how many items are ready, delayed, leased, done and dead.

    Example: sej queue stats mails
    """
    with place.open_existing(create=False) as opened:
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
    from sej.reading.dead_letters import dead_letters

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
    with place.open_existing(create=False) as opened:
        click.echo(opened.redrive(limit))


@queue.command
@_place
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(place: _Place, yes: bool) -> None:
    """Throw away every item that nobody holds; shows how many and asks.

    Example: sej queue purge --yes mails
    """
    with place.open_existing(create=False) as opened:
        if not yes:
            click.confirm(f"Throw away {len(opened)} items?", abort=True)
        click.echo(opened.purge())


def _lines(data: bytes) -> list[bytes]:
    r"""What stands between line ends, ``\n`` or ``\r\n``; a carriage return anywhere else is part of its item."""
    *lines, last = re.split(rb"\r?\n", data)
    return [*lines, last] if last else lines


def _row(item: Item) -> bytes:
    """The item as JSON; on a journal with what is said of a message everywhere."""
    message = item.message
    if isinstance(message, Message):
        line = as_json(message)
    else:
        row = {**text_or_b64("key", item.key), **text_or_b64("value", item.value)}
        line = jsonlib.dumps(row, ensure_ascii=False)
    return f'{line[:-1]}, "attempts": {item.attempts}}}\n'.encode()


def _work(path: Path, item: Item, command: tuple[str, ...], lease_s: float | None) -> bool:
    """Run the command for an item, and hold that as long; whether it ended well."""
    key = item.key.decode(errors="surrogateescape")
    environment = {**os.environ, "SEJ_ATTEMPT": str(item.attempts), **({} if "\0" in key else {"SEJ_KEY": key})}
    with nullcontext() if lease_s is None else _renewed(item, lease_s):
        code = subprocess.run(command, input=item.value, env=environment, check=False).returncode
    reason = f"exit code {code}"
    try:
        if code == 0:
            item.done()
            return True
        item.retry(reason=reason)
    except LeaseLostError as error:
        reason += f", but {error}"
    click.echo(f"sej: {path}: attempt {item.attempts} of an item: {command[0]}: {reason}", err=True)
    return False


@contextmanager
def _renewed(item: Item, lease_s: float) -> Iterator[None]:
    """Hold an item for longer than its lease; where it is lost all the same, who ends it says so."""
    over = threading.Event()

    def renew() -> None:
        with suppress(SejError):
            while not over.wait(min(lease_s / 3, threading.TIMEOUT_MAX)):
                item.extend(lease_s)

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
