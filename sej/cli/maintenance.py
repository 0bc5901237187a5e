"""``sej append``, ``verify``, ``repair``, ``clean``, ``index`` and ``archive``: what changes or checks a journal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args

import click

from sej.cli.shared.command import AGE, BYTES, DIRECTORY, JSON, PATH, SIZE, Exit, IntRange, print_row, progress_bar
from sej.cli.shared.options import retention_options
from sej.cli.shared.readers import holder_of, readers_of, require_reader
from sej.cli.shared.text import counted, human_size, shown
from sej.journal.directory import Directory
from sej.journal.repair import Repair
from sej.journal.retention import at_risk
from sej.journal.view import Journal
from sej.system.disk import OS
from sej.writing.writer import Durability, Writer

_READ_BYTES: Final = 1 << 18
_LENGTH_BYTES: Final = 4
_SURVIVES: Final = (
    "What messages survive. buffer: they are lost with this process; os: the death of this process; interval: a power"
    " failure, except the last second; disk: a power failure."
)


@click.command
@DIRECTORY
@click.option("--key", type=BYTES, default=b"", help="The key of every message.")
@click.option("--type", "kind", type=IntRange(0, 255), default=0, help="The type of every message.")
@click.option(
    "--length-prefixed",
    is_flag=True,
    help="For binary values: before each value, read its length as 4 bytes, big endian.",
)
@click.option("--durability", type=click.Choice(get_args(Durability)), default="os", show_default=True, help=_SURVIVES)
def append(directory: Path, key: bytes, kind: int, length_prefixed: bool, durability: Durability) -> None:
    r"""Append each line of standard input as a message when it arrives, without its line end.

    Example: printf 'one\ntwo\n' | sej append orders
    """
    if not directory.exists():
        Directory(directory, OS).refuse_sharded()
    with Writer(directory, durability=durability) as writer:
        first = writer.offset
        values = _prefixed if length_prefixed else _lines
        for batch in values(sys.stdin.fileno()):
            writer.append_many(batch, [key] * len(batch), kind)
        stop = writer.offset
    if sys.stderr.isatty():
        click.echo(f"appended {counted(stop - first, 'message')} from offset {first} on", err=True)


def _lines(fd: int) -> Iterator[list[bytes]]:
    """Yield the lines of each read; a last line without an end counts too."""
    parts: list[bytes] = []  # of a line that is not complete yet
    while data := os.read(fd, _READ_BYTES):
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join([*parts, lines[0]])
            parts.clear()
            yield lines
        parts.append(rest)
    if rest := b"".join(parts):
        yield [rest]


def _prefixed(fd: int) -> Iterator[list[bytes]]:
    """Yield the values that each read completes.

    Raises:
        ValueError: the input ends inside a value; those before it were yielded.
    """
    rest = bytearray()
    while data := os.read(fd, _READ_BYTES):
        rest += data
        values, position = [], 0
        while len(rest) - position >= _LENGTH_BYTES:
            end = position + _LENGTH_BYTES + int.from_bytes(rest[position : position + _LENGTH_BYTES], "big")
            if end > len(rest):
                break
            values.append(bytes(rest[position + _LENGTH_BYTES : end]))
            position = end
        del rest[:position]
        if values:
            yield values
    if rest:
        raise ValueError(f"standard input ends inside a value: its last {len(rest)} bytes were not appended")


@click.command
@DIRECTORY
@JSON
def verify(directory: Path, json: bool) -> None:
    """Check a journal against its format, its offsets and its checksums; changes nothing.

    Exit code 0: sound. 1: damaged; prints one line for each problem, with file and position. While a writer runs, an
    incomplete message at the very end is not damage.

    Example: sej verify orders
    """
    journal = Journal(directory)
    with progress_bar("reading", size=True) as show:
        problems = journal.verify(progress=show)
    if any(problem.kind == "torn tail" for problem in problems) and holder_of(os.path.join(directory, "jnl.lck")):
        problems = [problem for problem in problems if problem.kind != "torn tail"]
    for problem in problems:
        row = {name: value for name, value in problem._asdict().items() if value is not None}
        print_row(row, shown(str(problem)), json)
    if problems:
        raise SystemExit(Exit.WRONG)
    if not json:
        segments = journal.segments
        size = sum(segment.size for segment in segments)
        click.echo(f"sound: {counted(len(segments), 'segment')}, {human_size(size)}, next offset {journal.end_offset}")


@click.command
@DIRECTORY
@JSON
@click.option("--dry-run", is_flag=True, help="Only show what would be done; exit code 1 if there is anything to do.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def repair(directory: Path, json: bool, dry_run: bool, yes: bool) -> None:
    """Repair a damaged journal so that it opens, without losing a byte: shows what it would do, then asks.

    Good messages stay or become segments of their own, and damaged bytes are moved to kept/. Lost messages are recorded
    as a gap, which readers pass and report. The original SEJ cannot pass such a gap.

    Example: sej repair orders
    """
    journal = Journal(directory)
    with progress_bar("reading", size=True) as show:
        plan = journal.repair(dry_run=True, progress=show)
    if not plan.notes:
        _show(plan, json=json, done=False)
        return
    if dry_run or not json:
        _show(plan, json=json, done=False)
    if dry_run:
        raise SystemExit(Exit.WRONG)
    if not yes:
        click.confirm("Do it?", abort=True, err=True)
    with progress_bar("repairing", size=True) as show:
        done = journal.repair(progress=show)
    _show(done, json=json, done=True)


@click.command
@DIRECTORY
@retention_options
@click.option(
    "--reader-max-age",
    type=AGE,
    help="A reader that committed nothing for this long holds no segments any more, as in 30d.",
)
@click.option("--reader-max-lag-bytes", type=SIZE, help="A reader that is so far behind holds none, as in 50G.")
@click.option(
    "--ignore-reader", multiple=True, help="Remove segments even if this reader still needs them; may be repeated."
)
def clean(directory: Path, dry_run: bool, ignore_reader: tuple[str, ...], **limits: Any) -> None:
    """Remove the oldest segments beyond a limit that no reader with a kept offset needs; prints their paths.

    A reader that keeps segments from being removed is named on standard error, with its lag. With a limit for
    readers, one that no program uses holds segments no longer than that. A reader that is beyond it, or soon will be,
    is named too; `sej stat --health` and `sej doctor` also report it. The limits do not apply to work queues.

    Example: sej clean --max-age 7d --max-bytes 10G --reader-max-age 30d orders
    """
    journal = Journal(directory)
    for name in ignore_reader:
        require_reader(journal, name, Exit.USAGE)
    removed = journal.clean(**limits, dry_run=dry_run, ignore_readers=ignore_reader)
    for path in removed:
        click.echo(path)
    for name, why in at_risk(Directory(journal.path, OS), time.time_ns()).items():
        click.echo(f"sej: {journal.path}: reader {name!r}: {why}", err=True)
    readers = [reader for reader in readers_of(journal) if reader.name not in ignore_reader]
    everyone = [*ignore_reader, *(reader.name for reader in readers)]
    limits |= {"reader_max_age": None, "reader_max_lag_bytes": None}
    kept = journal.clean(**limits, dry_run=True, ignore_readers=everyone)
    if dry_run:
        kept = kept[len(removed) :]
    size = sum(segment.size for segment in journal.segments)
    most, count = limits["max_bytes"], limits["keep_segments"]
    if not kept and not removed and most is not None and size > most:
        newest = "the last segment" if count == 1 else f"the last {count} segments"
        click.echo(f"sej: {journal.path}: {human_size(size)} remain: clean never removes {newest}", err=True)
    if not kept or not readers:  # without readers, another process has appended more meanwhile
        return
    slowest = min(readers, key=lambda reader: reader.offset or 0)
    place = "has read nothing yet" if slowest.offset is None else f"is at offset {slowest.offset}"
    click.echo(
        f"sej: {journal.path}: {counted(len(kept), 'more segment')} exceed the limits, but reader {slowest.name!r}"
        f" still needs them: it {place}, {counted(slowest.behind, 'message')} behind; let it catch up."
        f" With --ignore-reader {slowest.name}, it loses the messages in them",
        err=True,
    )


@click.command
@DIRECTORY
def index(directory: Path) -> None:
    """Rebuild the index and its checksums from the journal; prints how many blocks it has.

    The new checksums confirm the bytes as they are now, so run verify first.

    Example: sej verify orders && sej index orders
    """
    click.echo(Journal(directory).reindex())


def _show(found: Repair, *, json: bool, done: bool) -> None:
    if json:
        print_row(found._asdict() | {"gaps": [gap._asdict() for gap in found.gaps], "done": done}, "", json)
        return
    if not found.notes:
        click.echo("nothing to repair")
        return
    for note in () if done else found.notes:
        click.echo(note)
    for segment in found.segments:
        click.echo(f"{'written' if done else 'would write'}: {segment}")
    for path in found.kept:
        click.echo(f"kept: {path}")
    lost = sum(gap.missing for gap in found.gaps)
    click.echo(
        f"{'repaired' if done else 'to repair'}: {counted(len(found.notes), 'finding')}, {counted(lost, 'message')}"
        " lost"
    )


class _Moving(click.Group):
    """Takes ``sej archive --to TARGET DIR`` for its subcommand ``move``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Add the name of the subcommand if the arguments lack one."""
        named = not args or args[0] in (*self.commands, *self.get_help_option_names(ctx))
        return super().parse_args(ctx, args if named else ["move", *args])


@click.group(cls=_Moving)
def archive() -> None:
    """Move old messages to a directory or an object store, where scanners, tables and Spark still read them.

    `sej archive --to TARGET DIR` is short for `sej archive move`.

    Example: sej archive move --to /archive orders
    """


@archive.command()
@click.argument("journals", metavar="DIR...", type=PATH, nargs=-1, required=True)
@click.option("--to", help="A directory, or a URL as s3://bucket/path, gs:// or az://; default: as before.")
@click.option(
    "--keep", "keep_bytes", type=SIZE, default="0", show_default=True, help="Leave so many bytes in the journal."
)
@click.option("--accept-gaps", is_flag=True, help="Record messages that were deleted before as a gap.")
@click.option("--compress", is_flag=True, help="Compress what is moved with gzip; readers use more time.")
def move(journals: tuple[Path, ...], to: str | None, **options: Any) -> None:
    """Move the messages of complete segments; those that a reader needs stay in the journal too.

    Each run moves what is new. `sej clean` waits for the reader `cold-tier`, which this command is. The Go SEJ
    does not read what was moved.

    Example: sej archive move --to s3://bucket/journals --keep 1G orders
    """
    from sej.reading.archiving import archive as run

    for directory in journals:
        moved = run(directory, to, **options)
        removed = counted(len(moved.removed), "segment")
        click.echo(f"{directory}: {counted(moved.messages, 'message')} moved, {removed} removed here")


@archive.command("list")
@DIRECTORY
@JSON
def list_(directory: Path, json: bool) -> None:
    """List what was moved: the first offset, the number of messages, the size, and the object.

    Example: sej archive list orders
    """
    from sej.reading.archiving import objects

    for each in objects(directory):
        listed = each.listed
        count = listed.next_offset - listed.first_offset
        text = f"{listed.first_offset:>20} {count:>12} {human_size(listed.stored_size):>10}  {each.address}"
        print_row(listed._asdict() | {"address": each.address}, text, json)


@archive.command("verify")
@DIRECTORY
@JSON
def verify_objects(directory: Path, json: bool) -> None:
    """Read every object and compare its size and its CRC32C. Exit code 1: some are missing or wrong, each in a line.

    Example: sej archive verify orders
    """
    from sej.reading.archiving import problems

    found = False
    for error in problems(directory):
        found = True
        print_row({"address": error.path, "offset": error.offset, "reason": error.reason}, error, json)
    if found:
        raise SystemExit(Exit.WRONG)


@archive.command()
@DIRECTORY
def restore(directory: Path) -> None:
    """Copy all messages back into the journal. The objects stay.

    Example: sej archive restore orders
    """
    from sej.reading.archiving import restore as run

    click.echo(f"{directory}: {counted(len(run(directory)), 'segment')} restored")
