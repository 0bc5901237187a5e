"""Tables without Spark: the rows of a Scanner, as Arrow, Polars and pandas."""

import os
import shutil
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import pipeline
import sej
import textqueue
from pipeline.tables import table as tables
from sej.journal.directory import Directory, read_gaps
from sej.reading.archiving import archive, objects
from sej.system.disk import OS
from tests.pipeline.conftest import BASE_NS, fill
from tests.sej.support import overwrite, read_all, write

COLUMNS = ["client", "prefix", "shard_bits", "shard", "offset", "timestamp", "timestamp_ns", "type", "key", "value"]
HALF = datetime.fromtimestamp(BASE_NS // 10**9 + 50, UTC)


def offsets(table: pipeline.Table) -> list[int]:
    found: list[int] = table.to_arrow()["offset"].to_pylist()
    assert table.count() == len(found)
    return found


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """3,000 messages in many segments; tables divide it into many parts and read it with two threads."""
    with sej.Writer(tmp_path / "large", segment_bytes=1 << 16) as writer:
        for n in range(30):
            writer.append_many([b"%d" % n * 200] * 100, timestamp=BASE_NS + n * 10**9)
    monkeypatch.setattr(tables, "_PART_BYTES", 1 << 16)
    monkeypatch.setattr(tables, "THREADS", 2)
    return tmp_path / "large"


# --- rows


def test_shards_and_clients_are_columns(shards: Path, hub_root: Path) -> None:
    table = pipeline.table(shards, columns=["prefix", "shard_bits", "shard", "offset"])
    wanted = [("orders", 2, shard, offset) for shard in range(4) for offset in range(10 * (shard + 1))]
    assert [tuple(row.values()) for row in table.to_arrow().to_pylist()] == wanted
    assert table.count() == 100
    of = pipeline.table(hub_root, columns=["client", "shard"], clients="berlin")
    assert sorted(of.to_arrow()["client"].to_pylist()) == ["berlin"] * 14 == ["berlin"] * of.count()
    assert pipeline.table([shards, hub_root]).count() == 125
    assert pipeline.table(hub_root, clients=["tokyo"], pattern=r".*\.001").count() == 6


def test_a_message_without_a_time_has_none(tmp_path: Path) -> None:
    with sej.Writer(tmp_path) as writer:
        writer.append(b"v", timestamp=sej.NO_TIMESTAMP)
        writer.append(b"w", timestamp=5)
    table = pipeline.table(tmp_path, columns=["timestamp", "timestamp_ns"])
    assert table.to_arrow()["timestamp"].to_pylist() == [None, datetime(1970, 1, 1, tzinfo=UTC)]
    assert pipeline.table(tmp_path, where="timestamp <= '2020-01-01'").count() == 1
    assert pipeline.table(tmp_path, end="2020-01-01").count() == 2, "as the command does"


def test_an_empty_journal_and_no_rows(tmp_path: Path, journal: Path) -> None:
    sej.Writer(tmp_path / "empty").close()
    for table in (pipeline.table(tmp_path / "empty"), pipeline.table(journal, where="offset > 1000")):
        assert (table.count(), table.to_arrow().num_rows, list(table.to_batches())) == (0, 0, [])
        assert table.to_arrow().schema == table.schema
        assert table.to_polars().columns == COLUMNS


# --- other libraries


def test_libraries_read_it_as_arrow(journal: Path) -> None:
    t = pipeline.table(journal, columns=["offset", "key"])
    wanted = t.to_arrow()
    assert pa.table(t) == wanted
    assert pl.DataFrame(t).equals(t.to_polars())
    with duckdb.connect() as connection:
        connection.register("t", t)
        assert connection.execute('SELECT count(*), max("offset") FROM t').fetchall() == [(100, 99)]
        twice = 'SELECT count(*) FROM t AS a JOIN t AS b USING ("offset")'
        assert connection.execute(twice).fetchall() == [(100,)], "two streams"
    assert t.to_pandas().equals(wanted.to_pandas())
    assert isinstance(t.to_pandas(), pd.DataFrame)
    assert pa.schema(t) == t.schema


def test_a_polars_frame_has_the_rows_of_arrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_PART_BYTES", 1 << 17)
    keys = [b"k" * (n % 20) for n in range(4000)]
    with sej.Writer(tmp_path / "data", segment_bytes=1 << 18) as writer:
        for n in range(0, 4000, 100):
            values = [b"%d" % row * (row % 40) for row in range(n, n + 100)]
            writer.append_many(values, keys[n : n + 100], timestamp=BASE_NS + n * 10**9)
    everything = pipeline.table(tmp_path / "data").to_polars()
    for given in ({}, {"columns": ["timestamp", "value"]}, {"start": 77}, {"where": "key != 'kkk' AND offset < 99"}):
        table = pipeline.table(tmp_path / "data", **given)
        assert table.to_polars().equals(pl.DataFrame(table.to_arrow()))
    assert everything["key"].to_list() == keys
    shutil.rmtree(tmp_path / "data")
    few = everything.filter(pl.col("offset") % 1000 == 39).sort("offset", descending=True).rechunk()
    assert few["value"].to_list() == [b"%d" % n * (n % 40) for n in (3039, 2039, 1039, 39)]
    assert everything.group_by("key").len().height == 20


def test_neither_spark_nor_java_is_needed(journal: Path) -> None:
    program = (
        "import sys, pipeline; t = pipeline.table(sys.argv[1]); print(t.count(), t.to_arrow().num_rows)\n"
        "heavy = ('pyspark', 'py4j', 'duckdb', 'polars', 'pandas', 'grpc')\n"
        "assert not [name for name in heavy if name in sys.modules]"
    )
    bare = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PATH")}
    done = subprocess.run(
        [sys.executable, "-c", program, journal], env=bare, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("100 100\n", "")


# --- which messages


@pytest.mark.parametrize(
    ("start", "end", "wanted"),
    [
        (90, None, range(90, 100)),
        (None, 10, range(10)),
        ("17", "19", range(17, 19)),
        (95, 1000, range(95, 100)),
        (1000, None, range(0)),
        (HALF, None, range(50, 100)),
        (HALF, HALF + timedelta(seconds=2), range(50, 52)),
        (HALF.replace(tzinfo=None), 60, range(50, 60)),
        (HALF.isoformat(), HALF + timedelta(seconds=1), range(50, 51)),
        (date(2030, 1, 1), None, range(0)),
        (None, pd.Timestamp(BASE_NS + 1), range(1)),
        ("1h ago", None, range(0)),
    ],
)
def test_start_and_end_take_offsets_and_times(journal: Path, start: Any, end: Any, wanted: range) -> None:
    assert offsets(pipeline.table(journal, start=start, end=end)) == list(wanted)


def test_times_select_each_message_by_its_own(tmp_path: Path) -> None:
    times = [50, 10, 60, 20, 70]
    write(tmp_path, [b"v"] * 5, timestamp=[BASE_NS + n for n in times])
    start, end = pd.Timestamp(BASE_NS + 50), pd.Timestamp(BASE_NS + 70)
    assert offsets(pipeline.table(tmp_path, start=start, end=end)) == [0, 2]
    assert offsets(pipeline.table(tmp_path, where=f"timestamp_ns >= {BASE_NS + 50}")) == [0, 2, 4]


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ("shard between 1 and 2 and offset >= 19", 1 + 11),
        ("value = 's1-7'", 1),
        ("key > 'k-5' AND shard = 0", 1),
        ("timestamp < '2023-11-14T22:13:25Z'", 20),
        ([("shard", "in", {1, 2}), ("offset", "<", 10)], 20),
        ([("value", "==", b"s1-7")], 1),
        ([("timestamp", ">=", HALF)], 0),
        ([("shard", "!=", 3), ["shard", ">", 1]], 30),
    ],
)
def test_where_selects_rows(shards: Path, where: Any, count: int) -> None:
    table = pipeline.table(shards, where=where)
    assert table.count() == count == table.to_arrow().num_rows
    assert pipeline.table(shards, where=where, columns=["shard"]).to_arrow().column_names == ["shard"]


@pytest.mark.parametrize(
    ("where", "wanted"), [("amount >= 0.5", [2, 3]), ("amount = 0.25", [1]), ("amount < 1", [0, 1, 2, 3])]
)
def test_decimals_of_different_scales_are_compared(tmp_path: Path, where: str, wanted: list[int]) -> None:
    """pyarrow 21 does not find these rows."""
    write(tmp_path, [b'{"amount": %.2f}' % (n / 4) for n in range(4)])
    assert offsets(pipeline.table(tmp_path, where=where, schema="amount decimal(10,2)")) == wanted


def test_the_count_comes_from_the_index(large: Path) -> None:
    first = sorted((large / "jnl").iterdir())[0]
    first.write_bytes(b"\xff" * first.stat().st_size)
    assert pipeline.table(large, start=10, end=2900).count() == 2890, "no message was read"
    with pytest.raises(sej.CorruptionError):
        pipeline.table(large, start=10, end=2900).to_arrow()


# --- damage, gaps and deleted messages


def test_damage_is_skipped_and_logged_on_request(journal: Path, caplog: pytest.LogCaptureFixture) -> None:
    segment = next((journal / "jnl").iterdir())
    overwrite(segment, segment.read_bytes().index(b"v-50") - 30, b"\xff" * 30)
    with pytest.raises(sej.CorruptionError):
        pipeline.table(journal).to_arrow()
    assert offsets(pipeline.table(journal, on_corruption="skip")) == [], "their block is damaged"
    found = offsets(pipeline.table(journal, on_corruption="skip", verify=False))
    assert 50 not in found and {0, 48, 52, 99} <= set(found)
    assert "are lost" in caplog.text
    sej.Journal(journal).repair()
    assert read_gaps(Directory(journal, OS))
    assert offsets(pipeline.table(journal)) == found, "a recorded gap is passed, and not counted"


def test_a_start_that_was_deleted_is_an_error(large: Path) -> None:
    removed = sej.Journal(large).clean(max_bytes=1 << 17)
    first = sej.Journal(large).first_offset
    assert removed and first > 0
    old = pipeline.table(large, start=0)
    for read in (old.count, old.to_arrow):
        with pytest.raises(sej.OffsetTooSmallError, match=f"start from {first}") as raised:
            read()
        assert raised.value.first_available == first
    assert offsets(pipeline.table(large)) == list(range(first, 3000))
    assert offsets(pipeline.table(large, where="offset >= 0 AND offset < 2990")) == list(range(first, 2990))


def test_messages_deleted_under_an_open_stream_are_an_error_not_a_hole(large: Path) -> None:
    reader = pipeline.table(large).to_reader()
    seen = reader.read_next_batch()["offset"].to_pylist()
    sej.Journal(large).clean(max_bytes=1 << 16)
    with pytest.raises(Exception, match="deleted"):
        seen.extend(reader.read_all()["offset"].to_pylist())
    assert seen == list(range(len(seen)))


def test_a_time_behind_damage_is_not_passed_silently(large: Path) -> None:
    """A length that points past the end of its segment looks like an incomplete message."""
    segment = sorted((large / "jnl").iterdir())[1]
    shutil.rmtree(large / "idx")
    overwrite(segment, 18, (1 << 28).to_bytes(4, "big"))  # the value size of the first message, whose key is empty
    wanted = [m.offset for m in read_all(large, on_corruption="skip") if m.timestamp >= BASE_NS + 10**9]
    start = datetime.fromtimestamp(BASE_NS // 10**9 + 1, UTC)
    with pytest.raises(sej.CorruptionError):
        pipeline.table(large, start=start).to_arrow()
    assert offsets(pipeline.table(large, start=start, on_corruption="skip")) == wanted


# --- a cold tier


@pytest.mark.parametrize("compress", [False, True])
def test_a_table_does_not_see_the_border_of_a_cold_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: bool
) -> None:
    journal = tmp_path / "journal"
    monkeypatch.setattr(tables, "_PART_BYTES", 2000)
    with sej.Writer(journal, segment_bytes=1000) as writer:
        writer.append_many([b"%d" % number for number in range(300)], timestamp=[BASE_NS + n for n in range(300)])
    assert archive(journal, tmp_path / "tier", compress=compress).messages > 200
    fill(journal, 5, first=300)
    table = pipeline.table(journal)
    assert table.count() == 305 and offsets(table) == list(range(305))
    assert offsets(pipeline.table(journal, start=77, end=290)) == list(range(77, 290))
    assert offsets(pipeline.table(journal, where=f"timestamp_ns >= {BASE_NS + 50} AND offset < 300")) == [
        *range(50, 300)
    ]
    with pipeline.follow(journal, reader="r", timeout=0.0) as stream:
        assert [n for batch, _ in stream for n in batch.column("offset").to_pylist()] == list(range(305))
    hurt = objects(journal)[1]
    for path in (hurt.path, hurt.address):
        Path(path).unlink(missing_ok=True)
    with pytest.raises(sej.CorruptionError, match="is missing"):
        table.to_arrow()


# --- arguments


def test_wrong_arguments_say_what_was_expected(journal: Path, hub_root: Path, tmp_path: Path) -> None:
    def error(**given: Any) -> str:
        with pytest.raises((ValueError, TypeError, sej.SejError)) as raised:
            pipeline.table(given.pop("paths", journal), **given)
        return str(raised.value)

    assert "unknown column 'ofset'" in error(columns=["ofset"])
    assert "got 'key'" in error(columns="key")
    assert "at least one column" in error(columns=[])
    assert "named twice" in error(columns=["key", "key"])
    assert "start: 'soon' is not an offset or a time" in error(start="soon")
    assert "start: '-5' is not an offset" in error(start="-5")
    assert "start must be at least 0" in error(start=-1) or "start must be 0" in error(start=-1)
    assert "end must be an offset, a datetime or a text" in error(end=1.5)
    assert "end must be an offset, a datetime or a text" in error(end=True)
    assert "names the column 'ofset'" in error(where="ofset = 3")
    assert "for others use SQL or Polars" in error(where="offset = 3 OR offset = 4")
    for text in ("key = x", "", "offset IN (3", "offset = 3 AND", "offset = 3 OR offset = 4", "offset BETWEEN 3"):
        assert "expected a condition, got" in error(where=text)
    assert "compares column 'offset' with 'x'; expected a whole number" in error(where="offset = 'x'")
    assert "compares column 'shard' with 2.5" in error(where=[("shard", "=", 2.5)])
    assert "expected a number of 64 bits" in error(where=[("offset", "<", 1 << 64)])
    assert "has microseconds" in error(where="timestamp = '2026-01-01T00:00:00.000000001Z'")
    assert "is not a time" in error(where="timestamp = 'soon'")
    assert "where has the test 'like'" in error(where=[("key", "like", "x")])
    assert "items like ('offset', '>=', 5)" in error(where=[("key", "x")])
    assert "needs a list after IN" in error(where=[("key", "in", "abc")])
    assert "unknown client 'paris'; the clients are berlin, tokyo" in error(paths=hub_root, clients=["paris"])
    assert "unknown client 'paris'; only a hub's root has clients" in error(clients="paris")
    assert "paths must name at least one path" in error(paths=[])
    assert "allowed only with hub=" in error(paths=None)
    assert "hub must be an address" in error(hub="")
    assert "are for a hub" in error(token="t")
    assert "the path does not exist" in error(paths=tmp_path / "missing")
    (tmp_path / "file").write_bytes(b"x")
    assert "this is a file" in error(paths=tmp_path / "file")
    assert "no journal matches this glob" in error(paths=tmp_path / "none*")
    assert "unknown column 'source'" in error(columns=["source"])
    assert "matches none of 5 names" in error(paths=hub_root, pattern="paris.*")
    assert "a path is passed twice" in error(paths=[journal, journal])


def test_a_relative_path_means_the_directory_of_the_making(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "orders", [b"a", b"b"])
    textqueue.TextQueue(tmp_path / "jobs.tq").append("a")
    monkeypatch.chdir(tmp_path)
    orders, jobs = pipeline.table("orders"), pipeline.table("jobs.tq")
    with pipeline.follow("orders", reader="r", timeout=0.0) as arrived:
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert (orders.count(), orders.to_arrow().num_rows, jobs.to_arrow().num_rows) == (2, 2, 1)
        assert sum(each.batch.num_rows for each in arrived) == 2
        arrived.commit()
    assert sej.read_offset(tmp_path / "orders", "r") == 2
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_lost_messages_are_counted_until_a_repair_records_their_gap(tmp_path: Path) -> None:
    write(tmp_path, [b"a", b"b", b"c"], segment_bytes=1)
    (tmp_path / "jnl" / f"{1:016x}.jnl").unlink()
    assert pipeline.count(tmp_path) == 3
    with pytest.raises(sej.OffsetGapError), sej.Scanner(tmp_path) as s:
        list(s)
    sej.Journal(tmp_path).repair()
    assert pipeline.count(tmp_path) == 2
