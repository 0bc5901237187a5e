"""A table as a Polars LazyFrame.

Polars passes the columns that a query uses, and its condition. What this module understands of the condition limits
what is read. Polars documents no access to its expressions, so they are read from their JSON form, and everything
unknown is passed over. The whole condition is applied to each batch in any case.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from pipeline.reading.discovery import Condition
from pipeline.tables.where import hint_of

_TESTS: Final = {"Eq": "=", "Gt": ">", "GtEq": ">=", "Lt": "<", "LtEq": "<="}
_MIRRORED: Final = {"=": "=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}


def frame_of(rows: pa.RecordBatch | pa.Table) -> pl.DataFrame:
    """Return rows as a DataFrame, without copying a value."""
    frame = pl.from_arrow(rows, rechunk=False)
    assert isinstance(frame, pl.DataFrame)
    return frame


def scan(table: Any) -> pl.LazyFrame:
    """Return a LazyFrame over the rows of a :class:`~pipeline.Table`."""
    schema = table.schema

    def source(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        names = schema.names if with_columns is None else with_columns
        tested = [] if predicate is None else [name for name in predicate.meta.root_names() if name not in names]
        hints = hints_of(predicate) if predicate is not None and n_rows is None else []

        def change(batch: pa.RecordBatch) -> pl.DataFrame:
            frame = frame_of(batch)
            return frame if predicate is None or n_rows is not None else frame.filter(predicate).select(names)

        columns = [*names, *tested] or schema.names[:1]
        left = n_rows
        with closing(table.narrowed(columns, hints, change)) as batches:
            while left is None or left > 0:
                frame = next(batches, None)
                if frame is None:
                    return
                if left is not None:
                    frame = frame.head(left)
                    left -= frame.height
                    frame = frame if predicate is None else frame.filter(predicate).select(names)
                yield frame

    return register_io_source(source, schema=frame_of(schema.empty_table()).schema, is_pure=False)


def hints_of(predicate: pl.Expr) -> list[Condition]:
    """Return the conditions of a predicate that limit what is read.

    Example:
        >>> hints_of((pl.col("offset") >= 5) & (pl.col("shard") == 1) & (pl.col("value") == b"x"))
        [Condition(column='offset', test='>=', value=5), Condition(column='shard', test='=', value=1)]
    """
    try:
        return list(_all_of(json.loads(predicate.meta.serialize(format="json"))))
    except (pl.exceptions.PolarsError, ValueError, KeyError, TypeError, AttributeError):
        return []  # an expression that this version of Polars cannot write as JSON, or writes in another way


def _all_of(node: Any) -> Iterator[Condition]:
    """Yield the conditions of an AND, as far as they are understood."""
    if not isinstance(node, dict):
        return
    binary, function = node.get("BinaryExpr"), node.get("Function")
    if binary is not None and binary["op"] in ("And", "LogicalAnd"):
        yield from _all_of(binary["left"])
        yield from _all_of(binary["right"])
    elif binary is not None and binary["op"] in _TESTS:
        left, right, test = binary["left"], binary["right"], _TESTS[binary["op"]]
        if "Column" in right:
            left, right, test = right, left, _MIRRORED[test]
        if "Column" in left and "Literal" in right:
            yield from hint_of(left["Column"], test, _value(right))
    elif function is not None:
        yield from _function(function["input"], function["function"].get("Boolean"))


def _function(given: list[Any], name: Any) -> Iterator[Condition]:
    if not given or "Column" not in given[0] or any("Literal" not in each for each in given[1:]):
        return
    column = given[0]["Column"]
    if name in ("IsNull", "IsNotNull"):
        yield from hint_of(column, "is null" if name == "IsNull" else "is not null", None)
    elif isinstance(name, dict) and "IsIn" in name:
        yield from hint_of(column, "in", list(_value(given[1])))
    elif isinstance(name, dict) and "IsBetween" in name:  # closed or not: a bound too many is tested by Polars
        yield from hint_of(column, ">=", _value(given[1]))
        yield from hint_of(column, "<=", _value(given[2]))


def _value(literal: dict[str, Any]) -> Any:
    return pl.select(pl.Expr.deserialize(io.StringIO(json.dumps(literal)), format="json")).item()
