"""``sej tq add | next | done | fail | claim | list | check | archive | follow | drain``: text queues from a shell.

A message is named by its position, the byte at which it begins: no mark moves it. ``next``, ``list`` and ``claim``
print it in the first column.
"""

from __future__ import annotations

import json as jsonlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Protocol

import click

from sej.system.locks import host_name, process_start
from textqueue.claims.drain import OnceWriter
from textqueue.editing.message import Message
from textqueue.format.grammar import RETRIES, MessageStatus
from textqueue.queue import TextQueue
from textqueue.reading.checker import check as check_file

__all__ = [
    "JournalsLike",
    "add",
    "app",
    "archive",
    "check",
    "claim",
    "done",
    "drain",
    "fail",
    "follow",
    "list_",
    "next_",
]

_WRONG: Final = 1
_MISSING: Final = 4
_QUEUE: Final = click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
_POSITIONS: Final = click.argument("positions", metavar="POSITION...", nargs=-1, required=True, type=int)
_JSON: Final = click.option("--json", is_flag=True, help="One JSON object a line.")
_ALL: Final = "all"
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f\\]")
_NAMED: Final = {b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t", b"\\": b"\\\\"}
"""What would break a line or reach the terminal is shown as ``sej scan`` shows it."""
_SHOWN: Final = (MessageStatus.queued, MessageStatus.cleared, MessageStatus.critical, MessageStatus.comment)


class JournalsLike(Protocol):
    """What the command ``sej`` hands on, so that this package needs no journals."""

    def writer(self, path: str | os.PathLike[str]) -> AbstractContextManager[OnceWriter]:
        """The writer of a journal."""

    def until_reader_leaves(self) -> AbstractContextManager[None]:
        """A wait inside ends when nobody reads standard output any more."""


@click.group("tq")
def app() -> None:
    """Text queues: .tq files that people edit while programs work on them."""


@app.command()
@_QUEUE
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@click.option("--variable", "variables", multiple=True, help="A line as in 'retries=3 '; several times.")
@click.option("--comment", is_flag=True, help="Write comments instead of messages.")
def add(path: Path, texts: tuple[str, ...], variables: tuple[str, ...], comment: bool) -> None:
    """Append messages: the texts, or each line of standard input; the file is made if missing.

    Example: sej tq add jobs.tq 'ship 17' --variable 'retries=3 '
    """
    lines = texts or [line.removesuffix(b"\n").removesuffix(b"\r") for line in sys.stdin.buffer]
    with TextQueue(path) as queue:
        status = MessageStatus.comment if comment else MessageStatus.queued
        for message in queue.append_many(lines, variables, status=status):
            click.echo(message.position)


@app.command("next")
@_QUEUE
@_JSON
def next_(path: Path, json: bool) -> None:
    """Print the next queued message, without claiming it. Exit code 4: there is none.

    Example: sej tq next jobs.tq
    """
    with _opened(path) as queue:
        message = queue.get_next()
        if message is None:
            raise SystemExit(_MISSING)
        _show([message], json=json)


@app.command()
@_QUEUE
@_POSITIONS
def done(path: Path, positions: tuple[int, ...]) -> None:
    """Mark messages as cleared.

    Example: sej tq done jobs.tq 0
    """
    _mark(path, positions, MessageStatus.cleared, None)


@app.command()
@_QUEUE
@_POSITIONS
@click.option("--reason", help="Written into the reason variable of a message that has one.")
def fail(path: Path, positions: tuple[int, ...], reason: str | None) -> None:
    """Mark messages as critical errors.

    Example: sej tq fail jobs.tq 0 --reason 'no such order'
    """
    _mark(path, positions, MessageStatus.critical, reason)


@app.command()
@_QUEUE
@click.argument("command", metavar="[COMMAND]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--all", "all_", is_flag=True, help="With a command: go on until nothing is free.")
@_JSON
def claim(path: Path, command: tuple[str, ...], all_: bool, json: bool) -> None:
    """Claim the next free message. With a command: run it with the text as its input; alone: for the calling shell.

    Where the command ends with 0 the message is cleared, else it is put back, or failed when its retries are used up.
    Without `retries` it is not tried again by the same run. A claim of the shell lasts until `sej tq done`,
    `sej tq fail`, or the shell's end. Exit code 4: nothing is free; 1: the command failed.

    Example: sej tq claim jobs.tq -- ./work
    """
    if command and shutil.which(command[0]) is None:
        raise click.UsageError(f"there is no program {command[0]!r} that can be run")
    parent = os.getppid()
    owner = None if command else f"{parent}@{host_name()}/{process_start(parent)}"
    taken, failed = 0, 0
    tried: set[tuple[str, int, str, str | None]] = set()
    with _opened(path) as queue:
        while (held := queue.take(owner)) is not None:
            message = held.message
            this_try = message.path, message.position, message.value, message.get(RETRIES)
            if this_try in tried:
                continue  # nothing counts its tries: it is kept from the others until the queue is closed
            tried.add(this_try)
            taken += 1
            if not command:
                _show([held.message], json=json)
                return
            try:
                code = subprocess.run(command, input=held.message.value_bytes, check=False).returncode
            except BaseException:
                held.give_back()
                raise
            if code:
                failed += 1
                held.failed(f"exit code {code}")
            else:
                held.done()
            if not all_:
                break
    if not taken:
        raise SystemExit(_MISSING)
    if failed:
        raise SystemExit(_WRONG)


@app.command("list")
@_QUEUE
@_JSON
@click.option(
    "--status",
    "names",
    type=click.Choice([*(status.name for status in _SHOWN), _ALL]),
    multiple=True,
    help="Messages of this status; several times.",
)
def list_(path: Path, json: bool, names: tuple[str, ...]) -> None:
    """Print the messages: position, status, text. Queued ones, unless --status names others.

    Example: sej tq list --status queued --status critical jobs.tq
    """
    with _opened(path) as queue:
        wanted = set(_SHOWN) if _ALL in names else {MessageStatus[name] for name in names}
        _show(queue.messages(wanted or {MessageStatus.queued}), json=json)


@app.command()
@_QUEUE
@_JSON
def check(path: Path, json: bool) -> None:
    """Say what somebody may have typed by mistake, as file:line:column. Exit code 1 where anything is.

    Example: sej tq check jobs.tq
    """
    _require(path)
    problems = check_file(path)
    for problem in problems:
        click.echo(jsonlib.dumps(problem._asdict()) if json else problem)
    if problems:
        raise SystemExit(_WRONG)


@app.command()
@_QUEUE
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--critical", is_flag=True, help="Critical errors too.")
def archive(path: Path, target: Path, critical: bool) -> None:
    """Move cleared messages to the end of another file; prints how many.

    Example: sej tq archive jobs.tq jobs.done
    """
    with _opened(path) as queue:
        statuses = {MessageStatus.cleared} | ({MessageStatus.critical} if critical else set())
        click.echo(queue.archive(target, statuses))


@app.command()
@_QUEUE
@_JSON
@click.option("--timeout", type=click.FloatRange(min=0), help="Seconds without a message after which to end.")
@click.pass_obj
def follow(journals: JournalsLike, path: Path, json: bool, timeout: float | None) -> None:
    """Print queued messages, and those that come, whoever writes them; marks nothing.

    Example: sej tq follow jobs.tq
    """
    with _opened(path) as queue, journals.until_reader_leaves():
        for message in queue.follow(timeout=timeout):
            _show([message], json=json)
            sys.stdout.flush()


@app.command()
@_QUEUE
@click.argument("journal", metavar="DIR", type=click.Path(path_type=Path))
@click.pass_obj
def drain(journals: JournalsLike, path: Path, journal: Path) -> None:
    """Move every free message into a SEJ journal, each exactly once, whatever dies in between; prints how many.

    Example: sej tq drain jobs.tq jobs
    """
    with _opened(path) as queue, journals.writer(journal) as writer:
        click.echo(queue.drain_to(writer))


def _require(path: Path) -> None:
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file; `sej tq add` makes one")
    if path.is_dir():
        raise IsADirectoryError(f"{path}: this is a directory; a .tq file is due")


def _opened(path: Path) -> TextQueue:
    _require(path)
    return TextQueue(path)


def _mark(path: Path, positions: tuple[int, ...], status: MessageStatus, reason: str | None) -> None:
    with _opened(path) as queue:
        there = {message.position: message for message in queue.messages(frozenset(_SHOWN))}
        missing = [position for position in positions if position not in there]
        if missing:
            click.echo(f"sej: {path}: no message begins at position {missing[0]}; `sej tq list` prints them", err=True)
            raise SystemExit(_MISSING)
        queue.mark_many([there[position] for position in positions], status, reason=reason)


def _show(messages: Iterable[Message], *, json: bool) -> None:
    out = sys.stdout.buffer
    for message in messages:
        if json:
            row = {
                "path": message.path,
                "position": message.position,
                "status": message.status.name,
                "value": message.value,
                "variables": list(message.get_variables()),
            }
            out.write(jsonlib.dumps(row, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n")
        else:
            text = _CONTROL.sub(lambda found: _NAMED.get(found[0]) or b"\\x%02x" % found[0][0], message.value_bytes)
            out.write(b"%d\t%b\t%b\n" % (message.position, message.status.name.encode(), text))
