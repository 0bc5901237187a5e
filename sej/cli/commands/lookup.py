"""``sej file``, ``timestamp`` and ``old``: find a message or a segment in a journal."""

from __future__ import annotations

import json as jsonlib
import time
from itertools import pairwise
from pathlib import Path
from typing import Final

import click

from sej.cli.shared.exits import Exit
from sej.cli.shared.options import DIRECTORY, JSON, PLACE, offset_at
from sej.cli.shared.units import Moment, iso_time
from sej.cli.state.readers import find_reader, no_reader, readers_of
from sej.codec.format import NO_TIMESTAMP
from sej.journal.directory import Directory, containing
from sej.journal.view import Journal, SegmentInfo
from sej.system.disk import OS

_OLD_DAYS: Final = 7
_DAY_NS: Final = 86_400 * 10**9


@click.command
@DIRECTORY
@click.argument("place", metavar="[OFFSET|TIME]", type=PLACE, required=False)
@JSON
def file(directory: Path, place: int | Moment | None, json: bool) -> None:
    """Print the segments with their first offset, size and last change; or the path of the one that holds a message.

    As in the original, DIR may be a segment file: prints the offset and time of its first and last message. Exit code
    4: the message does not exist.

    Example: sej dump $(sej file orders 17)
    """
    if directory.is_file() and place is None:
        _print_ends(directory, json=json)
        return
    journal = Journal(directory)
    if place is None:
        for segment in journal.segments:
            click.echo(_line(segment, json=json))
        return
    offset = offset_at(journal, place)
    segments = Directory(directory, OS).segments()
    at = containing(segments, offset)
    if at < 0 or offset >= journal.end_offset:
        _missing(journal, offset)
    path = segments[at].path
    click.echo(jsonlib.dumps({"path": path, "first_offset": segments[at].first_offset}) if json else path)


@click.command
@DIRECTORY
@click.argument("place", metavar="OFFSET|TIME", type=PLACE, required=False)
@click.option("--offset", "reader", metavar="NAME", help="The message that this reader reads next, as in the original.")
@JSON
def timestamp(directory: Path, place: int | Moment | None, reader: str | None, json: bool) -> None:
    """Print the offset and time of a message: the one with this offset, or the first from a time on.

    Exit code 4: the message or reader does not exist.

    Example: sej timestamp orders '2026-01-31 12:00'
    """
    from sej.reading.scanner import Scanner

    if (place is None) == (reader is None):
        raise click.UsageError("give either OFFSET or TIME, or --offset with the name of a reader")
    journal = Journal(directory)
    offset = offset_at(journal, _next_of(journal, reader) if place is None else place)
    with Scanner(directory, offset) as scanner:
        for message in scanner:
            stamp = None if message.timestamp == NO_TIMESTAMP else message.timestamp
            shown = iso_time(message.timestamp)
            row = {"offset": message.offset, "timestamp_ns": stamp, "time": shown}
            click.echo(jsonlib.dumps(row) if json else f"{message.offset}\t{shown or '-'}")
            return
    _missing(journal, offset)


@click.command
@DIRECTORY
@click.option(
    "--before", type=PLACE, help="Only segments whose messages are all older than this time, as in '30d ago'."
)
@click.option("--days", type=click.FloatRange(min=0), help="The same as an age in days; default: 7; 0: any age.")
@JSON
def old(directory: Path, before: int | Moment | None, days: float | None, json: bool) -> None:
    """Print the segments that no reader with a kept offset needs, and whose messages are all old.

    The last segment is never listed. The reader that still needs the next old segment is named on standard error. This
    command removes nothing; `sej clean` does.

    Example: sej old --before '30d ago' orders | xargs -r tar cf archive.tar
    """
    if isinstance(before, int):
        raise click.BadParameter("expected a time, as in '7d ago'", param_hint="--before")
    if before is not None and days is not None:
        raise click.UsageError("--before and --days both give an age; use one of them")
    journal = Journal(directory)
    slowest = min(readers_of(journal), key=lambda reader: reader.offset or 0, default=None)
    age_ns = int((_OLD_DAYS if days is None else days) * _DAY_NS)
    newer = journal.find_time(time.time_ns() - age_ns if before is None else before.timestamp)
    for segment, following in pairwise(journal.segments):
        if following.first_offset > newer:
            break
        if slowest is not None and following.first_offset > (slowest.offset or 0):
            click.echo(
                f"sej: {segment.path} is old, but reader {slowest.name!r} still needs it: it is at offset"
                f" {slowest.offset or 0}",
                err=True,
            )
            break
        click.echo(_line(segment, json=True) if json else segment.path)


def _print_ends(path: Path, *, json: bool) -> None:
    from sej.cli.commands.reading import segment_messages

    messages = segment_messages(path)
    first = last = next(messages, None)
    for message in messages:
        last = message
    if first is None or last is None:
        click.echo(f"sej: {path}: this segment has no message", err=True)
        raise SystemExit(Exit.MISSING)
    for end, message in (("first", first), ("last", last)):
        shown = iso_time(message.timestamp)
        row = {"message": end, "offset": message.offset, "time": shown}
        click.echo(jsonlib.dumps(row) if json else f"{end}\t{message.offset}\t{shown or '-'}")


def _next_of(journal: Journal, name: str | None) -> int:
    """Return the offset of the message that a reader reads next."""
    found = find_reader(journal, str(name))
    if found is None:
        raise SystemExit(no_reader(journal, str(name)))
    return journal.first_offset if found.offset is None else found.offset


def _line(segment: SegmentInfo, *, json: bool) -> str:
    changed = iso_time(segment.mtime_ns)
    if json:
        row = {"path": segment.path, "first_offset": segment.first_offset, "bytes": segment.size, "changed": changed}
        return jsonlib.dumps(row)
    return f"{segment.path}\t{segment.first_offset}\t{segment.size}\t{changed}"


def _missing(journal: Journal, offset: int) -> None:
    click.echo(
        f"sej: {journal.path}: there is no message {offset}; the journal has {journal.first_offset} to"
        f" {journal.end_offset - 1}",
        err=True,
    )
    raise SystemExit(Exit.MISSING)
