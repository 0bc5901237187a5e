"""What the original counts, by its names."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Counters"]


class Counters(NamedTuple):
    """What the original counts, by its names. What is not a size counts from the opening of the queue.

    Attributes:
        items: waiting.
        bytes: of these.
        total_items: put.
        logsize: bytes of all files.
        expired_items: that expired.
        mem_items: waiting items that are in memory.
        mem_bytes: of these.
        age: ms that the item taken last had waited.
        discarded: dropped at a limit.
        waiters: calls that wait for an item.
        open_transactions: reserved items.
        transactions: items that were reserved.
        canceled_transactions: that were put back.
        total_flushes: calls of flush.
        journal_rewrites: how often the journal was rewritten.
        journal_rotations: how often a file was ended.
    """

    items: int
    bytes: int
    total_items: int
    logsize: int
    expired_items: int
    mem_items: int
    mem_bytes: int
    age: int
    discarded: int
    waiters: int
    open_transactions: int
    transactions: int
    canceled_transactions: int
    total_flushes: int
    journal_rewrites: int
    journal_rotations: int
