"""Spark's filters as conditions.

Spark passes an AND-list. A filter that is fully answered is removed from the list.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

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

from pipeline.reading.conditions import Chosen, Condition, narrow

_TESTS: Final[dict[type[Filter], Any]] = {
    EqualTo: "=",
    EqualNullSafe: "<=>",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    In: "in",
    IsNull: "is null",
    IsNotNull: "is not null",
}


def choose(filters: Iterable[Filter]) -> tuple[Chosen, list[Filter]]:
    """Return what filters leave to read, and the filters that Spark must still apply."""
    chosen, rest = Chosen(), []
    for given in filters:
        condition, done = _condition(given), False
        if condition is not None:
            chosen, done = narrow(chosen, condition)
        if not done:
            rest.append(given)
    return chosen, rest


def _condition(given: Filter) -> Condition | None:
    attribute: tuple[str, ...] = getattr(given, "attribute", ())
    test = _TESTS.get(type(given))
    if len(attribute) != 1 or test is None:
        return None
    return Condition(attribute[0], test, getattr(given, "value", None))
