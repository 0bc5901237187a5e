"""The waiting entries of a queue that may be longer than memory.

The head of the queue is in memory, up to a limit. The rest is in the journal only and is read when the head has been
taken (the original calls this read-behind). The journal is read from the place of the first entry that is
not in memory; operations other than adds are passed over there, because their effect is in memory already.

What each operation does is in :meth:`Backlog.apply`. Where document and original disagree it follows the document: a
REMOVE_TENTATIVE (3) takes the xid of its ADD_XID, or the next free one. See ``docs/formats/kestrel-2.md``.

Memory is charged by the data and what Python adds to each item, so the limit is what the process really holds.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import closing
from typing import Final

from kestrel.errors import DamageError, KestrelError
from kestrel.fast import Entry, Rows
from kestrel.reading import Cursor
from kestrel.v2 import format as opcodes
from kestrel.v2.format import ADDX_HEAD, MAX_XID, MIN_XID, Operation
from kestrel.v2.items import ENTRY_BYTES, Row
from kestrel.v2.storage import Pieces
from sej.system.disk import of_system

_READ_STEP: Final = 100
MEMORY_PER_BYTE: Final = -(-ENTRY_BYTES // ADDX_HEAD.size)
"""The most bytes of memory for each byte of an item in a file."""


def next_xid(last: int, taken: Container[int]) -> int:
    """The transaction id after last: over the top to the negative ones, never 0, never one that is open."""
    while True:
        last = MIN_XID if last >= MAX_XID else last + 1
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
