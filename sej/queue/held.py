"""What the backends share: items in somebody's hands, and queues that keep no leases on the disk.

:class:`QueueItem` is what every item is made of. :class:`HeldItem` and :class:`HoldingQueue` are for backends where an
item belongs to the object that took it, until it is ended or that object is closed: a ``.tq`` file, a Kestrel journal.
Part of the ground floor: it relies on the queue face, errors and watching alone.
"""

from __future__ import annotations

import contextlib
import threading
from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from sej.checks import PATH, POSITIVE, SECONDS, TEXT, optional, require
from sej.errors import ClosedError, InvalidMessageError, LeaseLostError
from sej.queue.interface import Item, WorkQueue
from sej.system.watch import Watch

__all__ = ["HeldItem", "HoldingQueue", "QueueItem"]


class QueueItem(Item):
    """An item of a queue.

    Attributes:
        message: what the backend keeps.
        attempts: how often it was delivered, from 1.
        ended: whether it was ended here.
    """

    __slots__ = ("_queue", "attempts", "ended", "message")
    message: Any
    attempts: int
    ended: bool

    def __init__(self, queue: Any, message: Any, attempts: int) -> None:
        """Handed out by queue."""
        self._queue = queue
        self.message = message
        self.attempts = attempts
        self.ended = False

    @property
    @abstractmethod
    def _data(self) -> bytes:
        """The value as it is kept."""

    @property
    def value(self) -> Any:
        """What was put.

        Raises:
            InvalidMessageError: the serializer cannot read it.
        """
        serializer = self._queue.serializer
        if serializer is None:
            return self._data
        try:
            return serializer.decode(self._data)
        except Exception as error:
            raise InvalidMessageError(
                f"{serializer.name} cannot read this value ({error}): was it put by other means? fail() the item",
                path=self._queue.path,
                offset=getattr(self.message, "offset", None),
            ) from error

    @property
    def key(self) -> bytes:
        """What was put as its key; empty where the backend has none."""
        return b""


class HeldItem(QueueItem):
    """An item that the object which took it holds.

    The three ways to end it say False where it is not held any more.
    """

    __slots__ = ("_back", "_bury", "_bytes", "_done", "_position", "place")

    def __init__(
        self,
        queue: HoldingQueue,
        message: Any,
        data: bytes,
        attempts: int,
        *,
        done: Callable[[], bool],
        back: Callable[[], bool],
        bury: Callable[[str], bool],
        place: Hashable = None,
        position: int | None = None,
    ) -> None:
        """Taken by queue.

        Args:
            queue: holds it.
            message: as the backend's package knows it.
            data: its value.
            attempts: which hand-out this is, from 1.
            done: ends it for good.
            back: makes it ready again.
            bury: gives it up, for a reason.
            place: what its attempts were counted by; None: the backend counts them itself.
            position: where it stands, for errors.
        """
        super().__init__(queue, message, attempts)
        self._bytes = data
        self._done = done
        self._back = back
        self._bury = bury
        self.place = place
        self._position = position

    @property
    def _data(self) -> bytes:
        return self._bytes

    def done(self) -> None:
        """It never comes back."""
        self._end(self._done)

    def retry(self, delay_s: float | None = None, reason: str = "") -> None:
        """Ready again at once, or among the dead letters after max_attempts."""
        require(delay_s=(delay_s, optional(SECONDS)), reason=(reason, TEXT))
        self._queue._require(("retry_delay", delay_s))
        if self.attempts >= self._queue.max_attempts:
            self.fail(reason)
        else:
            self.give_back()

    def fail(self, reason: str = "") -> None:
        """Among the dead letters."""
        TEXT("reason", reason)
        self._end(lambda: self._bury(reason))

    def extend(self, lease_s: float) -> None:
        """Nothing to do: it is held as long as its queue is open."""
        raise self._queue._unsupported("extend")

    def give_back(self) -> None:
        """Ready again at once, however often it was tried."""
        self._end(self._back, back=True)

    def _end(self, act: Callable[[], bool], *, back: bool = False) -> None:
        with self._queue.guard:
            held = not self.ended and act()
            if not held:
                self._queue.lost(self)
                raise LeaseLostError(
                    "this item is not held any more: it was ended, or put back or edited by somebody else meanwhile",
                    path=self._queue.path,
                    position=self._position,
                )
            self.ended = True
            self._queue.ended(self, back=back)


class HoldingQueue(WorkQueue):
    """A work queue that holds what it has handed out in memory.

    Attributes:
        max_attempts: after so many hand-outs an item goes to the dead letters.
        guard: held while items are taken or ended.
    """

    def __init__(self, path: str, name: str, max_attempts: int, lease_s: float | None, folder: str) -> None:
        """Nothing is held.

        Args:
            path: as given on opening.
            name: the queue's.
            max_attempts: after so many hand-outs an item goes to the dead letters.
            lease_s: checked and not used: an item is held until it is ended or the queue is closed.
            folder: the directory that changes when there may be something to take.
        """
        require(
            path=(path, PATH),
            name=(name, TEXT),
            max_attempts=(max_attempts, POSITIVE),
            lease_s=(lease_s, optional(SECONDS)),
        )
        self.path = path
        self.name = name
        self.max_attempts = max_attempts
        self.guard = threading.RLock()
        self._folder = folder or "."
        self._held: list[HeldItem] = []
        self._tries: dict[Hashable, int] = {}
        self._watched: list[Watch] = []

    def ended(self, item: HeldItem, *, back: bool) -> None:
        """Take note of an item that its holder ended, and forget its attempts where it does not come back."""
        self._held.remove(item)
        if not back:
            self._tries.pop(item.place, None)

    def lost(self, item: HeldItem) -> None:
        """Take note of an item that somebody else has, or nobody: it is not held any more."""
        if item in self._held:
            self._held.remove(item)

    @abstractmethod
    def _reserve(self) -> HeldItem | None:
        """Take one item, with the guard held."""

    def _attempt(self, place: Hashable) -> int:
        """Count one more hand-out of what stands there."""
        self._tries[place] = attempts = self._tries.get(place, 0) + 1
        return attempts

    def _take(self, n: int) -> list[Item]:
        with self.guard:
            found: list[Item] = []
            while len(found) < n and (item := self._reserve()) is not None:
                self._held.append(item)
                found.append(item)
            return found

    def _watches(self) -> Sequence[Watch]:
        if not self._watched:
            self._watched = [Watch(self._folder)]
        return self._watched

    def _leave(self) -> None:
        """Give everything back and stop watching."""
        try:
            for item in list(self._held):
                with contextlib.suppress(LeaseLostError, ClosedError):  # an interrupted done() may have ended it
                    item.give_back()
        finally:
            for watch in self._watched:
                watch.close()
            self._watched = []
