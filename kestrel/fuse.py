"""What a failed write does to a queue: every later call is refused, until it is opened anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from kestrel.errors import FailedError, ShutError
from sej.errors import ClosedError

__all__ = ["Fuse", "opening"]


class Fuse:
    """Blows at the first failed write, sync or lock and stays so: a failed fsync is never tried again.

    Attributes:
        blown: the first failure, or None.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.blown: FailedError | None = None

    def refuse(self) -> NoReturn:
        """Say why there is no writing here.

        Raises:
            FailedError: something failed before.
            ShutError: nothing failed, so it was closed.
        """
        if self.blown is not None:
            raise FailedError(self.blown.reason, path=self.path) from self.blown
        raise ShutError("the queue is closed; open it anew", path=self.path)

    def blow(self, cause: Exception) -> NoReturn:
        """After a failure. Raises as :meth:`refuse`."""
        if isinstance(cause, ClosedError):
            raise ShutError(
                "the queue was opened by the parent process; a forked child opens its own after the parent closed it",
                path=self.path,
            ) from cause
        self.blown = FailedError(
            f"writing failed ({cause}); what reached the disk is unknown: close the queue and open it anew, which finds"
            " what is there",
            path=self.path,
        )
        raise self.blown from cause


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
