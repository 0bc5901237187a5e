"""How far one micro-batch goes: a limit in messages or bytes, spread over the directories by what each has.

As the Kafka source does it: a directory with twice the backlog gets twice the share, and everyone who has something
gets at least one message, so that nobody starves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

__all__ = ["by_bytes", "by_messages"]


def by_messages(starts: Mapping[str, int], ends: Mapping[str, int], limit: int) -> dict[str, int]:
    """New ends, so that no more than limit messages are read.

    Example:
        >>> by_messages({"a": 0, "b": 0}, {"a": 30, "b": 10}, 20)
        {'a': 15, 'b': 5}
    """
    waiting = {name: ends[name] - starts[name] for name in ends}
    total = sum(waiting.values())
    if total <= limit:
        return dict(ends)
    return {name: starts[name] + share for name, share in _shares(waiting, limit).items()}


def by_bytes(
    starts: Mapping[str, int], ends: Mapping[str, int], limit: int, size_of: Callable[[str, int, int], int]
) -> dict[str, int]:
    """New ends, so that about limit bytes are read; a message that is larger comes alone."""
    sizes = {name: size_of(name, starts[name], ends[name]) for name in ends if ends[name] > starts[name]}
    total = sum(sizes.values())
    found = dict(ends)
    if total <= limit:
        return found
    for name, share in _shares(sizes, limit).items():
        count = ends[name] - starts[name]
        found[name] = starts[name] + max(count * share // max(sizes[name], 1), 1 if share else 0)
    return found


def _shares(waiting: Mapping[str, int], limit: int) -> dict[str, int]:
    """Divide a limit by what waits; what rounding leaves goes to those who have most."""
    total = sum(waiting.values())
    shares = {name: amount * limit // total for name, amount in waiting.items()}
    left = limit - sum(shares.values())
    for name in sorted(waiting, key=lambda name: (shares[name] > 0, -waiting[name], name)):
        if left <= 0:
            break
        if shares[name] < waiting[name]:
            shares[name] += 1
            left -= 1
    return shares
