"""``sej hub follow``: the messages of a journal on a hub, on another machine."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from hub.connecting import PATH, connecting
from hub.errors import UnavailableError
from sej.cli.options import form_options
from sej.cli.output import print_messages
from sej.cli.pipes import until_reader_leaves
from sej.errors import BadOffsetFileError, JournalNotFoundError
from sej.message import Message
from sej.system.disk import OS, read_small, replace_file

if TYPE_CHECKING:
    from hub.wire import Client

__all__ = ["follow"]

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 10.0
_PLACE_BYTES: Final = 64


@click.command
@connecting
@click.argument("client_id", metavar="CLIENT")
@click.argument("journal", metavar="JOURNAL")
@click.option("--start", type=click.IntRange(min=0), help="The first offset; default: the first message.")
@click.option("--place", type=PATH, help="Keep the next offset in this file: the next run continues there.")
@click.option("--until-end", is_flag=True, help="End with the last message instead of waiting for more.")
@form_options
def follow(
    connect: Callable[[], Client],
    client_id: str,
    journal: str,
    start: int | None,
    place: Path | None,
    until_end: bool,
    form: str,
) -> None:
    """Print the messages of a client's journal on a hub, and wait for new ones until interrupted.

    With --place, the offset is kept after the messages were written: each is printed at least once. While the hub
    cannot be reached, the command waits and tries again. Exit code 4: the journal is not on the hub.

    Example: sej hub follow --place seen hub.example.com:7890 EWR flights
    """
    kept = None if place is None else _read_place(place)
    if kept is not None and start is not None:
        raise click.UsageError(f"--start is for the first run: {place} has the next offset, {kept}")
    with connect() as hub, until_reader_leaves():
        state = hub.where(journal, client_id=client_id)
        if not state.known:
            raise JournalNotFoundError(
                f"the hub has no journal {journal!r} of client {client_id!r}; `sej hub ls` on its machine lists them",
                path=hub.address,
            )
        offset = kept if kept is not None else start if start is not None else state.first_offset
        for messages in _batches(hub, client_id, journal, offset, until_end=until_end):
            print_messages(messages, form)
            sys.stdout.buffer.flush()
            if place is not None:
                replace_file(OS, f"{place}.tmp", place, b"%d\n" % (messages[-1].offset + 1))


def _batches(hub: Client, client_id: str, journal: str, offset: int, *, until_end: bool) -> Iterator[Sequence[Message]]:
    if until_end:
        while messages := hub.get(journal, offset, client_id=client_id):
            yield messages
            offset = messages[-1].offset + 1
        return
    failures = 0
    while True:
        try:
            for messages in hub.follow(journal, offset, client_id=client_id):
                if messages:
                    failures = 0
                    offset = messages[-1].offset + 1
                    yield messages
        except UnavailableError as error:
            if not failures:
                click.echo(f"sej: {error}; trying again", err=True)
            failures += 1
            longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(failures, 30))
            time.sleep(random.uniform(longest / 2, longest))


def _read_place(path: Path) -> int | None:
    """Return the kept offset, or None if nothing is kept."""
    try:
        text = read_small(OS, os.fspath(path), _PLACE_BYTES).strip()
    except FileNotFoundError:
        return None
    if not (text.isascii() and text.isdigit()):
        raise BadOffsetFileError("expected the next offset, a number; remove the file to start again", path=str(path))
    return int(text)
