"""An item, and the row that it is on its way through a queue."""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple


class Item(NamedTuple):
    """One item of a queue.

    Attributes:
        data: its bytes.
        add_time: when it was put, in ms since the epoch; None for those of opcode 0, which did not write it.
        expiry: when it expires, in ms since the epoch; 0: never.
    """

    data: bytes
    add_time: int | None
    expiry: int


Row = tuple[int, bytes, int | None, int, int]
"""An item on its way through a queue: its number, data, add_time and expiry, and an xid.

The number counts the items of this replay in the order in which they were added. The xid is the transaction that an
ADD_XID gave it, until it is reserved; 0: none. A plain tuple of plain values leaves the sight of the garbage collector.
"""

ENTRY_BYTES: Final = 240
"""The memory of a row without its data: a tuple, two integers, the bytes object and its place in the deque."""

_new_item: Final = partial(tuple.__new__, Item)  # half the time of Item(...)


def item_of(row: Row) -> Item:
    """The item that a row is."""
    return _new_item(row[1:4])


class Counters(NamedTuple):
    """What the original counts, by its names. What is not a size counts from the opening of the queue.

    Attributes:
        items: waiting.
        bytes: of these.
        total_items: put, those that the replay at the opening found included.
        logsize: bytes of the current file.
        expired_items: that expired.
        mem_items: waiting items that are in memory.
        mem_bytes: of these.
        age: ms since the item that was taken last was put, while data waits; before the first one since 1970.
        discarded: dropped at a limit.
        waiters: calls that wait for an item.
        open_transactions: reserved items.
        transactions: calls of reserve that found items waiting, expired ones included.
        canceled_transactions: that were put back.
        total_flushes: calls of flush.
        journal_rewrites: how often the journal was rewritten.
        journal_rotations: how often a file was ended.
    """

    items: int
    bytes: int
    total_items: int
    logsize: int
    expired_items: int
    mem_items: int
    mem_bytes: int
    age: int
    discarded: int
    waiters: int
    open_transactions: int
    transactions: int
    canceled_transactions: int
    total_flushes: int
    journal_rewrites: int
    journal_rotations: int
