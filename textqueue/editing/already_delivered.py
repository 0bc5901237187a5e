"""The messages that a cursor has delivered and that are still queued, so that a new pass can skip them.

A message is identified by a hash of its essence. Equal messages are interchangeable, so they are counted. Hashes are
computed when a whole window has been delivered, to keep ``get_next`` fast.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from textqueue.format.parser import essence

_MARKED: Final = 1 << 16


def hash_of(raw: bytes) -> int:
    """Return the hash that identifies a message."""
    return hash(essence(raw))


class Delivered:
    """The messages that were delivered and not marked since."""

    def __init__(self) -> None:
        self.pending: list[bytes] = []  # the bytes of delivered messages that are not counted yet
        self._marked: list[bytes] = []  # the bytes of messages that were marked since
        self._counts: Counter[int] = Counter()

    def settle(self) -> None:
        """Count the pending messages."""
        if self.pending != self._marked:  # otherwise each was marked before the next was delivered
            self._counts.update(map(hash_of, self.pending))
            self.gone(map(hash_of, self._marked) if self._counts else ())
        self.pending.clear()
        self._marked.clear()

    def forget(self, raw: bytes) -> None:
        """Remove a message, which was marked."""
        self._marked.append(raw)
        if len(self._marked) > _MARKED:
            self.settle()

    def skips(self) -> Counter[int]:
        """Return the messages to skip in a new pass, by their hashes."""
        self.settle()
        return self._counts.copy()

    def gone(self, names: Iterable[int]) -> None:
        """Remove messages that left the queue: that a pass over the whole file has not met, or that were marked."""
        for name in names:
            take(self._counts, name)

    def changed(self, old: bytes, new: bytes) -> None:
        """Record that a message has new bytes. It matters only if the message was delivered."""
        if self.pending and self.pending[-1] == old:  # it is the last delivered message
            self.pending[-1] = new
            return
        self.settle()
        was, now = hash_of(old), hash_of(new)
        if self._counts[was] > 0:
            self._counts[was] -= 1
            self._counts[now] += 1


def take(skips: Counter[int], name: int) -> bool:
    """Return whether to skip a message, and remove it from the messages to skip."""
    count = skips.get(name, 0)
    if count > 1:
        skips[name] = count - 1
    elif count:
        del skips[name]
    return count > 0
