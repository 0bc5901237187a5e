"""``sej count``, ``scan``, ``tail``, ``dump``, ``file``, ``timestamp``, ``old``, ``offset``, ``reset`` and ``follow``.

They read and find messages, print the offsets that readers keep, and move readers.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from sej.cli.shared.command import (
    DIRECTORY,
    DURATION,
    JSON,
    PATH,
    PLACE,
    Exit,
    IntRange,
    print_row,
    refuse,
    until_reader_leaves,
)
from sej.cli.shared.options import (
    BATCH,
    TYPES,
    WAIT,
    chosen,
    form_options,
    good_end_of,
    lies_between,
    of_types,
    offset_at,
    print_as_read,
    range_options,
    report_gap,
    wait_until_created,
)
from sej.cli.shared.readers import Reader, complete_reader, find_reader, readers_of, require_reader
from sej.cli.shared.text import Moment, as_text, counted, iso_time, print_messages, shown
from sej.codec.format import MAX_OFFSET, NO_TIMESTAMP, OFFSET, OFFSET_SIZE
from sej.errors import BadOffsetFileError, LockedError, NotAJournalError, SejError
from sej.journal.directory import Directory, containing, read_gaps
from sej.journal.offset_check import check_reader, drop_twin, keep_offset
from sej.journal.recovery import find_damage
from sej.journal.retention import readers_lock
from sej.journal.segment import SegmentReader
from sej.journal.tail import Tail, sync_up_to
from sej.journal.tier import Archived, readable
from sej.journal.view import Journal, SegmentInfo
from sej.message import FIRST, LAST, Message, Start
from sej.reading.offset import Offset, read_offset, refuse_queue, wrong_place
from sej.system.disk import OS
from sej.system.locks import Lock

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
def dump(segment: Path, form: str, types: tuple[int, ...], **span: Any) -> None:
    """Print the messages of one segment file, which need not be in a SEJ directory.

    Example: sej dump --format msgpack orders/jnl/0000000000000000.jnl
    """
    messages = (message for message in segment_messages(segment) if lies_between(message, **span))
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
            row = _row(segment)
            print_row(row, "\t".join(map(str, row.values())), json)
        return
    offset = offset_at(journal, place)
    segments = readable(Directory(directory, OS), offset)
    at = containing(segments, offset)
    if at < 0 or offset >= journal.end_offset:
        _missing(journal, offset)
    found = segments[at]
    path = found.address if isinstance(found, Archived) else found.path
    print_row({"path": path, "first_offset": segments[at].first_offset}, path, json)


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
            time_ = iso_time(message.timestamp)
            row = {"offset": message.offset, "timestamp_ns": stamp, "time": time_}
            print_row(row, f"{message.offset}\t{time_ or '-'}", json)
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
        print_row(_row(segment), segment.path, json)


def _print_ends(path: Path, *, json: bool) -> None:
    messages = segment_messages(path)
    first = last = next(messages, None)
    for message in messages:
        last = message
    if first is None or last is None:
        refuse(f"{path}: this segment has no message")
    for end, message in (("first", first), ("last", last)):
        time_ = iso_time(message.timestamp)
        print_row(
            {"message": end, "offset": message.offset, "time": time_}, f"{end}\t{message.offset}\t{time_ or '-'}", json
        )


def _row(segment: SegmentInfo) -> dict[str, Any]:
    changed = iso_time(segment.mtime_ns)
    return {"path": segment.path, "first_offset": segment.first_offset, "bytes": segment.size, "changed": changed}


def _missing(journal: Journal, offset: int) -> NoReturn:
    last = journal.end_offset - 1
    refuse(f"{journal.path}: there is no message {offset}; the journal has {journal.first_offset} to {last}")


_VALUE_CHARS: Final = 200


@click.command
@DIRECTORY
@click.argument("name", required=False, shell_complete=complete_reader)
@JSON
def offset(directory: Path, name: str | None, json: bool) -> None:
    """Print the kept offset of a reader; or the first and the next offset, and all readers with their lag and holders.

    Exit code 4: the reader does not exist. 1: a file is damaged.

    Example: sej offset orders billing
    """
    journal = Journal(directory)
    found = readers_of(journal) if name is None else [require_reader(journal, name)]
    if name is None and not json:
        click.echo(f"first offset\t{journal.first_offset}\nnext offset\t{good_end_of(journal)}")
    for reader in found:
        if json or name is None:
            print_row(reader._asdict(), _line(reader), json)
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
    directory: Path, start: int | Moment | None, reader: str | None, timeout: float | None, wait: bool, **how: Any
) -> None:
    """Print messages as they are appended, until interrupted.

    With --reader the offset is committed after each batch is written to standard output, and the next run continues
    there.

    Example: sej follow --reader shipper --json orders | ./ship
    """
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
        print_as_read(scanner, kept=kept, **how)


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
