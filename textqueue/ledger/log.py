"""The ledger beside a text queue, ``jobs.tq.log``: what our programs changed, so that other changes can be told apart.

One line for each edit, appended under the queue's lock after the edit::

    KIND POSITION ESSENCE INODE SIZE MTIME_NS OWNER CRC32

- KIND: ``=`` ``!`` ``#`` a mark, ``-`` given back to the queue, ``c`` claimed beside the file, ``m`` claimed in the
  message's mutex variable, ``e`` the end of a claim whose message a person marked, ``v`` a variable set, ``a``
  appended, ``r`` the state after a foreign change, or after marks in a row.
- ESSENCE: 96 bits of BLAKE2b over the message's text and variables (``parser.essence``); ``-`` where there is none.
  In a line of kind ``r`` the version of what ESSENCE means: ``2``; older versions wrote ``-``.
- POSITION: of the control byte; negative: the message is not in the file, since so many nanoseconds after 1970.
- INODE, SIZE, MTIME_NS: the file as this edit left it; of marks in a row, as it was before them, until an ``r`` says
  how they left it. If it looks otherwise, somebody else was there.
- OWNER: who claimed; of a variable that was set, the message's essence before; of a mark whose message was archived,
  ``archived/`` and the number of the run; of the newest mark or append, where it is in a new epoch, ``again``; else
  ``-``. CRC32: of the line before it.

It relies on the lock. It promises: a line that is torn or was tampered with counts for nothing; losing the whole file
costs only that marks taken back by a stale buffer are not recognised and that claims beside the file are forgotten. It
stays small: the last ``MARKS_KEPT`` marks and the claims that are alive.
"""

from __future__ import annotations

import errno
import re
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from sej.system.disk import Disk, File
from sej.system.durable import renew
from textqueue.format.windows import Token
from textqueue.hot import status_lines
from textqueue.ledger.sidecar import as_open_as, open_beside, replace_beside

__all__ = [
    "APPENDED", "ARCHIVED", "BESIDE", "CLAIMS", "EMPTY", "ENDED", "GIVEN_BACK", "IN_MUTEX", "MARKS", "MARKS_KEPT",
    "MAY_NOT", "SET", "WAITING", "Ledger", "Mark", "Record",
]  # fmt: skip

MARKS: Final = frozenset(b"=!#")
CLAIMS: Final = frozenset(b"cm")
MARKS_KEPT: Final = 1 << 18
"""A stale buffer that takes back a mark older than this many is not recognised."""
GIVEN_BACK: Final = ord("-")
SET: Final = ord("v")
APPENDED: Final = ord("a")
BESIDE: Final = ord("c")
IN_MUTEX: Final = ord("m")
WAITING: Final = frozenset({APPENDED, GIVEN_BACK})
"""What says that our programs queued a message."""
ENDED: Final = ord("e")
_STATE: Final = ord("r")
_VERSION: Final = b"2"
_AGAIN: Final = b"again"
_SHOWN: Final = MARKS | {APPENDED, IN_MUTEX}
_ENDS: Final = MARKS | {GIVEN_BACK, ENDED}
EMPTY: Final = b"-"
ARCHIVED: Final = b"archived/"
"""The owner of a mark whose message was archived: this and the number of the run."""
MAY_NOT: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""What the system says to those who may only read."""
_READ_BYTES: Final = 1 << 16
_CHECK_BYTES: Final = 128
_COPY_BYTES: Final = 1 << 20
_TELLING: Final = re.compile(rb"(?:^|\n)[cemr-] ")
"""A line that says more than how the file looks now and where the last edit was."""


class Record(NamedTuple):
    """One line."""

    kind: int
    position: int
    digest: bytes
    token: Token
    owner: bytes

    def line(self) -> bytes:
        """As it stands in the file."""
        text = b"%c %d %s %d %d %d %s" % (self.kind, self.position, self.digest, *self.token, self.owner)
        return b"%s %08x\n" % (text, zlib.crc32(text))


class Mark(NamedTuple):
    """A place in a ledger: in which file, how far, and the CRC32 of the bytes before it; zeros if none exists."""

    inode: int = 0
    position: int = 0
    check: int = 0


class Ledger:
    """What is known of our own edits. Not safe between threads: the source that owns it holds its lock."""

    def __init__(self, path: str, *, disk: Disk, queue: str | None = None) -> None:
        """Name the file, and the queue file whose mode it gets; it is made by the first edit."""
        self.path = path
        self._queue = queue
        self._read_only = False
        self._disk = disk
        self._file: File | None = None
        self._inode = 0
        self.reading = 0  # changes when given_back begins anew
        self._forget()

    def _forget(self) -> None:
        self._read_to = 0  # lines up to here were taken in
        self._torn = 0  # bytes of a line that its writer did not finish
        self._replaced = False  # somebody was about to put a new file in this one's place
        self.token: Token | None = None  # the file as the last edit left it
        self.last: Record | None = None  # the last edit that stands at a place
        self.claims: dict[int, Record] = {}  # by position
        self.owners: Counter[bytes] = Counter()  # of these
        self.given_back: list[int] = []  # positions of messages that were put back into the queue, in this epoch
        self.shown: Record | None = None  # the last edit that can be seen in the file: a mark, an append, a name
        self.epochs = 0  # how many there are in this file
        self.epoch = 0  # changes with every foreign change: positions of other epochs mean nothing; 0: no ledger
        self.older = False  # it was written by an older version, see textqueue.ledger.upgrade
        self.lines = 0
        self.reading += 1

    def refresh(self, *, look: bool = False) -> None:
        """Take in what was written since.

        Args:
            look: see also whether the file at the path is still the one that is open.
        """
        if self._file is None or look or self._replaced:
            there = self._disk.status(self.path)
            if self._file is not None and (there is None or there.inode != self._inode):
                self.close()
            if there is None:
                return None
            if self._file is None:
                self._open()
        file = self._file
        while file is not None and (data := file.read(_READ_BYTES, self._read_to)):
            end = data.rfind(b"\n") + 1
            if not end and len(data) == _READ_BYTES:  # no line is so long: a power loss may have left zeros
                end = len(data)
            self._torn = len(data) - end
            self._read_to += end
            self._take_in(data[:end])
            if b"\n>\n" in b"\n" + data and not self._replaced:
                self._replaced = True
                return self.refresh()
            if len(data) < _READ_BYTES:
                break
        return None

    def _take_in(self, lines: bytes) -> None:
        if self.claims or _TELLING.search(lines):
            for record in _records(lines):
                self._apply(record)
            return
        # Of marks and the like, which are most of what stands here, the last one says all.
        self.lines += lines.count(b"\n")
        end = len(lines)
        while end > 0:
            start = lines.rfind(b"\n", 0, end - 1) + 1
            for record in _records(lines[start:end]):
                self.lines -= 1
                self._apply(record)
                return
            end = start

    def append(self, records: Sequence[Record]) -> None:
        """Write lines; the lock is held and the ledger is fresh."""
        self._write(b"".join([record.line() for record in records]), records[0].token)
        for record in records:
            self._apply(record)

    def append_lines(self, kind: int, places: Sequence[tuple[int, bytes, int]], token: Token) -> None:
        """As ``append``, for marks or appends of one kind, given the messages' places, with less work for each."""
        lines = status_lines(kind, places, b" %d %d %d -" % token)
        self._write(lines, token)
        *most, (position, _, _) = places
        if kind == GIVEN_BACK:
            self.given_back += [place[0] for place in most]
        for claimed in self.claims.keys() & {place[0] for place in most} if self.claims else ():
            self._unclaim(claimed)
        self.lines += len(most)
        name = lines[lines.rfind(b"\n", 0, -1) + 1 :].split(b" ", 3)[2]
        self._apply(Record(kind, position, name, token, EMPTY))

    def _write(self, lines: bytes, token: Token) -> None:
        if self._file is None:
            self._open()
        assert self._file is not None
        if self._read_only:
            self._disk.open(self.path, "append").close()  # which is refused
        if not self.epoch:
            first = Record(_STATE, time.time_ns(), _VERSION, token, EMPTY)
            self._apply(first)
            lines = first.line() + lines
        if self._torn:
            lines = b"\n" + lines
        self._file.write(lines)
        self._read_to += self._torn + len(lines)
        self._torn = 0

    def held(self) -> File | None:
        """The file, for somebody who appends to it himself while he holds the lock; None where that will not do."""
        return None if self._torn or self._replaced or self.claims or not self.epoch else self._file

    def took(self, lines: int, size: int, last: Record) -> None:
        """Take note of lines that were appended through :meth:`held`: marks, of messages that nobody had claimed."""
        self.lines += lines
        self._read_to += size
        self.token, self.last, self.shown = last.token, last, last

    def state(self, token: Token) -> None:
        """Write a line that says how the file looks now."""
        self.append([Record(_STATE, self.epoch or time.time_ns(), _VERSION, token, EMPTY)])

    def move(self, shown: Record | None, claims: Sequence[Record], token: Token) -> None:
        """Begin a new epoch: lines have moved, and nothing was taken back. The lock is held and the ledger is fresh.

        Args:
            shown: the last edit that can be seen, where it is now; None: it is one of the claims.
            claims: where they are now.
            token: the file as it is now.
        """
        again = [] if shown is None else [shown._replace(owner=_AGAIN)]
        state = Record(_STATE, time.time_ns(), _VERSION, token, EMPTY)
        self.append([state, *[record._replace(token=token) for record in (*claims, *again)]])

    def edits(self) -> list[Record]:
        """What may still be in the file, oldest first, the last MARKS_KEPT of each kind.

        Marks and messages that our programs queued, one for each place; variables that made another message of
        theirs, by its essence; claims that have not ended.
        """
        data = b"" if self._file is None else self._file.read(self._read_to, 0)
        epoch = 0
        status: dict[_Place, tuple[int, Record]] = {}
        queued: dict[bytes, list[_Place]] = defaultdict(list)  # waiting messages of all epochs, some outdated

        def outdate(name: bytes) -> None:
            """One that waited in an earlier epoch, where its position was another one, waits no more."""
            places = queued.get(name, [])
            while places and places[0][0] != epoch:
                found = status.get(places[0])
                if found is not None and found[1].kind in WAITING:
                    del status[places.pop(0)]
                    return
                places.pop(0)

        sets: list[tuple[int, Record]] = []
        claimed: dict[tuple[bytes, bytes], int] = {}
        for number, record in enumerate(_records(data)):
            place = epoch, record.position, record.digest
            if record.kind == _STATE:
                epoch = record.position
            elif record.kind in MARKS or record.kind in WAITING:
                if status.pop(place, None) is None and record.kind in MARKS:
                    outdate(record.digest)
                if record.owner == _AGAIN:
                    record = record._replace(owner=EMPTY)
                    newest = next(reversed(status), None)
                    if newest is not None and newest[2] == record.digest:
                        del status[newest]
                status[place] = number, record
                if record.kind in WAITING:
                    queued[record.digest].append(place)
            elif record.kind in CLAIMS:
                if status.pop(place, None) is None:
                    outdate(record.digest)
                claimed.setdefault((record.digest, record.owner), number)
            elif record.kind == SET and record.owner != EMPTY:
                sets.append((number, record))
                if (was := status.pop((epoch, record.position, record.owner), None)) is not None:
                    status[place] = was[0], was[1]._replace(digest=record.digest)
        claims = [(claimed.get((claim.digest, claim.owner), 0), claim) for claim in self.claims.values()]
        marks = [one for one in status.values() if one[1].kind in MARKS]
        waiting = [one for one in status.values() if one[1].kind in WAITING]
        kept = [*marks[-MARKS_KEPT:], *waiting[-MARKS_KEPT:], *sets[-MARKS_KEPT:], *claims]
        return [record for _, record in sorted(kept, key=lambda one: one[0])]

    def ended(self) -> set[tuple[bytes, bytes]]:
        """The claims that stood in a mutex and have ended since the last foreign change: essence and owner."""
        data = b"" if self._file is None else self._file.read(self._read_to, 0)
        ended: set[tuple[bytes, bytes]] = set()
        held: dict[int, Record] = {}
        for record in _records(data) if b"\nm " in data else ():
            if record.kind in CLAIMS:
                held[record.position] = record
            elif record.kind in _ENDS and record.position in held:
                claim = held.pop(record.position)
                if claim.kind == IN_MUTEX:
                    ended |= {(claim.digest, claim.owner), (record.digest, claim.owner)}
        return ended

    def shorten(self) -> None:
        """Drop the older half; the lock is held and the ledger is fresh. Others notice as of :meth:`rewrite`."""
        assert self._file is not None
        assert self.token is not None
        known = [Record(_STATE, self.epoch, _VERSION, self.token, EMPTY), *self.claims.values()]
        head = b"".join([record.line() for record in known])
        position = self._read_to // 2
        while not (found := self._file.read(_READ_BYTES, position).find(b"\n") + 1):
            position += _READ_BYTES
        position += found
        temporary = self.path + ".tmp"
        self._disk.unlink(temporary)
        file = self._disk.open(temporary, "temp")
        try:
            if self._queue is not None:
                as_open_as(self._queue, file)
            file.write(head)
            lines = len(known)
            size = len(head)
            while data := self._file.read(_COPY_BYTES, position):
                file.write(data)
                lines += data.count(b"\n")
                size += len(data)
                position += len(data)
            file.sync()
        finally:
            file.close()
        self._file.write(b"\n>\n")
        self._disk.rename(temporary, self.path)
        # What is known of it is what it says: it need not be read.
        self._file.close()
        self._file = self._disk.open(self.path, "append")
        self._inode = self._file.status().inode
        self._read_to, self._torn, self.lines = size, 0, lines

    def rewrite(self, records: Iterable[Record], *, token: Token, epoch: int | None = None) -> None:
        """Replace everything; the lock is held. Others notice by the last line of the old file, or by its inode.

        Args:
            records: what is still worth knowing, where it stands now.
            token: the file as it is now.
            epoch: None: positions have not moved, the epoch stays.
        """
        kept = [record._replace(token=token) for record in records]
        kept.insert(0, Record(_STATE, epoch or self.epoch or time.time_ns(), _VERSION, token, EMPTY))
        if self._file is not None:
            self._file.write(b"\n>\n")
        replace_beside(self._disk, self.path, b"".join(record.line() for record in kept), self._queue)
        self.refresh(look=True)

    def mark(self) -> Mark:
        """The end of what was taken in."""
        return Mark() if self._file is None else Mark(self._inode, self._read_to, self._check(self._read_to))

    def since(self, mark: Mark) -> list[Record] | None:
        """The lines behind a place; None if it is not of this file."""
        if self._file is None or mark.inode != self._inode or mark.position > self._read_to:
            return [] if self._file is None and mark == Mark() else None
        if self._check(mark.position) != mark.check:
            return None
        return list(_records(self._file.read(self._read_to - mark.position, mark.position)))

    def _check(self, position: int) -> int:
        assert self._file is not None
        size = min(position, _CHECK_BYTES)
        return zlib.crc32(self._file.read(size, position - size))

    def sync(self, start: int = 0) -> None:
        """Force it to the medium; the lock is held.

        Args:
            start: the bytes before it are known to be there.
        """
        if self._file is not None and not self._read_only:
            renew(self._disk, self._file, start, self._read_to)
            self._file.sync()

    def close(self) -> None:
        """Give the descriptor back and forget what was read."""
        if self._file is not None:
            self._file.close()
        self._file = None
        self._forget()

    def _open(self) -> None:
        self._forget()
        self._read_only = False
        try:
            self._file = open_beside(self._disk, self.path, self._queue)
        except OSError as error:
            if error.errno not in MAY_NOT:
                raise
            self._file = self._disk.open(self.path, "read")  # it says what happened to those as well who only read
            self._read_only = True
        self._inode = self._file.status().inode

    def _apply(self, record: Record) -> None:
        self.lines += 1
        self.token = record.token
        if record.kind == _STATE:
            if record.position != self.epoch:
                self.epochs += 1
                self.claims.clear()
                self.owners.clear()
                self.given_back.clear()
            self.epoch = record.position
            self.older = record.digest != _VERSION
            return
        if record.position >= 0:
            self.last = record
            if record.kind in _SHOWN:
                self.shown = record
        if record.kind in CLAIMS:
            self._unclaim(record.position)
            self.claims[record.position] = record
            self.owners[record.owner] += 1
        elif record.kind in _ENDS:
            self._unclaim(record.position)
            if record.kind == GIVEN_BACK:
                self.given_back.append(record.position)
        elif record.kind == SET and record.position in self.claims:
            self.claims[record.position] = self.claims[record.position]._replace(digest=record.digest)

    def _unclaim(self, position: int) -> None:
        if (claim := self.claims.pop(position, None)) is not None:
            self.owners[claim.owner] -= 1
            if not self.owners[claim.owner]:
                del self.owners[claim.owner]


_Place = tuple[int, int, bytes]
"""The epoch, the position in it, and the digest."""


def _records(data: bytes) -> Iterator[Record]:
    for line in data.split(b"\n"):
        text, _, crc = line.rpartition(b" ")
        if not text or b"%08x" % zlib.crc32(text) != crc:
            continue
        fields = text.split(b" ")
        if len(fields) == 7:
            token = int(fields[3]), int(fields[4]), int(fields[5])
            yield Record(fields[0][0], int(fields[1]), fields[2], token, fields[6])
