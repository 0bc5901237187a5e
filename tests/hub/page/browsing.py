"""What the tests of the page share: a server, and a client that speaks HTTP and nothing more."""

from __future__ import annotations

import http.client
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import sej
from hub.page.serving import PageServer
from tests.cli.command import start
from tests.forking import Piped

TIMEOUT_S = 60


class Answer(NamedTuple):
    """An answer of the server."""

    status: int
    headers: http.client.HTTPMessage
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode()

    @property
    def words(self) -> str:
        """The text of a page without its elements."""
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", re.sub(r"</?(span|code|wbr)[^>]*>", "", self.text))).split())


class Client:
    """Asks one server; keeps cookies as a browser does."""

    def __init__(self, url: str, ca: Path | None = None) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.host = f"{parts.hostname}:{parts.port}"
        self.origin = f"{parts.scheme}://{self.host}"
        self._ca = ca
        self._where = parts.hostname, parts.port
        self.cookies: dict[str, str] = {}

    def _connection(self) -> http.client.HTTPConnection:
        if self._ca is None:
            return http.client.HTTPConnection(*self._where, timeout=TIMEOUT_S)
        context = ssl.create_default_context(cafile=str(self._ca))
        return http.client.HTTPSConnection(*self._where, timeout=TIMEOUT_S, context=context)

    def ask(self, method: str, address: str, body: str | None = None, **headers: str) -> Answer:
        """Send one request; an underscore in a header's name means a hyphen."""
        connection = self._connection()
        sent = {"Accept": "text/html"} | {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies and "Cookie" not in sent:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        try:
            connection.request(method, address, body, sent)
            answer = connection.getresponse()
            for cookie in answer.headers.get_all("set-cookie") or ():
                name, _, value = cookie.partition(";")[0].partition("=")
                self.cookies[name] = value
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def get(self, address: str, **query: str) -> Answer:
        return self.ask("GET", address + (f"?{urlencode(query)}" if query else ""))

    def post(self, address: str, fields: dict[str, str], **headers: str) -> Answer:
        return self.ask("POST", address, urlencode(fields), **({"Origin": self.origin} | headers))


@contextmanager
def serving(*paths: Path, **options: Any) -> Iterator[Client]:
    """Serve paths in a thread of this process."""
    with PageServer(paths, port=0, **options) as server:
        yield Client(server.url)


@contextmanager
def started(*words: str | Path) -> Iterator[Piped]:
    """Start the command; it is killed if the block leaves it running."""
    with start(*words) as running:
        try:
            yield running
        finally:
            running.kill()


def address_of(page: str, path: Path, **query: object) -> str:
    return f"{page}?{urlencode({'path': str(path), **query}, quote_via=quote)}"


def filled(path: Path, count: int = 10, **options: Any) -> Path:
    """Return a journal with some messages."""
    with sej.Writer(path, **options) as writer:
        writer.append_many([b"value %d" % at for at in range(count)], [b"key %d" % (at % 3) for at in range(count)])
    return path
