"""The life of an object that holds files and locks: open, failed, closed, or copied into a forked child.

::

    open ----- a write, a sync or a lock failed -----> failed
      |                                                  |
      +---------------- close() ----> closed <-----------+

    any of them ----- fork, as seen by the child -----> forked

====== ===== ============================== ==================================================
state  open  a call                         close()
====== ===== ============================== ==================================================
open   True  works                          finishes the work, then gives everything back
failed False raises what failed             gives everything back; raises what failed if no call has
closed False raises ClosedError             does nothing
forked False raises ClosedError             does nothing: the files and locks are the parent's
====== ===== ============================== ==================================================

**A call is under way** if its thread holds :attr:`Lifecycle.mutex`. A thread that finds the mutex its own is a signal's
handler that interrupts such a call. It is refused with :class:`~sej.LockedError`, whatever it calls, ``close()`` too.
That is asked of the mutex and not of a flag, because an exception can leave a flag behind but not a mutex: the ``with``
statement releases it in C.

**An interrupted close().** A handler's exception can end ``close()`` anywhere. Before the work is finished the object
stays open, and afterwards it is closed but holds some of its files. In both cases the next ``close()`` continues, so
``_release()`` must be safe to call twice. :meth:`Lifecycle.exit` makes that second call at the end of a ``with`` block.

**Fork.** Each check of the state asks first whether this is a forked child: see :mod:`sej.fork`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, NoReturn, Protocol, Self

from sej.checks import refuse_pickling
from sej.errors import ClosedError, LockedError, LockLostError, SejError, WriterFailedError
from sej.fork import forget_forked, notice_fork, watch_forks
from sej.system.disk import of_system

owns: Final[Callable[[threading.RLock], bool]] = type(threading.RLock())._is_owned  # type: ignore[attr-defined]
"""Whether this thread holds a lock, as :class:`threading.Condition` asks it. The caller has looked for a fork."""


def is_mine(lock: threading.RLock) -> bool:
    """Whether this thread holds a lock already: then this is a signal's handler, in the middle of a call."""
    notice_fork()
    return owns(lock)


def _clear_frames(trace: TracebackType | None) -> None:
    """Drop the local variables of frames, as :func:`traceback.clear_frames` does, whose module is slow to import."""
    while trace is not None:
        with suppress(RuntimeError):  # the frame still runs
            trace.tb_frame.clear()
        trace = trace.tb_next


class Owner(Protocol):
    """What has a life: an object that holds files and locks."""

    def close(self) -> None:
        """Call :meth:`Lifecycle.close`."""

    def _finish(self) -> None:
        """Finish the work of an open object.

        If no call of another thread may come after its last step, it calls :meth:`Lifecycle.shut` itself, with the
        mutex held.
        """

    def _release(self) -> None:
        """Give back files and locks. It is called again if an exception interrupted it."""

    def _close_copies(self) -> None:
        """In a forked child, close the copies of descriptors, which would keep the parent's locks."""

    def _reworded(self, cause: BaseException) -> SejError:
        """Return the error that reports a failure."""


class Lifecycle:
    """The state of one object, and the mutex that guards it.

    The owner calls :meth:`require_outside`, then takes :attr:`mutex` with a ``with`` statement of its own, then calls
    :meth:`require`. A context manager written in Python could be interrupted between taking and releasing.

    Attributes:
        mutex: held by the thread whose call is under way; a new one in a forked child.
        open: whether calls work: not failed, closed or forked.
        closed: whether the work is finished, so that nothing can follow.
        forked: whether this is a copy in a forked child.
        failure: what failed first, or None.
        unreported: whether that came from a background thread and no call has raised it so far.
    """

    open = True
    closed = forked = unreported = _released = False
    failure: BaseException | None = None

    def __init__(self, what: str, path: str, owner: Owner) -> None:
        """Open.

        Args:
            what: the owner, for error texts: ``"the writer"``.
            path: the owner's, for errors.
            owner: whose life this is; kept until it is closed.
        """
        self._what = what
        self._path = path
        self._owner: Owner | None = owner
        self.mutex = threading.RLock()
        self._closing = threading.RLock()
        watch_forks(self)

    @property
    def inside(self) -> bool:
        """Whether a call of the owner is under way in this thread."""
        return is_mine(self.mutex)

    def require_outside(self) -> None:
        """Refuse a signal's handler that interrupts a call of its own thread.

        Raises:
            LockedError: a call of the owner is under way in this thread.
        """
        notice_fork()
        if owns(self.mutex):
            raise self._under_way()

    def require(self) -> None:
        """Refuse a call of an object that is not open; see :meth:`refuse`."""
        notice_fork()
        if not self.open:
            self.refuse()

    def refuse(self) -> NoReturn:
        """Say why no call works any more.

        Raises:
            WriterFailedError: a write or sync failed; as the owner words it.
            LockLostError: the lock was lost.
            ClosedError: it is closed, or belongs to the parent process.
        """
        if self.forked:
            raise ClosedError(f"{self._what} belongs to the parent process: open one after the fork", path=self._path)
        if self.failure is not None:
            self.unreported = False
            if isinstance(self.failure, LockLostError):
                lost = self.failure
                raise LockLostError(lost.reason, path=lost.path, position=lost.position, offset=lost.offset) from lost
            text = WriterFailedError(str(self.failure)) if self._owner is None else self._owner._reworded(self.failure)
            raise text from self.failure
        raise ClosedError(f"{self._what} is closed", path=self._path)

    def fail(self, cause: BaseException) -> bool:
        """Let every later call raise; False if it was not open.

        The cause is kept without what its frames hold: a file in there would keep its lock.
        """
        if not self.open:
            return False
        self.failure = cause
        self.open = False
        if cause.__traceback__ is not None:
            _clear_frames(cause.__traceback__.tb_next)
        return True

    def leave_unreported(self) -> None:
        """Let :meth:`close` raise the failure unless another call does: it came from a background thread."""
        self.unreported = self.failure is not None

    def shut(self) -> None:
        """Nothing can follow: called with the mutex held, when the work is finished."""
        self.closed = True
        self.open = False

    def close(self) -> None:
        """Finish and give everything back. Of several threads one does it; the others return when it is done.

        Raises:
            LockedError: a call of the owner is under way in this thread; nothing was done.
            SejError: what finish raised, or what failed in the background. Everything is given back all the same.
        """
        notice_fork()
        if self.forked:
            return
        if owns(self.mutex) or owns(self._closing):
            raise self._under_way()
        with self._closing:
            owner = self._owner
            if self._released or owner is None:
                return
            try:
                if self.open:
                    owner._finish()
                    if self.open:
                        self.shut()
            except BaseException as error:
                if isinstance(error, SejError) or of_system(error):  # else an interrupt: the next close() finishes
                    self.shut()
                raise
            finally:
                if not self.open:
                    with self.mutex:  # after a call of another thread that is under way
                        self.closed = True
                    owner._release()
                    self._released = True
                    forget_forked(self)
                    if self.failure is None:  # a cycle of references would live until the garbage is collected
                        self._owner = None
        if self.unreported:
            self.refuse()

    def exit(self, kind: type[BaseException] | None) -> None:
        """Close at the end of a ``with`` block; the block's error is not replaced by one of the background.

        Args:
            kind: the type of the block's error, or None.
        """
        self.unreported = self.unreported and kind is None
        owner = self._owner
        if owner is None:
            return
        try:
            owner.close()
        except BaseException:
            owner.close()  # what a signal's handler interrupted: no other call would finish it
            raise

    def _under_way(self) -> LockedError:
        return LockedError(
            f"a call of {self._what} is under way in this thread: a signal's handler cannot use it before that returns;"
            " let the handler set a flag or raise",
            path=self._path,
        )

    def _after_fork(self) -> None:
        """In a forked child: the mutex may be held by a thread that does not exist here."""
        self.mutex = threading.RLock()
        self._closing = threading.RLock()
        self.open = False
        self.forked = True
        if self._owner is not None:
            self._owner._close_copies()


class Closing(ABC):
    """An object that a ``with`` block closes at its end. It cannot be pickled."""

    __reduce__ = refuse_pickling

    @abstractmethod
    def close(self) -> None:
        """Close everything; a second call does nothing."""

    def __enter__(self) -> Self:
        """Return the object."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the object."""
        self.close()
