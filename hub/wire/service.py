"""The calls of the service ``hub.Hub``: each translates bytes to calls of the store and back.

Every call is checked by the guard before the store sees it, and every error becomes a status with a reason
(:mod:`hub.wire.access`). Requests and answers are bytes here; see :mod:`hub.wire.frames`.

Readers cannot delay writers: each kind of call has its own threads, and the answers to readers share one budget of
memory (:mod:`hub.wire.access`). A thread of this module checks every second the answers that wait for their callers.

A Copy call appends on one thread, and syncs and acknowledges on another. During a sync the next chunks are appended
already, so the disk and the network work concurrently; each sync is followed by one acknowledgement. Appending stops
16 MiB ahead of the disk, and then gRPC's flow control stops the sender too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import grpc

from hub.errors import ConflictError, GapError, UnavailableError
from hub.jobs import Jobs, Staged
from hub.naming import Source, check_client
from hub.readers import MAX_LEASES, Place, Readers
from hub.store import Counters, Counts, Store
from hub.wire import hub_pb2 as pb
from hub.wire.access import Answer, Answers, Call, Guard, Lane, Lease
from hub.wire.frames import from_wire, open_copy_request, open_encoded, parse, read_response, rows_response
from hub.wire.reading import PIECE_BYTES, Catalog, Get, Reader, find_time, identity
from hub.wire.status import BusyError
from sej.errors import InvalidMessageError, InvalidNameError
from sej.system.watch import Watch

_GET_MESSAGES: Final = 1000
_GET_BYTES: Final = 1 << 20
_RUN_BYTES: Final = 1 << 20
_LISTED_BYTES: Final = 128
"""About the bytes of a journal in a list, in addition to its names."""
_LOOK_AGAIN_S: Final = 0.5
_SWEEP_S: Final = 1.0
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
_WINDOW_BYTES: Final = 1 << 24
_ASK_S: Final = 1.0
"""Seconds between two checks of a silent sender's token."""
_TIME_SEARCHES: Final = 8
"""Fewer than _LOOK_THREADS, so that a copier's request for a journal's state always finds a thread."""


Form = Callable[[bytes], bytes]
"""What turns a GetResponse into the bytes that are sent."""


class Limits(NamedTuple):
    """How much a service does at one time; :class:`hub.wire.Server` explains each.

    Attributes:
        threads: puts in progress.
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

    threads: int
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


class Service(grpc.GenericRpcHandler):
    """Answers the calls.

    Attributes:
        answers: the memory of answers to readers.
        streams: the number of Read calls in progress.
        followers: the number of Follow calls in progress.
        copiers: the number of Copy calls in progress.
        readers: the named readers.
        guard: decides which callers are allowed.
        limits: how much is done at one time.
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
        self._jobs = Jobs(store)
        self.readers = Readers(store)
        self.guard = guard
        self.limits = limits
        self._lock = threading.Lock()
        self._crowded = False
        self._time_searches = threading.Semaphore(_TIME_SEARCHES)
        self.answers = Answers(limits.answer_bytes, wait_s=limits.wait_s, stall_s=limits.stall_s)
        self._most_answer_bytes = min(
            limits.max_answer_bytes, max(limits.max_message_bytes - _SPARE_BYTES, limits.max_message_bytes // 2)
        )
        self.streams = self.followers = self.copiers = 0
        calls = limits.max_calls
        self._lanes = {
            "put": Lane("put", limits.threads, calls),
            "look": Lane("look", _LOOK_THREADS, calls),
            "get": Lane("get", _READ_THREADS, calls),
            "read": Lane("read", limits.max_streams, calls),  # it ends, so that the next one can wait for its thread
            "follow": Lane("follow", limits.max_followers + _SPARE_THREADS, calls),
            "copy": Lane("copy", limits.max_copiers + _SPARE_THREADS, calls),
            "stage": Lane("stage", limits.threads, calls),
            "hold": Lane("hold", _HOLD_THREADS, calls),
            "commit": Lane("commit", _COMMIT_THREADS, calls),
            "refuse": Lane("refuse", 1, calls),
        }
        self._methods: dict[str, tuple[Lane, grpc.RpcMethodHandler[Any, Any]]] = {}
        unary: dict[str, dict[str, Any]] = {
            "put": {"Put": self._put, "PutEncoded": self._put_encoded},
            "look": {"Where": self._where},
            "get": {"Get": self.get, "List": self._list},
            "hold": {"Hold": self.hold},
            "stage": {"Stage": self._stage, "Seal": self._seal},
            "commit": {"Commit": self._commit, "Abort": self._abort},
        }
        for lane, named in unary.items():
            for name, call in named.items():
                self._add(name, lane, grpc.unary_unary_rpc_method_handler, partial(self._answer, call))
        self._add("Read", "read", grpc.unary_stream_rpc_method_handler, self._read)
        self._add("Follow", "follow", grpc.unary_stream_rpc_method_handler, self.follow)
        self._add("Copy", "copy", grpc.stream_stream_rpc_method_handler, self._copy)
        self._add("", "refuse", grpc.stream_stream_rpc_method_handler, self._refuse)
        self._watch = threading.Thread(target=self._sweep, name="hub-sweep", daemon=True)
        self._watch.start()

    def _add(self, name: str, lane: str, make: Any, call: Any) -> None:
        run: Any = partial(call)
        run.experimental_thread_pool = self._lanes[lane]  # gRPC reads it
        self._methods[f"/hub.Hub/{name}"] = self._lanes[lane], make(run, None, Answer.taken)

    def lane(self, name: str) -> Lane:
        """Return the threads of a kind of call.

        Raises:
            BusyError: they have as many calls as the limits allow.
        """
        if self._lanes[name].full:
            self._crowded = True
            raise self._busy()
        return self._lanes[name]

    @property
    def waiting(self) -> int:
        """The number of Read calls that wait for a thread."""
        return max(self._lanes["read"].calls - self.limits.max_streams, 0)

    def counts(self) -> Counts:
        """Return what this service and its store have counted, and what they do at the moment."""
        counted = {each.name: getattr(self._store.counters, each.name) for each in fields(Counters)}
        return Counts(
            **counted | {"refusals": dict(self.guard.refusals)},
            stalled=self.answers.stalled,
            open_writers=self._store.open_writers,
            streams=self.streams,
            streams_waiting=self.waiting,
            followers=self.followers,
            copiers=self.copiers,
            reader_leases=self.readers.held,
            answer_bytes=self.answers.used,
            answer_peak_bytes=self.answers.peak,
            answers_waiting=self.answers.waiting,
        )

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return gRPC the handler of a call: the one of refusals if its lane is full, None if it is unknown."""
        found = self._methods.get(handler_call_details.method)
        if found is not None and found[0].full:
            found = self._methods["/hub.Hub/"]
        return None if found is None else found[1]

    def stop(self) -> None:
        """End the streams: acknowledge what they appended, and tell their callers to continue later."""
        self.guard.stopping.set()

    def close(self) -> None:
        """Wait for the threads; the calls have ended."""
        self.guard.stopping.set()
        for lane in self._lanes.values():
            lane.shutdown(wait=True)
        self._watch.join()
        self.readers.close()

    # --- the calls

    def _answer(self, call: Any, data: bytes, context: grpc.ServicerContext) -> bytes:
        """Return the answer of a call that has one; an error becomes its status."""
        answer: Any = b""  # if the caller has ended the call
        with self.guard.answering(context):
            answer = call(data, context)
        encoded: bytes = answer if isinstance(answer, bytes) else answer.SerializeToString()
        return encoded

    def _put(self, data: bytes, context: grpc.ServicerContext) -> pb.PutResponse:
        request = parse(pb.PutRequest, data)
        self.guard.allow(context, request.ClientID, request.JournalDir, "write")
        end = self._store.put(request.ClientID, request.JournalDir, from_wire(request.Messages))
        return pb.PutResponse(NextOffset=end)

    def _put_encoded(self, data: bytes, context: grpc.ServicerContext) -> pb.PutResponse:
        request, encoded = open_copy_request(data)
        self.guard.allow(context, request.ClientID, request.JournalDir, "write")
        return pb.PutResponse(NextOffset=self._store.put_encoded(request.ClientID, request.JournalDir, encoded))

    def _where(self, data: bytes, context: grpc.ServicerContext) -> pb.WhereResponse:
        request = parse(pb.WhereRequest, data)
        source = self.guard.allow(context, request.ClientID, request.JournalDir, "write", "read")
        first = self._store.first_offset(*source)
        if first is None:
            return pb.WhereResponse()
        end = self._store.end_offset(*source)
        answer = pb.WhereResponse(Known=True, FirstOffset=first, NextOffset=end, ID=identity(self._store, source))
        if request.HasField("End"):
            self._note_unfit(context, request, end)
        if request.HasField("Timestamp"):
            self.guard.allow(context, *source, "read")
            answer.TimeOffset = self._find_time(source, request.Timestamp)
        return answer

    def _note_unfit(self, context: grpc.ServicerContext, request: pb.WhereRequest, end: int) -> None:
        """Count and log a copier that will refuse to continue by itself, because its journal does not fit to ours."""
        source = f"{request.ClientID}.{request.JournalDir}"
        if end < request.First:
            text = (
                f"{source}: messages {end} to {request.First - 1} are missing: the client does not have them any more"
            )
            self.guard.note(context, GapError(text, expected=end))
        elif end > request.End:
            text = f"{source}: the client's journal ends with {request.End - 1}, and messages up to {end - 1} are here"
            self.guard.note(context, ConflictError(text))

    def _find_time(self, source: Source, timestamp: int) -> int:
        if not self._time_searches.acquire(blocking=False):
            raise BusyError(f"the hub already runs {_TIME_SEARCHES} searches for a time; try again later")
        try:
            with self.answers.at_work:
                return find_time(self._store, source, timestamp)
        finally:
            self._time_searches.release()

    def get(self, data: bytes, context: grpc.ServicerContext, form: Form = bytes) -> bytes:
        """Answer a GetRequest, in a form of its messages."""
        request, source, lease = self._asked(pb.GetRequest, data, context, "get")
        wanted = request.MaxBytes or _GET_BYTES
        with (
            lease.building(min(max(wanted, PIECE_BYTES), self._most_answer_bytes)) as size,
            self._reader(source, request.Offset, lease, verify=not request.Unverified) as reader,
        ):
            answer = form(Get(reader, request.MaxMessages or _GET_MESSAGES, wanted).answer(size))
        lease.built(len(answer))
        return answer

    def _list(self, data: bytes, context: grpc.ServicerContext) -> bytes:
        self.guard.identify(context, "read")
        request = parse(pb.ListRequest, data)
        sources = [source for source in self._store.sources() if request.ClientID in ("", source.client)]
        allowed = {client: self.guard.may_read(context, client) for client in {source.client for source in sources}}
        sources = [source for source in sources if allowed[source.client]]
        lease = Lease(self.answers, Call(self.guard, context, "read"), kind="get")
        with lease.building(PIECE_BYTES):
            lease.grow(sum(_LISTED_BYTES + len(str(source)) for source in sources))
            listed = filter(None, map(self._catalog.listed, sources))
            answer = pb.ListResponse(Journals=listed).SerializeToString()
        lease.built(len(answer))
        return answer

    def _read(self, asked: bytes, context: grpc.ServicerContext) -> Iterator[Answer]:
        with self.guard.answering(context), self._stream(context, "streams"):
            request, source, lease = self._asked(pb.ReadRequest, asked, context, "stream")
            most = min(_RUN_BYTES, self._most_answer_bytes)
            with self._reader(source, request.Offset, lease, skip=request.Skip, verify=request.Verify) as reader:
                while (answer := self._run(reader, request, lease, most)) is not None:
                    yield answer

    def _run(self, reader: Reader, request: pb.ReadRequest, lease: Lease, most: int) -> Answer | None:
        """Return the next answer of a Read call; None at the end."""
        lease.call.check()
        with lease.building(most) as size:
            pieces = reader.run(size, request.StopOffset)
            if not pieces:
                return None
            data = rows_response(pieces, request) or read_response(*pieces)
        lease.built(len(data))
        return Answer(data)

    def follow(
        self, asked: bytes, context: grpc.ServicerContext, form: Form = bytes, *, opening: bool = False
    ) -> Generator[Answer]:
        """Follow a journal, as a GetRequest says; each answer is in a form of its messages.

        With ``opening`` the first answer is empty, and means that the caller has passed all checks.
        """
        with self.guard.answering(context), self._stream(context, "followers", self.limits.max_followers):
            request, source, lease = self._asked(pb.GetRequest, asked, context, "stream", patient=True)
            most = min(_RUN_BYTES, self._most_answer_bytes)
            with (
                self._reader(source, request.Offset, lease, verify=not request.Unverified) as reader,
                Watch(reader.jnl) as watch,
            ):
                if opening:
                    yield Answer(b"")
                follow = Get(reader, request.MaxMessages or _GET_MESSAGES, request.MaxBytes or most)
                came_at = time.monotonic()
                while context.is_active():
                    lease.call.check()
                    with lease.building(most) as size:
                        data = follow.answer(size)
                        if data:
                            data = form(data)
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

    def hold(self, data: bytes, context: grpc.ServicerContext) -> pb.HoldResponse:
        """Take a named reader, renew its lease, or commit, as a HoldRequest says."""
        self.guard.require_running()
        request = parse(pb.HoldRequest, data)
        if len(request.Places) > MAX_LEASES:
            raise ValueError(f"places must have at most {MAX_LEASES} journals, got {len(request.Places)}")
        places = [
            Place(
                self.guard.allow(context, place.ClientID, place.JournalDir, "reader"),
                place.Offset if place.HasField("Offset") else None,
                place.Reset,
            )
            for place in request.Places
        ]
        kept = self.readers.hold(request.Reader, request.Holder, request.LeaseMs / 1000, places, take=request.Take)
        return pb.HoldResponse(Places=[pb.KeptPlace(Offset=each.offset, Kept=each.kept) for each in kept])

    def _copy(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        with self.guard.answering(context), self._stream(context, "copiers", self.limits.max_copiers):
            self.guard.require_running()
            session = CopySession(self._store, Call(self.guard, context, "write"), idle_s=self.limits.idle_s)
            for offset in session.acknowledge(requests):
                yield pb.CopyResponse(NextOffset=offset).SerializeToString()

    def _stage(self, data: bytes, context: grpc.ServicerContext) -> pb.StageResponse:
        request, rows = open_encoded(pb.StageRequest, data)
        where = request.Job, request.Task, request.Shard, request.Position
        return pb.StageResponse(Size=self._jobs.stage(self._job_of(request, context), *where, rows))

    def _seal(self, data: bytes, context: grpc.ServicerContext) -> pb.SealResponse:
        request = parse(pb.SealRequest, data)
        self._jobs.seal(self._job_of(request, context), request.Job, _staged(request.Files))
        return pb.SealResponse()

    def _commit(self, data: bytes, context: grpc.ServicerContext) -> pb.CommitResponse:
        request = parse(pb.CommitRequest, data)
        client, name, files = self._job_of(request, context), request.Name or None, _staged(request.Files)
        return pb.CommitResponse(
            Written=self._jobs.commit(client, request.Job, request.Prefix, request.Bits, name, request.Number, files)
        )

    def _abort(self, data: bytes, context: grpc.ServicerContext) -> pb.AbortResponse:
        request = parse(pb.AbortRequest, data)
        self._jobs.abort(self._job_of(request, context), request.Job)
        return pb.AbortResponse()

    def _job_of(self, request: Any, context: grpc.ServicerContext) -> str:
        """Return the client of a job, if the caller may append to its journals."""
        client = check_client(request.ClientID)
        self.guard.check(context, client, "append")
        return client

    def _refuse(self, _: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        self._crowded = True
        self.guard.abort(context, self._busy())
        return iter(())

    # --- around the calls

    def _busy(self) -> BusyError:
        most = self.limits.max_calls
        return BusyError(f"the hub already has {most} calls of this kind in progress or waiting; try again later")

    def _asked(
        self, kind: Any, data: bytes, context: grpc.ServicerContext, share: str, *, patient: bool = False
    ) -> tuple[Any, Source, Lease]:
        """Return a request to read, its journal, which the caller may read, and its share of the memory."""
        request = parse(kind, data)
        call = Call(self.guard, context, "read")
        source = call.allow(request.ClientID, request.JournalDir)
        return request, source, Lease(self.answers, call, kind=share, patient=patient)

    def _reader(self, source: Source, offset: int, lease: Lease, *, skip: bool = False, verify: bool = False) -> Reader:
        most = max(self.limits.max_message_bytes - _ANSWER_HEAD_BYTES, 1)
        return Reader(self._store, source, offset, most_bytes=most, lease=lease, skip=skip, verify=verify)

    @contextmanager
    def _stream(
        self, context: grpc.ServicerContext, kind: Literal["streams", "followers", "copiers"], most: int | None = None
    ) -> Iterator[None]:
        """Count a stream. Kinds that may last forever have a limit here, because waiting for one might never end."""
        self.guard.identify(context)  # unknown callers take no place
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
        while not self.guard.stopping.wait(min(_SWEEP_S, self.limits.stall_s)):
            crowded, self._crowded = self._crowded or self.waiting > 0, False
            self.answers.sweep(crowded)
            self.readers.sweep()


def _staged(files: Iterable[pb.StagedFile]) -> list[Staged]:
    return [Staged(file.Task, file.Shard, file.Messages, file.Size, file.Checksum) for file in files]


class CopySession:
    """Appends the messages of a stream's requests, and reports up to which offset they are durable."""

    def __init__(self, store: Store, call: Call, *, idle_s: float) -> None:
        """Create a session.

        Args:
            store: stores the messages.
            call: decides whether the sender may write.
            idle_s: a sender that is silent for this long is disconnected.
        """
        self._store = store
        self._call = call
        self._idle_s = idle_s
        self._source: Source | None = None
        """Named by the first request."""
        self._condition = threading.Condition()
        self._appended = -1
        self._unsynced = 0
        self._ended = False
        self._stopped = False
        self._at_work = False
        self._error: Exception | None = None

    def acknowledge(self, requests: Iterator[bytes]) -> Iterator[int]:
        """Yield offsets below which everything is durable, until the requests end.

        Raises:
            Exception: the error of an append, after everything before it was acknowledged.
            AccessError: the sender may no longer write.
            UnavailableError: the sender was silent for too long, or the server stops.
        """
        reader = threading.Thread(target=self._run, args=(requests,), name="hub-copy", daemon=True)
        reader.start()
        silent_since = time.monotonic()
        try:
            while True:
                with self._condition:
                    came = self._condition.wait_for(lambda: self._unsynced or self._ended, min(_ASK_S, self._idle_s))
                    appended, unsynced, ended = self._appended, self._unsynced, self._ended
                if unsynced:
                    assert self._source is not None
                    durable = self._store.sync(*self._source)
                    if durable < appended:
                        raise UnavailableError(
                            f"the disk failed; everything below offset {durable} is stored, continue there"
                        )
                    with self._condition:
                        self._unsynced -= unsynced
                        self._condition.notify_all()
                    yield appended
                    silent_since = time.monotonic()
                elif ended:
                    if self._error is not None:
                        raise self._error
                    return
                elif not came:
                    self._call.check()
                    if self._at_work:
                        silent_since = time.monotonic()
                    elif time.monotonic() - silent_since >= self._idle_s:
                        raise UnavailableError(f"no message arrived for {self._idle_s} s")
        finally:
            with self._condition:
                self._stopped = True
                self._condition.notify_all()

    def _run(self, requests: Iterator[bytes]) -> None:
        create = False
        try:
            for encoded in requests:
                request, chunk = open_copy_request(encoded)
                if self._source is None:
                    self._source, create = self._call.allow(request.ClientID, request.JournalDir), request.Create
                    if not len(chunk):
                        continue
                elif request.ClientID or request.JournalDir or request.Create:
                    raise InvalidNameError("only the first request of a stream may name the journal; open another one")
                elif not len(chunk):
                    raise InvalidMessageError("a request must have messages")
                self._call.check()
                lost_from = request.LostFrom if request.HasField("LostFrom") else None
                self._at_work = True  # a slow disk does not count as a silent sender
                offset = self._store.put_encoded(*self._source, chunk, sync=False, create=create, lost_from=lost_from)
                create = False
                with self._condition:
                    self._at_work = False
                    self._appended = offset
                    self._unsynced += len(chunk)
                    self._condition.notify_all()
                    self._condition.wait_for(lambda: self._unsynced < _WINDOW_BYTES or self._stopped)
                    if self._stopped:
                        return
        except Exception as error:
            self._error = error
        finally:
            with self._condition:
                self._ended = True
                self._condition.notify_all()
