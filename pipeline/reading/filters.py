"""Filters of a query that limit what is read, instead of testing each message.

Spark passes an AND-list. A filter that is fully answered here is removed from the list. A filter on time stays in it:
the index finds the first message that is new enough, and the tasks return only messages within the bounds, which
include the whole last microsecond. Timestamps may be unordered, so only the beginning is skipped.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from pipeline.reading.places import Origin

__all__ = ["Chosen", "choose"]

_OF_ORIGIN = {"client": "client", "prefix": "prefix", "shard_bits": "bits", "shard": "shard"}
_NEVER_NULL = {"offset", "timestamp_ns", "type", "key", "value"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US_NS = 1000


class Chosen(NamedTuple):
    """What filters leave to read.

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


def choose(filters: Iterable[Filter]) -> tuple[Chosen, list[Filter]]:
    """Return what filters leave to read, and the filters that Spark must still apply."""
    chosen, rest = Chosen(), []
    for given in filters:
        narrowed, done = _apply(given, chosen)
        chosen = narrowed
        if not done:
            rest.append(given)
    return chosen, rest


def _apply(given: Filter, chosen: Chosen) -> tuple[Chosen, bool]:
    attribute: tuple[str, ...] = getattr(given, "attribute", ())
    if len(attribute) != 1:
        return chosen, False
    column = attribute[0]
    if isinstance(given, IsNotNull) and column in _NEVER_NULL:
        return chosen, True
    if column in _OF_ORIGIN:
        return _by_origin(given, _OF_ORIGIN[column], chosen)
    bounds = _bounds(given)
    if bounds is None:
        return chosen, False
    low, high = bounds
    if column == "offset":
        return _offsets(chosen, low, high), True
    if column == "timestamp":
        since, until = None if low is None else _ns(low), None if high is None else _ns(high) + _US_NS - 1
        return _times(chosen, since, until), False
    if column == "timestamp_ns":
        return _times(chosen, low, high), False
    return chosen, False


def _by_origin(given: Filter, name: str, chosen: Chosen) -> tuple[Chosen, bool]:
    if isinstance(given, EqualTo | EqualNullSafe):
        return chosen._replace(origins=(*chosen.origins, (name, (given.value,)))), True
    if isinstance(given, In):
        values = tuple(value for value in given.value if value is not None)
        return chosen._replace(origins=(*chosen.origins, (name, values))), True
    if isinstance(given, IsNull):
        return chosen._replace(origins=(*chosen.origins, (name, (None,)))), True
    return chosen, False


def _bounds(given: Filter) -> tuple[Any, Any] | None:
    """Return the lowest and the highest accepted value; for integers, > n becomes >= n + 1."""
    if isinstance(given, EqualTo | EqualNullSafe):
        return (given.value, given.value) if given.value is not None else None
    if isinstance(given, GreaterThanOrEqual):
        return given.value, None
    if isinstance(given, GreaterThan):
        return (given.value + 1 if isinstance(given.value, int) else given.value), None
    if isinstance(given, LessThanOrEqual):
        return None, given.value
    if isinstance(given, LessThan):
        return None, (given.value - 1 if isinstance(given.value, int) else given.value)
    return None


def _offsets(chosen: Chosen, low: int | None, high: int | None) -> Chosen:
    if low is not None:
        chosen = chosen._replace(low=max(chosen.low, low))
    if high is not None:
        chosen = chosen._replace(high=high + 1 if chosen.high is None else min(chosen.high, high + 1))
    return chosen


def _times(chosen: Chosen, since: int | None, until: int | None) -> Chosen:
    if since is not None:
        chosen = chosen._replace(since=since if chosen.since is None else max(chosen.since, since))
    if until is not None:
        chosen = chosen._replace(until=until if chosen.until is None else min(chosen.until, until))
    return chosen


def _ns(moment: datetime) -> int:
    """Return nanoseconds since the epoch. Spark cuts a timestamp to microseconds, so the whole microsecond counts."""
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * _US_NS
