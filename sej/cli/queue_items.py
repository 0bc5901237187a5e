"""The queue of a command; ``sej queue ls | show | peek | stats | cancel | requeue | pause | resume | schedule``.

The first four open a queue on a journal for reading only: they take no lock, and work on a read-only directory.
"""

from __future__ import annotations

import glob
import json as jsonlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from sej.cli.shared.command import AGE, BYTES, JSON, PATH, Exit, IntRange, refuse
from sej.cli.shared.options import wait_until_created
from sej.cli.shared.text import as_text, iso_time, json_row, shown
from sej.journal.directory import Directory, is_journal
from sej.journal.tail import Tail
from sej.journal.view import Journal
from sej.message import text_or_b64
from sej.queue.interface.queue import BACKENDS, WorkQueue, open_queue, require_known
from sej.queue.interface.schedules import MISSED
from sej.queue.interface.values import STATES, QueuedItem
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


def placed_command(command: Callable[..., None]) -> Callable[..., None]:
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


OFFSET: Final = click.argument("offset", type=IntRange(min=0))


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


@queue.command
@placed_command
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


@queue.command
@placed_command
@OFFSET
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


@queue.command
@placed_command
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


@queue.command
@placed_command
@JSON
def stats(place: Place, json: bool) -> None:
    """Print how many items are ready, delayed, leased, done and dead.

    Example: sej queue stats mails
    """
    with _looked_at(place) as looked:
        row = looked.stats()
    click.echo(jsonlib.dumps(row) if json else "\n".join(f"{what:8} {many}" for what, many in row.items()))


@queue.command
@placed_command
@OFFSET
def cancel(place: Place, offset: int) -> None:
    """Remove one item; a worker that holds it loses its lease. Exit code 4: there is none with this number.

    Example: sej queue cancel mails 17
    """
    with place.open_existing(create=False) as opened:
        if not opened.cancel(offset):
            refuse(f"{place.path}: item {offset} is neither waiting nor leased")


@queue.command
@placed_command
def pause(place: Place) -> None:
    """Deliver no item to any worker, until `sej queue resume`; leased items stay leased.

    Example: sej queue pause mails
    """
    with place.open_existing(create=False) as opened:
        opened.pause()


@queue.command
@placed_command
def resume(place: Place) -> None:
    """Deliver items again after `sej queue pause`.

    Example: sej queue resume mails
    """
    with place.open_existing(create=False) as opened:
        opened.resume()


@queue.command
@placed_command
@OFFSET
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


KEY: Final = click.option("--key", type=BYTES, default=b"", help="The key of every item.")
HEADERS: Final = click.option(
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
        times = each.cron or f"every {each.every_s:g}s"
        if json:
            row: dict[str, Any] = {**each._asdict(), **text_or_b64("key", each.key), **text_or_b64("value", each.value)}
            click.echo(jsonlib.dumps({"next_at_ns" if name == "next_at" else name: what for name, what in row.items()}))
        else:
            at = "paused" if each.paused else "-" if each.next_at is None else iso_time(each.next_at)
            cells = each.name, times, each.timezone or "-", str(at), each.value.decode(errors="backslashreplace")
            click.echo("\t".join(shown(cell) for cell in cells))


@schedule.command
@placed_command
@_NAME
@click.argument("value", type=BYTES)
@click.option("--every", type=AGE, help="Put an item each 15m, for example; the first one after that time.")
@click.option("--cron", help="Minute, hour, day, month and weekday, as in '0 3 * * mon-fri', or a name as @daily.")
@click.option("--timezone", help="The zone of --cron, as in Europe/Berlin.  [default: UTC]")
@click.option("--missed", type=click.Choice(MISSED), default="one", show_default=True,
              help="If several times have passed: one item, one for each, or only one of the last minute.")  # fmt: skip
@KEY
@click.option("--priority", type=IntRange(-3, 3), default=0, help="Higher priorities are delivered first.")
@HEADERS
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
