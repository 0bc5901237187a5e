"""The ledger of a text queue, ``.jobs.tq.log``: a log of the edits by this library, to recognise foreign changes.

Each edit appends a line, under the queue's lock, after the queue file was written::

    KIND POSITION ESSENCE INODE SIZE MTIME_NS OWNER CRC32

========  =======================================================================================================
KIND      ``=`` ``!`` ``#`` a mark; ``-`` given back to the queue; ``a`` appended; ``v`` a variable was set;
          ``m`` claimed in the message's mutex variable; ``c`` claimed in the ledger only; ``e`` end of a claim
          whose message a user marked or removed; ``r`` a state: the file after a foreign change or a sync
POSITION  of the control byte. Negative: the message is missing from the file since this time, in nanoseconds since
          1970. In an ``r`` line: the epoch
ESSENCE   96 bits of BLAKE2b over the message's text and variables (``parser.essence``), or ``-`` without one.
          In an ``r`` line: the version of this hash, ``2``
INODE,    the state of the file after the edit. If the file has a different state, another program changed it.
SIZE,     INODE is 0 if another program may have written to the file during the edit, and negative if another program
MTIME_NS  had the file open during the edit
OWNER     of a claim: its process, and its lease if it has one (``format.mutex``); of ``v``: the message's ESSENCE
          before; of a mark of an archived message: ``archived/`` and the number of the archive run; of the newest
          mark or append, copied into a new epoch: ``again``; of ``a``, if equal messages were close before it:
          ``like/`` and their number, otherwise ``text/`` and the begin of the text; of a mark or ``-``, if the message
          was marked before: ``was/`` and that mark; of ``-``, if it failed: ``failed/``, the number of failures, and
          the end of its delay in the form of a lease; of ``e``, if the message is missing from the file, or only a part
          of it is there: ``gone``; otherwise ``-``
CRC32     of the line before it
========  =======================================================================================================

An **epoch** is the time between two foreign changes: within it, positions remain valid. It is identified by the time at
which it began.

The ledger relies on the lock. It promises that a torn or damaged line is ignored. If the whole file is lost or emptied,
marks that an old buffer reverts are not recognised, and claims that are only in the ledger are forgotten. If a process
then claims a message that equals one that it had claimed before, the earlier claim looks like a user's copy. Nothing
else is lost.

**Compaction.** A message that is added, claimed and marked has three lines, and only the last one means something
later. A ledger counts such lines as it reads and writes. If half of the lines mean nothing, and they are many, it is
written again. It keeps the edits that may still be in the file, in their order: of marks, the last ``MARKS_KEPT``. It
keeps the claims in a mutex that have ended since the last foreign change, each with the line that ended it, because a
stale save may restore such a claim. The last line has the state of the file. The new file replaces the old one
atomically, under the queue's lock and without a lease on the queue file. Other processes find it by its inode.
Positions are valid within one epoch only, so a ledger of several epochs is compacted by a reconcile of the whole file.
"""

from __future__ import annotations

import errno
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from sej.system.disk import Disk, File
from sej.system.durable import renew
from textqueue.format.windows import Token, state_of
from textqueue.ledger.records import (
    AGAIN,
    APPENDED,
    CLAIMS,
    EMPTY,
    ENDS,
    FAILED,
    GIVEN_BACK,
    GONE,
    IN_MUTEX,
    MARKS,
    MARKS_KEPT,
    SET,
    STATE,
    UNSEEN,
    VISIBLE,
    WAITING,
    WAS,
    Record,
    Remembered,
    ended_claims,
    is_copy,
    records_in,
)
from textqueue.ledger.sidecar import open_sidecar, replace_sidecar

_VERSION: Final = b"2"
READ_ONLY_ERRORS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""The errors of the system if this user may only read the file."""
_READ_BYTES: Final = 1 << 16
_LEAST_LINES: Final = 1000
_BYTES: Final = 256
"""A ledger of a file of this many bytes for each line, or more, is not compacted before it is very long."""
_CHECK_BYTES: Final = 128


class Checkpoint(NamedTuple):
    """A position in a ledger: its inode, the position, and the CRC32 of the bytes before it. All 0: no ledger."""

    inode: int = 0
    position: int = 0
    check: int = 0


class Ledger:
    """The edits by this library. Not thread-safe: the source that owns it holds its lock."""

    def __init__(self, path: str, *, disk: Disk, queue: str | None = None) -> None:
        """Create a ledger object. The first edit creates the file, with the mode of the queue file."""
        self.path = path
        self._queue = queue
        self._read_only = False
        self._disk = disk
        self._file: File | None = None
        self._inode = 0
        self.reading = 0  # changes when given_back is cleared
        self.found: Token | None = None  # the file when the lock was taken
        self._forget()

    def _forget(self) -> None:
        self._read_to = 0  # lines before this position were applied
        self._torn = 0  # bytes of an incomplete last line
        self._replaced = False  # another process is about to replace this file
        self.token: Token | None = None  # the state of the queue file after the last edit
        self.last: Record | None = None  # the last edit that can be found in the file, see _follow
        self.claims: dict[int, Record] = {}  # by position
        self.owners: Counter[bytes] = Counter()  # the processes that have these claims
        self.leased: dict[int, bytes] = {}  # the owners of the claims that have a lease, by position
        self.given_back: list[int] = []  # positions of messages that were put back into the queue, in this epoch
        self.failed: dict[int, bytes] = {}  # the owners of the lines of the messages that failed, by position
        self.shown: Record | None = None  # the last mark, append or claim in a mutex, even if its message is missing
        self.epochs = 0  # the number of epochs in this file
        self.epoch = 0  # the current epoch; 0: no ledger
        self.foreign: Token = (0, 0, 0)  # the file when that epoch began: since then only this library has changed it
        self.lines = 0
        self.spent = 0  # an estimate of how many of these lines mean nothing any more
        self.compacted = 0  # the number of lines after the last compaction
        self._appends = 0  # lines of messages that were appended, and perhaps not marked since
        self._unclaimed: dict[tuple[bytes, bytes], int] = {}  # see has_claimed: up to where no such claim is
        self.reading += 1

    def refresh(self, *, look: bool = False) -> None:
        """Apply the lines that were written since the last call.

        Args:
            look: whether to check also that the open file is still the file at the path.
        """
        if self._file is not None and self._file.size() < self._read_to:  # another program emptied it
            self.close()
        if self._file is None or look or self._replaced:
            there = self._disk.status(self.path)
            if self._file is not None and (there is None or there.inode != self._inode):
                self.close()
            if there is None:
                return None
            if self._file is None:
                self._open()
        return None if self._file is None else self._read_lines(self._file, self._file.size())

    def _read_lines(self, file: File, size: int) -> None:
        """Apply the lines before a position."""
        while size > self._read_to and (data := file.read(min(size - self._read_to, _READ_BYTES), self._read_to)):
            end = data.rfind(b"\n") + 1
            if not end and len(data) == _READ_BYTES:  # no line is this long: after a power loss there may be zeros
                end = len(data)
            self._torn = len(data) - end
            self._read_to += end
            self._apply_lines(data[:end])
            if b"\n>\n" in b"\n" + data and not self._replaced:
                self._replaced = True
                return self.refresh()
            if self._read_to + self._torn >= size:
                break
        return None

    def _apply_lines(self, lines: bytes) -> None:
        for record in records_in(lines):
            self._apply(record)

    def _spend(self, marks: int) -> None:
        """Count that this many messages were marked: the lines of their appends mean nothing any more."""
        spent = min(marks, self._appends)
        self._appends -= spent
        self.spent += spent

    def append(self, records: Sequence[Record]) -> None:
        """Append lines. The caller holds the lock, and has refreshed the ledger."""
        self._write(b"".join([record.line() for record in records]), records[0].token)
        for record in records:
            self._apply(record)

    def _write(self, lines: bytes, token: Token) -> None:
        if self._file is None:
            self._open()
        assert self._file is not None
        if self._read_only:
            self._disk.open(self.path, "append").close()  # raises the error of the system
        if not self.epoch:
            first = Record(STATE, time.time_ns(), _VERSION, self.found or state_of(token), EMPTY)
            self._apply(first)
            lines = first.line() + lines
        if self._torn:
            lines = b"\n" + lines
        self._file.write(lines)
        self._read_to += self._torn + len(lines)
        self._torn = 0

    def state(self, token: Token) -> None:
        """Append a line with the current state of the file."""
        self.append([Record(STATE, self.epoch or time.time_ns(), _VERSION, token, EMPTY)])

    def move(self, shown: Record | None, claims: Sequence[Record], token: Token) -> None:
        """Begin a new epoch after lines moved and no edit was reverted.

        The caller holds the lock, and has refreshed the ledger.

        Args:
            shown: the last visible edit, with its new position; None: it is one of the claims.
            claims: the claims, with their new positions.
            token: the current state of the file.
        """
        again = [] if shown is None else [shown._replace(owner=AGAIN)]
        state = Record(STATE, time.time_ns(), _VERSION, token, EMPTY)
        self.append([state, *claims, *again, state])

    def edits(self) -> list[Record]:
        """Return the edits that may still be in the file, oldest first, the last MARKS_KEPT of each kind.

        These are the marks and the queued messages, one for each place; the variables that changed the essence of
        their message; and the claims that have not ended.
        """
        return [record for _, record in self.numbered_edits()]

    def numbered_edits(self) -> list[tuple[int, Record]]:
        """Return the edits as :meth:`edits` does, each with the number of its line in :meth:`history`."""
        return Remembered(self._records()).edits(self.claims.values())

    def history(self) -> list[Record]:
        """Return all lines, oldest first. A position is valid until the next line that begins an epoch."""
        return list(self._records())

    def _records(self) -> Iterator[Record]:
        return iter(()) if self._file is None else records_in(self._file.read(self._read_to, 0))

    def ended(self) -> dict[tuple[bytes, bytes], bool]:
        """Return essence and process of the claims in a mutex that have ended, as far as the ledger knows them.

        A claim has ended as well if its lease is over, and another process has the message.

        Returns:
            For each of them, whether its message was missing from the file then, at least once.
        """
        data = b"" if self._file is None else self._file.read(self._read_to, 0)
        return ended_claims(records_in(data)) if b"\nm " in data else {}

    def is_repeated(self, shown: Record, *, moved: bool) -> bool:
        """Return whether a mark, or a claim in a mutex, had been made before and was taken back.

        Then a buffer from before the edit may have the same bytes. The caller holds the lock.

        Args:
            shown: the mark or claim.
            moved: whether lines may have moved. Then the same mark of an equal message counts as well.
        """
        if self._file is None or shown.kind not in MARKS | {IN_MUTEX}:
            return False
        name = b" %s " % shown.digest
        lines = [line for line in self._file.read(self._read_to, 0).split(b"\n") if name in line]
        about = list(records_in(b"\n".join(lines)))
        if shown.kind == IN_MUTEX:
            return (shown.digest, shown.holder) in ended_claims(about)
        if moved and sum(record.kind in MARKS and not is_copy(record) for record in about) > 1:
            return True
        return any(record.owner == WAS + bytes([shown.kind]) for record in about)

    def has_claimed(self, name: bytes, holder: bytes, is_its: Callable[[bytes], bool]) -> bool:
        """Return whether a process has a claim in the mutex of a message, or had it. The caller holds the lock.

        Args:
            name: the digest of the message, now or before a variable was set.
            holder: the text in the mutex.
            is_its: returns whether a process has written this text.
        """
        if self._file is None:
            return False
        start = self._unclaimed.get((name, holder), 0)
        lines = self._file.read(max(self._read_to - start, 0), start)
        found = _has_claim(lines, name, is_its)
        if not found:
            self._unclaimed[name, holder] = self._read_to
        return found

    def is_wasteful(self, size: int) -> bool:
        """Return whether a compaction is worth its cost, for a queue file of this size. The ledger is refreshed."""
        lines = self.lines
        long = lines > max(_LEAST_LINES, self.compacted * 2)
        return long and (lines > 2 * MARKS_KEPT or (self.spent * 2 > lines and lines > size // _BYTES))

    def compact(self) -> None:
        """Write the ledger again, without the lines that mean nothing. It has one epoch. The caller holds the lock."""
        edits = [one for one in self.numbered_edits() if one[1].kind not in CLAIMS]
        # An edit has the essence after a variable was set; the line that ended a claim the one before, and is first.
        kept = [*(_claims(self.history()).items() - set(edits)), *edits]
        if len(kept) * 4 > self.lines * 3:  # the estimate was wrong: the lines are worth keeping
            self.compacted = len(kept)
            return
        assert self.token is not None
        kept.sort(key=lambda one: one[0])
        self.rewrite([record for _, record in kept], token=self.token)
        self.compacted = self.lines

    def rewrite(self, records: Iterable[Record], *, token: Token, epoch: int | None = None) -> None:
        """Replace the ledger. The caller holds the lock.

        Other processes notice it by the last line of the old file, or by the inode of the new one.

        Args:
            records: the edits to keep, with their current positions.
            token: the current state of the file.
            epoch: the new epoch; None: positions have not moved, so the epoch remains.
        """
        state = Record(STATE, epoch or self.epoch or time.time_ns(), _VERSION, token, EMPTY)
        first = state if epoch else state._replace(token=self.foreign)
        kept = [first, *records, state]  # each edit keeps its time; the last line has the state of the file
        if self._file is not None:
            self._file.write(b"\n>\n")
        replace_sidecar(self._disk, self.path, b"".join(record.line() for record in kept), self._queue)
        self.refresh(look=True)

    def checkpoint(self) -> Checkpoint:
        """Return the position after the last applied line."""
        if self._file is None:
            return Checkpoint()
        return Checkpoint(self._inode, self._read_to, self._check(self._read_to))

    def since(self, checkpoint: Checkpoint) -> list[Record] | None:
        """Return the lines after a position; None if it is not a position in this file."""
        if self._file is None or checkpoint.inode != self._inode or checkpoint.position > self._read_to:
            return [] if self._file is None and checkpoint == Checkpoint() else None
        if self._check(checkpoint.position) != checkpoint.check:
            return None
        return list(records_in(self._file.read(self._read_to - checkpoint.position, checkpoint.position)))

    def _check(self, position: int) -> int:
        assert self._file is not None
        size = min(position, _CHECK_BYTES)
        return zlib.crc32(self._file.read(size, position - size))

    def sync(self, start: int = 0) -> None:
        """Sync the ledger to disk. The caller holds the lock.

        Args:
            start: the bytes before this position are known to be on disk.
        """
        if self._file is not None and not self._read_only:
            renew(self._disk, self._file, start, self._read_to)
            self._file.sync()

    def close(self) -> None:
        """Close the file and forget what was read."""
        if self._file is not None:
            self._file.close()
        self._file = None
        self._forget()

    def _open(self) -> None:
        self._forget()
        self._read_only = False
        try:
            self._file = open_sidecar(self._disk, self.path, self._queue)
        except OSError as error:
            if error.errno not in READ_ONLY_ERRORS:
                raise
            self._file = self._disk.open(self.path, "read")  # a user who may only read needs the ledger, too
            self._read_only = True
        self._inode = self._file.status().inode

    def _apply(self, record: Record) -> None:
        self.lines += 1
        self.token = state_of(record.token)
        if record.kind == APPENDED:
            self._appends += 1
        elif record.kind in MARKS:
            self._spend(1)
        elif record.kind in WAITING or record.kind == STATE:
            self.spent += 1
        if record.kind == STATE:
            if record.position != self.epoch:
                self.last = None
                self.epochs += 1
                self.spent += len(self.claims) + 1  # and the edit that is copied
                self.claims.clear()
                self.owners.clear()
                self.leased.clear()
                self.given_back.clear()
                self.failed.clear()
                self.foreign = state_of(record.token)
            self.epoch = record.position
            return
        if record.position >= 0:
            self._follow(record)
        if record.kind in VISIBLE:
            self.shown = record
        if record.kind in CLAIMS:
            self._unclaim(record.position)
            self._add_claim(record)
        elif record.kind in ENDS:
            self._unclaim(record.position)
            if record.kind == GIVEN_BACK:
                self._give_back(record)
        elif record.kind == SET and record.position in self.claims:
            self.claims[record.position] = self.claims[record.position]._replace(digest=record.digest)

    def _follow(self, record: Record | None) -> None:
        """Let an edit be the last one, unless it cannot be found in the file and the one before it still can.

        A save of an old buffer within the same tick of the clock is found by the last edit alone. It would not be found
        by a claim that is in the ledger only, because the old buffer has the same bytes there.
        """
        last = self.last
        if record is not None and (last is None or record.kind not in UNSEEN or record.position == last.position):
            self.last = record

    def _add_claim(self, record: Record) -> None:
        holder = record.holder
        self.claims[record.position] = record
        self.owners[holder] += 1
        if holder != record.owner:
            self.leased[record.position] = record.owner

    def _give_back(self, record: Record) -> None:
        self.given_back.append(record.position)
        if record.owner.startswith(FAILED):
            self.failed[record.position] = record.owner
        else:
            self.failed.pop(record.position, None)

    def _unclaim(self, position: int) -> None:
        if (claim := self.claims.pop(position, None)) is not None:
            self.spent += claim.kind != IN_MUTEX  # a compaction keeps that line
            holder = claim.holder
            self.owners[holder] -= 1
            if not self.owners[holder]:
                del self.owners[holder]
            self.leased.pop(position, None)


def _has_claim(lines: bytes, name: bytes, is_its: Callable[[bytes], bool]) -> bool:
    """As ``Ledger.has_claimed``, in some lines. The newest ones are read first."""
    names = [name]
    for one in names:
        at = len(lines)
        while (at := lines.rfind(b" %s " % one, 0, at)) >= 0:
            end, at = lines.find(b"\n", at), lines.rfind(b"\n", 0, at) + 1
            for record in records_in(lines[at:end]) if lines[at] in (IN_MUTEX, SET) else ():
                if record.digest == one and record.kind == IN_MUTEX and is_its(record.holder):
                    return True
                if record.digest == one and record.kind == SET and record.owner not in names:
                    names.append(record.owner)
    return False


def _claims(history: Iterable[Record]) -> dict[int, Record]:
    """Return the lines about claims that matter, by number.

    These are the first and the last line of each open claim: the last has the end of its lease. Of each claim in a
    mutex that has ended, they are the claim and the line that ended it. Of several such claims of one process on equal
    messages, the first one is enough: it has the number that a later one gets (``Remembered``).
    """
    first: dict[int, tuple[int, Record]] = {}  # of the open claims, by position
    last: dict[int, tuple[int, Record]] = {}
    ended: dict[tuple[bytes, bytes, bytes, bool], tuple[tuple[int, Record], tuple[int, Record]]] = {}
    for number, record in enumerate(history):
        at = record.position
        if record.kind in CLAIMS:
            if at not in last or last[at][1].holder != record.holder:
                first[at] = number, record
            last[at] = number, record
        elif record.kind in ENDS and at in last:
            claim = last.pop(at)
            if claim[1].kind == IN_MUTEX:
                name = claim[1].digest, record.digest, claim[1].holder, record.owner == GONE
                pair = claim, (number, record)
                ended[name] = min(ended.get(name, pair), pair, key=lambda one: one[0][0])
    lines = [line for pair in ended.values() for line in pair]
    return dict([*lines, *(first[at] for at in last), *last.values()])
