"""The memory of answers: what is being built for readers, and what waits until its caller takes it.

All of it together stays within one :class:`hub.budget.Budget`. gRPC copies an answer and keeps the copy until the
caller's flow-control window and the socket have room for it, so a call's share is given back when its next answer is
due or when the call has ended, not when the answer was handed over::

    building(size)   the share is granted: COPIES times the answer         the call waits for it, with its deadline
         │
    built(size)      the answer's bytes and gRPC's copy of them            the caller takes it, or does not
         │
    building(), rest() or the end of the call: given back

Puts and copies never come here: their answers are a few bytes, and they must not wait for readers. For the same reason
only a few answers are built at a time: every thread that computes takes turns with those that write.

A caller that does not take an answer keeps its share. When others wait for it, :meth:`Answers.sweep` ends the calls
that have not moved for ``stall_s``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import unquote

import grpc

from hub.budget import Budget, Ticket
from hub.wire.status import BusyError
from sej.errors import SejError

__all__ = ["LEAST_BYTES", "Answers", "CallEndedError", "Lease"]

_log = logging.getLogger(__name__)
LEAST_BYTES: Final = 1 << 16
"""The smallest share: an answer of so many bytes can always be built."""
_COPIES: Final = 3
"""How often the bytes of an answer are in memory while it is built: as read, as pieces of the answer, joined."""
_SENT_COPIES: Final = 2
"""And while it is sent: the answer, and gRPC's copy."""
_AT_WORK: Final = 2
_LOOK_S: Final = 0.5
_MOVED_S: Final = 1.0
_DEADLINE_SHARE: Final = 0.9
"""How much of the time that a call has left it waits: the rest is for saying that the hub is busy."""


class CallEndedError(Exception):
    """The caller is gone: nothing needs to be built."""


class Answers:
    """Shares the memory of answers out.

    Attributes:
        budget: the bytes.
        at_work: held by whoever computes for a reader.
        sweeps: how often :meth:`sweep` has looked.
        stalled: how many calls were ended because their caller did not take its answer.
    """

    def __init__(self, total_bytes: int, *, wait_s: float, stall_s: float) -> None:
        """Start with nothing shared out.

        Args:
            total_bytes: the memory of all answers together.
            wait_s: how long a call waits for its share, if its deadline allows that.
            stall_s: how long a caller may keep an answer waiting that others wait for.
        """
        self.budget = Budget(total_bytes)
        self.sweeps = self.stalled = 0
        self.wait_s = wait_s
        self._stall_s = stall_s
        self.at_work = threading.Semaphore(_AT_WORK)
        self._lock = threading.Lock()
        self._sending: dict[Lease, float] = {}

    def sweep(self, crowded: bool, refused: Callable[[grpc.ServicerContext, SejError], None]) -> None:
        """Look at the calls whose answers wait: end those that may not go on, and if need be those that do not move.

        Args:
            crowded: whether callers were turned away, so that a place is worth as much as memory.
            refused: called with a call that may not go on, before it is ended.
        """
        crowded = crowded or self.budget.waiting > 0
        now, least_s = time.monotonic(), min(_MOVED_S, self._stall_s)
        with self._lock:
            still = [(lease, now - since) for lease, since in self._sending.items() if now - since >= least_s]
        self.sweeps += 1
        ended: list[str] = []
        for lease, quiet_s in still:
            try:
                lease.check()
            except SejError as error:
                refused(lease.context, error)
            else:
                if quiet_s < self._stall_s or not crowded:
                    continue
                ended.append(unquote(lease.context.peer()))  # no longer known when it is cancelled
            lease.context.cancel()
        if ended:
            self.stalled += len(ended)
            _log.warning(
                "%d readers, one at %s, did not take their answers for %g s, and others wait: they are ended",
                len(ended),
                ended[0],
                self._stall_s,
            )

    def started(self, lease: Lease) -> None:
        """An answer waits for its caller."""
        with self._lock:
            self._sending[lease] = time.monotonic()

    def moved(self, lease: Lease) -> None:
        """It does so no longer."""
        with self._lock:
            self._sending.pop(lease, None)


class Lease:
    """One call's share; used by the call's thread, and ended by gRPC when the call is.

    Attributes:
        context: the call.
    """

    def __init__(
        self,
        answers: Answers,
        context: grpc.ServicerContext,
        check: Callable[[], None],
        *,
        kind: str,
        patient: bool = False,
    ) -> None:
        """Nothing is held yet.

        Args:
            answers: where the shares come from.
            context: the call.
            check: raises if the call may not go on.
            kind: of calls, whose share of the budget this comes from.
            patient: wait for a share as long as the call lasts.
        """
        self.context = context
        self.check = check
        self._answers = answers
        self._kind = kind
        self._patient = patient
        self._lock = threading.Lock()
        self._ticket: Ticket | None = None
        self._ended = self._working = False
        if not context.add_callback(self.end):
            self.end()

    @contextmanager
    def building(self, size: int) -> Iterator[int]:
        """Build an answer inside; yields how large it may be, at most size bytes.

        Raises:
            BusyError: no share came free in time.
            CallEndedError: the call has ended.
        """
        granted = self._take(min(size, LEAST_BYTES), size)
        self._work()
        try:
            yield granted
        finally:
            self._rest_from_work()

    def grow(self, size: int) -> None:
        """Inside :meth:`building`: get the share of one large message, of size bytes.

        Raises:
            BusyError, CallEndedError: as :meth:`building`.
        """
        self._rest_from_work()
        self._take(size, size)
        self._work()

    def built(self, size: int) -> None:
        """An answer of size bytes is on its way."""
        with self._lock:
            if self._ticket is not None:
                self._answers.budget.shrink(self._ticket, _SENT_COPIES * size)
        self._answers.started(self)
        if self._ended:
            self.rest()

    def rest(self) -> None:
        """Nothing is held: the caller took the last answer."""
        self._answers.moved(self)
        with self._lock:
            ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._answers.budget.withdraw(ticket)

    def end(self) -> None:
        """The call has ended; a thread that waits for a share wakes."""
        self._ended = True
        self.rest()

    def _take(self, least: int, most: int) -> int:
        """A share for an answer of at least and at most so many bytes; how many it is."""
        self.rest()
        ticket = self._answers.budget.ask(_COPIES * least, _COPIES * most, self._kind)
        with self._lock:
            self._ticket = ticket
        if self._ended:
            self.rest()
        wait_s = min(self._answers.wait_s, _DEADLINE_SHARE * self.context.time_remaining())
        until = time.monotonic() + wait_s
        while not ticket.wait(_LOOK_S if self._patient else max(0.0, min(_LOOK_S, until - time.monotonic()))):
            self.check()
            if not self._patient and time.monotonic() >= until:
                self.rest()
                raise BusyError(
                    f"the hub's memory for answers is used up and none came free in {wait_s:.1f} s: try later"
                )
        if self._ended:
            raise CallEndedError
        return max(ticket.granted // _COPIES, 1)

    def _work(self) -> None:
        self._answers.at_work.acquire()
        self._working = True

    def _rest_from_work(self) -> None:
        if self._working:
            self._working = False
            self._answers.at_work.release()
