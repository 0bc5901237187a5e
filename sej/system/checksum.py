"""CRC32C (Castagnoli): our own if an x86 processor has a CRC instruction and carry-less multiplication.

Otherwise the package ``crc32c``, which knows the CRC instruction of ARM, and uses tables if the processor has none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from sej.imports import compiled

_library: Callable[[bytes | bytearray | memoryview, int], int] | None = None
"""Its function, from the first call on: at the interpreter's end a module cannot be imported, not even again."""


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """Return the checksum of the bytes with checksum ``crc``, followed by data.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    global _library
    if _library is None:
        if sys.is_finalizing():
            return _bit_by_bit(data, crc)
        # Importing it takes 20 ms, most of a short command.
        import crc32c as library

        _library = library.crc32c
    return _library(data, crc)


def _bit_by_bit(data: bytes | bytearray | memoryview, crc: int) -> int:
    """Compute it without the library, slowly."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


if not TYPE_CHECKING and (_twin := compiled("sej.system._checksum_c")):
    crc32c = _twin.crc32c
