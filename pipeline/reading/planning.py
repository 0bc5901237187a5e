"""Slices into partitions: packed by bytes, about one for each core, never one for each directory.

A partition costs Spark 10 to 40 ms however little it holds, so small directories share one. A large directory is
divided at index points, so that each task can start in the middle of a segment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from pipeline.reading.extents import Extent
from pipeline.reading.places import Slice
from pipeline.reading.remote import RemoteExtent

PARTITION_BYTES_MAX: Final = 256 << 20
"""Larger partitions are divided further: a failed task reads its partition again.

Half of this costs a tenth of the speed.
"""
PARTITION_BYTES_MIN: Final = 1 << 20
"""Fewer bytes are not worth a task of their own."""


def cores(known: int | None = None) -> int:
    """Return how many tasks run concurrently: ``SEJ_SPARK_CORES``, the known number, or the cores of this process."""
    named = os.environ.get("SEJ_SPARK_CORES", "")
    return int(named) if named.isdigit() and int(named) else known or len(os.sched_getaffinity(0))


def partition_count(size: int, at_least: int | None, at_most: int | None, at_once: int) -> int:
    """Return how many partitions a size needs; if many, enough to keep all cores busy to the end."""
    rounds = -(-size // (PARTITION_BYTES_MAX * at_once))
    count = max(min(at_once, -(-size // PARTITION_BYTES_MIN)), rounds * at_once if rounds > 1 else 1)
    count = max(count, at_least or 1)
    return min(count, at_most or count)


def pack(
    slices: list[Slice],
    extents: Mapping[str, Extent] | Mapping[str, RemoteExtent] | Mapping[str, Extent | RemoteExtent],
    *,
    at_least: int | None = None,
    at_most: int | None = None,
    at_once: int | None = None,
) -> list[list[Slice]]:
    """Divide and pack slices, in order.

    Args:
        slices: the messages to read.
        extents: by the origin's name, for dividing; a slice without one stays whole.
        at_least: at least this many partitions, if there are as many messages.
        at_most: at most this many.
        at_once: cores; None: :func:`cores`.

    Returns:
        The partitions; empty if there is nothing to read.
    """
    total = sum(part.size for part in slices)
    count = partition_count(total, at_least, at_most, at_once or cores())
    partitions: list[list[Slice]] = []
    current: list[Slice] = []
    left = total
    filled = 0
    for part in slices:
        rest: Slice | None = part
        while rest is not None:
            room = _share(left + filled, count - len(partitions)) - filled
            if len(partitions) + 1 >= count or rest.size <= room + _slack(room, filled):
                current.append(rest)
                filled += rest.size
                left -= rest.size
                rest = None
                continue
            extent = extents.get(rest.origin.name)
            divided = extent.cut(rest, room) if extent is not None and room > 0 else None
            if divided is not None:
                current.append(divided[0])
                left -= divided[0].size
                rest = divided[1]
            elif not current:
                current.append(rest)
                left -= rest.size
                rest = None
            partitions.append(current)
            current, filled = [], 0
    if current:
        partitions.append(current)
    return partitions


def _share(size: int, partitions: int) -> int:
    return -(-size // max(partitions, 1))


def _slack(room: int, filled: int) -> int:
    """Return how far a partition may exceed its size, to avoid a cut for a few bytes."""
    return (room + filled) // 8
