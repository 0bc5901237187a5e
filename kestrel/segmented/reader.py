"""One reader of a libkestrel queue. It gets, gives back and commits items, in any order.

Every public method takes the queue's mutex. The items are read from the writer files; in memory are those that were
taken and not committed, and numbers.

The head moves to just before the lowest item that is taken or given back, or to the last one that was read. So it
passes ids that are missing, and done items above it are skipped after the next opening. (The original never passes
a gap between two files, and delivers done items again.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from kestrel.errors import MissingError
from kestrel.files import open_file
from kestrel.segmented.codec import Item
from kestrel.segmented.files import Bookmark, Reading
from kestrel.segmented.format import MAGIC_SIZE
from kestrel.segmented.hot import Following, Gets
from kestrel.segmented.journal import BookmarkFile, Journal
from kestrel.segmented.writing import WriterFile, WriterFiles
from sej.durations import Seconds, seconds
from sej.system.disk import Disk, File


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


class Reader(Gets):
    """One reader; made by ``Queue.reader``.

    Attributes:
        name: empty for the default reader.
        file: its file.
    """

    def __init__(self, journal: Journal, name: str, bookmark: Bookmark, file: BookmarkFile, disk: Disk) -> None:
        """Made by ``Queue.reader``."""
        self.name = name
        self.file = file
        state = Following(
            journal.shared,
            file.commits,
            bookmark.head,
            bookmark.done,
            ageless=journal.limits.max_age_ms is None,
            checkpoint=self.checkpoint,
        )
        super().__init__(state, partial(self._next, take=True))
        self._journal = journal
        self._cursor = _Cursor(journal.files, bookmark.head, disk)
        self._counts = dict.fromkeys(("canceled", "expired", "discarded", "flushes"), 0)

    get = Gets.get
    commit = Gets.commit

    @property
    def state(self) -> Following:
        """What it has taken, and its position; for the queue."""
        return self._state

    @property
    def head(self) -> int:
        """Every id up to it is committed."""
        return self._state.head

    @property
    def bookmark(self) -> Bookmark:
        """What the reader has confirmed."""
        state = self._state
        with self._journal.guard:
            return Bookmark(state.head, frozenset(number for number in state.done if number > state.head))

    def peek(self, timeout: Seconds | None = 0.0) -> Item | None:
        """Return the item that ``get`` would take, without taking it."""
        return self._next(timeout, take=False)

    def holds(self, item: Item) -> bool:
        """Whether the item is taken, and neither committed nor given back."""
        with self._journal.guard:
            return self._state.has_taken(item.id)

    def unget(self, item: Item | int) -> bool:
        """Give a taken item back, named by itself or its id. False if it is not taken.

        It is the next to be got, after others that were given back. Its error_count is raised, in memory alone, as in
        the original; at ``max_errors`` the item is committed instead.
        """
        state = self._state
        number = item.id if isinstance(item, Item) else item
        with self._journal.guard:
            self._journal.tail.appender.check()
            if not state.has_taken(number):
                return False
            again = state.outstanding[number]
            again = again._replace(error_count=again.error_count + 1)
            self._counts["canceled"] += 1
            if self._journal.gives_up(self, again):
                state.finish(number)
                self._counts["discarded"] += 1
                return True
            self._journal.fuse.live = False
            state.outstanding[number] = again
            state.returned.add(number)
            state.given_back.append(number)
            self._journal.fuse.live = True
            self._journal.changed.notify_all()
            return True

    def flush(self) -> int:
        """Commit everything that waits, up to the last item; taken ones stay taken. Returns how many."""
        state = self._state
        with self._journal.guard:
            self._journal.tail.appender.check()
            returned = set(state.given_back)
            taken = {number: item for number, item in state.outstanding.items() if number not in returned}
            # Everything above the lowest taken one must be done by number.
            after = self._journal.items_after(min(taken) - 1) if taken else ()
            above = [item.id for item in after if item.id not in taken]
            count = state.items - len(taken)
            self._journal.fuse.live = False
            state.outstanding.clear()
            state.outstanding.update(taken)
            state.given_back.clear()
            state.returned.clear()
            state.ahead = None
            self._skip_to(self._journal.files.end.tail_id)
            state.seen = self._journal.files.end.tail_id
            state.items = len(taken)
            state.bytes = sum(len(item.data) for item in taken.values())
            state.done.update(above)
            state.move_head()
            self._counts["flushes"] += 1
            self._journal.fuse.live = True
            self.checkpoint()
            return count

    def __len__(self) -> int:
        """How many items are not committed, those that are taken included."""
        return self._state.items

    def counters(self) -> Counters:
        """What is counted."""
        state = self._state
        with self._journal.guard:
            counts = self._counts
            return Counters(
                state.items,
                state.bytes,
                len(state.outstanding) - len(state.returned),
                state.gets,
                state.hits,
                state.gets - state.hits,
                state.committed,
                counts["canceled"],
                counts["expired"],
                counts["discarded"],
                counts["flushes"],
            )

    # What the queue calls, under its lock.

    def count(self, found: list[tuple[int, int]]) -> None:
        """The files hold items with these ids and sizes, which this reader may have to see."""
        state = self._state
        head, skip = state.head, state.skip
        sizes = [size for number, size in found if number > head and number not in skip]
        state.added(len(sizes), sum(sizes))

    def checkpoint(self) -> None:
        """Replace the reader file by a short one; the writer files are synced first."""
        state = self._state
        self._journal.sync()
        state.done = {number for number in state.done if number > state.head}
        self.file.replace(state.head, sorted(state.done))

    @property
    def size(self) -> int:
        """The data of everything that is not committed."""
        return self._state.bytes

    def sweep(self) -> None:
        """Commit what has expired of the items that come next."""
        self._upcoming()

    def drop_oldest(self) -> bool:
        """Commit the next item, unseen; False if nothing waits."""
        item = self._upcoming()
        if item is None:
            return False
        self._drop(item)
        self._counts["discarded"] += 1
        return True

    def _drop(self, item: Item, report: Callable[[Item], object] | None = None) -> None:
        """Commit the next item, unseen; it comes next again if the report fails, or if this is interrupted."""
        state = self._state
        try:
            state.take(item)
            if report is not None:
                report(item)
            state.finish(item.id)
        except BaseException:  # a signal handler's exception, too, must not leave the item taken
            if state.has_taken(item.id):
                state.ahead = None
                state.returned.add(item.id)
                state.given_back.appendleft(item.id)
            raise

    def close(self) -> None:
        """Close its files."""
        self._cursor.close()
        self.file.leave()

    def _next(self, timeout: Seconds | None, *, take: bool) -> Item | None:
        timeout = seconds("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout if timeout else 0.0
        state = self._state
        journal = self._journal
        with journal.guard:
            state.gets += take
            evictions = journal.evictions
            while True:
                journal.tail.appender.check()
                item = self._upcoming()
                if item is not None:
                    if take:
                        state.take(item)
                        state.hits += 1
                    return item
                left = None if deadline is None else deadline - time.monotonic()
                if (left is not None and left <= 0) or evictions != journal.evictions:
                    return None
                journal.shared.waiters += 1
                try:
                    journal.changed.wait(left)
                finally:
                    journal.shared.waiters -= 1

    def _upcoming(self) -> Item | None:
        """Return the next item that has not expired, without taking it."""
        state = self._state
        while True:
            if state.given_back:
                item = state.outstanding[state.given_back[0]]
            else:
                if state.ahead is None:
                    if state.reading:  # an interrupt: what was read may not have come here
                        self._skip_to(state.seen)
                    state.reading = True
                    state.ahead = self._read()
                    state.reading = False
                if state.ahead is None:
                    return None
                item = state.ahead
            if item.expire_time is None and state.ageless:
                return item
            if not self._journal.expired(item):
                return item
            self._drop(item, self._journal.report_expired)
            self._counts["expired"] += 1

    def _read(self) -> Item | None:
        state = self._state
        while (item := state.in_batch()) is None:
            batch = self._cursor.batch()
            if batch is None:
                return None
            state.at = 0
            state.batch = batch
        return item

    def _skip_to(self, number: int) -> None:
        """Pass everything up to number."""
        state = self._state
        self._cursor.skip_to(number)
        state.after = number
        state.batch = []
        state.at = 0


class _Cursor:
    """Reads the items of the writer files from an id on; follows files that grow and passes ids that are missing."""

    def __init__(self, files: WriterFiles, after: int, disk: Disk) -> None:
        self._files = files
        self._disk = disk
        self._after = after
        self._writer: WriterFile | None = None
        self._position = MAGIC_SIZE
        self._end = MAGIC_SIZE
        self._file: File | None = None
        self._batches: Iterator[list[Item]] = iter(())

    def batch(self) -> list[Item] | None:
        """The next items, in the order of the files; None if there are none so far."""
        while (found := next(self._batches, None)) is None:
            if not self._advance():
                return None
        return found

    def skip_to(self, number: int) -> None:
        """Pass everything up to number."""
        self.close()
        self._after = number
        self._writer = None

    def _advance(self) -> bool:
        """Continue with what was written since, in this file or the next; False if nothing was."""
        self._position = self._end
        if self._writer is None or self._position >= self._writer.size:
            following = self._following()
            if following is None:
                return False
            self.close()
            self._writer, self._position = following, MAGIC_SIZE
        if self._file is None:
            try:
                self._file = open_file(self._writer.path, self._disk)
            except MissingError:
                self._end = self._writer.size
                return True
        self._end = self._writer.size
        self._batches = Reading(self._file, start=self._position, end=self._end).batches()
        return True

    def _following(self) -> WriterFile | None:
        """The next file that can hold an id above the last one."""
        files = self._files.files
        start = 0
        if self._writer is not None and self._writer in files:
            start = files.index(self._writer) + 1
        for file in files[start:]:
            if file is not self._writer and file.last_id > self._after:
                return file
        return None

    def close(self) -> None:
        self._batches = iter(())
        file, self._file = self._file, None
        if file is not None:
            file.close()
