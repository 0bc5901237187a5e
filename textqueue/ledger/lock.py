"""The lock beside a text queue, ``jobs.tq.lck``: taken for one operation by every writer of ours.

It relies on ``flock`` through the disk seam and promises that between ``with guard:`` and its end no other thread,
process or queue object of ours changes the file. A person's editor knows nothing of it. Marks in a row keep it from
one to the next (``keep``), and let go of it when somebody asks. The file is never unlinked by
us; when somebody else removes or replaces it, the next operation, at most ``_LOOK_S`` later, goes on with the new one.
A forked child opens its own descriptor, because a lock belongs to the open file and would be shared with the parent.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final, Self

from sej.system.disk import Disk, File
from textqueue.errors import FileInUseError
from textqueue.ledger.sidecar import open_beside

__all__ = ["Guard"]

_LOOK_S: Final = 0.1
_FIRST_PAUSE_S: Final = 0.000_05
_LONGEST_PAUSE_S: Final = 0.005
_ASK_AFTER_S: Final = 0.0004
"""One operation takes less."""


class Guard:
    """A brief lock on a file of its own; a context manager, and re-entrant within its thread."""

    def __init__(
        self, path: str, *, disk: Disk, ask: Callable[[], None], timeout: float = 60.0, queue: str | None = None
    ) -> None:
        """Name the lock; its file is made when it is first taken.

        Args:
            path: the lock file.
            disk: the seam.
            ask: tells somebody who keeps the lock between two operations that it is waited for.
            timeout: seconds to wait for somebody else's operation before that is called an error.
            queue: the file that it protects: who may edit that may take the lock.
        """
        self.path = path
        self._disk = disk
        self._ask = ask
        self._timeout = timeout
        self._queue = queue
        self.threads = threading.RLock()
        self._depth = 0
        self._file: File | None = None
        self._pid = 0
        self._kept: Callable[[], None] | None = None
        self._looked = 0.0  # when the file behind the descriptor was last seen to be the file at the path

    def __enter__(self) -> Self:
        """Take it.

        Raises:
            FileInUseError: somebody holds it for longer than the timeout.
        """
        self.threads.acquire()
        self._depth += 1
        if self._depth == 1:
            kept, self._kept = self._kept, None
            try:
                if kept is None:
                    self._take()
                else:
                    kept()
            except BaseException:
                self._depth = 0
                if kept is not None and self._file is not None:
                    self._file.unlock()
                self.threads.release()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        """Let go."""
        try:
            if self._depth == 1 and self._file is not None and self._kept is None:
                self._file.unlock()
        finally:
            self._depth -= 1
            self.threads.release()

    def keep(self, finish: Callable[[], None]) -> None:
        """Within: keep the lock at the end. Whoever of this object enters next calls finish first, and has the lock."""
        self._kept = finish

    def forget(self) -> None:
        """In a forked child: the lock is the parent's."""
        self._kept = self._file = None

    def close(self) -> None:
        """Give the descriptor back; the next operation opens it again."""
        with self.threads:
            if self._kept is not None:
                with self:
                    pass
            if self._file is not None:
                self._file.close()
                self._file = None

    def _take(self) -> None:
        now = time.monotonic()
        while True:
            file = self._opened()
            if not file.lock():
                self._wait(file, now + self._timeout)
            if now - self._looked < _LOOK_S:
                return
            there = self._disk.status(self.path)
            if there is not None and there.identity == file.status().identity:
                self._looked = now
                return
            self.close()  # the file went away or was replaced: others lock the new one

    def _opened(self) -> File:
        pid = os.getpid()
        if self._file is None or self._pid != pid:
            self._file = open_beside(self._disk, self.path, self._queue)
            self._pid = pid
            self._looked = 0.0
        return self._file

    def _wait(self, file: File, deadline: float) -> None:
        pause = _FIRST_PAUSE_S
        asked = False
        while not file.lock():
            if pause > _ASK_AFTER_S and not asked:
                asked = True
                self._ask()
            if time.monotonic() >= deadline:
                raise FileInUseError(
                    f"another program has kept this lock for {self._timeout:g} s, which is meant to be held for one"
                    " operation; see which one (lsof, fuser) and end it",
                    path=self.path,
                )
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)
