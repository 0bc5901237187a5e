"""Decoding and encoding of operations. No I/O.

:func:`decode` has three results: an :class:`Operation`; None if more bytes are needed; :class:`DamageError` if the
bytes are not an operation. Positions in results and errors count from the start of the file of the bytes.

Opcode 8 means CONTINUE in every released program, and STATE_DUMP in the document. The bytes in a buffer do not tell
which one it is, so the caller passes it; ``journal`` looks ahead in the file.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kestrel.errors import DamageError
from kestrel.fast import Table
from kestrel.v2.format import (
    ADD,
    ADDX,
    ADDX_BLOCK,
    ADDX_HEAD,
    CONTINUE,
    LAYOUTS,
    MAX_ITEM_SIZE,
    REMOVE,
    STATE_DUMP,
    XID_BLOCK,
    XID_OP,
    struct_of,
)


class Operation(NamedTuple):
    """One operation of a journal. What its opcode does not have is None.

    Attributes:
        position: its first byte in the file.
        opcode: 0 to 9.
        xid: the transaction.
        add_time: milliseconds since the epoch; opcode 0 has none.
        expiry: milliseconds since the epoch; 0: never.
        data: the item.
        count: how many open transactions follow a STATE_DUMP.
    """

    position: int
    opcode: int
    xid: int | None = None
    add_time: int | None = None
    expiry: int | None = None
    data: bytes | None = None
    count: int | None = None  # type: ignore[assignment]  # a tuple's own count has no use here

    @property
    def name(self) -> str:
        """The operation's name, as the documents write it."""
        return (LAYOUTS[self.opcode] if self.count is None else STATE_DUMP).name

    @property
    def size(self) -> int:
        """All its bytes in the file, the opcode included."""
        layout = LAYOUTS[self.opcode] if self.count is None else STATE_DUMP
        return 1 + layout.head.size + len(self.data or b"")


def whole_size(data: bytes, at: int = 0, position: int = 0, *, dump: bool = False) -> int | None:
    """How many bytes the operation at ``at`` takes; None while its size is not to be seen yet.

    Args:
        data: bytes of a journal.
        at: where in them the operation begins.
        position: where in the file that is, for errors.
        dump: whether opcode 8 is STATE_DUMP.

    Raises:
        DamageError: the opcode is unknown, or the size too small for what it must cover.
    """
    if at >= len(data):
        return None
    layout = LAYOUTS.get(data[at])
    if layout is None:
        way_out = (
            "the rest of this file cannot be read; open the queue, which copies those bytes to kept/"
            if position
            else "no queue is opened with this file; move it away if it is another program's"
        )
        raise DamageError(
            f"{data[at]} is not an opcode, expected 0 to 9; {way_out}, or restore the file from a copy",
            position=position,
        )
    if layout.opcode == CONTINUE and dump:
        layout = STATE_DUMP
    if not layout.stamps_size:
        return 1 + layout.head.size
    size_at = at + (5 if "xid" in layout.fields else 1)
    if size_at + 4 > len(data):
        return None
    size = int.from_bytes(data[size_at : size_at + 4], "little", signed=True)
    if size < layout.stamps_size:
        raise DamageError(
            f"{layout.name} of size {size}, which must be at least {layout.stamps_size}; the rest of this file cannot"
            " be read; open the queue, which copies those bytes to kept/, or restore the file from a copy",
            position=position,
        )
    return size_at + 4 - at + size


def decode(data: bytes, at: int = 0, position: int = 0, *, dump: bool = False) -> Operation | None:
    """The operation at ``at``; None while it is not all there. Arguments and errors as for :func:`whole_size`."""
    size = whole_size(data, at, position, dump=dump)
    if size is None or at + size > len(data):
        return None
    layout = STATE_DUMP if dump and data[at] == CONTINUE else LAYOUTS[data[at]]
    values = dict(zip(layout.fields, layout.head.unpack_from(data, at + 1), strict=False))
    if layout.opcode == ADD:
        values["expiry"] = values["expiry_s"] * 1000
    return Operation(
        position,
        layout.opcode,
        values.get("xid"),
        values.get("add_time"),
        values.get("expiry"),
        data[at + 1 + layout.head.size : at + size] if layout.stamps_size else None,
        values.get("count"),
    )


PLAIN: Final = Table(
    Operation,
    "opcode",
    MAX_ITEM_SIZE,
    [
        (layout.opcode, layout.fields, struct_of(layout), layout.stamps_size)
        for layout in LAYOUTS.values()
        if layout.opcode not in (ADD, CONTINUE)  # one has its expiry in seconds, the other one two meanings
    ],
)
"""All operations whose opcode alone tells what they are."""


def addx(data: bytes, add_time: int, expiry: int = 0) -> bytes:
    """The bytes of an ADDX."""
    return ADDX_HEAD.pack(ADDX, ADDX_BLOCK + len(data), add_time, expiry) + data


def continue_(xid: int, data: bytes, add_time: int, expiry: int = 0) -> bytes:
    """The bytes of a CONTINUE: close transaction xid and add an item, as one operation."""
    return XID_BLOCK.pack(CONTINUE, xid, ADDX_BLOCK + len(data), add_time, expiry) + data


def xid_operation(opcode: int, xid: int) -> bytes:
    """The bytes of an operation that has an xid and nothing else."""
    return XID_OP.pack(opcode, xid)


def removes(count: int) -> bytes:
    """The bytes of count REMOVEs."""
    return bytes((REMOVE,)) * count
