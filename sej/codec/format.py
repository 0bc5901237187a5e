"""The record layout of a SEJ segment: constants and limits, and nothing else.

Source: the SEJ document, "Journal File format". Integers are big endian::

    message = offset timestamp type key_size key value_size value size
              u64    i64       u8   i8       ..  i32        ..    i32

``size`` counts the whole message with itself, so that a segment can be read backwards.
"""

from __future__ import annotations

import struct
from typing import Final

from sej.message import MAX_OFFSET as MAX_OFFSET
from sej.message import NO_TIMESTAMP as NO_TIMESTAMP

HEAD: Final = struct.Struct(">QqBb")
"""offset, timestamp, type, key_size"""
OFFSET: Final = struct.Struct(">Q")
INT32: Final = struct.Struct(">i")

HEAD_SIZE: Final = 18
OFFSET_SIZE: Final = 8
INT32_SIZE: Final = 4
OVERHEAD_SIZE: Final = 26
"""A message without key and value; so a stretch of n bytes holds at most n // 26 messages."""

MAX_KEY_SIZE: Final = 2**7 - 1
MAX_MESSAGE_SIZE: Final = 2**31 - 1
MAX_TYPE: Final = 2**8 - 1
MAX_TIMESTAMP: Final = 2**63 - 1

assert HEAD.size == HEAD_SIZE and OFFSET.size == OFFSET_SIZE and INT32.size == INT32_SIZE
assert OVERHEAD_SIZE == HEAD_SIZE + 2 * INT32_SIZE
