"""The ledger of a text queue, ``.jobs.tq.log``: a log of the changes by this library.

Each change appends lines, under the queue's lock, after the queue file was written::

    KIND NUMBER POSITION ESSENCE INODE SIZE MTIME_NS DETAIL CRC32

========  =======================================================================================================
KIND      ``=`` ``!`` ``#`` a mark; ``-`` given back to the queue; ``a`` appended; ``v`` a variable was set; ``x``
          moved to an archive; ``m`` claimed in the message's mutex variable; ``c`` claimed in the ledger only; ``e``
          end of a claim whose message a user marked or removed; ``g`` an append that a stale save removed, and that
          was reported; ``r`` a state: the file after a foreign change or a sync
NUMBER    of the change, which the file has as well (``textqueue.format.windows``). A line of a change that wrote
          nothing into the file has the number of the line before
POSITION  of the control byte. Negative: the message is missing from the file. In an ``r`` line: the epoch
ESSENCE   96 bits of BLAKE2b over the message's text and variables (``parser.essence``). In an ``r`` line: the version
          of the ledger, ``3/``, and the position of the number in the file; negative: the file has no such line
INODE,    the state of the file after the change. If the file has a different state, another program changed it.
SIZE,     INODE is 0 if another program may have written to the file during the change
MTIME_NS
DETAIL    of a claim: its process, and its lease if it has one (``format.mutex``); of ``v``: the message's ESSENCE
          before, the number of the variable, and its text; of ``a``: ``text/`` and the begin of the text; of a mark,
          ``x`` or ``-``, if the message was marked before: ``was/`` and that mark; of ``-``, if it failed:
          ``failed/``, the number of failures, and the end of its delay in the form of a lease; of ``r``: ``line`` if
          the file has, or had, the line with its number; ``late/`` and the number of the last change before the first
          claim, if another program had the file open, so that the line could not be added; otherwise ``-``
CRC32     of the line before it
========  =======================================================================================================

An **epoch** is the time between two foreign changes: within it, positions remain valid. It is identified by the time at
which it began. Its ``r`` line is followed by the claims, with their new positions.

A torn or damaged line is ignored. If the whole file is lost or emptied, an old buffer that a person saves is taken as
it is, and claims that are only in the ledger are forgotten.

**Compaction.** If half of many lines mean nothing any more, the ledger is written again: the last ``KEPT`` changes, the
lines that begin their epochs, the failures of this epoch, and the claims. The new file replaces the old one atomically,
under the queue's lock. Other processes find it by its inode.
"""

from __future__ import annotations

import errno
import itertools
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote_from_bytes

from sej.system.disk import Disk, File
from sej.system.durable import renew
from textqueue.format.mutex import claimant
from textqueue.format.parser import value_of
from textqueue.format.windows import Generation, Token
from textqueue.sidecar import open_sidecar, replace_sidecar

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
"""The start of the detail of a message that was given back after a failure: the number of failures follows, and a
lease until whose end no worker takes it."""
LINED: Final = b"line"
"""The detail of a state if the file has, or had, the line with its number."""
PENDING: Final = b"late/"
"""The start of the detail of a state if a claim could not add that line: another program had the file open."""
TEXT: Final = b"text/"
"""The start of the detail of an append; the begin of the message's text follows, with ``%20`` for a blank."""
WAS: Final = b"was/"
"""The start of the detail of a line of a message that was marked before; that mark follows."""

PLAIN: Final = "!#$&'()*,:;=?@[]"
"""The characters that need no ``%`` in the text of a detail."""
_TEXT_BYTES: Final = 80

_TEXT_OF: Final = b"%c %d %d %s %s %s"
_SEALED: Final = b"%s %08x\n"
"""The text of a line, with the file's token as text, and the line."""

Line = tuple[int, int, bytes, bytes]
"""Kind, position, digest and detail of a line that is to be written."""


class Record(NamedTuple):
    """One line."""

    kind: int
    number: int
    position: int
    digest: bytes
    token: Token
    detail: bytes

    @property
    def holder(self) -> bytes:
        """The process that has the claim; as ``detail``, but without the lease."""
        return claimant(self.detail)

    @property
    def was(self) -> int:
        """The control byte of the message before the change."""
        return self.detail[len(WAS)] if self.detail.startswith(WAS) else GIVEN_BACK

    def line(self) -> bytes:
        """Return the line as it is stored."""
        text = _TEXT_OF % (*self[:4], b"%d %d %d" % self.token, self.detail)
        return _SEALED % (text, zlib.crc32(text))


def text_detail(raw: bytes) -> bytes:
    """Return the detail of the append of a message."""
    return TEXT + quote_from_bytes(value_of(raw[:_TEXT_BYTES]), safe=PLAIN + "/").encode()


def records_in(data: bytes) -> Iterator[Record]:
    """Yield the whole lines; a torn or damaged one is ignored."""
    for line in data.split(b"\n"):
        text, _, crc = line.rpartition(b" ")
        if not text or b"%08x" % zlib.crc32(text) != crc:
            continue
        if text.count(b" ") == 7:
            kind, number, position, digest, inode, size, mtime_ns, detail = text.split(b" ")
            token = int(inode), int(size), int(mtime_ns)
            yield Record(kind[0], int(number), int(position), digest, token, detail)


_VERSION: Final = b"3"
KEPT: Final = 1 << 18
"""The number of changes that a compaction keeps. A buffer that is older than these is taken as it is."""
READ_ONLY_ERRORS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""The errors of the system if this user may only read the file."""
_READ_BYTES: Final = 1 << 16
_LEAST_LINES: Final = 1000


class Ledger:
    """The changes by this library. Not thread-safe: the source that owns it holds its lock."""

    def __init__(self, path: str, *, disk: Disk, queue: str | None = None) -> None:
        """Create a ledger object. The first change creates the file, with the mode of the queue file."""
        self.path = path
        self._queue = queue
        self._read_only = False
        self._disk = disk
        self._file: File | None = None
        self._inode = 0
        self.reading = 0  # changes when the ledger is opened again, and given_back is cleared
        self._forget()

    def _forget(self) -> None:
        self._read_to = 0  # lines before this position were applied
        self._torn = 0  # bytes of an incomplete last line
        self._replaced = False  # another process is about to replace this file
        self._first: list[Record] = []  # the lines of a new ledger, before its first change
        self.token: Token | None = None  # the state of the queue file after the last change
        self.line_at = -1  # where the file has its number; -1: nowhere
        self.number = 0  # of the last change
        self.lined = False  # whether the file has, or had, the line with its number
        self.pending_line = -1  # the last change before a claim that could not add it; -1: none, or it was added
        self.claims: dict[int, Record] = {}  # by position
        self.owners: Counter[bytes] = Counter()  # the processes that have these claims
        self.leased: dict[int, bytes] = {}  # the owners of the claims that have a lease, by position
        self.given_back: list[int] = []  # positions of messages that were put back into the queue, in this epoch
        self.failed: dict[int, bytes] = {}  # the owners of the lines of the messages that failed, by position
        self.epoch = 0  # the current epoch; 0: no ledger
        self.foreign: Token = (0, 0, 0)  # the file when that epoch began: since then only this library has changed it
        self.lines = 0
        self._spent = 0  # an estimate of how many of these lines mean nothing any more
        self._enough = _LEAST_LINES  # with fewer lines, or twice those after the last compaction, there is none
        self.reading += 1

    @property
    def generation(self) -> Generation:
        """Where the file has its number, and the number of the last change."""
        return Generation(self.line_at, self.number)

    def refresh(self, *, look: bool = False) -> None:
        """Apply the lines since the last call. look: check also that the open file is still the file at the path."""
        if self._file is not None and not look and not self._replaced:
            size = self._file.size()
            if size == self._read_to:
                return
            if size > self._read_to:
                self._read_lines(self._file, size)
                return
            self.close()  # another program emptied it
        there = self._disk.status(self.path)
        if self._file is not None and (there is None or there.inode != self._inode or there.size < self._read_to):
            self.close()
        if there is not None:
            file = self._file or self._open()
            self._read_lines(file, file.size())

    def _read_lines(self, file: File, size: int) -> None:
        """Apply the lines before a position."""
        while size > self._read_to and (data := file.read(min(size - self._read_to, _READ_BYTES), self._read_to)):
            end = data.rfind(b"\n") + 1
            if not end and len(data) == _READ_BYTES:  # no line is this long: after a power loss there may be zeros
                end = len(data)
            self._torn = len(data) - end
            self._read_to += end
            for record in records_in(data[:end]):
                self._apply(*record)
            if b"\n>\n" in b"\n" + data and not self._replaced:
                self._replaced = True
                self.refresh()
                return
            if self._read_to + self._torn >= size:
                break

    def append(self, lines: Sequence[Line], token: Token, number: int) -> None:
        """Append the lines of a change with its number, and the state of the file after it, under the lock."""
        file = self._file
        if file is None or self._first or self._torn or self._read_only:
            file = self._write(())
        state = b"%d %d %d" % token
        stored = []
        for kind, at, name, detail in lines:
            text = _TEXT_OF % (kind, number, at, name, state, detail)
            stored.append(_SEALED % (text, zlib.crc32(text)))
        data = b"".join(stored)
        file.write(data)
        self._read_to += len(data)
        for kind, at, name, detail in lines:
            self._apply(kind, number, at, name, token, detail)

    def _write(self, records: Sequence[Record]) -> File:
        first = self._first
        file = self._file or self._open()
        self._first = first  # until they are written
        if self._read_only:
            self._disk.open(self.path, "append").close()  # raises the error of the system
        records = [*first, *records]
        lines = b"".join([record.line() for record in records])
        if self._torn:
            lines = b"\n" + lines
        file.write(lines)
        self._first = []
        self._read_to += len(lines)
        self._torn = 0
        for record in records:
            self._apply(*record)
        return file

    def start(self, claims: Sequence[Record], token: Token, generation: Generation) -> None:
        """Begin a ledger for a file in this state. The first change writes it, so that a reader writes nothing."""
        self._first = self._epoch_lines(claims, (), token, generation)
        self.line_at, self.number = generation
        for claim in claims:  # known to an epoch that begins before the first change, too
            self.claims[claim.position] = claim
            self.owners[claim.holder] += 1

    def begin(
        self,
        claims: Sequence[Record],
        token: Token,
        generation: Generation,
        *,
        lines: Sequence[Line] = (),
        foreign: Token | None = None,
    ) -> None:
        """Begin a new epoch, under the lock: with the claims at their new positions, and the lines of a change.

        foreign: the file after the last change by another program; None: that was now.
        """
        self._first = []
        records = self._epoch_lines(claims, lines, foreign or token, generation)
        self._write([*records, records[0]._replace(token=token)])

    def _epoch_lines(
        self, claims: Sequence[Record], lines: Sequence[Line], token: Token, generation: Generation
    ) -> list[Record]:
        epoch, number = max(time.time_ns(), self.epoch + 1), generation.number
        return [
            self._state(epoch, token, generation),
            *(claim._replace(number=number) for claim in claims),
            *(Record(kind, number, at, name, token, detail) for kind, at, name, detail in lines),
        ]

    def _state(self, epoch: int, token: Token, generation: Generation) -> Record:
        pending = EMPTY if self.pending_line < 0 else PENDING + b"%d" % self.pending_line
        detail = LINED if self.lined or generation.position >= 0 else pending
        where = b"%s/%d" % (_VERSION, generation.position)
        return Record(STATE, generation.number, epoch, where, token, detail)

    def state(self, token: Token) -> None:
        """Append a line with the current state of the file."""
        if self.epoch:
            self._write([self._state(self.epoch, token, self.generation)])
        else:
            self.begin(list(self.claims.values()), token, self.generation)

    def history(self, about: bytes = b"") -> Iterable[Record]:
        """Return the lines with some bytes, oldest first. A position is valid until the next line of a new epoch."""
        data = b"" if self._file is None else self._file.read(self._read_to, 0)
        return records_in(b"\n".join([line for line in data.split(b"\n") if about in line]) if about else data)

    def has_claim(self, position: int, owner: bytes, epoch: int) -> bool:
        """Return whether a claim is at a position of an epoch; a lease identifies one claim, whatever the epoch."""
        claim = self.claims.get(position)
        return claim is not None and claim.detail == owner and (epoch == self.epoch or claim.holder != owner)

    def is_wasteful(self) -> bool:
        """Return whether a compaction is worth its cost. The ledger is refreshed."""
        return self.lines > self._enough and (self.lines > 2 * KEPT or self._spent * 2 > self.lines)

    def compact(self) -> None:
        """Write the ledger again, without the lines that mean nothing. The caller holds the lock."""
        changes: list[tuple[Record, Record]] = []  # after the state that their epoch began with
        last = state = self._state(self.epoch, self.token or self.foreign, self.generation)
        for record in self.history():
            if record.kind == STATE and (record.position != state.position or state is last):
                state = record
            failed = state.position == self.epoch and record.detail == self.failed.get(record.position)
            useful = record.kind != GIVEN_BACK or failed or record.detail.startswith(WAS)
            if useful and record.kind in CHANGES:
                changes.append((state, record))
        records: list[Record] = []
        for begin, same_epoch in itertools.groupby([*changes[-KEPT:], (state, last)], key=lambda one: one[0]):
            records += [begin, *(record for _, record in same_epoch)]
        records[-1:] = [*self.claims.values(), last]
        if len(records) * 4 > self.lines * 3:  # the estimate was wrong: the lines are worth keeping
            self._enough = max(len(records) * 2, _LEAST_LINES)
            return
        if self._file is not None:
            self._file.write(b"\n>\n")
        replace_sidecar(self._disk, self.path, b"".join(record.line() for record in records), self._queue)
        self.refresh(look=True)
        self._enough = max(self.lines * 2, _LEAST_LINES)

    def place(self) -> tuple[int, int]:
        """Return which reading of the ledger this is, and the position after the last applied line."""
        return self.reading, self._read_to

    def since(self, reading: int, position: int) -> list[Record] | None:
        """Return the lines after a position; None if the ledger was opened again since."""
        if reading != self.reading:
            return None
        return [] if self._file is None else list(records_in(self._file.read(self._read_to - position, position)))

    def sync(self, start: int = 0) -> None:
        """Sync the ledger to disk, under the lock. The bytes before start are known to be on disk."""
        if self._file is not None and not self._read_only:
            renew(self._disk, self._file, start, self._read_to)
            self._file.sync()

    def close(self) -> None:
        """Close the file and forget what was read."""
        if self._file is not None:
            self._file.close()
        self._file = None
        self._forget()

    def _open(self) -> File:
        self._forget()
        self._read_only = False
        try:
            file = open_sidecar(self._disk, self.path, self._queue)
        except OSError as error:
            if error.errno not in READ_ONLY_ERRORS:
                raise
            file = self._disk.open(self.path, "read")  # a user who may only read needs the ledger, too
            self._read_only = True
        self._file, self._inode = file, file.status().inode
        return file

    def _apply(self, kind: int, number: int, position: int, name: bytes, token: Token, detail: bytes) -> None:
        self.lines += 1
        self.token = token
        if kind == STATE:
            self.line_at, self.number = int(name.partition(b"/")[2]), number
            self.lined = self.lined or detail == LINED
            self.pending_line = int(detail.removeprefix(PENDING)) if detail.startswith(PENDING) else -1
            self._spent += 1
            if position != self.epoch:
                self._begin(position, token)
            return
        if number > self.number:
            self.number = number
        if kind in CLAIMS:
            self._unclaim(position)
            self.claims[position] = Record(kind, number, position, name, token, detail)
            holder = claimant(detail)
            self.owners[holder] += 1
            self._spent += 1
            if holder != detail:
                self.leased[position] = detail
        elif kind in ENDS:
            if position in self.claims:
                self._unclaim(position)
            if kind == GIVEN_BACK:
                self._give_back(position, detail)
        elif kind == SET and position in self.claims:
            self.claims[position] = self.claims[position]._replace(digest=name)

    def _begin(self, epoch: int, token: Token) -> None:
        self.claims.clear()
        self.owners.clear()
        self.leased.clear()
        self.given_back.clear()
        self.failed.clear()
        self.foreign = token
        self.epoch = epoch

    def _give_back(self, position: int, detail: bytes) -> None:
        self.given_back.append(position)
        self._spent += 1
        if detail.startswith(FAILED):
            self.failed[position] = detail
        else:
            self.failed.pop(position, None)

    def _unclaim(self, position: int) -> None:
        if position in self.claims:
            holder = self.claims.pop(position).holder
            self.owners[holder] -= 1
            if not self.owners[holder]:
                self.owners.pop(holder)  # not del: Counter has that one in Python
            self.leased.pop(position, None)
