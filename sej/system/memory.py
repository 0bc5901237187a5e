"""The memory that the C library keeps for the process.

glibc returns large blocks to the system when they are freed. A process that handles requests of 100 KiB or more then
gets new pages for each request: the kernel fills them with zeros, one page fault for every 4 KiB. Whether this happens
depends on the blocks that it has freed before, so the same program is slower in one run and faster in the next.
"""

from __future__ import annotations

_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8


def keep_freed_memory(block_bytes: int, kept_bytes: int, arenas: int) -> bool:
    """Keep freed memory for the next blocks; for a process of our own, because it affects all of its memory.

    Args:
        block_bytes: larger blocks are still returned to the system when they are freed.
        kept_bytes: how much free memory each of the C library's arenas may keep at its end.
        arenas: the most arenas; each thread uses one of them, and glibc has eight for each core.

    Returns:
        False if the C library cannot: it is not glibc.
    """
    import ctypes  # here, because it takes a short command too long

    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    return all(
        [
            library.mallopt(_MMAP_THRESHOLD, block_bytes),
            library.mallopt(_TRIM_THRESHOLD, kept_bytes),
            library.mallopt(_ARENA_MAX, arenas),
        ]
    )


def keep_like_after(block_bytes: int) -> None:
    """Let the C library keep freed memory as it does after a block of this size was freed; for any process.

    glibc adapts: once a block was freed that it had got from the system, it keeps smaller blocks, and up to twice as
    many bytes at the end of its heap. Nothing changes if the process has freed such a block before, or has set limits.

    Args:
        block_bytes: the size of the block, whose pages are never touched.
    """
    bytearray(block_bytes)
