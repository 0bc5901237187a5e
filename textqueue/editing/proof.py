"""Proof that a message has not moved since it was read.

Its bytes must match, and a line must begin there. Equal bytes alone are not enough: after a foreign change they may be
in the middle of another line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from sej.system.disk import File
from textqueue.format.mutex import holder_of
from textqueue.format.parser import BOM, CHUNK, CONTINUATION, STATUS_OF, VARIABLE, essence, value_of
from textqueue.log import EMPTY


class Place(NamedTuple):
    """A message as it was read: its position, its bytes, and the epoch of the ledger (-1: unknown)."""

    position: int
    raw: bytes
    epoch: int


class Change(NamedTuple):
    """A change: bytes with their positions relative to the control byte, and the kind and detail of the ledger line."""

    writes: Sequence[tuple[int, bytes]]
    kind: int
    detail: bytes = EMPTY

    def applied(self, raw: bytes) -> bytes:
        """Return the bytes of a message after the change."""
        for at, data in self.writes:
            raw = raw[:at] + data + raw[at + len(data) :]
        return raw


Making = Callable[[Place, bytes], Change | None]
"""Makes the change of a message, from how it was read and its current bytes; None: none is needed."""
_NEWLINE: Final = 10
_AHEAD_BYTES: Final = 1 << 16
BELOW: Final = bytes((VARIABLE, CONTINUATION))
"""The first bytes of lines that belong to the message above."""
_BELOW: Final = frozenset({b"", *(BELOW[at : at + 1] for at in range(len(BELOW)))})


def ends(raw: bytes, after: bytes) -> bool:
    """Return whether an entry ends with raw, given the next byte of the file; no byte: the file ends there."""
    if not raw.endswith(b"\n"):
        return not after
    return not after or (after[0] != VARIABLE and (after[0] != CONTINUATION or b"\n\\" in raw))


class Readable(Protocol):
    """What can be read at a position."""

    def read(self, size: int, position: int, /) -> bytes:
        """Return up to size bytes from position."""


class ReadAhead:
    """Reads a file in blocks, for many messages in its order. The file must not change."""

    def __init__(self, file: Readable) -> None:
        self._file, self._start, self._data = file, 0, b""

    def read(self, size: int, position: int) -> bytes:
        """Return up to size bytes from position."""
        at = position - self._start
        if not 0 <= at <= len(self._data) - size:
            self._start, self._data, at = position, self._file.read(max(size, _AHEAD_BYTES), position), 0
        return self._data[at : at + size]


def here(file: Readable, place: Place, *, epoch: int) -> bytes | None:
    """Return the current bytes of a message, if it is still at its position; otherwise None.

    The values of reserved variables may differ. In the epoch in which it was read, no line has moved since.
    """
    position, raw, then = place
    size = len(raw)
    if position and raw[-1] == _NEWLINE:  # nearly always
        data = file.read(size + 2, position - 1)
        if data[1:-1] == raw and data[0] == _NEWLINE and data[-1] not in BELOW and len(data) == size + 2:
            return raw
    before = min(position, 3)
    data = file.read(before + size + 1, position - before)
    if len(data) <= before:
        return None
    if before and data[before - 1] != _NEWLINE and not (position == len(BOM) and data.startswith(BOM)):
        return None
    now, after = data[before : before + size], data[before + size :]
    if (after[:1] in _BELOW or raw[-1] != _NEWLINE) and not ends(now, after):
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
