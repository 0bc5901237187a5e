"""The counts of a server at one moment, and the sum over the processes of a hub.

The sum never goes back if a process is replaced: what the old one reported last is kept. What it counted after that is
lost with it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, Self

from hub.counters import LATENCY_BOUNDS_S

__all__ = ["Counted", "Counts", "Totals", "encoded"]


class Counts(NamedTuple):
    """What a server has counted since it was started, and what it does at the moment.

    Attributes:
        puts: accepted batches.
        messages: new messages in them.
        bytes: the bytes of new messages, as stored in the journals.
        resent: messages that were sent again and were the same.
        unseen: messages below the hub's first offset, accepted unchecked.
        stalled: readers that were disconnected because others waited.
        refusals: refused calls by reason.
        latency_buckets: batches by duration; the bounds are LATENCY_BOUNDS_S.
        latency_s: the sum of these durations, in seconds.
        open_writers: open writers.
        streams: reads in progress.
        streams_waiting: reads that wait for their turn.
        followers: readers that follow a journal.
        copiers: copying clients.
        reader_leases: journals whose named reader a program elsewhere has.
        answer_bytes: memory used by the answers to readers.
        answer_peak_bytes: the most memory that answers used; of several processes, the sum of each one's most.
        answers_waiting: readers that wait for memory.
    """

    puts: int = 0
    messages: int = 0
    bytes: int = 0
    resent: int = 0
    unseen: int = 0
    stalled: int = 0
    refusals: dict[str, int] = {}  # noqa: RUF012 never changed
    latency_buckets: Sequence[int] = (0,) * (len(LATENCY_BOUNDS_S) + 1)
    latency_s: float = 0.0
    open_writers: int = 0
    streams: int = 0
    streams_waiting: int = 0
    followers: int = 0
    copiers: int = 0
    reader_leases: int = 0
    answer_bytes: int = 0
    answer_peak_bytes: int = 0
    answers_waiting: int = 0

    def plus(self, other: Self) -> Counts:
        """Return the sum."""
        return Counts(*map(_sum, self, other))

    def ended(self) -> Counts:
        """Return what remains when the process has ended: it does nothing any more."""
        values: list[Any] = list(self)
        return Counts(*values[: Counts._fields.index("open_writers")])


def _sum(one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        return {name: one.get(name, 0) + other.get(name, 0) for name in one | other}
    if isinstance(one, Sequence):
        return [first + second for first, second in zip(one, other, strict=True)]
    return one + other


class Counted(Protocol):
    """A server, or all processes of a hub.

    Attributes:
        root: the hub's root.
    """

    @property
    def root(self) -> str:
        """The hub's root."""

    def counts(self) -> Counts:
        """Return the counts at the moment."""


class Totals:
    """The sum over the processes of a hub; threads may share it.

    Attributes:
        root: the hub's root.
    """

    def __init__(self, root: str, ask: Callable[[], list[bytes | None]]) -> None:
        """Ask nothing yet.

        Args:
            root: the hub's root.
            ask: returns for each process its :func:`encoded` counts; None: it did not answer.
        """
        self.root = root
        self._ask = ask
        self._lock = threading.Lock()
        self._ended = Counts()
        self._last: dict[int, tuple[str, Counts]] = {}

    def counts(self) -> Counts:
        """Ask every process, and return the sum."""
        with self._lock:
            total = Counts()
            for number, answer in enumerate(self._ask()):
                before, last = self._last.get(number, ("", Counts()))
                if answer is None:
                    total = total.plus(last.ended())
                    continue
                started, now = _decoded(answer)
                if started != before:
                    self._ended = self._ended.plus(last.ended())
                self._last[number] = started, now
                total = total.plus(now)
            return total.plus(self._ended)


def encoded(started: str, counts: Counts) -> bytes:
    """Return counts as JSON.

    Args:
        started: identifies the process that counts.
        counts: its counts.
    """
    return json.dumps([started, counts]).encode()


def _decoded(data: bytes) -> tuple[str, Counts]:
    started, counts = json.loads(data)
    return started, Counts(*counts)
