"""Memory for data that stays: large pieces come from the system, and are used again when they are free.

Getting fresh pages costs more than reading and decoding what fills them. So a piece whose last user is gone is kept for
the next read, and the kernel may take the pages back: it does so when memory runs short, and pages that it has taken
are fresh again at their next use.

Any thread may end the last use of a piece, and a signal handler may allocate: each change of the kept pieces is one
call into C.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import defaultdict
from typing import Final

import numpy as np

_LARGE_BYTES: Final = 1 << 20
_KEPT_BYTES: Final = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8
_MADV_FREE: Final[int | None] = getattr(mmap, "MADV_FREE", None)

_kept: defaultdict[int, list[mmap.mmap]] = defaultdict(list)
"""The free pieces by their size."""


def allocate(size: int) -> tuple[memoryview, bool]:
    """Return writable memory with any content, and whether it is large and its pages were never used.

    It is free when the last object that refers to it is deleted.
    """
    if size < _LARGE_BYTES:
        return memoryview(bytearray(size)), False
    step = 1 << (size.bit_length() - 4)  # few sizes, so that a piece fits the next read
    room = (size + step - 1) & -step
    try:
        piece, fresh = _kept[room].pop(), False
    except IndexError:
        piece, fresh = mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), True
    used = np.frombuffer(piece, np.uint8, size)
    weakref.finalize(used, _keep, piece).atexit = False
    return used.data, fresh


def _keep(piece: mmap.mmap) -> None:
    """Keep a piece, or return it to the system if there are enough."""
    size = len(piece)
    if _MADV_FREE is None or sum(room * len(pieces) for room, pieces in list(_kept.items())) + size > _KEPT_BYTES:
        return
    piece.madvise(_MADV_FREE)
    _kept[size].append(piece)
