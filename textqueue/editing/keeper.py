"""A thread that ends the unused holds of queue files. It runs only while there are holds.

A hold (``textqueue.editing.marks``) keeps the lock and the lease from one mark to the next. With each mark, its owner
checks whether another process waits for the file. Between marks this thread checks, every ``TICK_S``, and ends a hold
that was not used since the last tick. So an editor waits for some milliseconds at most.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from contextlib import suppress
from typing import Final, Protocol

from sej.mutex import notice_fork, watch_forks

TICK_S: Final = 0.005
_LINGER: Final = 10
"""The thread ends after this many ticks without a hold."""


class Hold(Protocol):
    """A hold that its owner may leave unused."""

    def tick(self, *, last: bool = False) -> bool:
        """End the hold if it was not used since the last tick, or if ``last``. Return whether it has ended.

        Raises:
            OSError: the hold has ended with an error; the owner's next operation will report it.
        """

    def forget(self) -> None:
        """Drop the hold in a forked child: it belongs to the parent."""


class Keeper:
    """The thread and its holds: one object for each process."""

    def __init__(self) -> None:
        """Begin without holds and without a thread."""
        self._lock = threading.Lock()
        self._holds: set[Hold] = set()
        self._thread: threading.Thread | None = None

    def add(self, hold: Hold) -> None:
        """Add a hold, and start the thread if it is not running."""
        watch_forks(self)
        with self._lock:
            self._holds.add(hold)
            if self._thread is None or not self._thread.is_alive():  # an interrupt may have prevented its start
                self._thread = threading.Thread(target=self._run, name="textqueue-keeper", daemon=True)
                self._thread.start()

    def remove(self, hold: Hold) -> None:
        """Remove a hold. This takes no lock, because a tick may be the caller; the methods of a set are atomic."""
        self._holds.discard(hold)

    def _run(self) -> None:
        idle = 0
        try:
            while idle <= _LINGER:
                time.sleep(TICK_S)
                with self._lock:
                    self._tick()
                    idle = 0 if self._holds else idle + 1
                    if idle > _LINGER:
                        self._thread = None
        finally:
            if self._thread is threading.current_thread():
                self._thread = None

    def _tick(self, *, last: bool = False) -> None:
        for hold in list(self._holds):
            over = True
            with suppress(OSError):
                over = hold.tick(last=last)
            if over:
                self.remove(hold)

    def end_all(self) -> None:
        """At the end of the process, end every hold that no thread is using."""
        notice_fork()
        with self._lock:
            self._tick(last=True)

    def before_fork(self) -> None:
        """Wait for the end of the current tick, so that the fork does not copy a half-done one."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Let the thread continue."""
        self._lock.release()

    def _after_fork(self) -> None:
        """Drop all holds, which belong to the parent. The child has no thread."""
        for hold in self._holds:
            hold.forget()
        self._holds.clear()
        self._thread = None
        self._lock = threading.Lock()


KEEPER: Final = Keeper()
"""The keeper of this process."""

atexit.register(KEEPER.end_all)
os.register_at_fork(
    before=KEEPER.before_fork,
    after_in_parent=KEEPER.after_fork_in_parent,
    after_in_child=KEEPER._after_fork,
)
