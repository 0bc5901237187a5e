"""The server and its addresses: listens, answers with one page or one change for each address, and stops.

A browser asks for an open page every few seconds, and its script shows the elements that changed. So each page exists
once, as a template on the server.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from hub.asgi import Listener
from hub.certificates import check_certificates, check_time, is_loopback
from hub.page.changes import CHANGES, ChangedError, ChangeFunction, dead_letter
from hub.page.guard import LOGIN, STATIC, Guard, Viewer
from hub.page.journal import damage, journal, message, message_at, messages, queue, text_queue
from hub.page.overview import overview
from hub.page.sampler import Sampler, place_of
from hub.page.views import Context, MissingError, PageFunction, View, address, templates
from hub.tokens import Tokens
from sej.errors import InvalidNameError, LockedError, NotAJournalError, QueueNotFoundError, SejError

if TYPE_CHECKING:
    from hub.wire.server import Server

PAGES: Final[Mapping[str, PageFunction]] = {
    "": overview,
    "journal": journal,
    "journal/messages": messages,
    "journal/message": message,
    "journal/damage": damage,
    "queue": queue,
    "queue/dead-letter": dead_letter,
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


class PageServer:
    """Serves the page of some paths in a thread, inside a ``with`` block.

    Attributes:
        address: the address that it listens on, as ``host:port`` with the actual port.
        url: the address for a browser.

    Example:
        >>> import tempfile, sej
        >>> path = tempfile.mkdtemp()
        >>> sej.Writer(path).close()
        >>> with PageServer([path], port=0) as page:
        ...     page.url.startswith("http://127.0.0.1:")
        True
    """

    def __init__(
        self,
        paths: Iterable[str | os.PathLike[str]],
        host: str = "127.0.0.1",
        port: int = 8080,
        *,
        certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        tokens: Tokens | str | os.PathLike[str] | None = None,
        allow_changes: bool = False,
        hub: Server | None = None,
    ) -> None:
        """Listen; nothing is served yet.

        Args:
            paths: journals, sharded journals, hubs, directories of journals, ``.tq`` files.
            host: the address to listen on.
            port: the port; 0 takes a free one.
            certificate: TLS: the server's certificate chain, PEM.
            key: its private key, PEM.
            tokens: a file of tokens, or :class:`hub.wire.Tokens`; None: everyone who reaches the address is admitted.
            allow_changes: whether viewers may change something.
            hub: the server of the hub that serves this page.

        Raises:
            ValueError: the host is not the loopback interface, and TLS or tokens are missing; or a file is not PEM.
            JournalNotFoundError: a path does not exist.
            NotAJournalError: a path is a file that is not a ``.tq`` file.
            AccessError: the file of tokens has a bad line, or others may write it.
            SejError: the certificate has expired, or is not valid yet.
            OSError: the address is not available, or a file cannot be read.
        """
        loopback = is_loopback(f"{host}:{port}")
        if not loopback and (certificate is None or key is None or tokens is None):
            raise ValueError(
                f"{host} can be reached from other machines, so the page needs TLS and tokens there: pass certificate,"
                " key and tokens, or listen on 127.0.0.1"
            )
        check_certificates(None, certificate, key)
        check_time(certificate)
        if tokens is not None and not isinstance(tokens, Tokens):
            tokens = Tokens(tokens)
        places = [place_of(Path(path)) for path in paths]
        if not places:
            raise ValueError("paths must have at least one path")
        sampler = Sampler([place.path for place in places if place.kind != "text queue"])
        self._listener = Listener(host, port, "sej-page")
        self.address = self._listener.address
        self.url = f"{'http' if certificate is None else 'https'}://{self.address}/"
        site = Site(Context(places, sampler, allow_changes, hub)).application
        self._guard = Guard(
            site, tokens=tokens, allow_changes=allow_changes, secure=certificate is not None, loopback=loopback
        )
        self._tls = {"ssl_certfile": certificate, "ssl_keyfile": key}

    def __enter__(self) -> Self:
        """Serve in a thread and return the server."""
        self._listener.start(self._guard, **self._tls)
        return self

    def __exit__(self, *_: object) -> None:
        """Finish the requests in progress, and stop."""
        self._listener.close()


class Site:
    """All addresses as one ASGI application."""

    def __init__(self, context: Context) -> None:
        """Set what the pages read from."""
        self._context = context
        self._templates = templates()
        routes: list[Route | Mount] = [
            Route(f"/{address}", partial(self._page, page), methods=["GET"]) for address, page in PAGES.items()
        ]
        routes += [
            Route("/journal/value", self._value),
            Route(LOGIN, self._login),
            Mount(STATIC, StaticFiles(directory=Path(__file__).parent / "static")),
        ]
        if context.allow_changes:
            for address, (show, make) in CHANGES.items():
                routes += [
                    Route(f"/{address}", partial(self._page, show), methods=["GET"]),
                    Route(f"/{address}", partial(self._change, make), methods=["POST"]),
                ]
        failed = dict.fromkeys((SejError, OSError, ValueError), self._failed)
        self.application = Starlette(routes=routes, exception_handlers={**failed, 404: self._not_found})

    # These run on threads, because they read files.

    def _page(self, page: PageFunction, request: Request) -> Response:
        return self._html(request, page(self._context, _query(request)))

    def _change(self, make: ChangeFunction, request: Request) -> Response:
        viewer: Viewer = request.scope["viewer"]
        return RedirectResponse(make(self._context, request.scope["form"], viewer.name), 303)

    def _html(self, request: Request, view: View, code: int = 200) -> Response:
        scope, shown = request.scope, {"title": view.title, "trail": view.trail, "live": view.live}
        query = "&".join(f"{name}={address(value)}" for name, value in _query(request).items())
        here = scope["path"] + (f"?{query}" if query else "")
        html = self._templates.get_template(view.template).render(
            view.values, **shown, viewer=scope["viewer"], here=here, places=self._context.links()
        )
        return HTMLResponse(html.encode("utf-8", "replace"), code)  # a file name may have bytes that are not UTF-8

    def _failed(self, request: Request, error: Exception) -> Response:
        code = next((code for kind, code in _CODES if isinstance(error, kind)), 503)
        title = "Not found" if code == 404 else "Not possible"
        return self._html(request, View("error.html", title, {"why": str(error)}, [("/", "Overview")]), code)

    def _not_found(self, request: Request, _: Exception) -> Response:
        return self._failed(request, MissingError("this page does not exist"))

    def _login(self, request: Request) -> Response:
        return self._html(request, View("login.html", "Sign in", {"wrong": "wrong" in request.query_params}))

    def _value(self, request: Request) -> Response:
        _, found = message_at(self._context, _query(request))
        headers = {"content-disposition": f'attachment; filename="message-{found.offset}.bin"'}
        return Response(found.value, media_type="application/octet-stream", headers=headers)


def _query(request: Request) -> dict[str, str]:
    """Return the query of an address; bytes that are not UTF-8 are kept, as in names of files.

    The query is read as it was sent: request.url depends on the header Host in older versions of Starlette.
    """
    query: bytes = request.scope["query_string"]
    return dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True, errors="surrogateescape"))
