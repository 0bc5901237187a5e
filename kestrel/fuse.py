"""The lifecycle of an open queue: open, inside an operation, failed, closed, forked.

::

    opening ──► live ◄──► inside an operation ──► failed        a write, a sync or the lock failed
                 │                 └────────────► interrupted   a signal's handler raised inside the operation
                 ├──► closed
                 └──► forked                                    only in the child

While an operation is under way, the files and the memory may differ, so ``live`` is False. The operation sets it again
as its last step. If an exception ends the operation before that, ``live`` stays False and every later call is refused.
A failed fsync is never tried again: Linux reports the failure once and marks the pages clean.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from kestrel.errors import FailedError, ShutError
from kestrel.hot import Live
from sej.errors import ClosedError
from sej.system.lifecycle import watch_forks

__all__ = ["Fuse", "opening"]


class Fuse(Live):
    """Refuses calls after the first failure, after an interrupted operation, after ``close`` and in a forked child.

    Attributes:
        live: whether the next operation may begin.
        shut: whether the queue was closed, or is being closed.
        blown: the first failure, or that this is a forked child; else None.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.blown: FailedError | ShutError | None = None
        watch_forks(self)

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


@contextmanager
def opening(path: str) -> Iterator[None]:
    """While a queue is opened: an ``OSError`` is a :class:`FailedError` too."""
    try:
        yield
    except OSError as error:
        raise FailedError(
            f"opening failed ({error}); nothing was lost; check free space and permissions, then open it again",
            path=path,
        ) from error
