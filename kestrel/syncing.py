"""When written bytes are synced to disk: never (the system decides), always, or at an interval.

At every policy files are synced when they are closed, rotated or replaced, so that only the end of the last file can be
lost to a power failure; a killed process loses nothing, because nothing is buffered in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal

from kestrel.errors import KestrelError
from sej.checks import a
from sej.durations import Seconds, seconds

Sync = Literal["never", "always"] | Seconds
"""``"never"``, ``"always"``: before the call returns, or a number of seconds, also as in ``"5s"``."""


def check_sync(sync: Sync) -> None:
    """Make sure that a policy is one.

    Raises:
        TypeError: it is neither a ``str`` nor a number.
        ValueError: it is another word, or not above 0.
    """
    a(str, int, float)("sync", sync)
    period = _period(sync)
    if period is not None and not period > 0:
        raise ValueError(f"sync must be 'never', 'always' or seconds above 0, got {sync!r}")


def _period(sync: Sync) -> float | None:
    """Return the seconds between two syncs; None: there is none."""
    if sync in ("never", "always"):
        return None
    try:
        return seconds("sync", sync)
    except ValueError:
        raise ValueError(f"sync must be 'never', 'always' or seconds above 0, got {sync!r}") from None


class Syncer:
    """Calls a sync by its policy. For a period a thread is started at the first write; it is idle without writes.

    The callback takes whatever lock it needs, and keeps its failures to itself: the next call finds the queue failed.
    """

    def __init__(self, policy: Sync, sync: Callable[[], None]) -> None:
        check_sync(policy)
        self._sync = sync
        self.always = policy == "always"
        self.active = policy != "never"
        self._period = _period(policy)
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def wrote(self) -> None:
        """Something was written."""
        if self.always:
            self._sync()
        elif self._period is not None:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="kestrel-sync", daemon=True)
                thread.start()  # a signal's handler may raise before: then the next write starts one
                self._thread = thread
            self._wake.set()

    def stop(self) -> None:
        """End the thread; its owner must not hold the lock that the callback takes."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            if self._stop.wait(self._period):
                return
            self._wake.clear()
            try:
                self._sync()
            except KestrelError:
                return
