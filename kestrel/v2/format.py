"""The operations of a Kestrel 2 journal: opcodes, fields and limits, and nothing else.

Sources: "Kestrel journal format" for opcodes 0 to 8; the released programs for opcode 9 and for the other meaning of 8,
which the document does not know. All integers are little endian and signed. A ``size`` covers everything after itself.
``docs/formats/kestrel-2.md`` shows this table and is tested against it.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

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
        head: the fields before the data, without the opcode.
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
    return Layout(opcode, name, whole, struct.Struct("<" + "".join(fixed)), struct.calcsize("<" + "".join(stamps)))


def struct_of(layout: Layout) -> struct.Struct:
    """All of an operation but its data."""
    return struct.Struct(layout.head.format.replace("<", "<B"))


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

ADDX_HEAD: Final = struct.Struct("<Biqq")
"""opcode, size, add_time, expiry"""
XID_BLOCK: Final = struct.Struct("<Biiqq")
"""opcode, xid, size, add_time, expiry"""
XID_OP: Final = struct.Struct("<Bi")
"""opcode, xid"""
ADDX_BLOCK: Final = 16
"""The size of an ADDX without data."""

MAX_ITEM_SIZE: Final = 2**31 - 1 - ADDX_BLOCK
MAX_TIME_MS: Final = 2**63 - 1
MIN_XID: Final = -(2**31)
MAX_XID: Final = 2**31 - 1

assert LAYOUTS[ADDX].stamps_size == ADDX_BLOCK
assert LAYOUTS[ADDX].head.size + 1 == ADDX_HEAD.size
assert all(LAYOUTS[code].opcode == code for code in range(10))
