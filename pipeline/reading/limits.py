"""The limit of a micro-batch, in messages or bytes, divided among the directories by their backlog.

As in the Kafka source, a directory with twice the backlog gets twice the share. Directories with a share of less than
one message take turns to get one, so that none starves, for any number of directories and any backlog.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from zlib import crc32


def by_messages(starts: Mapping[str, int], ends: Mapping[str, int], limit: int) -> dict[str, int]:
    """Return new ends, so that at most ``limit`` messages are read.

    Example:
        >>> by_messages({"a": 0, "b": 0}, {"a": 30, "b": 10}, 20)
        {'a': 15, 'b': 5}
    """
    waiting = {name: ends[name] - starts[name] for name in ends}
    total = sum(waiting.values())
    if total <= limit:
        return dict(ends)
    shares = {name: amount * limit // total for name, amount in waiting.items()}
    left = limit - sum(shares.values())
    late = _in_turn((name for name in waiting if waiting[name] and not shares[name]), starts)
    most = sorted((name for name in waiting if shares[name]), key=lambda name: (-waiting[name], name))
    for name in [*late, *most][:left]:  # the remainder of rounding
        shares[name] += shares[name] < waiting[name]
    return {name: starts[name] + share for name, share in shares.items()}


def by_bytes(
    starts: Mapping[str, int], ends: Mapping[str, int], limit: int, size_of: Callable[[str, int, int], int]
) -> dict[str, int]:
    """Return new ends, so that about ``limit`` bytes are read; a larger message is read alone.

    Example:
        >>> by_bytes({"a": 0, "b": 0}, {"a": 30, "b": 10}, 200, lambda name, start, stop: 10 * (stop - start))
        {'a': 15, 'b': 5}
        >>> sum(by_bytes({"a": 0, "b": 0}, {"a": 1, "b": 1}, 200, lambda name, start, stop: 1000).values())
        1
    """
    waiting = {name: ends[name] - starts[name] for name in ends if ends[name] > starts[name]}
    sizes = {name: max(size_of(name, starts[name], ends[name]), 1) for name in waiting}
    if sum(sizes.values()) <= limit:
        return dict(ends)
    counts = _whole(waiting, sizes, limit)
    late = _in_turn((name for name, count in counts.items() if not count), starts)
    average = {name: -(-size // waiting[name]) for name, size in sizes.items()}
    if late:  # one of them first, with a message of any size; the others share the rest
        rest = {name: sizes[name] for name in sizes if name != late[0]}
        counts = {late[0]: 1, **_whole(waiting, rest, max(limit - average[late[0]], 0))}
    left = limit - sum(count * average[name] for name, count in counts.items())
    for name in late:
        if not counts[name] and average[name] <= left:
            counts[name] = 1
            left -= average[name]
    return {name: starts[name] + counts.get(name, 0) for name in ends}


def _whole(waiting: Mapping[str, int], sizes: Mapping[str, int], limit: int) -> dict[str, int]:
    """Return how many whole messages fit into each share of a limit in bytes."""
    total = max(sum(sizes.values()), limit, 1)
    return {name: waiting[name] * (size * limit // total) // size for name, size in sizes.items()}


def _in_turn(names: Iterable[str], starts: Mapping[str, int]) -> list[str]:
    """Return names in an order that differs between batches, and is the same when a batch is planned again."""
    turn = sum(starts.values())
    return sorted(names, key=lambda name: (crc32(f"{turn} {name}".encode()), name))
