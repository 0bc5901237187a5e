"""``sej append``: lines of standard input become messages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, get_args

import click

from sej.writer import Durability, Writer

__all__ = ["append"]

_READ_BYTES: Final = 1 << 18


@click.command
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--key", default="", help="The key of every message.")
@click.option("--type", "kind", type=click.IntRange(0, 255), default=0, help="The type of every message.")
@click.option("--durability", type=click.Choice(get_args(Durability)), default="os", show_default=True)
def append(directory: Path, key: str, kind: int, durability: Durability) -> None:
    r"""Append each line of standard input as a message, as it comes in; the line's end is not part of it.

    Example: printf 'one\ntwo\n' | sej append orders
    """
    with Writer(directory, durability=durability) as writer:
        first = writer.offset
        for lines in _lines(sys.stdin.fileno()):
            writer.append_many(lines, [key.encode()] * len(lines), kind)
        stop = writer.offset
    if sys.stderr.isatty():
        click.echo(f"appended {stop - first} messages from offset {first} on", err=True)


def _lines(fd: int) -> Iterator[list[bytes]]:
    """The lines that every read brings; a last one without an end is a line too."""
    rest = b""
    while data := os.read(fd, _READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]
