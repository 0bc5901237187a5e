"""The layout of a queue's state log, ``ofs/NAME.queue``: constants, and nothing else.

A head of 40 bytes, then records of 40 bytes, appended under the queue's lock. Integers are big endian::

    head   = "SEJQUEUE" version(u32) epoch(u32) queue(u32) reserved(16) check(u32)
    record = kind(u8) priority(i8) attempt(u16) holder(u32) offset(u64) a(u64) b(u64) extra(u32) check(u32)

``check`` is the CRC32C of the 36 bytes before it, lowest byte first, so that the CRC32C of a whole record is always
:data:`CHECKED`. ``epoch`` is a random number that changes when the state was rebuilt: older leases are void. ``queue``
is the CRC32C of the queue's name, and 0 in logs of older versions. Times are nanoseconds of the boot-time clock of the
last :data:`BOOT`. Each kind of record is one row in :data:`sej.queue.log.kinds.KINDS`.
"""

from __future__ import annotations

import struct
from typing import Final

MAGIC: Final = b"SEJQUEUE"
VERSION: Final = 1
RECORD_SIZE: Final = 40
"""The size of the head too, so that every record starts at a multiple of it."""
HEAD_BODY: Final = struct.Struct(">8sIII16s")
HEAD: Final = struct.Struct(">8sIII16sI")
RECORD_BODY: Final = struct.Struct(">BbHIQQQI")
RECORD: Final = struct.Struct(">BbHIQQQI4x")
"""A record that was checked."""
WORDS: Final = ("kind", "priority", "attempt", "holder", "offset", "a", "b", "extra")
"""The words of a record, in their order."""
HEADERS_HEAD: Final = struct.Struct(">qII")
"""Before the text of an item's headers: the timestamp and the CRC32C of its message, and the size of the text."""
HEADERS_PART: Final = struct.Struct(">IQQI")
"""The words of a HEADERS record that hold a part of them: holder, a, b and extra."""
CHECK: Final = struct.Struct("<I")
CHECKED: Final = 0x48674BC7
"""The CRC32C of bytes followed by their own CRC32C, lowest byte first: one call checks a record."""
CLAIM: Final = struct.Struct(">QQ")
"""In ``ofs/NAME.queue.lck``, a hint: the process that has the queue alone, a random number, and until when, ns of the
monotonic clock.
"""
MAX_PRIORITY: Final = 3
"""Priorities are -MAX_PRIORITY to MAX_PRIORITY."""
MAX_ATTEMPT: Final = 2**16 - 1

EXHAUSTED: Final = 1
"""In the last word of WAIT: a process began to give this item up; the next one that reaches it finishes that."""

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
# Only in queues with order="key". An older version skips them: it delivers every item, but not in the order of keys.
ORDER: Final = 19
KEY: Final = 20
SCAN: Final = 21
PARK: Final = 22
BLOCK: Final = 23
# Only in queues that are paused, or whose flow has a limit. An older version skips them.
PAUSE: Final = 24
RATE: Final = 25
# Only in queues with items that have headers. An older version skips them: it delivers the items without headers.
HEADERS: Final = 26

assert HEAD.size == RECORD.size == RECORD_SIZE
assert HEAD_BODY.size + CHECK.size == RECORD_SIZE == RECORD_BODY.size + CHECK.size
