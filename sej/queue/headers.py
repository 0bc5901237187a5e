"""Headers of items: names with texts, kept in the queue's log and not in the message. No I/O.

In the log, the headers of an item are bytes in parts of 24, one HEADERS record for each::

    timestamp(i64) check(u32) size(u32) text(size)

The text is a JSON object. Timestamp and check name the message, as in INTENT and EXPIRE: the record is written before
the message, so the message with this offset may be another one.

The trace context is passed on in them, as W3C Trace Context says, if the program uses OpenTelemetry: ``put`` adds what
the propagators of OpenTelemetry write, ``traceparent`` in the first place, and a worker loop calls the handler under
the context that it finds. This module imports OpenTelemetry only if the program has, or if an item has headers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib import import_module
from typing import Any, Final

from sej.checks import a
from sej.errors import InvalidMessageError
from sej.queue.log_format import HEADERS_HEAD, HEADERS_PART

__all__ = ["MAX_HEADERS_BYTES", "TRACED", "check_headers", "handled_under", "packed", "read_headers", "with_trace"]

MAX_HEADERS_BYTES: Final = 8192
"""The most bytes that the headers of an item have as JSON, in UTF-8."""
TRACED: Final = "opentelemetry.context"
"""This module is loaded if the program uses OpenTelemetry: otherwise there is no trace context."""
_PART_SIZE: Final = HEADERS_PART.size
_NAME: Final = a(str)


def check_headers(name: str, headers: object) -> None:
    """Refuse headers that cannot be kept.

    Raises:
        TypeError: they are not a mapping of str to str.
        ValueError: a name is empty.
        InvalidMessageError: they have too many bytes, or a text that is not valid Unicode.
    """
    if not isinstance(headers, Mapping):
        a(Mapping)(name, headers)
    assert isinstance(headers, Mapping)
    for header, text in headers.items():
        _NAME(f"a name in {name}", header)
        if not header:
            raise ValueError(f"a name in {name} must not be empty, got ''")
        _NAME(f"{name}[{header[:80]!r}]", text)
    try:
        size = len(_encoded(headers))
    except UnicodeEncodeError as error:
        raise InvalidMessageError(f"{name} must be valid Unicode text: {error}") from error
    if size > MAX_HEADERS_BYTES:
        raise InvalidMessageError(
            f"{name} must have at most {MAX_HEADERS_BYTES} bytes as JSON, got {size}; put more data into the value"
        )


def packed(headers: Mapping[str, str], timestamp: int, check: int) -> Iterator[bytes]:
    """Yield the parts of headers for the message with this timestamp and CRC32C; the last one ends with zeros."""
    text = _encoded(headers)
    data = HEADERS_HEAD.pack(timestamp, check, len(text)) + text
    for at in range(0, len(data), _PART_SIZE):
        yield data[at : at + _PART_SIZE].ljust(_PART_SIZE, b"\0")


def read_headers(data: bytes, timestamp: int, check: int) -> dict[str, str]:
    """Return the headers that all parts hold together; none if they belong to another message, or a part is missing."""
    *link, size = HEADERS_HEAD.unpack_from(data)
    text = data[HEADERS_HEAD.size : HEADERS_HEAD.size + size]
    return json.loads(text) if link == [timestamp, check] and len(text) == size else {}


def _encoded(headers: Mapping[str, str]) -> bytes:
    return json.dumps(dict(headers), ensure_ascii=False, separators=(",", ":")).encode()


# --- the trace context


def with_trace(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Return headers with those of the current trace context, as far as there is room; the caller's own come first."""
    carrier: dict[str, str] = {}
    import_module("opentelemetry.propagate").inject(carrier)
    given = headers or {}
    if not carrier or "traceparent" in given:
        return headers
    parent = {name: text for name, text in carrier.items() if name == "traceparent"}
    for added in (carrier, parent):
        found = {**added, **given}
        if len(_encoded(found)) <= MAX_HEADERS_BYTES:
            return found
    return headers


def handled_under(headers: Mapping[str, str]) -> AbstractContextManager[None]:
    """Return a context manager: its block runs under the trace context of an item's headers."""
    if "traceparent" not in headers or _api() is None:
        return nullcontext()
    return _attached(headers)


@contextmanager
def _attached(headers: Mapping[str, str]) -> Iterator[None]:
    propagate, context = _api()
    token = context.attach(propagate.extract(headers))
    try:
        yield
    finally:
        context.detach(token)


@cache
def _api() -> Any:
    """Return two modules of OpenTelemetry's API; None if it is not installed."""
    try:
        return import_module("opentelemetry.propagate"), import_module(TRACED)
    except ImportError:
        return None
