"""Limits of the flow of a queue: how many items are leased at a time, how many are delivered in a time, and a pause.

Pause and rate are kept in the queue's log, so that they hold for all processes together and after a restart.

The rate is a token bucket. A bucket for ``10/s`` holds 10 tokens, an item takes one, and one is added each 100 ms. It
is kept as one number, the time at which the bucket is full again (``full_at_ns``, on the boot-time clock)::

    tokens now = capacity - (full_at_ns - now) / interval          at most the capacity
    a take of n items:  full_at_ns = max(full_at_ns, now) + n * interval
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from sej.checks import TEXT
from sej.queue.log.format import RATE
from sej.queue.log.state import QueueState
from sej.system.clock import LONGEST_NS

_RATE: Final = re.compile(r"([1-9]\d*)\s*/\s*(\d*)\s*(s|m|h|d)")
_UNIT_NS: Final = {"s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9}


class Rate(NamedTuple):
    """A rate.

    Attributes:
        burst: how many items, at most immediately after one another.
        interval_ns: the time that one item takes.
    """

    burst: int
    interval_ns: int


def parse_rate(text: str) -> Rate:
    """Return the rate of a text: ``10/s``, ``100/m``, ``5/h``, ``1/30s``.

    Raises:
        ValueError: the text is not a rate.

    Example:
        >>> parse_rate("10/s"), parse_rate("1/30s")
        (Rate(burst=10, interval_ns=100000000), Rate(burst=1, interval_ns=30000000000))
    """
    found = _RATE.fullmatch(text.strip())
    if found is None or found[2] == "0":
        raise ValueError(f"rate must be a number of items per time, as in '10/s', '100/m' or '1/30s', got {text!r}")
    count = int(found[1])
    span_ns = min(int(found[2] or 1) * _UNIT_NS[found[3]], LONGEST_NS)
    return Rate(count, max(span_ns // count, 1))


def require_rate(name: str, value: Any) -> None:
    """Check a rate, as a rule of :func:`sej.checks.require`."""
    TEXT(name, value)
    parse_rate(value)


class Flow(NamedTuple):
    """The limits that one process applies.

    Attributes:
        concurrency: how many items of the queue may be leased, by all processes together; None: no limit.
        rate: how many may be delivered in a time; None: no limit.
    """

    concurrency: int | None = None
    rate: Rate | None = None

    def opened(self, state: QueueState, now_ns: int) -> list[bytes]:
        """Return the record with which a process begins: a debt of another rate, or of a set clock, is limited.

        The bucket is never emptier than empty: otherwise a queue with a new, faster rate would wait for the old one.
        """
        if self.rate is None:
            return []
        empty_ns = now_ns + self.rate.burst * self.rate.interval_ns
        return [RATE(empty_ns)] if state.full_at_ns > empty_ns else []

    def room(self, state: QueueState, n: int, now_ns: int) -> int:
        """Return how many of n items may be taken now."""
        if state.paused:
            return 0
        if self.concurrency is not None:
            n = min(n, self.concurrency - len(state.leased) + len(state.schedule.lapsed))
        if self.rate is not None:
            used_ns = max(state.full_at_ns - now_ns, 0)
            n = min(n, (self.rate.burst * self.rate.interval_ns - used_ns) // self.rate.interval_ns)
        return max(n, 0)

    def spent(self, state: QueueState, n: int, now_ns: int) -> list[bytes]:
        """Return the records of n items that were taken."""
        if self.rate is None or not n:
            return []
        return [RATE(max(state.full_at_ns, now_ns) + n * self.rate.interval_ns)]

    def next_ns(self, state: QueueState) -> int | None:
        """Return when the rate allows the next item; None: the queue has no rate."""
        if self.rate is None:
            return None
        return state.full_at_ns - (self.rate.burst - 1) * self.rate.interval_ns


UNLIMITED: Final = Flow()
"""No limits."""
