"""The lines of the ledger as values; :mod:`textqueue.ledger.log` describes their fields. No I/O."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import quote_from_bytes

from textqueue.format.mutex import claimant
from textqueue.format.parser import value_of
from textqueue.format.windows import Token

MARKS: Final = frozenset(b"=!#")
CLAIMS: Final = frozenset(b"cm")
GIVEN_BACK: Final = ord("-")
SET: Final = ord("v")
APPENDED: Final = ord("a")
ARCHIVED: Final = ord("x")
REMOVED: Final = ord("g")
IN_LEDGER: Final = ord("c")
IN_MUTEX: Final = ord("m")
ENDED: Final = ord("e")
STATE: Final = ord("r")
ENDS: Final = MARKS | {GIVEN_BACK, ENDED}
"""The kinds of lines that end a claim."""
CHANGES: Final = MARKS | {GIVEN_BACK, SET, APPENDED, ARCHIVED}
"""The kinds of lines of changes that are made again in an old buffer."""

EMPTY: Final = b"-"
FAILED: Final = b"failed/"
"""The start of the owner of a message that was given back after a failure: the number of failures follows, and a lease
until whose end no worker takes it."""
LINED: Final = b"line"
"""The owner of a state if the file has, or had, the line with its number."""
TEXT: Final = b"text/"
"""The start of the owner of an append; the begin of the message's text follows, with ``%20`` for a blank."""
WAS: Final = b"was/"
"""The start of the owner of a line of a message that was marked before; that mark follows."""

PLAIN: Final = "!#$&'()*,:;=?@[]"
"""The characters that need no ``%`` in the text of an owner."""
_TEXT_BYTES: Final = 80

Line = tuple[int, int, bytes, bytes]
"""Kind, position, digest and owner of a line that is to be written."""


class Record(NamedTuple):
    """One line."""

    kind: int
    number: int
    position: int
    digest: bytes
    token: Token
    owner: bytes

    @property
    def holder(self) -> bytes:
        """The process that has the claim; as ``owner``, but without the lease."""
        return claimant(self.owner)

    @property
    def was(self) -> int:
        """The control byte of the message before the change."""
        return self.owner[len(WAS)] if self.owner.startswith(WAS) else GIVEN_BACK

    def line(self) -> bytes:
        """Return the line as it is stored."""
        kind, number, position, name, token, owner = self
        text = b"%c %d %d %s %d %d %d %s" % (kind, number, position, name, *token, owner)
        return b"%s %08x\n" % (text, zlib.crc32(text))


def text_owner(raw: bytes) -> bytes:
    """Return the owner of the append of a message."""
    return TEXT + quote_from_bytes(value_of(raw[:_TEXT_BYTES]), safe=PLAIN + "/").encode()


def records_in(data: bytes) -> Iterator[Record]:
    """Yield the whole lines; a torn or damaged one is ignored."""
    for line in data.split(b"\n"):
        text, _, crc = line.rpartition(b" ")
        if not text or b"%08x" % zlib.crc32(text) != crc:
            continue
        if text.count(b" ") == 7:
            kind, number, position, digest, inode, size, mtime_ns, owner = text.split(b" ")
            token = int(inode), int(size), int(mtime_ns)
            yield Record(kind[0], int(number), int(position), digest, token, owner)
