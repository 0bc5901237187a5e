"""What a journal adds up to: what waits and is reserved, by the rules of the operations; and making it small again.

The waiting entries of a queue may be more than memory holds. The head of the queue is in memory, up to a limit. The
rest is in the journal only and is read when the head has been taken (the original calls this read-behind). The journal
is read from the place of the first entry that is not in memory; operations other than adds are passed over there,
because their effect is in memory already. Memory is charged by the data and what Python adds to each item, so the limit
is what the process really holds.

What each operation does is in :meth:`Backlog.apply`. Where document and original disagree it follows the document: a
REMOVE_TENTATIVE (3) takes the xid of its ADD_XID, or the next free one. See ``docs/formats/kestrel-2.md``.

A rewrite replaces all files by one with the whole state. It is for queues that fit into memory.

A queue in read-behind is packed at checkpoints. When the reader has passed the end of a rotated file, that file and all
older ones are replaced by one file that leads to the same state, but has no data for removed items. Removed items keep
their places, because the newer files still have the operations that remove them. All other items before the checkpoint
are in memory, because the reader has passed them.

The original writes the transactions opened since the checkpoint first, and after them one empty item for each remove.
So if removes and reserves are mixed, a reserve may find an empty item. Here each item keeps its place.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Final, NamedTuple

from kestrel.errors import Damage, DamageError, KestrelError
from kestrel.fast import Entry, Rows
from kestrel.files import Place
from kestrel.reading import Cursor, Pinned, opened
from kestrel.v2 import format as opcodes
from kestrel.v2.format import Operation, addx, xid_operation
from kestrel.v2.items import ENTRY_BYTES, Item, Row, item_of
from kestrel.v2.journal import DIALECT, Dialect, Pieces, pinned_pieces
from sej.system.disk import OS, Disk, of_system

_READ_STEP: Final = 100
MEMORY_PER_BYTE: Final = -(-ENTRY_BYTES // opcodes.ADDX_HEAD.size)
"""The most bytes of memory for each byte of an item in a file."""


def next_xid(last: int, taken: Container[int]) -> int:
    """The transaction id after last: over the top to the negative ones, never 0, never one that is open."""
    while True:
        last = opcodes.MIN_XID if last >= opcodes.MAX_XID else last + 1
        if last and last not in taken:
            return last


class Backlog(Rows):
    """The waiting entries with a limit on those in memory, and the open transactions.

    Attributes:
        place: the piece and position of the operation whose entry is appended next; set by the caller.
    """

    def __init__(self, pieces: Pieces, limit_bytes: int) -> None:
        super().__init__()
        self.place: tuple[Entry, int] | None = None
        self._pieces = pieces
        self._limit_bytes = limit_bytes
        self.next_number = 0
        self._adds: Cursor | None = None

    def __len__(self) -> int:
        return len(self.memory) + self.behind

    @property
    def piece(self) -> Entry | None:
        """The piece that is read from; None while everything is in memory."""
        return None if self._adds is None else self._adds.entry

    @property
    def data_bytes(self) -> int:
        """The data of all waiting entries."""
        return self.memory_bytes + self.behind_bytes

    @property
    def room(self) -> int:
        """The bytes that are left of the limit."""
        return self._limit_bytes - self.memory_bytes - ENTRY_BYTES * len(self.memory)

    def append(self, row: Row) -> None:
        """Add at the end: in memory, or only counted if that is full."""
        size = len(row[1])
        if row[3]:
            self.expiring = True
        if not self.behind:
            if self.memory_bytes + ENTRY_BYTES * len(self.memory) < self._limit_bytes:
                self.memory.append(row)
                self.memory_bytes += size
                return
            assert self.place is not None
            self.next_number = row[0]
            self._count_enough()
            self._adds = Cursor(self._pieces, *self.place)
        self.behind += 1
        self.behind_bytes += size

    def appendleft(self, row: Row) -> None:
        """Put back at the head."""
        self.memory.appendleft(row)
        self.memory_bytes += len(row[1])

    def popleft(self) -> Row:
        """Take the head."""
        if not self.memory:
            self._fill()
        row = self.memory.popleft()
        self.memory_bytes -= len(row[1])
        return row

    def apply(self, piece: Entry, operations: list[Operation]) -> bool:
        """Do what the next operations of a piece say. False if a state dump ended it: its size says where.

        What an operation finds no item or transaction for is ignored, as the original does.
        """
        at = 0
        while (at := self.replay(operations, at, self._limit_bytes)) < len(operations):
            operation = operations[at]
            if operation.count is not None:
                piece.size = operation.position
                return False
            self.place = (piece, operation.position)
            self._apply(operation)
            at += 1
        return True

    def _apply(self, operation: Operation) -> None:
        opcode, xid = operation.opcode, operation.xid or 0
        if operation.data is not None:
            if opcode == opcodes.CONTINUE:
                self.open.pop(xid, None)
            self.append(_row(operation, self.added))
            self.added += 1
        elif opcode == opcodes.REMOVE:
            self._take()
        elif opcode == opcodes.REMOVE_TENTATIVE_XID:
            self.last_xid = xid
            self._reserve(self._take(), xid)
        elif opcode == opcodes.REMOVE_TENTATIVE:
            row = self._take()
            if row is None or not row[4]:
                self.last_xid = next_xid(self.last_xid, self.open)
            self._reserve(row, row[4] if row is not None and row[4] else self.last_xid)
        elif opcode == opcodes.CONFIRM_REMOVE:
            self.open.pop(xid, None)
        elif opcode == opcodes.UNREMOVE:
            found = self.open.pop(xid, None)
            if found is not None:
                self.appendleft(found)
        elif opcode == opcodes.SAVE_XID:
            self.last_xid = xid

    def _take(self) -> Row | None:
        if not self:
            return None
        row = self.popleft()
        if row[2] is not None:
            self.taken_add_time = row[2]
        return row

    def _reserve(self, row: Row | None, xid: int) -> None:
        if row is not None:
            self.open[xid] = (*row[:4], 0) if row[4] else row

    def head(self) -> Row | None:
        """The head, which stays; reads what has room in memory, many entries at a time."""
        if self.behind and len(self.memory) <= self.enough:
            self._fill()
        return self.memory[0] if self.memory else None

    def _fill(self) -> None:
        """Read entries into memory while there is room, at least one if there are any."""
        fuse = self._pieces.fuse
        memory = self.memory
        live, fuse.live = fuse.live, False
        try:
            while self.behind and (not memory or self.room > 0):
                assert self._adds is not None
                row = _row(_next_add(self._adds), self.next_number)
                self.next_number += 1
                self.behind -= 1
                memory.append(row)
                self.memory_bytes += len(row[1])
                self.behind_bytes -= len(row[1])
        except Exception as error:
            if isinstance(error, KestrelError) or of_system(error):  # reading failed, and nothing was taken by it
                fuse.live = live
            raise  # a signal's handler may raise any other exception, after something was taken
        if not self.behind:
            self._drop_adds()
        self._count_enough()
        fuse.live = live

    def _count_enough(self) -> None:
        """After memory was filled: let some entries be taken before the next ones are read."""
        count = len(self.memory)
        self.enough = count - min(_READ_STEP, count // 2)

    def rows(self) -> Iterator[Row]:
        """All waiting entries, head first; those that are in the journal only are read and not kept."""
        yield from self.memory
        if self.behind:
            assert self._adds is not None
            with closing(self._adds.copy()) as adds:
                for number in range(self.next_number, self.next_number + self.behind):
                    yield _row(_next_add(adds), number)

    def clear(self) -> None:
        """Forget all that wait."""
        self.memory.clear()
        self.memory_bytes = self.behind = self.behind_bytes = 0
        self._drop_adds()

    def _drop_adds(self) -> None:
        adds, self._adds = self._adds, None
        if adds is not None:
            adds.close()

    def reread(self) -> None:
        """Forget what was read ahead: a piece ends before its damage, and other bytes may come in its place."""
        adds = self._adds
        if adds is not None:
            self._adds = adds.copy()
            adds.close()

    close = clear


def _next_add(adds: Cursor) -> Operation:
    """The next operation that adds something. Raises as :meth:`~kestrel.reading.Reading.batches`."""
    while (operation := adds.record()) is not None:
        if operation.data is not None:
            assert isinstance(operation, Operation)
            return operation
    raise DamageError(
        "an item that was written is not in the journal any more: another program changed the file; close the queue and"
        " open it again",
        path=None if adds.entry is None else adds.entry.path,
        position=adds.position,
    )


def _row(operation: Operation, number: int) -> Row:
    """What an adding operation adds."""
    xid = (operation.xid or 0) if operation.opcode == opcodes.ADD_XID else 0
    return number, operation.data or b"", operation.add_time, operation.expiry or 0, xid


_ALL: Final = 1 << 62
_BLOCK: Final = 1 << 18
_RUN: Final = 1 << 12


class Checkpoint(NamedTuple):
    """The state at the end of a rotated file, by numbers alone.

    Attributes:
        piece: that file.
        open: the open transactions and their entries' numbers.
        waiting: the waiting entries as ranges of numbers, head first.
        added: the number of the first entry that a newer file adds.
        last_xid: the transaction id that was used last.
    """

    piece: Entry
    open: dict[int, int]
    waiting: list[range]
    added: int
    last_xid: int

    @classmethod
    def of(cls, piece: Entry, backlog: Backlog) -> Checkpoint:
        """The state as it is now, at the end of piece."""
        waiting: list[range] = []
        for number, *_ in backlog.memory:
            if waiting and waiting[-1].stop == number:
                waiting[-1] = range(waiting[-1].start, number + 1)
            else:
                waiting.append(range(number, number + 1))
        if backlog.behind:
            waiting.append(range(backlog.next_number, backlog.added))
        open_ = {xid: row[0] for xid, row in backlog.open.items()}
        return cls(piece, open_, waiting, backlog.added, backlog.last_xid)


def load(journal: Pieces, backlog: Backlog) -> tuple[list[Damage], list[Checkpoint]]:
    """Replay files into a backlog, which bounds the memory; sets the sizes of its pieces to what is good of them.

    Returns:
        What was unreadable, and the states at the ends of files at which the queue was in read-behind.
    """
    damage, checkpoints = [], []
    for piece in journal.pieces:
        try:
            with opened(journal.source, piece.path) as file:
                for batch in journal.reading(file, 0, piece.size).batches():
                    if not backlog.apply(piece, batch):
                        break
        except DamageError as error:
            piece.size = error.position or 0
            damage.append(Damage(piece.path, piece.size, error.reason))
        backlog.reread()
        if backlog.behind and piece is not journal.pieces[-1]:
            checkpoints.append(Checkpoint.of(piece, backlog))
    return damage, checkpoints


class State(NamedTuple):
    """What a queue holds.

    Attributes:
        items: head first.
        open_transactions: the reserved items by xid, ascending.
        last_xid: the transaction id that was used last.
        damage: what was unreadable; each file counts up to there.
        files: the files that were read, in that order.
    """

    items: list[Item]
    open_transactions: dict[int, Item]
    last_xid: int
    damage: list[Damage]
    files: list[str]

    @property
    def recovered(self) -> list[Item]:
        """The items with the open ones put back, the lowest xid at the head, as opening the queue would."""
        return [*self.open_transactions.values(), *self.items]


def replay(directory: str | os.PathLike[str], name: str, *, dialect: Dialect = "auto", disk: Disk = OS) -> State:
    """What a queue's journal adds up to; changes nothing, takes no lock and holds all of it in memory.

    If a process rotates or rewrites the files while they are opened, they are opened again.

    Args:
        directory: where the files are.
        name: the queue.
        dialect: what opcode 8 means.
        disk: the seam.

    Returns:
        The state. Damage is in it, never raised; every file counts up to its first unreadable place.

    Raises:
        MissingError: the directory does not exist.
        BadNameError: no queue can have this name.
        BusyError: the queue replaces its files faster than they can be opened.
    """
    DIALECT("dialect", dialect)
    with closing(Pinned(Place.of(directory, name, disk))) as snapshot:
        journal = pinned_pieces(snapshot, dialect)
        backlog = Backlog(journal, _ALL)
        damage, _ = load(journal, backlog)
    return State(
        [item_of(row) for row in backlog.memory],
        {xid: item_of(row) for xid, row in sorted(backlog.open.items())},
        backlog.last_xid,
        damage,
        [piece.path for piece in journal.pieces],
    )


def dump(backlog: Backlog, now_ms: int) -> Iterator[bytes]:
    """A whole state as operations, in blocks: replayed, it is the same state with the same last xid.

    Args:
        backlog: what waits, and the open transactions.
        now_ms: the add time of items that have none.
    """
    waiting = (_add(row, now_ms) for row in backlog.rows())
    return _blocks(_dump(backlog.open, waiting, backlog.last_xid, now_ms))


def packed(checkpoint: Checkpoint, alive: dict[int, Row], now_ms: int) -> Iterator[bytes]:
    """A checkpoint's state as operations, in blocks; items that are not alive any more without their data."""
    open_ = {xid: alive.get(number) for xid, number in checkpoint.open.items()}
    return _blocks(_dump(open_, _remaining(checkpoint.waiting, alive, now_ms), checkpoint.last_xid, now_ms))


def _remaining(waiting: list[range], alive: dict[int, Row], now_ms: int) -> Iterator[bytes]:
    """What waited at a checkpoint; many items that are gone in one part, because a long queue has millions."""
    order, gone = sorted(alive), _add(None, now_ms)
    for numbers in waiting:
        here = order[bisect_left(order, numbers.start) : bisect_left(order, numbers.stop)]
        at = numbers.start
        for number in (*here, numbers.stop):
            for first in range(at, number, _RUN):
                yield gone * min(_RUN, number - first)
            if number < numbers.stop:
                yield _add(alive[number], now_ms)
            at = number + 1


def _dump(open_: Mapping[int, Row | None], waiting: Iterable[bytes], last_xid: int, now_ms: int) -> Iterator[bytes]:
    for xid in sorted(open_, key=lambda xid: (xid == last_xid, xid)):  # a replay ends with the one that was used last
        yield _add(open_[xid], now_ms)
        yield xid_operation(opcodes.REMOVE_TENTATIVE_XID, xid)
    unused = b""
    if last_xid and last_xid not in open_:
        # This makes it the last one that was used, in operations that every Kestrel 2 reads; only while nothing waits.
        used = opcodes.REMOVE_TENTATIVE_XID, opcodes.CONFIRM_REMOVE
        unused = addx(b"", 0) + b"".join(xid_operation(opcode, last_xid) for opcode in used)
    if open_:
        yield unused
        unused = b""
    for part in waiting:  # an empty queue is left empty
        yield unused + part
        unused = b""


def _add(row: Row | None, now_ms: int) -> bytes:
    """An item; None: one that is gone, without its data."""
    if row is None:
        return addx(b"", 0)
    _, data, add_time, expiry, _ = row
    return addx(data, now_ms if add_time is None else add_time, expiry)


def _blocks(parts: Iterable[bytes]) -> Iterator[bytes]:
    block: list[bytes] = []
    size = 0
    for part in parts:
        block.append(part)
        size += len(part)
        if size >= _BLOCK:
            yield b"".join(block)
            block, size = [], 0
    if block:
        yield b"".join(block)
