"""The calls of the service ``hub.Hub``: each translates bytes to calls of the store and back.

Every call is checked by the guard before the store sees it, and every error becomes a status with a reason
(:mod:`hub.wire.status`). Requests and answers are bytes here; see :mod:`hub.wire.frames`.

Readers cannot delay writers: each kind of call has its own threads (:mod:`hub.wire.lanes`), and the answers to readers
share one budget of memory (:mod:`hub.wire.answers`). A thread of this module checks every second the answers that wait
for their callers.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, Literal, NamedTuple
from weakref import WeakSet

import grpc

from hub.counters import Counts
from hub.errors import AccessError, ConflictError, DiskLowError, GapError, UnavailableError
from hub.jobs import Jobs
from hub.naming import Source, check_client, check_journal
from hub.readers import MAX_LEASES, Place, Readers
from hub.store import Store
from hub.wire import hub_pb2 as pb
from hub.wire.access import Guard, Refusals, Role
from hub.wire.answers import Answers, CallEndedError, Lease
from hub.wire.copy_session import CopySession, Incoming
from hub.wire.frames import open_copy_request, open_put_request, parse, read_response
from hub.wire.job_service import JobService
from hub.wire.lanes import Answer, Lane, Lanes, Method
from hub.wire.reading import PIECE_BYTES, Catalog, Get, Reader, find_time, identity
from hub.wire.rows import rows_response
from hub.wire.status import BusyError, to_status
from sej.errors import SejError
from sej.system.watch import Watch

_log = logging.getLogger(__name__)
_GET_MESSAGES: Final = 1000
_GET_BYTES: Final = 1 << 20
_RUN_BYTES: Final = 1 << 20
_LISTED_BYTES: Final = 128
"""About the bytes of a journal in a list, in addition to its names."""
_LOOK_AGAIN_S: Final = 0.5
_ASK_AGAIN_S: Final = 1.0
"""Seconds between two checks of a stream's token: a stream whose token was revoked is ended."""
_JUDGE_AFTER_S: Final = 1.0
_READ_THREADS: Final = 8
_LOOK_THREADS: Final = 16
_ANSWER_HEAD_BYTES: Final = 64
"""The most bytes in an answer before the value of its only message."""
_SPARE_BYTES: Final = 1 << 16
_SPARE_THREADS: Final = 8
"""Threads for streams that are refused."""
_COMMIT_THREADS: Final = 8
_HOLD_THREADS: Final = 8
_TIME_SEARCHES: Final = 8
"""Fewer than _LOOK_THREADS, so that a copier's request for a journal's state always finds a thread."""


class Limits(NamedTuple):
    """How much a service does at one time; :class:`hub.wire.Server` explains each.

    Attributes:
        put_threads: puts in progress.
        max_calls: calls of one kind, including waiting ones.
        max_streams: Read calls in progress; further ones wait.
        max_followers: Follow calls.
        max_copiers: copying streams.
        max_message_bytes: one request or answer.
        max_answer_bytes: one answer, unless a single message is larger.
        answer_bytes: the memory of all answers.
        wait_s: how long a reader waits for memory.
        stall_s: how long an answer may wait for its caller while others need the memory.
        idle_s: how long a copying client may be silent.
    """

    put_threads: int
    max_calls: int
    max_streams: int
    max_followers: int
    max_copiers: int
    max_message_bytes: int
    max_answer_bytes: int
    answer_bytes: int
    wait_s: float
    stall_s: float
    idle_s: float


class Service:
    """Answers the calls.

    Attributes:
        answers: the memory of answers to readers.
        streams: the number of Read calls in progress.
        followers: the number of Follow calls in progress.
        copiers: the number of Copy calls in progress.
        readers: the named readers.
        refusals: calls that ended with an error, by its name in the metadata, and copiers that found themselves that
            they cannot continue; the store counts its own too.
    """

    def __init__(self, store: Store, guard: Guard, limits: Limits) -> None:
        """Serve a store; threads start at their first use.

        Args:
            store: stores the messages.
            guard: decides which callers are allowed.
            limits: how much is done at one time.
        """
        self._store = store
        self._catalog = Catalog(store)
        self._jobs = JobService(Jobs(store), self._answering, self._allow_job)
        self.readers = Readers(store)
        self._guard = guard
        self._limits = limits
        self._lock = threading.Lock()
        self._sessions: set[CopySession] = set()
        self._stopping = threading.Event()
        self._crowded = False
        self._time_searches = threading.Semaphore(_TIME_SEARCHES)
        self.answers = Answers(limits.answer_bytes, wait_s=limits.wait_s, stall_s=limits.stall_s)
        self._most_answer_bytes = min(
            limits.max_answer_bytes, max(limits.max_message_bytes - _SPARE_BYTES, limits.max_message_bytes // 2)
        )
        self.streams = self.followers = self.copiers = 0
        self.refusals: dict[str, int] = {}
        self._refusals = Refusals()
        self._refused: WeakSet[grpc.ServicerContext] = WeakSet()
        """Calls that were counted: the sweep and a call's own thread may both find that its permission has ended."""
        calls = limits.max_calls
        self._lanes = {
            "put": Lane("put", limits.put_threads, calls),
            "look": Lane("look", _LOOK_THREADS, calls),
            "get": Lane("get", _READ_THREADS, calls),
            "read": Lane("read", limits.max_streams, calls),  # it ends, so that the next one can wait for its thread
            "follow": Lane("follow", limits.max_followers + _SPARE_THREADS, calls),
            "copy": Lane("copy", limits.max_copiers + _SPARE_THREADS, calls),
            "stage": Lane("stage", limits.put_threads, calls),
            "hold": Lane("hold", _HOLD_THREADS, calls),
            "commit": Lane("commit", _COMMIT_THREADS, calls),
            "refuse": Lane("refuse", 1, calls),
        }
        self._watch = threading.Thread(target=self._sweep, name="hub-sweep", daemon=True)
        self._watch.start()

    @property
    def other_calls(self) -> Lane:
        """The threads of other services, such as health."""
        return self._lanes["look"]

    @property
    def waiting(self) -> int:
        """The number of Read calls that wait for a thread."""
        return max(self._lanes["read"].calls - self._limits.max_streams, 0)

    def counts(self) -> Counts:
        """Return what this service and its store have counted, and what they do at the moment."""
        counted, budget = self._store.counters, self.answers.budget
        return Counts(
            puts=counted.puts,
            messages=counted.messages,
            bytes=counted.bytes,
            resent=counted.resent,
            unseen=counted.unseen,
            stalled=self.answers.stalled,
            refusals=dict(self.refusals),
            latency_buckets=list(counted.latency_buckets),
            latency_s=counted.latency_s,
            open_writers=self._store.open_writers,
            streams=self.streams,
            streams_waiting=self.waiting,
            followers=self.followers,
            copiers=self.copiers,
            reader_leases=self.readers.held,
            answer_bytes=budget.used,
            answer_peak_bytes=budget.peak,
            answers_waiting=budget.waiting,
        )

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handler for a gRPC server."""
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        lanes = self._lanes
        methods = {
            "Put": Method(unary, self._put, lanes["put"]),
            "PutEncoded": Method(unary, self._put_encoded, lanes["put"]),
            "Where": Method(unary, self._where, lanes["look"]),
            "Get": Method(unary, self._get, lanes["get"]),
            "List": Method(unary, self._list, lanes["get"]),
            "Read": Method(stream, self._read, lanes["read"]),
            "Follow": Method(stream, self._follow, lanes["follow"]),
            "Hold": Method(unary, self._hold, lanes["hold"]),
            "Stage": Method(unary, self._jobs.stage, lanes["stage"]),
            "Seal": Method(unary, self._jobs.seal, lanes["stage"]),
            "Commit": Method(unary, self._jobs.commit, lanes["commit"]),
            "Abort": Method(unary, self._jobs.abort, lanes["commit"]),
            "Copy": Method(grpc.stream_stream_rpc_method_handler, self._copy, lanes["copy"]),
        }
        return Lanes("hub.Hub", methods, self._refuse, lanes["refuse"])

    def stop(self) -> None:
        """End the streams: acknowledge what they appended, and tell their callers to continue later."""
        self._stopping.set()
        with self._lock:
            sessions = list(self._sessions)
        for session in sessions:
            session.wake()

    def close(self) -> None:
        """Wait for the threads; the calls have ended."""
        self._stopping.set()
        for lane in self._lanes.values():
            lane.shutdown(wait=True)
        self._watch.join()
        self.readers.close()

    # --- the calls

    def _put(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        answer = pb.PutResponse()
        with self._answering(context):
            client, journal_dir, messages = open_put_request(data)
            self._allow(context, "write", client, journal_dir)
            answer.NextOffset = self._store.put(client, journal_dir, messages)
        return answer.SerializeToString()

    def _put_encoded(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        answer = pb.PutResponse()
        with self._answering(context):
            request, encoded = open_copy_request(data)
            self._allow(context, "write", request.ClientID, request.JournalDir)
            answer.NextOffset = self._store.put_encoded(request.ClientID, request.JournalDir, encoded)
        return answer.SerializeToString()

    def _where(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        answer = pb.WhereResponse()
        with self._answering(context):
            request = parse(pb.WhereRequest, data)
            self._allow(context, "write", request.ClientID, request.JournalDir, "read")
            first = self._store.first_offset(request.ClientID, request.JournalDir)
            if first is not None:
                end = self._store.end_offset(request.ClientID, request.JournalDir)
                there = identity(self._store, Source(request.ClientID, request.JournalDir))
                answer = pb.WhereResponse(Known=True, FirstOffset=first, NextOffset=end, ID=there)
                if request.HasField("End"):
                    self._note_unfit(context, request, end)
                if request.HasField("Timestamp"):
                    source = self._allow(context, "read", request.ClientID, request.JournalDir)
                    answer.TimeOffset = self._find_time(source, request.Timestamp)
        return answer.SerializeToString()

    def _note_unfit(self, context: grpc.ServicerContext, request: pb.WhereRequest, end: int) -> None:
        """Count and log a copier that will refuse to continue by itself, because its journal does not fit to ours."""
        source = f"{request.ClientID}.{request.JournalDir}"
        if end < request.First:
            text = (
                f"{source}: messages {end} to {request.First - 1} are missing: the client does not have them any more"
            )
            self._note(context, GapError(text, expected=end))
        elif end > request.End:
            text = f"{source}: the client's journal ends with {request.End - 1}, and messages up to {end - 1} are here"
            self._note(context, ConflictError(text))

    def _find_time(self, source: Source, timestamp: int) -> int:
        if not self._time_searches.acquire(blocking=False):
            raise BusyError(f"the hub already runs {_TIME_SEARCHES} searches for a time; try again later")
        try:
            with self.answers.at_work:
                return find_time(self._store, source, timestamp)
        finally:
            self._time_searches.release()

    def _get(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        answer = b""
        with self._answering(context):
            request = parse(pb.GetRequest, data)
            source = self._allow(context, "read", request.ClientID, request.JournalDir)
            lease = Lease(self.answers, context, self._require_running, kind="get")
            wanted = request.MaxBytes or _GET_BYTES
            with (
                lease.building(min(max(wanted, PIECE_BYTES), self._most_answer_bytes)) as size,
                self._reader(source, request.Offset, lease, verify=not request.Unverified) as reader,
            ):
                answer = Get(reader, request.MaxMessages or _GET_MESSAGES, wanted).answer(size)
            lease.built(len(answer))
        return answer

    def _list(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        answer = b""
        with self._answering(context):
            self._guard.identify(context, time.time(), "read")
            request = parse(pb.ListRequest, data)
            sources = [source for source in self._store.sources() if request.ClientID in ("", source.client)]
            clients = {client for client in {source.client for source in sources} if self._may_read(context, client)}
            sources = [source for source in sources if source.client in clients]
            lease = Lease(self.answers, context, self._require_running, kind="get")
            with lease.building(PIECE_BYTES):
                lease.grow(sum(_LISTED_BYTES + len(str(source)) for source in sources))
                found = (self._catalog.listed(source) for source in sources)
                listed = [journal for journal in found if journal is not None]
                answer = pb.ListResponse(Journals=listed).SerializeToString()
            lease.built(len(answer))
        return answer

    def _read(self, asked: bytes, context: grpc.ServicerContext) -> Iterator[Answer]:
        with self._answering(context), self._stream(context, "streams"):
            request = parse(pb.ReadRequest, asked)
            source = self._allow(context, "read", request.ClientID, request.JournalDir)
            ask = partial(self._asking(context, "read"), *source)
            lease = Lease(self.answers, context, ask, kind="stream")
            most = min(_RUN_BYTES, self._most_answer_bytes)
            with self._reader(source, request.Offset, lease, skip=request.Skip, verify=request.Verify) as reader:
                while True:
                    ask()
                    with lease.building(most) as size:
                        pieces = reader.run(size, request.StopOffset)
                        if not pieces:
                            return
                        data = rows_response(pieces, request) or read_response(*pieces)
                        del pieces
                    lease.built(len(data))
                    answer = Answer(data)
                    del data
                    yield answer

    def _follow(self, asked: bytes, context: grpc.ServicerContext) -> Iterator[Answer]:
        with self._answering(context), self._stream(context, "followers", self._limits.max_followers):
            request = parse(pb.GetRequest, asked)
            source = self._allow(context, "read", request.ClientID, request.JournalDir)
            ask = partial(self._asking(context, "read"), *source)
            lease = Lease(self.answers, context, ask, kind="stream", patient=True)
            most = min(_RUN_BYTES, self._most_answer_bytes)
            with (
                self._reader(source, request.Offset, lease, verify=not request.Unverified) as reader,
                Watch(reader.jnl) as watch,
            ):
                follow = Get(reader, request.MaxMessages or _GET_MESSAGES, request.MaxBytes or most)
                came_at = time.monotonic()
                while context.is_active():
                    ask()
                    with lease.building(most) as size:
                        data = follow.answer(size)
                    if data:
                        lease.built(len(data))
                        answer = Answer(data)
                        del data
                        yield answer
                        came_at = time.monotonic()
                        continue
                    lease.rest()
                    if time.monotonic() - came_at >= _JUDGE_AFTER_S:
                        reader.judge()
                    watch.wait(_LOOK_AGAIN_S)

    def _hold(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        answer = pb.HoldResponse()
        with self._answering(context):
            self._require_running()
            request = parse(pb.HoldRequest, data)
            if len(request.Places) > MAX_LEASES:
                raise ValueError(f"places must have at most {MAX_LEASES} journals, got {len(request.Places)}")
            for place in request.Places:
                self._allow(context, "reader", place.ClientID, place.JournalDir)
            places = [
                Place(
                    Source(place.ClientID, place.JournalDir),
                    place.Offset if place.HasField("Offset") else None,
                    place.Reset,
                )
                for place in request.Places
            ]
            kept = self.readers.hold(request.Reader, request.Holder, request.LeaseMs / 1000, places, take=request.Take)
            answer = pb.HoldResponse(Places=[pb.KeptPlace(Offset=each.offset, Kept=each.kept) for each in kept])
        return answer.SerializeToString()

    def _copy(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        with self._answering(context), self._stream(context, "copiers", self._limits.max_copiers):
            self._require_running()
            ask = self._asking(context, "write")
            come = Incoming(requests, ask)
            session = CopySession(
                lambda data: self._store.put_encoded(
                    come.client, come.journal_dir, data, sync=False, create=come.create, lost_from=come.lost_from
                ),
                lambda: self._store.sync(come.client, come.journal_dir),
                lambda: ask(come.client, come.journal_dir),
                idle_s=self._limits.idle_s,
                ask_s=_ASK_AGAIN_S,
            )
            with self._lock:
                self._sessions.add(session)
            try:
                for offset in session.acknowledge(come, self._stopping):
                    yield pb.CopyResponse(NextOffset=offset).SerializeToString()
            finally:
                with self._lock:
                    self._sessions.discard(session)

    def _refuse(self, _: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        self._crowded = True
        most = self._limits.max_calls
        self._abort(
            context, BusyError(f"the hub already has {most} calls of this kind in progress or waiting; try again later")
        )
        return iter(())

    # --- checks around the calls

    def _allow(self, context: grpc.ServicerContext, role: Role, client: str, journal_dir: str, *others: Role) -> Source:
        source = check_journal(client, journal_dir)
        for other in others:
            try:
                self._guard.check(context, other, client, time.time())
            except SejError:
                continue
            return source
        self._guard.check(context, role, client, time.time(), others)
        return source

    def _allow_job(self, context: grpc.ServicerContext, client: str) -> None:
        self._guard.check(context, "append", check_client(client), time.time())

    def _reader(self, source: Source, offset: int, lease: Lease, *, skip: bool = False, verify: bool = False) -> Reader:
        most = max(self._limits.max_message_bytes - _ANSWER_HEAD_BYTES, 1)
        return Reader(self._store, source, offset, most_bytes=most, grow=lease.grow, skip=skip, verify=verify)

    def _asking(self, context: grpc.ServicerContext, role: Role) -> Callable[[str, str], None]:
        """Return a check that a stream runs before each step; it asks the guard once a second, and for each name.

        Before the stream has named a journal, it checks that the hub knows the caller.
        """
        ask_at = 0.0
        asked = "", ""

        def ask(client: str, journal_dir: str) -> None:
            nonlocal ask_at, asked
            self._require_running()
            if (client, journal_dir) != asked or time.monotonic() >= ask_at:
                if client:
                    self._allow(context, role, client, journal_dir)
                else:
                    self._guard.identify(context, time.time())
                ask_at, asked = time.monotonic() + _ASK_AGAIN_S, (client, journal_dir)

        return ask

    def _may_read(self, context: grpc.ServicerContext, client: str) -> bool:
        """Return whether the caller may read a client's journals; raises if the caller is unknown."""
        try:
            self._guard.check(context, "read", client, time.time())
        except AccessError as error:
            if error.known:
                return False
            raise
        return True

    def _require_running(self) -> None:
        if self._stopping.is_set():
            raise UnavailableError("the hub is stopping; continue when it is back")

    @contextmanager
    def _stream(
        self, context: grpc.ServicerContext, kind: Literal["streams", "followers", "copiers"], most: int | None = None
    ) -> Iterator[None]:
        """Count a stream. Kinds that may last forever have a limit here, because waiting for one might never end."""
        self._guard.identify(context, time.time())  # unknown callers take no place
        with self._lock:
            count = getattr(self, kind)
            if most is not None and count >= most:
                self._crowded = True
                raise BusyError(f"the hub already serves {count} {kind}, its limit; try again later")
            setattr(self, kind, count + 1)
        try:
            yield
        finally:
            with self._lock:
                setattr(self, kind, getattr(self, kind) - 1)

    def _sweep(self) -> None:
        """Check the answers that wait for their callers, until the hub stops."""
        while not self._stopping.wait(min(_ASK_AGAIN_S, self._limits.stall_s)):
            crowded, self._crowded = self._crowded or self.waiting > 0, False
            self.answers.sweep(crowded, self._note)
            self.readers.sweep()
            self._refusals.end_period()

    @contextmanager
    def _answering(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Turn an error into its status."""
        try:
            yield
        except CallEndedError:
            return
        except (SejError, ValueError) as error:
            self._abort(context, error)
        except OSError as error:
            _log.error("a call failed on the disk: %s", error)
            kind = DiskLowError if error.errno in (errno.ENOSPC, errno.EDQUOT) else UnavailableError
            self._abort(context, kind(f"try again later: {error.strerror}", path=error.filename))
        except Exception as error:
            if not context.is_active():
                return  # the caller or gRPC has ended the call already
            _log.exception("a call failed")
            self._abort(context, error)

    def _abort(self, context: grpc.ServicerContext, error: Exception) -> None:
        self._note(context, error)
        code, text, metadata = to_status(error)
        context.set_trailing_metadata(metadata)
        context.abort(code, text)

    def _note(self, context: grpc.ServicerContext, error: Exception) -> None:
        """Count the refusal of a call once; log one that an operator must look at, with the peer's address."""
        name = to_status(error)[2][0][1]
        with self._lock:
            if context in self._refused:
                return
            self._refused.add(context)
            self.refusals[name] = self.refusals.get(name, 0) + 1
        if isinstance(error, (AccessError, ConflictError, GapError)):
            self._refusals.log(context.peer(), error.reason, each=not isinstance(error, AccessError))
