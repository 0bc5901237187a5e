"""The messages that a cursor has delivered and that are still queued, so that a new pass can skip them.

A message is identified by a hash of its essence. Equal messages are interchangeable, so they are counted. There may be
10**7 messages. So the hashes are in an array, in the order of the file, and changes are collected separately. When the
changes are half as many as the hashes, the array is rebuilt. Each message costs 8 bytes and constant time. Hashes are
computed when a whole window has been delivered, to keep ``get_next`` fast.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

from textqueue.format.parser import essence

_MARKED: Final = 1 << 16


def hash_of(raw: bytes) -> int:
    """Return the hash that identifies a message."""
    return hash(essence(raw))


class Skips:
    """The messages that a new pass skips. In an unchanged file, they come in the order in which they were delivered."""

    def __init__(self, names: array[int] | None = None) -> None:
        """Take the hashes of the delivered messages; None: no messages."""
        self._names = array("q") if names is None else names
        self._next = 0
        self._rest: Counter[int] | None = None  # the rest, once the order has changed

    def __bool__(self) -> bool:
        """Return whether any message is left to skip."""
        return self._next < len(self._names) if self._rest is None else bool(self._rest)

    def take(self, name: int) -> bool:
        """Return whether to skip this message, and remove it from the rest."""
        if self._rest is None:
            if self._next < len(self._names) and self._names[self._next] == name:
                self._next += 1
                return True
            self._rest = self.left()
        count = self._rest.get(name, 0)
        if count > 1:
            self._rest[name] = count - 1
        elif count:
            del self._rest[name]
        return count > 0

    def left(self) -> Counter[int]:
        """Return the messages that the pass has not met."""
        return Counter(self._names[self._next :]) if self._rest is None else self._rest


class Delivered:
    """The messages that were delivered and not marked since."""

    def __init__(self) -> None:
        """Begin without messages."""
        self.pending: list[bytes] = []  # the bytes of delivered messages that are not in the array yet
        self._marked: list[bytes] = []  # the bytes of messages that were marked since
        self._names = array("q")
        self._gone: Counter[int] = Counter()  # in the array, but no longer queued
        self._renamed: dict[int, list[int]] = defaultdict(list)  # in the array: the new hashes of the same messages
        self._outdated = 0

    def settle(self) -> None:
        """Move the pending messages into the array."""
        if self.pending != self._marked:  # otherwise each was marked before the next was delivered
            self._names.extend(map(hash_of, self.pending))
            if self._names:
                self._drop(map(hash_of, self._marked))
        self.pending.clear()
        self._marked.clear()

    def forget(self, raw: bytes) -> None:
        """Remove a message, which was marked."""
        self._marked.append(raw)
        if len(self._marked) > _MARKED:
            self.settle()

    def forget_all(self, raws: Iterable[bytes]) -> None:
        """Remove many messages, which were marked."""
        self._marked += raws
        self.settle()

    def skips(self) -> Skips:
        """Return the messages to skip in a new pass."""
        self.settle()
        self._compact()
        return Skips(self._names[:])

    def gone(self, skips: Skips) -> None:
        """Remove the messages that a pass over the whole file has not met: they left the queue."""
        if skips:
            self._drop(skips.left().elements())

    def changed(self, old: bytes, new: bytes) -> None:
        """Record that a message has new bytes. It matters only if the message was delivered."""
        if not self.pending and not self._names:
            return
        if self.pending and self.pending[-1] == old:  # it is the last delivered message
            self.pending[-1] = new
            return
        self.settle()
        was, now = hash_of(old), hash_of(new)
        if was != now:
            self._renamed[was].append(now)
            self._outdate(1)

    def _drop(self, names: Iterable[int]) -> None:
        known = list(names)
        self._gone.update(known)
        self._outdate(len(known))

    def _outdate(self, count: int) -> None:
        self._outdated += count
        if 2 * self._outdated > len(self._names):
            self._compact()

    def _compact(self) -> None:
        """Apply the changes to the array. Changes of messages that were not delivered are ignored."""
        if not self._outdated:
            return
        gone, renamed, kept = self._gone, self._renamed, array("q")
        for old in self._names:
            name = old
            while not gone.get(name) and renamed.get(name):
                name = renamed[name].pop(0)
            if gone.get(name):
                gone[name] -= 1
            else:
                kept.append(name)
        self._names, self._outdated = kept, 0
        gone.clear()
        renamed.clear()
