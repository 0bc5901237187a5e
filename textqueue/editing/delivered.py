"""What a cursor gave out and what of it is still queued, so that a walk from the start does not give it out again.

Messages are known by a hash of their essence, and counted, since equal ones are interchangeable. There may be 10**7 of
them: the hashes are in an array, in the order of the file, and what happens to them since is taken out of it when that
is half of them. So each costs 8 bytes and constant time. The hashing is put off until a window has been given out, to
keep ``get_next`` cheap.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

from textqueue.hot import essence

__all__ = ["Again", "Given", "name_of"]

_MARKED: Final = 1 << 16


def name_of(raw: bytes) -> int:
    """By what a message is known here."""
    return hash(essence(raw))


class Again:
    """What a walk from the start passes over. In an unchanged file it comes in the order in which it was given out."""

    def __init__(self, names: array[int] | None = None) -> None:
        """Nothing, or what was given out."""
        self._names = array("q") if names is None else names
        self._next = 0
        self._rest: Counter[int] | None = None  # what is left, once the order is another one

    def __bool__(self) -> bool:
        """Whether anything is left."""
        return self._next < len(self._names) if self._rest is None else bool(self._rest)

    def take(self, name: int) -> bool:
        """Whether this one was given out; it is taken out of what is left."""
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
        """What was not met."""
        return Counter(self._names[self._next :]) if self._rest is None else self._rest


class Given:
    """The messages that were given out and not marked since."""

    def __init__(self) -> None:
        """Nothing was given out."""
        self.pending: list[bytes] = []  # the bytes of messages that were given out and are not in the array yet
        self._marked: list[bytes] = []  # those that were marked since
        self._names = array("q")
        self._gone: Counter[int] = Counter()  # of the array: not queued any more
        self._renamed: dict[int, list[int]] = defaultdict(list)  # of the array: the same message has this name now
        self._outdated = 0

    def settle(self) -> None:
        """Take up what is pending."""
        if self.pending != self._marked:  # else each was marked before the next was given out
            self._names.extend(map(name_of, self.pending))
            self._drop(map(name_of, self._marked))
        self.pending.clear()
        self._marked.clear()

    def forget(self, raw: bytes) -> None:
        """A message was marked that was read with these bytes."""
        self._marked.append(raw)
        if len(self._marked) > _MARKED:
            self.settle()

    def forget_all(self, raws: Iterable[bytes]) -> None:
        """As ``forget``, for many."""
        self._marked += raws
        self.settle()

    def again(self) -> Again:
        """All, for a walk from the start."""
        self.settle()
        self._compact()
        return Again(self._names[:])

    def gone(self, again: Again) -> None:
        """What a walk over the whole file did not meet is not in the queue any more."""
        if again:
            self._drop(again.left().elements())

    def changed(self, old: bytes, new: bytes) -> None:
        """A message has other bytes now and is the same; it counts only if it was given out."""
        if self.pending and self.pending[-1] == old:  # it was given out just now
            self.pending[-1] = new
            return
        self.settle()
        was, now = name_of(old), name_of(new)
        if was != now:
            self._renamed[was].append(now)
            self._outdate(1)

    def _drop(self, names: Iterable[int]) -> None:
        count = 0
        for name in names:
            self._gone[name] += 1
            count += 1
        self._outdate(count)

    def _outdate(self, count: int) -> None:
        self._outdated += count
        if 2 * self._outdated > len(self._names):
            self._compact()

    def _compact(self) -> None:
        """Bring the array up to date. What is outdated and not in it was never given out, and counts for nothing."""
        if not self._outdated:
            return
        gone, renamed, kept = self._gone, self._renamed, array("q")
        for given in self._names:
            name = given
            while not gone.get(name) and renamed.get(name):
                name = renamed[name].pop(0)
            if gone.get(name):
                gone[name] -= 1
            else:
                kept.append(name)
        self._names, self._outdated = kept, 0
        gone.clear()
        renamed.clear()
