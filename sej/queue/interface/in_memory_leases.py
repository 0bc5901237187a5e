"""Shared by backends that store no leases on disk: a ``.tq`` file, a Kestrel journal.

Their items belong to the object that took them, until they are ended or that object is closed.
This module uses only the queue interface, errors and file watching.
"""

from __future__ import annotations

import contextlib
import threading
from abc import abstractmethod
from collections.abc import Hashable
from typing import Any

from sej.checks import SECONDS, Seconds, optional, reason_of, require, seconds
from sej.errors import ClosedError, LeaseLostError
from sej.queue.interface.queue import Item, WorkQueue
from sej.system.watch import Watch


class HeldItem(Item):
    """An item held by the object that took it."""

    __slots__ = ("_bytes", "_hold", "_position", "place")

    def __init__(
        self,
        queue: HoldingQueue,
        message: Any,
        data: bytes,
        attempts: int,
        hold: Any,
        *,
        place: Hashable = None,
        position: int | None = None,
    ) -> None:
        """Create an item that was taken from ``queue``.

        Args:
            queue: the queue that holds it.
            message: the object of the backend's package.
            data: its value.
            attempts: the attempt, from 1.
            hold: the backend's object that ends the item by ``done()``, makes it ready again by ``give_back()``, or a
                dead letter by ``give_up(reason)``. They return False if the item is no longer held.
            place: the key under which its attempts are counted; None: the backend counts them itself.
            position: its position, for errors.
        """
        super().__init__(queue, message, attempts)
        self._bytes = data
        self._hold = hold
        self.place = place
        self._position = position

    @property
    def _data(self) -> bytes:
        return self._bytes

    def done(self, result: Any = None) -> None:
        """Mark the item done: it is not delivered again."""
        self._queue._require(("results", result is not None))
        with self._queue.guard:
            self._end(self._is_held() and self._hold.done())

    def retry(self, delay_s: Seconds | None = None, reason: str | BaseException = "") -> None:
        """Make the item ready again immediately, or give it up after max_attempts."""
        delay_s = seconds("delay_s", delay_s)
        require(delay_s=delay_s)
        reason = reason_of(reason)
        self._queue._require(("retry_delay", delay_s))
        if self.attempts >= self._queue.max_attempts:
            self.fail(reason)
        else:
            self.give_back()

    def fail(self, reason: str | BaseException = "") -> None:
        """Write the item to the dead letters."""
        text = reason_of(reason)
        with self._queue.guard:
            self._end(self._is_held() and self._hold.give_up(text or None))

    def extend(self, lease_s: Seconds) -> None:
        """Do nothing: the item is held as long as its queue is open."""
        raise self._queue._unsupported("extend")

    def give_back(self) -> None:
        """Make the item ready again immediately, whatever its number of attempts."""
        with self._queue.guard:
            self._end(self._is_held() and self._hold.give_back(), back=True)

    def _is_held(self) -> bool:
        return self in self._queue._held

    def _end(self, held: bool, *, back: bool = False) -> None:
        self._require_held(held)
        self.ended = True
        self._queue.ended(self, back=back)

    def _require_held(self, held: bool) -> None:
        """Raise an error if the backend no longer holds the item; the caller has the guard."""
        if not held:
            if self in self._queue._held:
                self._queue._held.remove(self)
            raise LeaseLostError(
                "this item is not held here any more: it was ended, or another process took, returned or edited it",
                path=self._queue.path,
                position=self._position,
            )


class HoldingQueue(WorkQueue):
    """A work queue that keeps the items in progress in memory.

    Attributes:
        max_attempts: after this many attempts an item becomes a dead letter.
        guard: held while items are taken or ended.
    """

    def __init__(self, path: str, name: str, max_attempts: int, lease_s: Seconds | None, folder: str) -> None:
        """Create a queue that holds nothing.

        Args:
            path: the path that was opened.
            name: the queue's name.
            max_attempts: after this many attempts an item becomes a dead letter.
            lease_s: checked and not used: an item is held until it is ended or the queue is closed.
            folder: the directory that changes when an item may be available.
        """
        require(path=path, name=name, max_attempts=max_attempts)
        optional(SECONDS)("lease_s", seconds("lease_s", lease_s))
        self.path = path
        self.name = name
        self.max_attempts = max_attempts
        self.guard = threading.RLock()
        self._folder = folder or "."
        self._held: list[HeldItem] = []
        self._tries: dict[Hashable, int] = {}
        self._watch: Watch | None = None

    def ended(self, item: HeldItem, *, back: bool) -> None:
        """Record that an item was ended, and forget its attempts unless it is delivered again."""
        self._held.remove(item)
        if not back:
            self._tries.pop(item.place, None)

    @abstractmethod
    def _reserve(self) -> HeldItem | None:
        """Take one item, with the guard held."""

    def _attempt(self, place: Hashable) -> int:
        """Count one more attempt of the item at ``place``."""
        self._tries[place] = attempts = self._tries.get(place, 0) + 1
        return attempts

    def _take(self, n: int, max_bytes: int | None = None) -> list[Item]:
        with self.guard:
            found: list[Item] = []
            while len(found) < n and (item := self._reserve()) is not None:
                self._held.append(item)
                found.append(item)
            return found

    def _wait(self, left_s: float | None) -> bool:
        if self._watch is None:
            self._watch = Watch(self._folder)
            return True
        due = self._due_s()
        limit = due if left_s is None else left_s if due is None else min(left_s, due)
        return self._watch.wait(limit) or limit != left_s

    def _due_s(self) -> float | None:
        """Return in how many seconds an item may become ready without an event; None: never."""
        return None

    def _give_all_back(self) -> None:
        """Return all items and stop watching."""
        try:
            for item in list(self._held):
                with contextlib.suppress(LeaseLostError, ClosedError):  # an interrupted done() may have ended it
                    item.give_back()
        finally:
            if self._watch is not None:
                self._watch.close()
            self._watch = None
