"""``sej tq archive | split | drain``: move messages elsewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from sej.cli.shared.parameters import PATH, IntRange
from sej.system.disk import OS
from textqueue.commands.opening import (
    QUEUE,
    JournalsLike,
    note_if_foreign,
    opened,
    opened_files,
    print_line,
    refuse_foreign,
    require,
)
from textqueue.editing.message import Message
from textqueue.editing.replace import Part, require_outside_journals
from textqueue.editing.source import Source
from textqueue.editing.split import split as split_file
from textqueue.format.grammar import STATUS_OF, MessageStatus
from textqueue.reading.files import SUFFIX

_UNSAFE: Final = re.compile(r"[^\w.+@-]|^\.")


@click.command
@QUEUE
@click.argument("target", type=PATH)
@click.option("--critical", is_flag=True, help="Move critical errors as well.")
def archive(path: Path, target: Path, critical: bool) -> None:
    """Move cleared messages to the end of another file, and print their number.

    Example: sej tq archive jobs.tq jobs.done
    """
    refuse_foreign(target)
    with opened(path) as queue:
        statuses = {MessageStatus.cleared} | ({MessageStatus.critical} if critical else set())
        click.echo(queue.archive(target, statuses))


@click.command
@QUEUE
@click.argument("directory", metavar="DIR", type=PATH)
@click.option("--status", "by_status", is_flag=True, help="One file for each status: jobs-queued.tq and others.")
@click.option("--every", type=IntRange(1), help="One file for each N messages: jobs-0001.tq and others.")
@click.option("--variable", help="One file for each value of this variable, such as writer: jobs-ann.tq and others.")
def split(path: Path, directory: Path, by_status: bool, every: int | None, variable: str | None) -> None:
    """Move the messages into several new files in a directory, which is created. Print the files and their counts.

    A comment is moved with the messages right below it, if all of them are moved to the same file. A message remains if
    a process has claimed it, or if it does not have the variable. If the command is interrupted, the next split of the
    same file completes it, or starts again: no message is lost, and none is in two files.

    Example: sej tq split jobs.tq jobs --variable writer
    """
    if by_status + (every is not None) + (variable is not None) != 1:
        raise click.UsageError("expected one of --status, --every and --variable")
    require(path)
    require_outside_journals(OS, os.fspath(directory))
    directory.mkdir(parents=True, exist_ok=True)
    with opened_files(path) as sources:
        for source in sources:
            choose = _naming(source, directory, by_status=by_status, every=every, variable=variable)
            made = split_file(source, choose)
            for target, count in sorted(made.items()):
                print_line(target, str(count))


def _naming(
    source: Source, directory: Path, *, by_status: bool, every: int | None, variable: str | None
) -> Callable[[Part], str | None]:
    """Return a function that returns the path of the new file for a message."""
    stem = directory / os.path.basename(source.path).removesuffix(SUFFIX)
    number, last = 0, -1

    def name(part: Part) -> str | None:
        nonlocal number, last
        if part.position <= last:  # another program changed the file, so the split begins again
            number = 0
        last = part.position
        if by_status:
            return f"{stem}-{STATUS_OF[part.raw[0]].name}{SUFFIX}"
        if every is not None:
            number += 1
            return f"{stem}-{(number - 1) // every + 1:04}{SUFFIX}"
        value = Message(source, part.raw, part.position, -1).get(str(variable), "")
        return f"{stem}-{_UNSAFE.sub('_', value)}{SUFFIX}" if value else None

    return name


@click.command
@QUEUE
@click.argument("journal", metavar="DIR", type=PATH)
@click.pass_obj
def drain(journals: JournalsLike, path: Path, journal: Path) -> None:
    """Move every queued message into a SEJ journal, each exactly once, even after a crash. Print their number.

    Example: sej tq drain jobs.tq jobs
    """
    with opened(path) as queue, journals.writer(journal) as writer:
        moved = queue.drain_to(writer)
        if not moved:
            note_if_foreign(queue, path)
        click.echo(moved)
