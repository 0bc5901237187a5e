"""The addresses of the page: which function answers which of them, and the stream of events of each page.

A stream sends the parts of a page that changed. It holds no thread while it waits: it sleeps on the event loop, and
borrows a thread to look. It ends when the browser leaves or when the server stops.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from hub.page.changes import CHANGES, ChangedError
from hub.page.guard import LOGIN, Viewer
from hub.page.journal import damage, journal, message, message_at, messages
from hub.page.overview import hub_root, overview, sharded
from hub.page.queues import queue, text_queue
from hub.page.views import Context, MissingError, PageFunction, View
from sej.errors import InvalidNameError, LockedError, NotAJournalError, QueueNotFoundError, SejError

PAGES: Final[Mapping[str, PageFunction]] = {
    "": overview,
    "journal": journal,
    "journal/messages": messages,
    "journal/message": message,
    "journal/damage": damage,
    "queue": queue,
    "hub": hub_root,
    "shards": sharded,
    "text-queue": text_queue,
}
"""The pages by address."""
_CODES: Final[tuple[tuple[type[Exception], int], ...]] = (
    (NotAJournalError, 404),
    (QueueNotFoundError, 404),
    (InvalidNameError, 404),
    (FileNotFoundError, 404),
    (ChangedError, 409),
    (LockedError, 409),
    (SejError, 503),
    (ValueError, 400),
)
"""The status of each kind of error, the first that fits; any other error is 503."""
MAX_STREAMS: Final = 64
"""Streams at one time; a browser opens one or two for each page."""
_TICK_S: Final = 2.0
_KEEPALIVE_S: Final = 15.0
_RETRY: Final = b"retry: 2000\n\n"
_STATIC: Final = Path(__file__).parent / "static"
_FILES: Final = {"page.js": "text/javascript", "page.css": "text/css", "icon.svg": "image/svg+xml"}


class Stopping:
    """Says that the server stops, so that streams end; to be used on one event loop."""

    def __init__(self) -> None:
        """The server does not stop yet."""
        self._event = anyio.Event()

    def stop(self) -> None:
        """End every stream."""
        self._event.set()

    async def within(self, seconds: float) -> bool:
        """Wait; return True if the server stops within this time."""
        with anyio.move_on_after(seconds):
            await self._event.wait()
        return self._event.is_set()


class Site:
    """All addresses as one ASGI application."""

    def __init__(self, context: Context, stopping: Stopping) -> None:
        """Set what the pages read.

        Args:
            context: what the pages read from.
            stopping: ends the streams.
        """
        self._context = context
        self._stopping = stopping
        self._streams = 0
        routes = [Route(f"/{address}", self._page(page)) for address, page in PAGES.items()]
        routes += [
            Route("/events/{address:path}", self._events),
            Route("/journal/value", self._value),
            Route("/static/{name}", self._file),
            Route(LOGIN, self._login, methods=["GET"]),
        ]
        if context.allow_changes:
            for address, (show, make) in CHANGES.items():
                routes += [Route(f"/{address}", self._page(show), methods=["GET"])]
                routes += [Route(f"/{address}", self._change(make), methods=["POST"])]
        self.application = Starlette(routes=routes, exception_handlers={404: self._not_found})

    def _page(self, page: PageFunction) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return await anyio.to_thread.run_sync(self._answer, page, request)

        return answer

    def _change(
        self, make: Callable[[Context, Mapping[str, str], str], str]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            viewer: Viewer = request.scope["viewer"]
            try:
                following = await anyio.to_thread.run_sync(make, self._context, request.scope["form"], viewer.name)
            except (SejError, OSError, ValueError) as error:
                return self._failure(request, _code_of(error), error)
            return RedirectResponse(following, 303)

        return answer

    def _answer(self, page: PageFunction, request: Request) -> Response:
        try:
            view = page(self._context, _query(request))
        except (SejError, OSError, ValueError) as error:
            return self._failure(request, _code_of(error), error)
        return self._html(request, view)

    def _html(self, request: Request, view: View, code: int = 200) -> Response:
        viewer: Viewer = request.scope["viewer"]
        address = request.scope["path"].lstrip("/")
        query = f"?{_query_text(request)}" if _query_text(request) else ""
        values = {
            **view.values,
            "title": view.title,
            "trail": view.trail,
            "parts": view.parts,
            "events": f"/events/{address}{query}" if view.parts else "",
            "viewer": viewer,
        }
        html = self._context.render(view.template, values)
        return HTMLResponse(html.encode("utf-8", "replace"), code)  # a file name may have bytes that are not UTF-8

    def _failure(self, request: Request, code: int, error: Exception) -> Response:
        view = View(
            "error.html", "Not found" if code == 404 else "Not possible", {}, {"why": str(error)}, [("/", "Overview")]
        )
        return self._html(request, view, code)

    async def _not_found(self, request: Request, _: Exception) -> Response:
        return self._failure(request, 404, MissingError("this page does not exist"))

    async def _login(self, request: Request) -> Response:
        view = View("login.html", "Sign in", {}, {"wrong": "wrong" in request.query_params})
        return self._html(request, view)

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _FILES:
            return PlainTextResponse("not found\n", 404)
        return FileResponse(_STATIC / name, media_type=_FILES[name], headers={"cache-control": "no-cache"})

    async def _value(self, request: Request) -> Response:
        try:
            _, found = await anyio.to_thread.run_sync(message_at, self._context, _query(request))
        except (SejError, OSError, ValueError) as error:
            return self._failure(request, _code_of(error), error)
        headers = {"content-disposition": f'attachment; filename="message-{found.offset}.bin"'}
        return Response(found.value, media_type="application/octet-stream", headers=headers)

    async def _events(self, request: Request) -> Response:
        page = PAGES.get(request.path_params["address"])
        if page is None:
            return PlainTextResponse("not found\n", 404)
        return self._stream(
            _page_events(self._context, page, _query(request), self._stopping, request.scope["admitted"])
        )

    def _stream(self, events: AsyncIterator[bytes]) -> Response:
        if self._streams >= MAX_STREAMS:
            return PlainTextResponse(f"{MAX_STREAMS} pages are open; close some\n", 503, {"retry-after": "10"})
        self._streams += 1

        async def counted() -> AsyncIterator[bytes]:
            try:
                async for event in events:
                    yield event
            finally:
                self._streams -= 1

        return StreamingResponse(counted(), media_type="text/event-stream", headers={"x-accel-buffering": "no"})


def _query(request: Request) -> dict[str, str]:
    """Return the query of an address; bytes that are not UTF-8 are kept, as in names of files."""
    return dict(parse_qsl(_query_text(request), keep_blank_values=True, errors="surrogateescape"))


def _query_text(request: Request) -> str:
    """Return the query as it was sent: request.url depends on the header Host in older versions of Starlette."""
    query: bytes = request.scope["query_string"]
    return query.decode("latin-1")


def _code_of(error: Exception) -> int:
    """Return the status of an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), 503)


async def _page_events(
    context: Context, page: PageFunction, query: Mapping[str, str], stopping: Stopping, admitted: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Yield all parts of a page first, and after that those that changed.

    Args:
        context: what the page reads from.
        page: the page.
        query: the query of its address.
        stopping: ends the stream.
        admitted: whether the viewer still may see it.
    """
    yield _RETRY
    sent: dict[str, str] | None = None
    quiet_s = 0.0
    with context.sampler.viewed():
        while True:
            try:
                view = await anyio.to_thread.run_sync(page, context, query)
            except (SejError, OSError, ValueError):
                yield _event("gone", {})
                return
            parts = {name: str(html) for name, html in view.parts.items()}
            if sent is None or parts.keys() != sent.keys():
                yield _event("all", parts)
                quiet_s = 0.0
            elif changed := {name: html for name, html in parts.items() if sent[name] != html}:
                yield _event("some", changed)
                quiet_s = 0.0
            elif quiet_s >= _KEEPALIVE_S:
                yield b": still here\n\n"
                quiet_s = 0.0
            sent = parts
            quiet_s += _TICK_S
            if await stopping.within(_TICK_S) or not admitted():
                return


def _event(kind: str, data: Mapping[str, Any]) -> bytes:
    text = json.dumps(data, ensure_ascii=False)  # one line: JSON escapes line ends
    return f"event: {kind}\ndata: {text}\n\n".encode("utf-8", "replace")
