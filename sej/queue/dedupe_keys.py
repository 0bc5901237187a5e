"""The dedupe keys of a queue, and which of them were compared with their messages.

A key's record is written before its message. If the process dies between the two, the key has no message, or its offset
is later used by another one. So a key counts only if the message at its offset has its check.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["DedupeKey", "DedupeKeys"]


class DedupeKey(NamedTuple):
    """The meaning of a dedupe key.

    Attributes:
        offset: the offset of its message.
        until_ns: how long it is remembered, on the boot-time clock.
        check: the CRC32C of its message.
    """

    offset: int
    until_ns: int
    check: int


class DedupeKeys:
    """The keys that are remembered.

    Attributes:
        known: the meanings by a key's 12 bytes.
    """

    def __init__(self) -> None:
        """Create it without keys."""
        self.known: dict[bytes, DedupeKey] = {}
        self._unproven: list[tuple[int, bytes]] = []

    def add(self, key: bytes, meaning: DedupeKey, *, compared: bool) -> None:
        """Remember a key; ``compared`` is True if its message is known to exist."""
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
        """The messages of the newest (offset, key) were written by this process, so they match."""
        if rows and self._unproven[-len(rows) :] == rows:  # otherwise they are compared later
            del self._unproven[-len(rows) :]

    def unproven(self, head: int) -> list[tuple[int, bytes, int]]:
        """Return (offset, key, check) of the keys below head that were not compared with their messages.

        A process that committed an offset has compared those below it.
        """
        rows = self._unproven[: bisect(self._unproven, (head,))]
        there = [(offset, key, self.known.get(key)) for offset, key in rows]
        return [(offset, key, found.check) for offset, key, found in there if found and found.offset == offset]

    def compared(self, head: int, void: list[tuple[int, bytes]]) -> None:
        """Only these keys below head have no message."""
        self._unproven[: bisect(self._unproven, (head,))] = void
