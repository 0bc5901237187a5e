"""An item, and the row that it is on its way through a queue."""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from kestrel.v2.format import MAX_XID, MIN_XID


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


def check_xid(xid: object) -> None:
    """Refuse what no transaction can be open under, instead of not finding it."""
    if not isinstance(xid, int):
        raise TypeError(f"xid must be an int, got {type(xid).__name__}; `reserve` returns it and the item: xid, item")


def next_xid(last: int, taken: dict[int, Row]) -> int:
    """The transaction id after last: over the top to the negative ones, never 0, never one that is open."""
    while True:
        last = MIN_XID if last >= MAX_XID else last + 1
        if last and last not in taken:
            return last
