"""``sej tq list | next | stats | follow | watch``: print messages, and change none."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from sej.cli.shared.command import CHROME_LINES, DURATION, JSON, Exit, screen, until_reader_leaves, wait
from sej.cli.shared.text import human_duration, iso_time
from textqueue.checker import Detail, details, totals
from textqueue.commands.opening import (
    QUEUE,
    hash_of,
    name_of,
    note_if_foreign,
    opened,
    opened_files,
    print_json,
    print_line,
    readable,
    report,
    shown,
)
from textqueue.editing.message import Message
from textqueue.format.parser import CONTROLS, MessageStatus, plan_of

_ALL: Final = "all"
_STATUSES: Final = tuple(control.status for control in CONTROLS if control.status is not None)


def _urgency(message: Message) -> tuple[int, float]:
    """Return a key: the highest priority first, then the earliest date."""
    plan = plan_of(message.raw)
    return -plan.priority, plan.due_ns or float("inf")


def _is_later(one: Detail, now_ns: int) -> bool:
    """Return whether no worker takes the message yet, because of its date."""
    return one.message.status is MessageStatus.queued and plan_of(one.message.raw).due_ns > now_ns


_SORTS: Final = {
    "pri": lambda one: _urgency(one.message),
    "due": lambda one: plan_of(one.message.raw).due_ns or float("inf"),
    "age": lambda one: -one.age_s,
}


@click.command("next")
@QUEUE
@JSON
def next_(path: Path, json: bool) -> None:
    """Print the next message that a person may do, without claiming it. Exit code 4: there is none.

    A message that a process has claimed, or that has a later date, is passed over. Of the others, the one with the
    highest priority (the variable pri) is printed, then the one with the earliest date (due), then the first one.

    Example: sej tq next jobs.tq
    """
    with opened(path, some=True) as queue:
        now_ns = time.time_ns()
        free = (one for one in details(queue.messages(), now_ns=now_ns) if one.holder is None)
        found = min((one.message for one in free if not _is_later(one, now_ns)), key=_urgency, default=None)
        message = found or queue.get_next()  # a last message that may still grow
        if message is None or plan_of(message.raw).due_ns > now_ns:
            note_if_foreign(queue, path)
            raise SystemExit(Exit.MISSING)
        show(message, path, json=json)


@click.command("list")
@QUEUE
@JSON
@click.option("--long", "-l", is_flag=True, help="Print also the line, the age, and which process has claimed it.")
@click.option(
    "--status",
    "names",
    type=click.Choice([*(status.name for status in _STATUSES), _ALL]),
    multiple=True,
    help="Only messages of this status; may be repeated.",
)
@click.option("--text", help="Only messages that contain this text, in upper or lower case.")
@click.option("--match", "pattern", help="Only messages in which this regular expression (of Python) is found.")
@click.option("--older", type=DURATION, help="Only messages that no program has changed for this time, as in 2h.")
@click.option("--claimed/--free", default=None, help="Only messages that a process has claimed, or only the others.")
@click.option("--tag", help="Only messages whose variable tags has this word.")
@click.option(
    "--sort", type=click.Choice(_SORTS), help="The default is the order of the file. pri: as for sej tq next."
)
def list_(
    path: Path,
    json: bool,
    long: bool,
    names: tuple[str, ...],
    text: str | None,
    pattern: str | None,
    older: float | None,
    claimed: bool | None,
    tag: str | None,
    sort: str | None,
) -> None:
    """Print the messages: name, status, text. Without --status: the queued ones.

    With --long, the columns are: name, line, status, age, claim, text. The age is the time since a program added,
    marked or claimed the message. If no program has, it is the time since the file was changed, so the message is at
    least that old. The claim is pid@host/start, and the time since then is the age.

    Example: sej tq list --status queued --status critical jobs.tq
    """
    wanted = set(_STATUSES) if _ALL in names else {MessageStatus[name] for name in names} or {MessageStatus.queued}
    try:
        found = None if pattern is None else re.compile(pattern)
    except re.error as error:
        raise click.UsageError(f"--match must be a regular expression, got {pattern!r}: {error}") from None
    with opened(path, some=True) as queue:
        note_if_foreign(queue, path)
        rows: Iterable[Detail] = details(queue.messages(wanted), now_ns=time.time_ns())
        for one in rows if sort is None else sorted(rows, key=_SORTS[sort]):
            value = one.message.value
            if (
                (text is None or text.casefold() in value.casefold())
                and (found is None or found.search(value))
                and (older is None or one.age_s >= older)
                and (claimed is None or claimed == (one.holder is not None))
                and (tag is None or tag in plan_of(one.message.raw).tags)
            ):
                _show_detail(one, path, json=json, long=long)


@click.command
@QUEUE
@JSON
def stats(path: Path, json: bool) -> None:
    """Print how many messages have each status, how many are claimed, and the age of the oldest queued message.

    Example: sej tq stats jobs.tq
    """
    with opened_files(path) as sources:
        found = totals(sources, now_ns=time.time_ns())
    counts = {status.name: found.counts[status] for status in _STATUSES}
    row: dict[str, Any] = {**counts, "claimed": found.claimed, "files": len(sources), "oldest_s": found.oldest_s}
    if json:
        print_json(row)
        return
    row["oldest"] = "-" if (age := row.pop("oldest_s")) is None else human_duration(age)
    for what, many in row.items():
        click.echo(f"{what:8} {many}")


@click.command
@QUEUE
@JSON
@click.option("--timeout", type=DURATION, help="End after this time without a message, as in 30s.")
def follow(path: Path, json: bool, timeout: float | None) -> None:
    """Print queued messages, and wait for new ones from any program. No message is marked.

    Example: sej tq follow jobs.tq
    """
    with opened(path) as queue, until_reader_leaves():
        note_if_foreign(queue, path)
        for message in queue.follow(timeout=timeout):
            show(message, path, json=json)
            sys.stdout.flush()
            report(queue.conflicts)


def show(message: Message, path: Path, *, json: bool) -> None:
    """Print a message: as JSON, or name, status and text."""
    if json:
        print_json(_fields(message))
    else:
        print_line(name_of(message, path), message.status.name, shown(message.value_bytes))


def _fields(message: Message) -> dict[str, Any]:
    return {
        "path": message.path,
        "position": message.position,
        "hash": hash_of(message),
        "status": message.status.name,
        "value": message.value,
        "variables": list(message.get_variables()),
        **plan_of(message.raw)._asdict(),
    }


def _show_detail(one: Detail, path: Path, *, json: bool, long: bool) -> None:
    message = one.message
    if json:
        print_json(_fields(message) | {"line": one.line, "age_s": round(one.age_s, 3), "holder": one.holder})
    elif long:
        columns = str(one.line), message.status.name, human_duration(one.age_s), shown((one.holder or "-").encode())
        print_line(name_of(message, path), *columns, shown(message.value_bytes))
    else:
        show(message, path, json=False)


if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WATCHED: Final = (MessageStatus.queued, MessageStatus.cleared, MessageStatus.critical)
_COLOURS: Final = {MessageStatus.cleared: "green", MessageStatus.critical: "red"}
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
    with opened(path) as queue, screen() if table else nullcontext() as live:
        while True:
            now = time.time_ns()
            found = list(details(queue.messages(_WATCHED), now_ns=now))
            by_status = Counter(one.message.status for one in found)
            counts = {status.name: by_status[status] for status in _WATCHED}
            counts["claimed"] = sum(one.holder is not None for one in found)
            if live is not None:
                live.update(_table(path, now, counts, found, live.console), refresh=True)
            else:
                if json:
                    print_json({"time": iso_time(now), "time_ns": now, **counts})
                else:
                    print_line(iso_time(now) or "-", *(f"{name}={count}" for name, count in counts.items()))
                sys.stdout.flush()
                report(queue.conflicts)
            if once or not wait(interval):
                return


def _table(path: Path, now_ns: int, counted: dict[str, int], messages: list[Detail], console: Console) -> Table:
    from rich.table import Table
    from rich.text import Text

    order = {MessageStatus.queued: 1, MessageStatus.critical: 2, MessageStatus.cleared: 3}
    rows = [one for one in messages if one.message.status is not MessageStatus.cleared]
    rows.sort(
        key=lambda one: (0 if one.holder else order[one.message.status], _is_later(one, now_ns), *_urgency(one.message))
    )
    rows += [one for one in reversed(messages) if one.message.status is MessageStatus.cleared]
    lines = max(console.height - CHROME_LINES, 1)
    hidden = f"; {len(rows) - lines} more: a taller terminal shows them" if len(rows) > lines else ""
    counts = ", ".join(f"{count:,} {name}" for name, count in counted.items())
    table = Table(caption=f"{counts}{hidden}; q ends", expand=True, title=Text(str(path)))
    narrow = console.width < _NARROW
    for name in ("line", "status") if narrow else ("message", "line", "status", "age"):
        table.add_column(name, no_wrap=True)
    if not narrow:
        table.add_column("claim", overflow="ellipsis", no_wrap=True, ratio=1)
    table.add_column("text", overflow="ellipsis", no_wrap=True, ratio=3)
    for one in rows[:lines]:
        status = one.message.status
        text = readable(one.message.value_bytes)
        due = f"due {plan_of(one.message.raw).due}" if _is_later(one, now_ns) else ""
        place = (str(one.line), Text(due or status.name, style=_COLOURS.get(status, "")))
        if narrow:
            table.add_row(*place, Text(text, style="yellow" if one.holder else ""))
            continue
        claim = Text(one.holder or "", style="yellow")
        table.add_row(Text(name_of(one.message, path)), *place, human_duration(one.age_s), claim, Text(text))
    return table
