"""The seven calls of the service ``hub.Hub``, each a translation: bytes to the store's words and back.

Every call is checked by the guard before the store sees it, and whatever goes wrong becomes a status with a reason
(:mod:`hub.wire.status`). Put and Copy get their requests as bytes; see :mod:`hub.wire.frames`.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc

from hub.errors import AccessError, DiskLowError, UnavailableError
from hub.naming import Source, check_journal, source_path
from hub.store import Store
from hub.wire import hub_pb2 as pb
from hub.wire.access import Guard, Role
from hub.wire.copying import CopySession, Incoming
from hub.wire.frames import encode_put_request, open_put_request, parse, read_response, to_wire
from hub.wire.reading import Catalog, encoded, find_time
from hub.wire.status import BusyError, to_status
from sej.errors import SejError
from sej.format import OVERHEAD_SIZE
from sej.message import Message
from sej.scanner import Scanner

__all__ = ["Service"]

_log = logging.getLogger(__name__)
_GET_MESSAGES: Final = 1000
_GET_BYTES: Final = 1 << 20
_LOOK_AGAIN_S: Final = 0.5
_ASK_AGAIN_S: Final = 1.0
"""How often a stream's token is looked at anew: whoever lost it meanwhile is let go."""


class Service:
    """Answers the calls.

    Attributes:
        streams: how many Copy, Follow and Read calls are under way.
        refusals: calls that ended with an error, by its name in the metadata; the store counts its own too.
    """

    def __init__(
        self,
        store: Store,
        guard: Guard,
        *,
        max_streams: int,
        max_reply_bytes: int,
        idle_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Serve a store.

        Args:
            store: where the messages go.
            guard: who may.
            max_streams: Copy, Follow and Read calls at a time; each holds a thread.
            max_reply_bytes: messages in one reply take at most so much, if there is more than one.
            idle_s: a copying client that is silent for so long is gone.
            clock: seconds since the epoch, for tokens that expire.
        """
        self._store = store
        self._catalog = Catalog(store)
        self._guard = guard
        self._max_reply_bytes = max_reply_bytes
        self._idle_s = idle_s
        self._clock = clock
        self._max_streams = max_streams
        self._lock = threading.Lock()
        self._sessions: set[CopySession] = set()
        self._stopping = threading.Event()
        self.streams = 0
        self.refusals: dict[str, int] = {}

    def handler(self) -> grpc.GenericRpcHandler:
        """What a gRPC server wants to know."""
        reply = pb.GetResponse.SerializeToString
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Put": grpc.unary_unary_rpc_method_handler(self._put, None, pb.PutResponse.SerializeToString),
            "Get": grpc.unary_unary_rpc_method_handler(self._get, None, reply),
            "Where": grpc.unary_unary_rpc_method_handler(self._where, None, pb.WhereResponse.SerializeToString),
            "List": grpc.unary_unary_rpc_method_handler(self._list, None, pb.ListResponse.SerializeToString),
            "Read": grpc.unary_stream_rpc_method_handler(self._read, None, None),
            "Follow": grpc.unary_stream_rpc_method_handler(self._follow, None, reply),
            "Copy": grpc.stream_stream_rpc_method_handler(self._copy, None, pb.CopyResponse.SerializeToString),
        }
        return grpc.method_handlers_generic_handler("hub.Hub", methods)

    def stop(self) -> None:
        """End the streams: what they took is acknowledged, then they are told to come back later."""
        self._stopping.set()
        with self._lock:
            sessions = list(self._sessions)
        for session in sessions:
            session.wake()

    # --- the calls

    def _put(self, data: bytes, context: grpc.ServicerContext) -> pb.PutResponse:
        with self._answering(context):
            plain = encode_put_request(data)
            if plain is not None:
                client, journal_dir, encoded = plain
                self._allow(context, "write", client, journal_dir)
                return pb.PutResponse(NextOffset=self._store.put_encoded(client, journal_dir, encoded))
            client, journal_dir, messages = open_put_request(data)
            self._allow(context, "write", client, journal_dir)
            return pb.PutResponse(NextOffset=self._store.put(client, journal_dir, messages))
        raise AssertionError("the call was aborted")

    def _get(self, data: bytes, context: grpc.ServicerContext) -> pb.GetResponse:
        with self._answering(context):
            request = parse(pb.GetRequest, data)
            self._allow(context, "read", request.ClientID, request.JournalDir)
            limit = min(request.MaxBytes or _GET_BYTES, self._max_reply_bytes)
            messages = self._store.get(
                request.ClientID,
                request.JournalDir,
                request.Offset,
                request.MaxMessages or _GET_MESSAGES,
                max_bytes=limit,
            )
            return pb.GetResponse(Messages=to_wire(messages))
        raise AssertionError("the call was aborted")

    def _where(self, data: bytes, context: grpc.ServicerContext) -> pb.WhereResponse:
        with self._answering(context):
            request = parse(pb.WhereRequest, data)
            self._allow(context, "write", request.ClientID, request.JournalDir, "read")
            first = self._store.first_offset(request.ClientID, request.JournalDir)
            if first is None:
                return pb.WhereResponse()
            end = self._store.end_offset(request.ClientID, request.JournalDir)
            found = pb.WhereResponse(Known=True, FirstOffset=first, NextOffset=end)
            if request.HasField("Timestamp"):
                source = self._allow(context, "read", request.ClientID, request.JournalDir)
                found.TimeOffset = find_time(self._store, source, request.Timestamp)
            return found
        raise AssertionError("the call was aborted")

    def _list(self, data: bytes, context: grpc.ServicerContext) -> pb.ListResponse:
        with self._answering(context):
            self._guard.identify(context, self._clock())
            request = parse(pb.ListRequest, data)
            sources = [source for source in self._store.sources() if request.ClientID in ("", source.client)]
            clients = {client for client in {source.client for source in sources} if self._may_read(context, client)}
            found = (self._catalog.listed(source) for source in sources if source.client in clients)
            return pb.ListResponse(Journals=[journal for journal in found if journal is not None])
        raise AssertionError("the call was aborted")

    def _read(self, data: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        with self._answering(context), self._stream(context):
            request = parse(pb.ReadRequest, data)
            source = self._allow(context, "read", request.ClientID, request.JournalDir)
            ask = self._asking(context, "read")
            for chunk in encoded(self._store, source, request, most_bytes=self._max_reply_bytes):
                self._require_running()
                ask(*source)
                yield read_response(chunk)

    def _follow(self, data: bytes, context: grpc.ServicerContext) -> Iterator[pb.GetResponse]:
        with self._answering(context), self._stream(context):
            request = parse(pb.GetRequest, data)
            source = self._allow(context, "read", request.ClientID, request.JournalDir)
            ask = self._asking(context, "read")
            path = source_path(self._store.root, source)
            limit = request.MaxMessages or _GET_MESSAGES
            with Scanner(path, request.Offset, timeout=_LOOK_AGAIN_S) as scanner:
                while context.is_active():
                    self._require_running()
                    ask(*source)
                    for part in _parts(scanner.read(limit), self._max_reply_bytes):
                        yield pb.GetResponse(Messages=part)

    def _copy(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[pb.CopyResponse]:
        with self._answering(context), self._stream(context):
            self._require_running()
            come = Incoming(requests, self._asking(context, "write"))
            session = CopySession(
                lambda data: self._store.put_encoded(
                    come.client, come.journal_dir, data, sync=False, create=come.create
                ),
                lambda: self._store.sync(come.client, come.journal_dir),
                idle_s=self._idle_s,
            )
            with self._lock:
                self._sessions.add(session)
            try:
                for offset in session.acknowledge(come, self._stopping):
                    yield pb.CopyResponse(NextOffset=offset)
            finally:
                with self._lock:
                    self._sessions.discard(session)

    # --- around them

    def _allow(self, context: grpc.ServicerContext, role: Role, client: str, journal_dir: str, *others: Role) -> Source:
        source = check_journal(client, journal_dir)
        for other in others:
            try:
                self._guard.check(context, other, client, self._clock())
            except SejError:
                continue
            return source
        self._guard.check(context, role, client, self._clock())
        return source

    def _asking(self, context: grpc.ServicerContext, role: Role) -> Callable[[str, str], None]:
        """What a stream asks before each step: may its caller go on? Looks once in a while."""
        ask_at = 0.0

        def ask(client: str, journal_dir: str) -> None:
            nonlocal ask_at
            if time.monotonic() >= ask_at:
                self._allow(context, role, client, journal_dir)
                ask_at = time.monotonic() + _ASK_AGAIN_S

        return ask

    def _may_read(self, context: grpc.ServicerContext, client: str) -> bool:
        """Whether the caller may read a client's journals; raises where nobody knows the caller."""
        try:
            self._guard.check(context, "read", client, self._clock())
        except AccessError as error:
            if error.known:
                return False
            raise
        return True

    def _require_running(self) -> None:
        if self._stopping.is_set():
            raise UnavailableError("the hub is stopping; go on when it is back")

    @contextmanager
    def _stream(self, context: grpc.ServicerContext) -> Iterator[None]:
        self._guard.identify(context, self._clock())  # strangers take nobody's place
        with self._lock:
            if self.streams >= self._max_streams:
                raise BusyError(f"{self.streams} streams are open, and no more are served: try later")
            self.streams += 1
        try:
            yield
        finally:
            with self._lock:
                self.streams -= 1

    @contextmanager
    def _answering(self, context: grpc.ServicerContext) -> Iterator[None]:
        """Turn an error into the status that says it."""
        try:
            yield
        except (SejError, ValueError) as error:
            self._abort(context, error)
        except OSError as error:
            _log.exception("a call failed on the disk")
            kind = DiskLowError if error.errno in (errno.ENOSPC, errno.EDQUOT) else UnavailableError
            self._abort(context, kind(f"try later: {error.strerror}", path=error.filename))
        except Exception as error:
            if not context.is_active():
                return  # the caller has gone, or gRPC ended the call already
            _log.exception("a call failed")
            self._abort(context, error)

    def _abort(self, context: grpc.ServicerContext, error: Exception) -> None:
        code, text, metadata = to_status(error)
        with self._lock:
            self.refusals[metadata[0][1]] = self.refusals.get(metadata[0][1], 0) + 1
        context.set_trailing_metadata(metadata)
        context.abort(code, text)


def _parts(messages: list[Message], limit_bytes: int) -> Iterator[list[pb.Message]]:
    """Messages in replies of a bounded size; one that is larger goes alone."""
    part: list[Message] = []
    size = 0
    for message in messages:
        size += OVERHEAD_SIZE + len(message.key) + len(message.value)
        if part and size > limit_bytes:
            yield to_wire(part)
            part, size = [], OVERHEAD_SIZE + len(message.key) + len(message.value)
        part.append(message)
    if part:
        yield to_wire(part)
