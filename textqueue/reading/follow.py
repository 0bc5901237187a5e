"""Waiting for messages: woken by the directory, through whatever an editor does to the file in it.

It relies on ``sej.system.watch``, whose waits may end early or for nothing, and never later than its safety net.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Final

from sej.system.watch import Watch
from textqueue.editing.message import Message

__all__ = ["follow"]

_SHARED_S: Final = 0.1
"""How often to look where one wait does not cover everything: several directories, or somebody who may say stop."""
_ALONE_S: Final = 1.0
"""At the latest: a claim of a worker that died comes free without any event."""


def follow(
    get_next: Callable[[], Message | None],
    directories: Callable[[], Collection[str]],
    *,
    timeout: float | None,
    settle_s: float,
    stop: threading.Event | None,
) -> Iterator[Message]:
    """Give out what get_next finds, and wait for more.

    Args:
        get_next: the next message, or None.
        directories: where the files stand, or will.
        timeout: end after so many seconds without a message; None: never.
        settle_s: after so long a last line without a newline counts, without an event.
        stop: end soon after this is set.
    """
    watches: dict[str, Watch] = {}
    try:
        last = time.monotonic()
        while stop is None or not stop.is_set():
            # Watch first, then read: what comes in between wakes the wait.
            for name in directories():
                if name not in watches:
                    watches[name] = Watch(name)
            message = get_next()
            if message is not None:
                yield message
                last = time.monotonic()
                continue
            left = _ALONE_S if timeout is None else last + timeout - time.monotonic()
            if left <= 0:
                return
            pause = _ALONE_S if len(watches) == 1 and stop is None else _SHARED_S
            first = next(iter(watches.values()), None)
            if first is None or first.polling:
                pause = _SHARED_S
            if first is not None:
                first.wait(min(pause, left, max(settle_s, _SHARED_S)))
            if first is not None and first.polling:  # the directory was missing, or went away: try again
                first.close()
                del watches[first.directory]
    finally:
        for watch in watches.values():
            watch.close()
