"""The lock of a text queue, ``.jobs.tq.lck``. Every program that uses this library takes it for one operation.

It relies on ``flock``. It promises that within ``with guard:`` no other thread, process or queue object changes the
file through this library. Editors do not know this lock.

Marks in a row keep the lock from one mark to the next (``Guard.kept``), and release it when another process asks for
it.

**Turns.** Workers that share a file need the lock again and again. With each change of the holder, the new one reads
what the others have written, so it is best if a holder makes many operations. A process that finds the lock taken tries
again after pauses. They begin short, so a process that comes from its work waits little. But if it has had the lock a
moment ago, it pauses for a turn; and if it has had it again and again without a pause, for a long turn.

Most claims need no turns: ``textqueue.editing.quick`` locks the same file for some microseconds at a time.

This library never removes the lock file. If another program removes or replaces it, operations use the new file
after at most ``_LOOK_S``. A forked child opens the lock file again, because it would share an open file's lock with its
parent.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol, Self

from sej.mutex import notice_fork
from sej.system.disk import Disk, File
from textqueue.errors import FileInUseError
from textqueue.ledger.sidecar import Sidecars

_LOOK_S: Final = 0.1
_FIRST_PAUSE_S: Final = 0.000_05
_LONGEST_PAUSE_S: Final = 0.005
_TURN_S: Final = 0.005
"""If an object that has just released the lock finds it taken, it leaves it to the others for this long."""
_ROW_S: Final = 0.001
_LONG_ROW: Final = 8
_LONG_TURN_S: Final = 0.05
"""Operations with at most ``_ROW_S`` between them are a row. After ``_LONG_ROW`` of them, it leaves the lock to the
others for this long."""
_IDLE_S: Final = 0.02
_IDLE_PAUSE_S: Final = 0.01
"""A long turn ends early if the others have not written for the first time. It looks after each pause."""
_ASK_AFTER_S: Final = 0.0004
"""An operation takes less time than this."""


class Kept(Protocol):
    """What keeps the lock from one operation to the next."""

    @property
    def file(self) -> File:
        """The queue file, which stays open."""

    def finish(self) -> None:
        """End it. The lock is held before and after this call."""

    def drop(self) -> None:
        """Release everything, because ``finish`` failed or was interrupted."""


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
        kept: what keeps the lock after the ``with`` block. It is set while the lock is held. The next operation of this
            object calls its ``finish``, and then has the lock.
    """

    def __init__(self, sidecars: Sidecars, *, disk: Disk, ask: Callable[[], None], timeout: float = 60.0) -> None:
        """Create a lock object. The lock file is created when it is first locked.

        Args:
            sidecars: the names of the lock file and its neighbours.
            disk: the file system.
            ask: called to ask a process that keeps the lock between two operations to release it.
            timeout: seconds to wait for the operation of another process.
        """
        self._sidecars = sidecars
        self._disk = disk
        self._ask = ask
        self._timeout = timeout
        self.threads = threading.RLock()
        self._depth = 0
        self._locked = False  # between the two, and if it is kept, a signal handler must not use the file
        self._file: File | None = None
        self._pid = 0
        self.kept: Kept | None = None
        self._left = 0.0  # when this object released the lock
        self._row = 0  # operations that followed each other without a pause
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
        if self._depth and (not self._locked or self.kept is not None):
            self.threads.release()
            raise interrupted(self.path)
        self._depth += 1
        if self._depth == 1:
            self._locked = False
            kept = self.kept
            try:
                if kept is None:
                    self._take()
                else:
                    kept.finish()
                    self.kept = None
                self._locked = True
            except BaseException:
                self.kept = None
                try:
                    if kept is not None:
                        kept.drop()
                finally:
                    if self._file is not None and self._pid == os.getpid():
                        self._file.unlock()  # it may have been taken before the interrupt
                    self._depth = 0
                    self.threads.release()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        """Unlock, unless ``kept`` is set."""
        try:
            if self._depth == 1:
                self._locked = False
                if self._file is not None and self.kept is None:
                    self._file.unlock()
                    self._left = time.monotonic()
        finally:
            self._depth -= 1
            self.threads.release()

    def settled(self) -> File | None:
        """Return the lock file, if no operation or hold uses it, and it was compared with its path a moment ago.

        The caller has the lock between threads, and may lock the file until it releases that.
        """
        free = self.kept is None and not self._depth and self._pid == os.getpid()
        return self._file if free and time.monotonic() - self._looked < _LOOK_S else None

    def forget(self) -> None:
        """Drop the lock in a forked child: it belongs to the parent."""
        self.kept = self._file = None

    def close(self) -> None:
        """Close the lock file. The next operation opens it again."""
        with self.threads:
            if self.kept is not None:
                with self:
                    pass
            if self._file is not None:
                self._file.close()
                self._file = None

    def _take(self) -> None:
        now = time.monotonic()
        self._row = self._row + 1 if now - self._left < _ROW_S else 0
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

    def _leave(self, until: float) -> None:
        """Leave the lock to the others as long as they write to the ledger, but not for longer than a long turn."""
        path = self._sidecars.path(".log")
        seen, grew = self._disk.status(path), time.monotonic()
        while (now := time.monotonic()) < until and now - grew < _IDLE_S:
            time.sleep(_IDLE_PAUSE_S)
            there = self._disk.status(path)
            if there != seen:
                seen, grew = there, now

    def _wait(self, file: File, deadline: float) -> None:
        pause = _TURN_S if time.monotonic() - self._left < _TURN_S else _FIRST_PAUSE_S
        if self._row >= _LONG_ROW:
            self._leave(min(time.monotonic() + _LONG_TURN_S, deadline))
        waited = 0.0
        asked = False
        while not file.lock():
            if waited > _ASK_AFTER_S and not asked:
                asked = True
                self._ask()
            if time.monotonic() >= deadline:
                raise FileInUseError(
                    f"another program has held this lock for {self._timeout:g} s, expected less than a second; find"
                    " it with lsof or fuser, and end it",
                    path=self.path,
                )
            time.sleep(pause)
            waited += pause
            pause = min(pause * 2, _LONGEST_PAUSE_S)
