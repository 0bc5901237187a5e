"""The lock of a text queue, ``.jobs.tq.lck``. Every program that uses this library takes it for one operation.

It relies on ``flock``. It promises that within ``with guard:`` no other thread, process or queue object changes the
file through this library. Editors do not know this lock.

This library never removes the lock file. If another program removes or replaces it, operations use the new file
after at most ``_LOOK_S``. A forked child opens the lock file again, because it would share an open file's lock with its
parent.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final, Self

from sej.mutex import notice_fork
from sej.system.disk import Disk, File
from textqueue.errors import FileInUseError
from textqueue.ledger.sidecar import Sidecars

_LOOK_S: Final = 0.1
_FIRST_PAUSE_S: Final = 0.000_05
_LONGEST_PAUSE_S: Final = 0.005


def interrupted(path: str) -> FileInUseError:
    """Return the error of a signal handler that uses a queue while it interrupts a call of it."""
    return FileInUseError(
        "a signal handler interrupted a call of this queue, and cannot use the queue before that call ends; set a flag"
        " in the handler, or raise an exception",
        path=path,
    )


class Guard:
    """A lock file that is locked for short times: a context manager, reentrant within a thread.

    Attributes:
        threads: the lock between the threads of this process.
    """

    def __init__(self, sidecars: Sidecars, *, disk: Disk, timeout: float = 60.0) -> None:
        """Create a lock object. The lock file is created when it is first locked.

        Args:
            sidecars: the names of the lock file and its neighbours.
            disk: the file system.
            timeout: seconds to wait for the operation of another process.
        """
        self._sidecars = sidecars
        self._disk = disk
        self._timeout = timeout
        self.threads = threading.RLock()
        self._depth = 0
        self._locked = False  # between the two, a signal handler must not use the file
        self._file: File | None = None
        self._pid = 0
        self._looked = 0.0  # when the open file was last compared with the file at the path

    @property
    def path(self) -> str:
        """The lock file."""
        return self._sidecars.path(".lck")

    @property
    def is_open(self) -> bool:
        """Whether this process has the lock file open, so that no process moves the files next to the queue."""
        return self._file is not None and self._pid == os.getpid()

    def __enter__(self) -> Self:
        """Lock.

        Raises:
            FileInUseError: another process holds the lock for longer than the timeout, or this is a signal handler that
                interrupted this method.
        """
        notice_fork()
        self.threads.acquire()
        if self._depth and not self._locked:
            self.threads.release()
            raise interrupted(self.path)
        self._depth += 1
        if self._depth == 1:
            self._locked = False
            try:
                self._take()
                self._locked = True
            except BaseException:
                if self._file is not None and self._pid == os.getpid():
                    self._file.unlock()  # it may have been taken before the interrupt
                self._depth = 0
                self.threads.release()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        """Unlock."""
        try:
            if self._depth == 1:
                self._locked = False
                if self._file is not None:
                    self._file.unlock()
        finally:
            self._depth -= 1
            self.threads.release()

    def close(self) -> None:
        """Close the lock file. The next operation opens it again."""
        with self.threads:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _take(self) -> None:
        now = time.monotonic()
        if self._sidecars.have_moved():
            self.close()
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
            self.close()  # the file was removed or replaced: other processes lock the new one

    def _opened(self) -> File:
        pid = os.getpid()
        if self._file is None or self._pid != pid:
            self._file = self._sidecars.open_lock()
            self._pid = pid
            self._looked = 0.0
        return self._file

    def _wait(self, file: File, deadline: float) -> None:
        pause = _FIRST_PAUSE_S
        while not file.lock():
            if time.monotonic() >= deadline:
                raise FileInUseError(
                    f"another program has held this lock for {self._timeout:g} s, expected less than a second; find"
                    " it with lsof or fuser, and end it",
                    path=self.path,
                )
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)
