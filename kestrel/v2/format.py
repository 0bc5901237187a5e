"""The operations of a Kestrel 2 journal: opcodes, fields and limits; decoding and encoding them. No I/O.

Sources: "Kestrel journal format" for opcodes 0 to 8; the released programs for opcode 9 and for the other meaning of 8,
which the document does not know. All integers are little endian and signed. A ``size`` covers everything after itself.
``docs/formats/kestrel-2.md`` shows the table of operations and is tested against it.

Opcode 8 means CONTINUE in every released program, and STATE_DUMP in the document. The bytes in a buffer do not tell
which one it is, so the caller of :func:`decode` passes it; ``journal`` looks ahead in the file.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from kestrel.errors import DamageError
from kestrel.fast import Table

ADD, REMOVE, ADDX, REMOVE_TENTATIVE, SAVE_XID, UNREMOVE, CONFIRM_REMOVE, ADD_XID, CONTINUE, REMOVE_TENTATIVE_XID = (
    range(10)
)

FIELDS: Final = {
    "xid": "i",
    "size": "i",
    "count": "i",
    "expiry_s": "i",
    "add_time": "q",
    "expiry": "q",
}
"""Each field and its width; ``data`` takes what is left of the size."""


class Layout(NamedTuple):
    """One operation: its byte, its name, its fields in order.

    Attributes:
        opcode: the first byte.
        name: as the documents write it.
        fields: names from :data:`FIELDS`, in order; ``data`` is the last one, if there is data.
        head: the opcode, and the fields before the data.
        stamps_size: the part of ``size`` that is not data; 0 if it has no size.
    """

    opcode: int
    name: str
    fields: tuple[str, ...]
    head: struct.Struct
    stamps_size: int


def _layout(opcode: int, name: str, *fields: str) -> Layout:
    fixed = [FIELDS[field] for field in fields]
    stamps = fixed[fields.index("size") + 1 :] if "size" in fields else []
    whole = (*fields, "data") if "size" in fields else fields
    return Layout(opcode, name, whole, struct.Struct("<B" + "".join(fixed)), struct.calcsize("<" + "".join(stamps)))


LAYOUTS: Final = {
    layout.opcode: layout
    for layout in (
        _layout(ADD, "ADD", "size", "expiry_s"),
        _layout(REMOVE, "REMOVE"),
        _layout(ADDX, "ADDX", "size", "add_time", "expiry"),
        _layout(REMOVE_TENTATIVE, "REMOVE_TENTATIVE"),
        _layout(SAVE_XID, "SAVE_XID", "xid"),
        _layout(UNREMOVE, "UNREMOVE", "xid"),
        _layout(CONFIRM_REMOVE, "CONFIRM_REMOVE", "xid"),
        _layout(ADD_XID, "ADD_XID", "xid", "size", "add_time", "expiry"),
        _layout(CONTINUE, "CONTINUE", "xid", "size", "add_time", "expiry"),
        _layout(REMOVE_TENTATIVE_XID, "REMOVE_TENTATIVE_XID", "xid"),
    )
}
STATE_DUMP: Final = _layout(CONTINUE, "STATE_DUMP", "xid", "count")
"""The document's meaning of opcode 8. Only development versions of March 2011 wrote it; it ends its file."""

WRITTEN: Final = (REMOVE, ADDX, UNREMOVE, CONFIRM_REMOVE, CONTINUE, REMOVE_TENTATIVE_XID)
"""What is written here, because every Kestrel from 2.1 to 2.4.8 reads it."""

ADDX_HEAD: Final = LAYOUTS[ADDX].head
ADDX_BLOCK: Final = LAYOUTS[ADDX].stamps_size
"""The size of an ADDX without data."""

MAX_ITEM_SIZE: Final = 2**31 - 1 - ADDX_BLOCK
MAX_TIME_MS: Final = 2**63 - 1
MIN_XID: Final = -(2**31)
MAX_XID: Final = 2**31 - 1


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
    def _layout(self) -> Layout:
        return LAYOUTS[self.opcode] if self.count is None else STATE_DUMP

    @property
    def name(self) -> str:
        """The operation's name, as the documents write it."""
        return self._layout.name

    @property
    def size(self) -> int:
        """All its bytes in the file, the opcode included."""
        return self._layout.head.size + len(self.data or b"")


def decode(data: bytes, at: int = 0, position: int = 0, *, dump: bool = False) -> tuple[Operation | None, int | None]:
    """The operation at ``at``, and how many bytes it takes; None for what the bytes do not show yet.

    Args:
        data: bytes of a journal.
        at: where in them the operation begins.
        position: where in the file that is.
        dump: whether opcode 8 is STATE_DUMP.

    Raises:
        DamageError: the opcode is unknown, or the size too small for what it must cover.
    """
    if at >= len(data):
        return None, None
    layout = STATE_DUMP if dump and data[at] == CONTINUE else LAYOUTS.get(data[at])
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
    start = stop = at + layout.head.size
    if start > len(data):
        return None, None
    values = dict(zip(("opcode", *layout.fields), layout.head.unpack_from(data, at), strict=False))
    if layout.stamps_size:
        stop += values["size"] - layout.stamps_size
        if stop < start:
            raise DamageError(
                f"{layout.name} of size {values['size']}, which must be at least {layout.stamps_size}; the rest of this"
                " file cannot be read; open the queue, which copies those bytes to kept/, or restore the file from a"
                " copy",
                position=position,
            )
    if stop > len(data):
        return None, stop - at
    expiry = values["expiry_s"] * 1000 if layout.opcode == ADD else values.get("expiry")
    content = data[start:stop] if layout.stamps_size else None
    times = values.get("add_time"), expiry
    return Operation(position, layout.opcode, values.get("xid"), *times, content, values.get("count")), stop - at


PLAIN: Final = Table(
    Operation,
    "opcode",
    MAX_ITEM_SIZE,
    [
        (layout.opcode, layout.fields, layout.head, layout.stamps_size)
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
    return LAYOUTS[CONTINUE].head.pack(CONTINUE, xid, ADDX_BLOCK + len(data), add_time, expiry) + data


def xid_operation(opcode: int, xid: int) -> bytes:
    """The bytes of an operation that has an xid and nothing else."""
    return LAYOUTS[opcode].head.pack(opcode, xid)


def removes(count: int) -> bytes:
    """The bytes of count REMOVEs."""
    return bytes((REMOVE,)) * count
