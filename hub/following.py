"""``sej hub follow``: the messages of a journal on a hub, on another machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from hub.connecting import connecting
from hub.errors import UnavailableError
from hub.naming import Source, no_such_journal
from sej.cli.shared.options import form_options
from sej.cli.shared.output import print_messages
from sej.cli.shared.parameters import PATH, PLACE
from sej.cli.shared.terminal import until_reader_leaves
from sej.cli.shared.units import Moment
from sej.codec.format import MAX_OFFSET
from sej.errors import BadOffsetFileError
from sej.system.disk import OS, read_small, replace_file
from sej.system.paths import absolute_path

if TYPE_CHECKING:
    from hub.wire import Client

_PLACE_BYTES: Final = 64


@click.command
@connecting
@click.argument("client_id", metavar="CLIENT")
@click.argument("journal", metavar="JOURNAL")
@click.option("--start", type=PLACE, help="Start at this offset or time; default: the first message.")
@click.option("--reader", help="Keep the next offset on the hub, under this name: the next run continues there.")
@click.option("--place", type=PATH, help="Keep the next offset in this file: the next run continues there.")
@click.option("--until-end", is_flag=True, help="End with the last message instead of waiting for more.")
@click.option("--no-verify", is_flag=True, help="Do not check the messages against the index's checksums.")
@form_options
def follow(
    connect: Callable[[], Client],
    client_id: str,
    journal: str,
    start: int | Moment | None,
    reader: str | None,
    place: Path | None,
    until_end: bool,
    no_verify: bool,
    form: str,
) -> None:
    """Print the messages of a client's journal on a hub, and wait for new ones until interrupted.

    With --reader or --place, the offset is kept after the messages were written: each is printed at least once. The hub
    gives a reader to one program at a time, and its retention waits for it. The token needs the role reader. While the
    hub cannot be reached, the command waits and tries again. Exit code 3: another program has the reader at the start,
    and nothing was printed. 1: the hub refuses, or another program has taken the reader while this one ran, because its
    lease had ended; that program prints the messages since the last commit again. 4: the journal is not on the hub.

    --start takes an offset or a time, as `sej scan` does: '1h ago', 2026-01-31.

    Example: sej hub follow --reader report hub.example.com:7890 EWR flights
    """
    from hub.wire.named import batches

    if reader is not None and place is not None:
        raise click.UsageError("--reader keeps the offset on the hub, and --place in a file: give one of them")
    place = None if place is None else Path(absolute_path(place))
    kept = None if place is None else _read_place(place)
    if kept is not None and start is not None:
        raise click.UsageError(f"--start is for the first run: {place} has the next offset, {kept}")
    with connect() as hub, until_reader_leaves():
        state = hub.where(journal, client_id=client_id)
        if not state.known:
            raise no_such_journal(Source(client_id, journal), hub.address)
        if isinstance(start, Moment):
            start = hub.find_time(journal, start.timestamp, client_id=client_id)
        if reader is not None:
            _follow_as(reader, hub, client_id, journal, start, until_end=until_end, verify=not no_verify, form=form)
            return
        offset = kept if kept is not None else start if start is not None else state.first_offset
        source = Source(client_id, journal)
        was_there = kept is not None
        retry = None if until_end else _report
        for messages in batches(
            hub, source, offset, was_there=was_there, wait=not until_end, verify=not no_verify, on_retry=retry
        ):
            print_messages(messages, form)
            sys.stdout.buffer.flush()
            if place is not None:
                replace_file(OS, f"{place}.tmp", place, b"%d\n" % (messages[-1].offset + 1))


def _follow_as(
    name: str, hub: Client, client_id: str, journal: str, start: int | None, *, until_end: bool, verify: bool, form: str
) -> None:
    """Print the messages after those that the reader has committed."""
    from hub.wire import Reader

    with Reader(
        hub, name, client_id, journal, start=start, wait=not until_end, verify=verify, on_retry=_report
    ) as reader:
        if start is not None and not reader.is_new:
            raise click.UsageError(f"--start is for the first run: reader {name!r} is at offset {reader.offset}")
        for messages in reader:
            print_messages(messages, form)
            sys.stdout.buffer.flush()
            try:
                reader.commit()
            except UnavailableError as error:
                if until_end:
                    raise
                _report(error)  # the next commit includes these messages


def _report(error: UnavailableError) -> None:
    click.echo(f"sej: {error}; trying again", err=True)


def _read_place(path: Path) -> int | None:
    """Return the kept offset, or None if nothing is kept."""
    try:
        text = read_small(OS, os.fspath(path), _PLACE_BYTES).strip()
    except FileNotFoundError:
        return None
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_OFFSET):
        raise BadOffsetFileError("expected the next offset, a number; remove the file to start again", path=str(path))
    return int(text)
