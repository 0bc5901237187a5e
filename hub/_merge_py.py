"""The order of a merge in pure Python: the reference that the compiled twin must equal.

A merger holds one batch of each slot and gives the messages of all of them out by timestamp, then client, then offset,
then journal. Within a slot the order of offsets stays, whatever the clocks say. It reads nothing: the caller feeds a
slot that became empty.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

from hub.naming import Source
from sej.message import Message

__all__ = ["Merger"]

Head = tuple[int, int, int, int, int]


class Merger:
    """Merges batches.

    Attributes:
        emptied: the slot whose batch the last :meth:`take` used up; -1: none.
    """

    __slots__ = ("_batches", "_heap", "_positions", "_ranks", "_sources", "emptied")

    def __init__(self) -> None:
        """Start without slots."""
        self._heap: list[Head] = []
        self._sources: list[Source] = []
        self._ranks: list[tuple[int, int]] = []
        self._batches: list[list[Message]] = []
        self._positions: list[int] = []
        self.emptied = -1

    def add(self, source: Source) -> int:
        """Make a slot, empty and without a rank; returns its number."""
        self._sources.append(source)
        self._ranks.append((0, 0))
        self._batches.append([])
        self._positions.append(0)
        return len(self._sources) - 1

    def rank(self, slot: int, client: int, journal: int) -> None:
        """Say where a slot stands among those whose messages have the same timestamp.

        Slots may be added between others later; the order of those that are there must stay.
        """
        self._ranks[slot] = (client, journal)
        for at, head in enumerate(self._heap):
            if head[4] == slot:
                self._heap[at] = (head[0], client, head[2], journal, slot)

    def feed(self, slot: int, batch: list[Message]) -> None:
        """Give an empty slot its next messages, at least one."""
        self._batches[slot] = batch
        self._positions[slot] = 0
        heappush(self._heap, self._head(slot, batch[0]))

    def head(self, slot: int) -> Message | None:
        """The slot's next message, or None where it is empty."""
        batch, position = self._batches[slot], self._positions[slot]
        return batch[position] if position < len(batch) else None

    def remove(self, slot: int) -> None:
        """Forget what a slot holds."""
        self._batches[slot] = []
        self._positions[slot] = 0
        self._heap = [head for head in self._heap if head[4] != slot]
        heapify(self._heap)

    def take(self, limit: int) -> list[tuple[Source, Message]]:
        """At most limit messages in order; ends where a slot becomes empty, as its next message may be due."""
        out: list[tuple[Source, Message]] = []
        add = out.append
        heap, batches, positions, sources, ranks = (
            self._heap,
            self._batches,
            self._positions,
            self._sources,
            self._ranks,
        )
        self.emptied = -1
        while heap and limit > 0:
            slot = heap[0][4]
            batch = batches[slot]
            position = positions[slot]
            add((sources[slot], batch[position]))
            limit -= 1
            position += 1
            positions[slot] = position
            if position == len(batch):
                heappop(heap)
                batches[slot] = []
                positions[slot] = 0
                self.emptied = slot
                break
            message = batch[position]
            client, journal = ranks[slot]
            heapreplace(heap, (message[1], client, message[0], journal, slot))
        return out

    def __len__(self) -> int:
        """How many slots hold messages."""
        return len(self._heap)

    def _head(self, slot: int, message: Message) -> Head:
        client, journal = self._ranks[slot]
        return message.timestamp, client, message.offset, journal, slot
