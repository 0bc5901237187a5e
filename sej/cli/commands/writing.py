"""``sej append``: each line of standard input becomes a message, or each length-prefixed value."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, get_args

import click

from sej.cli.shared.output import counted
from sej.cli.shared.parameters import PATH, IntRange
from sej.journal.directory import Directory
from sej.system.disk import OS
from sej.writing.writer import Durability, Writer

_READ_BYTES: Final = 1 << 18
_LENGTH_BYTES: Final = 4
_SURVIVES: Final = (
    "What messages survive. buffer: they are lost with this process; os: the death of this process; interval: a power"
    " failure, except the last second; disk: a power failure."
)


@click.command
@click.argument("directory", metavar="DIR", type=PATH)
@click.option("--key", default="", help="The key of every message.")
@click.option("--type", "kind", type=IntRange(0, 255), default=0, help="The type of every message.")
@click.option(
    "--length-prefixed",
    is_flag=True,
    help="For binary values: before each value, read its length as 4 bytes, big endian.",
)
@click.option("--durability", type=click.Choice(get_args(Durability)), default="os", show_default=True, help=_SURVIVES)
def append(directory: Path, key: str, kind: int, length_prefixed: bool, durability: Durability) -> None:
    r"""Append each line of standard input as a message when it arrives, without its line end.

    Example: printf 'one\ntwo\n' | sej append orders
    """
    if not directory.exists():
        Directory(directory, OS).refuse_sharded()
    with Writer(directory, durability=durability) as writer:
        first = writer.offset
        values = _prefixed if length_prefixed else _lines
        for batch in values(sys.stdin.fileno()):
            writer.append_many(batch, [os.fsencode(key)] * len(batch), kind)
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
