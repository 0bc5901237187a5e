"""``sej tq add | next | done | fail | claim | list | check | archive | follow | drain``: text queues from a shell.

The name of a message is its position, which is the byte at which it begins, and a hash of its text and variables:
``7:0c3f90a1``. A mark changes neither. If a user inserts a line above, the position alone would name another message.
``add``, ``next``, ``list`` and ``claim`` print the name in the first column.

Every command prints the conflicts that it found (``TextQueue.conflicts``) on standard error.
"""

from __future__ import annotations

import json as jsonlib
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, NoReturn, Protocol

import click

from sej.cli.parameters import DURATION
from sej.cli.programs import ProgramCommand, ending, require_program
from sej.system.locks import host_name, process_start
from textqueue.claims.claim import Claim
from textqueue.claims.drain import OnceWriter
from textqueue.editing.message import Message
from textqueue.format.grammar import BOM, CONTROL_OF, RETRIES, MessageStatus
from textqueue.format.parser import digest, essence
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
_QUEUE: Final = click.argument("path", metavar="FILE", type=click.Path(path_type=Path, readable=False))
_NAMES: Final = click.argument("names", metavar="[POSITION:HASH]...", nargs=-1)
_NAME: Final = re.compile(r"(\d+):([0-9a-f]{8})")
_JSON: Final = click.option("--json", is_flag=True, help="One JSON object per line.")
_ALL: Final = "all"
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f\\]")
_NAMED: Final = {b"\n": b"\\n", b"\r": b"\\r", b"\t": b"\\t", b"\\": b"\\\\"}
"""Control characters are printed as ``sej scan`` prints them."""
_SHOWN: Final = (MessageStatus.queued, MessageStatus.cleared, MessageStatus.critical, MessageStatus.comment)


_BEGINS: Final = frozenset(CONTROL_OF[status] for status in _SHOWN)
"""The first bytes of the lines that begin an entry."""


class JournalsLike(Protocol):
    """Access to journals, which the command ``sej`` provides, so that this package does not import them."""

    def writer(self, path: str | os.PathLike[str]) -> AbstractContextManager[OnceWriter]:
        """Open a writer of a journal."""

    def until_reader_leaves(self) -> AbstractContextManager[None]:
        """Within this context, a wait ends when the reader of standard output has closed it."""


@click.group("tq")
def app() -> None:
    """Text queues: .tq files that users edit while programs work on them."""


@app.command()
@_QUEUE
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@click.option(
    "--variable",
    "variables",
    multiple=True,
    help="A variable line such as 'retries=3 ', whose space leaves room for 10; may be repeated.",
)
@click.option("--comment", is_flag=True, help="Write comments instead of messages.")
def add(path: Path, texts: tuple[str, ...], variables: tuple[str, ...], comment: bool) -> None:
    """Append messages: the texts, or each line of standard input. The file is created if it is missing.

    Prints the name of each message, POSITION:HASH, for `sej tq done` and `sej tq fail`.

    Example: sej tq add jobs.tq 'ship 17' --variable 'retries=3 '
    """
    lines = texts or [line.removesuffix(b"\n").removesuffix(b"\r") for line in sys.stdin.buffer]
    with _reporting(TextQueue(path)) as queue:
        status = MessageStatus.comment if comment else MessageStatus.queued
        for message in queue.append_many(lines, variables, status=status):
            click.echo(_name(message))


@app.command("next")
@_QUEUE
@_JSON
def next_(path: Path, json: bool) -> None:
    """Print the next queued message, without claiming it. Exit code 4: no message is queued.

    Example: sej tq next jobs.tq
    """
    with _opened(path) as queue:
        message = queue.get_next()
        if message is None:
            _note_if_foreign(path)
            raise SystemExit(_MISSING)
        _show([message], json=json)


@app.command()
@_QUEUE
@_NAMES
def done(path: Path, names: tuple[str, ...]) -> None:
    """Mark messages as cleared. Without a name: the message that the calling shell has claimed.

    Example: sej tq done jobs.tq 0:9d1e27b4
    """
    _mark(path, names, MessageStatus.cleared, None)


@app.command()
@_QUEUE
@_NAMES
@click.option("--reason", help="Text for the reason variable, if the message has one.")
def fail(path: Path, names: tuple[str, ...], reason: str | None) -> None:
    """Mark messages as critical errors. Without a name: the message that the calling shell has claimed.

    Example: sej tq fail jobs.tq --reason 'no such order'
    """
    _mark(path, names, MessageStatus.critical, reason)


@app.command(cls=ProgramCommand)
@_QUEUE
@click.argument("command", metavar="[-- PROGRAM [ARGUMENT]...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--all", "all_", is_flag=True, help="With a PROGRAM: repeat until no queued message is left.")
@_JSON
def claim(path: Path, command: tuple[str, ...], all_: bool, json: bool) -> None:
    """Claim the next queued message, so that no other worker gets it, and run a program with its text as input.

    If the program exits with 0, the message is marked as cleared. Otherwise it is put back, or marked as a critical
    error if its retries are used up. With --all, a message without the variable `retries` is tried once, not again and
    again.

    Without a program, the message is printed, and the calling shell owns it until `sej tq done`, `sej tq fail`, or the
    end of the shell. Exit code 4: no message is queued; 1: the program failed.

    Example: sej tq claim jobs.tq -- ./work
    """
    require_program(command)
    owner = None if command else _shell()
    taken, failed = 0, 0
    attempts: set[tuple[str, int, str, str | None]] = set()
    with _opened(path) as queue:
        while (held := queue.take(owner)) is not None:
            message = held.message
            attempt = message.path, message.position, message.value, message.get(RETRIES)
            if attempt in attempts:
                continue  # without retries: this run has tried it, and keeps the claim until the queue is closed
            attempts.add(attempt)
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
                reason = ending(code)
                click.echo(f"sej: {path}: message {_name(message)}: {command[0]}: {reason}", err=True)
                held.failed(reason)
            else:
                held.done()
            if not all_:
                break
    if not taken:
        _note_if_foreign(path)
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
    help="Only messages of this status; may be repeated.",
)
def list_(path: Path, json: bool, names: tuple[str, ...]) -> None:
    """Print the messages: name, status, text. Without --status: the queued ones.

    Example: sej tq list --status queued --status critical jobs.tq
    """
    with _opened(path) as queue:
        _note_if_foreign(path)
        wanted = set(_SHOWN) if _ALL in names else {MessageStatus[name] for name in names}
        _show(queue.messages(wanted or {MessageStatus.queued}), json=json)


@app.command()
@_QUEUE
@_JSON
def check(path: Path, json: bool) -> None:
    """Report probable typing mistakes, as file:line:column. Exit code 1: there are some.

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
@click.argument("target", type=click.Path(path_type=Path, readable=False))
@click.option("--critical", is_flag=True, help="Move critical errors as well.")
def archive(path: Path, target: Path, critical: bool) -> None:
    """Move cleared messages to the end of another file, and print their number.

    Example: sej tq archive jobs.tq jobs.done
    """
    with _opened(path) as queue:
        statuses = {MessageStatus.cleared} | ({MessageStatus.critical} if critical else set())
        click.echo(queue.archive(target, statuses))


@app.command()
@_QUEUE
@_JSON
@click.option("--timeout", type=DURATION, help="End after this time without a message, as in 30s.")
@click.pass_obj
def follow(journals: JournalsLike, path: Path, json: bool, timeout: float | None) -> None:
    """Print queued messages, and wait for new ones from any program. No message is marked.

    Example: sej tq follow jobs.tq
    """
    with _opened(path) as queue, journals.until_reader_leaves():
        _note_if_foreign(path)
        for message in queue.follow(timeout=timeout):
            _show([message], json=json)
            sys.stdout.flush()
            _report(queue)


@app.command()
@_QUEUE
@click.argument("journal", metavar="DIR", type=click.Path(path_type=Path, readable=False))
@click.pass_obj
def drain(journals: JournalsLike, path: Path, journal: Path) -> None:
    """Move every queued message into a SEJ journal, each exactly once, even after a crash. Print their number.

    Example: sej tq drain jobs.tq jobs
    """
    with _opened(path) as queue, journals.writer(journal) as writer:
        moved = queue.drain_to(writer)
        if not moved:
            _note_if_foreign(path)
        click.echo(moved)


def _require(path: Path) -> None:
    if not path.exists():
        raise FileNotFoundError(f"{path}: the file does not exist; `sej tq add` creates it")
    if path.is_dir():
        raise IsADirectoryError(f"{path}: expected a .tq file, got a directory")


def _note_if_foreign(path: Path) -> None:
    """Report a file that has lines and no entry: it is probably not a queue."""
    skipped, rest = 0, BOM
    with path.open("rb") as file:
        for line in file:
            text = line.removeprefix(rest)
            rest = b""
            if text[:1] in _BEGINS:
                return
            skipped += bool(text.strip())
    if skipped:
        lines = "1 line is" if skipped == 1 else f"{skipped} lines are"
        click.echo(f"sej: {path}: no line is a message ({lines} skipped); run `sej tq check {path}`", err=True)


def _opened(path: Path) -> AbstractContextManager[TextQueue]:
    _require(path)
    return _reporting(TextQueue(path))


@contextmanager
def _reporting(queue: TextQueue) -> Iterator[TextQueue]:
    """Print the conflicts, also if the command fails."""
    try:
        with queue:
            yield queue
    finally:
        _report(queue)


def _report(queue: TextQueue) -> None:
    while queue.conflicts:
        path, position, text, kind, action = queue.conflicts.pop(0)
        click.echo(f"sej: {path}: position {position}: {_shown(text.encode()).decode()}: {kind}: {action}", err=True)


def _shell() -> str:
    parent = os.getppid()
    return f"{parent}@{host_name()}/{process_start(parent)}"


def _name(message: Message) -> str:
    return f"{message.position}:{_hash(message)}"


def _hash(message: Message) -> str:
    return digest(essence(message.raw))[:8].decode()


def _mark(path: Path, names: tuple[str, ...], status: MessageStatus, reason: str | None) -> None:
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise click.UsageError(
                f"expected POSITION:HASH, as `sej tq list` prints it, got {name!r}: a position alone would name"
                " another message after a line was inserted above"
            )
    with _opened(path) as queue:
        held = queue.held_by(_shell())
        if not names:
            if len(held) == 1:
                _end(held[0], status, reason)
                return
            known = f"{len(held)} messages; name one of them: {', '.join(_name(claim.message) for claim in held)}"
            _refuse(path, f"this shell has claimed {known if held else 'no message; `sej tq claim` claims one'}")
        there = {_name(message): message for message in queue.messages(frozenset(_SHOWN))}
        for name in names:
            if name not in there:
                alike = [other for other in there if other.endswith(name[name.index(":") :])]
                hint = f"it is {' or '.join(alike)} now" if alike else "`sej tq list` prints the messages"
                _refuse(path, f"no message {name} is in the file, so none was marked; {hint}")
        ours = {_name(claim.message): claim for claim in held}
        queue.mark_many([there[name] for name in names if name not in ours], status, reason=reason)
        for name in names:
            if name in ours:
                _end(ours[name], status, reason)


def _end(claim: Claim, status: MessageStatus, reason: str | None) -> None:
    if not (claim.done() if status is MessageStatus.cleared else claim.give_up(reason)):
        raise SystemExit(_WRONG)


def _refuse(path: Path, why: str) -> NoReturn:
    click.echo(f"sej: {path}: {why}", err=True)
    raise SystemExit(_MISSING)


def _show(messages: Iterable[Message], *, json: bool) -> None:
    out = sys.stdout.buffer
    for message in messages:
        if json:
            row = {
                "path": message.path,
                "position": message.position,
                "hash": _hash(message),
                "status": message.status.name,
                "value": message.value,
                "variables": list(message.get_variables()),
            }
            out.write(jsonlib.dumps(row, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n")
        else:
            fields = _name(message).encode(), message.status.name.encode(), _shown(message.value_bytes)
            out.write(b"%b\t%b\t%b\n" % fields)


def _shown(text: bytes) -> bytes:
    return _CONTROL.sub(lambda found: _NAMED.get(found[0]) or b"\\x%02x" % found[0][0], text)
