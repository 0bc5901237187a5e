"""Conditions of a query that limit what is read, instead of testing each message.

The conditions are an AND-list. One that is fully answered here needs no further test. A condition on time does: the
index finds the first message that is new enough, and readers return only messages within the bounds, which include the
whole last microsecond. Timestamps may be unordered, so only the beginning is skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

from pipeline.options import ns_of
from pipeline.reading.discovery import Origin

OF_ORIGIN: Final = {"source": "source", "client": "client", "prefix": "prefix", "shard_bits": "bits", "shard": "shard"}
"""The columns that are attributes of an origin."""
_NEVER_NULL: Final = {"offset", "timestamp_ns", "type", "key", "value"}
_US_NS: Final = 1000
_MIN_NS, _MAX_NS = -(2**63), 2**63 - 1
"""The oldest and the newest timestamp of a message."""


class Condition(NamedTuple):
    """A comparison of a column with a value.

    Attributes:
        column: its name.
        test: how it is compared; ``"<=>"`` is equality that is true for two nulls.
        value: the value; a list with ``"in"``.
    """

    column: str
    test: Literal["=", "!=", "<=>", "<", "<=", ">", ">=", "in", "is null", "is not null"]
    value: Any = None


class Chosen(NamedTuple):
    """What conditions leave to read.

    Attributes:
        low: no offset below.
        high: no offset from here on; None: no bound.
        since: no message older than this, ns; None: no bound.
        until: no message newer than this, ns; None: no bound.
        origins: pairs of an origin's attribute and its accepted values.
    """

    low: int = 0
    high: int | None = None
    since: int | None = None
    until: int | None = None
    origins: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def takes(self, origin: Origin) -> bool:
        """Return whether an origin must be read."""
        return all(getattr(origin, name) in values for name, values in self.origins)


def narrow(chosen: Chosen, given: Condition) -> tuple[Chosen, bool]:
    """Return what one more condition leaves to read, and whether each message then fulfils it."""
    column = given.column
    if given.test == "is not null" and column in _NEVER_NULL:
        return chosen, True
    if column in OF_ORIGIN:
        return _by_origin(given, OF_ORIGIN[column], chosen)
    bounds = _bounds(given)
    if bounds is None:
        return chosen, False
    low, high = bounds
    if column == "offset":
        return _offsets(chosen, low, high), True
    if column == "timestamp":
        # Columns cut a timestamp to microseconds, so the whole microsecond counts.
        since, until = None if low is None else ns_of(low), None if high is None else ns_of(high) + _US_NS - 1
        return _times(chosen, since, until), False
    if column == "timestamp_ns":
        return _times(chosen, low, high), False
    return chosen, False


def _by_origin(given: Condition, name: str, chosen: Chosen) -> tuple[Chosen, bool]:
    if given.test == "is null" or given.test == "<=>" or (given.test == "=" and given.value is not None):
        values: tuple[Any, ...] = (given.value,)
    elif given.test == "in":
        values = tuple(value for value in given.value if value is not None)
    else:
        return chosen, False
    return chosen._replace(origins=(*chosen.origins, (name, values))), True


def _bounds(given: Condition) -> tuple[Any, Any] | None:
    """Return the lowest and the highest accepted value; for integers, > n becomes >= n + 1."""
    test, value = given.test, given.value
    if value is None:
        return None
    if test in ("=", "<=>"):
        return value, value
    if test == ">=":
        return value, None
    if test == ">":
        return (value + 1 if isinstance(value, int) else value), None
    if test == "<=":
        return None, value
    if test == "<":
        return None, (value - 1 if isinstance(value, int) else value)
    return None


def _offsets(chosen: Chosen, low: int | None, high: int | None) -> Chosen:
    stop = None if high is None else high + 1
    return chosen._replace(low=max(chosen.low, low or 0), high=_both(min, chosen.high, stop))


def _times(chosen: Chosen, since: int | None, until: int | None) -> Chosen:
    """Add bounds in ns. A time beyond the limits of timestamps bounds nothing, or excludes all messages."""
    if (since is not None and since > _MAX_NS) or (until is not None and until < _MIN_NS):
        return _offsets(chosen, None, -1)
    since = None if since is None or since < _MIN_NS else since
    until = None if until is None or until > _MAX_NS else until
    return chosen._replace(since=_both(max, chosen.since, since), until=_both(min, chosen.until, until))


def _both(tighter: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    """Return the bound of two bounds; None: no bound."""
    return other if one is None else one if other is None else tighter(one, other)
