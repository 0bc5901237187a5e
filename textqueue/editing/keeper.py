"""What ends a hold on a queue file that its owner forgot: a thread that lives only while there are holds.

A hold (``textqueue.editing.marks``) keeps a lock and a lease from one mark to the next. An owner at work looks at the
lease with each mark and so notices immediately that another process waits for the file; while it is busy elsewhere this
thread looks, every ``TICK_S``, and ends what was not used since. So an editor waits for some milliseconds at most.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from contextlib import suppress
from typing import Final, Protocol

__all__ = ["KEEPER", "TICK_S", "Keeper", "Kept"]

TICK_S: Final = 0.005
_LINGER: Final = 10
"""Ticks without a hold after which the thread ends."""


class Kept(Protocol):
    """Something that is held and may be forgotten."""

    def tick(self, *, last: bool = False) -> bool:
        """End what was not used since the last tick, or in any case; whether it is over.

        Raises:
            OSError: it is over, and the system refused something on the way; the owner's next operation will tell.
        """

    def forget(self) -> None:
        """In a forked child: it is the parent's."""


class Keeper:
    """One for a process."""

    def __init__(self) -> None:
        """No thread yet."""
        self._lock = threading.Lock()
        self._kept: set[Kept] = set()
        self._thread: threading.Thread | None = None

    def add(self, kept: Kept) -> None:
        """Look after something until it is over."""
        with self._lock:
            self._kept.add(kept)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="textqueue-keeper", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        idle = 0
        try:
            while idle <= _LINGER:
                time.sleep(TICK_S)
                with self._lock:
                    self._tick()
                    idle = 0 if self._kept else idle + 1
                    if idle > _LINGER:
                        self._thread = None
        finally:
            if self._thread is threading.current_thread():
                self._thread = None

    def _tick(self, *, last: bool = False) -> None:
        for kept in list(self._kept):
            self._kept.discard(kept)
            with suppress(OSError):
                if not kept.tick(last=last):
                    self._kept.add(kept)

    def end_all(self) -> None:
        """At the end of the process: end everything that is held, but for what somebody is at work on."""
        with self._lock:
            self._tick(last=True)

    def before_fork(self) -> None:
        """No thread may be in the middle of a tick while the process is copied."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """The holds are the parent's, and there is no thread."""
        for kept in self._kept:
            kept.forget()
        self._kept.clear()
        self._thread = None
        self._lock.release()


KEEPER: Final = Keeper()
"""The keeper of this process."""

atexit.register(KEEPER.end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=KEEPER.before_fork,
        after_in_parent=KEEPER.after_fork_in_parent,
        after_in_child=KEEPER.after_fork_in_child,
    )
