"""CRC32C (Castagnoli): our own where the processor multiplies without carries, four times 128 bits at once.

Elsewhere the package ``crc32c``: by the processor's CRC instruction, or by tables where there is none.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

__all__ = ["crc32c"]

_SMALL_BYTES: Final = 256


def _by_library(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """The checksum of what crc stands for, followed by data.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    # Importing it costs 20 ms, most of a short command; asking for it again costs nothing beside a block.
    import crc32c as library

    return library.crc32c(data, crc)


crc32c = _by_library
if not TYPE_CHECKING and os.environ.get("SEJ_CODEC") != "python":
    try:
        from sej.system import _checksum_c
    except ImportError:
        pass
    else:

        def _small_or_by_library(data, crc=0):
            """As the library; what fits an entry of an index does not need it."""
            if len(data) <= _SMALL_BYTES:
                return _checksum_c.crc32c_small(data, crc)
            return _by_library(data, crc)

        crc32c = _checksum_c.crc32c if _checksum_c.FAST else _small_or_by_library
