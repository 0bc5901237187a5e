"""What a work queue takes and returns: values as bytes, headers, counts, options of a put, listed items, schedules.

**Serializers** turn values into bytes and back. One is named when the queue is opened, and never guessed. ``None``
passes bytes through. ``"json"`` and ``"msgspec"`` (MessagePack; a package to install) are safe for bytes from any
source. ``"pickle"`` executes code in the bytes, so it must be requested by name: never use it on a journal that others
may write to.

**Headers** are names with texts, kept by the backend and not in the message. The trace context is passed on in them, as
W3C Trace Context says, if the program uses OpenTelemetry: ``put`` adds what the propagators of OpenTelemetry write,
``traceparent`` in the first place, and a worker loop calls the handler under the context that it finds. This module
imports OpenTelemetry only if the program has, or if an item has headers.

**Schedules** say what is put at which times. The times of ``every`` have a fixed distance. Those of ``cron`` are the
local times of a zone, as :mod:`cronsim` finds them, which does as Debian's cron: at the start of daylight saving, a
fixed time that does not exist that day comes right after the gap. At its end, a fixed time comes once, and one with
``*`` in its hours comes in both hours.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from functools import cache
from hashlib import blake2b
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sej.checks import Seconds, backoff, instance_of, one_of, optional, require, seconds
from sej.errors import InvalidMessageError
from sej.system.clock import LONGEST_NS

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


# --- schedules

MISSED: Final = ("one", "all", "skip")
"""What is put if several times have passed: one item, one for each, one of the last minute or none."""
NAME_HEADER: Final = "schedule"
TIME_HEADER: Final = "schedule-time"
"""Headers of each item of a schedule: its name, and the time that it is for, in UTC."""
_NS: Final = 1_000_000_000
_LATE_NS: Final = 60 * _NS
"""``"skip"`` puts nothing for a time that was over for longer."""
_LEAST_NS: Final = 1_000_000
_MAX_NAME_BYTES: Final = 255
_NAMED: Final = {
    **dict.fromkeys(("@yearly", "@annually"), "0 0 1 1 *"),
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    **dict.fromkeys(("@daily", "@midnight"), "0 0 * * *"),
    "@hourly": "0 * * * *",
}
"""The cron expressions that have a name, as in crontab(5)."""


class Schedule(NamedTuple):
    """A schedule of a queue, as :attr:`sej.WorkQueue.schedules` lists it.

    Attributes:
        name: its name.
        every_s: the seconds between two items; None: it has a cron expression.
        cron: the cron expression; None: it has an interval.
        timezone: the zone of the cron expression.
        missed: ``"one"``, ``"all"`` or ``"skip"``: what is put if several times have passed at a ``get``.
        paused: whether its times pass without items.
        next_at: its next time, nanoseconds since the epoch, UTC; None: it is paused, or not known.
        value: the value of its items, as bytes or as an object of the queue's serializer.
        key: the key of its items.
        priority: their priority.
        headers: their headers. Each item also has ``schedule``, the name, and ``schedule-time``, the time in UTC.
    """

    name: str
    every_s: float | None
    cron: str | None
    timezone: str
    missed: str
    paused: bool
    next_at: int | None
    value: Any
    key: bytes = b""
    priority: int = 0
    headers: Mapping[str, str] = {}


class Plan(NamedTuple):
    """The definition of a schedule.

    Attributes:
        name: its name.
        every_ns: the time between two items; 0: it has a cron expression.
        cron: the cron expression; empty: it has an interval.
        timezone: the zone of the cron expression.
        missed: one of :data:`MISSED`.
        priority: of its items, as the three that follow.
        expire_s: as for ``put``.
        keep_s: as for ``put``.
        headers: as for ``put``.
    """

    name: str
    every_ns: int = 0
    cron: str = ""
    timezone: str = ""
    missed: str = "one"
    priority: int = 0
    expire_s: float | None = None
    keep_s: float | None = None
    headers: Mapping[str, str] = {}

    def packed(self) -> bytes:
        """Return the plan as JSON, in UTF-8."""
        known = {name: value for name, value in self._asdict().items() if value != self._field_defaults.get(name)}
        return json.dumps(known, ensure_ascii=False, separators=(",", ":")).encode()

    @property
    def timing(self) -> tuple[int, str, str]:
        """What its times follow from."""
        return self.every_ns, self.cron, self.timezone

    def after(self, at_ns: int, known_ns: int = 0) -> int:
        """Return the first time after this one.

        Args:
            at_ns: nanoseconds since the epoch.
            known_ns: a time of this plan; 0: none is known, and the first interval begins at ``at_ns``.

        Raises:
            ImportError: the package for cron expressions is not installed.
            ValueError: this machine does not know the zone, or the expression is not one.
        """
        if self.every_ns:
            return at_ns + self.every_ns - (at_ns - known_ns) % self.every_ns if known_ns else at_ns + self.every_ns
        found = _next(self.cron, datetime.fromtimestamp(at_ns // _NS, _zone(self.timezone)))
        return int(found.timestamp()) * _NS

    def turn(self, next_ns: int, now_ns: int) -> tuple[int | None, int]:
        """Return the time for which an item is put now, or None, and the next time; next_ns: a time that is over.

        Raises:
            ImportError: as :meth:`after`, and ValueError.
        """
        if not next_ns:
            return None, self.after(now_ns)
        at = next_ns
        if self.missed == "skip" and now_ns - at > _LATE_NS:
            at = self.after(now_ns - _LATE_NS, next_ns)
            if at > now_ns:
                return None, at
        return at, self.after(at if self.missed == "all" else now_ns, next_ns)

    def headers_at(self, at_ns: int) -> dict[str, str]:
        """Return the headers of the item for a time."""
        text = datetime.fromtimestamp(at_ns // _NS, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        part = f".{at_ns % _NS // 1_000_000:03}" if at_ns % _NS else ""
        return {**self.headers, NAME_HEADER: self.name, TIME_HEADER: f"{text}{part}Z"}

    def shown(self, next_ns: int, paused: bool, key: bytes, value: bytes, serializer: Serializer | None) -> Schedule:
        """Return it as users see it."""
        every_s = self.every_ns / _NS if self.every_ns else None
        return Schedule(
            self.name, every_s, self.cron or None, self.timezone, self.missed, paused,
            None if paused or not next_ns else next_ns, decoded(serializer, value, None, None), key, self.priority,
            self.headers,
        )  # fmt: skip


def read_plan(text: bytes) -> Plan:
    """Return the plan of :meth:`Plan.packed`."""
    known = json.loads(text)
    return Plan(**{name: known[name] for name in Plan._fields if name in known})


def plan_of(
    value: bytes,
    key: bytes,
    options: PutOptions,
    every: Seconds | None,
    cron: str | None,
    timezone: str | None,
    schedule: str | None,
    missed: str | None,
) -> Plan:
    """Return the plan of the arguments of ``put``.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of its range, or they do not fit together.
        ImportError: the package for cron expressions is not installed.
        InvalidMessageError: the value is too large for the log, or the headers are, with those of a schedule.
    """
    every = seconds("every", every)
    require(every=every, cron=cron, timezone=timezone, schedule=schedule)
    require(key=(key, instance_of(bytes)), missed=(missed, optional(one_of(MISSED))))
    if (every is None) == (cron is None):
        raise ValueError("a schedule must have either every or cron, which say when its items are put")
    if every is not None and timezone is not None:
        raise ValueError(f"timezone is for cron only, got {timezone!r}: an interval has none")
    for what in ("delay_s", "dedupe_keys", "timeout"):
        if given := getattr(options, what):
            raise ValueError(f"{what} must not be given with every or cron, got {given!r}")
    every_ns = 0 if every is None else int(min(every * _NS, LONGEST_NS))
    if every is not None and every_ns < _LEAST_NS:
        raise ValueError(f"every must be at least 0.001 seconds, got {every}")
    name = blake2b(key + b"\0" + value, digest_size=8).hexdigest() if schedule is None else schedule
    if not 0 < len(name.encode(errors="replace")) <= _MAX_NAME_BYTES:
        raise ValueError(f"schedule must have 1 to {_MAX_NAME_BYTES} bytes, got {name[:80]!r}")
    if len(value) > MAX_RESULT_BYTES:
        raise InvalidMessageError(
            f"the value of a schedule must have at most {MAX_RESULT_BYTES} bytes, got {len(value)}; store it elsewhere,"
            " and put its place"
        )
    plan = Plan(
        name, every_ns, cron or "", (timezone or "UTC") if cron else "", missed or "one", options.priority,
        options.expire_s, options.keep_s, dict(options.headers or {}),
    )  # fmt: skip
    check_headers("headers", plan.headers_at(1))
    plan.after(0)
    return plan


def _zone(name: str) -> Any:
    zoneinfo = import_module("zoneinfo")
    try:
        return UTC if name == "UTC" else zoneinfo.ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:  # its own error is a KeyError
        raise ValueError(
            f"timezone must be a name of the zone database, as in 'Europe/Berlin', got {name!r}; if the name is right,"
            " install the system's package tzdata, or pip install tzdata"
        ) from error


def _next(text: str, start: datetime) -> datetime:
    try:
        cronsim = import_module("cronsim")
    except ImportError as error:
        raise ImportError(
            "cron= needs a package that is not installed: pip install 'sej-journals[schedules]', or use every="
        ) from error
    try:
        found: datetime = next(cronsim.CronSim(_NAMED.get(text, text), start))
    except (cronsim.CronSimError, StopIteration) as error:  # it has no time within 50 years
        raise ValueError(
            "cron must be minute, hour, day, month and weekday, as in '0 3 * * mon-fri', or @daily,"
            f" got {text!r}: {error}"
        ) from None
    return found
