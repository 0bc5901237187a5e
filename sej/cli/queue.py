"""``sej queue put | get | dead | redrive | purge | result``: work queues of any backend; more is in queue_items."""

from __future__ import annotations

import json as jsonlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from sej.cli.queue_items import HEADERS, KEY, OFFSET, Place, placed_command, queue
from sej.cli.shared.command import (
    AGE,
    DURATION,
    JSON,
    PATH,
    Exit,
    IntRange,
    ProgramCommand,
    refuse,
    require_program,
    run_program,
)
from sej.cli.shared.options import MAX_ATTEMPTS, WAIT, form_options
from sej.cli.shared.text import counted, json_row, print_messages, shown
from sej.errors import LeaseLostError, SejError
from sej.message import Message, text_or_b64
from sej.queue.interface.queue import Item, WorkQueue

_SLICE_S: Final = 0.5
_KESTREL: Final = "its dead letters are a queue of their own next to it, QUEUE_dead: `sej queue get` takes from that"
_ELSEWHERE: Final = {
    "textqueue": "a .tq file holds its own dead letters: `sej tq list --status critical` prints them",
    "kestrel": _KESTREL,
    "libkestrel": _KESTREL,
}


_CREATE: Final = click.option(
    "--create",
    is_flag=True,
    default=None,
    help="Create this queue even if the journal has messages or another queue: every message is delivered to it.",
)


@queue.command
@placed_command
@_CREATE
@click.argument("values", metavar="[VALUE]...", nargs=-1)
@KEY
@click.option(
    "--delay", "delay_s", type=DURATION, default=0.0, help="Deliver the items only after this time, as in 10m."
)
@click.option(
    "--priority",
    type=IntRange(-3, 3),
    default=0,
    show_default=True,
    help="Higher priorities are delivered first.",
)
@click.option("--expire", "expire_s", type=AGE, help="Drop an item that was not delivered within this time, as in 1d.")
@HEADERS
@click.option(
    "--dedupe-key",
    help="Skip the item if one with this key was put within the last hour; only for a single item.",
)
@click.option("--keep-result", type=AGE, help="Keep each result this long, as in 1h, and print the items' numbers.")
def put(
    place: Place,
    create: bool | None,
    values: tuple[str, ...],
    key: bytes,
    dedupe_key: str | None,
    keep_result: float | None,
    **options: Any,
) -> None:
    r"""Put items: the given values, or each line of standard input.

    Example: sej queue put mails 'to alice' 'to bob'
    """
    items = [os.fsencode(value) for value in values] or _lines(sys.stdin.buffer.read())
    if dedupe_key is not None and len(items) != 1:
        raise click.UsageError(f"--dedupe-key needs exactly one item, got {len(items)}")
    if dedupe_key is not None:
        options["dedupe_keys"] = [os.fsencode(dedupe_key)]
    with place.open(create=create) as opened:
        if items:
            keys = [key] * len(items) if key else None
            numbers = opened.put_many(items, keys, keep_result=keep_result, **options)
            for number in numbers if keep_result is not None else ():
                click.echo(number)
    if sys.stderr.isatty():
        click.echo(f"put {len(items)}", err=True)


@queue.command(cls=ProgramCommand)
@placed_command
@_CREATE
@click.argument("command", metavar="[-- PROGRAM [ARGUMENT]...]", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--count",
    type=IntRange(min=1),
    help="How many items to take. Default: one without a PROGRAM; with one, all that are ready.",
)
@click.option("--timeout", type=DURATION, default=0.0, help="How long to wait for an item, as in 30s.")
@click.option("-f", "--follow", is_flag=True, help="Wait without a limit.")
@WAIT
@click.option(
    "--lease",
    "lease_s",
    type=DURATION,
    default="60s",
    show_default=True,
    help="How long an item stays leased; renewed while PROGRAM runs.",
)
@MAX_ATTEMPTS
@click.option("--json", is_flag=True, help="Without a PROGRAM: one JSON object per line.")
def get(
    place: Place,
    command: tuple[str, ...],
    count: int | None,
    timeout: float,
    follow: bool,
    wait: bool,
    json: bool,
    **options: Any,
) -> None:
    """Take items. Without a program: print the value and mark the item done. With one: run it with the value as input.

    The program's environment has SEJ_ATTEMPT and SEJ_KEY. An item is done if the program exits with 0, else it is
    delivered again; after --max-attempts it becomes a dead letter. SIGTERM ends the command after the current item.
    Exit code 4: there was no item; 1: the program failed for an item.

    If QUEUE is a journal that has messages but no such queue, --create is needed: every message of the journal becomes
    an item, and retention waits for the queue. To only read messages, use `sej scan` or `sej follow`.

    Example: sej queue get --timeout 30s mails -- ./send-mail
    """
    require_program(command, json=json)
    if wait and not follow and not timeout:
        raise click.UsageError("--wait needs --follow, or --timeout with the time to wait")
    is_new = wait and place.wait(None if follow else timeout)
    taken, failed = 0, False
    limit = count if count is not None else sys.maxsize if command else 1
    with place.open_existing(is_new=is_new, **options) as opened, _stoppable(program=bool(command)) as stop:
        renewed_s = options["lease_s"] if "extend" in opened.can else None
        get = partial(_next, opened, None if follow else timeout, stop)
        while taken < limit and (item := get()) is not None:
            taken += 1
            if command:
                failed = not _work(place.path, item, command, renewed_s) or failed
            else:
                sys.stdout.buffer.write(_row(item) if json else item.value + b"\n")
                sys.stdout.flush()
                item.done()
    if not taken and not stop.is_asked():
        raise SystemExit(Exit.MISSING)
    if failed:
        raise SystemExit(Exit.WRONG)


class _Stop:
    """A request to stop: a flag and not an event, whose lock the code that a signal interrupts may hold."""

    def __init__(self) -> None:
        self._asked = False

    def ask(self, *_: object) -> None:
        """Request it."""
        self._asked = True

    def is_asked(self) -> bool:
        """Return whether it was requested."""
        return self._asked


def _next(opened: WorkQueue, timeout: float | None, stop: _Stop) -> Item | None:
    """Return the next item, or None if the queue is empty or a stop was requested.

    It waits in slices, because interrupting a wait anywhere could lose an item that was just taken.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while not stop.is_asked():
        left = _SLICE_S if deadline is None else max(deadline - time.monotonic(), 0.0)
        item = opened.get(min(left, _SLICE_S))
        if item is not None and stop.is_asked():
            item.give_back()
        elif item is not None or left <= 0:
            return item
    return None


@contextmanager
def _stoppable(*, program: bool) -> Iterator[_Stop]:
    """Let a stop be requested before the next item.

    With a program, SIGTERM requests it, so that no other worker gets the item of the program too. Without one, it is
    requested when the reader of the output has closed the pipe.
    """
    from sej.cli.shared.command import until_reader_leaves

    stop = _Stop()
    before = signal.signal(signal.SIGTERM, stop.ask) if program else None
    try:
        with nullcontext() if program else until_reader_leaves(stop.ask):
            yield stop
    finally:
        if program:
            signal.signal(signal.SIGTERM, before)


@queue.command
@placed_command
@form_options
@click.option(
    "--dead-letter",
    type=PATH,
    help="The journal of dead letters; default: the queue's own.",
)
def dead(place: Place, form: str, dead_letter: Path | None) -> None:
    """Print the dead letters: the items as they were put; the reasons and tracebacks on standard error.

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
        click.echo(
            f"message {letter.message.offset}, {counted(letter.attempts, 'attempt')}: {shown(letter.reason)}", err=True
        )
        for line in letter.traceback.splitlines():
            click.echo(shown(line), err=True)


@queue.command
@placed_command
@click.option("--limit", type=IntRange(min=1), help="At most this many, the oldest first.")
def redrive(place: Place, limit: int | None) -> None:
    """Put dead letters back into the queue; prints how many.

    Example: sej queue redrive mails
    """
    with place.open_existing(create=False) as opened:
        click.echo(opened.redrive(limit))


@queue.command
@placed_command
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(place: Place, yes: bool) -> None:
    """Remove every item that is not leased; shows how many and asks.

    Example: sej queue purge --yes mails
    """
    with place.open_existing(create=False) as opened:
        if not yes:
            click.confirm(f"Remove {len(opened)} items?", abort=True)
        click.echo(opened.purge())


@queue.command
@placed_command
@OFFSET
@click.option("--timeout", type=DURATION, default=0.0, help="How long to wait for the item, as in 30s.")
@JSON
def result(place: Place, offset: int, timeout: float, json: bool) -> None:
    """Print the result of an item that was put with --keep-result, as the worker's done(result=...) has it.

    Exit code 1: the item failed; 3: it has not ended in time; 4: no result of it is kept.

    Example: sej queue result --timeout 30s thumbnails 17
    """
    with place.open_existing(create=False) as opened:
        try:
            data = opened.result(offset, timeout)
        except TimeoutError as error:
            refuse(str(error), Exit.BUSY)
    if json:
        row = {"result": None} if data is None else text_or_b64("result", data)
        click.echo(jsonlib.dumps({"offset": offset, **row}, ensure_ascii=False))
    elif data is not None:
        sys.stdout.buffer.write(data)


def _lines(data: bytes) -> list[bytes]:
    r"""Split at line ends, ``\n`` or ``\r\n``; a carriage return anywhere else is part of its item."""
    *lines, last = re.split(rb"\r?\n", data)
    return [*lines, last] if last else lines


def _row(item: Item) -> bytes:
    """Return the item as JSON; on a journal with the same fields as in other commands."""
    if isinstance(item.message, Message):
        row = json_row(item.message)
    else:
        row = {**text_or_b64("key", item.key), **text_or_b64("value", item.value)}
    row |= {"attempts": item.attempts, **({"headers": item.headers} if item.headers else {})}
    return jsonlib.dumps(row, ensure_ascii=False).encode() + b"\n"


def _work(path: Path, item: Item, command: tuple[str, ...], lease_s: float | None) -> bool:
    """Run the command for an item and hold its lease meanwhile; return whether the command succeeded."""
    with nullcontext() if lease_s is None else _renewed(item, lease_s):
        reason = run_program(command, item.value, item.key, attempt=item.attempts)
    try:
        if reason is None:
            item.done()
            return True
        item.retry(reason=reason)
    except LeaseLostError as error:
        reason = f"{reason or 'exit code 0'}, but {error}"
    what = f"message {item.message.offset}" if isinstance(item.message, Message) else "an item"
    click.echo(f"sej: {path}: attempt {item.attempts} of {what}: {command[0]}: {reason}", err=True)
    return False


@contextmanager
def _renewed(item: Item, lease_s: float) -> Iterator[None]:
    """Renew an item's lease until the block ends; if it is lost, the call that ends the item raises."""
    over = threading.Event()

    def renew() -> None:
        with suppress(LeaseLostError):
            while not over.wait(min(lease_s / 3, threading.TIMEOUT_MAX)):
                try:
                    item.extend(lease_s)
                except LeaseLostError:
                    raise
                except (SejError, OSError):
                    continue  # as too many open files: a later one may succeed

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
