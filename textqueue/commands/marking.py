"""``sej tq add | done | fail | give-back | reopen | undo | check | claim``: adds messages, and changes their status.

**An undo** takes back the last changes of a status that programs made, by the ledger.

The line of a change has the status before it (``textqueue.log.WAS``), unless the message was queued. An undo gives the
message that status again, and comments out a message that was appended.

A claim is not undone: its owner may be at work. A variable is not undone either, because the ledger does not have its
old text. The undo is an edit like any other, so it has a line of its own, and a second undo takes it back.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

import click

from sej.cli.shared.command import (
    DURATION,
    JSON,
    Exit,
    FilePath,
    IntRange,
    ProgramCommand,
    require_program,
    run_program,
    until_reader_leaves,
)
from sej.queue.interface.values import Backoff
from textqueue.checker import check as check_file
from textqueue.checker import details
from textqueue.claiming import Claim
from textqueue.commands.listing import show
from textqueue.commands.opening import (
    NAMES,
    QUEUE,
    are_names,
    name_of,
    named,
    note_if_foreign,
    opened,
    opened_files,
    print_json,
    print_line,
    refuse,
    refuse_foreign,
    reporting,
    require,
    shell,
    shown,
)
from textqueue.editing.message import Message, marking
from textqueue.editing.proof import Place
from textqueue.editing.tq_file import TqFile
from textqueue.errors import MessageMovedError
from textqueue.format.mutex import host_of
from textqueue.format.parser import CONTROL_OF, RETRIES, STATUS_OF, MessageStatus, digest
from textqueue.format.windows import scan_chunks
from textqueue.log import APPENDED, ARCHIVED, GIVEN_BACK, MARKS, SET, STATE, WAS, Record
from textqueue.queue import TextQueue

_FINISHED: Final = frozenset({MessageStatus.cleared, MessageStatus.critical})


@click.command
@click.argument("given", metavar="PATH", type=FilePath(path_type=str, readable=False))
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@click.option(
    "--variable",
    "variables",
    multiple=True,
    help="A variable line such as 'retries=3 ', whose space leaves room for 10; may be repeated.",
)
@click.option("--comment", is_flag=True, help="Write comments instead of messages.")
@click.option(
    "--writer", help="In a directory: append to the file WRITER.tq. The default is the name of the user ($USER)."
)
def add(given: str, texts: tuple[str, ...], variables: tuple[str, ...], comment: bool, writer: str | None) -> None:
    """Append messages: the texts, or each line of standard input. The file is created if it is missing.

    A file that is not a queue is refused, unless its name ends in .tq. A path that ends with a slash is a directory.

    In a directory, each user or program has a file of its own, so that a person who edits another file cannot remove
    what was added meanwhile.

    Prints the name of each message, POSITION:HASH, for `sej tq done` and `sej tq fail`.

    Example: sej tq add jobs.tq 'ship 17' --variable 'retries=3 '
    """
    path = Path(given)
    refuse_foreign(path)
    lines = texts or [line.removesuffix(b"\n").removesuffix(b"\r") for line in sys.stdin.buffer]
    with reporting(TextQueue(given, writer=writer)) as queue:
        status = MessageStatus.comment if comment else MessageStatus.queued
        for message in queue.append_many(lines, variables, status=status):
            print_line(name_of(message, path))


@click.command
@QUEUE
@JSON
def check(path: Path, json: bool) -> None:
    """Report probable typing mistakes, as file:line:column. Exit code 1: there are some.

    A hint needs no action: the exit code is 0 if there are only hints.

    Example: sej tq check jobs.tq
    """
    require(path)
    with TextQueue(path) as queue:
        problems = [problem for file in queue.input_files for problem in check_file(file)]
    for problem in problems:
        if json:
            print_json(problem._asdict())
        else:
            print_line(str(problem))
    if any(problem.severity != "hint" for problem in problems):
        raise SystemExit(Exit.WRONG)


@click.command
@QUEUE
@NAMES
def done(path: Path, names: tuple[str, ...]) -> None:
    """Mark messages as cleared. Without a name: the message that the calling shell has claimed.

    A MESSAGE is a name, as `sej tq list` prints it. Or a short form that fits one queued message only: one of its
    lines, or the begin of its hash (four digits) or of its text. What was marked by a short form is printed.

    A message that another process has claimed is left as it is, and the exit code is 1.

    Example: sej tq done jobs.tq 0:9d1e27b4 12 'call carol'
    """
    _mark(path, names, MessageStatus.cleared, None)


@click.command
@QUEUE
@NAMES
@click.option("--reason", help="Text for the reason variable, if the message has one.")
def fail(path: Path, names: tuple[str, ...], reason: str | None) -> None:
    """Mark messages as critical errors. Without a name: the message that the calling shell has claimed.

    A MESSAGE is a name or a short form, as for `sej tq done`. A message that another process has claimed is left as it
    is, and the exit code is 1.

    Example: sej tq fail jobs.tq --reason 'no such order'
    """
    _mark(path, names, MessageStatus.critical, reason)


@click.command("give-back")
@QUEUE
@NAMES
@click.option("--dead-host", multiple=True, help="Put back all messages that processes of this host have claimed.")
def give_back(path: Path, names: tuple[str, ...], dead_host: tuple[str, ...]) -> None:
    """Put messages back that the calling shell has claimed, so that any worker may claim them. The attempt counts.

    A process of another host or container cannot be seen from here, so its claim lasts until it ends it. If that host
    has ended, or the file is a copy from there, end its claims with --dead-host: `sej tq check` prints its name.

    Example: sej tq give-back jobs.tq
    """
    if dead_host and names:
        raise click.UsageError("expected names of messages or --dead-host, got both")
    if dead_host:
        _end_claims(path, dead_host)
        return
    _mark(path, names, MessageStatus.queued, None)


@click.command
@QUEUE
@click.argument("names", metavar="MESSAGE...", nargs=-1, required=True)
def reopen(path: Path, names: tuple[str, ...]) -> None:
    """Queue messages again that are cleared, or critical errors. Their variables remain as they are.

    A MESSAGE is a name or a short form, as for `sej tq done`.

    Example: sej tq reopen jobs.tq 0:9d1e27b4
    """
    with opened(path) as queue:
        there = named(queue, path, names, _FINISHED)
        for message in there:
            if message.status not in _FINISHED:
                what = f"message {name_of(message, path)} is {message.status.name}, so none was reopened"
                refuse(path, what, Exit.WRONG)
        _edit(there, MessageStatus.queued, None, "reopen")
        _show_short(there, path, names, MessageStatus.queued)


@click.command
@QUEUE
@click.option("--count", type=IntRange(1), default=1, show_default=True, help="The number of changes.")
def undo(path: Path, count: int) -> None:
    """Take back the last change of a status that a program made, and print the message with its status.

    A mark gets the status that it had before. A message that was added is commented out. A second undo takes back the
    first. Exit code 4: no program has made a change; 1: the message was changed since then, so it is left as it is.

    Example: sej tq undo jobs.tq
    """
    with opened_files(path) as sources:
        done = 0
        for message in undone(sources, count):
            print_line(name_of(message, path), message.status.name)
            done += 1
        if not done:
            refuse(path, "no program has changed the status of a message")


def _mark(path: Path, names: tuple[str, ...], status: MessageStatus, reason: str | None) -> None:
    with opened(path) as queue:
        held = queue.held_by(shell())
        if not names:
            if len(held) == 1:
                _end(held[0], status, reason)
                return
            known = ", ".join(name_of(claim.message, path) for claim in held)
            what = f"{len(held)} messages; name one of them: {known}"
            refuse(path, f"this shell has claimed {what if held else 'no message; `sej tq claim` claims one'}")
        there = named(queue, path, names, {MessageStatus.queued})
        ours = {claim.message: claim for claim in held}
        free = [message for message in there if message not in ours]
        if free and status is MessageStatus.queued:
            _refuse_claim(free[0], path)
        _edit(free, status, reason, f"mark as {status.name}")
        for message in there:
            if message in ours:
                _end(ours[message], status, reason)
        _show_short(there, path, names, status)


def _show_short(messages: Iterable[Message], path: Path, names: tuple[str, ...], status: MessageStatus) -> None:
    """Print which messages were marked if a person named them by short forms."""
    for message in messages if not are_names(names) else ():
        print_line(name_of(message, path), status.name, shown(message.value_bytes))


def _end_claims(path: Path, hosts: tuple[str, ...]) -> None:
    """Put back the messages that processes of some hosts have claimed, and print their names."""
    done = False
    with opened(path) as queue:
        for message, _, _, holder in list(details(queue.messages(), now_ns=0)):
            owner = (holder or "").encode("utf-8", "surrogateescape")
            host = host_of(owner)
            if host and (host in hosts or host.partition("#")[0] in hosts):
                message.edit(marking(message.source, MessageStatus.queued, None, owner), "end a claim")
                print_line(name_of(message, path), owner)
                done = True
    if not done:
        refuse(path, f"no process of {' or '.join(hosts)} has claimed a message")


def _refuse_claim(message: Message, path: Path) -> NoReturn:
    with message.source.file:
        holder = message.source.holder(message.place).decode("utf-8", "replace")
    who = f"{holder} has claimed it" if holder else "no process has claimed it"
    refuse(path, f"cannot give back message {name_of(message, path)}: {who}; nothing was changed", Exit.WRONG)


def _edit(messages: Iterable[Message], status: MessageStatus, reason: str | None, what: str) -> None:
    """Give messages a status, unless a process has claimed one of them. A claim that has ended is blanked."""
    for source, group in groupby(sorted(messages, key=lambda one: one.path), lambda one: one.source):
        there = list(group)
        change = marking(source, status, reason, None)
        source.edit_many([one.place for one in there], change, f"{what} {len(there)} messages", free=True)


def _end(claim: Claim, status: MessageStatus, reason: str | None) -> None:
    ends = {MessageStatus.cleared: claim.done, MessageStatus.queued: claim.give_back}
    if not ends.get(status, lambda: claim.give_up(reason))():
        raise SystemExit(Exit.WRONG)


@click.command(cls=ProgramCommand)
@QUEUE
@click.argument("command", metavar="[-- PROGRAM [ARGUMENT]...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--all", "all_", is_flag=True, help="With a PROGRAM: repeat until no queued message is left.")
@click.option("--timeout", type=DURATION, help="Wait for a message, as in 30s. With --all: for each further one.")
@click.option("--lease", type=DURATION, help="After this time, as in 10m, another worker may take the message.")
@JSON
def claim(path: Path, command: tuple[str, ...], all_: bool, json: bool, **options: float | None) -> None:
    """Claim the next queued message, so that no other worker gets it, and run a program with its text as input.

    If the program exits with 0, the message is marked as cleared. Otherwise it is put back, or marked as a critical
    error if its retries are used up. A message that failed is tried again after a delay, which grows from one second to
    ten minutes. Others are claimed meanwhile. With --all, a message without the variable `retries` is tried once, not
    again and again.

    Without a program, the message is printed, and the calling shell owns it until `sej tq done`, `sej tq fail`, or the
    end of the shell. Exit code 4: no message is queued; 1: the program failed.

    Example: sej tq claim jobs.tq -- ./work
    """
    require_program(command, json=json)
    if all_ and not command:
        raise click.UsageError("--all needs a program, as in `sej tq claim --all jobs.tq -- ./work`")
    taken, failed = 0, 0
    with opened(path) as queue, until_reader_leaves():
        for held in _claims(queue, None if command else shell(), **options):
            taken += 1
            if not command:
                show(held.message, path, json=json)
                return
            failed += not _run(held, command, path)
            if not all_:
                break
        if not taken:
            note_if_foreign(queue, path)
    if failed or not taken:
        raise SystemExit(Exit.WRONG if taken else Exit.MISSING)


def _claims(queue: TextQueue, owner: str | None, timeout: float | None, lease: float | None) -> Iterator[Claim]:
    """Yield claims. A message that has no retries is claimed again after a failure, but yielded once."""
    attempts: set[tuple[str, int, str, str | None]] = set()
    for held in queue._inputs.follow(lambda: queue.take(owner, lease_s=lease), timeout=timeout or 0.0):
        message = held.message
        attempt = message.path, message.position, message.value, message.get(RETRIES)
        if attempt not in attempts:  # otherwise this run has tried it, and keeps the claim until the queue is closed
            attempts.add(attempt)
            yield held


def _run(held: Claim, command: tuple[str, ...], path: Path) -> bool:
    try:
        reason = run_program(command, held.message.value_bytes)
    except BaseException:
        held.give_back()
        raise
    if reason is None:
        held.done()
        return True
    click.echo(f"sej: {path}: message {name_of(held.message, path)}: {command[0]}: {reason}", err=True)
    held.failed(reason, delay_s=Backoff().after(held.attempts))
    return False


_COMMENT: Final = CONTROL_OF[MessageStatus.comment][0]
_QUEUED: Final = CONTROL_OF[MessageStatus.queued][0]


class _Edit(NamedTuple):
    """A change of a status in a file: its line, the control byte before it, and whether no line has moved since."""

    source: TqFile
    record: Record
    before: int
    current: bool

    @property
    def after(self) -> int:
        return _QUEUED if self.record.kind in (APPENDED, GIVEN_BACK) else self.record.kind


def undone(sources: Iterable[TqFile], count: int) -> Iterator[Message]:
    """Take back the newest changes of a status in some files, the newest first; yield each message as it is then."""
    edits: list[_Edit] = []
    for source in sources:
        with suppress(FileNotFoundError), source.file:  # a stale save may have reverted the edit
            history = source.file.ledger.history()
            edits += _changes(source, history)[-count:]
    edits.sort(key=lambda edit: edit.record.token[2])  # of equal times, the later line remains later
    yield from map(_undo, edits[: -count - 1 : -1])


def _changes(source: TqFile, history: Iterable[Record]) -> list[_Edit]:
    """Return the changes of a status in a ledger, oldest first."""
    made: list[_Edit] = []
    epoch = 0
    for record in history:
        if record.kind == STATE:
            if record.position != epoch:
                made = [edit._replace(current=False) for edit in made]
            epoch = record.position
        elif record.kind == SET:
            was = record.detail.partition(b"/")[0]
            made = [
                edit._replace(record=edit.record._replace(digest=record.digest))
                if edit.record.digest == was and (edit.record.position == record.position or not edit.current)
                else edit
                for edit in made
            ]
        elif record.kind != ARCHIVED and (record.kind in MARKS | {APPENDED} or record.detail.startswith(WAS)):
            before = _COMMENT if record.kind == APPENDED else record.was  # not: a claim that ended
            made.append(_Edit(source, record, before, current=True))
    return made


def _undo(edit: _Edit) -> Message:
    source, record = edit.source, edit.record
    with source.file as session:
        found = [
            Place(position, raw, session.ledger.epoch)
            for position, raw in scan_chunks(session.file)
            if raw[0] == edit.after and digest(raw) == record.digest
        ]
    at = [place for place in found if place.position == record.position] if edit.current else found
    if not at:
        raise MessageMovedError(
            "cannot undo the last change of a status: the message was changed or removed since then; it was left as it"
            " is",
            path=source.path,
            position=max(record.position, 0),
        )
    place = min(at, key=lambda one: abs(one.position - record.position))
    message = Message(source, place.raw, place.position, place.epoch)
    message.edit(marking(source, STATUS_OF[edit.before]), "undo a change of a status")
    source.delivered.forget(place.raw)
    return message
