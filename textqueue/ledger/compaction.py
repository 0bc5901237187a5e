"""Compaction of a ledger: it keeps a size in proportion to the messages that it knows.

A message that is added, claimed and marked has three lines, and only the last one means something later. A ledger
counts such lines as it reads and writes. If half of the lines mean nothing, and they are many, it is written again:

- the edits that may still be in the file (``Ledger.edits``), in their order;
- the claims in a mutex that have ended since the last foreign change, each with the line that ended it, because a stale
  save may restore such a claim;
- a last line with the state of the file.

The new file replaces the old one atomically, under the queue's lock and without a lease on the queue file. A crash
before the rename leaves the old ledger. Other processes find the new file by its inode.

Positions are valid within one epoch only. So a ledger of several epochs is compacted by a reconcile of the whole file.
Both costs are in proportion to the file. So the number of lines must be as well (``_BYTES``), and no edit pays for more
than its share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from textqueue.format.kinds import CLAIMS, ENDS, IN_MUTEX
from textqueue.ledger.log import Ledger
from textqueue.ledger.records import GONE, Record

_LEAST_LINES: Final = 1000
_BYTES: Final = 256
"""A ledger of a file of this many bytes for each line, or more, is not compacted."""


def is_wasteful(ledger: Ledger, size: Callable[[], int]) -> bool:
    """Return whether a compaction is worth its cost.

    Args:
        ledger: the ledger, refreshed.
        size: returns the size of the queue file. It is called only if the ledger is long.
    """
    lines = ledger.lines
    long = lines > max(_LEAST_LINES, ledger.compacted * 2) and ledger.spent * 2 > lines
    return long and lines > size() // _BYTES


def compact(ledger: Ledger) -> None:
    """Write the ledger again, without the lines that mean nothing. It has one epoch, and the caller holds the lock."""
    edits = [one for one in ledger.numbered_edits() if one[1].kind not in CLAIMS]
    # An edit has the essence after a variable was set. The line that ended a claim has the one before, and is first.
    kept = [*(_claims(ledger).items() - set(edits)), *edits]
    if len(kept) * 4 > ledger.lines * 3:  # the estimate was wrong: the lines are worth keeping
        ledger.compacted = len(kept)
        return
    assert ledger.token is not None
    kept.sort(key=lambda one: one[0])
    ledger.rewrite([record for _, record in kept], token=ledger.token)
    ledger.compacted = ledger.lines


def _claims(ledger: Ledger) -> dict[int, Record]:
    """Return the lines about claims that matter, by number.

    These are the first and the last line of each open claim: the last has the end of its lease. Of each claim in a
    mutex that has ended, they are the claim and the line that ended it. Of several such claims of one process on equal
    messages, the first one is enough: it has the number that a later one gets (``ledger.remembered``).
    """
    first: dict[int, tuple[int, Record]] = {}  # of the open claims, by position
    last: dict[int, tuple[int, Record]] = {}
    ended: dict[tuple[bytes, bytes, bytes, bool], tuple[tuple[int, Record], tuple[int, Record]]] = {}
    for number, record in enumerate(ledger.history()):
        at = record.position
        if record.kind in CLAIMS:
            if at not in last or last[at][1].holder != record.holder:
                first[at] = number, record
            last[at] = number, record
        elif record.kind in ENDS and at in last:
            claim = last.pop(at)
            if claim[1].kind == IN_MUTEX:
                name = claim[1].digest, record.digest, claim[1].holder, record.owner == GONE
                pair = claim, (number, record)
                ended[name] = min(ended.get(name, pair), pair, key=lambda one: one[0][0])
    lines = [line for pair in ended.values() for line in pair]
    return dict([*lines, *(first[at] for at in last), *last.values()])
