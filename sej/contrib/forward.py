"""A forwarder: it sends the journal of :mod:`sej.contrib.opentelemetry` to a collector, by OTLP over HTTP.

Each message is sent at least once, in order. Requests of one signal are sent together: to join requests, protobuf joins
their bytes. The offset is committed after the collector has answered.

=========================  =======================================================================
answer                     what happens
=========================  =======================================================================
2xx                        the offset is committed
none, 408, 429, 5xx        the same request is sent again later, however long that takes
401, 403, 404              SejError: a setting is wrong, and the messages stay
any other, of several      each message is sent alone
any other, of one          the message becomes a dead letter, in the journal ``dead/READER``
=========================  =======================================================================
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from itertools import groupby
from typing import Final
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

import sej
from sej.checks import PATH, POSITIVE, TEXT, require
from sej.durations import Seconds, backoff, seconds
from sej.errors import SejError
from sej.system.logs import WARNING, record
from sej.system.paths import absolute_path

__all__ = ["Forwarder"]

_SIGNALS: Final = (b"traces", b"metrics", b"logs")
_SETTINGS: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)
_LATER: Final = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
_BACKOFF_S: Final = (0.5, 60.0)
_SLICE_S: Final = 0.5
_READ: Final = 256


class _RefusedError(Exception):
    """The collector will never take this request."""


class Forwarder:
    """Sends messages to a collector.

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
            url: of the collector, as in ``http://localhost:4318``; ``/v1/traces`` and so on are added.
            reader: the name under which the offset is kept; retention waits for it.
            batch_bytes: about the most bytes of one request.
            headers: of each request; default: those of ``OTEL_EXPORTER_OTLP_HEADERS``.
            timeout: seconds to wait for an answer.

        Raises:
            ValueError: the URL is not one of http or https.
        """
        timeout_s = seconds("timeout", timeout)
        require(path=(path, PATH), url=(url, TEXT), reader=(reader, TEXT), batch_bytes=(batch_bytes, POSITIVE))
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise ValueError(f"url must be as in http://localhost:4318, got {url!r}; OTLP over gRPC is not supported")
        self.path = absolute_path(path)
        self.dead = 0
        self._url, self._reader, self._batch_bytes, self._timeout_s = url.rstrip("/"), reader, batch_bytes, timeout_s
        self._headers = {
            "Content-Type": "application/x-protobuf",
            **(_from_environment() if headers is None else headers),
        }

    def run_once(self) -> int:
        """Send the messages that exist now, and return how many; it waits while the collector is away."""
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
        """Yield consecutive messages of one signal, of about the most bytes of a request."""
        for _, group in groupby(messages, key=lambda message: message.key):
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
        """Send messages of one signal, or make them dead letters; return False if it was stopped before."""
        try:
            if batch[0].key not in _SIGNALS:
                raise _RefusedError(f"the key must be traces, metrics or logs, got {batch[0].key[:40]!r}")
            return self._send(batch[0].key.decode(), b"".join(message.value for message in batch), stop)
        except _RefusedError as error:
            if len(batch) > 1:
                return all(self._forward([message], stop) for message in batch)
            record(__name__, WARNING, "%s: message %d was refused: %s", self.path, batch[0].offset, error)
            with sej.SharedWriter(os.path.join(self.path, "dead", self._reader)) as letters:
                letters.append(batch[0].value, batch[0].key, timestamp=batch[0].timestamp)
            self.dead += 1
            return True

    def _send(self, signal: str, data: bytes, stop: threading.Event) -> bool:
        request = Request(f"{self._url}/v1/{signal}", data, self._headers)
        failures = 0
        while not stop.is_set():
            try:
                with urlopen(request, timeout=self._timeout_s) as answer:
                    answer.read()
                return True
            except HTTPError as error:
                with error:
                    text = f"{error.code} {error.reason}"
                if error.code in _SETTINGS:
                    advice = "check the URL, and OTEL_EXPORTER_OTLP_HEADERS"
                    raise SejError(f"{request.full_url} answers {text}; {advice}", path=self.path) from error
                if error.code not in _LATER and error.code < HTTPStatus.INTERNAL_SERVER_ERROR:
                    raise _RefusedError(text) from error
            except OSError as error:
                text = str(error)
            failures += 1
            delay_s = backoff(failures, *_BACKOFF_S)
            record(__name__, WARNING, "%s: %s; trying again in %.1f s", request.full_url, text, delay_s)
            stop.wait(delay_s)
        return False


def _from_environment() -> dict[str, str]:
    """Return the headers that OpenTelemetry's variable has, as in ``api-key=secret,tenant=shop``."""
    pairs = (pair.partition("=") for pair in os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(",") if pair)
    return {unquote(name.strip()): unquote(value.strip()) for name, _, value in pairs}
