"""What calls may do, and what they use of the server: access control, memory for their answers, and threads.

**Access.** Which call a token or a certificate allows, and how a refusal is answered and counted.

:mod:`hub.tokens` has the tokens. An error of a call becomes a status with a reason (:mod:`hub.wire.status`).

A server with tokens serves no caller without one. Under mutual TLS the common name of the certificate is the client id:
the client may write and read only that one.

**Memory.** The answers that are being built for readers, and those that their callers have not received yet, together
stay within one budget. gRPC copies an answer and keeps the copy until the caller's flow-control window and the socket
have room for it. A call's share is therefore returned when its next answer is requested or the call has ended, not when
the answer was passed to gRPC::

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
     └────> waiting ──> granted ──> withdrawn     keep() and withdraw() serve the queue from its front
                └─────────────────> withdrawn

A request waits for earlier ones, except those that wait for the share of their own kind. A request for more than the
whole budget, or the share of its kind, waits until no other request is granted and then has it alone.

**Threads.** A pool for each kind of call, so that no kind waits for the threads of another.

gRPC's Python server runs every call on a thread and queues calls in the pool without a limit. With one pool a few
hundred slow readers hold all threads, or fill the queue, and a put waits until they end. Here each method has a lane:
its own threads, its own queue, its own limit. A call for a lane that is full is refused immediately, on a thread of
its own, before its request is read.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, cast
from urllib.parse import unquote
from weakref import WeakSet

import grpc

from hub.errors import AccessError, ConflictError, DiskLowError, GapError, UnavailableError
from hub.naming import Source, check_journal
from hub.tokens import Role, Tokens
from hub.wire.status import COMPRESSED, BusyError, CallEndedError, to_status
from sej.errors import SejError

_ALLOWS: Final[Mapping[Role, str]] = {"reader": "keep a reader's offset on the hub (`sej hub token --reader`)"}

_log = logging.getLogger(__name__)
_PERIOD_S: Final = 60.0
_ASK_AGAIN_S: Final = 1.0
_ADDRESSES: Final = 256
"""Addresses that are logged in one period."""
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


class Guard:
    """Decides for each call whether its caller is allowed, and turns its error into a status.

    Attributes:
        stopping: set when the hub stops.
        is_open: True if callers need neither a token nor a certificate.
        refusals: calls that ended with an error, by its name in the metadata, and copiers that found themselves that
            they cannot continue.
    """

    def __init__(self, tokens: Tokens | None, *, mutual: bool) -> None:
        """Set the tokens, and whether callers have certificates."""
        self.stopping = threading.Event()
        self.is_open = tokens is None and not mutual
        self.refusals: dict[str, int] = {}
        self._tokens = tokens
        self._mutual = mutual
        self._lock = threading.Lock()
        self._refused: WeakSet[grpc.ServicerContext] = WeakSet()
        """Calls that were counted: the sweep and a call's own thread may both find that its permission has ended."""
        self._logged: set[str] = set()
        self._log_until = 0.0

    def require_running(self) -> None:
        """Check that the hub does not stop."""
        if self.stopping.is_set():
            raise UnavailableError("the hub is stopping; continue when it is back")

    def allow(self, context: grpc.ServicerContext, client: str, journal_dir: str, *roles: Role) -> Source:
        """Return the journal of a call, if its caller has one of the roles for the client.

        Raises:
            AccessError: it does not.
            InvalidNameError: this is not the name of a journal.
        """
        source = check_journal(client, journal_dir)
        self.check(context, client, *roles)
        return source

    @contextmanager
    def answering(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Turn an error in the block into its status. Answers are compressed if the caller wants that."""
        if COMPRESSED in (context.invocation_metadata() or ()):
            context.set_compression(grpc.Compression.Gzip)
        try:
            yield
        except CallEndedError:
            return
        except (SejError, ValueError) as error:
            self.abort(context, error)
        except OSError as error:
            _log.error("a call failed on the disk: %s", error)
            kind = DiskLowError if error.errno in (errno.ENOSPC, errno.EDQUOT) else UnavailableError
            self.abort(context, kind(f"try again later: {error.strerror}", path=error.filename))
        except Exception as error:
            if not context.is_active():
                return  # the caller or gRPC has ended the call already
            _log.exception("a call failed")
            self.abort(context, error)

    def abort(self, context: grpc.ServicerContext, error: Exception) -> None:
        """End a call with an error."""
        self.note(context, error)
        code, text, metadata = to_status(error)
        context.set_trailing_metadata(metadata)
        context.abort(code, text)

    def note(self, context: grpc.ServicerContext, error: Exception) -> None:
        """Count the refusal of a call once; log one that an operator must look at, with the peer's address."""
        name = to_status(error)[2][0][1]
        with self._lock:
            if context in self._refused:
                return
            self._refused.add(context)
            self.refusals[name] = self.refusals.get(name, 0) + 1
        if isinstance(error, (AccessError, ConflictError, GapError)):
            self._log(unquote(context.peer()), error.reason, each=not isinstance(error, AccessError))

    def _log(self, peer: str, reason: str, *, each: bool) -> None:
        """Log a refused call, unless one of its address was logged within this minute; each: one with this reason."""
        address = peer.rpartition(":")[0] if peer.startswith("ip") else peer
        if each:
            address = f"{address}: {reason}"
        with self._lock:
            if time.monotonic() >= self._log_until:
                self._logged, self._log_until = set(), time.monotonic() + _PERIOD_S
            if address in self._logged or len(self._logged) >= _ADDRESSES:
                return
            self._logged.add(address)
        _log.warning("refused %s: %s", peer, reason)

    def may_read(self, context: grpc.ServicerContext, client: str) -> bool:
        """Return whether the caller may read a client's journals; raises if the caller is unknown."""
        try:
            self.check(context, client, "read")
        except AccessError as error:
            if error.known:
                return False
            raise
        return True

    def check(self, context: grpc.ServicerContext, client_id: str, *roles: Role) -> None:
        """Check that a caller has one of the roles for a client.

        Raises:
            AccessError: it does not.
        """
        if self._mutual and client_id not in (names := _certified(context)):
            roles = tuple(role for role in roles if role in ("read", "reader") and self._tokens is not None)
            if not roles:
                raise AccessError(
                    f"the certificate is for client {names[0]!r}, not {client_id!r}; use that client's certificate",
                    known=True,
                )
        if self._tokens is None:
            return
        grant = self._tokens.grant(_shown(context), time.time())
        if not any(grant.allows(role, client_id) for role in roles):
            what = " or ".join(_ALLOWS.get(role, role) for role in roles)
            raise AccessError(
                f"the token does not let you {what} for {client_id!r}; ask the hub's operator for another token",
                known=True,
            )

    def identify(self, context: grpc.ServicerContext, role: Role | None = None) -> None:
        """Check that the hub knows the caller; :meth:`check` decides what it may do.

        Raises:
            AccessError: no certificate, no token, or an unknown or expired one; or the token has another role.
        """
        if self._mutual:
            _certified(context)
        if self._tokens is not None:
            grant = self._tokens.grant(_shown(context), time.time())
            if role not in (None, grant.role) and (role, grant.role) != ("read", "reader"):
                raise AccessError(f"the token lets you {grant.role} only; use one that lets you {role}", known=True)


class Call:
    """A call that lasts: whether its caller may continue is checked again once a second, and for each name.

    Attributes:
        context: gRPC's part of it.
        guard: decides.
    """

    def __init__(self, guard: Guard, context: grpc.ServicerContext, role: Role) -> None:
        """Start before the call has named a journal."""
        self.context = context
        self.guard = guard
        self._role: Role = role
        self._named = "", ""
        self._ask_at = 0.0

    def allow(self, client: str, journal_dir: str) -> Source:
        """Check the caller's right to a journal, and return it; that journal is checked from now on."""
        source = self.guard.allow(self.context, client, journal_dir, self._role)
        self._named, self._ask_at = (client, journal_dir), time.monotonic() + _ASK_AGAIN_S
        return source

    def check(self) -> None:
        """Check that the call may continue. Before it has named a journal, the hub must know the caller.

        Raises:
            AccessError: it may not, because its token was revoked.
            UnavailableError: the hub is stopping.
        """
        self.guard.require_running()
        if time.monotonic() < self._ask_at:
            return
        if self._named[0]:
            self.allow(*self._named)
        else:
            self.guard.identify(self.context)
            self._ask_at = time.monotonic() + _ASK_AGAIN_S


def _certified(context: grpc.ServicerContext) -> list[str]:
    """Return the names in the caller's certificate."""
    shown = cast("dict[str, list[bytes]]", context.auth_context())
    names = [name.decode("utf-8", "replace") for name in shown.get("x509_common_name", [])]
    if not names:
        raise AccessError(
            "this hub requires a client certificate, and none was sent: pass ClientTLS(certificate=, key=), or"
            " --certificate and --key"
        )
    return names


def _shown(context: grpc.ServicerContext) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and isinstance(value, str) and value.startswith("Bearer "):
            return value.removeprefix("Bearer ")
    raise AccessError(
        "this hub requires a token: pass token=, --token-file or hubToken (Spark); in gRPC the metadata, in HTTP the"
        " header 'authorization: Bearer TOKEN'"
    )


class Answers:
    """Divides the memory of answers among calls; shared by any number of threads.

    Attributes:
        total: the most bytes that may be granted at one time.
        used: bytes that are granted now.
        peak: the most bytes that were granted at one time.
        wait_s: how long a call waits for its share, if its deadline allows that.
        at_work: held by a thread that computes for a reader.
        sweeps: the number of :meth:`sweep` calls.
        stalled: the number of calls that were ended because their caller did not receive its answer.
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
        self._queue: dict[Lease, None] = {}
        self.sweeps = self.stalled = 0
        self.wait_s = wait_s
        self._stall_s = stall_s
        self.at_work = threading.Semaphore(_AT_WORK)
        self._lock = threading.Lock()
        self._sending: dict[Lease, float] = {}

    @property
    def waiting(self) -> int:
        """The number of calls that wait for their share."""
        return len(self._queue)

    def ask(self, lease: Lease, least: int, most: int) -> None:
        """Let a call without a share wait for one, unless it has ended.

        Args:
            lease: the call's.
            least: the fewest bytes that it can use; more than the total counts as the total.
            most: the most bytes that it wants.
        """
        with self._lock:
            lease.came.clear()
            if lease.ended:
                lease.came.set()
                return
            lease.least = min(least, self.total)
            lease.most = max(lease.least, most)
            self._queue[lease] = None
            self._serve()

    def keep(self, lease: Lease, size: int) -> None:
        """Set the share of a call to ``size`` bytes, at most the total, while its answer waits for its caller."""
        with self._lock:
            if not lease.ended:
                self._take_back(lease, lease.granted - min(size, self.total))
                self._sending[lease] = time.monotonic()

    def withdraw(self, lease: Lease) -> None:
        """Return the share of a call: it no longer waits, and its caller has received its answer."""
        with self._lock:
            self._sending.pop(lease, None)
            self._queue.pop(lease, None)
            lease.came.set()
            self._take_back(lease, lease.granted)

    def _take_back(self, lease: Lease, size: int) -> None:
        lease.granted -= size
        self.used -= size
        self._used_by[lease.kind] -= size
        self.peak = max(self.peak, self.used)
        self._serve()

    def _serve(self) -> None:
        """Grant the waiting shares that fit, in order of arrival."""
        full: set[str] = set()
        for lease in list(self._queue):
            used, kind = self._used_by[lease.kind], lease.kind
            if kind in full:
                continue
            if used and used + lease.least > self._share:
                full.add(kind)
                continue
            if self.used + lease.least > self.total:
                return
            roomy = self.used + lease.most <= self.total // 2 and used + lease.most <= self._share
            del self._queue[lease]
            lease.granted = lease.most if roomy else lease.least
            lease.came.set()
            self.used += lease.granted
            self._used_by[kind] += lease.granted
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
            with self._lock:
                self._sending.pop(lease, None)  # the next sweep may come before gRPC has ended the call
            lease.call.context.cancel()
        if ended:
            self.stalled += len(ended)
            _log.warning(
                "ended %d readers, one at %s, that did not receive their answers for %g s while others waited",
                len(ended),
                ended[0],
                self._stall_s,
            )


class Lease:
    """One call's share of the memory; used by the call's thread, and ended by gRPC with the call.

    Attributes:
        call: the call.
        kind: the kind of call, whose share of the budget this comes from.
        granted: bytes granted to the call; 0 while it waits, and after they were returned.
        least: the fewest bytes that it can use now.
        most: the most bytes that it wants now.
        came: set when they are granted, or the call does not wait for them any more.
        ended: True when the call has ended.
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
        self.kind = kind
        self.granted = self.least = self.most = 0
        self.came = threading.Event()
        self.ended = False
        self._answers = answers
        self._patient = patient
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
        self._answers.keep(self, _SENT_COPIES * size)

    def rest(self) -> None:
        """Return the share: the caller has received the last answer."""
        self._answers.withdraw(self)

    def end(self) -> None:
        """End the share with the call; a thread that waits for it wakes."""
        self.ended = True
        self.rest()

    def _take(self, least: int, most: int) -> int:
        """Request a share between ``least`` and ``most`` bytes; return its size."""
        self.rest()
        self._answers.ask(self, _COPIES * least, _COPIES * most)
        wait_s = min(self._answers.wait_s, _DEADLINE_SHARE * self.call.context.time_remaining())
        until = time.monotonic() + wait_s
        while not self.came.wait(_LOOK_S if self._patient else max(0.0, min(_LOOK_S, until - time.monotonic()))):
            self.call.check()
            if not self._patient and time.monotonic() >= until:
                self.rest()
                raise BusyError(f"the hub's memory for answers was used up for {wait_s:.1f} s; try again later")
        if self.ended:
            raise CallEndedError
        return max(self.granted // _COPIES, 1)


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
