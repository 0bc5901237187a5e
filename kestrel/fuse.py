"""What refuses writing: a failed write, an interrupted operation, the end of the queue, a forked child."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from kestrel.errors import FailedError, ShutError
from sej.errors import ClosedError
from sej.system.lifecycle import watch_forks

__all__ = ["Fuse", "opening"]


class Fuse:
    """Blows at the first failed write, sync or lock and stays so: a failed fsync is never tried again.

    Attributes:
        live: whether the next operation may begin. It is False while one is under way: where that never came to its
            end, because a signal's handler raised in the midst of it, files and memory may differ, and no other begins.
        shut: whether the queue was closed.
        blown: the first failure, or that this is a forked child; else None.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.live = False
        self.shut = False
        self.blown: FailedError | ShutError | None = None
        watch_forks(self)

    def refuse(self) -> NoReturn:
        """Say why there is no writing here.

        Raises:
            FailedError: something failed or was interrupted before.
            ShutError: it was closed, or opened by the parent process.
        """
        if self.blown is not None:
            raise type(self.blown)(self.blown.reason, path=self.path) from self.blown
        if self.shut:
            raise ShutError("the queue is closed; open it anew", path=self.path)
        raise FailedError(
            "an operation was interrupted in its midst, so that files and memory may differ: close the queue and open"
            " it anew, which finds what is there",
            path=self.path,
        )

    def blow(self, cause: Exception) -> NoReturn:
        """After a failure. Raises as :meth:`refuse`."""
        self.live = False
        if isinstance(cause, ClosedError):
            raise ShutError("the lock of the queue is not held any more; open it anew", path=self.path) from cause
        self.blown = FailedError(
            f"writing failed ({cause}); what reached the disk is unknown: close the queue and open it anew, which finds"
            " what is there",
            path=self.path,
        )
        raise self.blown from cause

    def _after_fork(self) -> None:
        """In a forked child: the lock, and what memory holds of the files, are the parent's."""
        self.live = False
        self.blown = ShutError(
            "the queue was opened by the parent process; a forked child opens its own after the parent closed it",
            path=self.path,
        )


@contextmanager
def opening(path: str) -> Iterator[None]:
    """While a queue is opened: what the system refuses is a :class:`FailedError` too."""
    try:
        yield
    except OSError as error:
        raise FailedError(
            f"opening failed ({error}); nothing was lost by it: see to room and permissions, then open it again",
            path=path,
        ) from error
