"""``sej count``, ``scan``, ``tail``, ``dump``, ``file``, ``timestamp`` and ``old``: read and find messages."""

from __future__ import annotations

import json as jsonlib
import os
import sys
import time
from collections.abc import Iterator
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from sej.cli.shared.command import DIRECTORY, JSON, PATH, PLACE, IntRange, refuse
from sej.cli.shared.options import (
    BATCH,
    TYPES,
    WAIT,
    chosen,
    form_options,
    lies_between,
    of_types,
    offset_at,
    print_as_read,
    range_options,
    report_gap,
    wait_until_created,
)
from sej.cli.shared.readers import readers_of, require_reader
from sej.cli.shared.text import Moment, iso_time, print_messages
from sej.codec.format import MAX_OFFSET, NO_TIMESTAMP, OFFSET, OFFSET_SIZE
from sej.errors import NotAJournalError
from sej.journal.directory import Directory, containing, read_gaps
from sej.journal.recovery import find_damage
from sej.journal.segment import SegmentReader
from sej.journal.tier import Archived, readable
from sej.journal.view import Journal, SegmentInfo
from sej.message import FIRST, Message, Start
from sej.system.disk import OS

_ONLY_COUNT: Final = "--only-count"


@click.command
@DIRECTORY
@JSON
@range_options
@TYPES
def count(directory: Path, json: bool, **which: Any) -> None:
    """Print the number of messages.

    Example: sej count --start yesterday orders
    """
    messages = sum(map(len, chosen(directory, **which)))
    click.echo(f'{{"messages": {messages}}}' if json else messages)


class _Scan(click.Command):
    """Accepts ``--count`` without a number, as the original does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Replace it by an option of its own: click would take the next word as the number."""
        pairs = zip(args, [*args[1:], ""], strict=False)  # without arguments there are none
        words = [_ONLY_COUNT if word == "--count" and not following.isdigit() else word for word, following in pairs]
        return super().parse_args(ctx, words)


@click.command(cls=_Scan)
@DIRECTORY
@form_options
@range_options
@TYPES
@click.option("-n", "--count", type=IntRange(min=0), help="Print at most this number of messages.")
@click.option(_ONLY_COUNT, is_flag=True, hidden=True, help="Print the number of messages only, as the original does.")
def scan(directory: Path, form: str, count: int | None, only_count: bool, **which: Any) -> None:
    """Print all messages, one per line: offset, time, type, key, value.

    --start and --end take offsets or times: 2026-01-31, '2026-01-31 12:00', 12:00, '10m ago', yesterday. A time without
    a zone is UTC. With a time, each message is selected by its own timestamp, even if timestamps decrease.

    Example: sej scan --json --start '1h ago' orders | head
    """
    batches = chosen(directory, **which)
    if only_count:
        click.echo(sum(map(len, batches)))
        return
    messages = chain.from_iterable(batches)
    print_messages(messages if count is None else islice(messages, count), form)


@click.command
@DIRECTORY
@form_options
@TYPES
@click.option("-n", "--count", type=IntRange(min=0), default=10, show_default=True, help="How many messages to print.")
@click.option("-f", "--follow", is_flag=True, help="Then print new messages, until interrupted.")
@WAIT
def tail(directory: Path, form: str, types: tuple[int, ...], count: int, follow: bool, wait: bool) -> None:
    """Print the last messages, oldest first.

    Example: sej tail --count 3 orders
    """
    if wait and not follow:
        raise click.UsageError("--wait needs --follow")
    is_new = wait and wait_until_created(directory, None)
    journal = Journal(directory)
    end: int | Start | None = FIRST if is_new else None
    messages: list[Message] = []
    for message in journal.reversed() if (count or follow) and not is_new else ():
        end = message.offset + 1 if end is None else end
        if len(messages) == count:
            break
        messages += of_types([message], types)
    print_messages(reversed(messages), form)
    if messages:
        for gap in read_gaps(Directory(directory, OS)):
            if messages[-1].offset < gap.start < messages[0].offset:
                report_gap(directory, gap)
    if follow:
        from sej.cli.shared.command import until_reader_leaves
        from sej.reading.scanner import Scanner

        start = journal.end_offset if end is None else end
        sys.stdout.flush()
        with Scanner(directory, start, timeout=None) as scanner, until_reader_leaves():
            print_as_read(scanner, types, form)


@click.command
@click.argument("segment", type=PATH)
@form_options
@range_options
@TYPES
def dump(
    segment: Path, form: str, start: int | Moment | None, end: int | Moment | None, types: tuple[int, ...]
) -> None:
    """Print the messages of one segment file, which need not be in a SEJ directory.

    Example: sej dump --format msgpack orders/jnl/0000000000000000.jnl
    """
    messages = (message for message in segment_messages(segment) if lies_between(message, start, end))
    print_messages((message for message in messages if not types or message.type in types), form)


def segment_messages(path: Path) -> Iterator[Message]:
    """Yield the messages of one segment file, wherever it is."""
    if OS.status(path) is None:
        raise FileNotFoundError(f"{path}: the file does not exist; `sej file DIR` prints the segments of a journal")
    if os.path.isdir(path):
        raise NotAJournalError("this is a directory: `sej scan` reads it; `sej dump` takes one .jnl file", path=path)
    if path.suffix == ".gz":
        raise NotAJournalError("this is compressed; expand it first: `gunzip --keep FILE`", path=path)
    with OS.open(path, "read") as file:
        head = file.read(OFFSET_SIZE, 0)
    due = OFFSET.unpack(head)[0] if len(head) == OFFSET_SIZE else 0
    with SegmentReader(OS, path, 0, due if 0 <= due <= MAX_OFFSET else 0) as reader:
        while batch := reader.read(BATCH):
            yield from batch
        damage = find_damage(reader.file, reader.position, reader.due)
        if damage is not None and (reader.position or path.suffix == ".jnl"):
            raise damage.error(str(path))
        if damage is not None:
            raise NotAJournalError("this is not a SEJ segment; `sej dump` takes one .jnl file", path=path)


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
    segments = readable(Directory(directory, OS), offset)
    at = containing(segments, offset)
    if at < 0 or offset >= journal.end_offset:
        _missing(journal, offset)
    found = segments[at]
    path = found.address if isinstance(found, Archived) else found.path
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
    if reader is not None:
        place = require_reader(journal, reader).offset
    offset = journal.first_offset if place is None else offset_at(journal, place)
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
    messages = segment_messages(path)
    first = last = next(messages, None)
    for message in messages:
        last = message
    if first is None or last is None:
        refuse(f"{path}: this segment has no message")
    for end, message in (("first", first), ("last", last)):
        shown = iso_time(message.timestamp)
        row = {"message": end, "offset": message.offset, "time": shown}
        click.echo(jsonlib.dumps(row) if json else f"{end}\t{message.offset}\t{shown or '-'}")


def _line(segment: SegmentInfo, *, json: bool) -> str:
    changed = iso_time(segment.mtime_ns)
    if json:
        row = {"path": segment.path, "first_offset": segment.first_offset, "bytes": segment.size, "changed": changed}
        return jsonlib.dumps(row)
    return f"{segment.path}\t{segment.first_offset}\t{segment.size}\t{changed}"


def _missing(journal: Journal, offset: int) -> NoReturn:
    last = journal.end_offset - 1
    refuse(f"{journal.path}: there is no message {offset}; the journal has {journal.first_offset} to {last}")
