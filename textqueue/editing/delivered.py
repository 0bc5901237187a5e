"""What a cursor gave out and what of it is still queued, so that a walk from the start does not give it out again.

Messages are known by a hash of their essence, and counted, since equal ones are interchangeable. The counting is put
off until a window has been given out, to keep ``get_next`` cheap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from textqueue.format.parser import essence

__all__ = ["REMEMBERED", "Given", "name_of"]

REMEMBERED: Final = 1 << 18
"""Messages given out and not marked that are remembered; older ones may come again after a foreign change."""
_MARKED: Final = 1 << 16


def name_of(raw: bytes) -> int:
    """By what a message is known here."""
    return hash(essence(raw))


class Given:
    """How many messages of the same bytes were given out and not marked since."""

    def __init__(self) -> None:
        """Nothing was given out."""
        self.pending: list[bytes] = []  # the bytes of messages that were given out and are not counted yet
        self._marked: list[bytes] = []  # those that were marked since
        self._counts: Counter[int] = Counter()

    def settle(self) -> None:
        """Count what is pending."""
        if self.pending != self._marked:  # else each was marked before the next was given out
            self._counts.update(map(name_of, self.pending))
            for raw in self._marked:
                self._uncount(name_of(raw), 1)
        self.pending.clear()
        self._marked.clear()
        while len(self._counts) > REMEMBERED:
            del self._counts[next(iter(self._counts))]

    def forget(self, raw: bytes) -> None:
        """A message was marked that was read with these bytes."""
        self._marked.append(raw)
        if len(self._marked) > _MARKED:
            self.settle()

    def forget_all(self, raws: Iterable[bytes]) -> None:
        """As ``forget``, for many."""
        self._marked += raws
        self.settle()

    def gone(self, left: Mapping[int, int]) -> None:
        """These, by hash and number, are not in the queue any more."""
        for name, count in left.items():
            self._uncount(name, count)

    def _uncount(self, name: int, count: int) -> None:
        left = self._counts.get(name, 0) - count
        if left > 0:
            self._counts[name] = left
        else:
            self._counts.pop(name, None)

    def left(self) -> dict[int, int]:
        """All, by hash."""
        self.settle()
        return dict(self._counts)

    def changed(self, old: bytes, new: bytes) -> None:
        """A message has other bytes now and is the same; it counts only if it was given out."""
        self.settle()
        was, now = name_of(old), name_of(new)
        if was != now and self._counts.get(was):
            self._uncount(was, 1)
            self._counts[now] += 1
