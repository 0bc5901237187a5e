"""What calls use of the server: memory for their answers, and threads.

The answers that are being built for readers, and those that their callers have not received yet, together stay within
one budget. gRPC copies an answer and keeps the copy until the caller's flow-control window and the socket have
room for it. A call's share is therefore returned when its next answer
is requested or the call has ended, not when the answer was passed to gRPC::

    building(size)   the share is granted: COPIES times the answer         the call waits for it, with its deadline │
    built(size)      the answer's bytes and gRPC's copy of them            the caller takes it, or does not
         │
    building(), rest() or the end of the call: returned

Puts and copies do not use this budget: their answers are a few bytes, and must not wait for readers. For the same
reason only a few answers are built at one time: every thread that computes competes with those that write.

A caller that does not receive its answer keeps its share. If other calls wait for it, :meth:`Answers.sweep` ends the
calls that have not moved for ``stall_s``.

The budget is a number of bytes that many threads share, first come, first served. The invariant: the bytes granted and
not withdrawn are at most ``total``, and those of each kind of request at most three quarters of it, so that one kind
cannot exclude the others. An answer that became larger than its share, as JSON may, is counted as it is, and the next
requests wait for it. A request names the least it can use and the most it wants. While less than half of the
budget is used it gets the most, afterwards the least: then many callers get a little
each, instead of a few getting everything::

    ask ──> granted ──────────────> withdrawn
     └────> waiting ──> granted ──> withdrawn     resize() and withdraw() serve the queue from its front
                └─────────────────> withdrawn

A request waits for earlier ones, except those that wait for the share of their own kind. A request for more than the
whole budget, or the share of its kind, waits until no other request is granted and then has it alone.

A thread pool for each kind of call, so that no kind waits for the threads of another.

gRPC's Python server runs every call on a thread and queues calls in the pool without a limit. With one pool a few
hundred slow readers hold all threads, or fill the queue, and a put waits until they end. Here each method has a lane:
its own threads, its own queue, its own limit. A call for a lane that is full is refused immediately, on a thread of
its own, before its request is read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import unquote

from hub.wire.access import Call
from hub.wire.status import BusyError, CallEndedError
from sej.errors import SejError

_log = logging.getLogger(__name__)
LEAST_BYTES: Final = 1 << 16
"""The smallest share: an answer of this size can always be built."""
_COPIES: Final = 3
"""Copies of the bytes while an answer is built: as read, as pieces of the answer, and joined."""
_SENT_COPIES: Final = 2
"""Copies while it is sent: the answer, and gRPC's own."""
_AT_WORK: Final = 2
_LOOK_S: Final = 0.5
_MOVED_S: Final = 1.0
_DEADLINE_SHARE: Final = 0.9
"""The part of a call's remaining time that it may wait; the rest is for answering that the hub is busy."""


class Ticket(threading.Event):
    """A request for bytes; set when it is granted or withdrawn.

    Attributes:
        granted: bytes granted to the caller; 0 while it waits, and after it was withdrawn.
    """

    def __init__(self, least: int, most: int, kind: str) -> None:
        """Create a request to which nothing is granted yet."""
        super().__init__()
        self.least = least
        self.most = most
        self.kind = kind
        self.granted = 0


class Answers:
    """Divides the memory of answers among calls; shared by any number of threads.

    Attributes:
        total: the most bytes that may be granted at one time.
        used: bytes that are granted now.
        peak: the most bytes that were granted at one time.
        at_work: held by a thread that computes for a reader.
        sweeps: the number of :meth:`sweep` calls.
        stalled: the number of calls that were ended because their caller did not receive its answer.

    Example:
        >>> answers = Answers(100, wait_s=1.0, stall_s=1.0)
        >>> first = answers.ask(10, 80)
        >>> second = answers.ask(30, 30)
        >>> first.granted, second.granted
        (10, 30)
        >>> answers.withdraw(first)
        >>> answers.used
        30
    """

    def __init__(self, total_bytes: int, *, wait_s: float, stall_s: float) -> None:
        """Create the memory with nothing granted.

        Args:
            total_bytes: the memory of all answers together.
            wait_s: how long a call waits for its share, if its deadline allows that.
            stall_s: how long an answer may wait for its caller while other calls need the memory.
        """
        self.total = total_bytes
        self.used = self.peak = 0
        self._share = total_bytes - total_bytes // 4
        self._used_by: Counter[str] = Counter()
        self._queue: dict[Ticket, None] = {}
        self.sweeps = self.stalled = 0
        self.wait_s = wait_s
        self._stall_s = stall_s
        self.at_work = threading.Semaphore(_AT_WORK)
        self._lock = threading.Lock()
        self._sending: dict[Lease, float] = {}

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

    def resize(self, ticket: Ticket, size: int) -> None:
        """Set the bytes of a granted request to ``size``, at most the total."""
        with self._lock:
            if ticket.granted:
                self._take_back(ticket, ticket.granted - min(size, self.total))

    def withdraw(self, ticket: Ticket) -> None:
        """End a request in any state: it no longer waits, and its bytes are returned."""
        with self._lock:
            if ticket.is_set():
                self._take_back(ticket, ticket.granted)
            else:
                del self._queue[ticket]
                ticket.set()
                self._serve()

    def _take_back(self, ticket: Ticket, size: int) -> None:
        ticket.granted -= size
        self.used -= size
        self._used_by[ticket.kind] -= size
        self.peak = max(self.peak, self.used)
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
            ticket.granted = ticket.most if roomy else ticket.least
            ticket.set()
            self.used += ticket.granted
            self._used_by[kind] += ticket.granted
            self.peak = max(self.peak, self.used)

    def sweep(self, crowded: bool) -> None:
        """Check the calls whose answers wait; end those that are no longer allowed or, if needed, do not move.

        Args:
            crowded: True if callers were refused for lack of a thread, so that threads are as scarce as memory.
        """
        crowded = crowded or self.waiting > 0
        now, least_s = time.monotonic(), min(_MOVED_S, self._stall_s)
        with self._lock:
            still = [(lease, now - since) for lease, since in self._sending.items() if now - since >= least_s]
        self.sweeps += 1
        ended: list[str] = []
        for lease, quiet_s in still:
            try:
                lease.call.check()
            except SejError as error:
                lease.call.guard.note(lease.call.context, error)
            else:
                if quiet_s < self._stall_s or not crowded:
                    continue
                ended.append(unquote(lease.call.context.peer()))  # unknown after the call is cancelled
            self.moved(lease)  # the next sweep may come before gRPC has ended the call
            lease.call.context.cancel()
        if ended:
            self.stalled += len(ended)
            _log.warning(
                "ended %d readers, one at %s, that did not receive their answers for %g s while others waited",
                len(ended),
                ended[0],
                self._stall_s,
            )

    def started(self, lease: Lease) -> None:
        """Register an answer that waits for its caller."""
        with self._lock:
            self._sending[lease] = time.monotonic()

    def moved(self, lease: Lease) -> None:
        """Unregister the answer: its caller has received it."""
        with self._lock:
            self._sending.pop(lease, None)


class Lease:
    """One call's share; used by the call's thread, and ended by gRPC with the call.

    Attributes:
        call: the call.
    """

    def __init__(self, answers: Answers, call: Call, *, kind: str, patient: bool = False) -> None:
        """Create a share of nothing.

        Args:
            answers: where the shares come from.
            call: the call.
            kind: the kind of call, whose share of the budget this comes from.
            patient: wait for a share as long as the call lasts.
        """
        self.call = call
        self._answers = answers
        self._kind = kind
        self._patient = patient
        self._lock = threading.Lock()
        self._ticket: Ticket | None = None
        self._ended = False
        if not call.context.add_callback(self.end):
            self.end()

    @contextmanager
    def building(self, size: int) -> Iterator[int]:
        """Build an answer inside the block; yields its largest size, at most ``size`` bytes.

        Raises:
            BusyError: no share was returned in time.
            CallEndedError: the call has ended.
        """
        granted = self._take(min(size, LEAST_BYTES), size)
        with self._answers.at_work:
            yield granted

    def grow(self, size: int) -> None:
        """Inside :meth:`building`, get the share of one large message of ``size`` bytes.

        Raises:
            BusyError, CallEndedError: as :meth:`building`.
        """
        self._answers.at_work.release()
        try:
            self._take(size, size)
        finally:
            self._answers.at_work.acquire()

    def built(self, size: int) -> None:
        """Keep the share of an answer of ``size`` bytes that is being sent."""
        with self._lock:
            if self._ticket is not None:
                self._answers.resize(self._ticket, _SENT_COPIES * size)
        self._answers.started(self)
        if self._ended:
            self.rest()

    def rest(self) -> None:
        """Return the share: the caller has received the last answer."""
        self._answers.moved(self)
        with self._lock:
            ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._answers.withdraw(ticket)

    def end(self) -> None:
        """End the share with the call; a thread that waits for it wakes."""
        self._ended = True
        self.rest()

    def _take(self, least: int, most: int) -> int:
        """Request a share between ``least`` and ``most`` bytes; return its size."""
        self.rest()
        ticket = self._answers.ask(_COPIES * least, _COPIES * most, self._kind)
        with self._lock:
            self._ticket = ticket
        if self._ended:
            self.rest()
        wait_s = min(self._answers.wait_s, _DEADLINE_SHARE * self.call.context.time_remaining())
        until = time.monotonic() + wait_s
        while not ticket.wait(_LOOK_S if self._patient else max(0.0, min(_LOOK_S, until - time.monotonic()))):
            self.call.check()
            if not self._patient and time.monotonic() >= until:
                self.rest()
                raise BusyError(f"the hub's memory for answers was used up for {wait_s:.1f} s; try again later")
        if self._ended:
            raise CallEndedError
        return max(ticket.granted // _COPIES, 1)


class Lane(ThreadPoolExecutor):
    """Threads for one kind of call; a subclass, because gRPC accepts only this type as a method's pool.

    Attributes:
        calls: the number of calls in progress or waiting.
    """

    def __init__(self, name: str, threads: int, max_calls: int) -> None:
        """Name the threads; they start at their first use."""
        super().__init__(threads, thread_name_prefix=f"hub-{name}")
        self.calls = 0
        self._max_calls = max_calls
        self._counting = threading.Lock()

    @property
    def full(self) -> bool:
        """True if the next call must be refused."""
        return self.calls >= self._max_calls

    def submit(self, *given: Any, **named: Any) -> Future[Any]:
        """Submit like the base class, and count the call."""
        future = super().submit(*given, **named)
        with self._counting:
            self.calls += 1
        future.add_done_callback(self._ended)
        return future

    def _ended(self, _: object) -> None:
        with self._counting:
            self.calls -= 1


class Answer:
    """One answer of a stream, which gRPC can take once.

    gRPC's loop over the answers keeps the last one while it waits for the next: then it only keeps this empty object.
    """

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        """Hold the bytes until they are taken."""
        self._data = data

    def take(self) -> bytes:
        """Return the bytes and release them."""
        data, self._data = self._data, b""
        return data

    @staticmethod
    def taken(answer: bytes | Answer) -> bytes:
        """Return the bytes of an answer in either form."""
        return answer if isinstance(answer, bytes) else answer.take()
