"""``sej count``, ``scan``, ``tail`` and ``dump``: looking without touching."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from sej.cli.output import print_messages
from sej.directory import Directory
from sej.disk import OS
from sej.errors import CorruptionError, NotAJournalError
from sej.format import OFFSET, OFFSET_SIZE
from sej.journal import Journal
from sej.message import Message
from sej.recovery import find_damage, good_end
from sej.segment import SegmentReader

__all__ = ["count", "dump", "scan", "tail"]

_BATCH: Final = 4096
_DIRECTORY: Final = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
_JSON: Final = click.option("--json", is_flag=True, help="One JSON object a line.")


@click.command
@_DIRECTORY
@_JSON
def count(directory: Path, json: bool) -> None:
    """Print how many messages there are, alone on the last line.

    Example: sej count orders
    """
    messages = _count(directory)
    click.echo(f'{{"messages": {messages}}}' if json else messages)


@click.command
@_DIRECTORY
@_JSON
@click.option("--start", type=click.IntRange(min=0), help="The first offset; without it the first message.")
@click.option("--end", type=click.IntRange(min=0), help="The offset to stop before; without it the end.")
def scan(directory: Path, json: bool, start: int | None, end: int | None) -> None:
    """Print all messages, one a line: offset, time, type, key, value.

    Example: sej scan --json orders | head
    """
    from sej.scanner import Scanner  # with what waits for changes: a tenth of a short command

    with Scanner(directory) if start is None else Scanner(directory, start) as scanner:
        stop = sys.maxsize if end is None else end
        while scanner.offset < stop and (batch := scanner.read(min(_BATCH, stop - scanner.offset))):
            print_messages((message for message in batch if message.offset < stop), json=json)


@click.command
@_DIRECTORY
@_JSON
@click.option("-n", "--count", type=click.IntRange(min=0), default=10, show_default=True, help="So many at most.")
@click.option("-f", "--follow", is_flag=True, help="Then wait for more, until interrupted.")
def tail(directory: Path, json: bool, count: int, follow: bool) -> None:
    """Print the last messages, oldest first.

    Example: sej tail --count 3 orders
    """
    journal = Journal(directory)
    messages = journal.tail(count)
    print_messages(messages, json=json)
    if follow:
        from sej.scanner import Scanner

        start = messages[-1].offset + 1 if messages else journal.end_offset
        with Scanner(directory, start, timeout=None) as scanner:
            while True:
                sys.stdout.flush()
                print_messages(scanner.read(_BATCH), json=json)


@click.command
@click.argument("segment", type=click.Path(path_type=Path))
@_JSON
def dump(segment: Path, json: bool) -> None:
    """Print the messages of one segment, wherever it lies; no directory around it is needed.

    Example: sej dump orders/jnl/0000000000000000.jnl
    """
    print_messages(_segment(segment), json=json)


def _count(path: Path) -> int:
    """Count by walking frames; what is wrong with the journal is left to a scanner to say."""
    directory = Directory(path, OS)
    directory.require()
    total = 0
    due: int | None = None
    segments = directory.segments()
    for at, segment in enumerate(segments):
        if due not in (None, segment.first_offset):
            return _count_slowly(path)
        file = OS.open(segment.path, "read")
        try:
            position, due = good_end(file, 0, segment.first_offset)
            damage = find_damage(file, position, due)
        finally:
            file.close()
        if damage is not None and (damage.follower is not None or at < len(segments) - 1):
            return _count_slowly(path)
        total += due - segment.first_offset
    return total


def _count_slowly(path: Path) -> int:
    from sej.scanner import Scanner

    with Scanner(path) as scanner:
        total = 0
        while batch := scanner.read(_BATCH):
            total += len(batch)
        return total


def _segment(path: Path) -> Iterator[Message]:
    if OS.status(path) is None:
        raise FileNotFoundError(f"{path}: there is no such file")
    if os.path.isdir(path):
        raise NotAJournalError("this is a directory: `sej scan` reads it; `sej dump` takes one .jnl file", path=path)
    file = OS.open(path, "read")
    try:
        head = file.read(OFFSET_SIZE, 0)
    finally:
        file.close()
    if len(head) < OFFSET_SIZE:
        if head:
            raise CorruptionError(f"{len(head)} bytes: too few for a message", path=path, position=0)
        return
    reader = SegmentReader(OS, path, 0, OFFSET.unpack(head)[0])
    try:
        while batch := reader.read(_BATCH):
            yield from batch
        damage = find_damage(reader.file, reader.position, reader.due)
        if damage is not None:
            raise damage.error(str(path))
    finally:
        reader.close()
