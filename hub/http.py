"""The hub over HTTP, for programs without gRPC: put, get, follow and named readers, with JSON.

::

    POST /journals/CLIENT/JOURNAL                  put: JSON, or the raw bytes of one message
    GET  /journals/CLIENT/JOURNAL                  get: offset=, limit=, max_bytes=
    GET  /journals/CLIENT/JOURNAL/events           follow, as server-sent events; the id is the offset to continue at
    POST /journals/CLIENT/JOURNAL/readers/READER   take a named reader, renew its lease, commit

The requests become the calls of :mod:`hub.wire.service`, in the same threads: a :class:`Caller` replaces gRPC's
context. So tokens, limits, the memory of answers and the sentences of errors are the same. A follower holds a thread
only while it waits for messages, not while its answer is sent.

Answers are sent in pieces, each when the socket has room for it. The share of memory that an answer has lasts until
then. What requests hold has a limit of its own, because puts do not wait for readers.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import threading
import time
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from hub.asgi import LOOPBACK, Listener, name_in
from hub.certificates import ServerTLS, absolute_address, is_loopback, require_private
from hub.errors import AccessError, ConflictError
from hub.naming import Source
from hub.wire import hub_pb2 as pb
from hub.wire.access import Answer
from hub.wire.frames import from_wire
from hub.wire.server import Server
from hub.wire.status import HTTP_STATUSES, BusyError, CallEndedError, TooLargeError
from sej.cli.shared.text import as_json
from sej.codec.format import MAX_OFFSET, NO_TIMESTAMP
from sej.errors import InvalidMessageError
from sej.message import Message
from sej.system.disk import spare_files
from sej.system.lifecycle import Closing

_LATER: Final = (429, 503, 507)
_JSON_BYTES: Final = 1 << 22
_JSON_COPIES: Final = 16
"""About the memory of small messages for each byte of their JSON."""
_RAW_COPIES: Final = 2
_REQUESTS_BYTES: Final = 1 << 28
"""The memory of all requests together."""
_PIECE_BYTES: Final = 1 << 16
_QUIET_S: Final = 15.0
"""After so much silence, a follower gets a comment, so that proxies keep the connection."""
_FIELDS: Final = frozenset({"key", "key_b64", "value", "value_b64", "type", "timestamp_ns"})
_WHOLE: Final = re.compile(r"-?[0-9]{1,19}")
_T = TypeVar("_T")
_Row = tuple[int | None, int, bytes, bytes]
"""Time (None: now), type, key and value of a message."""


class _RefusedError(Exception):
    """The end of a call, as an answer."""

    def __init__(self, status: int, row: dict[str, Any]) -> None:
        super().__init__(status, row)
        self.row = row
        headers = {"retry-after": "1"} if status in _LATER else {}
        self.response = JSONResponse(row, status, headers | ({"www-authenticate": "Bearer"} if status == 401 else {}))


class Caller:
    """What the calls use of gRPC's context, for one request over HTTP; used by many threads."""

    def __init__(self, request: Request) -> None:
        """Start with a request; use it in the event loop's thread."""
        self._loop = asyncio.get_running_loop()
        self._state: dict[str, Any] = request.scope["state"]
        self._metadata = [("authorization", request.headers.get("authorization", ""))]
        host, port = request.client or ("unknown", 0)
        self._peer = f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._has_ended = False
        self._trailing: dict[str, str] = {}

    def invocation_metadata(self) -> list[tuple[str, str]]:
        """Return the token."""
        return self._metadata

    def auth_context(self) -> dict[str, list[bytes]]:
        """Return the names in the caller's certificate."""
        return {"x509_common_name": self._state["names"]}

    def peer(self) -> str:
        """Return the caller's address."""
        return self._peer

    def time_remaining(self) -> float:
        """Return infinity: HTTP has no deadline."""
        return float("inf")

    def is_active(self) -> bool:
        """Return whether the call lasts."""
        return not self._has_ended

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Call a function at the end; return False if the call has ended."""
        with self._lock:
            if not self._has_ended:
                self._callbacks.append(callback)
            return not self._has_ended

    def end(self) -> None:
        """End the call, and with it its share of the memory; a second call does nothing."""
        with self._lock:
            self._has_ended, callbacks = True, self._callbacks
            self._callbacks = []
        for callback in callbacks:
            callback()

    def cancel(self) -> None:
        """End the call, and cut the connection."""
        self.end()
        self._loop.call_soon_threadsafe(self._state["transport"].abort)

    def set_trailing_metadata(self, metadata: Iterable[tuple[str, str]]) -> None:
        """Set the name and the numbers of an error."""
        self._trailing = dict(metadata)

    def abort(self, code: Any, text: str) -> None:
        """End the call with an error."""
        name = self._trailing["sej-error"]
        row: dict[str, Any] = {"error": name, "message": text}
        for key in ("expected", "first", "offset"):
            if f"sej-{key}" in self._trailing:
                row[key] = int(self._trailing[f"sej-{key}"])
        status = {"UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403}.get(code.name) or HTTP_STATUSES.get(name, 500)
        raise _RefusedError(status, row)


_Call = Callable[[Any, Request], Awaitable[Response]]


class HttpServer(Closing):
    """Serves a hub over HTTP, in a thread; starts when it is created.

    Attributes:
        url: its address, with the actual port.

    Example:
        >>> import tempfile, hub
        >>> from hub.wire import Server
        >>> with hub.Store(tempfile.mkdtemp()) as store, Server(store, "127.0.0.1:0") as server:
        ...     with HttpServer(server, "127.0.0.1:0") as http:
        ...         http.url.startswith("http://127.0.0.1:")
        True
    """

    def __init__(
        self, server: Server, address: str, *, tls: ServerTLS | None = None, allow_plaintext: bool = False
    ) -> None:
        """Listen and serve.

        Args:
            server: the hub, whose tokens and limits are used; closed after this.
            address: ``host:port``; port 0 takes a free one.
            tls: as for the server, but files only.
            allow_plaintext: listen beyond the loopback interface without TLS.

        Raises:
            ValueError: the address is not the loopback interface and ``tls`` is None, or its files are not PEM.
            OSError: the address is not available, or a file cannot be read.
            SejError: the certificate has expired, or is not valid yet.
        """
        host, _, port = absolute_address(address).rpartition(":")
        if address.startswith("unix") or not host:
            raise ValueError(f"HTTP needs host:port, got {address!r}")
        self._is_local = is_loopback(address)
        require_private(address, tls, allow_plaintext=allow_plaintext)
        settings: dict[str, Any] = {"http": _Protocol, "limit_concurrency": max(spare_files() // 4, 1)}
        if tls is not None:
            tls.pem()
            settings |= {"ssl_certfile": tls.certificate, "ssl_keyfile": tls.key}
            if tls.client_ca is not None:
                settings |= {"ssl_ca_certs": tls.client_ca, "ssl_cert_reqs": ssl.CERT_REQUIRED}
        self._store, self._service = server.store, server.service
        self._callers: dict[Caller, None] = {}
        self._held = 0
        journal = "/journals/{client}/{journal}"
        calls: dict[str, dict[str, _Call]] = {
            journal: {"GET": self._get, "POST": self._put},
            f"{journal}/events": {"GET": self._follow},
            f"{journal}/readers/{{reader}}": {"POST": self._hold},
        }
        routes = [Route(path, _Endpoint(self, each), methods=list(each)) for path, each in calls.items()]
        for route in routes:
            (route.methods or set()).discard("HEAD")
        self._listener = Listener(host.strip("[]"), int(port), "hub-http")
        self.url = f"{'http' if tls is None else 'https'}://{self._listener.address}"
        self._listener.start(Starlette(routes=routes, exception_handlers={HTTPException: _no_such_page}), **settings)

    def close(self) -> None:
        """End the followers, finish the other requests in progress, and stop. A second call does nothing."""
        for caller in reversed(list(self._callers)):  # those that wait for memory before those that have it
            caller.end()
        self._listener.close()

    async def answer(self, call: _Call, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with what a call returns, or with its error."""
        request = Request(scope, receive)
        caller = Caller(request)
        self._callers[caller] = None
        try:
            response = Response(
                status_code=503, headers={"retry-after": "1"}
            )  # if the hub stops, or the caller has gone
            try:
                with self._service.guard.answering(caller):  # type: ignore[arg-type]
                    self._require_own_site(request)
                    response = await call(caller, request)
            except _RefusedError as refused:
                response = refused.response
            await response(scope, receive, send)
        except asyncio.CancelledError:  # the hub stops, and the caller does not read
            caller.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # uvicorn reports an answer without an end if the connection still has its protocol
        finally:
            caller.end()
            del self._callers[caller]

    def _require_own_site(self, request: Request) -> None:
        """Refuse what a browser sends for another site, if the hub relies on being reached from this machine only.

        Raises:
            AccessError: it is such a request.
        """
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        is_foreign = (self._is_local and name_in(host) not in LOOPBACK) or (origin and urlsplit(origin).netloc != host)
        if self._service.guard.is_open and is_foreign:
            raise AccessError("this request is for another site, or from a page of one", known=True)

    # --- the calls

    async def _put(self, caller: Any, request: Request) -> Response:
        """Store messages under the client's offset, or under the next one."""
        query = _query(request, "offset", "key", "type", "timestamp_ns")
        offset = _whole(query, "offset")
        source = self._service.guard.allow(
            caller, *_names(request), *(("write", "append") if offset is None else ("write",))
        )
        is_json = request.headers.get("content-type", "").partition(";")[0].strip() == "application/json"
        most = self._service.limits.max_message_bytes
        async with self._body(request, min(most, _JSON_BYTES) if is_json else most, is_json) as data:
            rows = _rows(data) if is_json else [_raw(query, data)]
            span = await self._on("put", partial(self._store_messages, source, offset, rows))
        return JSONResponse({"offset": span.start, "next_offset": span.stop})

    def _store_messages(self, source: Source, offset: int | None, rows: list[_Row]) -> range:
        """Store messages. A repeat without times is compared with the times that the first one got."""
        now = time.time_ns()
        messages = [
            Message((offset or 0) + index, now if stamp is None else stamp, kind, key, value)
            for index, (stamp, kind, key, value) in enumerate(rows)
        ]
        if offset is None or not messages:
            return self._store.append(*source, messages)
        try:
            end = self._store.put(*source, messages)
        except ConflictError:
            most = sum(len(message.key) + len(message.value) + 64 for message in messages)
            stored = self._store.get(*source, offset, len(messages), max_bytes=most)
            times = {message.offset: message.timestamp for message in stored}
            messages = [
                message if row[0] is not None else message._replace(timestamp=times.get(message.offset, now))
                for message, row in zip(messages, rows, strict=True)
            ]
            end = self._store.put(*source, messages)
        return range(offset, end)

    async def _get(self, caller: Any, request: Request) -> Response:
        query = _query(request, "offset", "limit", "max_bytes")
        asked = _get_request(request, query)
        form = partial(_page, asked.Offset)
        data = await self._on("get", partial(self._service.get, asked.SerializeToString(), caller, form))
        return _Pieces(data, media_type="application/json")

    async def _follow(self, caller: Any, request: Request) -> Response:
        query = _query(request, "offset")
        last = request.headers.get("last-event-id")
        asked = _get_request(request, query if last is None else {"offset": last})
        answers = self._service.follow(asked.SerializeToString(), caller, _events, opening=True)
        return _Events(caller, partial(self._on, "follow"), answers)

    async def _hold(self, caller: Any, request: Request) -> Response:
        _query(request)
        self._service.guard.allow(caller, *_names(request), "reader")
        async with self._body(request, _PIECE_BYTES, True) as data:
            given = _json(data)
            if not isinstance(given, dict):
                raise ValueError(f"the request must be a JSON object, got {data[:80]!r}")
            unknown = given.keys() - {"holder", "lease_s", "take", "offset", "reset"}
            if unknown:
                raise ValueError(f"unknown field {min(unknown)!r}; use holder, lease_s, take, offset or reset")
            asked = _hold_request(request, given)
        answer = await self._on("hold", partial(self._service.hold, asked.SerializeToString(), caller))
        return JSONResponse({"offset": answer.Places[0].Offset, "kept": answer.Places[0].Kept})

    # --- around the calls

    async def _on(self, lane: str, call: Callable[[], _T]) -> _T:
        """Run a call in the threads of its kind."""
        return await asyncio.get_running_loop().run_in_executor(self._service.lane(lane), call)

    @asynccontextmanager
    async def _body(self, request: Request, most: int, is_json: bool) -> AsyncIterator[bytes]:
        """Read a request's body, and hold its share of the memory.

        Raises:
            TooLargeError: it is larger than ``most`` bytes.
            BusyError: other requests have the memory, or the caller sends too slowly.
        """
        copies, size = _JSON_COPIES if is_json else _RAW_COPIES, 0
        parts: list[bytes] = []
        stream = request.stream()
        try:
            while (part := await self._part(stream)) is not None:
                if size + len(part) > most:
                    raise TooLargeError(f"the request has more than {most} bytes; send fewer messages in each")
                if self._held + copies * len(part) > _REQUESTS_BYTES:
                    raise BusyError("the hub's memory for requests is used up; try again later")
                size += len(part)
                self._held += copies * len(part)
                parts.append(part)
            yield b"".join(parts)
        finally:
            self._held -= copies * size

    async def _part(self, stream: AsyncGenerator[bytes, None]) -> bytes | None:
        try:
            async with asyncio.timeout(self._service.limits.stall_s):
                return await anext(stream, None)
        except TimeoutError:
            raise BusyError("the request came too slowly; try again later") from None
        except ClientDisconnect:
            raise CallEndedError from None


class _Endpoint:
    """One address, as an ASGI application."""

    def __init__(self, server: HttpServer, calls: Mapping[str, _Call]) -> None:
        self._server = server
        self._calls = calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._server.answer(self._calls[scope["method"]], scope, receive, send)


class _Pieces(Response):
    """An answer that waits for its caller: each piece is sent when the socket has room."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _send_pieces(send, bytes(self.body))
        await send({"type": "http.response.body"})


class _Events(Response):
    """The answers of a follower as server-sent events, until the caller or the hub ends the call."""

    def __init__(self, caller: Caller, on: Callable[..., Awaitable[Any]], answers: Generator[Answer]) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._caller = caller
        self._on = on
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._next()
        leaving = asyncio.ensure_future(self._wait_for_leaving(receive))
        try:
            await asyncio.wait({answer})
            if isinstance(error := answer.exception(), _RefusedError):
                await error.response(scope, receive, send)
                return
            answer = self._next()  # the first one is empty: the caller has passed all checks
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            while data := await self._event(answer):
                await _send_pieces(send, data)
                del data  # its share is returned while the next answer waits for one
                if answer.done():
                    if answer.exception() is not None:
                        break
                    answer = self._next()
            await send({"type": "http.response.body"})
        finally:
            self._caller.end()
            leaving.cancel()
            await asyncio.wait({answer})
            self._answers.close()

    def _next(self) -> asyncio.Future[Answer | None]:
        return asyncio.ensure_future(self._on(partial(next, self._answers, None)))

    async def _event(self, answer: asyncio.Future[Answer | None]) -> bytes:
        """Return what to send next; nothing at the end."""
        await asyncio.wait({answer}, timeout=_QUIET_S)
        if not answer.done():
            return b":\n\n"
        error = answer.exception()
        if error is None:
            found = answer.result()
            return b"" if found is None else found.take()
        if isinstance(error, _RefusedError):
            return f"event: error\ndata: {json.dumps(error.row)}\n\n".encode()
        raise error

    async def _wait_for_leaving(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._caller.end()


class _Protocol(H11Protocol):
    """Hands the connection, and the names in the caller's certificate, to the application."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        subject = (transport.get_extra_info("peercert") or {}).get("subject", ())
        names = [value.encode() for part in subject for name, value in part if name == "commonName"]
        self.app_state = {**self.app_state, "transport": transport, "names": names}


async def _send_pieces(send: Send, data: bytes) -> None:
    for position in range(0, len(data), _PIECE_BYTES):
        piece = data[position : position + _PIECE_BYTES]
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        await asyncio.sleep(0)  # so that the loop notices a caller that has gone


def _no_such_page(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    where = "use POST or GET /journals/CLIENT/JOURNAL, GET …/events, or POST …/readers/READER"
    return JSONResponse({"error": "address", "message": where}, error.status_code, error.headers)


# --- requests and answers as bytes


def _names(request: Request) -> tuple[str, str]:
    return request.path_params["client"], request.path_params["journal"]


def _query(request: Request, *known: str) -> dict[str, str]:
    query = dict(request.query_params)
    unknown = query.keys() - set(known)
    if unknown:
        raise ValueError(f"unknown parameter {min(unknown)!r}; this address has {', '.join(known) or 'none'}")
    return query


def _whole(query: dict[str, str], name: str, low: int = 0, high: int = MAX_OFFSET) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not _WHOLE.fullmatch(text) or not low <= int(text) <= high:
        raise ValueError(f"{name} must be {low} to {high}, got {text[:80]!r}")
    return int(text)


def _get_request(request: Request, query: dict[str, str]) -> Any:
    client, journal = _names(request)
    return pb.GetRequest(
        ClientID=client,
        JournalDir=journal,
        Offset=_whole(query, "offset"),
        MaxMessages=_whole(query, "limit", 1, 2**32 - 1),
        MaxBytes=_whole(query, "max_bytes", 1),
    )


def _hold_request(request: Request, given: dict[str, Any]) -> Any:
    client, journal = _names(request)
    try:
        place = pb.Place(
            ClientID=client, JournalDir=journal, Offset=given.get("offset"), Reset=given.get("reset", False)
        )
        return pb.HoldRequest(
            Reader=request.path_params["reader"],
            Holder=given.get("holder", ""),
            LeaseMs=round(1000 * given.get("lease_s", 30)),
            Take=given.get("take", False),
            Places=[place],
        )
    except (TypeError, OverflowError) as error:
        raise ValueError(f"a field of the request has a wrong type or size: {error}") from None


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidMessageError(f"the request is not JSON: {error}") from None


def _rows(data: bytes) -> list[_Row]:
    """Return time, type, key and value of each message in a request: a JSON object, or a list of them."""
    found = _json(data)
    return [_row(index, row) for index, row in enumerate(found if isinstance(found, list) else [found])]


def _row(index: int, row: Any) -> _Row:
    if not isinstance(row, dict) or row.keys() - _FIELDS or not row.keys() & {"value", "value_b64"}:
        raise InvalidMessageError(
            f"message {index} must be a JSON object with value or value_b64, and optionally key or key_b64, type and"
            f" timestamp_ns, got {json.dumps(row)[:80]}"
        )
    stamp = NO_TIMESTAMP if row.get("timestamp_ns") is None else row["timestamp_ns"]
    for name, number, low, high in (
        ("type", row.get("type", 0), 0, 255),
        ("timestamp_ns", stamp, NO_TIMESTAMP, MAX_OFFSET),
    ):
        if type(number) is not int or not low <= number <= high:
            raise InvalidMessageError(f"{name} of message {index} must be {low} to {high}, got {number!r:.80}")
    return stamp if "timestamp_ns" in row else None, row.get("type", 0), _bytes(row, "key"), _bytes(row, "value")


def _bytes(row: dict[str, Any], name: str) -> bytes:
    text, encoded = row.get(name, ""), row.get(f"{name}_b64", "")
    if not isinstance(text, str) or not isinstance(encoded, str) or (text and encoded):
        raise InvalidMessageError(f"{name} must be a string, or {name}_b64 one with Base64, got {row[name]!r:.80}")
    try:
        return text.encode() or b64decode(encoded, validate=True)
    except ValueError as error:
        raise InvalidMessageError(f"{name} or {name}_b64 cannot be read: {error}") from None


def _raw(query: dict[str, str], value: bytes) -> _Row:
    stamp = _whole(query, "timestamp_ns", NO_TIMESTAMP)
    return stamp, _whole(query, "type", 0, 255) or 0, query.get("key", "").encode(), value


def _page(offset: int, data: bytes) -> bytes:
    """Return messages as one JSON object, with the offset to continue at."""
    rows = []
    for message in from_wire(pb.GetResponse.FromString(data).Messages):
        rows.append(as_json(message))
        offset = message.offset + 1
    return f'{{"messages": [{", ".join(rows)}], "next_offset": {offset}}}'.encode()


def _events(data: bytes) -> bytes:
    """Return messages as server-sent events; the id of each is the offset to continue at."""
    messages = from_wire(pb.GetResponse.FromString(data).Messages)
    return "".join([f"id: {message.offset + 1}\ndata: {as_json(message)}\n\n" for message in messages]).encode()
