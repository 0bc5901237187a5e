"""The arguments ``start``, ``end`` and ``where`` of a table, parsed into conditions.

``where`` is a text in the manner of SQL, or a list of triples. It is an AND-list, because each condition can then limit
what is read. Anything else belongs into the program that reads the table.
"""

from __future__ import annotations

import operator
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock
from decimal import Decimal
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa

from pipeline.columns import SEJ
from pipeline.options import EPOCH, OptionError, ns_of
from pipeline.reading.discovery import EVERYTHING, Chosen, Condition, narrow
from sej.checks import OFFSET
from sej.cli.shared.text import Moment, parse_moment, parse_place

Where = str | Iterable[tuple[str, str, Any]]
"""The type of the argument ``where``."""

_TESTS: Final = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_WORDS: Final = ("in", "is null", "is not null")
_OPERATORS: Final = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_LITERAL: Final = r"(?:'(?:[^']|'')*'|-?\d+(?:\.\d+)?(?![\w.]))"
_WHOLE: Final = ("tinyint", "smallint", "int", "integer", "bigint")
_COMPARED: Final = (*_WHOLE, "float", "double", "string", "binary", "timestamp")
_CONDITION: Final = re.compile(
    rf"""\s*(?P<column>[a-z_]\w*)\s*(?:
        (?P<test><=|>=|<>|!=|==|[=<>])\s*(?P<value>{_LITERAL})
        |IN\s*\(\s*(?P<list>{_LITERAL}(?:\s*,\s*{_LITERAL})*)\s*\)
        |BETWEEN\s*(?P<low>{_LITERAL})\s*AND\s*(?P<high>{_LITERAL})
        |IS\s+(?P<negated>NOT\s+)?NULL
    )\s*(?P<more>$|AND\b)""",
    re.IGNORECASE | re.VERBOSE,
)
_BOUNDS: Final = ("=", "<", "<=", ">", ">=")
_US_NS: Final = 1000


class Selection(NamedTuple):
    """Which rows a read returns.

    Attributes:
        bounds: of the arguments start and end.
        where: conditions that each row fulfils.
        hints: conditions that the caller tests itself; rows that do not fulfil them need not be returned.
    """

    bounds: Sequence[Condition] = ()
    where: Sequence[Condition] = ()
    hints: Sequence[Condition] = ()

    @property
    def start(self) -> int | None:
        """The offset that was passed as start, or None."""
        return next((each.value for each in self.bounds if each[:2] == ("offset", ">=")), None)

    def chosen(self) -> tuple[Chosen, list[Condition]]:
        """Return what is left to read, and the conditions that need a test of each row."""
        chosen, rest = EVERYTHING, []
        for condition in (*self.bounds, *self.hints):
            chosen, _ = narrow(chosen, condition)
        for condition in self.where:
            chosen, done = narrow(chosen, condition)
            exact = condition.column == "timestamp_ns" and condition.test in _BOUNDS
            if not done and not exact:  # readers return only messages within bounds of nanoseconds
                rest.append(condition)
        return chosen, rest


def bounds_of(start: object, end: object) -> list[Condition]:
    """Return the bounds ``start`` and ``end`` as conditions on the offset or on the time.

    Raises:
        TypeError: one of them is not an offset, a time or a text.
        ValueError: one of them is out of range, or a text that is neither an offset nor a time.
    """
    found = []
    for name, given, test in (("start", start, ">="), ("end", end, "<")):
        if given is not None:
            place = _place(name, given)
            column, value = ("timestamp_ns", place.timestamp) if isinstance(place, Moment) else ("offset", place)
            found.append(Condition(column, cast(Any, test), value))
    return found


def _place(name: str, given: object) -> int | Moment:
    if isinstance(given, Moment):  # of the command line
        return given
    if isinstance(given, str):
        try:
            return parse_place(given, time.time_ns())
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    if isinstance(given, date):  # a datetime is a date
        return Moment(_ns(given))
    if isinstance(given, int) and not isinstance(given, bool):
        OFFSET(name, given)
        return given
    raise TypeError(f"{name} must be an offset, a datetime or a text such as '2026-01-31 12:00', got {given!r}")


def _ns(given: date) -> int:
    """Return nanoseconds since the epoch; a time without a zone is UTC."""
    moment = given if isinstance(given, datetime) else datetime.combine(given, clock())
    beyond = getattr(given, "nanosecond", 0)  # a timestamp of pandas has them
    return ns_of(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)) + int(beyond)


def conditions_of(where: Where | None, columns: Mapping[str, str]) -> list[Condition]:
    """Return the conditions of the argument ``where``.

    Raises:
        OptionError: it cannot be parsed, names a column that does not exist, or compares one with a wrong value.
        TypeError: it is neither a text nor an iterable of triples.
    """
    if where is None:
        return []
    if isinstance(where, str):
        return [condition_of(*triple, columns) for triple in _parsed(where)]
    if not isinstance(where, Iterable):
        raise TypeError(f"where must be a text or a list of (column, test, value), got {where!r}")
    found = []
    triple: Any
    for triple in where:
        if not isinstance(triple, tuple | list) or len(triple) != 3:
            raise TypeError(f"where must have items like ('offset', '>=', 5), got {triple!r}")
        column, test, value = triple
        name = _TESTS.get(str(test)) or " ".join(str(test).lower().split())
        if name not in (*_OPERATORS, *_WORDS):
            raise OptionError(f"where has the test {test!r}; expected one of {', '.join((*_TESTS, *_WORDS))}")
        found.append(condition_of(column, name, value, columns))
    return found


def condition_of(column: str, test: str, value: Any, columns: Mapping[str, str]) -> Condition:
    """Return a condition, with its value in the column's type."""
    kind = columns.get(column)
    if kind is None:
        raise OptionError(f"where names the column {column!r}; expected one of {', '.join(columns)}")
    if test in ("is null", "is not null"):
        return Condition(column, cast(Any, test))
    if test == "in" and kind.startswith("decimal"):
        raise OptionError(f"where cannot test column {column!r}, which is {kind}, with IN; use SQL or Polars")
    if kind not in _COMPARED and not kind.startswith("decimal"):
        raise OptionError(f"where cannot compare column {column!r}, which is {kind}; use SQL or Polars")
    if test != "in":
        return Condition(column, cast(Any, test), _value(column, kind, value))
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise OptionError(f"where needs a list after IN, got {value!r}")
    return Condition(column, "in", [_value(column, kind, each) for each in value])


def hint_of(column: str, test: str, value: Any) -> Iterator[Condition]:
    """Yield a condition of a query, in whatever language, if it may limit what is read."""
    if SEJ.get(column, "binary") != "binary":
        with suppress(OptionError):
            yield condition_of(column, test, value, SEJ)


def _value(column: str, kind: str, given: Any) -> Any:
    if column == "timestamp_ns" and isinstance(given, str | date):
        return _time(column, given)
    if kind == "timestamp" and isinstance(given, str | date):
        ns = _time(column, given)
        if ns % _US_NS:
            raise OptionError(f"column {column!r} has microseconds, got {given!r}; compare timestamp_ns with it")
        return EPOCH + timedelta(microseconds=ns // _US_NS)
    if kind == "binary" and isinstance(given, str):
        return given.encode()
    if kind.startswith(("decimal", "float", "double")) and isinstance(given, int | float | Decimal):
        return float(given) if kind in ("float", "double") else Decimal(str(given))
    if isinstance(given, Decimal) and given == int(given):
        given = int(given)
    expected: dict[str, tuple[type, str]] = {
        "string": (str, "a text"),
        "binary": (bytes, "bytes or a text"),
        "timestamp": (datetime, "a time such as '2026-01-31 12:00'"),
    }
    type_, words = expected.get(kind, (int, "a whole number"))
    if not isinstance(given, type_) or isinstance(given, bool):
        raise OptionError(f"where compares column {column!r} with {given!r}; expected {words}")
    if not _fits(given):
        raise OptionError(f"where compares column {column!r} with {given}; expected a number of 64 bits")
    return given


def _time(column: str, given: str | date) -> int:
    if not isinstance(given, str):
        return _ns(given)
    try:
        return parse_moment(given, time.time_ns()).timestamp
    except ValueError as error:
        raise OptionError(f"where compares column {column!r}: {error}") from None


def _parsed(text: str) -> Iterator[tuple[str, str, Any]]:
    at, more = 0, True
    while more:
        match = _CONDITION.match(text, at)
        if match is None:
            raise OptionError(
                f"where={text!r}: expected a condition, got {text[at:].strip()[:40]!r}; conditions are joined by AND,"
                ' as in "shard = 3 AND offset >= 1000", with =, !=, <, <=, >, >=, IN (...), BETWEEN ... AND ..., IS'
                " NULL or IS NOT NULL, a number, or a text in single quotes; for others use SQL or Polars"
            )
        column, at, more = match["column"], match.end(), match["more"] != ""
        if match["list"] is not None:
            yield column, "in", [_literal(each[0]) for each in re.finditer(_LITERAL, match["list"])]
        elif match["low"] is not None:
            yield column, ">=", _literal(match["low"])
            yield column, "<=", _literal(match["high"])
        elif match["test"] is not None:
            yield column, _TESTS[match["test"]], _literal(match["value"])
        else:
            yield column, "is null" if match["negated"] is None else "is not null", None


def _literal(text: str) -> Any:
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    return Decimal(text) if "." in text else int(text)


def _fits(value: Any) -> bool:
    """Whether a column can hold the value: a time such as the year 9999 is beyond 64 bits of nanoseconds."""
    return not isinstance(value, int) or -(2**63) <= value < 2**63


def expression_of(conditions: Sequence[Condition], schema: pa.Schema) -> Any:
    """Return an Arrow expression that is true where all conditions are; None without conditions."""
    if not conditions:
        return None
    import pyarrow.compute as pc  # a tenth of the time of a short command

    found = None
    for column, test, value in conditions:
        field, kind = pc.field(column), schema.field(column).type
        kind = pa.int64() if pa.types.is_integer(kind) else kind  # which holds the value
        if test == "is null":
            one = field.is_null()
        elif test == "is not null":
            one = field.is_valid()
        elif test == "in":
            fitting = [each for each in value if _fits(each)]
            one = field.isin(pa.array(fitting, kind))
        elif not _fits(value):  # the same for all messages, as a message always has a timestamp
            one = field.is_valid() if _OPERATORS[test](0, value) else field.is_null()
        else:
            one = _OPERATORS[test](field, pa.scalar(value, None if isinstance(value, Decimal) else kind))
        found = one if found is None else found & one
    return found
