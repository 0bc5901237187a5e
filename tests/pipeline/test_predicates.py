"""Queries over a table find the rows that they find in memory, and less is read."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
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
from pipeline.tables.lazy import hints_of
from pipeline.tables.query import Query
from tests.pipeline.conftest import BASE_NS, fill
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


# --- lazy frames of Polars

HALF = datetime.fromtimestamp(BASE_NS // 10**9 + 5, UTC)
PREDICATES: dict[str, tuple[pl.Expr, int]] = {
    "offset": (pl.col("offset") >= 5, 1),
    "mirrored": (pl.lit(5) < pl.col("offset"), 1),
    "between": (pl.col("offset").is_between(5, 8), 2),
    "open": (pl.col("offset").is_between(5, 8, closed="none"), 2),
    "in": (pl.col("shard").is_in([1, 2]), 1),
    "null": (pl.col("client").is_null() & pl.col("shard").is_not_null(), 2),
    "time": ((pl.col("timestamp") >= HALF) & (pl.col("timestamp") < HALF + timedelta(microseconds=3)), 2),
    "nanoseconds": (pl.col("timestamp_ns") < BASE_NS + 5 * 10**9, 1),
    "part of a microsecond": (
        pl.col("timestamp") < pl.lit(BASE_NS + 5 * 10**9 + 1, pl.Datetime("ns", "UTC")), 0
    ),
    "bytes": ((pl.col("value") == b"s1-7") & (pl.col("shard") == 1), 1),
    "or": ((pl.col("offset") < 3) | (pl.col("shard") == 2), 0),
    "not": (~(pl.col("offset") < 3), 0),
    "computed": (pl.col("offset") % 2 == 0, 0),
    "float": (pl.col("offset") > 2.5, 0),
    "function": (pl.col("value").bin.size() == 4, 0),
    "none": (pl.col("shard").is_in([1, None]), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", PREDICATES)
def test_a_scan_is_a_filter_of_all_rows(shards: Path, name: str) -> None:
    predicate, hints = PREDICATES[name]
    table = pipeline.table(shards)
    assert len(hints_of(predicate)) >= hints, "what is understood limits the read"
    wanted = table.to_polars().filter(predicate)
    assert table.scan().filter(predicate).collect().equals(wanted)
    some = table.scan().filter(predicate).select("key", pl.col("shard") + 1)
    assert some.collect().equals(wanted.select("key", pl.col("shard") + 1))
    assert table.scan().filter(predicate).select(pl.len()).collect().item() == wanted.height
    assert table.scan().filter(predicate).head(3).collect(engine="streaming").height == min(wanted.height, 3)


def test_limits_sorts_and_groups(shards: Path) -> None:
    lazy = pipeline.table(shards).scan()
    assert lazy.collect_schema().names() == pipeline.table(shards).schema.names
    assert lazy.head(15).filter(pl.col("offset") >= 8).collect().height == 2
    assert lazy.sort("offset", descending=True).head(1).select("offset").collect().item() == 39
    assert lazy.group_by("shard").len().sort("shard").collect()["len"].to_list() == [10, 20, 30, 40]
    assert lazy.join(lazy, on=["shard", "offset"]).collect().height == 100
    assert lazy.select(pl.lit(1).alias("one")).collect().height == 1


def test_what_a_condition_excludes_is_not_read(shards: Path) -> None:
    for path in shards.iterdir():
        sej.Journal(path).reindex()
    segment = next((shards / "orders.2.001" / "jnl").iterdir())
    segment.write_bytes(segment.read_bytes().replace(b"s1-7", b"s1-8"))
    lazy = pipeline.table(shards).scan()
    assert lazy.filter(pl.col("shard") != 1).filter(pl.col("shard") == 2).collect().height == 30
    with pytest.raises(Exception, match="the disk changed them"):
        lazy.collect()


def test_a_query_sees_what_is_there_when_it_runs(journal: Path) -> None:
    lazy = pipeline.table(journal, columns=["offset"], where="offset >= 90").scan()
    assert lazy.collect().height == 10
    fill(journal, 5, first=100)
    assert lazy.collect().height == 15


def test_an_offset_in_a_query_may_be_deleted(tmp_path: Path) -> None:
    with sej.Writer(tmp_path, segment_bytes=1 << 12) as writer:
        for _ in range(30):
            writer.append_many([b"x" * 100] * 10)
    sej.Journal(tmp_path).clean(max_bytes=1 << 13)
    first = sej.Journal(tmp_path).first_offset
    found: Any = pipeline.table(tmp_path).scan().filter(pl.col("offset") >= 1).select(pl.col("offset").min()).collect()
    assert found.item() == first > 1
