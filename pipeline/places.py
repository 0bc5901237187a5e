"""What a read is about: origins (journals and what their names say) and slices (stretches of offsets in them).

Plain values that travel from the driver to the tasks.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Hint", "Origin", "Slice"]


class Origin(NamedTuple):
    """One SEJ directory among those that are read.

    Attributes:
        path: the directory.
        name: how options, offsets and messages call it: its name below the root, or its path where several roots
            are read.
        client: the hub's client, or None.
        prefix: of a shard, or None.
        bits: of a shard, or None.
        shard: its index, or None.
    """

    path: str
    name: str
    client: str | None = None
    prefix: str | None = None
    bits: int | None = None
    shard: int | None = None


class Hint(NamedTuple):
    """A message's place: at a byte of the segment that starts with first_offset stands the message due."""

    first_offset: int
    position: int
    due: int


class Slice(NamedTuple):
    """The messages [start, stop) of an origin.

    Attributes:
        origin: the journal.
        start: the first offset.
        stop: the offset behind the last.
        size: about how many bytes they take.
        hint: a place at or before start, or None.
    """

    origin: Origin
    start: int
    stop: int
    size: int
    hint: Hint | None = None
