"""The lines of the ledger as values; :mod:`textqueue.ledger.log` describes their fields. No I/O.

**What they add up to** (:class:`Remembered`): the edits that may still be in the file.

The lines are read in their order. At each place, the last mark or queued message counts. A place is an epoch, a
position and a digest, so an equal message has another place in the next epoch. There a line replaces the outdated
place:

- A mark or a claim of a message that was queued in an earlier epoch removes that place.
- The line that repeats the newest edit of the epoch before (``again``) removes the place of this edit.
- A claim removes what its message was before. A variable that was set moves the place to the new digest.

An edit that was made again does not show how new a buffer is: an older buffer may have the first one. So a claim
has the number and the state of the first claim of its process, and the state of a mark that was taken back before is
not known.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from textqueue.format.mutex import claimant
from textqueue.format.windows import Token, unknown

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


MARKS_KEPT: Final = 1 << 18
"""The number of marks that the ledger keeps. If an old buffer reverts an older mark, that is not recognised."""

_Numbered = tuple[int, Record]
_Place = tuple[int, int, bytes]
"""The epoch, the position in it, and the digest of a message."""


class Remembered:
    """The edits of the lines so far, each with the number of its line."""

    def __init__(self, records: Iterable[Record]) -> None:
        """Read lines, oldest first."""
        self._epoch = 0
        self._edits: dict[_Place, _Numbered] = {}  # marks and queued messages
        self._queued: dict[bytes, list[_Place]] = defaultdict(list)  # of all epochs, some of them outdated
        self._sets: list[_Numbered] = []
        self._claimed: dict[tuple[bytes, bytes], tuple[int, Token]] = {}
        self._claim_places: set[_Place] = set()
        self._reopened: set[tuple[bytes, bytes]] = set()  # digests of reopened messages, and the line's owner
        for number, record in enumerate(records):
            place = self._epoch, record.position, record.digest
            if record.kind == STATE:
                self._epoch = record.position
            elif record.kind in MARKS or record.kind in WAITING:
                self._mark(place, number, record)
            elif record.kind in CLAIMS:
                self._claim(place, number, record)
            elif record.kind == SET and record.owner != EMPTY:
                self._set(place, number, record)

    def edits(self, claims: Iterable[Record]) -> list[_Numbered]:
        """Return the last MARKS_KEPT of each kind, and the claims that have not ended, in the order of the lines."""
        marks = [one for one in self._edits.values() if one[1].kind in MARKS]
        waiting = [one for one in self._edits.values() if one[1].kind in WAITING]
        held = [self._first(claim) for claim in claims]
        kept = [*marks[-MARKS_KEPT:], *waiting[-MARKS_KEPT:], *self._sets[-MARKS_KEPT:], *held]
        return sorted(kept, key=lambda one: one[0])

    def _first(self, claim: Record) -> _Numbered:
        number, token = self._claimed.get((claim.digest, claim.holder), (0, claim.token))
        return number, claim._replace(token=token)

    def _mark(self, place: _Place, number: int, record: Record) -> None:
        is_waiting = record.kind in WAITING
        if self._edits.pop(place, None) is None and not is_waiting:
            self._outdate(record.digest)
        if (record.digest, WAS + bytes([record.kind])) in self._reopened:
            record = record._replace(token=unknown(record.token))
        if record.owner.startswith(WAS):
            self._reopened.add((record.digest, record.owner))
        if is_copy(record):
            record = record._replace(owner=EMPTY)
            copied = self._copied(record)
            if copied is not None:
                _, was = self._edits.pop(copied)
                record = record._replace(owner=was.owner) if was.owner.startswith((ARCHIVED, TEXT)) else record
            if is_waiting and place in self._claim_places:
                return  # the copy of an append whose message was claimed since: the claim replaces it
        self._edits[place] = number, record
        if is_waiting:
            self._queued[record.digest].append(place)

    def _claim(self, place: _Place, number: int, record: Record) -> None:
        if self._edits.pop(place, None) is None:
            self._outdate(record.digest)
        self._claimed.setdefault((record.digest, record.holder), (number, record.token))
        self._claim_places.add(place)

    def _set(self, place: _Place, number: int, record: Record) -> None:
        self._sets.append((number, record))
        if (was := self._edits.pop((self._epoch, record.position, record.owner), None)) is not None:
            self._edits[place] = was[0], was[1]._replace(digest=record.digest)

    def _copied(self, record: Record) -> _Place | None:
        """Return the place of the edit that a line repeats: the newest one, or an append before it."""
        # What was given back since has an entry in the ledger alone: it is not what was copied.
        newest = next((place for place in reversed(self._edits) if self._edits[place][1].kind != GIVEN_BACK), None)
        if newest is not None and (self._edits[newest][1].kind, newest[2]) == (record.kind, record.digest):
            return newest
        if record.kind == APPENDED:  # unless it was claimed and given back since
            return next((place for place in self._queued[record.digest] if self._is_queued(place)), None)
        return None

    def _is_queued(self, place: _Place) -> bool:
        return place in self._edits and self._edits[place][1].kind in WAITING

    def _outdate(self, digest: bytes) -> None:
        """Remove an equal message that was queued in an earlier epoch, when it had another position."""
        places = self._queued.get(digest, [])
        while places and places[0][0] != self._epoch:
            if self._is_queued(place := places.pop(0)):
                del self._edits[place]
                return


def ended_claims(records: Iterable[Record]) -> dict[tuple[bytes, bytes], bool]:
    """Return essence and process of the claims in a mutex that have ended in some lines, oldest first.

    Returns:
        For each of them, whether its message was missing from the file then, at least once.
    """
    ended: dict[tuple[bytes, bytes], bool] = {}
    held: dict[int, Record] = {}
    epoch = 0
    for record in records:
        if record.kind == STATE and record.position != epoch:
            epoch = record.position
            held.clear()
        claim = held.pop(record.position, None) if record.kind in CLAIMS or record.kind in ENDS else None
        if claim is not None and claim.kind == IN_MUTEX and claim.holder != record.holder:
            for name in {(claim.digest, claim.holder), (record.digest, claim.holder)}:
                ended[name] = ended.get(name, False) or record.owner == GONE
        if record.kind in CLAIMS:
            held[record.position] = record
    return ended
