"""The order of a merge, by one heap of the next message of each slot.

A merger holds one batch for each slot and returns the messages of all slots ordered by timestamp, then client, then
offset, then journal. Within a slot the order of offsets is kept, whatever the clocks say. It reads nothing: the caller
feeds a slot that has become empty.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

from hub.naming import Source
from sej.message import Message

_Head = tuple[int, int, int, int, int]


class Merger:
    """Merges batches.

    Attributes:
        emptied: the slot whose batch the last :meth:`take` used up; -1: none.
    """

    __slots__ = ("_batches", "_heap", "_positions", "_ranks", "_sources", "emptied")

    def __init__(self) -> None:
        """Create a merger without slots."""
        self._heap: list[_Head] = []
        self._sources: list[Source] = []
        self._ranks: list[tuple[int, int]] = []
        self._batches: list[list[Message]] = []
        self._positions: list[int] = []
        self.emptied = -1

    def add(self, source: Source) -> int:
        """Create an empty slot without a rank; return its number."""
        self._sources.append(source)
        self._ranks.append((0, 0))
        self._batches.append([])
        self._positions.append(0)
        return len(self._sources) - 1

    def rank(self, slot: int, client: int, journal: int) -> None:
        """Set a slot's order among slots whose messages have the same timestamp.

        Slots may be inserted between others later; the order of the existing ones must not change.
        """
        self._ranks[slot] = (client, journal)
        for at, head in enumerate(self._heap):
            if head[4] == slot:
                self._heap[at] = (head[0], client, head[2], journal, slot)

    def feed(self, slot: int, batch: list[Message]) -> None:
        """Give an empty slot its next messages, at least one."""
        if not batch:
            raise ValueError("a batch holds at least one message")
        if self.head(slot) is not None:
            raise ValueError(f"slot {slot} still holds messages")
        self._batches[slot] = batch
        self._positions[slot] = 0
        heappush(self._heap, self._head(slot, batch[0]))

    def head(self, slot: int) -> Message | None:
        """Return the slot's next message, or None if the slot is empty."""
        batch, position = self._batches[slot], self._positions[slot]
        return batch[position] if position < len(batch) else None

    def remove(self, slot: int) -> None:
        """Remove the messages of a slot."""
        self._batches[slot] = []
        self._positions[slot] = 0
        self._heap = [head for head in self._heap if head[4] != slot]
        heapify(self._heap)

    def take(self, limit: int) -> list[tuple[Source, Message]]:
        """Return at most ``limit`` messages in order; stops when a slot is empty: its next message may come first."""
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
        """The number of slots that hold messages."""
        return len(self._heap)

    def _head(self, slot: int, message: Message) -> _Head:
        client, journal = self._ranks[slot]
        return message.timestamp, client, message.offset, journal, slot
