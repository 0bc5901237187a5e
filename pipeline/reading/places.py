"""What a read is about: origins (journals and what their names say) and slices (stretches of offsets in them).

Plain values that travel from the driver to the tasks.
"""

from __future__ import annotations

from typing import NamedTuple

from sej.journal.segment import Place

__all__ = ["Origin", "Slice"]


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


class Slice(NamedTuple):
    """The messages [start, stop) of an origin.

    Attributes:
        origin: the journal.
        start: the first offset.
        stop: the offset behind the last.
        size: about how many bytes they take.
        place: where the first message stands, if it is known.
    """

    origin: Origin
    start: int
    stop: int
    size: int
    place: Place | None = None
