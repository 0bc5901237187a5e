"""Schedules: what is put at which times. No I/O, no clock.

The times of ``every`` have a fixed distance. Those of ``cron`` are the local times of a zone, as :mod:`cronsim` finds
them, which does as Debian's cron: at the start of daylight saving, a fixed time that does not exist that day comes
right after the gap. At its end, a fixed time comes once, and one with ``*`` in its hours comes in both hours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from importlib import import_module
from typing import Any, Final, NamedTuple

from sej.checks import Seconds, instance_of, one_of, optional, require, seconds
from sej.errors import InvalidMessageError
from sej.queue.interface.values import MAX_RESULT_BYTES, PutOptions, Serializer, check_headers, decoded
from sej.system.clock import LONGEST_NS

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
