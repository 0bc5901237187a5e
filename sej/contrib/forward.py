"""A forwarder: it sends a journal to another program over HTTP, each message at least once, in order.

====================  =============================================  ==================================================
URL                   receiver                                       a request
====================  =============================================  ==================================================
``http://``           an OpenTelemetry collector, by OTLP            requests of one signal: protobuf joins their bytes
``loki+http://``      Loki                                           one stream, whose labels are the URL's query
``post+http://``      any program                                    one JSON object per line, as by ``sej scan --json``
====================  =============================================  ==================================================

The same with ``https``. The offset is committed after the receiver has answered:

=========================  =======================================================================
answer                     what happens
=========================  =======================================================================
2xx                        the offset is committed
none, 260, 408, 429, 5xx   the same request is sent again later, however long that takes
3xx, 401, 403, 404         SejError: a setting is wrong, and the messages stay
any other, of several      each message is sent alone
any other, of one          the message becomes a dead letter, in the journal ``dead/READER``
=========================  =======================================================================
"""

from __future__ import annotations

import json
import os
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPException
from itertools import groupby
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import sej
from sej.checks import POSITIVE, TEXT, Seconds, backoff, require, seconds
from sej.errors import SejError
from sej.message import text_or_b64
from sej.system.disk import absolute_path
from sej.system.logs import WARNING, record

__all__ = ["Forwarder"]

_SIGNALS: Final = (b"traces", b"metrics", b"logs")
_SETTINGS: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)
_BLOCKED: Final = 260
"""Loki's answer while its operator has blocked it: it has stored nothing."""
_LATER: Final = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
_LABEL: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_BACKOFF_S: Final = (0.5, 60.0)
_SLICE_S: Final = 0.5
_READ: Final = 256


class _RefusedError(Exception):
    """The receiver will never take this request."""


class _Receiver(ABC):
    """What a request has for one kind of receiver.

    Attributes:
        content_type: the type of each request.
        variable: the environment's variable with the headers.
    """

    content_type: str
    variable = "SEJ_FORWARD_HEADERS"

    def __init__(self, url: SplitResult, _: str) -> None:
        self._url = url.geturl()

    def kind(self, message: sej.Message) -> bytes:
        """Return what all messages of one request have in common."""
        return b""

    @abstractmethod
    def request(self, messages: Sequence[sej.Message]) -> tuple[str, bytes]:
        """Return the URL and the body of a request.

        Raises:
            _RefusedError: a message does not fit.
        """


class _Collector(_Receiver):
    """An OpenTelemetry collector: the key of a message is its signal."""

    content_type = "application/x-protobuf"
    variable = "OTEL_EXPORTER_OTLP_HEADERS"

    def kind(self, message: sej.Message) -> bytes:
        return message.key

    def request(self, messages: Sequence[sej.Message]) -> tuple[str, bytes]:
        key = messages[0].key
        if key not in _SIGNALS:
            raise _RefusedError(f"the key must be traces, metrics or logs, got {key[:40]!r}")
        return f"{self._url.rstrip('/')}/v1/{key.decode()}", b"".join(message.value for message in messages)


class _Loki(_Receiver):
    """Loki: each message is a line of one stream."""

    content_type = "application/json"

    def __init__(self, url: SplitResult, path: str) -> None:
        self._url = f"{url.scheme}://{url.netloc}{url.path.rstrip('/')}/loki/api/v1/push"
        self._labels = dict(parse_qsl(url.query)) or {"job": os.path.basename(path)}
        for name in self._labels:
            if not _LABEL.fullmatch(name):  # Loki would refuse every message
                raise ValueError(f"a label of Loki must have letters, digits and _ only, got {name!r}")

    def request(self, messages: Sequence[sej.Message]) -> tuple[str, bytes]:
        lines = []
        for message in messages:
            if message.timestamp < 0:
                raise _RefusedError("Loki needs a time from 1970 on")
            try:
                lines.append([str(message.timestamp), message.value.decode()])
            except UnicodeDecodeError:
                raise _RefusedError("Loki takes UTF-8 only") from None
        return self._url, json.dumps({"streams": [{"stream": self._labels, "values": lines}]}).encode()


class _Program(_Receiver):
    """Any program that takes JSON."""

    content_type = "application/x-ndjson"

    def request(self, messages: Sequence[sej.Message]) -> tuple[str, bytes]:
        return self._url, b"".join(json.dumps(_row(message)).encode() + b"\n" for message in messages)


_RECEIVERS: Final[Mapping[str, Callable[[SplitResult, str], _Receiver]]] = {
    "": _Collector,
    "loki+": _Loki,
    "post+": _Program,
}


class _NoRedirect(HTTPRedirectHandler):
    """A redirected POST would become a GET without the messages."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


class Forwarder:
    """Sends messages to a receiver.

    Attributes:
        path: the journal.
        dead: how many messages have become dead letters.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        url: str,
        *,
        reader: str = "forward",
        batch_bytes: int = 1 << 20,
        headers: Mapping[str, str] | None = None,
        timeout: Seconds = 10.0,
    ) -> None:
        """Set up a forwarder; nothing is opened.

        Args:
            path: the journal.
            url: of a collector, as in ``http://localhost:4318``; ``/v1/traces`` and so on are added. Or of Loki, as in
                ``loki+http://localhost:3100?job=shop``; the labels are ``job=`` the directory's name by default. Or
                of any program, as in ``post+https://example.com/orders``.
            reader: the name under which the offset is kept; retention waits for it.
            batch_bytes: about the most bytes of one request.
            headers: of each request; default: those of ``OTEL_EXPORTER_OTLP_HEADERS`` for a collector, else
                ``SEJ_FORWARD_HEADERS``, as in ``api-key=secret,tenant=shop``.
            timeout: seconds to wait for an answer.

        Raises:
            ValueError: the URL is not one of these.
        """
        timeout_s = seconds("timeout", timeout)
        require(path=path, url=url, reader=(reader, TEXT), batch_bytes=(batch_bytes, POSITIVE))
        kind, plus, _ = url.partition("://")[0].rpartition("+")
        parts = urlsplit(url.removeprefix(kind + plus))
        if parts.scheme not in ("http", "https") or not parts.hostname or kind + plus not in _RECEIVERS:
            raise ValueError(
                "url must be as in http://localhost:4318, loki+http://localhost:3100 or post+http://localhost:8080/path,"
                f" got {url!r}; OTLP over gRPC is not supported"
            )
        self.path = absolute_path(path)
        self.dead = 0
        self._receiver = _RECEIVERS[kind + plus](parts, self.path)
        if "@" in parts.netloc:  # urllib takes all of it for a host name, and logs would have it
            raise ValueError(f"url must have no password; set {self._receiver.variable} to authorization=Basic%20...")
        self._reader, self._batch_bytes, self._timeout_s = reader, batch_bytes, timeout_s
        self._open = build_opener(_NoRedirect).open
        self._headers = {
            "Content-Type": self._receiver.content_type,
            **(_from_environment(self._receiver.variable) if headers is None else headers),
        }

    def run_once(self) -> int:
        """Send the messages that exist now, and return how many; it waits while the receiver is away."""
        return self._run(threading.Event(), 0.0)

    def run(self, stop: threading.Event) -> int:
        """Send messages as they come, until an event is set; return how many."""
        sent = 0
        while not stop.is_set():
            sent += self._run(stop, _SLICE_S)
        return sent

    def _run(self, stop: threading.Event, timeout_s: float) -> int:
        sent = 0
        with (
            sej.Offset(self.path, self._reader) as offset,
            sej.Scanner(self.path, offset=offset.value, timeout=timeout_s) as scanner,
        ):
            while not stop.is_set() and (messages := scanner.read(_READ)):
                for batch in self._batches(messages):
                    if not self._forward(batch, stop):
                        return sent
                    offset.commit(batch[-1].offset + 1)
                    sent += len(batch)
        return sent

    def _batches(self, messages: list[sej.Message]) -> Iterator[list[sej.Message]]:
        """Yield consecutive messages of one kind, of about the most bytes of a request."""
        for _, group in groupby(messages, key=self._receiver.kind):
            batch: list[sej.Message] = []
            size = 0
            for message in group:
                if batch and size + len(message.value) > self._batch_bytes:
                    yield batch
                    batch, size = [], 0
                batch.append(message)
                size += len(message.value)
            yield batch

    def _forward(self, batch: list[sej.Message], stop: threading.Event) -> bool:
        """Send messages of one kind, or make them dead letters; return False if it was stopped before."""
        try:
            return self._send(*self._receiver.request(batch), stop)
        except _RefusedError as error:
            if len(batch) > 1:
                return all(self._forward([message], stop) for message in batch)
            record(__name__, WARNING, "%s: message %d was refused: %s", self.path, batch[0].offset, error)
            # Its offset is committed next, which survives a power cut: so must the letter.
            with sej.SharedWriter(os.path.join(self.path, "dead", self._reader), durability="disk") as letters:
                letters.append(batch[0].value, batch[0].key, type=batch[0].type, timestamp=batch[0].timestamp)
            self.dead += 1
            return True

    def _send(self, url: str, data: bytes, stop: threading.Event) -> bool:
        request = Request(url, data, self._headers)
        failures = 0
        while not stop.is_set():
            try:
                with self._open(request, timeout=self._timeout_s) as answer:
                    if answer.status != _BLOCKED:
                        return True
                text = f"{_BLOCKED} {answer.reason}"
            except HTTPError as error:
                with error:
                    text = f"{error.code} {error.reason}"
                if error.code in _SETTINGS or error.code < HTTPStatus.BAD_REQUEST:
                    advice = f"check the URL, and {self._receiver.variable}"
                    raise SejError(f"{url} answers {text}; {advice}", path=self.path) from error
                if error.code not in _LATER and error.code < HTTPStatus.INTERNAL_SERVER_ERROR:
                    raise _RefusedError(text) from error
            except (OSError, HTTPException) as error:
                text = str(error) or type(error).__name__
            failures += 1
            delay_s = backoff(failures, *_BACKOFF_S)
            record(__name__, WARNING, "%s: %s; trying again in %.1f s", url, text, delay_s)
            stop.wait(delay_s)
        return False


def _from_environment(variable: str) -> dict[str, str]:
    """Return the headers that a variable has, in OpenTelemetry's form, as in ``api-key=secret,tenant=shop``."""
    pairs = (pair.partition("=") for pair in os.environ.get(variable, "").split(",") if pair)
    return {unquote(name.strip()): unquote(value.strip()) for name, _, value in pairs}


def _row(message: sej.Message) -> dict[str, Any]:
    """Return a message as ``sej scan --json`` prints it, without the readable time."""
    stamp = None if message.timestamp == sej.NO_TIMESTAMP else message.timestamp
    row = {"offset": message.offset, "timestamp_ns": stamp, "type": message.type}
    return row | text_or_b64("key", message.key) | text_or_b64("value", message.value)
