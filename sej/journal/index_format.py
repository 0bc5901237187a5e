"""The layout of a sidecar index file: constants, and nothing else.

``idx/<segment>.idx`` is a head of 16 bytes and then entries of 64 bytes, one for each block, in the order of the
segment. A block is a run of whole messages of about 256 KiB. Integers are big endian::

    head  = "SEJINDEX" version(u32) reserved(u32)
    entry = position(u64) end(u64) first_offset(u64) count(u32) crc32c(u32)
            first_timestamp(i64) last_timestamp(i64) newest_timestamp(i64) reserved(u32) check(u32)

``newest_timestamp`` is the newest in the segment up to the block's end, so that it never falls and can be bisected.
``check`` is the CRC32C of the 60 bytes before it.
"""

from __future__ import annotations

import struct
from typing import Final

BLOCK_BYTES: Final = 1 << 18
"""A block ends with the first message that makes it this long."""
HEAD: Final = b"SEJINDEX" + (1).to_bytes(4, "big") + bytes(4)
HEAD_SIZE: Final = 16
ENTRY_BODY: Final = struct.Struct(">QQQIIqqqI")
CHECK: Final = struct.Struct(">I")
ENTRY: Final = struct.Struct(">QQQIIqqqII")
ENTRY_SIZE: Final = 64

assert len(HEAD) == HEAD_SIZE and ENTRY.size == ENTRY_SIZE == ENTRY_BODY.size + CHECK.size
