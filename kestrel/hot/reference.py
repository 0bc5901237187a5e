"""What both formats do at every append, in pure Python: the reference for the compiled module.

The lifecycle of an open queue is a :class:`Fuse`::

    opening ──► live ◄──► inside an operation ──► failed        a write, a sync or the lock failed
                 │                 └────────────► interrupted   a signal's handler raised inside the operation
                 ├──► closed
                 └──► forked                                    only in the child

While an operation is under way, the files and the memory may differ, so ``live`` is False. The operation sets it again
as its last step. If an exception ends the operation before that, ``live`` stays False and every later call is refused.
A failed fsync is never tried again: Linux reports the failure once and marks the pages clean.

An append has four steps::

    1. require ``live``, look after the lock every 100 ms
    2. ``live = False``
    3. one write(2) of whole operations or records, and a sync if the policy wants one
    4. the caller changes its memory, and sets ``live = True``
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns as tick_ns
from typing import TYPE_CHECKING, Final, NoReturn

from kestrel.errors import FailedError, ShutError
from sej.errors import ClosedError, LockLostError
from sej.fork import notice_fork, watch_forks

if TYPE_CHECKING:
    from sej.system.disk import File

__all__ = ["Appender", "Entry", "Fuse", "Log", "Output", "tick_ns"]

_CHECK_NS: Final = 100_000_000


class Fuse:
    """Refuses calls after the first failure, after an interrupted operation, after ``close`` and in a forked child.

    Attributes:
        path: the queue.
        shut: whether the queue was closed, or is being closed.
        blown: the first failure, or that this is a forked child; else None.
    """

    def __init__(self, path: str) -> None:
        """Make one for a queue that is being opened."""
        self.path = path
        self._live = False
        self.shut = False
        self.blown: FailedError | ShutError | None = None
        watch_forks(self)

    @property
    def live(self) -> bool:
        """Whether the next operation may begin."""
        notice_fork()  # the compiled one is asked with the queue's mutex held, which notices it
        return self._live

    @live.setter
    def live(self, live: bool) -> None:
        self._live = live

    def require_open(self) -> None:
        """Make sure that the queue was not closed.

        Raises:
            ShutError: it was.
        """
        if self.shut:
            raise ShutError("the queue is closed; open it again", path=self.path)

    def refuse(self) -> NoReturn:
        """Raise the error that says why no operation may begin.

        Raises:
            FailedError: something failed or was interrupted before.
            ShutError: the queue was closed, or was opened by the parent process.
        """
        if self.blown is not None:
            raise type(self.blown)(self.blown.reason, path=self.path) from self.blown
        self.require_open()
        raise FailedError(
            "an operation was interrupted, so the files and the memory may differ; close the queue and open it again,"
            " which reads the files",
            path=self.path,
        )

    def blow(self, cause: Exception) -> NoReturn:
        """Remember a failure. Raises as :meth:`refuse`."""
        self.live = False
        if isinstance(cause, ClosedError):
            raise ShutError("this process does not hold the queue's lock; open the queue again", path=self.path) from (
                cause
            )
        self.blown = FailedError(
            f"writing failed ({cause}); it is unknown which bytes reached the disk; close the queue and open it again,"
            " which reads the files",
            path=self.path,
        )
        raise self.blown from cause

    def _after_fork(self) -> None:
        """In a forked child: the lock, and the state in memory, belong to the parent."""
        self.live = False
        self.blown = ShutError(
            "the queue was opened by the parent process; a forked child can open it after the parent has closed it",
            path=self.path,
        )


class Entry:
    """A file in the queue's list.

    Attributes:
        size: how many of its bytes count.
    """

    def __init__(self, size: int) -> None:
        self.size = size


class Output:
    """Writes at the end of one open file.

    Attributes:
        aimed: whether it has one.
    """

    def __init__(self) -> None:
        self.aimed = False
        self._write: Callable[[bytes], int] | None = None
        self._rest: Callable[[bytes], None] | None = None

    def aim(self, file: File | None) -> None:
        """Write to this file from now on; None: to none."""
        self.aimed = file is not None
        self._write = None if file is None else file.writer()
        self._rest = None if file is None else file.write

    def out(self, data: bytes) -> None:
        """Write all of it."""
        assert self._write is not None
        done = self._write(data)
        if done != len(data):
            assert self._rest is not None
            self._rest(data[done:])


class Appender:
    """Appends to the newest file of a queue.

    Attributes:
        fuse: the lifecycle. :meth:`append` leaves it not live; the caller sets ``fuse.live = True`` when the memory is
            as the file is.
        output: writes to the file.
        entry: the file's entry in the queue's list, whose size is kept current.
        active: whether the policy syncs.
    """

    def __init__(
        self, fuse: Fuse, *, check_lock: Callable[[], None], by_policy: Callable[[], None] | None = None
    ) -> None:
        """Make one that has no file yet.

        Args:
            fuse: the queue's.
            check_lock: raises if another process may hold the queue.
            by_policy: called after each append, to sync now or later; None: the policy does not sync.
        """
        self.fuse = fuse
        self.output = Output()
        self.entry = Entry(0)
        self.active = by_policy is not None
        self._check_lock = check_lock
        self._by_policy = by_policy
        self._checked_ns = 0

    def append(self, data: bytes, *, midway: bool = False) -> None:
        """Write at the end of the file, and sync by the policy.

        Args:
            data: whole operations or records.
            midway: this continues the operation that the last append began.

        Raises:
            FailedError: a write, a sync or the lock failed, now or before, or an operation was interrupted.
            ShutError: the queue was closed, or belongs to the parent process.
        """
        fuse = self.fuse
        if not fuse.live and not midway:
            fuse.refuse()
        fuse.live = False
        try:
            tick = tick_ns()
            if not 0 <= tick - self._checked_ns < _CHECK_NS:
                self._check_lock()
                self._checked_ns = tick
            self.output.out(data)
            self.entry.size += len(data)
            if self._by_policy is not None:
                self._by_policy()
        except (OSError, LockLostError, ClosedError) as error:
            fuse.blow(error)

    def check(self) -> None:
        """Make sure that an operation may begin. Raises as :meth:`append`."""
        fuse = self.fuse
        if not fuse.live:
            fuse.refuse()
        tick = tick_ns()
        if not 0 <= tick - self._checked_ns < _CHECK_NS:
            try:
                self._check_lock()
            except (OSError, LockLostError, ClosedError) as error:
                fuse.blow(error)
            self._checked_ns = tick


class Log:
    """Appends to a log that may repeat what it has: a failure blows the fuse, an interrupt changes nothing.

    Attributes:
        fuse: the queue's.
        output: writes to the log.
        grown: the bytes since the log was emptied.
        unsynced: whether any of them may not be on disk.
        enough: how many bytes are enough for a checkpoint.
    """

    def __init__(self, fuse: Fuse, enough: int) -> None:
        self.fuse = fuse
        self.output = Output()
        self.grown = 0
        self.unsynced = False
        self.enough = enough

    def append(self, record: bytes) -> None:
        """Write one record. Raises as :meth:`Appender.append`."""
        fuse = self.fuse
        if not fuse.live or not self.output.aimed:
            fuse.refuse()
        try:
            self.output.out(record)
        except OSError as error:
            fuse.blow(error)
        self.grown += len(record)
        self.unsynced = True
