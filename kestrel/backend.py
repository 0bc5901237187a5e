"""Kestrel's two queues as work queues: ``sej.open_queue("directory/cars", backend="kestrel")``, or ``"libkestrel"``.

Thin layers over ``reserve`` and ``confirm``, and over a reader's ``get`` and ``commit``. One process has such a queue
open; its threads share it. Dead letters are in a second queue, ``<name>_dead``, without a reason: the formats have no
room for one. Attempts are counted by the object that has the queue open.

An item that is given up has its letter on the disk before it is confirmed. If the process dies between the two, the
item is delivered again and its letter remains: at least one of them exists, and perhaps both. A later opening cannot
tell that they are the same: neither format stores where an item came from, and equal items may be added in the same
millisecond. The same is true of a letter that ``redrive`` puts back.
"""

from __future__ import annotations

import contextlib
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, ClassVar, Final

from kestrel.errors import BadNameError, KestrelError, MissingError, ShutError
from kestrel.segmented.files import list_files
from kestrel.segmented.queue import Queue as SegmentedQueue
from kestrel.segmented.reader import Reader
from kestrel.v2.format import MAX_TIME_MS
from kestrel.v2.listing import queue_names
from kestrel.v2.queue import Queue
from sej.checks import options_of, refuse_unknown
from sej.durations import Seconds
from sej.queue.interface.held import HeldItem, HoldingQueue
from sej.queue.interface.queue import OPENING, WorkQueue, require_known
from sej.queue.interface.values import PutOptions, Stats
from sej.system.paths import absolute_path

_SHARED: Final = ("sync", "disk")
"""The options of a queue that its dead letters have too."""
_REDRIVEN: Final = 64
"""How many dead letters one sync puts back: after a kill so many may be delivered twice."""


class _Hold:
    """A hold on an item of one of the two queues."""

    def __init__(self, owner: _Common, item: Any) -> None:
        self._owner = owner
        self.item = item

    @abstractmethod
    def is_held(self) -> bool:
        """Return whether the queue still holds the item for this object."""

    @abstractmethod
    def done(self) -> bool:
        """Confirm the item."""

    @abstractmethod
    def give_back(self) -> bool:
        """Return the item to its queue."""

    def give_up(self, reason: str | None = None) -> bool:
        """Add the item to the dead letters, then confirm it."""
        return self.is_held() and self._owner.add_dead(self.item.data) and self.done()


class _Reserved(_Hold):
    """A reservation of a Kestrel 2 queue."""

    def __init__(self, owner: _Common, item: Any, queue: Queue, xid: int) -> None:
        super().__init__(owner, item)
        self._queue, self._xid = queue, xid

    def is_held(self) -> bool:
        return self._xid in self._queue.open_transactions

    def done(self) -> bool:
        return self._queue.confirm(self._xid)

    def give_back(self) -> bool:
        return self._queue.unreserve(self._xid)


class _Read(_Hold):
    """An item that a libkestrel reader has and did not commit."""

    def __init__(self, owner: _Common, item: Any, reader: Reader) -> None:
        super().__init__(owner, item)
        self._reader = reader

    def is_held(self) -> bool:
        return self._reader.holds(self.item)

    def done(self) -> bool:
        return self._reader.commit(self.item)

    def give_back(self) -> bool:
        return self._reader.unget(self.item)


class _Common(HoldingQueue):
    """What both have in common."""

    can: ClassVar[frozenset[str]] = frozenset({"expire", "dead_letters", "redrive", "purge"})
    _queue: Queue | SegmentedQueue
    _dead: Queue | SegmentedQueue | None

    def __init__(
        self, path: str, name: str, max_attempts: int, lease_s: Seconds | None, options: dict[str, Any]
    ) -> None:
        self._directory, self._base = os.path.split(path.rstrip(os.sep))
        if not self._base or not self._directory:
            raise BadNameError(f"the path must be directory/name, as in 'spool/cars' or './cars', got {path!r}")
        self._directory = absolute_path(self._directory)
        super().__init__(path, name, max_attempts, lease_s, self._directory)
        self._done = self._moved = 0
        self._closed = False
        self._dead_options = {option: options[option] for option in _SHARED if option in options}

    def ended(self, item: HeldItem, *, back: bool) -> None:
        """Count what is not delivered again."""
        super().ended(item, back=back)
        self._done += not back

    def close(self) -> None:
        """Give back what is held, and close. After a failed write it is delivered again after the next opening."""
        with self.guard, contextlib.ExitStack() as closing:
            self._closed = True
            if self._dead is not None:
                closing.callback(self._dead.close)
            closing.callback(self._queue.close)
            try:
                self._leave()
            except KestrelError:
                self._held.clear()
                self._leave()

    def _require_open(self) -> None:
        """Make sure that no file is opened, and no lock taken, for a queue that was closed."""
        if self._closed:
            raise ShutError("the queue is closed; open it again", path=self.path)

    @abstractmethod
    def _dead_queue(self) -> Queue | SegmentedQueue:
        """The queue of the dead letters, opened at its first use."""

    @abstractmethod
    def _take_dead(self) -> _Hold | None:
        """Take the oldest dead letter; None if the queue has none."""

    def add_dead(self, data: bytes) -> bool:
        """Add a dead letter, durably; return True."""
        dead = self._dead_queue()
        dead.put(data)
        dead.sync()  # the two queues are two files: after a power failure the item must be in one of them
        self._moved += 1
        return True

    def redrive(self, limit: int | None = None) -> int:
        """Put dead letters back, oldest first."""
        with self.guard:
            self._require_open()
            count = 0
            while limit is None or count < limit:
                most = _REDRIVEN if limit is None else min(_REDRIVEN, limit - count)
                found = self._redrive_some(most)
                count += found
                if found < most:
                    break
            return count

    def _redrive_some(self, most: int) -> int:
        """Put back at most this many. They are durable before their letters are confirmed."""
        put: list[_Hold] = []
        try:
            while len(put) < most and (dead := self._take_dead()) is not None:
                try:
                    self._queue.put(dead.item.data)
                except BaseException:
                    dead.give_back()
                    raise
                put.append(dead)
        finally:
            if put:
                self._queue.sync()
                for dead in put:
                    dead.done()
        return len(put)

    def sync(self) -> None:
        """Force the queue's files to the disk."""
        self._queue.sync()


class KestrelWorkQueue(_Common):
    """A work queue in a Kestrel 2 journal."""

    def __init__(
        self,
        path: str,
        name: str,
        *,
        max_attempts: int = 5,
        lease_s: Seconds | None = None,
        create: bool | None = None,
        **options: Any,
    ) -> None:
        """Open ``directory/name``; lease_s is ignored, options are those of :class:`kestrel.Queue`."""
        super().__init__(path, name, max_attempts, lease_s, options)
        known = (name,) if self._base in _found(queue_names, self._directory) else ()
        require_known(name, known, create, path)
        self._queue: Queue = Queue(self._directory, self._base, **options)
        self._dead: Queue | None = None
        self._added = 0

    def stats(self) -> Stats:
        """How many items there are; dead ones are counted by their queue."""
        with self.guard:
            return Stats(len(self._queue), 0, len(self._held), self._done - self._moved, len(self._dead_queue()))

    def purge(self) -> int:
        """Remove all waiting items."""
        return self._queue.flush()

    def _put(self, values: Iterable[bytes], keys: Iterable[bytes] | None, options: PutOptions) -> Sequence[int]:
        """Add items at the end, with one write; returns numbers that count them since the queue was opened."""
        data = list(values)
        self._queue.put_many(data, expiry=_until(options) or 0)
        with self.guard:
            first, self._added = self._added, self._added + len(data)
        return range(first, first + len(data))

    def _reserve(self) -> HeldItem | None:
        queue = self._queue
        found = queue.reserve_numbered()
        if found is None:
            return None
        xid, place, item = found
        return HeldItem(self, item, item.data, self._attempt(place), _Reserved(self, item, queue, xid), place=place)

    def _take_dead(self) -> _Hold | None:
        queue = self._dead_queue()
        found = queue.reserve()
        if found is None:
            return None
        xid, item = found
        return _Reserved(self, item, queue, xid)

    def _dead_queue(self) -> Queue:
        self._require_open()
        if self._dead is None:
            self._dead = Queue(self._directory, f"{self._base}_dead", **self._dead_options)
        return self._dead


class SegmentedWorkQueue(_Common):
    """A work queue in libkestrel's files: one reader, with the name of the queue."""

    def __init__(
        self,
        path: str,
        name: str,
        *,
        max_attempts: int = 5,
        lease_s: Seconds | None = None,
        create: bool | None = None,
        **options: Any,
    ) -> None:
        """Open ``directory/name``; lease_s is ignored, options are those of :class:`kestrel.segmented.Queue`."""
        super().__init__(path, name, max_attempts, lease_s, options)
        require_known(name, _found(self._known, name), create, path)
        self._queue: SegmentedQueue = SegmentedQueue(self._directory, self._base, **options)
        try:
            self._reader = self._queue.reader(name)
        except BaseException:
            self._queue.close()
            raise
        self._dead: SegmentedQueue | None = None

    def _known(self, name: str) -> Collection[str]:
        """The named readers. If the queue has none, any name takes the default reader's place."""
        listing = list_files(self._directory, self._base)
        named = [reader for reader in listing.readers if reader]
        return named or ((name,) if listing.writers or listing.readers else ())

    def stats(self) -> Stats:
        """How many items there are; dead ones are counted by their queue."""
        with self.guard:
            held = len(self._held)
            dead = len(self._dead_reader())
            return Stats(len(self._reader) - held, 0, held, self._done - self._moved, dead)

    def purge(self) -> int:
        """Remove all waiting items."""
        return self._reader.flush()

    def _put(self, values: Iterable[bytes], keys: Iterable[bytes] | None, options: PutOptions) -> Sequence[int]:
        """Add items at the end, with one write to each file; returns their ids."""
        return self._queue.put_many(list(values), expire_time=_until(options))

    def _reserve(self) -> HeldItem | None:
        item = self._reader.get()
        if item is None:
            return None
        return HeldItem(self, item, item.data, item.error_count + 1, _Read(self, item, self._reader))

    def _take_dead(self) -> _Hold | None:
        reader = self._dead_reader()
        item = reader.get()
        return None if item is None else _Read(self, item, reader)

    def _dead_queue(self) -> SegmentedQueue:
        self._require_open()
        if self._dead is None:
            self._dead = SegmentedQueue(self._directory, f"{self._base}_dead", **self._dead_options)
        return self._dead

    def _dead_reader(self) -> Reader:
        """The reader of the dead letters. A named one has taken its place if a program opened them as a queue."""
        dead = self._dead_queue()
        return dead.reader(self.name if self.name in dead.readers else dead.readers[0])


def _found(look: Callable[[str], Collection[str]], where: str) -> Collection[str]:
    """What a look into a directory finds; nothing if the directory is missing: a queue makes it."""
    try:
        return look(where)
    except MissingError:
        return ()


def _until(options: PutOptions) -> int | None:
    """When the items expire, ms since the epoch; None: never, or after the year 292,000,000."""
    ends = float("inf") if options.expire_s is None else (time.time() + options.expire_s) * 1000
    return int(ends) if ends < MAX_TIME_MS else None


def open_kestrel(path: str, name: str, **options: Any) -> WorkQueue:
    """What the entry point ``kestrel`` of ``sej.backends`` names."""
    refuse_unknown("a Kestrel queue", options, options_of(KestrelWorkQueue.__init__, Queue.__init__), OPENING)
    return KestrelWorkQueue(path, name, **options)


def open_libkestrel(path: str, name: str, **options: Any) -> WorkQueue:
    """What the entry point ``libkestrel`` of ``sej.backends`` names."""
    refuse_unknown(
        "a libkestrel queue", options, options_of(SegmentedWorkQueue.__init__, SegmentedQueue.__init__), OPENING
    )
    return SegmentedWorkQueue(path, name, **options)
