"""The dedupe keys of a queue, and which of them were compared with their messages.

A key's record is written before its message. If the process dies between the two, the key has no message, or its offset
is later used by another one. So a key counts only if the message at its offset has its check.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Callable
from hashlib import blake2b
from typing import Final, NamedTuple

_KEY_BYTES: Final = 12


def hashed(key: bytes) -> bytes:
    """Return the 12 bytes that the log has of a key."""
    return blake2b(key, digest_size=_KEY_BYTES).digest()


def requeue_key(journal: int, letter_offset: int) -> bytes:
    """Return the key of a dead letter that was put back alone, before the letters in front of it."""
    return hashed(b"requeue %d %d" % (journal, letter_offset))


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

    def requeued(self, journal: int, letter_offset: int) -> bool:
        """Return whether a dead letter was put back alone."""
        return bool(self.known) and requeue_key(journal, letter_offset) in self.known

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
