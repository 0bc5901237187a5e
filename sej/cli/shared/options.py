"""The options that reading commands share: start, end, message type and output format."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from sej.cli.shared.command import AGE, DURATION, PLACE, SIZE, Function, IntRange
from sej.cli.shared.text import FORMS, Moment, form_named, print_messages, shown
from sej.journal.directory import Directory, Gap
from sej.journal.tail import Tail
from sej.journal.view import Journal
from sej.message import Message
from sej.system.disk import OS

if TYPE_CHECKING:
    from sej.reading.offset import Offset
    from sej.reading.scanner import Scanner

TYPES: Final = click.option(
    "--type",
    "types",
    type=IntRange(0, 255),
    multiple=True,
    help="Only messages of this type, 0 to 255; may be repeated.",
)
WAIT: Final = click.option("--wait", is_flag=True, help="Wait for the journal if it does not exist yet.")
"""See :func:`wait_until_created`."""
BATCH: Final = 4096
"""Messages that are read at a time."""
MAX_ATTEMPTS: Final = click.option(
    "--max-attempts",
    type=IntRange(min=1),
    help="Attempts before an item becomes a dead letter, kept with the queue. Default: as it has it, at first 5.",
)


def lease_option(runs: str) -> Callable[[Function], Function]:
    """Return the option ``--lease`` of a command that renews it while something runs."""
    text = f"How long an item stays leased; renewed while {runs} runs."
    return click.option("--lease", "lease_s", type=DURATION, default="60s", show_default=True, help=text)


_Command = TypeVar("_Command", bound=Callable[..., Any])


def range_options(command: _Command) -> _Command:
    """Add ``--start`` and ``--end``: offsets, or times."""
    end = click.option("--end", type=PLACE, help="Stop before this offset or time; default: the end.")
    start = click.option("--start", type=PLACE, help="Start at this offset or time; default: the first message.")
    return start(end(command))


def retention_options(command: Function) -> Function:
    """Add ``--max-age``, ``--max-bytes``, ``--keep-segments`` and ``--dry-run``; refuse to clean without a limit."""

    @click.option(
        "--max-age",
        "max_age_s",
        type=AGE,
        help="Remove segments whose last append is older, as in 7d. A unit is needed.",
    )
    @click.option("--max-bytes", type=SIZE, help="Remove segments of a journal until the rest fits, as in 10G.")
    @click.option(
        "--keep-segments",
        type=IntRange(min=1),
        default=1,
        show_default=True,
        help="Keep at least this many of the newest segments.",
    )
    @click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
    @wraps(command)
    def limited(max_age_s: float | None, max_bytes: int | None, **rest: Any) -> None:
        if max_age_s is None and max_bytes is None:
            raise click.UsageError("give --max-age, --max-bytes or both: without a limit there is nothing to remove")
        command(max_age_s=max_age_s, max_bytes=max_bytes, **rest)

    return limited


def wait_until_created(directory: Path, timeout: float | None) -> bool:
    """Wait until a journal exists or the reader of the output leaves; return False if it was there already."""
    from sej.cli.shared.command import until_reader_leaves
    from sej.journal.directory import wait_for_journal

    with until_reader_leaves():
        return bool(wait_for_journal(Directory(directory, OS), timeout))


def form_options(command: _Command) -> _Command:
    """Add ``--format`` and its short forms ``--json`` and ``--raw``; the command gets ``form``."""

    def chosen_form(ctx: click.Context, _: click.Parameter, value: str) -> str:
        json, raw = ctx.params.pop("json", False), ctx.params.pop("raw", False)
        if raw and (json or value != "text"):
            raise click.UsageError("--raw prints values only; leave out --json and --format")
        if json and value == "hex":
            raise click.UsageError("--format hex prints text; leave out --json or --format")
        form = "raw" if raw else "json" if json and value == "text" else value
        form_named(form)  # imports the library that the format needs
        return form

    form = click.option(
        "--format",
        "form",
        type=click.Choice(FORMS),
        default="text",
        show_default=True,
        callback=chosen_form,
        help="hex: like text, with key and value in hexadecimal; msgpack, bson: like json, with the decoded value; raw:"
        " like --raw.",
    )
    json = click.option("--json", is_flag=True, is_eager=True, help="One JSON object per line.")
    raw = click.option(
        "--raw", is_flag=True, is_eager=True, help="Only the values, byte for byte, nothing between them."
    )
    return json(raw(form(command)))


def offset_at(journal: Journal, place: int | Moment) -> int:
    """Return the offset of a place: for a time, the first message from that time on."""
    return journal.find_time(place.timestamp) if isinstance(place, Moment) else place


def of_types(messages: list[Message], types: tuple[int, ...]) -> list[Message]:
    """Return the messages of the requested types, or all if no type was requested."""
    return [message for message in messages if message.type in types] if types else messages


def good_end_of(journal: Journal) -> int:
    """Return the end of the good messages of a journal, whether or not damage follows."""
    return Tail(Directory(journal.path, OS)).end_offset()


def report_gaps(scanner: Scanner, reported: int = 0) -> int:
    """Report on standard error the gaps that the scanner has passed, except the first ``reported``.

    Returns the number of gaps passed.
    """
    gaps = scanner.gaps
    for gap in gaps[reported:]:
        report_gap(scanner.path, gap)
    return len(gaps)


def print_as_read(scanner: Scanner, types: tuple[int, ...], form: str, kept: Offset | None = None) -> None:
    """Print messages in batches until the scanner's timeout, and report gaps; commit the offset after each batch."""
    reported = 0
    while batch := scanner.read(BATCH):
        print_messages(of_types(batch, types), form)
        sys.stdout.flush()
        reported = report_gaps(scanner, reported)
        if kept is not None:
            kept.commit(batch[-1].offset + 1)


def report_gap(path: str | os.PathLike[str], gap: Gap) -> None:
    """Report on standard error that a command passed a gap of lost messages."""
    click.echo(f"sej: {shown(f'{os.fspath(path)}: {gap}')}", err=True)


def chosen(
    directory: Path, start: int | Moment | None, end: int | Moment | None, types: tuple[int, ...]
) -> Iterator[list[Message]]:
    """Yield the messages of a journal in batches: from start on, before end, of these types.

    Every message is compared with a time, as in the original: timestamps need not rise.
    """
    from sej.reading.scanner import Scanner  # imports file watching, a tenth of a short command's time

    first = offset_at(Journal(directory), start) if isinstance(start, Moment) else start  # all before it are older
    stop = end if isinstance(end, int) else sys.maxsize
    with Scanner(directory) if first is None else Scanner(directory, first) as scanner:
        while scanner.offset < stop and (batch := scanner.read(min(BATCH, stop - scanner.offset))):
            yield of_types([message for message in batch if lies_between(message, start, end)], types)
        report_gaps(scanner)
        if isinstance(start, int) and scanner.offset == start and start > (last := Journal(directory).end_offset):
            click.echo(f"sej: {directory}: nothing from offset {start} on: the journal ends at {last}", err=True)


def lies_between(message: Message, start: int | Moment | None, end: int | Moment | None) -> bool:
    """Return whether a message is at or after start, and before end: by its offset, or by its time."""
    return (start is None or _reaches(message, start)) and (end is None or not _reaches(message, end))


def _reaches(message: Message, place: int | Moment) -> bool:
    return message.timestamp >= place.timestamp if isinstance(place, Moment) else message.offset >= place
