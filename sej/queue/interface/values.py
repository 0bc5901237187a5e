"""What a work queue takes and returns: values as bytes, headers, counts, options of a put, items as they are listed.

**Serializers** turn values into bytes and back. One is named when the queue is opened, and never guessed. ``None``
passes bytes through. ``"json"`` and ``"msgspec"`` (MessagePack; a package to install) are safe for bytes from any
source. ``"pickle"`` executes code in the bytes, so it must be requested by name: never use it on a journal that others
may write to.

**Headers** are names with texts, kept by the backend and not in the message. The trace context is passed on in them, as
W3C Trace Context says, if the program uses OpenTelemetry: ``put`` adds what the propagators of OpenTelemetry write,
``traceparent`` in the first place, and a worker loop calls the handler under the context that it finds. This module
imports OpenTelemetry only if the program has, or if an item has headers.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sej.checks import backoff, instance_of, one_of
from sej.errors import InvalidMessageError

SERIALIZERS: Final = ("json", "msgspec", "pickle")


class Serializer(NamedTuple):
    """A pair of functions.

    Attributes:
        name: the name that was passed.
        encode: turns a value into bytes.
        decode: turns the bytes back into the value.
    """

    name: str
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def serializer(name: str | None) -> Serializer | None:
    """Return the serializer of a name; None for None: bytes stay bytes.

    Raises:
        ValueError: an unknown name.
        ImportError: ``"msgspec"`` without the package.
    """
    if name is None:
        return None
    one_of(SERIALIZERS)("serializer", name)
    if name == "pickle":
        return Serializer(name, pickle.dumps, pickle.loads)
    if name == "msgspec":
        try:
            msgpack = import_module("msgspec.msgpack")
        except ImportError as error:
            raise ImportError(
                "serializer 'msgspec' needs a package that is not installed: pip install msgspec, or use 'json'"
            ) from error
        return Serializer(name, msgpack.encode, msgpack.decode)
    return Serializer(name, _json, json.loads)


def decoded(serializer: Serializer | None, data: bytes, path: str | None, offset: int | None) -> Any:
    """Return the value of an item: the bytes, or the object that the serializer made them of.

    Raises:
        InvalidMessageError: the serializer cannot decode it.
    """
    if serializer is None:
        return data
    try:
        return serializer.decode(data)
    except Exception as error:
        raise InvalidMessageError(
            f"{serializer.name} cannot decode this value ({error}); if another program put it, call fail() on the item",
            path=path,
            offset=offset,
        ) from error


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


# --- headers

MAX_RESULT_BYTES: Final = 16_384
"""The most bytes of a result: the log keeps it, and every worker has it in memory."""
MAX_HEADERS_BYTES: Final = 8192
"""The most bytes that the headers of an item have as JSON, in UTF-8."""
TRACED: Final = "opentelemetry.context"
"""This module is loaded if the program uses OpenTelemetry: otherwise messages have no trace context."""
_NAME: Final = instance_of(str)


def check_headers(name: str, headers: object) -> None:
    """Refuse headers that cannot be kept.

    Raises:
        TypeError: they are not a mapping of str to str.
        ValueError: a name is empty.
        InvalidMessageError: they have too many bytes, or a text that is not valid Unicode.
    """
    if not isinstance(headers, Mapping):
        instance_of(Mapping)(name, headers)
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


# --- counts, options, items

ACTIVE, PAUSED, REMOVED = range(3)
"""The states of a schedule."""
STATES: Final = ("waiting", "ready", "delayed", "leased", "dead")
"""The states that :meth:`sej.WorkQueue.items` takes; waiting: ready or delayed."""


class Backoff(NamedTuple):
    """How long an item waits after a failed attempt.

    Attributes:
        first_s: the wait after the first attempt; doubled after each further one.
        longest_s: the longest wait.
    """

    first_s: float = 1.0
    longest_s: float = 600.0

    def after(self, attempts: int) -> float:
        """Return the wait in seconds, with jitter, so that items that failed together do not return together."""
        return backoff(attempts, self.first_s, self.longest_s)


class Stats(dict[str, int]):
    """The number of a queue's items, by state: a dict, so that JSON has the names, whose keys are attributes too.

    Attributes:
        ready: items that can be taken now.
        delayed: items that wait for their time.
        leased: items that workers hold.
        done: items that were done, as far as the queue remembers.
        dead: items that were given up and not put back, without those whose letters retention removed.
        lost: items that retention removed from the journal before they were delivered, because its
            caller ignored this queue.
        paused: whether ``pause`` was called: no item is delivered until ``resume``. It is a key only if it is True.
    """

    ready: int
    delayed: int
    leased: int
    done: int
    dead: int
    lost: int

    def __init__(
        self, ready: int, delayed: int, leased: int, done: int, dead: int, lost: int = 0, *, paused: bool = False
    ) -> None:
        """Create the counts."""
        super().__init__(ready=ready, delayed=delayed, leased=leased, done=done, dead=dead, lost=lost)
        if paused:
            self["paused"] = True

    @property
    def paused(self) -> bool:
        """Whether no item is delivered until ``resume``."""
        return bool(self.get("paused"))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> int:
            """Return a count."""
            try:
                return self[name]
            except KeyError:
                raise AttributeError(f"{name!r} is not a count of a queue; it has {', '.join(self)}") from None

    def __repr__(self) -> str:
        """Show the counts by name."""
        return f"Stats({', '.join(f'{name}={count}' for name, count in self.items())})"


class Limit(NamedTuple):
    """A limit for each kind of items, as a tenant or a type of job; kinds that are below theirs come in turn.

    Attributes:
        by: what the kind of an item is: ``"header:tenant"``, the text of that header; ``"key"``, its key; ``"key:/"``,
            its key up to the first ``/``. An item without that header or key has no kind, and no limit.
        concurrency: how many items of a kind may be leased, by all processes together; None: no limit.
        rate: how many items of a kind may be delivered in a time, as in ``"10/m"``; None: no limit.

    Example:
        >>> Limit("header:tenant", concurrency=2, rate="100/m")
        Limit(by='header:tenant', concurrency=2, rate='100/m')
    """

    by: str
    concurrency: int | None = None
    rate: str | None = None


class PutOptions(NamedTuple):
    """The options of :meth:`sej.WorkQueue.put_many`, for a backend.

    Attributes:
        delay_s: seconds until the items may be taken.
        priority: their priority.
        expire_s: seconds after which they expire; None: never.
        dedupe_keys: one for each value, or None.
        timeout: seconds to wait for room; None: without a limit.
        headers: of each item; None: none.
        keep_s: seconds for which the result of each item is kept; None: it is not kept.
    """

    delay_s: float = 0.0
    priority: int = 0
    expire_s: float | None = None
    dedupe_keys: Sequence[bytes] | None = None
    timeout: float | None = None
    headers: Mapping[str, str] | None = None
    keep_s: float | None = None


PLAIN: Final = PutOptions()
"""No options, as for most puts."""


class QueuedItem(NamedTuple):
    """An item as :meth:`sej.WorkQueue.peek` and :meth:`sej.WorkQueue.items` list it; nothing holds it.

    Attributes:
        offset: its number.
        state: ``"ready"``, ``"delayed"``, ``"leased"`` or ``"dead"``.
        attempts: how often it was delivered.
        ready_at: when it may be taken, or when its lease ends: nanoseconds since the epoch, UTC; None: now or never.
        holder: the process that holds it; None: no process does.
        priority: its priority.
        reason: why it was given up, for a dead letter.
        message: the backend's own object, a :class:`sej.Message` on a journal.
        serializer: decodes the value; None: values are bytes.
        headers: the headers that were put.
        traceback: of the exception for which it was given up, for a dead letter.
    """

    offset: int
    state: str
    attempts: int
    ready_at: int | None
    holder: str | None
    priority: int
    reason: str
    message: Any
    serializer: Serializer | None = None
    headers: Mapping[str, str] = {}
    traceback: str = ""

    @property
    def key(self) -> bytes:
        """The key that was put."""
        key: bytes = self.message.key
        return key

    @property
    def value(self) -> Any:
        """The value that was put, as bytes or as an object of the queue's serializer.

        Raises:
            InvalidMessageError: the serializer cannot decode it.
        """
        return decoded(self.serializer, self.message.value, None, self.offset)
