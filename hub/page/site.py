"""The addresses of the page: which function answers which of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

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
from hub.page.groups import hub_root, sharded
from hub.page.guard import LOGIN, Viewer
from hub.page.journal import damage, journal, message, message_at, messages
from hub.page.overview import overview
from hub.page.queue import queue
from hub.page.streams import MAX_STREAMS, Stopping, page_events, tail_events
from hub.page.text_queue import text_queue
from hub.page.views import Context, MissingError, PageFunction, View, number_in
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
_STATIC: Final = Path(__file__).parent / "static"
_FILES: Final = {"page.js": "text/javascript", "page.css": "text/css", "icon.svg": "image/svg+xml"}


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
            Route("/journal/tail", self._tail),
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
            page_events(self._context, page, _query(request), self._stopping, request.scope["admitted"])
        )

    async def _tail(self, request: Request) -> Response:
        try:
            query = _query(request)
            path = self._context.require_journal(query.get("path", ""))
            offset = number_in(query, "from", 0)
            last = request.headers.get("last-event-id", "")
            offset = int(last) if last.isascii() and last.isdigit() else offset
        except (SejError, ValueError) as error:
            return PlainTextResponse(f"{error}\n", 404)
        return self._stream(tail_events(self._context, path, offset, self._stopping, request.scope["admitted"]))

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
