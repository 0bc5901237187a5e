"""What the original counts, by its names."""

from __future__ import annotations

from typing import NamedTuple


class Counters(NamedTuple):
    """What the original counts, by its names. What is not a size counts from the opening of the queue.

    Attributes:
        items: waiting.
        bytes: of these.
        total_items: put, those that the replay at the opening found included.
        logsize: bytes of the current file.
        expired_items: that expired.
        mem_items: waiting items that are in memory.
        mem_bytes: of these.
        age: ms since the item that was taken last was put, while data waits; before the first one since 1970.
        discarded: dropped at a limit.
        waiters: calls that wait for an item.
        open_transactions: reserved items.
        transactions: calls of reserve that found items waiting, expired ones included.
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
