"""Random conditions with AND, OR and NOT: a query over a table finds the rows that it finds in memory."""

import operator
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hub
import pipeline
import sej
from hub.wire import Server
from pipeline.reading.conditions import EPOCH
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


# --- times at the limits, and beyond them

TIMES = [-(2**63) + 1, -US - 1, -1, 0, 1, BASE_NS, 2**63 - US, 2**63 - 1]
DAYS = ["0001-01-01", "1677-09-21", "1970-01-01", "2262-04-11", "2262-04-12", "9999-12-31"]
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, "=": operator.eq, "!=": operator.ne, ">=": operator.ge, ">": operator.gt
}  # fmt: skip


@pytest.fixture(scope="module")
def table_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., pipeline.Table]]:
    """Return a function that makes a table of the oldest and newest times, from the disk or through a hub."""
    path = tmp_path_factory.mktemp("hub")
    with hub.Store(path) as store, Server(store, "127.0.0.1:0") as server:
        store.put("a", "log", [sej.Message(at, time, 0, b"", b"") for at, time in enumerate(TIMES)])
        yield lambda way, **more: pipeline.table(
            path if way == "disk" else None, hub=None if way == "disk" else server.address, **more
        )


@pytest.mark.parametrize("way", ["disk", "hub"])
@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("day", DAYS)
def test_a_time_that_no_message_has(table_of: Callable[..., pipeline.Table], day: str, test: str, way: str) -> None:
    """Programs write the year 9999 for "no end", but timestamps end in 2262."""
    table, bound = table_of(way), datetime.fromisoformat(f"{day}T00:00:00+00:00")
    us = (bound - EPOCH) // timedelta(microseconds=1)
    wanted = sum(COMPARE[test](time // US, us) for time in TIMES)
    assert table.scan().filter(COMPARE[test](pl.col("timestamp"), bound)).collect().height == wanted
    with Query({"t": table}) as query:
        found = query.run(f"SELECT count(*) AS n FROM t WHERE timestamp {test} '{day} 00:00:00+00'").read_all()
    assert found.to_pylist() == [{"n": wanted}]
    fulfil = [time for time in TIMES if COMPARE[test](time, us * US)]
    found = table_of(way, where=[("timestamp_ns", test, day)], columns=["timestamp_ns"]).to_arrow()
    assert found["timestamp_ns"].to_pylist() == fulfil
    if test == "=":
        found = table_of(way, where=[("timestamp_ns", "in", [day, TIMES[0]])]).to_arrow()
        assert found.num_rows == len({*fulfil, TIMES[0]})
    if test in (">=", "<"):
        bounded = {"start" if test == ">=" else "end": day}
        assert table_of(way, **bounded).count() == sum(COMPARE[test](time, us * US) for time in TIMES)


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("day", DAYS)
def test_a_follower_compares_with_a_time_that_no_message_has(tmp_path: Path, day: str, test: str) -> None:
    write(tmp_path, [b""] * len(TIMES), timestamp=TIMES)
    ns = (datetime.fromisoformat(f"{day}T00:00:00+00:00") - EPOCH) // timedelta(microseconds=1) * US
    with pipeline.follow(tmp_path, where=[("timestamp_ns", test, day)], timeout=0.0) as stream:
        found = [time for batch, _ in stream for time in batch.column("timestamp_ns").to_pylist()]
    assert found == [time for time in TIMES if COMPARE[test](time, ns)]
