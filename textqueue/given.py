"""What a cursor gave out and what of it is still queued, so that a walk from the start does not give it out again.

Messages are known by a hash of their bytes, and counted, since equal ones are interchangeable. The counting is put off
until a window has been given out, to keep ``get_next`` cheap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

__all__ = ["REMEMBERED", "Given"]

REMEMBERED: Final = 1 << 18
"""Messages given out and not marked that are remembered; older ones may come again after a foreign change."""


class Given:
    """How many messages of the same bytes were given out and not marked since."""

    def __init__(self) -> None:
        """Nothing was given out."""
        self.pending: list[bytes] = []  # the bytes of messages that were given out and are not counted yet
        self._marked: list[int] = []
        self._counts: Counter[int] = Counter()

    def settle(self) -> None:
        """Count what is pending."""
        counts = self._counts
        counts.update(map(hash, self.pending))
        self.pending.clear()
        for name in self._marked:
            count = counts.get(name, 0)
            if count > 1:
                counts[name] = count - 1
            elif count:
                del counts[name]
        self._marked.clear()
        while len(counts) > REMEMBERED:
            del counts[next(iter(counts))]

    def forget(self, name: int, count: int = 1) -> None:
        """It was marked, or is gone; name is the hash of the bytes that were given out."""
        if count == 1:
            self._marked.append(name)
        else:
            self._marked += [name] * count
        if len(self._marked) > 1024:
            self.settle()

    def forget_all(self, raws: Iterable[bytes]) -> None:
        """As ``forget``, by the bytes."""
        self._marked.extend(map(hash, raws))
        self.settle()

    def left(self) -> dict[int, int]:
        """All, by hash."""
        self.settle()
        return dict(self._counts)

    def changed(self, old: bytes, new: bytes) -> None:
        """A message has other bytes now and is the same; it counts only if it was given out."""
        self.settle()
        if self._counts.get(hash(old)):
            self.forget(hash(old))
            self._counts[hash(new)] += 1
