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
from collections.abc import Collection, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from kestrel.errors import BadNameError, KestrelError, MissingError, ShutError
from kestrel.files import check_name, files_of, queue_names
from kestrel.segmented.files import list_files
from kestrel.segmented.queue import Queue as SegmentedQueue
from kestrel.v2.format import MAX_TIME_MS
from kestrel.v2.queue import Queue
from sej.checks import Seconds, options_of, refuse_unknown
from sej.queue.interface.in_memory_leases import HeldItem, HoldingQueue
from sej.queue.interface.queue import OPENING, WorkQueue, require_known
from sej.queue.interface.values import PutOptions, Stats
from sej.system.disk import absolute_path

_SHARED: Final = ("sync", "disk")
"""The options of a queue that its dead letters have too."""
_REDRIVEN: Final = 64
"""How many dead letters one sync puts back: after a kill so many may be delivered twice."""


class _Kestrel:
    """A Kestrel 2 queue."""

    def __init__(self, directory: str, base: str, name: str, *, dead: bool = False, **options: Any) -> None:
        self._queue = queue = Queue(directory, base, **options)
        self._added = 0
        self.confirm, self.put_back = queue.confirm, queue.unreserve
        self.flush, self.sync, self.close = queue.flush, queue.sync, queue.close

    @staticmethod
    def known(directory: str, base: str, name: str) -> Collection[str]:
        return (name,) if base in queue_names(directory) else ()

    def put(self, data: list[bytes], until: int | None) -> Sequence[int]:
        """Add items; returns numbers that count them since the queue was opened."""
        self._queue.put_many(data, expiry=until or 0)
        first, self._added = self._added, self._added + len(data)
        return range(first, first + len(data))

    def take(self) -> _Hold | None:
        found = self._queue.reserve()
        return None if found is None else _Hold(self, found[1], found[0], self._queue.number_of(found[0]), 0)

    def holds(self, handle: int) -> bool:
        return self._queue.number_of(handle) is not None

    def open(self) -> int:
        return len(self._queue) + len(self._queue.open_transactions)


class _Segmented:
    """libkestrel's files: one reader, with the name of the work queue."""

    def __init__(self, directory: str, base: str, name: str, *, dead: bool = False, **options: Any) -> None:
        self._queue = queue = SegmentedQueue(directory, base, **options)
        try:
            # A named reader has the place of the default one if a program opened the dead letters as a queue.
            self._reader = reader = queue.reader(queue.readers[0] if dead and name not in queue.readers else name)
        except BaseException:
            queue.close()
            raise
        self.holds, self.confirm, self.put_back = reader.holds, reader.commit, reader.unget
        self.flush, self.sync, self.close = reader.flush, queue.sync, queue.close

    @staticmethod
    def known(directory: str, base: str, name: str) -> Collection[str]:
        """The named readers. If the queue has none, any name takes the default reader's place."""
        listing = list_files(files_of(directory, check_name(base)), base)
        named = [reader for reader in listing.readers if reader]
        return named or ((name,) if listing.writers or listing.readers else ())

    def put(self, data: list[bytes], until: int | None) -> Sequence[int]:
        """Add items; returns their ids."""
        return self._queue.put_many(data, expire_time=until)

    def take(self) -> _Hold | None:
        item = self._reader.get()
        return None if item is None else _Hold(self, item, item.id, None, item.error_count + 1)

    def open(self) -> int:
        return len(self._reader)


class KestrelWorkQueue(HoldingQueue):
    """A work queue in the files of Kestrel 2 or libkestrel."""

    can: ClassVar[frozenset[str]] = frozenset({"expire", "dead_letters", "redrive", "purge"})

    def __init__(
        self,
        kind: type[_Kestrel | _Segmented],
        path: str,
        name: str,
        *,
        max_attempts: int = 5,
        lease_s: Seconds | None = None,
        create: bool | None = None,
        **options: Any,
    ) -> None:
        """Open ``directory/name``; lease_s is ignored, options are those of the queue of this kind."""
        directory, self._base = os.path.split(path.rstrip(os.sep))
        if not self._base or not directory:
            raise BadNameError(f"the path must be directory/name, as in 'spool/cars' or './cars', got {path!r}")
        self._directory = absolute_path(directory)
        super().__init__(path, name, max_attempts, lease_s, self._directory)
        known: Collection[str] = ()
        with contextlib.suppress(MissingError):  # a queue makes its directory
            known = kind.known(self._directory, self._base, name)
        require_known(name, known, create, path)
        self._kind = kind
        self._store = kind(self._directory, self._base, name, **options)
        self._dead: _Kestrel | _Segmented | None = None
        self._dead_options = {option: options[option] for option in _SHARED if option in options}
        self._done = self._moved = 0
        self._closed = False

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
            closing.callback(self._store.close)
            try:
                self._give_all_back()
            except KestrelError:
                self._held.clear()
                self._give_all_back()

    def _dead_store(self) -> _Kestrel | _Segmented:
        """The queue of the dead letters, opened at its first use; no file is opened after the queue was closed."""
        if self._closed:
            raise ShutError("the queue is closed; open it again", path=self.path)
        if self._dead is None:
            options = self._dead_options
            self._dead = self._kind(self._directory, f"{self._base}_dead", self.name, dead=True, **options)
        return self._dead

    def redrive(self, limit: int | None = None) -> int:
        """Put dead letters back, oldest first."""
        with self.guard:
            dead, count, found = self._dead_store(), 0, _REDRIVEN
            while found == _REDRIVEN and (limit is None or count < limit):
                found = self._redrive(dead, _REDRIVEN if limit is None else min(_REDRIVEN, limit - count))
                count += found
            return count

    def _redrive(self, dead: _Kestrel | _Segmented, most: int) -> int:
        """Put back at most this many. They are durable before their letters are confirmed."""
        letters: list[_Hold] = []
        try:
            while len(letters) < most and (letter := dead.take()) is not None:
                try:
                    self._store.put([letter.item.data], None)
                except BaseException:
                    letter.give_back()
                    raise
                letters.append(letter)
        finally:
            if letters:
                self._store.sync()
                for letter in letters:
                    letter.done()
        return len(letters)

    def sync(self) -> None:
        """Force the queue's files to the disk."""
        self._store.sync()

    def stats(self) -> Stats:
        """How many items there are; dead ones are counted by their queue."""
        with self.guard:
            held = len(self._held)
            return Stats(self._store.open() - held, 0, held, self._done - self._moved, self._dead_store().open())

    def purge(self) -> int:
        """Remove all waiting items."""
        return self._store.flush()

    def _put(self, values: Iterable[bytes], keys: Iterable[bytes] | None, options: PutOptions) -> Sequence[int]:
        """Add items at the end, with one write to each file."""
        ends = float("inf") if options.expire_s is None else (time.time() + options.expire_s) * 1000
        with self.guard:  # after the year 292,000,000 is never
            return self._store.put(list(values), int(ends) if ends < MAX_TIME_MS else None)

    def _reserve(self) -> HeldItem | None:
        hold = self._store.take()
        if hold is None:
            return None
        hold.owner = self
        attempts = hold.attempts or self._attempt(hold.place)
        return HeldItem(self, hold.item, hold.item.data, attempts, hold, place=hold.place)

    def add_dead(self, data: bytes) -> None:
        """Add a dead letter, durably: after a power failure the item must be in one of the two queues."""
        dead = self._dead_store()
        dead.put([data], None)
        dead.sync()
        self._moved += 1


class _Hold:
    """A hold on an item of a store.

    Attributes:
        item: the item.
        handle: under which it is held.
        place: under which its attempts are counted; None: the item counts them.
        attempts: if the item counts them.
        owner: the work queue that took it.
    """

    owner: KestrelWorkQueue

    def __init__(self, store: _Kestrel | _Segmented, item: Any, handle: int, place: Hashable, attempts: int) -> None:
        self.item, self.handle, self.place, self.attempts = item, handle, place, attempts
        self.done, self.give_back = partial(store.confirm, handle), partial(store.put_back, handle)
        self._store = store

    def give_up(self, reason: str | None = None) -> bool:
        if not self._store.holds(self.handle):
            return False
        self.owner.add_dead(self.item.data)
        return self.done()


def open_kestrel(path: str, name: str, **options: Any) -> WorkQueue:
    """What the entry point ``kestrel`` of ``sej.backends`` names."""
    refuse_unknown("a Kestrel queue", options, options_of(KestrelWorkQueue.__init__, Queue.__init__), OPENING)
    return KestrelWorkQueue(_Kestrel, path, name, **options)


def open_libkestrel(path: str, name: str, **options: Any) -> WorkQueue:
    """What the entry point ``libkestrel`` of ``sej.backends`` names."""
    known = options_of(KestrelWorkQueue.__init__, SegmentedQueue.__init__)
    refuse_unknown("a libkestrel queue", options, known, OPENING)
    return KestrelWorkQueue(_Segmented, path, name, **options)
