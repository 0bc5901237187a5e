"""Proof that a message has not moved since it was read.

Its bytes must match, and a line must begin there. Equal bytes alone are not enough: after a foreign change they may be
in the middle of another line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sej.system.disk import File
from textqueue.editing.place import Place
from textqueue.editing.plan import EQUAL_BYTES
from textqueue.format.grammar import BOM, CHUNK, STATUS_OF
from textqueue.format.mutex import holder_of
from textqueue.format.parser import value_of
from textqueue.hot import ends, essence

_NEWLINE: Final = 10
_GROUP_BYTES: Final = 1 << 18


def here(file: File, place: Place, *, epoch: int) -> bytes | None:
    """Return the current bytes of a message, if it is still at its position; otherwise None.

    The bytes may differ in the values of reserved variables.

    Args:
        file: the file as it is now.
        place: the message as it was read.
        epoch: the current epoch of the ledger. If the message was read in the same epoch, no line has moved since.
    """
    position, raw, then = place
    size = len(raw)
    before = min(position, 3)
    data = file.read(before + size + 1, position - before)
    if len(data) <= before:
        return None
    if before and data[before - 1] != _NEWLINE and not (position == len(BOM) and data.startswith(BOM)):
        return None
    now, after = data[before : before + size], data[before + size :]
    if not ends(now, after):
        return None
    if now == raw:
        return raw
    if CHUNK.fullmatch(now) is None or now[0] not in STATUS_OF:
        return None
    if then > 0 and then == epoch:
        return now if value_of(now) == value_of(raw) else None
    if now[0] != raw[0] or essence(now) != essence(raw):
        return None
    holder = holder_of(raw)  # of equal messages that are claimed, it must be the one with the same claim
    return now if not holder or holder_of(now) == holder else None


def neighbours(places: Sequence[Place]) -> list[list[Place]]:
    """Group places that are close to each other, so that each group is one read and one write."""
    groups: list[list[Place]] = []
    for place in places:
        if not groups or place.position - groups[-1][0].position > _GROUP_BYTES:
            groups.append([])
        groups[-1].append(place)
    return groups


def entry_at(file: File, position: int) -> bytes:
    """Return the entry that begins at a position, or empty bytes."""
    size = 4096
    while True:
        data = file.read(size, position)
        match = CHUNK.match(data)
        if match is None or data[0] not in STATUS_OF:
            return b""
        if match.end() < len(data) or len(data) < size:
            return match.group()
        size *= 4


def equal_before(data: bytes, raw: bytes) -> int:
    """Return how many messages at the end of some bytes are equal to the message that follows, whatever their marks."""
    return data[-EQUAL_BYTES:].count(raw[1:])
