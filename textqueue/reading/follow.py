"""Waiting for messages. A change of the directory wakes the wait, however an editor saves the file.

It relies on ``sej.system.watch``. A wait may end early or without a reason, but never later than its time limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Final, TypeVar

from sej.system.watch import Watch

_Found = TypeVar("_Found")

_SHARED_S: Final = 0.1
"""The interval of looks if one wait is not enough: there are several directories, or a stop event."""
_ALONE_S: Final = 1.0
"""The longest wait: a worker that dies frees its claims without any event."""


def follow(
    get_next: Callable[[], _Found | None],
    directories: Callable[[], Collection[str]],
    *,
    timeout: float | None,
    settle_s: float,
    stop: threading.Event | None,
) -> Iterator[_Found]:
    """Yield what get_next returns, and wait for more.

    Args:
        get_next: returns the next message or claim, or None.
        directories: returns the directories of the files, which may not exist yet.
        timeout: end after this many seconds without a message; None: no limit.
        settle_s: after this many seconds a last line without a newline counts, without any event.
        stop: end soon after this event is set.
    """
    watches: dict[str, Watch] = {}
    try:
        last = time.monotonic()
        while stop is None or not stop.is_set():
            # Watch first, then read: a message that arrives in between ends the wait.
            for name in directories():
                if name not in watches:
                    watches[name] = Watch(name)
            found = get_next()
            if found is not None:
                yield found
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
            if first is not None and first.polling:  # the directory was missing or was removed: watch it again
                first.close()
                del watches[first.directory]
    finally:
        for watch in watches.values():
            watch.close()
