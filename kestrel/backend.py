"""Kestrel's two queues as work queues: ``sej.open_queue("directory/cars", backend="kestrel")``, or ``"libkestrel"``.

Thin faces over ``reserve`` and ``confirm``, and over a reader's ``get`` and ``commit``. One process has such a queue
open; its threads share it. Dead letters are a queue of their own beside it, ``<name>_dead``, without a reason: the
formats have no room for one. Attempts are counted by the object that has a Kestrel 2 queue open, by the item's bytes
and time; libkestrel counts them itself.
"""

from __future__ import annotations

import os
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from kestrel.errors import BadNameError
from kestrel.queue import Queue
from kestrel.segmented.queue import Queue as SegmentedQueue
from sej.errors import LeaseLostError
from sej.watch import Watch
from sej.work import Item, Stats, WorkQueue

__all__ = ["KestrelItem", "KestrelWorkQueue", "SegmentedWorkQueue", "open_kestrel", "open_libkestrel"]


class KestrelItem(Item):
    """An item that is reserved, and how it is ended."""

    def __init__(
        self, queue: _Face, message: Any, attempts: int, confirm: Callable[[], bool], back: Callable[[], bool]
    ) -> None:
        """Reserved for queue."""
        self._queue = queue
        self._message = message
        self._attempts = attempts
        self._confirm = confirm
        self._back = back
        self._ended = False

    @property
    def value(self) -> Any:
        """The item's bytes, or what the serializer makes of them."""
        serializer = self._queue._serializer
        return self._message.data if serializer is None else serializer.decode(self._message.data)

    @property
    def key(self) -> bytes:
        """Empty: Kestrel's items have no key."""
        return b""

    @property
    def message(self) -> Any:
        """The item as the package knows it."""
        return self._message

    @property
    def attempts(self) -> int:
        """How often it was handed out."""
        return self._attempts

    @property
    def ended(self) -> bool:
        """Whether it was ended here."""
        return self._ended

    def done(self) -> None:
        """Confirmed."""
        self._end(self._confirm)

    def retry(self, delay_s: float | None = None, reason: str = "") -> None:
        """Put back at once, or among the dead letters after max_attempts."""
        self._queue._require(("retry_delay", delay_s))
        if self._attempts >= self._queue.max_attempts:
            self.fail(reason)
        else:
            self._end(self._back, back=True)

    def fail(self, reason: str = "") -> None:
        """Into the queue of the dead letters."""
        with self._queue.guard:
            self._check()
            self._queue.bury(self._message.data)
            self._end(self._confirm)

    def extend(self, lease_s: float) -> None:
        """Nothing to do: a reservation lasts as long as the queue is open."""
        raise self._queue._unsupported("extend")

    def _end(self, act: Callable[[], bool], *, back: bool = False) -> None:
        with self._queue.guard:
            self._check()
            if not act():
                raise LeaseLostError("this item was put back in the meantime", path=self._queue.path)
            self._ended = True
            self._queue.ended(self, back=back)

    def _check(self) -> None:
        if self._ended:
            raise LeaseLostError("this item was ended already", path=self._queue.path)


class _Face(WorkQueue):
    """What both have in common.

    Attributes:
        max_attempts: after so many hand-outs an item goes to the dead letters.
        guard: held while items are taken or ended.
    """

    can: ClassVar[frozenset[str]] = frozenset({"expire", "dead_letters", "redrive", "purge"})

    def __init__(self, path: str, name: str, max_attempts: int) -> None:
        if max_attempts < 1:
            raise ValueError(f"max_attempts {max_attempts}: at least 1 is due")
        self.path = path
        self.name = name
        self.max_attempts = max_attempts
        self.guard = threading.RLock()
        self._directory, self._base = os.path.split(path.rstrip(os.sep))
        if not self._base:
            raise BadNameError(f"{path!r}: directory/name is due")
        self._held: list[KestrelItem] = []
        self._done = self._moved = 0
        self._watched: list[Watch] = []

    def put_many(
        self,
        values: Iterable[Any],
        keys: Iterable[bytes] | None = None,
        *,
        delay_s: float = 0.0,
        priority: int = 0,
        expire_s: float | None = None,
        dedupe_keys: Sequence[bytes] | None = None,
        timeout: float | None = None,
    ) -> Sequence[int]:
        """Add items at the end, with one write; returns numbers that count them since the queue was opened."""
        self._require(("keys", keys), ("delay", delay_s), ("priority", priority), ("dedupe", dedupe_keys))
        data = [value if self._serializer is None else self._serializer.encode(value) for value in values]
        until = None if expire_s is None else int((time.time() + expire_s) * 1000)
        return self._put(data, until)

    def ended(self, item: KestrelItem, *, back: bool) -> None:
        """Take note of an item that its holder ended."""
        self._held.remove(item)
        self._done += not back

    @abstractmethod
    def bury(self, data: bytes) -> None:
        """Put an item among the dead letters."""

    @abstractmethod
    def _put(self, data: list[bytes], until: int | None) -> Sequence[int]:
        """Add items."""

    @abstractmethod
    def _reserve(self) -> KestrelItem | None:
        """Take one item."""

    def _take(self, n: int) -> list[Item]:
        with self.guard:
            found: list[Item] = []
            while len(found) < n and (item := self._reserve()) is not None:
                self._held.append(item)
                found.append(item)
            return found

    def _watches(self) -> Sequence[Watch]:
        if not self._watched:
            self._watched = [Watch(self._directory or ".")]
        return self._watched

    def _leave(self) -> None:
        for item in list(self._held):
            item._end(item._back, back=True)
        for watch in self._watched:
            watch.close()
        self._watched = []


class KestrelWorkQueue(_Face):
    """A work queue in a Kestrel 2 journal."""

    def __init__(
        self, path: str, name: str, *, max_attempts: int = 5, lease_s: float | None = None, **options: Any
    ) -> None:
        """Open ``directory/name``; lease_s is left aside, options are those of :class:`kestrel.Queue`."""
        super().__init__(path, name, max_attempts)
        self._queue = Queue(self._directory, self._base, **options)
        self._dead: Queue | None = None
        self._tries: dict[tuple[bytes, int | None], int] = {}
        self._added = 0

    def stats(self) -> Stats:
        """How many items there are; dead ones are counted by their queue."""
        with self.guard:
            return Stats(len(self._queue), 0, len(self._held), self._done - self._moved, len(self._dead_queue()))

    def purge(self) -> int:
        """Throw away what waits."""
        return self._queue.flush()

    def redrive(self, limit: int | None = None) -> int:
        """Put dead letters back, oldest first."""
        with self.guard:
            dead, count = self._dead_queue(), 0
            while (limit is None or count < limit) and (found := dead.reserve()) is not None:
                self._queue.put(found[1].data)
                dead.confirm(found[0])
                count += 1
            return count

    def sync(self) -> None:
        """Force the journal to the disk."""
        self._queue.sync()

    def close(self) -> None:
        """Give back what is held, and close."""
        with self.guard:
            if self._held or self._watched:
                self._leave()
            self._queue.close()
            if self._dead is not None:
                self._dead.close()

    def bury(self, data: bytes) -> None:
        """Put an item among the dead letters."""
        self._dead_queue().put(data)
        self._moved += 1

    def ended(self, item: KestrelItem, *, back: bool) -> None:
        """Forget the attempts of what does not come back."""
        super().ended(item, back=back)
        if not back:
            self._tries.pop((item.message.data, item.message.add_time), None)

    def _put(self, data: list[bytes], until: int | None) -> Sequence[int]:
        self._queue.put_many(data, expiry=until or 0)
        with self.guard:
            first, self._added = self._added, self._added + len(data)
        return range(first, first + len(data))

    def _reserve(self) -> KestrelItem | None:
        found = self._queue.reserve()
        if found is None:
            return None
        xid, item = found
        place = (item.data, item.add_time)
        self._tries[place] = self._tries.get(place, 0) + 1
        return KestrelItem(
            self, item, self._tries[place], lambda: self._queue.confirm(xid), lambda: self._queue.unreserve(xid)
        )

    def _dead_queue(self) -> Queue:
        if self._dead is None:
            self._dead = Queue(self._directory, f"{self._base}_dead")
        return self._dead


class SegmentedWorkQueue(_Face):
    """A work queue in libkestrel's files: one reader, called as the queue is."""

    def __init__(
        self, path: str, name: str, *, max_attempts: int = 5, lease_s: float | None = None, **options: Any
    ) -> None:
        """Open ``directory/name``; lease_s is left aside, options are those of :class:`kestrel.segmented.Queue`."""
        super().__init__(path, name, max_attempts)
        self._queue = SegmentedQueue(self._directory, self._base, **options)
        self._reader = self._queue.reader(name)
        self._dead: SegmentedQueue | None = None

    def stats(self) -> Stats:
        """How many items there are; dead ones are counted by their queue."""
        with self.guard:
            held = len(self._held)
            dead = len(self._dead_queue().reader())
            return Stats(len(self._reader) - held, 0, held, self._done - self._moved, dead)

    def purge(self) -> int:
        """Throw away what waits."""
        return self._reader.flush()

    def redrive(self, limit: int | None = None) -> int:
        """Put dead letters back, oldest first."""
        with self.guard:
            dead, count = self._dead_queue().reader(), 0
            while (limit is None or count < limit) and (item := dead.get()) is not None:
                self._queue.put(item.data)
                dead.commit(item)
                count += 1
            return count

    def sync(self) -> None:
        """Force the files to the disk."""
        self._queue.sync()

    def close(self) -> None:
        """Give back what is held, and close."""
        with self.guard:
            if self._held or self._watched:
                self._leave()
            self._queue.close()
            if self._dead is not None:
                self._dead.close()

    def bury(self, data: bytes) -> None:
        """Put an item among the dead letters."""
        self._dead_queue().put(data)
        self._moved += 1

    def _put(self, data: list[bytes], until: int | None) -> Sequence[int]:
        return self._queue.put_many(data, expire_time=until)

    def _reserve(self) -> KestrelItem | None:
        item = self._reader.get()
        if item is None:
            return None
        reader = self._reader
        return KestrelItem(self, item, item.error_count + 1, lambda: reader.commit(item), lambda: reader.unget(item))

    def _dead_queue(self) -> SegmentedQueue:
        if self._dead is None:
            self._dead = SegmentedQueue(self._directory, f"{self._base}_dead")
            self._dead.reader()
        return self._dead


def open_kestrel(path: str, name: str, **options: Any) -> WorkQueue:
    """What the entry point ``kestrel`` of ``sej.backends`` names."""
    return KestrelWorkQueue(path, name, **options)


def open_libkestrel(path: str, name: str, **options: Any) -> WorkQueue:
    """What the entry point ``libkestrel`` of ``sej.backends`` names."""
    return SegmentedWorkQueue(path, name, **options)
