"""The interface of an item of a work queue, whatever its backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, Self

from sej.checks import refuse_pickling
from sej.durations import Seconds
from sej.errors import LeaseLostError


class Item(ABC):
    """One item, leased to the worker that took it.

    End it with :meth:`done`, :meth:`retry` or :meth:`fail`, or use it as a context manager: ``done`` if the block
    succeeds, ``retry`` if it raises (the exception propagates). ``async with`` does the same in a thread. All of them
    raise :class:`~sej.LeaseLostError` if another worker may have the item, or if it was ended before.
    """

    __reduce__ = refuse_pickling

    __slots__ = ()

    @property
    @abstractmethod
    def value(self) -> Any:
        """The value that was put, as bytes or as an object of the queue's serializer."""

    @property
    @abstractmethod
    def key(self) -> bytes:
        """The key that was put; empty if the backend has no keys."""

    @property
    def headers(self) -> dict[str, str]:
        """The headers that were put, a new dict at each access; empty if there are none."""
        return {}

    @property
    @abstractmethod
    def message(self) -> Any:
        """The backend's own object, a :class:`sej.Message` on a journal."""

    @property
    @abstractmethod
    def attempts(self) -> int:
        """The number of attempts, including this one; at first 1."""

    @property
    @abstractmethod
    def ended(self) -> bool:
        """True if done, retry or fail was called."""

    @abstractmethod
    def done(self) -> None:
        """Mark the item done: it is not delivered again."""

    @abstractmethod
    def retry(self, delay_s: Seconds | None = None, reason: str | BaseException = "") -> None:
        """Return the item to the queue; after max_attempts it becomes a dead letter.

        Args:
            delay_s: seconds until it may be taken again; None: longer with each attempt, with jitter, if the backend
                supports delays.
            reason: what went wrong, for the dead letter: a text, or an exception with its traceback.
        """

    def give_back(self) -> None:
        """Return the item to the queue immediately, not as an attempt if the backend can tell."""
        self.retry(0.0)

    @abstractmethod
    def fail(self, reason: str | BaseException = "") -> None:
        """Give the item up: it becomes a dead letter, with the reason as for :meth:`retry`."""

    @abstractmethod
    def extend(self, lease_s: Seconds) -> None:
        """Extend the lease to ``lease_s`` seconds from now."""

    def __enter__(self) -> Self:
        """Return the item."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Call done, or retry after an exception; nothing if the block has ended the item itself."""
        if self.ended:
            return
        if error is None:
            self.done()
            return
        with suppress(LeaseLostError):  # the exception propagates, and another worker has the item
            self.retry(reason=error)

    async def __aenter__(self) -> Self:
        """Return the item."""
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End the item in a thread, as the end of a ``with`` block does."""
        import asyncio

        await asyncio.to_thread(self.__exit__, kind, error, trace)
