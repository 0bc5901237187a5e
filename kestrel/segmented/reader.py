"""One reader of a libkestrel queue. It gets, gives back and commits items, in any order.

Every public method takes the queue's mutex. The items are read from the writer files; in memory are those that were
taken and not committed, and numbers.

The head moves to just before the lowest item that is taken or given back, or to the last one that was read. So it
passes ids that are missing, and done items above it are skipped after the next opening. (The original never passes
a gap between two files, and delivers done items again.)
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple

from kestrel.fast import Entry, Following, shorten, tick_ns
from kestrel.files import MAGIC_SIZE, Limits
from kestrel.reading import Cursor, Reading, Source
from kestrel.segmented.files import Bookmark, items_of
from kestrel.segmented.format import Item, encode_done, encode_head
from kestrel.segmented.journal import BookmarkFile, Journal
from sej.checks import Seconds
from sej.system.disk import File


class Counters(NamedTuple):
    """What a reader has waiting, and what it did since the queue was opened.

    Attributes:
        items: waiting.
        bytes: of these.
        open: taken and neither committed nor given back.
        gets: calls of get.
        hits: that found an item.
        misses: that did not.
        committed: items.
        canceled: items that were given back.
        expired: items.
        discarded: items that were dropped at a limit.
        flushes: calls of flush.
    """

    items: int
    bytes: int
    open: int
    gets: int
    hits: int
    misses: int
    committed: int
    canceled: int
    expired: int
    discarded: int
    flushes: int


class Rules(NamedTuple):
    """The options of a queue that its readers follow, with the same names."""

    limits: Limits
    on_expired: Callable[[Item], None] | None
    max_errors: int | None
    on_given_up: Callable[[str, Item], None] | None


class Reader(Following):
    """One reader; made by ``Queue.reader``.

    Attributes:
        name: empty for the default reader.
        file: its file.
    """

    def __init__(self, journal: Journal, rules: Rules, name: str, bookmark: Bookmark) -> None:
        """Made by ``Queue.reader``."""
        self.name = name
        self.file = BookmarkFile(journal.tail, name)
        head = bookmark.head
        while head + 1 in bookmark.done:  # the original looks at the head only
            head += 1
        done = frozenset(number for number in bookmark.done if number > head)
        self.file.replace(head, sorted(done))
        super().__init__(journal, self.file.log, head, done, ageless=rules.limits.max_age_ms is None)
        self._journal, self._rules, self._tail, self._fuse = journal, rules, journal.tail, journal.fuse
        self._unread = _Unread(journal, self, journal.tail.place)
        self._cursor = Cursor(self._unread)
        self._counts = dict.fromkeys(("canceled", "expired", "discarded", "flushes"), 0)

    @property
    def bookmark(self) -> Bookmark:
        """What the reader has confirmed."""
        with self._signal.guard:
            return Bookmark(self.head, frozenset(number for number in self.done if number > self.head))

    def get(self, timeout: Seconds | None = 0.0) -> Item | None:
        """Take the next item. If it is not committed, it is delivered again after the next opening.

        Args:
            timeout: seconds to wait for an item; 0: do not wait, None: no limit.

        Returns:
            The item; None if none came in time. An item that was given back comes before the others, with its
            error_count raised.
        """
        return self._next(timeout, True)

    def peek(self, timeout: Seconds | None = 0.0) -> Item | None:
        """Return the item that ``get`` would take, without taking it."""
        return self._next(timeout, False)

    def holds(self, item: Item | int) -> bool:
        """Whether the item is taken, and neither committed nor given back."""
        with self._signal.guard:
            return self._has_taken(item if isinstance(item, int) else item.id)

    def commit(self, item: Item | int) -> bool:
        """The item, or the item of this id, is done with. False if it is not taken."""
        number = item if isinstance(item, int) else item.id
        with self._signal.guard:
            self._tail.check()
            if not self._has_taken(number):
                return False
            self._finish(number)
            self.committed += 1
            return True

    def unget(self, item: Item | int) -> bool:
        """Give a taken item back, named by itself or its id. False if it is not taken.

        It is the next to be got, after others that were given back. Its error_count is raised, in memory alone, as in
        the original; at ``max_errors`` the item is committed instead.
        """
        number = item if isinstance(item, int) else item.id
        rules = self._rules
        with self._signal.guard:
            self._tail.check()
            if not self._has_taken(number):
                return False
            again = self.outstanding[number]
            again = again._replace(error_count=again.error_count + 1)
            self._counts["canceled"] += 1
            if rules.max_errors is not None and again.error_count >= rules.max_errors:
                if rules.on_given_up is not None:
                    rules.on_given_up(self.name, again)
                self._finish(number)
                self._counts["discarded"] += 1
                return True
            self._fuse.live = False
            self.outstanding[number] = again
            self.returned[number] = None
            self._fuse.live = True
            self._signal.changed.notify_all()
            return True

    def flush(self) -> int:
        """Commit everything that waits, up to the last item; taken ones stay taken. Returns how many."""
        with self._signal.guard:
            self._tail.check()
            taken = {number: item for number, item in self.outstanding.items() if number not in self.returned}
            # Everything above the lowest taken one must be done by number.
            after = self._journal.items_after(min(taken) - 1) if taken else ()
            above = [item.id for item in after if item.id not in taken]
            count = self.items - len(taken)
            self._fuse.live = False
            self.outstanding.clear()
            self.outstanding.update(taken)
            self.returned.clear()
            self.ahead = None
            self.seen = self._journal.tail_id
            self._skip_to(self.seen)
            self.items = len(taken)
            self.bytes = sum(len(item.data) for item in taken.values())
            self.done.update(above)
            self.lowest = sorted(taken)
            self.head = self._over_done(max(self.lowest[0] - 1 if self.lowest else self.seen, self.head))
            self._counts["flushes"] += 1
            self._fuse.live = True
            self.checkpoint()
            return count

    def __len__(self) -> int:
        """How many items are not committed, those that are taken included."""
        return self.items

    def counters(self) -> Counters:
        """What is counted."""
        with self._signal.guard:
            open_, misses = len(self.outstanding) - len(self.returned), self.gets - self.hits
            taken = self.items, self.bytes, open_, self.gets, self.hits, misses, self.committed
            return Counters(*taken, **self._counts)

    # What the queue calls, under its lock.

    def added(self, found: list[Item]) -> None:
        """The files hold these items, which this reader may have to see."""
        sizes = [len(item.data) for item in found if item.id > self.head and item.id not in self.skip]
        self.items += len(sizes)
        self.bytes += sum(sizes)

    def checkpoint(self) -> None:
        """Replace the reader file by a short one; the writer files are synced first."""
        self._tail.sync()
        self.done = {number for number in self.done if number > self.head}
        self.file.replace(self.head, sorted(self.done))

    @property
    def size(self) -> int:
        """The data of everything that is not committed."""
        return self.bytes

    def drop_oldest(self) -> bool:
        """Commit the next item, unseen; False if nothing waits."""
        item = self.upcoming()
        if item is None:
            return False
        self._drop(item)
        self._counts["discarded"] += 1
        return True

    def close(self) -> None:
        """Close its files."""
        self._cursor.close()
        self.file.leave()

    def _drop(self, item: Item, *, expired: bool = False) -> None:
        """Commit the next item, unseen; it comes next again if the report fails, or if this is interrupted."""
        try:
            self._take(item)
            if expired and self._rules.on_expired is not None:
                self._rules.on_expired(item)
            self._finish(item.id)
        except BaseException:  # a signal handler's exception, too, must not leave the item taken
            if self._has_taken(item.id):
                self.ahead = None
                self.returned[item.id] = None
                self.returned.move_to_end(item.id, last=False)
            raise

    def _next(self, timeout: Seconds | None, take: bool) -> Item | None:
        with self._signal.guard:
            self.gets += take
            for _ in self._signal.turns(timeout):
                self._tail.check()
                item = self.upcoming()
                if item is not None:
                    if take:
                        self._take(item)
                        self.hits += 1
                    return item
            return None

    def upcoming(self) -> Item | None:
        """Commit what has expired of the items that come next; return the first other one, without taking it."""
        while True:
            if self.returned:
                item = self.outstanding[next(iter(self.returned))]
            else:
                if self.ahead is None:
                    if self.reading:  # an interrupt: what was read may not have come here
                        self._skip_to(self.seen)
                    self.reading = True
                    self.ahead = self._read()
                    self.reading = False
                if self.ahead is None:
                    return None
                item = self.ahead
            expire_time = self._rules.limits.expiry(item.add_time, item.expire_time)
            if expire_time is None or expire_time > self._tail.place.now_ms():  # at its time, not after it
                return item
            self._drop(item, expired=True)
            self._counts["expired"] += 1

    def _read(self) -> Item | None:
        while True:
            while self.at < len(self.batch):
                item = self.batch[self.at]
                self.at += 1
                number = item.id
                if number > self.after and number > self.head:
                    if number not in self.skip and number not in self.outstanding:
                        return item
                    self.skip.discard(number)
                self.seen = max(self.seen, number)
            batch = self._cursor.batch()
            if batch is None:
                return None
            self.at = 0
            self.batch = batch

    def _skip_to(self, number: int) -> None:
        """Pass everything up to number."""
        self._cursor.close()
        self._cursor = Cursor(self._unread)
        self.after = number
        self.batch = []
        self.at = 0

    def _has_taken(self, number: int) -> bool:
        return number in self.outstanding and number not in self.returned

    def _take(self, item: Item) -> None:
        """Take an item.

        In this order an interrupt anywhere in between only has the item taken again, and no head passes it.
        """
        number = item.id
        if self.returned and next(iter(self.returned)) == number:
            del self.returned[number]
        else:
            heapq.heappush(self.lowest, number)
            self.outstanding[number] = item
            self.seen = max(self.seen, number)
            self.ahead = None

    def _finish(self, number: int) -> None:
        """Commit a taken item. The record is written first: if that fails, nothing here has changed."""
        if not self._fuse.live:
            self._fuse.refuse()
        item = self.outstanding[number]
        lowest = self.lowest
        while lowest and (lowest[0] not in self.outstanding or lowest[0] == number):
            heapq.heappop(lowest)
        head = lowest[0] - 1 if lowest else self.seen
        if self.done:
            head = self._over_done(head)
        # Both may be needed: the head also moves over gaps, and over items that were done before the opening.
        if number > head:
            self.file.log.out(encode_done((number,)))
            self.done.add(number)
        if head > self.head:
            self.file.log.out(encode_head(head))
            self.head = head
        self._fuse.live = False
        del self.outstanding[number]
        self.items -= 1
        self.bytes -= len(item.data)
        self._fuse.live = True
        if self.file.log.grown > self.file.log.enough:
            self.checkpoint()
        self._tail.touched()
        if tick_ns() >= self._journal.due_ns:
            self._journal.checkpoint()

    def _over_done(self, head: int) -> int:
        """A head, moved over done ids directly above it: the original delivers everything above the head again."""
        while head + 1 in self.done:
            head += 1
        return head


shorten(Reader, "get", "commit")


class _Unread:
    """The writer files that a reader has yet to pass, for a cursor."""

    def __init__(self, journal: Journal, reader: Following, source: Source) -> None:
        self._journal, self._reader, self.source = journal, reader, source

    def following(self, entry: Entry | None) -> tuple[Entry, int] | None:
        files = self._journal.files
        start = 1 + next((at for at, file in enumerate(files) if file is entry), -1)
        passed = max(self._reader.after, self._reader.head)  # a file that ends there may have been retired
        found = next((file for file in files[start:] if file.last_id > passed), None)
        return None if found is None else (found, MAGIC_SIZE)

    def reading(self, file: File, start: int, end: int) -> Reading:
        return items_of(file, start, end)
