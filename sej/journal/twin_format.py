r"""The layout of the twin of a kept offset, ``ofs/NAME.check``: constants, and nothing else.

Two slots, at bytes 0 and 512, so that no sector holds parts of both. Integers are big endian::

    slot = "SEJTWIN\0" reader(u32) strict(u32) sequence(u64) offset(u64) inode(u64) mtime(i64) check(u32)

``reader`` is the CRC32C of the reader's name. ``offset`` is what ``NAME.ofs`` holds when its file has that inode and
that time of change, in ns; :data:`NOTHING`: it is empty. ``strict`` is 1 if no other program writes the file. ``check``
is the CRC32C of the 48 bytes before it. The slot with the higher sequence is the newer one.

At byte 64 of a slot, if the reader had read a message whose time is known::

    after = offset(u64) timestamp(i64) check(u32)

The message before this offset, which is at most that of the slot, had this timestamp. ``check`` is the CRC32C of the
slot and of the 16 bytes before it, so an ``after`` of an earlier slot does not count.
"""

from __future__ import annotations

import struct
from typing import Final

MAGIC: Final = b"SEJTWIN\0"
SLOT_BODY: Final = struct.Struct(">8sIIQQQq")
CHECK: Final = struct.Struct(">I")
SLOT: Final = struct.Struct(">8sIIQQQqI")
SLOT_SIZE: Final = 52
STRIDE: Final = 512
AFTER: Final = struct.Struct(">QqI")
AFTER_AT: Final = 64
AFTER_SIZE: Final = 20
TWIN_BYTES: Final = STRIDE + AFTER_AT + AFTER_SIZE
NOTHING: Final = 2**64 - 1

assert AFTER.size == AFTER_SIZE
assert SLOT.size == SLOT_SIZE == SLOT_BODY.size + CHECK.size
