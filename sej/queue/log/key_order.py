"""The part of a queue's state that keeps the order of each key: ``order="key"``. No I/O, no clock.

**The promise.** Items of one key are delivered in the order of their offsets, and at most ``per_key`` of them (1,
unless the opener says otherwise) are delivered and not ended at the same time. A key that waits delays no other key.

**The order of one key.** Its items are of four kinds::

    held      delivered and not ended: leased, waiting for a retry, being given up, or a dead letter that blocks
    aside     put with a delay or a priority, and not delivered so far: in ``waiting``
    parked    below the frontier, and passed by because the key was not free
    fresh     from the frontier on

A key is *free* if it has fewer than ``per_key`` held items. Its *head* is its lowest offset that is aside and ready,
parked or fresh. Only the head of a free key is delivered. An item that is aside and not ready yet is not counted: it
holds its key only from the time when it is ready. The head's priority is the priority of the key.

**The size.** Of parked items only the lowest offset of each key is kept (``parked``), and their total number. Every
message of that key from there to the frontier is parked, unless it is leased, waiting or in ``ended``. Which messages
these are is found in the journal (:mod:`sej.queue.disk.parked`), or remembered by the process that passed them. So the
state is as large as what is in flight, plus the keys that wait, however many items they have.

The bound of a key only rises. It may be too low: then no message of the key is there, or the next one is later. It is
never too high: an item would be lost. A bound without messages is removed when the key is free and looked up.

**A crash between two records** of one operation leaves a prefix of them. So a PARK is written before the SCAN that
passes its message. Without the SCAN the message is still fresh, and the bound is too low, which is allowed.

The key of an item is a hash of 64 bits. Two keys with the same hash are one key here: their items wait for each other.
The empty key is not a key (hash 0): its items never wait for each other. If they are passed by, because an item far
ahead has a priority, they are parked under 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sortedcontainers import SortedDict
from xxhash import xxh3_64_intdigest

from sej.queue.log.schedule import NEVER, Waiting

_MANY: Final = 1000


def key_hash(key: bytes) -> int:
    """Return the number of a key; 0 for the empty key only."""
    return (xxh3_64_intdigest(key) or 1) if key else 0


class KeyOrder:
    """Which keys are held, and which have items that wait for them.

    Attributes:
        block: whether a dead letter keeps its key.
        keys: the key of each item that is held or aside, by offset; items without a key are left out.
        held: by key: the items that are delivered and not ended.
        parked: by key: no item of it below this offset is parked.
        count: how many items are parked.
        ended: items that are not parked although they are at or above their key's bound, because they have ended.
        aside: (key, offset) of the items that wait and were not delivered so far, in their order.
        released: keys that may have become free, or have a new head, since the last :meth:`take_released`.
    """

    def __init__(self, *, block: bool = False) -> None:
        """Create it without items."""
        self.block = block
        self.keys: dict[int, int] = {}
        self.held: dict[int, tuple[int, ...]] = {}
        self.parked: dict[int, int] = {}
        self.count = 0
        self.ended: set[int] = set()
        self.released: set[int] = set()
        self.aside = SortedDict()
        self._prune_at = _MANY

    # --- what the handlers of the state call

    def keyed(self, offset: int, key: int, *, holds: bool) -> None:
        """An item that is leased or waiting has this key."""
        if key:
            self._forget(offset)
            self.keys[offset] = key
            if holds:
                self.held[key] = (*self.held.get(key, ()), offset)
            else:
                self.aside[key, offset] = None
            self.released.add(key)

    def picked(self, offset: int, key: int, *, fresh: bool, parked: bool) -> None:
        """An item was delivered.

        Args:
            offset: the item.
            key: its key; 0: none, or the one that is known.
            fresh: whether it was neither leased nor waiting before.
            parked: whether it was below the frontier.
        """
        key = key or self.keys.get(offset, 0)
        if fresh and parked:
            self.count = max(self.count - 1, 0)
        held = self.held.get(key, ())
        bound = self.parked.get(key)
        was_head = parked if fresh else offset in self.keys and offset not in held
        if bound is not None and bound <= offset and was_head:
            self.parked[key] = offset + 1  # what is below is held, or not ready
        if key:
            if offset not in held:
                self.held[key] = (*held, offset)
            if self.aside:
                self.aside.pop((key, offset), None)
            self.keys[offset] = key
            if key in self.parked or self.has_aside(key):  # it may be free for another one, if per_key allows it
                self.released.add(key)

    def set_aside(self, *, parked: bool) -> None:
        """A fresh item waits now; parked: whether it was below the frontier."""
        self.count = max(self.count - parked, 0)

    def left(self, offset: int, frontier: int, *, known: bool) -> None:
        """An item ended; known: whether it was leased or waiting.

        One that ended ahead of the frontier is remembered: the frontier may pass it while its key has a lower bound.
        """
        key = self._forget(offset)
        bound = self.parked.get(key)
        if offset >= frontier or (self.parked and (not known or (bound is not None and bound <= offset))):
            self.ended.add(offset)
            if len(self.ended) > self._prune_at:
                low = self.low(frontier)
                self.ended = {number for number in self.ended if number >= low}
                self._prune_at = _MANY + 2 * len(self.ended)

    def forget(self, offset: int) -> None:
        """An item has no message, or its message was removed."""
        self._forget(offset)

    def died(self, offset: int) -> bool:
        """An item became a dead letter; return whether it keeps its key."""
        return self.block and offset in self.keys

    def blocked(self, offset: int, key: int, frontier: int, *, on: bool) -> None:
        """A dead letter keeps its key, or does not any more."""
        if on:
            self.keyed(offset, key, holds=True)
        else:
            self.left(offset, frontier, known=False)

    def park(self, key: int, first: int) -> None:
        """From first on, items of a key are parked; NEVER: none is."""
        if first == NEVER:
            self.parked.pop(key, None)
        else:
            self.parked[key] = first
            self.released.add(key)

    def purged(self, waiting: Mapping[int, Waiting]) -> None:
        """Everything that is not leased was removed; waiting: what waited."""
        self.parked.clear()
        self.ended.clear()
        self.count = 0
        for offset in waiting:
            self._forget(offset)

    def lost(self, first: int, count: int) -> None:
        """Messages below first were removed from the journal; so many of them were parked."""
        self.count = max(self.count - count, 0)
        self.parked = {key: max(bound, first) for key, bound in self.parked.items()}
        self.ended = {offset for offset in self.ended if offset >= first}
        self.released.update(self.parked)

    def _forget(self, offset: int) -> int:
        """Remove an item from its key, and return the key; 0: it has none."""
        key = self.keys.pop(offset, 0)
        if key:
            held = self.held.get(key, ())
            if offset in held:
                if len(held) == 1:
                    del self.held[key]
                else:
                    self.held[key] = tuple(number for number in held if number != offset)
            else:
                self.aside.pop((key, offset), None)
            if key in self.parked or self.has_aside(key) or key in self.held:
                self.released.add(key)
        return key

    # --- results

    def take_released(self) -> set[int]:
        """Return the keys that must be looked at again, once."""
        found, self.released = self.released, set()
        return found

    def free(self, key: int, per_key: int) -> bool:
        """Return whether an item of this key may be delivered."""
        held = self.held.get(key)
        return held is None or len(held) < per_key

    def first_aside(self, key: int, now_ns: int, waiting: Mapping[int, Waiting]) -> int | None:
        """Return the lowest offset of a key that is aside and ready; None: there is none."""
        for _, offset in self.aside.irange((key,), (key + 1,)):
            there = waiting.get(offset)
            if there is not None and there.ready_at_ns <= now_ns:
                return int(offset)
        return None

    def has_aside(self, key: int) -> bool:
        """Return whether an item of a key is aside."""
        return bool(self.aside) and next(self.aside.irange((key,), (key + 1,)), None) is not None

    def may_be_parked(self, offset: int, key: int) -> bool:
        """Return whether a message below the frontier is parked, if it is neither leased nor waiting."""
        bound = self.parked.get(key)
        return bound is not None and bound <= offset and offset not in self.ended and offset not in self.keys

    def low(self, frontier: int) -> int:
        """Return the lowest offset that may be parked; the frontier if none is."""
        return min(self.parked.values(), default=frontier)
