"""What is on the medium after a power cut: the log of the device, replayed.

The device takes writes and flushes, one after the other. A write is in its volatile cache until a flush; so a power cut
keeps every write before the last flush, and any subset of the writes after it, whatever their order. A large write may
be kept in part, by blocks. Marks in the log say what was acknowledged, and when.
"""

import json
import random
import shutil
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

Subset = Literal["none", "all", "random"]
"""Which of the writes that were not flushed are kept."""

_HEADER: Final = struct.Struct("=IIQ")  # kind, size, position: struct header in device.c
_WITH_DATA: Final = frozenset(b"WM")
BLOCK_BYTES: Final = 4096


class Record(NamedTuple):
    """One entry of the log.

    Attributes:
        kind: ``"W"`` a write, ``"F"`` a flush, ``"M"`` a mark, ``"w"`` and ``"f"`` a write and a flush that failed.
        position: of a write, bytes.
        data: of a write or a mark.
    """

    kind: str
    position: int
    data: bytes


class Mark(NamedTuple):
    """A report of a process, and the number of its record in the log."""

    at: int
    word: str
    about: dict[str, Any]


def read_log(data: bytes) -> Iterator[Record]:
    """All whole records; the last one may be cut, because the device was killed."""
    at = 0
    while at + _HEADER.size <= len(data):
        kind, size, position = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        length = size if kind in _WITH_DATA else 0
        if at + length > len(data):
            return
        yield Record(chr(kind), position, data[at : at + length])
        at += length


def marks(log: Sequence[Record]) -> list[Mark]:
    """The marks, in order."""
    found = []
    for at, record in enumerate(log):
        if record.kind == "M":
            about = json.loads(record.data)
            found.append(Mark(at, about.pop("word"), about))
    return found


def kept(log: Sequence[Record], end: int, subset: Subset, dice: random.Random) -> Iterator[tuple[int, bytes]]:
    """The position and the bytes of each write that a power cut before record ``end`` leaves, in order."""
    flushed = max((at for at in range(end) if log[at].kind == "F"), default=0)
    for at in range(end):
        kind, position, data = log[at]
        if kind != "W":
            continue
        if at < flushed or subset == "all":
            yield position, data
        elif subset == "random":
            for start in range(0, len(data), BLOCK_BYTES):
                if dice.random() < 0.5:
                    yield position + start, data[start : start + BLOCK_BYTES]


def develop(base: Path, log: Sequence[Record], end: int, subset: Subset, dice: random.Random, target: Path) -> None:
    """Make target the image of the medium after a power cut before record ``end``; base is the medium at the start."""
    copy_sparse(base, target)
    with target.open("r+b") as file:
        for position, data in kept(log, end, subset, dice):
            file.seek(position)
            file.write(data)


def copy_sparse(source: Path, target: Path) -> None:
    """Copy an image and leave out its zeros."""
    zeros = bytes(1 << 16)
    with source.open("rb") as old, target.open("wb") as new:
        while data := old.read(len(zeros)):
            if data == zeros[: len(data)]:
                new.seek(len(data), 1)
            else:
                new.write(data)
        new.truncate(source.stat().st_size)
    shutil.copymode(source, target)


# --- values that contain their number, so that a test can recognise each value that it finds on a medium


MARKER: Final = "POISONED"
"""Fills what a test lets the device refuse."""
POISON_BYTES: Final = 9000
"""At least one block of the disk is nothing but a part of it, and no other value is as long."""
_FILLER: Final = "abcdefghijklmnopqrstuvwxyz0123456789"


def value(number: int, *, poison: bool = False) -> bytes:
    """The value of that number; a poison covers at least one whole block of the disk."""
    size = POISON_BYTES if poison else (40, 400, 3000)[number % 3]
    filler = MARKER if poison else _FILLER[number % 36 :] + _FILLER[: number % 36]
    head = f"{number:08d} {'p' if poison else 'v'} "
    return (head + filler * (size // len(filler) + 1))[:size].encode()


def number_of(data: bytes) -> int:
    """Return the number of a value.

    Raises:
        AssertionError: the data is not a value.
    """
    head = data[:11].decode(errors="replace").split()
    assert len(head) == 2 and head[0].isdigit() and head[1] in "pv", f"{data[:20]!r} is not a value"
    number = int(head[0])
    assert data == value(number, poison=head[1] == "p"), f"value {number} has wrong bytes"
    return number
