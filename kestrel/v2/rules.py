"""What each operation does to the items that wait and to the open transactions.

Where document and original disagree this follows the document: a REMOVE_TENTATIVE (3) takes the xid of its ADD_XID, or
the next free one. See ``docs/formats/kestrel-2.md``.
"""

from __future__ import annotations

from typing import Protocol

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
from kestrel.v2.items import Row, next_xid


class Store(Protocol):
    """The rows that wait, head first: a deque, or one that leaves most of a long queue on the disk."""

    def append(self, row: Row, /) -> None:
        """Add at the end."""

    def appendleft(self, row: Row, /) -> None:
        """Put back at the head."""

    def popleft(self) -> Row:
        """Take the head; IndexError if the store is empty."""


class Transactions(Protocol):
    """The open transactions, and what is counted: a :class:`~kestrel.v2.hot.Reserving`."""

    open: dict[int, Row]
    last_xid: int
    added: int
    taken_add_time: int


def apply(reserving: Transactions, waiting: Store, operation: Operation) -> None:
    """Do what one operation says; what it finds no item or transaction for is ignored, as the original does.

    Args:
        reserving: the open transactions.
        waiting: the rows that wait.
        operation: any but a state dump.
    """
    opcode, xid = operation.opcode, operation.xid or 0
    if operation.data is not None:
        if opcode == CONTINUE:
            reserving.open.pop(xid, None)
        add_time, expiry = operation.add_time, operation.expiry or 0
        waiting.append((reserving.added, operation.data, add_time, expiry, xid if opcode == ADD_XID else 0))
        reserving.added += 1
    elif opcode == REMOVE:
        _take(reserving, waiting)
    elif opcode == REMOVE_TENTATIVE_XID:
        reserving.last_xid = xid
        _reserve(reserving, _take(reserving, waiting), xid)
    elif opcode == REMOVE_TENTATIVE:
        row = _take(reserving, waiting)
        if row is None or not row[4]:
            reserving.last_xid = next_xid(reserving.last_xid, reserving.open)
        _reserve(reserving, row, row[4] if row is not None and row[4] else reserving.last_xid)
    elif opcode == CONFIRM_REMOVE:
        reserving.open.pop(xid, None)
    elif opcode == UNREMOVE:
        found = reserving.open.pop(xid, None)
        if found is not None:
            waiting.appendleft(found)
    elif opcode == SAVE_XID:
        reserving.last_xid = xid


def _take(reserving: Transactions, waiting: Store) -> Row | None:
    try:
        row = waiting.popleft()
    except IndexError:
        return None
    if row[2] is not None:
        reserving.taken_add_time = row[2]
    return row


def _reserve(reserving: Transactions, row: Row | None, xid: int) -> None:
    if row is not None:
        reserving.open[xid] = (*row[:4], 0) if row[4] else row
