"""What a store and its server have done since they were started: plain numbers for metrics."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

LATENCY_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the latency buckets; the last bucket has none."""


class Counters:
    """Counts batches, messages and refusals; threads may share it.

    Attributes:
        puts: accepted batches.
        messages: new messages in them.
        bytes: the bytes of new messages, as stored in the journals.
        resent: messages that were sent again and were the same.
        unseen: messages below the hub's first offset, accepted unchecked.
        refusals: refused batches by the error's name.
        latency_buckets: batches by duration; the bounds are LATENCY_BOUNDS_S.
        latency_s: the sum of these durations, in seconds.
    """

    def __init__(self) -> None:
        """Start at zero."""
        self._lock = threading.Lock()
        self.puts = self.messages = self.bytes = self.resent = self.unseen = 0
        self.refusals: Counter[str] = Counter()
        self.latency_buckets = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.latency_s = 0.0

    def took(self, messages: int, size: int, seconds: float) -> None:
        """Count an accepted batch."""
        bucket = 0
        while bucket < len(LATENCY_BOUNDS_S) and seconds > LATENCY_BOUNDS_S[bucket]:
            bucket += 1
        with self._lock:
            self.puts += 1
            self.messages += messages
            self.bytes += size
            self.latency_buckets[bucket] += 1
            self.latency_s += seconds

    def saw_again(self, same: int, unseen: int) -> None:
        """Count messages that were sent again."""
        with self._lock:
            self.resent += same
            self.unseen += unseen

    def refused(self, error: BaseException) -> None:
        """Count a refused batch."""
        with self._lock:
            self.refusals[type(error).__name__] += 1


class Counts(NamedTuple):
    """What a server has counted since it was started, as :class:`Counters`, and what it does at the moment.

    Attributes:
        stalled: readers that were disconnected because others waited.
        refusals: refused calls by reason.
        open_writers: open writers.
        streams: reads in progress.
        streams_waiting: reads that wait for their turn.
        followers: readers that follow a journal.
        copiers: copying clients.
        reader_leases: journals whose named reader a program elsewhere has.
        answer_bytes: memory used by the answers to readers.
        answer_peak_bytes: the most memory that answers used.
        answers_waiting: readers that wait for memory.
    """

    puts: int
    messages: int
    bytes: int
    resent: int
    unseen: int
    stalled: int
    refusals: dict[str, int]
    latency_buckets: Sequence[int]
    latency_s: float
    open_writers: int
    streams: int
    streams_waiting: int
    followers: int
    copiers: int
    reader_leases: int
    answer_bytes: int
    answer_peak_bytes: int
    answers_waiting: int
