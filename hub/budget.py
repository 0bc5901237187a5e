"""A budget of bytes that many threads share, first come, first served.

The invariant: the bytes granted and not withdrawn are at most ``total``, and those of each kind of request at most
three quarters of it, so that one kind cannot exclude the others. A request names the least it can use and the most it
wants. While less than half of the budget is used it gets the most, afterwards the least: then many callers get a little
each, instead of a few getting everything::

    ask ──> granted ──────────────> withdrawn
     └────> waiting ──> granted ──> withdrawn     shrink() and withdraw() serve the queue from its front
                └─────────────────> withdrawn

A request waits for earlier ones, except those that wait for the share of their own kind. A request for more than the
whole budget, or the share of its kind, waits until no other request is granted and then has it alone.
"""

from __future__ import annotations

import threading
from collections import Counter


class Ticket:
    """A request for bytes.

    Attributes:
        granted: bytes granted to the caller; 0 while it waits, and after it was withdrawn.
    """

    __slots__ = ("_settled", "granted", "kind", "least", "most")

    def __init__(self, least: int, most: int, kind: str) -> None:
        """Create a request to which nothing is granted yet."""
        self.least = least
        self.most = most
        self.kind = kind
        self.granted = 0
        self._settled = threading.Event()

    @property
    def settled(self) -> bool:
        """True if the request was granted or withdrawn."""
        return self._settled.is_set()

    def settle(self, granted: int) -> None:
        """Grant bytes and wake the caller."""
        self.granted = granted
        self._settled.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the request is granted or withdrawn, at most ``timeout`` seconds; return whether it is."""
        return self._settled.wait(timeout)


class Budget:
    """Grants bytes up to a total; shared by any number of threads.

    Attributes:
        total: the most bytes that may be granted at one time.
        used: bytes that are granted now.
        peak: the most bytes that were granted at one time.

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
        """Create a budget with nothing granted.

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
        """The number of requests that wait."""
        return len(self._queue)

    def ask(self, least: int, most: int, kind: str = "") -> Ticket:
        """Request bytes.

        Args:
            least: the fewest bytes that the caller can use; more than the total counts as the total.
            most: the most bytes that it wants.
            kind: the kind of request, whose share the bytes come from.
        """
        least = min(least, self.total)
        ticket = Ticket(least, max(least, most), kind)
        with self._lock:
            self._queue[ticket] = None
            self._serve()
        return ticket

    def shrink(self, ticket: Ticket, size: int) -> None:
        """Return the bytes of a granted request above ``size``."""
        with self._lock:
            if ticket.granted > size:
                self._take_back(ticket, ticket.granted - size)

    def withdraw(self, ticket: Ticket) -> None:
        """End a request in any state: it no longer waits, and its bytes are returned."""
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
        """Grant the waiting requests that fit, in order of arrival."""
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
