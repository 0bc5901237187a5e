"""The server and its addresses: listens, decides who may ask for what, and answers with one page or one change.

A browser asks for an open page every few seconds, and its script shows the elements that changed. So each page exists
once, as a template on the server.

Every request passes these checks, in this order:

========  ============================================================  ==========================================
request   check                                                         against
========  ============================================================  ==========================================
all       ``Host`` is a name or an address; of the loopback interface,  a foreign site whose name is made to
          if it listens only there                                      resolve to 127.0.0.1 (DNS rebinding)
all       a token, in a cookie or as ``Authorization: Bearer``, if the  strangers
          server has tokens; the form that takes it is free
POST      ``Origin`` is this server                                     forms of foreign sites
POST      the form has the secret of this browser's cookie              the same, in browsers without ``Origin``
POST      ``--allow-changes``, and a token with the role ``change``     viewers
========  ============================================================  ==========================================

Every answer forbids scripts, styles, frames and connections from elsewhere. A message's bytes reach the browser as
escaped text, or as a download that no browser shows.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self
from urllib.parse import parse_qsl, urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hub.asgi import LOOPBACK, Listener, name_in
from hub.certificates import check_certificates, check_time, is_loopback
from hub.errors import AccessError, UnavailableError
from hub.page import pages
from hub.page.changes import CHANGES, ChangedError, ChangeFunction, dead_letter
from hub.page.pages import Context, MissingError, PageFunction, View
from hub.page.sampler import Sampler, place_of
from hub.tokens import Tokens
from sej.errors import InvalidNameError, LockedError, NotAJournalError, QueueNotFoundError, SejError

if TYPE_CHECKING:
    from hub.wire.server import Server

LOGIN: Final = "/login"
STATIC: Final = "/static/"
_TOKEN: Final = "sej-token"
_BROWSER: Final = "sej-browser"
_FORM_BYTES: Final = 1 << 16
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
"""The headers of every answer."""


class Viewer(NamedTuple):
    """Who asks.

    Attributes:
        name: the name in the token; without tokens, the address.
        may_change: whether the viewer may change something.
        secret: what forms of this browser must send back.
    """

    name: str
    may_change: bool
    secret: str


class Guard:
    """Checks every request before the site sees it, and adds the headers to every answer."""

    def __init__(
        self, app: ASGIApp, *, tokens: Tokens | None, allow_changes: bool, secure: bool, loopback: bool
    ) -> None:
        """Set the rules.

        Args:
            app: the site.
            tokens: whom to admit; None: everyone who reaches the address.
            allow_changes: whether anything may be changed at all.
            secure: whether the server uses TLS.
            loopback: whether it listens on the loopback interface only.
        """
        self._app = app
        self._tokens = tokens
        self._allow_changes = allow_changes
        self._secure = secure
        self._loopback = loopback
        self._secret = secrets.token_bytes(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        request = Request(scope, receive)
        cookies = request.cookies
        browser = cookies.get(_BROWSER) or secrets.token_urlsafe(32)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *((name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in there),
                ]
                if _BROWSER not in cookies:
                    message["headers"].append((b"set-cookie", self._cookie(_BROWSER, browser).encode()))
            await send(message)

        answer = await self._refusal(request, cookies, browser)
        await (answer or self._app)(scope, receive, guarded)

    async def _refusal(self, request: Request, cookies: dict[str, str], browser: str) -> Response | None:
        """Return the answer to a request that the site must not see; None: it may."""
        host = request.headers.get("host", "")
        if self._loopback and name_in(host) not in LOOPBACK:
            return _refused(421, "this server listens on the loopback interface; open it as http://localhost")
        if host and not name_in(host):
            return _refused(400, "the header Host must be a name or an address, and a port")
        if request.method not in ("GET", "HEAD", "POST"):
            return _refused(405, "use GET or POST")
        posting = request.method == "POST"
        if posting and not self._own_origin(request):
            return _refused(403, "the request comes from another site")
        request.scope["viewer"] = Viewer("", False, self._proof(browser))
        path: str = request.scope["path"]  # not request.url: older versions of Starlette parse it with the header Host
        if path.startswith(STATIC):
            return None
        form = await _form(request) if posting else {}
        if form is None:
            return _refused(413, f"the form must have at most {_FORM_BYTES} bytes")
        if path == LOGIN:
            return self._log_in(form) if posting else None
        try:
            viewer = self._admit(request, cookies, browser)
        except UnavailableError as error:
            return _refused(503, str(error))
        except AccessError as error:
            if posting or "text/html" not in request.headers.get("accept", ""):
                return _refused(401, f"{error}; `sej hub token --view NAME` makes a token")
            return RedirectResponse(LOGIN, 303)
        request.scope["viewer"], request.scope["form"] = viewer, form
        return self._may_post(form, viewer) if posting else None

    def _may_post(self, form: dict[str, str], viewer: Viewer) -> Response | None:
        if not hmac.compare_digest(form.get("secret", "").encode(), viewer.secret.encode()):
            return _refused(403, "the form is from an earlier run of the server; reload the page and try again")
        if not self._allow_changes:
            return _refused(403, "this server is read-only; start it with --allow-changes")
        if not viewer.may_change:
            return _refused(403, "this token may only look; `sej hub token --change NAME` makes one that may change")
        return None

    def _log_in(self, form: dict[str, str]) -> Response:
        token = form.get("token", "").strip()
        try:
            self._person(token)
        except UnavailableError as error:
            return _refused(503, str(error))
        except AccessError:
            return RedirectResponse(f"{LOGIN}?wrong=1", 303)
        answer = RedirectResponse("/", 303)
        answer.headers["set-cookie"] = self._cookie(_TOKEN, token)
        return answer

    def _admit(self, request: Request, cookies: dict[str, str], browser: str) -> Viewer:
        """Return who asks.

        Raises:
            AccessError: the token is missing, unknown or not for the page.
        """
        if self._tokens is None:
            client = request.client
            name = "unknown" if client is None else f"{client.host}:{client.port}"
            return Viewer(name, self._allow_changes, self._proof(browser))
        kind, _, shown = request.headers.get("authorization", "").partition(" ")
        token = shown if kind == "Bearer" else cookies.get(_TOKEN, "")
        name, role = self._person(token)
        return Viewer(name, self._allow_changes and role == "change", self._proof(browser))

    def _person(self, token: str) -> tuple[str, str]:
        """Return the name and the role of a token.

        Raises:
            AccessError: it is unknown, has expired, or is not for the page.
        """
        if self._tokens is None:
            return "", "view"
        if not token:
            raise AccessError("this page needs a token")
        grant = self._tokens.grant(token, time.time())
        if grant.role not in ("view", "change"):
            raise AccessError("this token is not for the page")
        return grant.clients[0], grant.role

    def _own_origin(self, request: Request) -> bool:
        try:
            origin = urlsplit(request.headers.get("origin", "")).netloc
        except ValueError:  # not an address
            return False
        return bool(origin) and origin == request.headers.get("host")

    def _proof(self, browser: str) -> str:
        return hmac.new(self._secret, browser.encode(), hashlib.sha256).hexdigest()

    def _cookie(self, name: str, value: str) -> str:
        return f"{name}={value}; Path=/; HttpOnly; SameSite=Strict" + ("; Secure" if self._secure else "")


async def _form(request: Request) -> dict[str, str] | None:
    """Return the fields of a form, or None if it is too large."""
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > _FORM_BYTES:
            return None
    return dict(parse_qsl(data.decode("utf-8", "replace"), keep_blank_values=True))


def _refused(code: int, why: str) -> Response:
    return PlainTextResponse(f"{why}\n", code)


PAGES: Final[Mapping[str, PageFunction]] = {
    "": pages.overview,
    "journal": pages.journal,
    "journal/messages": pages.messages,
    "journal/message": pages.message,
    "journal/damage": pages.damage,
    "queue": pages.queue,
    "queue/dead-letter": dead_letter,
    "text-queue": pages.text_queue,
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
        self._templates = pages.templates()
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
        query = "&".join(f"{name}={pages.address(value)}" for name, value in _query(request).items())
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
        _, found = pages.message_at(self._context, _query(request))
        headers = {"content-disposition": f'attachment; filename="message-{found.offset}.bin"'}
        return Response(found.value, media_type="application/octet-stream", headers=headers)


def _query(request: Request) -> dict[str, str]:
    """Return the query of an address; bytes that are not UTF-8 are kept, as in names of files.

    The query is read as it was sent: request.url depends on the header Host in older versions of Starlette.
    """
    query: bytes = request.scope["query_string"]
    return dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True, errors="surrogateescape"))
