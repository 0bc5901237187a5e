"""Headers of items: names with texts, kept by the backend and not in the message. No I/O.

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

MAX_HEADERS_BYTES: Final = 8192
"""The most bytes that the headers of an item have as JSON, in UTF-8."""
TRACED: Final = "opentelemetry.context"
"""This module is loaded if the program uses OpenTelemetry: otherwise there is no trace context."""
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
        size = len(encoded(headers))
    except UnicodeEncodeError as error:
        raise InvalidMessageError(f"{name} must be valid Unicode text: {error}") from error
    if size > MAX_HEADERS_BYTES:
        raise InvalidMessageError(
            f"{name} must have at most {MAX_HEADERS_BYTES} bytes as JSON, got {size}; put more data into the value"
        )


def encoded(headers: Mapping[str, str]) -> bytes:
    """Return headers as JSON, in UTF-8."""
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
        if len(encoded(found)) <= MAX_HEADERS_BYTES:
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
