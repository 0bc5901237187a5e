"""What a journal adds up to: the rules of the operations, and a queue's state by them.

:class:`Machine` is the one place that knows what an operation does. It is handed a store for the queue's rows: a
plain deque here, one that leaves most of a long queue on the disk in ``backlog``.

Where document and original disagree this follows the document: a REMOVE_TENTATIVE (3) takes the xid of its ADD_XID, or
the next free one. See ``docs/formats/kestrel-2.md``.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from kestrel.errors import BusyError, Damage, DamageError, MissingError
from kestrel.files import check_place, join
from kestrel.v2.codec import Operation
from kestrel.v2.format import (
    ADD_XID,
    CONFIRM_REMOVE,
    CONTINUE,
    REMOVE,
    REMOVE_TENTATIVE,
    REMOVE_TENTATIVE_XID,
    SAVE_XID,
    UNREMOVE,
)
from kestrel.v2.hot import Reserving
from kestrel.v2.items import Item, Row, item_of, next_xid
from kestrel.v2.journal import DIALECT, Dialect, read_journal
from kestrel.v2.listing import Part, list_parts
from sej.system.disk import OS, Disk

__all__ = ["Machine", "State", "Store", "read_part", "replay"]

_TRIES: Final = 20


class Store(Protocol):
    """The rows that wait, head first."""

    def append(self, row: Row, /) -> None:
        """Add at the end."""

    def appendleft(self, row: Row, /) -> None:
        """Put back at the head."""

    def popleft(self) -> Row:
        """Take the head; IndexError if the store is empty."""


class Machine(Reserving):
    """Applies operations to a store of waiting rows and a table of open transactions.

    Attributes:
        waiting: the store.
    """

    def __init__(self, waiting: Store) -> None:
        super().__init__()
        self.waiting = waiting

    def apply(self, operation: Operation) -> None:
        """Do what one operation says; what it finds no item or transaction for is ignored, as the original does."""
        opcode, xid = operation.opcode, operation.xid or 0
        if operation.data is not None:
            if opcode == CONTINUE:
                self.open.pop(xid, None)
            add_time, expiry = operation.add_time, operation.expiry or 0
            self.waiting.append((self.added, operation.data, add_time, expiry, xid if opcode == ADD_XID else 0))
            self.added += 1
        elif opcode == REMOVE:
            self._take()
        elif opcode == REMOVE_TENTATIVE_XID:
            self.last_xid = xid
            self._reserve(self._take(), xid)
        elif opcode == REMOVE_TENTATIVE:
            row = self._take()
            if row is None or not row[4]:
                self.last_xid = next_xid(self.last_xid, self.open)
            self._reserve(row, row[4] if row is not None and row[4] else self.last_xid)
        elif opcode == CONFIRM_REMOVE:
            self.open.pop(xid, None)
        elif opcode == UNREMOVE:
            found = self.open.pop(xid, None)
            if found is not None:
                self.waiting.appendleft(found)
        elif opcode == SAVE_XID:
            self.last_xid = xid

    def _take(self) -> Row | None:
        try:
            row = self.waiting.popleft()
        except IndexError:
            return None
        if row[2] is not None:
            self.taken_add_time = row[2]
        return row

    def _reserve(self, row: Row | None, xid: int) -> None:
        if row is not None:
            self.open[xid] = (*row[:4], 0) if row[4] else row


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

    If a process rotates or rewrites the files meanwhile, they are read again.

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
        BusyError: the queue replaces its files faster than they can be read.
    """
    check_place(directory, name, disk)
    DIALECT("dialect", dialect)
    for _ in range(_TRIES):
        parts = list_parts(directory, name, disk).parts
        before = _identities(parts, disk)
        try:
            state = _replay(parts, dialect, disk)
        except MissingError:
            continue
        if _identities(list_parts(directory, name, disk).parts, disk) == before:
            return state
    raise BusyError(
        f"the files were replaced {_TRIES} times while they were read; read them when the queue is less busy",
        path=join(directory, name),
    )


def _identities(parts: list[Part], disk: Disk) -> list[object]:
    """Return what identifies these files, independent of appended bytes."""
    found: list[object] = []
    for part in parts:
        status = disk.status(part.path)
        found.append((part, status and status.identity))
    return found


def _replay(parts: list[Part], dialect: Dialect, disk: Disk) -> State:
    rows: deque[Row] = deque()
    machine = Machine(rows)
    damage: list[Damage] = []
    for part in parts:
        for operation in read_part(part, damage, dialect=dialect, disk=disk):
            machine.apply(operation)
    return State(
        [item_of(row) for row in rows],
        {xid: item_of(row) for xid, row in sorted(machine.open.items())},
        machine.last_xid,
        damage,
        [part.path for part in parts],
    )


def read_part(
    part: Part,
    damage: list[Damage],
    *,
    dialect: Dialect = "auto",
    start: int = 0,
    end: int | None = None,
    disk: Disk = OS,
) -> Iterator[Operation]:
    """The operations of one file that count: up to damage, which is noted, or to the state dump that ends it."""
    try:
        for operation in read_journal(part.path, dialect=dialect, start=start, end=end, disk=disk):
            if operation.count is not None:
                return
            yield operation
    except DamageError as error:
        damage.append(Damage(part.path, error.position or 0, error.reason))
