"""Tables as Polars LazyFrames: the same rows as a filter afterwards, and less is read."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import pipeline
import sej
from pipeline.tables.lazy import hints_of
from tests.pipeline.conftest import BASE_NS, fill

HALF = datetime.fromtimestamp(BASE_NS // 10**9 + 5, UTC)
US = timedelta(microseconds=1)
PREDICATES: dict[str, tuple[pl.Expr, int]] = {
    "offset": (pl.col("offset") >= 5, 1),
    "mirrored": (pl.lit(5) < pl.col("offset"), 1),
    "between": (pl.col("offset").is_between(5, 8), 2),
    "open": (pl.col("offset").is_between(5, 8, closed="none"), 2),
    "in": (pl.col("shard").is_in([1, 2]), 1),
    "null": (pl.col("client").is_null() & pl.col("shard").is_not_null(), 2),
    "time": ((pl.col("timestamp") >= HALF) & (pl.col("timestamp") < HALF + 3 * US), 2),
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
