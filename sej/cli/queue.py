"""``sej queue``: puts, takes, lists and changes items of work queues of any backend, their dead letters and schedules.

``ls``, ``show``, ``peek`` and ``stats`` open a queue on a journal for reading only: they take no lock, and work on a
read-only directory.
"""

from __future__ import annotations

import glob
import json as jsonlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from sej.cli.shared.command import (
    AGE,
    BYTES,
    DURATION,
    JSON,
    PATH,
    Exit,
    Function,
    IntRange,
    ProgramCommand,
    print_row,
    refuse,
    require_program,
    run_program,
    until_reader_leaves,
)
from sej.cli.shared.options import MAX_ATTEMPTS, WAIT, form_options, lease_option, wait_until_created
from sej.cli.shared.text import as_text, counted, iso_time, json_row, print_messages, shown
from sej.errors import LeaseLostError, SejError
from sej.journal.directory import Directory, is_journal
from sej.journal.tail import Tail
from sej.journal.view import Journal
from sej.message import Message, text_or_b64
from sej.queue.interface.queue import BACKENDS, Item, WorkQueue, open_queue, require_known
from sej.queue.interface.values import MISSED, STATES, QueuedItem
from sej.system.disk import OS

if TYPE_CHECKING:
    from sej.queue.listing import QueueLook


@click.group
def queue() -> None:
    """Work queues: put items, take them under a lease, and mark them done.

    QUEUE is a SEJ directory or a .tq file; with --backend kestrel or libkestrel it is DIRECTORY/NAME, as in spool/cars.
    """


class Place(NamedTuple):
    """The path, name and backend of a queue."""

    path: Path
    name: str
    backend: str

    def open(self, *, is_new: bool = False, **options: Any) -> WorkQueue:
        """Open the queue; it is created if it is missing, but over old messages only with ``create=True``.

        An option that is None is not passed on.
        """
        if options.get("create") is None and not is_new and self._has_messages():
            options["create"] = False
        given = {name: value for name, value in options.items() if value is not None}
        return open_queue(self.path, self.name, backend=self.backend, **given)

    def open_existing(self, **options: Any) -> WorkQueue:
        """Open a queue over a journal or file that exists; neither is created."""
        self._require_path()
        if self.backend == "journal":
            Directory(self.path, OS).require()
        return self.open(**options)

    def wait(self, timeout: float | None) -> bool:
        """Wait until the journal exists; return whether it was created meanwhile."""
        if self.backend != "journal":
            raise click.UsageError(f"--wait is for queues on journals, not for {self.backend}")
        return wait_until_created(self.path, timeout)

    def require(self) -> None:
        """Raise an error if the queue does not exist."""
        self._require_path()
        if self.backend == "journal":
            directory = Directory(self.path, OS)
            directory.require()
            require_known(self.name, directory.queue_names(), False, directory.path)

    def _has_messages(self) -> bool:
        directory = Directory(self.path, OS)
        if self.backend != "journal" or not is_journal(OS, directory.path):
            return False
        return Journal(self.path).first_offset < Tail(directory).end_offset()

    def _require_path(self) -> None:
        # A Kestrel queue is files whose names begin with its name.
        if not self.path.exists() and not glob.glob(f"{glob.escape(str(self.path))}.*"):
            raise FileNotFoundError(f"{self.path}: the queue does not exist; `sej queue put` creates it")


def placed_command(command: Function) -> Function:
    """Pass a command the queue that its argument and options name."""

    @click.argument("path", metavar="QUEUE", type=PATH)
    @click.option("--name", default="queue", show_default=True, help="The queue's name, if a journal has several.")
    @click.option(
        "--backend",
        metavar="NAME",
        help=f"The backend: {', '.join(BACKENDS)}, or one that an installed package adds; by default chosen by QUEUE.",
    )
    @wraps(command)
    def placed(path: Path, name: str, backend: str | None, **options: Any) -> None:
        kind = backend or ("textqueue" if path.suffix == ".tq" else "journal")
        command(Place(path, name, kind), **options)

    return placed


def _command(function: Function) -> click.Command:
    """Make a function a subcommand that gets the queue."""
    made: click.Command = queue.command(placed_command(function))
    return made


_OFFSET: Final = click.argument("offset", type=IntRange(min=0))
_KEY: Final = click.option("--key", type=BYTES, default=b"", help="The key of every item.")
_PRIORITY: Final = click.option(
    "--priority", type=IntRange(-3, 3), default=0, show_default=True, help="Higher priorities are delivered first."
)


@contextmanager
def _looked_at(place: Place) -> Iterator[QueueLook | WorkQueue]:
    """Open a queue for reading only, if its backend can."""
    if place.backend == "journal":
        from sej.queue.listing import QueueLook

        place.require()
        yield QueueLook(place.path, place.name)
        return
    with place.open_existing(create=False) as opened:
        yield opened


@_command
@click.option("--state", type=click.Choice(STATES), help="Only these; waiting: ready or delayed. Default: not dead.")
@click.option("--limit", type=IntRange(min=1), help="At most this many.")
@click.option("--after", type=IntRange(min=0), metavar="OFFSET", help="Only items with a higher number.")
@JSON
def ls(place: Place, state: str | None, limit: int | None, after: int | None, json: bool) -> None:
    """List items without taking them: number, state, attempts, time, holder, and the message.

    The time is when a delayed item may be taken, or when a lease ends.

    Example: sej queue ls --state leased mails
    """
    with _looked_at(place) as looked:
        for item in looked.items(state, limit=limit, after=after):
            _print(item, json)


@_command
@_OFFSET
@JSON
def show(place: Place, offset: int, json: bool) -> None:
    """Show one item that is not done. Exit code 4: there is none with this number.

    Example: sej queue show mails 17
    """
    with _looked_at(place) as looked:
        after = offset - 1 if offset else None
        found = [*looked.items(limit=1, after=after), *looked.items("dead", limit=1, after=after)]
    item = next((item for item in found if item.offset == offset), None)
    if item is None:
        refuse(f"{place.path}: no item {offset}: it was done, or never put")
    if json:
        _print(item, json)
        return
    fields = _fields(item)
    headers, lines = fields.pop("headers"), fields.pop("traceback").splitlines()
    for what, value in [*fields.items(), *(("header", f"{name}={text}") for name, text in headers.items())]:
        click.echo(f"{what:9} {'-' if value in (None, '') else shown(str(value))}")
    click.echo(f"message   {as_text(item.message)}")
    for line in lines:
        click.echo(shown(line))


@_command
@click.option("--count", type=IntRange(min=1), default=1, show_default=True, help="How many items to show.")
@JSON
def peek(place: Place, count: int, json: bool) -> None:
    """Print the values of the next items without taking them. Exit code 4: no item is ready.

    Example: sej queue peek --count 10 mails
    """
    with _looked_at(place) as looked:
        found = looked.peek(count)
    for item in found:
        if json:
            _print(item, json)
        else:
            sys.stdout.buffer.write(item.value + b"\n")
    sys.stdout.flush()
    if not found:
        raise SystemExit(Exit.MISSING)


@_command
@JSON
def stats(place: Place, json: bool) -> None:
    """Print how many items are ready, delayed, leased, done and dead.

    Example: sej queue stats mails
    """
    with _looked_at(place) as looked:
        row = looked.stats()
    print_row(row, "\n".join(f"{what:8} {many}" for what, many in row.items()), json)


@_command
@_OFFSET
def cancel(place: Place, offset: int) -> None:
    """Remove one item; a worker that holds it loses its lease. Exit code 4: there is none with this number.

    Example: sej queue cancel mails 17
    """
    with place.open_existing(create=False) as opened:
        if not opened.cancel(offset):
            refuse(f"{place.path}: item {offset} is neither waiting nor leased")


@_command
def pause(place: Place) -> None:
    """Deliver no item to any worker, until `sej queue resume`; leased items stay leased.

    Example: sej queue pause mails
    """
    with place.open_existing(create=False) as opened:
        opened.pause()


@_command
def resume(place: Place) -> None:
    """Deliver items again after `sej queue pause`.

    Example: sej queue resume mails
    """
    with place.open_existing(create=False) as opened:
        opened.resume()


@_command
@_OFFSET
def requeue(place: Place, offset: int) -> None:
    """Put one dead letter back as a new item, and print its number. Exit code 4: the item has no dead letter.

    OFFSET is the number of the item, as in `sej queue dead` and `sej queue ls --state dead`.

    Example: sej queue requeue mails 17
    """
    with place.open_existing(create=False) as opened:
        found = opened.requeue(offset)
    if found is None:
        refuse(f"{place.path}: item {offset} has no dead letter, or was put back before")
    click.echo(found)


def _headers(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> dict[str, str] | None:
    """Return the headers that words name; None: none."""
    found = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not name or not equals:
            raise click.UsageError(f"--header must be NAME=TEXT, as in trace=17, got {word!r}")
        found[name] = text
    return found or None


_HEADERS: Final = click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=TEXT",
    callback=_headers,
    help="A header of every item; may be repeated.",
)


def _print(item: QueuedItem, json: bool) -> None:
    fields = _fields(item)
    if json:
        del fields["offset"], fields["ready_at"]
        row = json_row(item.message) | fields | {"ready_at_ns": item.ready_at}
        line = jsonlib.dumps(row, ensure_ascii=False)
    else:
        cells = [shown(str(value)) if value not in (None, "") else "-" for value in list(fields.values())[1:5]]
        line = "\t".join((str(item.offset), *cells, as_text(item.message).split("\t", 1)[1]))
    sys.stdout.buffer.write(line.encode() + b"\n")


def _fields(item: QueuedItem) -> dict[str, Any]:
    """Return what the queue knows about an item, in the order in which it is printed."""
    return {
        "offset": item.offset,
        "state": item.state,
        "attempts": item.attempts,
        "ready_at": None if item.ready_at is None else iso_time(item.ready_at),
        "holder": item.holder,
        "priority": item.priority,
        "reason": item.reason,
        "headers": dict(item.headers),
        "traceback": item.traceback,
    }


@queue.group
def schedule() -> None:
    """Put items at given times: any `sej worker` or `get` of the queue puts an item when its time comes."""


_NAME = click.argument("schedule", metavar="SCHEDULE")


@schedule.command("list")
@placed_command
@JSON
def list_(place: Place, json: bool) -> None:
    """List the schedules: name, times, zone, next time or `paused`, and value.

    Example: sej queue schedule list mails
    """
    place.require()
    from sej.queue.listing import QueueLook

    for each in QueueLook(place.path, place.name).schedules():
        row: dict[str, Any] = {**each._asdict(), **text_or_b64("key", each.key), **text_or_b64("value", each.value)}
        row = {"next_at_ns" if name == "next_at" else name: what for name, what in row.items()}
        times = each.cron or f"every {each.every_s:g}s"
        at = "paused" if each.paused else "-" if each.next_at is None else iso_time(each.next_at)
        cells = each.name, times, each.timezone or "-", str(at), each.value.decode(errors="backslashreplace")
        print_row(row, "\t".join(map(shown, cells)), json)


@schedule.command
@placed_command
@_NAME
@click.argument("value", type=BYTES)
@click.option("--every", type=AGE, help="Put an item each 15m, for example; the first one after that time.")
@click.option("--cron", help="Minute, hour, day, month and weekday, as in '0 3 * * mon-fri', or a name as @daily.")
@click.option("--timezone", help="The zone of --cron, as in Europe/Berlin.  [default: UTC]")
@click.option("--missed", type=click.Choice(MISSED), default="one", show_default=True,
              help="If several times have passed: one item, one for each, or only one of the last minute.")  # fmt: skip
@_KEY
@_PRIORITY
@_HEADERS
def add(place: Place, schedule: str, value: bytes, **options: Any) -> None:
    """Add or change a schedule; prints its next time.

    Example: sej queue schedule add mails nightly 'send the report' --cron '0 3 * * mon-fri'
    """
    with place.open() as opened:
        click.echo(iso_time(opened.put(value, schedule=schedule, **options)))


def _changing(word: str, what: str) -> None:
    text = f"{what} Exit code 4: there is none of this name.\n\nExample: sej queue schedule {word} mails nightly"

    @schedule.command(word, help=text)
    @placed_command
    @_NAME
    def changed(place: Place, schedule: str) -> None:
        with place.open_existing(create=False) as opened:
            if not getattr(opened.schedules, word)(schedule):
                refuse(f"{place.path}: no schedule {schedule!r}; `sej queue schedule list` prints them")


_changing("pause", "Let the times of a schedule pass without items.")
_changing("resume", "Put items of a schedule again, from its next time on.")
_changing("remove", "Remove a schedule; items that were put stay.")


_SLICE_S: Final = 0.5
_NEXT_TO_IT: Final = "its dead letters are a queue of their own next to it, QUEUE_dead: `sej queue get` takes from that"
_ELSEWHERE: Final = {
    "textqueue": "a .tq file holds its own dead letters: `sej tq list --status critical` prints them",
    **dict.fromkeys(("kestrel", "libkestrel"), _NEXT_TO_IT),
}


_CREATE: Final = click.option(
    "--create",
    is_flag=True,
    default=None,
    help="Create this queue even if the journal has messages or another queue: every message is delivered to it.",
)


@_command
@_CREATE
@click.argument("values", metavar="[VALUE]...", nargs=-1)
@_KEY
@click.option(
    "--delay", "delay_s", type=DURATION, default=0.0, help="Deliver the items only after this time, as in 10m."
)
@_PRIORITY
@click.option("--expire", "expire_s", type=AGE, help="Drop an item that was not delivered within this time, as in 1d.")
@_HEADERS
@click.option(
    "--dedupe-key", help="Skip the item if one with this key was put within the last hour; only for a single item."
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
@lease_option("PROGRAM")
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
    """A request to stop: a flag and not an event, whose lock the code that a signal interrupts may hold.

    A thread that sets an event for the handler may be late on a busy machine: then an item is worked on that was just
    taken.
    """

    _asked = False

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
    stop = _Stop()
    before = signal.signal(signal.SIGTERM, stop.ask) if program else None
    try:
        with nullcontext() if program else until_reader_leaves(stop.ask):
            yield stop
    finally:
        if program:
            signal.signal(signal.SIGTERM, before)


@_command
@form_options
@click.option("--dead-letter", type=PATH, help="The journal of dead letters; default: the queue's own.")
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


@_command
@click.option("--limit", type=IntRange(min=1), help="At most this many, the oldest first.")
def redrive(place: Place, limit: int | None) -> None:
    """Put dead letters back into the queue; prints how many.

    Example: sej queue redrive mails
    """
    with place.open_existing(create=False) as opened:
        click.echo(opened.redrive(limit))


@_command
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge(place: Place, yes: bool) -> None:
    """Remove every item that is not leased; shows how many and asks.

    Example: sej queue purge --yes mails
    """
    with place.open_existing(create=False) as opened:
        if not yes:
            click.confirm(f"Remove {len(opened)} items?", abort=True)
        click.echo(opened.purge())


@_command
@_OFFSET
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
