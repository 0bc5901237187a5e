"""CRC32C (Castagnoli): our own if the processor has carry-less multiplication, four times 128 bits in parallel.

Otherwise the package ``crc32c``: by the processor's CRC instruction, or by tables if the processor lacks one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sej.imports import compiled

__all__ = ["crc32c"]


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """Return the checksum of the bytes with checksum ``crc``, followed by data.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    # Importing it takes 20 ms, most of a short command; a later import takes almost no time.
    import crc32c as library

    return library.crc32c(data, crc)


if not TYPE_CHECKING and (_twin := compiled("sej.system._checksum_c")):
    crc32c = _twin.crc32c
