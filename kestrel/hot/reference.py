"""What both formats do at every append, in pure Python: the reference for the compiled module.

An append has four steps::

    1. require ``live``, look after the lock every 100 ms
    2. ``live = False``
    3. one write(2) of whole operations or records, and a sync if the policy wants one
    4. the caller changes its memory, and sets ``live = True``

So an exception between 2 and 4 leaves ``live`` False, and every later call is refused; see :mod:`kestrel.fuse`.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic_ns as tick_ns
from typing import TYPE_CHECKING, Final, NoReturn

from sej.errors import ClosedError, LockLostError

if TYPE_CHECKING:
    from sej.system.disk import File

__all__ = ["Appender", "Entry", "Live", "Log", "Output", "tick_ns"]

_CHECK_NS: Final = 100_000_000


class Live:
    """The state of an open queue that every operation asks for.

    Attributes:
        live: whether the next operation may begin.
        shut: whether the queue was closed, or is being closed.
    """

    def __init__(self) -> None:
        self.live = False
        self.shut = False

    def require_open(self) -> None:
        """Make sure that the queue was not closed."""
        raise NotImplementedError

    def refuse(self) -> NoReturn:
        """Raise the error that says why no operation may begin."""
        raise NotImplementedError

    def blow(self, cause: Exception) -> NoReturn:
        """Remember a failure, and raise it."""
        raise NotImplementedError


class Entry:
    """A file in the queue's list.

    Attributes:
        size: how many of its bytes count.
    """

    def __init__(self, size: int) -> None:
        self.size = size


class Output:
    """Writes at the end of one open file."""

    def __init__(self) -> None:
        self._write: Callable[[bytes], int] | None = None
        self._rest: Callable[[bytes], None] | None = None

    def aim(self, file: File | None) -> None:
        """Write to this file from now on; None: to none."""
        self._write = None if file is None else file.writer()
        self._rest = None if file is None else file.write

    def _out(self, data: bytes) -> None:
        assert self._write is not None
        done = self._write(data)
        if done != len(data):
            assert self._rest is not None
            self._rest(data[done:])


class Appender(Output):
    """Appends to the newest file of a queue.

    Attributes:
        fuse: the lifecycle. :meth:`append` leaves it not live.
        entry: the file that is appended to.
    """

    def __init__(self, fuse: Live, *, active: bool) -> None:
        """Make one that has no file yet.

        Args:
            fuse: the queue's.
            active: whether the policy syncs.
        """
        super().__init__()
        self.fuse = fuse
        self.entry = Entry(0)
        self.active = active
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
                self.check_lock()
                self._checked_ns = tick
            self._out(data)
            self.entry.size += len(data)
            if self.active:
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
                self.check_lock()
            except (OSError, LockLostError, ClosedError) as error:
                fuse.blow(error)
            self._checked_ns = tick

    def check_lock(self) -> None:
        """Make sure that the queue's lock is held, just before a change that cannot be taken back.

        Raises:
            LockLostError: another process may hold the queue.
        """
        raise NotImplementedError

    def _by_policy(self) -> None:
        """Sync now or later, as the policy wants."""
        raise NotImplementedError


class Log(Output):
    """Appends to a log that may repeat what it has: a failure blows the fuse, an interrupt changes nothing.

    Attributes:
        fuse: the queue's.
        grown: the bytes since the log was emptied.
        unsynced: whether any of them may not be on disk.
        enough: how many bytes are enough for a checkpoint.
    """

    def __init__(self, fuse: Live, enough: int) -> None:
        super().__init__()
        self.fuse = fuse
        self.grown = 0
        self.unsynced = False
        self.enough = enough

    def append(self, record: bytes) -> None:
        """Write one record. Raises as :meth:`Appender.append`."""
        fuse = self.fuse
        if not fuse.live or self._write is None:
            fuse.refuse()
        try:
            self._out(record)
        except OSError as error:
            fuse.blow(error)
        self.grown += len(record)
        self.unsynced = True
