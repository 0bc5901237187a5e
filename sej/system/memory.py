"""The memory that the C library keeps for the process.

glibc returns large blocks to the system when they are freed. A server that handles requests of a few MiB then gets new
pages for each request: the kernel fills them with zeros, one page fault for every 4 KiB.
"""

from __future__ import annotations

import sys

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3


def keep_freed_memory(block_bytes: int, kept_bytes: int) -> bool:
    """Keep freed memory for the next blocks; for a process of our own, because it affects all of its memory.

    Args:
        block_bytes: larger blocks are still returned to the system when they are freed.
        kept_bytes: how much free memory each of the C library's arenas may keep at its end.

    Returns:
        False if the C library cannot: it is not glibc.
    """
    if sys.platform != "linux":
        return False
    import ctypes  # here, because it takes a short command too long

    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    return all([library.mallopt(_MMAP_THRESHOLD, block_bytes), library.mallopt(_TRIM_THRESHOLD, kept_bytes)])
