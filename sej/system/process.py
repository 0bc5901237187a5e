"""Stopping on a signal, and the memory that the C library keeps for the process.

glibc returns large blocks to the system when they are freed. A process that handles requests of 100 KiB or more then
gets new pages for each request: the kernel fills them with zeros, one page fault for every 4 KiB. Whether this happens
depends on the blocks that it has freed before, so the same program is slower in one run and faster in the next.
"""

from __future__ import annotations

import _thread
import signal
import threading
import time
from typing import Final

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


def keep_freed_up_to(block_bytes: int) -> None:
    """Let the C library keep freed memory as it does after a block of this size was freed; for any process.

    glibc adapts: once a block was freed that it had got from the system, it keeps smaller blocks, and up to twice as
    many bytes at the end of its heap. Nothing changes if the process has freed such a block before, or has set limits.

    Args:
        block_bytes: the size of the block, whose pages are never touched.
    """
    bytearray(block_bytes)


_SETTING_S: Final = 0.05
"""Far longer than a thread takes to begin."""
_LOOK_S: Final = 0.5


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM or an interrupt sets from now on."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: set_from_handler(stop))
    return stop


def wait_for_signal(stop: threading.Event) -> None:
    """Wait in the main thread, without a limit, for an event that a signal sets.

    A signal that is sent while the process is stopped (SIGSTOP, Ctrl-Z) is given to any of its threads when it
    continues. Only the main thread runs the handler, and nothing wakes it for that: so it wakes by itself.
    """
    while not stop.wait(_LOOK_S):
        pass


def set_from_handler(event: threading.Event) -> None:
    """Set an event from the handler of a signal.

    A handler runs between any two steps of the main thread. If that is about to wait for the same event, it holds the
    event's lock, and ``event.set()`` in the handler would wait for it forever. So another thread sets the event. In all
    other cases the event is set when this returns.
    """
    _thread.start_new_thread(event.set, ())  # threading.Thread takes locks too
    deadline = time.monotonic() + _SETTING_S
    while not event.is_set() and time.monotonic() < deadline:
        time.sleep(0)  # lets that thread run
