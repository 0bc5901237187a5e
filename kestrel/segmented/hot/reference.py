"""The calls of a queue and its readers for each item, in pure Python: the reference for the compiled module.

A call has a short way and a long one. The short way is for a queue without ages that is not at a limit, for an item
that the file has room for, or that was read already: nothing is left to do but the write and its effect. The long ways
are functions of the queue and its readers, which these classes get when they are made.
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from kestrel.hot import Entry, tick_ns
from kestrel.segmented.codec import Item, encode_done, encode_put
from kestrel.segmented.format import HEAD_BYTE, HEAD_RECORD, MAX_ID, PUT_HEAD
from sej.durations import Seconds

if TYPE_CHECKING:
    from kestrel.hot import Appender, Log


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
        appender: appends to the last file.
        fuse: the lifecycle.
        tail_id: the last id that was given.
        journal_bytes: how large a file may become: the option, or less if a killed original left a smaller file.
    """

    def __init__(self, appender: Appender, journal_bytes: int) -> None:
        self.appender = appender
        self.fuse = appender.fuse
        self.tail_id = 0
        self.journal_bytes = journal_bytes


class Shared:
    """What a queue and its readers share.

    Attributes:
        guard: the mutex.
        appender: appends to the last writer file.
        waiters: how many calls wait for an item.
        due_ns: from when on a commit writes a checkpoint, by ``tick_ns``.
    """

    def __init__(
        self, guard: threading.RLock, appender: Appender, *, touched: Callable[[], None], checkpoint: Callable[[], None]
    ) -> None:
        """Put it together.

        Args:
            guard: the mutex.
            appender: appends to the last writer file.
            touched: called after a commit if the policy syncs.
            checkpoint: replaces all reader files that have grown.
        """
        self.guard = guard
        self.appender = appender
        self.waiters = 0
        self.due_ns = 0
        self._touched = touched
        self._checkpoint = checkpoint

    def committed(self) -> None:
        """A reader has committed an item: sync by the policy, and write checkpoints if it is time."""
        if self.appender.active:
            self._touched()
        if tick_ns() >= self.due_ns:
            self._checkpoint()


class Following:
    """What a reader has taken, and its position.

    Attributes:
        shared: what the readers of the queue share.
        ageless: whether items expire by their own expiry alone.
        head: every id up to it is committed.
        seen: the highest id that was taken or passed.
        after: every id up to it was passed without being taken.
        done: the committed ids above head, and maybe some that are not above it any more.
        skip: the ids that were done at the opening and that the reader has not passed yet.
        outstanding: the taken items by id; given back ones too.
        lowest: a heap of the taken ids; some may be committed already.
        given_back: the ids that were given back, first the next one.
        returned: the same ids.
        batch: items that were read.
        at: how many of them were passed.
        ahead: the next item, if it was looked at and not taken.
        reading: whether a call looks for the next item; after an interrupt it stays True.
        items: how many items are not committed, taken ones included.
        bytes: the data of these.
        gets: the calls of get.
        hits: those that found an item.
        committed: how many items were committed.
    """

    def __init__(
        self,
        shared: Shared,
        log: Log,
        head: int,
        done: frozenset[int],
        *,
        ageless: bool,
        checkpoint: Callable[[], None],
    ) -> None:
        """Begin.

        Args:
            shared: what the readers of the queue share.
            log: where commits are written.
            head: every id up to it is committed.
            done: the committed ids above it.
            ageless: whether items expire by their own expiry alone.
            checkpoint: replaces the reader file by a short one.
        """
        self.head = self.seen = self.after = head
        self.done = set(done)
        self.skip = set(done)
        self.outstanding: dict[int, Item] = {}
        self.lowest: list[int] = []
        self.given_back: deque[int] = deque()
        self.returned: set[int] = set()
        self.batch: list[Item] = []
        self.at = 0
        self.ahead: Item | None = None
        self.reading = False
        self.items = 0
        self.bytes = 0
        self.gets = self.hits = self.committed = 0
        self.shared = shared
        self.ageless = ageless
        self._log = log
        self._checkpoint = checkpoint

    def added(self, count: int, size: int) -> None:
        """So many items of so much data are there that this reader has to see."""
        self.items += count
        self.bytes += size

    def has_taken(self, number: int) -> bool:
        """Whether an item is taken, and neither committed nor given back."""
        return number in self.outstanding and number not in self.returned

    def in_batch(self) -> Item | None:
        """Return the next item of the batch that was read, if one is left that this reader has to see."""
        while self.at < len(self.batch):
            item = self.batch[self.at]
            self.at += 1
            number = item.id
            if number > self.after and number > self.head:
                if number not in self.skip and number not in self.outstanding:
                    return item
                self.skip.discard(number)
            if number > self.seen:
                self.seen = number
        return None

    def take(self, item: Item) -> None:
        """Take an item.

        In this order an interrupt anywhere in between only has the item taken again, and no head passes it.
        """
        number = item.id
        if self.given_back and self.given_back[0] == number:
            self.returned.discard(number)
            self.given_back.popleft()
        else:
            heapq.heappush(self.lowest, number)
            self.outstanding[number] = item
            if number > self.seen:
                self.seen = number
            self.ahead = None

    def finish(self, number: int) -> None:
        """Commit a taken item. The record is written first: if that fails, nothing here has changed."""
        item = self.outstanding[number]
        lowest = self.lowest
        while lowest and (lowest[0] not in self.outstanding or lowest[0] == number):
            heapq.heappop(lowest)
        head = lowest[0] - 1 if lowest else self.seen
        if self.done:
            head = self._over_done(head)
        # Both may be needed: the head also moves over gaps, and over items that were done before the opening.
        if number > head:
            self._log.append(encode_done((number,)))
            self.done.add(number)
        if head > self.head:
            self._log.append(HEAD_RECORD.pack(HEAD_BYTE, head))
            self.head = head
        self._log.fuse.live = False
        del self.outstanding[number]
        self.items -= 1
        self.bytes -= len(item.data)
        self._log.fuse.live = True
        if self._log.grown > self._log.enough:
            self._checkpoint()
        self.shared.committed()

    def move_head(self) -> None:
        """Move the head up to just before the lowest outstanding id, or to the last one that was seen."""
        self.lowest = sorted(self.outstanding)
        self.head = self._over_done(max(self.lowest[0] - 1 if self.lowest else self.seen, self.head))

    def _over_done(self, head: int) -> int:
        """A head, moved over done ids directly above it: the original delivers everything above the head again."""
        while head + 1 in self.done:
            head += 1
        return head


class Gets:
    """The calls of a reader that are made for each item."""

    def __init__(self, state: Following, get: Callable[[Seconds | None], Item | None]) -> None:
        """Put it together.

        Args:
            state: what the reader has taken.
            get: the long way to take an item; takes the mutex.
        """
        self._state = state
        self._long_get = get

    def get(self, timeout: Seconds | None = 0.0) -> Item | None:
        """Take the next item. If it is not committed, it is delivered again after the next opening.

        Args:
            timeout: seconds to wait for an item; 0: do not wait, None: no limit.

        Returns:
            The item; None if none came in time. An item that was given back comes before the others, with its
            error_count raised.
        """
        state = self._state
        if state.ageless:
            with state.shared.guard:
                state.shared.appender.check()
                if not state.given_back and state.ahead is None and not state.reading:
                    state.reading = True
                    state.ahead = item = state.in_batch()
                    state.reading = False
                    if item is not None and item.expire_time is None:
                        state.take(item)
                        state.gets += 1
                        state.hits += 1
                        return item
        return self._long_get(timeout)

    def commit(self, item: Item | int) -> bool:
        """The item, or the item of this id, is done with. False if it is not taken."""
        number = item if isinstance(item, int) else item.id
        state = self._state
        with state.shared.guard:
            state.shared.appender.check()
            if not state.has_taken(number):
                return False
            state.finish(number)
            state.committed += 1
            return True


class Puts:
    """The put of a queue."""

    def __init__(
        self,
        end: Appending,
        shared: Shared,
        followings: list[Following],
        changed: threading.Condition,
        *,
        put: Callable[[bytes, int | None], int],
        plain: bool,
        bounded: bool,
        most_items: int,
        most_bytes: int,
        max_item_bytes: int,
        now_ms: Callable[[], int],
    ) -> None:
        """Put it together.

        Args:
            end: the end of the writer files.
            shared: what the readers of the queue share.
            followings: of every reader of the queue; the queue keeps the list current.
            changed: notified when an item is put.
            put: the long way, with the time when the item expires; takes the mutex.
            plain: whether the short way may be used: an item is never dropped for another one.
            bounded: whether the queue has a limit.
            most_items: how many items a reader may have uncommitted.
            most_bytes: how much data a reader may have uncommitted.
            max_item_bytes: how much data one item may have.
            now_ms: the clock, in ms since the epoch.
        """
        self._followings = followings
        self._end = end
        self._shared = shared
        self._changed = changed
        self._long_put = put
        self._plain = plain
        self._bounded = bounded
        self._most_items, self._most_bytes = most_items, most_bytes
        self._max_item_bytes = max_item_bytes
        self._now_ms = now_ms

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
            with self._shared.guard:
                end = self._end
                entry = end.appender.entry
                number = end.tail_id + 1
                if (
                    entry.size + PUT_HEAD.size + len(data) <= end.journal_bytes
                    and number <= MAX_ID
                    and not (self._bounded and self._is_full())
                ):
                    assert isinstance(entry, FileEntry)
                    end.appender.append(encode_put(Item(number, self._now_ms(), None, 0, data)))
                    end.tail_id = entry.last_id = number
                    if not entry.first_id:
                        entry.first_id = number
                    for reader in self._followings:
                        reader.added(1, len(data))
                    end.fuse.live = True
                    if self._shared.waiters:
                        self._changed.notify_all()
                    return number
        return self._long_put(data, expire_time)

    def _is_full(self) -> bool:
        """Whether a reader is at a limit, expired items included."""
        return any(reader.items >= self._most_items or reader.bytes >= self._most_bytes for reader in self._followings)
