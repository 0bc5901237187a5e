"""CRC32C (Castagnoli), as the package ``crc32c`` computes it: by the processor's instruction where it has one."""

from __future__ import annotations

__all__ = ["crc32c"]


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """The checksum of what crc stands for, followed by data.

    Example:
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    # Importing it costs 20 ms, most of a short command; asking for it again costs nothing beside a block.
    import crc32c as library

    return library.crc32c(data, crc)
