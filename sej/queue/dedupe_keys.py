"""The dedupe keys of a queue, and which of them were compared with their messages.

A key's record is written before its message. If the process dies between the two, the key has no message, or later
stands for another one. So a key counts only if the message at its offset has its check.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["DedupeKey", "DedupeKeys"]


class DedupeKey(NamedTuple):
    """What a dedupe key means.

    Attributes:
        offset: of its message.
        until_ns: how long it is remembered, on the boot-time clock.
        check: the CRC32C of its message.
    """

    offset: int
    until_ns: int
    check: int


class DedupeKeys:
    """The keys that are remembered.

    Attributes:
        known: by a key's 12 bytes.
    """

    def __init__(self) -> None:
        """None yet."""
        self.known: dict[bytes, DedupeKey] = {}
        self._unproven: list[tuple[int, bytes]] = []

    def add(self, key: bytes, meaning: DedupeKey, *, compared: bool) -> None:
        """Remember a key; compared says whether its message is known to be there."""
        self.known[key] = meaning
        row = meaning.offset, key
        if compared:
            return
        if self._unproven and self._unproven[-1] > row:
            insort(self._unproven, row)
        else:
            self._unproven.append(row)

    def remove(self, key: bytes) -> None:
        """Forget a key."""
        self.known.pop(key, None)

    def carry(self, carried: Callable[[int], int]) -> None:
        """Carry times over a reboot."""
        self.known = {key: there._replace(until_ns=carried(there.until_ns)) for key, there in self.known.items()}

    def written(self, rows: list[tuple[int, bytes]]) -> None:
        """The messages of the newest (offset, key) were written by this process: they match."""
        if rows and self._unproven[-len(rows) :] == rows:  # else they are compared later
            del self._unproven[-len(rows) :]

    def unproven(self, head: int) -> list[tuple[int, bytes, int]]:
        """(offset, key, check) of the keys below head that were not compared with their messages.

        A process that kept an offset has compared those below it.
        """
        rows = self._unproven[: bisect(self._unproven, (head,))]
        there = [(offset, key, self.known.get(key)) for offset, key in rows]
        return [(offset, key, found.check) for offset, key, found in there if found and found.offset == offset]

    def compared(self, head: int, void: list[tuple[int, bytes]]) -> None:
        """Of the keys below head only these have no message."""
        self._unproven[: bisect(self._unproven, (head,))] = void
