"""``sej offset``, ``reset`` and ``follow``: readers and their kept offsets."""

from __future__ import annotations

import json as jsonlib
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click

from sej.cli.shared.command import DIRECTORY, DURATION, JSON, PLACE, Exit, refuse
from sej.cli.shared.options import TYPES, WAIT, form_options, good_end_of, offset_at, print_as_read, wait_until_created
from sej.cli.shared.readers import Reader, complete_reader, find_reader, readers_of, require_reader
from sej.cli.shared.text import Moment, as_text, counted, shown
from sej.errors import BadOffsetFileError, LockedError, SejError
from sej.journal.directory import Directory
from sej.journal.offset_check import check_reader, drop_twin, keep_offset
from sej.journal.retention import readers_lock
from sej.journal.tail import Tail, sync_up_to
from sej.journal.view import Journal
from sej.message import FIRST, LAST
from sej.reading.offset import Offset, read_offset, refuse_queue, wrong_place
from sej.system.disk import OS
from sej.system.locks import Lock

_VALUE_CHARS: Final = 200


@click.command
@DIRECTORY
@click.argument("name", required=False, shell_complete=complete_reader)
@JSON
def offset(directory: Path, name: str | None, json: bool) -> None:
    """Print the kept offset of a reader; or the first and the next offset, and all readers with their lag and holders.

    Exit code 4: there is no such reader. 1: a file is damaged.

    Example: sej offset orders billing
    """
    journal = Journal(directory)
    found = readers_of(journal) if name is None else [require_reader(journal, name)]
    if name is None and not json:
        click.echo(f"first offset\t{journal.first_offset}\nnext offset\t{good_end_of(journal)}")
    for reader in found:
        if json:
            click.echo(jsonlib.dumps(reader._asdict()))
        elif name is None:
            click.echo(_line(reader))
        elif reader.error is None:
            click.echo("-" if reader.offset is None else reader.offset)
    wrong = [reader for reader in found if reader.error is not None]
    for reader in wrong:
        click.echo(f"sej: {shown(journal.path)}: reader {reader.name!r}: {shown(reader.error or '')}", err=True)
    if wrong:
        refuse("`sej reset DIR NAME OFFSET` moves a reader", Exit.WRONG)


@click.command
@DIRECTORY
@click.argument("name", shell_complete=complete_reader, required=False)
@click.argument("place", metavar="OFFSET|TIME|first|end", required=False)
@click.option("--offset", "of", metavar="NAME", help="The reader, as in the original.")
@click.option("--start", metavar="TIME", help="The place, as in the original: nothing is changed without --reset.")
@click.option("--reset", "confirmed", is_flag=True, help="The same as --yes, as in the original.")
@click.option("--remove", is_flag=True, help="Remove the reader, so that retention does not wait for it.")
@click.option("--create", is_flag=True, help="Allow a new reader.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def reset(
    directory: Path,
    name: str | None,
    place: str | None,
    of: str | None,
    start: str | None,
    confirmed: bool,
    remove: bool,
    create: bool,
    yes: bool,
) -> None:
    """Move a reader to another message; shows the effect, then asks.

    The reader continues at the message with this OFFSET, at the first message from this TIME on, at the first message
    of the journal (first), or after the last one (end). A reader that runs is not moved: exit code 3. A work queue is
    not moved or removed: its items would be delivered again, or lost. A damaged offset file is moved to kept/ and
    written again.

    Example: sej reset orders billing '1h ago'
    """
    if (name is not None and of is not None) or (place is not None and start is not None):
        raise click.UsageError("--offset is NAME, and --start is the new offset: give each of them once")
    name, place = name or of, place or start
    if name is None:
        raise click.UsageError(f"the name of the reader is missing, as in `sej reset {directory} billing first`")
    if remove == (place is not None):
        raise click.UsageError(
            "give either the new offset (OFFSET, TIME, first or end) or --remove, as in"
            f" `sej reset {directory} {name} first`"
        )
    journal = Journal(directory)
    check_reader(Directory(directory, OS), name)
    found = find_reader(journal, name) if create and not remove else require_reader(journal, name)
    if found is not None and found.holder is not None:
        raise LockedError(
            f"reader {name!r} is running: {found.holder}; stop it first", path=directory, holder=found.holder
        )
    if found is not None:
        click.echo(_line(found))
    if place is None:
        require_movable(directory, name, None)
        click.echo(f"reader {name!r} will be removed; retention will not wait for it")
        _ask(yes or confirmed)
        _set_aside(directory, name, keep=False)
        return
    target = reset_target(journal, place)
    require_movable(directory, name, target)
    click.echo(describe_reset(journal, None if found is None else found.offset, target))
    if start is not None and not (confirmed or yes):
        click.echo("nothing was changed; --reset does it")
        return
    _ask(yes or confirmed)
    aside = move_reader(directory, name, target)
    if aside is not None:
        click.echo(f"kept: {aside}")
    click.echo(f"reader {name!r} reads message {target} next")


@click.command
@DIRECTORY
@form_options
@TYPES
@click.option("--start", type=PLACE, help="Start at this offset or time; default: only new messages.")
@click.option("--reader", help="Start where this reader stopped, and commit the offset of what was printed.")
@click.option("--timeout", type=DURATION, help="End after this time without a message, as in 30s.")
@WAIT
def follow(
    directory: Path,
    form: str,
    types: tuple[int, ...],
    start: int | Moment | None,
    reader: str | None,
    timeout: float | None,
    wait: bool,
) -> None:
    """Print messages as they are appended, until interrupted.

    With --reader the offset is committed after each batch is written to standard output, and the next run continues
    there.

    Example: sej follow --reader shipper --json orders | ./ship
    """
    from sej.cli.shared.command import until_reader_leaves
    from sej.reading.scanner import Scanner

    if reader is not None and start is not None:
        raise click.UsageError(
            "--start and --reader exclude each other: a reader continues at its kept offset; `sej reset` moves it"
        )
    is_new = wait and wait_until_created(directory, timeout)
    with ExitStack() as stack:
        kept = None if reader is None else stack.enter_context(Offset(directory, reader))
        default = FIRST if is_new else LAST
        first = kept.value if kept else default if start is None else offset_at(Journal(directory), start)
        scanner = stack.enter_context(Scanner(directory, first, timeout=timeout))
        stack.enter_context(until_reader_leaves())
        print_as_read(scanner, types, form, kept)


def move_reader(directory: Path, name: str, target: int) -> str | None:
    """Move a reader that does not run; return the new path of its file if that was damaged.

    Raises:
        InvalidNameError: it is a work queue.
        LockedError: the reader runs.
    """
    require_movable(directory, name, target)
    aside = None
    try:
        read_offset(directory, name)
    except BadOffsetFileError:
        aside = _set_aside(directory, name, keep=True)
    places = Directory(directory, OS)
    if name in places.queue_names():
        OS.mkdir(places.at("tmp"))
        with Lock(places.at("ofs", f"{name}.lck"), what=f"queue {name!r}"), readers_lock(places):
            sync_up_to(places, target, Tail(places))
            keep_offset(places, name, target, strict=True)
        return aside
    with Offset(directory, name, target, beyond_end="rewind") as kept:
        kept.reset(target)
    return aside


def require_movable(directory: Path, name: str, target: int | None) -> None:
    """Check that a reader may be moved, or removed (None): a work queue only from an offset that cannot be right.

    Raises:
        InvalidNameError: it is a work queue, and this is not the offset where it should continue.
    """
    places = Directory(directory, OS)
    wrong = None if target is None else wrong_place(places, name, Tail(places))
    if wrong is None or wrong.unread != target:
        refuse_queue(places, name)


def reset_target(journal: Journal, place: str) -> int:
    """Return the offset of a place as ``sej reset`` takes it: an offset, a time, ``first`` or ``end``.

    Raises:
        click.UsageError: the place cannot be read, or the journal has no such message.
    """
    named = {"first": journal.first_offset, "end": good_end_of(journal)}
    if place in named:
        return named[place]
    try:
        target = offset_at(journal, PLACE.convert(place, None, None))
    except click.BadParameter as error:
        raise click.UsageError(f"{error.message}, or first, or end") from None
    first, end = named["first"], named["end"]
    if not first <= target <= end:
        expected = f"{first} to {end - 1}, or end" if first < end else "end: the journal has no message"
        raise click.UsageError(f"message {target} does not exist; expected {expected}")
    return target


def describe_reset(journal: Journal, now: int | None, target: int) -> str:
    """Describe the effect of a reset, with the message that is read next."""
    end = good_end_of(journal)
    since = journal.first_offset if now is None else now
    words = f"to {target}: "
    if since > end:
        words += f"{counted(end - target, 'message')} will be read"
    elif target < since:
        words += f"{counted(since - target, 'message')} will be read again"
    elif target > since:
        words += f"{counted(target - since, 'message')} will be skipped"
    else:
        words += "the offset does not change"
    if target < end:
        from sej.reading.scanner import Scanner

        try:
            with Scanner(journal.path, target) as scanner:
                for message in scanner.read(1):
                    words += f"\nnext: {as_text(message)[:_VALUE_CHARS]}"
        except SejError as error:
            words += f"\nnext: {error}"
    return words


def _line(reader: Reader) -> str:
    place = "never committed" if reader.offset is None else reader.offset
    return f"{shown(reader.name)}\t{place}\t{reader.behind} behind\t{shown(reader.holder or 'not running')}"


def _ask(yes: bool) -> None:
    if not yes:
        click.confirm("Do it?", abort=True)


def _set_aside(directory: Path, name: str, *, keep: bool) -> str | None:
    """Remove a reader's file under the reader's lock; keep: move it to ``kept/`` and return its new path."""
    places = Directory(directory, OS)
    path = places.at("ofs", f"{name}.ofs")
    with Lock(places.at("ofs", f"{name}.lck"), what=f"reader {name!r}"), readers_lock(places):
        drop_twin(places, name)
        if not keep:
            OS.unlink(path)
            return None
        OS.mkdir(places.at("kept"))
        aside = places.at("kept", f"{name}.ofs")
        OS.rename(path, aside)
        return aside
