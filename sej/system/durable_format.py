"""The layout of a kept durable position: constants, and nothing else.

``idx/durable`` (of a journal) and the files of this layout next to a queue's log hold one record of 48 bytes. Integers
are big endian::

    record = "SEJDURAB" name(u64) inode(u64) position(u64) offset(u64) head(u32) check(u32)

Every byte of the file ``name`` (of a journal: the first offset of its last segment) before ``position`` was on the
medium when the record was written, and so was the file's name. ``offset`` is the offset that follows. ``inode`` and
``head``, the CRC32C of the file's first bytes (64, or ``position`` if that is less), say which file this is. ``check``
is the CRC32C of the 44 bytes before it.
"""

from __future__ import annotations

import struct
from typing import Final

MAGIC: Final = b"SEJDURAB"
BODY: Final = struct.Struct(">8sQQQQI")
CHECK: Final = struct.Struct(">I")
RECORD: Final = struct.Struct(">8sQQQQII")
RECORD_SIZE: Final = 48
HEAD_BYTES: Final = 64

assert RECORD.size == RECORD_SIZE == BODY.size + CHECK.size
