"""Memory for data that stays: large pieces come from the system, and are returned to it when they are freed.

Fresh pages are zeros already. Memory that the allocator has kept would be cleared first.
"""

from __future__ import annotations

import mmap
from typing import Final

__all__ = ["allocate"]

_LARGE_BYTES: Final = 1 << 20


def allocate(size: int) -> memoryview:
    """Return writable memory of zeros. It is freed when the last object that refers to it is."""
    if size < _LARGE_BYTES:
        return memoryview(bytearray(size))
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
