"""Who may ask for what: the outermost layer of the page.

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
import secrets
import time
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hub.asgi import LOOPBACK, name_in
from hub.errors import AccessError, UnavailableError
from hub.tokens import Tokens

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
