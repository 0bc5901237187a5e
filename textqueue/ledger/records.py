"""The lines of the ledger as values; :mod:`textqueue.ledger.log` describes their fields. No I/O."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from textqueue.format.mutex import claimant
from textqueue.format.windows import Token

MARKS: Final = frozenset(b"=!#")
CLAIMS: Final = frozenset(b"cm")
GIVEN_BACK: Final = ord("-")
SET: Final = ord("v")
APPENDED: Final = ord("a")
IN_LEDGER: Final = ord("c")
IN_MUTEX: Final = ord("m")
ENDED: Final = ord("e")
STATE: Final = ord("r")
WAITING: Final = frozenset({APPENDED, GIVEN_BACK})
"""The kinds of lines for messages that this library queued."""
VISIBLE: Final = MARKS | {APPENDED, IN_MUTEX}
"""The kinds of lines whose edit a person sees in the file."""
UNSEEN: Final = CLAIMS | {GIVEN_BACK, ENDED}
"""The kinds of lines whose edit may have left bytes that an older buffer has as well, such as an earlier claim."""
ENDS: Final = MARKS | {GIVEN_BACK, ENDED}
"""The kinds of lines that end a claim."""


EMPTY: Final = b"-"
AGAIN: Final = b"again"
"""The owner of a line that repeats an edit of the epoch before."""
ARCHIVED: Final = b"archived/"
"""The start of the owner of a mark whose message was archived; the number of the run follows. If a save of an old
buffer brings the message back, the owner remains, because the archive has the message."""
FAILED: Final = b"failed/"
"""The start of the owner of a message that was given back after a failure: the number of failures follows, and a lease
until whose end no worker takes it."""
GONE: Final = b"gone"
"""The owner of a line that ends a claim while its message is missing from the file."""
LIKE: Final = b"like/"
"""The start of the owner of an append if equal messages were close before it; their number follows."""
TEXT: Final = b"text/"
"""The start of the owner of an append; the begin of the message's text follows, with ``%20`` for a blank."""
WAS: Final = b"was/"
"""The start of the owner of a line of a message that was marked before; that mark follows."""


class Record(NamedTuple):
    """One line."""

    kind: int
    position: int
    digest: bytes
    token: Token
    owner: bytes

    @property
    def holder(self) -> bytes:
        """The process that has the claim; as ``owner``, but without the lease."""
        return claimant(self.owner)

    def line(self) -> bytes:
        """Return the line as it is stored."""
        text = b"%c %d %s %d %d %d %s" % (self.kind, self.position, self.digest, *self.token, self.owner)
        return b"%s %08x\n" % (text, zlib.crc32(text))


def is_archived(record: Record) -> bool:
    """Return whether a line is the mark of a message that was archived."""
    return record.owner.startswith(ARCHIVED)


def run_of(owner: bytes) -> int:
    """Return the number of the archive run in an owner; later runs have larger ones."""
    return int(owner.removeprefix(ARCHIVED))


def is_copy(record: Record) -> bool:
    """Return whether a line repeats an edit of the epoch before, with the new position of its message."""
    return record.owner == AGAIN


def records_in(data: bytes) -> Iterator[Record]:
    """Yield the whole lines; a torn or damaged one is ignored."""
    for line in data.split(b"\n"):
        text, _, crc = line.rpartition(b" ")
        if not text or b"%08x" % zlib.crc32(text) != crc:
            continue
        if text.count(b" ") == 6:
            yield record_of(text)


def record_of(text: bytes) -> Record:
    """Parse a line without its checksum."""
    kind, position, digest, inode, size, mtime_ns, owner = text.split(b" ")
    return Record(kind[0], int(position), digest, (int(inode), int(size), int(mtime_ns)), owner)
