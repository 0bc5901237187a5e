"""The layout of a queue's state log, ``ofs/NAME.queue``: constants, and nothing else.

A head of 40 bytes, then records of 40 bytes, appended under the queue's lock. Integers are big endian::

    head   = "SEJQUEUE" version(u32) epoch(u32) queue(u32) reserved(16) check(u32)
    record = kind(u8) band(i8) attempt(u16) slot(u32) offset(u64) a(u64) b(u64) extra(u32) check(u32)

``check`` is the CRC32C of the 36 bytes before it, lowest byte first, so that the CRC32C of a whole record is always
:data:`CHECKED`. ``epoch`` is a random number that changes when the state was rebuilt: leases given before are void.
``queue`` is the CRC32C of the queue's name, and 0 in logs of older versions. Times are nanoseconds of the boot-time
clock of the last :data:`BOOT`; what each kind means by its fields stands in :data:`KINDS` and in
docs/formats/queue.md.
"""

from __future__ import annotations

import struct
from typing import Final

__all__ = [
    "BACK",
    "BOOT",
    "CHECK",
    "CHECKED",
    "CLAIM",
    "COUNTS",
    "DEAD",
    "DEDUPE",
    "DONE",
    "DOOMED",
    "DROP",
    "EXPIRE",
    "EXTEND",
    "FREE",
    "HEAD",
    "HEAD_BODY",
    "INTENT",
    "KEPT",
    "KINDS",
    "LEASE",
    "LOST",
    "MAGIC",
    "MAX_ATTEMPT",
    "MAX_BAND",
    "PICK",
    "PURGE",
    "RECORD",
    "RECORD_BODY",
    "RECORD_SIZE",
    "START",
    "VERSION",
    "WAIT",
]

MAGIC: Final = b"SEJQUEUE"
VERSION: Final = 1
RECORD_SIZE: Final = 40
"""Of the head too, so that every record starts at a multiple of it."""
HEAD_BODY: Final = struct.Struct(">8sIII16s")
HEAD: Final = struct.Struct(">8sIII16sI")
RECORD_BODY: Final = struct.Struct(">BbHIQQQI")
RECORD: Final = struct.Struct(">BbHIQQQI4x")
"""A record that was checked."""
CHECK: Final = struct.Struct("<I")
CHECKED: Final = 0x48674BC7
"""The CRC32C of bytes and their own CRC32C behind them, lowest byte first: one call checks a record."""
CLAIM: Final = struct.Struct(">QQ")
"""In ``ofs/NAME.queue.lck``, a hint: who has the queue to itself, a random number, and until when, ns of the monotonic
clock."""
MAX_BAND: Final = 3
"""Priorities go from -MAX_BAND to MAX_BAND."""
MAX_ATTEMPT: Final = 2**16 - 1

DOOMED: Final = 1
"""In the extra field of WAIT: a process began to bury this item; whoever comes next finishes that."""

LEASE: Final = 1
DONE: Final = 2
PICK: Final = 3
WAIT: Final = 4
EXTEND: Final = 5
FREE: Final = 6
DEAD: Final = 7
INTENT: Final = 8
EXPIRE: Final = 9
DEDUPE: Final = 10
KEPT: Final = 11
PURGE: Final = 12
DROP: Final = 13
BOOT: Final = 14
START: Final = 15
COUNTS: Final = 16
LOST: Final = 17
BACK: Final = 18

KINDS: Final[dict[int, tuple[str, str]]] = {
    LEASE: ("LEASE", "fresh messages offset..a-1 are leased to slot until b; extra: low 32 bits of the last timestamp"),
    DONE: ("DONE", "offset..a-1 are done; extra: low 32 bits of the last timestamp, or 0"),
    PICK: ("PICK", "offset, out of order, is leased to slot until b as attempt, of that band"),
    WAIT: (
        "WAIT",
        "offset may be taken from b on; attempt: how often it was tried; extra 1: it, of stamp a, is to be buried",
    ),
    EXTEND: ("EXTEND", "the lease of offset lasts until b"),
    FREE: ("FREE", "every lease of slot is given back"),
    DEAD: ("DEAD", "offset is among the dead letters; extra: low 32 bits of its timestamp, or 0"),
    INTENT: ("INTENT", "the message that will be offset, of timestamp a and CRC32C extra, waits until b in that band"),
    EXPIRE: ("EXPIRE", "nobody wants offset, the message of timestamp a and CRC32C extra, after b"),
    DEDUPE: ("DEDUPE", "until b the key of hash slot, a means message offset, whose CRC32C is extra"),
    KEPT: ("KEPT", "NAME.ofs says offset; it is b now"),
    PURGE: ("PURGE", "everything below a that is not leased is thrown away"),
    DROP: ("DROP", "an INTENT for offset that its message does not match is void"),
    BOOT: (
        "BOOT",
        "boot id offset, a: times below are of this boot, begun at b ns of the wall clock, now at slot * 2^32 + extra",
    ),
    START: ("START", "fresh messages begin at offset; extra: low 32 bits of the timestamp of message a"),
    COUNTS: ("COUNTS", "offset items were done, a are dead and b were lost, before what follows"),
    LOST: ("LOST", "offset..a-1 were taken out of the journal before they were done; those in hands are not meant"),
    BACK: (
        "BACK",
        "of the dead letters in the journal whose id begins with a, those below offset were put back; extra: how many",
    ),
}

assert HEAD.size == RECORD.size == RECORD_SIZE
assert HEAD_BODY.size + CHECK.size == RECORD_SIZE == RECORD_BODY.size + CHECK.size
