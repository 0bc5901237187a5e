"""A budget of bytes that many threads share, first come, first served.

The invariant: what is granted and not withdrawn is at most ``total``, and of each kind of request at most three
quarters of it, so that one kind cannot shut out the others. A request names the least it can use and the most it likes.
While less than half of the budget is used it gets the most, afterwards the least: many callers then get little each,
instead of a few getting all and the others nothing::

    ask ──> granted ──────────────> withdrawn
     └────> waiting ──> granted ──> withdrawn     shrink() and withdraw() serve the queue from its front
                └─────────────────> withdrawn

A request waits behind those that came before it, but not behind one that waits for its own kind's share. A request for
more than the whole budget, or its kind's share, waits until nothing else is in its way and then has it alone.
"""

from __future__ import annotations

import threading
from collections import Counter

__all__ = ["Budget", "Ticket"]


class Ticket:
    """A request for bytes.

    Attributes:
        granted: bytes that the caller has; 0 while it waits, and after it was withdrawn.
    """

    __slots__ = ("_settled", "granted", "kind", "least", "most")

    def __init__(self, least: int, most: int, kind: str) -> None:
        """Nothing is granted yet."""
        self.least = least
        self.most = most
        self.kind = kind
        self.granted = 0
        self._settled = threading.Event()

    @property
    def settled(self) -> bool:
        """Whether the request was granted or withdrawn."""
        return self._settled.is_set()

    def settle(self, granted: int) -> None:
        """Let the caller go on."""
        self.granted = granted
        self._settled.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the request is granted or withdrawn, at most timeout seconds; whether it is."""
        return self._settled.wait(timeout)


class Budget:
    """Grants bytes up to a total; shared by any number of threads.

    Attributes:
        total: bytes that may be granted at a time.
        used: bytes that are granted now.
        peak: the most that was granted at a time.

    Example:
        >>> budget = Budget(100)
        >>> first = budget.ask(10, 80)
        >>> second = budget.ask(30, 30)
        >>> first.granted, second.granted
        (10, 30)
        >>> budget.withdraw(first)
        >>> budget.used
        30
    """

    def __init__(self, total: int) -> None:
        """Start with nothing granted.

        Args:
            total: bytes.
        """
        if total < 1:
            raise ValueError(f"total must be at least 1 byte, got {total}")
        self.total = total
        self.used = self.peak = 0
        self._share = total - total // 4
        self._lock = threading.Lock()
        self._used_by: Counter[str] = Counter()
        self._queue: dict[Ticket, None] = {}

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._queue)

    def ask(self, least: int, most: int, kind: str = "") -> Ticket:
        """Request bytes.

        Args:
            least: as few as the caller can use; more than the total counts as the total.
            most: as many as it likes.
            kind: whose share it comes from.
        """
        least = min(least, self.total)
        ticket = Ticket(least, max(least, most), kind)
        with self._lock:
            self._queue[ticket] = None
            self._serve()
        return ticket

    def shrink(self, ticket: Ticket, size: int) -> None:
        """Take back what a granted request has above size bytes."""
        with self._lock:
            if ticket.granted > size:
                self._take_back(ticket, ticket.granted - size)

    def withdraw(self, ticket: Ticket) -> None:
        """End a request, whatever became of it: it waits no longer, and what it was granted is taken back."""
        with self._lock:
            if ticket.settled:
                self._take_back(ticket, ticket.granted)
            else:
                del self._queue[ticket]
                ticket.settle(0)
                self._serve()

    def _take_back(self, ticket: Ticket, size: int) -> None:
        ticket.granted -= size
        self.used -= size
        self._used_by[ticket.kind] -= size
        self._serve()

    def _serve(self) -> None:
        """Grant what can be granted, in the order of arrival."""
        full: set[str] = set()
        for ticket in list(self._queue):
            used, kind = self._used_by[ticket.kind], ticket.kind
            if kind in full:
                continue
            if used and used + ticket.least > self._share:
                full.add(kind)
                continue
            if self.used + ticket.least > self.total:
                return
            roomy = self.used + ticket.most <= self.total // 2 and used + ticket.most <= self._share
            del self._queue[ticket]
            ticket.settle(ticket.most if roomy else ticket.least)
            self.used += ticket.granted
            self._used_by[kind] += ticket.granted
            self.peak = max(self.peak, self.used)
