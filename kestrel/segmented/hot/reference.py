"""The calls of a queue and its readers for each item, in pure Python: the reference for the compiled module.

A call has a short way and a long one. The short way is for a queue without ages that is not at a limit, for an item
that the file has room for, or that was read already: nothing is left to do but the write and its effect. The long way
is in the modules whose classes inherit from these.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kestrel.hot import Entry, tick_ns
from kestrel.segmented.codec import Item, encode_done, encode_put
from kestrel.segmented.format import HEAD_BYTE, HEAD_RECORD, MAX_ID, PUT_HEAD
from sej.durations import Seconds

if TYPE_CHECKING:
    from kestrel.hot import Live, Log
    from kestrel.tail import Tail
    from sej.mutex import Mutex

__all__ = ["Appending", "FileEntry", "Following", "Puts", "Shared"]


class FileEntry(Entry):
    """A writer file in the queue's list; the ids are 0 while it holds no item.

    Attributes:
        first_id: of its first item.
        last_id: of its last item.
    """

    def __init__(self, size: int, first_id: int, last_id: int) -> None:
        super().__init__(size)
        self.first_id = first_id
        self.last_id = last_id


class Appending:
    """The end of the writer files.

    Attributes:
        tail: appends to the last file.
        fuse: the lifecycle.
        tail_id: the last id that was given.
        journal_bytes: how large a file may become: the option, or less if a killed original left a smaller file.
    """

    tail: Tail
    fuse: Live

    def __init__(self, tail: Tail, journal_bytes: int) -> None:
        self.tail = tail
        self.fuse = tail.fuse
        self.tail_id = 0
        self.journal_bytes = journal_bytes


class Shared:
    """What a queue and its readers share.

    Attributes:
        guard: the mutex.
        tail: appends to the last writer file.
        waiters: how many calls wait for an item.
        due_ns: from when on a commit writes a checkpoint, by ``tick_ns``.
    """

    def __init__(self, guard: Mutex, tail: Tail) -> None:
        self.guard = guard
        self.tail = tail
        self.waiters = 0
        self.due_ns = 0

    def committed(self) -> None:
        """A reader has committed an item: sync by the policy, and write checkpoints if it is time."""
        if self.tail.active:
            self.tail.touched()
        if tick_ns() >= self.due_ns:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Write checkpoints."""
        raise NotImplementedError


class Following:
    """What a reader has taken, and its position.

    Attributes:
        name: empty for the default reader.
    """

    def __init__(self, journal: Shared, log: Log, head: int, done: frozenset[int], *, ageless: bool) -> None:
        """Begin.

        Args:
            journal: what the readers of the queue share.
            log: where commits are written.
            head: every id up to it is committed.
            done: the committed ids above it.
            ageless: whether items expire by their own expiry alone.
        """
        self._journal = journal
        self._log = log
        self._ageless = ageless
        self._head = self._seen = self._after = head
        self._done = set(done)
        self._skip = set(done)
        self._outstanding: dict[int, Item] = {}
        self._lowest: list[int] = []
        self._given_back: deque[int] = deque()
        self._returned: set[int] = set()
        self._batch: list[Item] = []
        self._at = 0
        self._ahead: Item | None = None
        self._reading = False
        self._items = 0
        self._bytes = 0
        self._gets = self._hits = self._committed = 0

    def added(self, count: int, size: int) -> None:
        """So many items of so much data are there that this reader has to see."""
        self._items += count
        self._bytes += size

    def get(self, timeout: Seconds | None = 0.0) -> Item | None:
        """Take the next item. If it is not committed, it is delivered again after the next opening.

        Args:
            timeout: seconds to wait for an item; 0: do not wait, None: no limit.

        Returns:
            The item; None if none came in time. An item that was given back comes before the others, with its
            error_count raised.
        """
        if self._ageless:
            with self._journal.guard:
                self._journal.tail.check()
                if not self._given_back and self._ahead is None and not self._reading:
                    self._reading = True
                    self._ahead = item = self._in_batch()
                    self._reading = False
                    if item is not None and item.expire_time is None:
                        self._take(item)
                        self._gets += 1
                        self._hits += 1
                        return item
        return self._next(timeout, take=True)

    def commit(self, item: Item | int) -> bool:
        """The item, or the item of this id, is done with. False if it is not taken."""
        number = item.id if isinstance(item, Item) else item
        with self._journal.guard:
            self._journal.tail.check()
            if not self._has_taken(number):
                return False
            self._finish(number)
            self._committed += 1
            return True

    def _has_taken(self, number: int) -> bool:
        """Whether an item is taken, and neither committed nor given back."""
        return number in self._outstanding and number not in self._returned

    def _in_batch(self) -> Item | None:
        """Return the next item of the batch that was read, if one is left that this reader has to see."""
        while self._at < len(self._batch):
            item = self._batch[self._at]
            self._at += 1
            number = item.id
            if number > self._after and number > self._head:
                if number not in self._skip and number not in self._outstanding:
                    return item
                self._skip.discard(number)
            if number > self._seen:
                self._seen = number
        return None

    def _take(self, item: Item) -> None:
        # In this order an interrupt anywhere in between only has the item taken again, and no head passes it.
        number = item.id
        if self._given_back and self._given_back[0] == number:
            self._returned.discard(number)
            self._given_back.popleft()
        else:
            heapq.heappush(self._lowest, number)
            self._outstanding[number] = item
            if number > self._seen:
                self._seen = number
            self._ahead = None

    def _finish(self, number: int) -> None:
        # Written first: if that fails, nothing here has changed.
        item = self._outstanding[number]
        lowest = self._lowest
        while lowest and (lowest[0] not in self._outstanding or lowest[0] == number):
            heapq.heappop(lowest)
        head = lowest[0] - 1 if lowest else self._seen
        if self._done:
            head = self._over_done(head)
        # Both may be needed: the head also moves over gaps, and over items that were done before the opening.
        if number > head:
            self._log.append(encode_done((number,)))
            self._done.add(number)
        if head > self._head:
            self._log.append(HEAD_RECORD.pack(HEAD_BYTE, head))
            self._head = head
        del self._outstanding[number]
        self._items -= 1
        self._bytes -= len(item.data)
        if self._log.grown > self._log.enough:
            self.checkpoint()
        self._journal.committed()

    def _over_done(self, head: int) -> int:
        """A head, moved over done ids directly above it: the original delivers everything above the head again."""
        while head + 1 in self._done:
            head += 1
        return head

    def checkpoint(self) -> None:
        """Replace the reader file by a short one."""
        raise NotImplementedError

    def _next(self, timeout: Seconds | None, *, take: bool) -> Item | None:
        """Get or peek the long way."""
        raise NotImplementedError


class Puts:
    """The put of a queue."""

    _guard: Mutex
    _files: Appending
    _journal: Shared
    _changed: threading.Condition
    _readers: Mapping[str, Following]
    _plain: bool
    """Whether the short way may be used: an item is never dropped for another one."""
    _bounded: bool
    _most_items: int
    _most_bytes: int
    _now_ms: Callable[[], int]
    _max_item_bytes: int

    def put(self, data: bytes, *, expire_time: int | None = None) -> int:
        """Add an item for every reader.

        Args:
            data: its bytes.
            expire_time: when it expires, in ms since the epoch; None: never, or by max_age_s.

        Returns:
            Its id.

        Raises:
            FullError: a reader would pass a limit, and drop_oldest is not set.
            TooLargeError: the item is over the limit for one, or over journal_bytes.
            FailedError: a write failed, now or before.
        """
        if self._plain and expire_time is None and type(data) is bytes and len(data) <= self._max_item_bytes:
            with self._guard:
                files = self._files
                entry = files.tail.entry
                number = files.tail_id + 1
                if (
                    entry.size + PUT_HEAD.size + len(data) <= files.journal_bytes
                    and number <= MAX_ID
                    and not (self._bounded and self._is_full())
                ):
                    assert isinstance(entry, FileEntry)
                    files.tail.append(encode_put(Item(number, self._now_ms(), None, 0, data)))
                    files.tail_id = entry.last_id = number
                    if not entry.first_id:
                        entry.first_id = number
                    for reader in self._readers.values():
                        reader.added(1, len(data))
                    files.fuse.live = True
                    if self._journal.waiters:
                        self._changed.notify_all()
                    return number
        return self.put_many((data,), expire_time=expire_time)[0]

    def _is_full(self) -> bool:
        """Whether a reader is at a limit, expired items included."""
        return any(
            reader._items >= self._most_items or reader._bytes >= self._most_bytes for reader in self._readers.values()
        )

    def put_many(self, values: tuple[bytes], *, expire_time: int | None = None) -> range:
        """Add items the long way."""
        raise NotImplementedError
