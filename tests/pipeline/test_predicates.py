"""Random conditions with AND, OR and NOT: a query over a table finds the rows that it finds in memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipeline
import sej
from pipeline.tables.query import Query
from tests.pipeline.conftest import BASE_NS
from tests.sej.support import write

US = 1000
COLUMNS: dict[str, list[Any]] = {
    "offset": [0, 3, 9, 20],
    "timestamp_ns": [BASE_NS - 1, BASE_NS + 1500, BASE_NS + 4000, sej.NO_TIMESTAMP],
    "type": [0, 2],
    "shard": [0, 1, 5],
    "shard_bits": [1],
    "client": ["berlin", "tokyo", "x"],
    "prefix": ["orders", "o'k"],
}
TESTS = ("<", "<=", "=", "!=", ">=", ">")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the root of a hub: some journals are shards of clients, one has no shard, and one message has no time."""
    root = tmp_path_factory.mktemp("hub")
    for client in ("berlin", "tokyo"):
        for index in range(2):
            with sej.Writer(root / f"{client}.orders.1.{index:03x}", segment_bytes=200) as writer:
                times = [BASE_NS + n * US for n in range(10)]
                writer.append_many([b"v"] * 10, type=[n % 3 for n in range(10)], timestamp=times)
    write(root / "berlin.plain.log", [b"v"] * 3, timestamp=[sej.NO_TIMESTAMP, BASE_NS, BASE_NS - US])
    (root / ".hub").touch()
    return root


@pytest.fixture(scope="module")
def rows(root: Path) -> pa.Table:
    """All rows, in memory."""
    return pipeline.table(root).to_arrow()


@pytest.fixture(scope="module")
def memory(rows: pa.Table) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database with all rows in memory."""
    with duckdb.connect() as connection:
        connection.register("t", rows)
        yield connection


def comparisons(names: tuple[str, ...] = tuple(COLUMNS)) -> st.SearchStrategy[tuple[Any, ...]]:
    def of(name: str) -> st.SearchStrategy[tuple[Any, ...]]:
        values = st.sampled_from(COLUMNS[name])
        return st.one_of(
            st.tuples(st.just("test"), st.just(name), st.sampled_from(TESTS), values),
            st.tuples(st.just("mirrored"), st.just(name), st.sampled_from(TESTS), values),
            st.tuples(st.just("in"), st.just(name), st.lists(values, min_size=1, max_size=3)),
            st.tuples(st.just("between"), st.just(name), values, values),
            st.tuples(st.just("null"), st.just(name), st.booleans()),
        )

    return st.sampled_from(names).flatmap(of)


conditions = st.recursive(
    comparisons(),
    lambda inner: st.one_of(st.tuples(st.sampled_from(["and", "or"]), inner, inner), st.tuples(st.just("not"), inner)),
    max_leaves=6,
)


def expression(condition: tuple[Any, ...]) -> pl.Expr:
    """Return a condition of Polars."""
    match condition:
        case ("and", left, right):
            return expression(left) & expression(right)
        case ("or", left, right):
            return expression(left) | expression(right)
        case ("not", inner):
            return ~expression(inner)
        case ("in", name, values):
            return pl.col(name).is_in(values)
        case ("between", name, low, high):
            return pl.col(name).is_between(pl.lit(low), pl.lit(high))
        case ("null", name, wanted):
            return pl.col(name).is_null() if wanted else pl.col(name).is_not_null()
        case (kind, name, test, value):
            left, right = (pl.col(name), pl.lit(value)) if kind == "test" else (pl.lit(value), pl.col(name))
            found: pl.Expr = {
                "<": left.lt, "<=": left.le, "=": left.eq, "!=": left.ne, ">=": left.ge, ">": left.gt
            }[test](right)  # fmt: skip
            return found
    raise AssertionError(condition)


def sql(condition: tuple[Any, ...]) -> str:
    """Return a condition of SQL."""
    match condition:
        case ("and" | "or" as word, left, right):
            return f"({sql(left)} {word.upper()} {sql(right)})"
        case ("not", inner):
            return f"(NOT {sql(inner)})"
        case ("in", name, values):
            return f'"{name}" IN ({", ".join(map(literal, values))})'
        case ("between", name, low, high):
            return f'"{name}" BETWEEN {literal(low)} AND {literal(high)}'
        case ("null", name, wanted):
            return f'"{name}" IS {"" if wanted else "NOT "}NULL'
        case ("test", name, test, value):
            return f'"{name}" {test} {literal(value)}'
        case ("mirrored", name, test, value):
            return f'{literal(value)} {test} "{name}"'
    raise AssertionError(condition)


def literal(value: Any) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


FEWER = settings(max_examples=settings().max_examples // 3)
"""Each example plans a query, or reads a table."""


@FEWER
@given(condition=conditions)
def test_polars_finds_the_same_rows(condition: tuple[Any, ...], root: Path, rows: pa.Table) -> None:
    predicate = expression(condition)
    found = pipeline.table(root).scan().filter(predicate).collect()
    assert found.equals(pl.DataFrame(rows).filter(predicate))


@FEWER
@given(condition=conditions)
def test_duckdb_finds_the_same_rows(condition: tuple[Any, ...], root: Path, memory: duckdb.DuckDBPyConnection) -> None:
    query = f'SELECT client, prefix, shard, "offset" FROM t WHERE {sql(condition)} ORDER BY ALL'
    with Query({"t": pipeline.table(root)}) as opened:
        found = opened.run(query).read_all().to_pylist()
    assert found == memory.sql(query).to_arrow_table().to_pylist()


def test_a_second_query_does_not_see_what_the_first_one_left_out(root: Path) -> None:
    with Query({"t": pipeline.table(root)}) as opened:
        assert opened.run("SELECT count(client) AS n FROM t WHERE shard = 1").read_all().to_pylist() == [{"n": 20}]
        found = opened.run("SELECT count(prefix) AS n, max(value) AS most FROM t").read_all().to_pylist()
        assert found == [{"n": 40, "most": "v"}]
        tables = opened.run("SELECT count(*) AS n FROM duckdb_tables()").read_all().to_pylist()
        assert tables == [{"n": 0}], "tables of the plan were left"


@FEWER
@given(condition=conditions)
def test_the_argument_where_selects_the_same_rows(condition: tuple[Any, ...], root: Path, rows: pa.Table) -> None:
    """An AND of its tests: what it cannot say is left out of the condition."""
    whole = [each for each in flat(condition) if each[0] not in ("or", "not", "mirrored")]
    wanted = pl.DataFrame(rows)
    for each in whole:
        wanted = wanted.filter(expression(each))
    where = " AND ".join(map(sql, whole)).replace('"', "") or None
    assert pipeline.table(root, where=where).to_polars().equals(wanted)


def flat(condition: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Return the conditions that an AND joins."""
    return [*flat(condition[1]), *flat(condition[2])] if condition[0] == "and" else [condition]
