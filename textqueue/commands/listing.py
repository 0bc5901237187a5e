"""``sej tq list | next | stats | follow``: print messages, and change none."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import click

from sej.cli.shared.exits import Exit
from sej.cli.shared.parameters import DURATION
from sej.cli.shared.units import human_duration
from textqueue.commands.opening import (
    JSON,
    QUEUE,
    JournalsLike,
    hash_of,
    name_of,
    note_if_foreign,
    opened,
    print_json,
    print_line,
    report,
    shown,
)
from textqueue.editing.message import Message
from textqueue.format.grammar import CONTROLS, MessageStatus
from textqueue.reading.details import Detail, details

_ALL: Final = "all"
_STATUSES: Final = tuple(control.status for control in CONTROLS if control.status is not None)


@click.command("next")
@QUEUE
@JSON
def next_(path: Path, json: bool) -> None:
    """Print the next queued message, without claiming it. Exit code 4: no message is queued.

    Example: sej tq next jobs.tq
    """
    with opened(path, some=True) as queue:
        message = queue.get_next()
        if message is None:
            note_if_foreign(queue, path)
            raise SystemExit(Exit.MISSING)
        show([message], path, json=json)


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
def list_(
    path: Path,
    json: bool,
    long: bool,
    names: tuple[str, ...],
    text: str | None,
    pattern: str | None,
    older: float | None,
    claimed: bool | None,
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
        for one in details(queue.messages(wanted), now_ns=time.time_ns()):
            value = one.message.value
            if (
                (text is None or text.casefold() in value.casefold())
                and (found is None or found.search(value))
                and (older is None or one.age_s >= older)
                and (claimed is None or claimed == (one.holder is not None))
            ):
                _show_detail(one, path, json=json, long=long)


@click.command
@QUEUE
@JSON
def stats(path: Path, json: bool) -> None:
    """Print how many messages have each status, how many are claimed, and the age of the oldest queued message.

    Example: sej tq stats jobs.tq
    """
    counts = dict.fromkeys((status.name for status in _STATUSES), 0)
    claims, oldest = 0, None
    with opened(path) as queue:
        for one in details(queue.messages(_STATUSES), now_ns=time.time_ns()):
            counts[one.message.status.name] += 1
            claims += one.holder is not None
            if one.message.status is MessageStatus.queued:
                oldest = one.age_s if oldest is None else max(oldest, one.age_s)
        files = len(queue.input_files)
    row: dict[str, Any] = {**counts, "claimed": claims, "files": files, "oldest_s": oldest}
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
@click.pass_obj
def follow(journals: JournalsLike, path: Path, json: bool, timeout: float | None) -> None:
    """Print queued messages, and wait for new ones from any program. No message is marked.

    Example: sej tq follow jobs.tq
    """
    with opened(path) as queue, journals.until_reader_leaves():
        note_if_foreign(queue, path)
        for message in queue.follow(timeout=timeout):
            show([message], path, json=json)
            sys.stdout.flush()
            report(queue)


def show(messages: Iterable[Message], path: Path, *, json: bool) -> None:
    """Print messages: as JSON, or name, status and text."""
    for message in messages:
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
    }


def _show_detail(one: Detail, path: Path, *, json: bool, long: bool) -> None:
    message = one.message
    if json:
        print_json(_fields(message) | {"line": one.line, "age_s": round(one.age_s, 3), "holder": one.holder})
    elif long:
        columns = str(one.line), message.status.name, human_duration(one.age_s), shown((one.holder or "-").encode())
        print_line(name_of(message, path), *columns, shown(message.value_bytes))
    else:
        show([message], path, json=False)
