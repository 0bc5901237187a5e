"""Parts that several threads read, returned in order, with bounded memory.

Each thread reads a whole part. Only one part more than there are threads is being read or waits, so memory is bounded
by these. The codec works without the interpreter's lock.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Final, TypeVar

_Part = TypeVar("_Part")
_Row = TypeVar("_Row")

THREADS: Final = min(len(os.sched_getaffinity(0)), 8)
"""Threads of one read."""
_KEPT_BYTES: Final = 16 << 20


def in_order(
    parts: Sequence[_Part], read: Callable[[_Part], Iterable[_Row]], threads: int = THREADS
) -> Generator[_Row, None, None]:
    """Yield what ``read`` returns for each part, in the order of the parts.

    A single part is read in the caller's thread. If the iterator is closed, parts that were not begun are not read.

    Example:
        >>> list(in_order([1, 2, 3], lambda part: [part, part * 10]))
        [1, 10, 2, 20, 3, 30]
    """
    if len(parts) == 1 or threads == 1:
        for part in parts:
            yield from read(part)
        return
    rest = iter(parts)
    waiting: deque[Future[list[_Row]]] = deque()
    _keep_freed_memory()
    own: set[int] = set()
    pool = ThreadPoolExecutor(threads, "table", initializer=lambda: own.add(threading.get_ident()))
    try:
        for part in rest:
            waiting.append(pool.submit(_all, read, part))
            if len(waiting) > threads:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        # Polars drops what it does not need any more in any thread that calls it, also in one of these.
        pool.shutdown(wait=threading.get_ident() not in own, cancel_futures=True)


@cache
def _keep_freed_memory() -> None:
    """Let the allocator keep the memory of a part that was used, for the next one.

    The page faults of fresh memory cost a third of the time of a streamed read. glibc returns less memory to the kernel
    once a large block was freed: see M_TRIM_THRESHOLD in mallopt(3). It remembers at most 32 MiB. Other allocators
    take no notice.
    """
    bytes(_KEPT_BYTES)


def _all(read: Callable[[_Part], Iterable[_Row]], part: _Part) -> list[_Row]:
    return list(read(part))
