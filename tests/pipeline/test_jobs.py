import functools
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hub
import pipeline
import sej
import shard
from hub.wire import Server
from pipeline import OptionError, jobs
from tests.pipeline.conftest import BASE_NS, fill

pytestmark = pytest.mark.spark


def contents(root: Path) -> list[tuple[int, int, bytes, bytes]]:
    """Everything but the offsets, sorted."""
    found = []
    for directory in shard.find(root):
        with sej.Scanner(directory.path) as scanner:
            found += [message[1:] for message in scanner]
    return sorted(found)


def test_archive_is_incremental_and_can_be_restored(spark: SparkSession, shards: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    assert jobs.archive(spark, shards, tmp_path / "archive", messages_per_batch=40, progress=seen.append) == 100
    assert seen[-1] == 100
    assert jobs.archive(spark, shards, tmp_path / "archive") == 0
    fill(shards / "orders.2.001", 7, first=20)
    assert jobs.archive(spark, shards, tmp_path / "archive", reader="archive") == 7
    assert sej.read_offset(shards / "orders.2.001", "archive") == 27
    days = {path.name for path in (tmp_path / "archive").glob("day=*")}
    assert days == {"day=2023-11-14"}
    for _ in range(2):
        jobs.restore(spark, tmp_path / "archive", tmp_path / "back", prefix="orders", bits=1)
    assert contents(tmp_path / "back") == contents(shards)
    fill(shards / "orders.2.001", 2, first=27)
    assert jobs.archive(spark, shards, tmp_path / "archive") == 2
    back = functools.partial(jobs.restore, spark, tmp_path / "archive", tmp_path / "back", prefix="orders", bits=1)
    with pytest.raises(
        OptionError, match=r"restored 107 messages of this archive into .*, and the archive has 109 now"
    ):
        back()
    back(where="shard = 1 AND offset >= 27")
    assert contents(tmp_path / "back") == contents(shards)


def test_an_archive_without_messages(spark: SparkSession, tmp_path: Path) -> None:
    sej.Writer(tmp_path / "journal").close()
    assert jobs.archive(spark, tmp_path / "journal", tmp_path / "archive") == 0
    with pytest.raises(OptionError, match="nothing was archived there yet"):
        jobs.restore(spark, tmp_path / "archive", tmp_path / "back")


def test_the_days_of_an_archive_are_those_of_utc(spark: SparkSession, tmp_path: Path) -> None:
    day = 86_400 * 10**9
    times = [19_000 * day, 19_001 * day - 1, 19_000 * day + 16 * 3600 * 10**9, -1, sej.NO_TIMESTAMP, 2**63 - 1]
    with sej.Writer(tmp_path / "journal") as writer:
        writer.append_many([b""] * len(times), timestamp=times)
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        jobs.archive(spark, tmp_path / "journal", tmp_path / "archive")
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    found = {row.offset: str(row.day) for row in spark.read.parquet(str(tmp_path / "archive")).collect()}
    assert found == dict(enumerate(["2022-01-08", "2022-01-08", "2022-01-08", "1969-12-31", "None", "2262-04-11"]))


def test_an_archive_may_have_an_address(
    spark: SparkSession, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(os.listdir(tmp_path))
    for address in ("s3a://bucket/orders", "other://bucket/orders"):  # Hadoop's client of S3 is not installed
        with pytest.raises(OptionError, match=f"Spark has no client for the file system of '{address}': add one"):
            jobs.archive(spark, shards, address)
        with pytest.raises(OptionError, match="Spark has no client for the file system"):
            jobs.restore(spark, address, tmp_path / "back", prefix="orders", bits=1)
    with pytest.raises(OptionError, match="local path"):
        jobs.reshard(spark, shards, "hdfs://host/orders", bits=1)
    with pytest.raises(Exception, match="on a file system of type hdfs"):
        spark.sql("SELECT 'x' AS value").write.format("sej").mode("append").save("hdfs://host/orders")
    assert sorted(os.listdir(tmp_path)) == before
    (tmp_path / "far").mkdir()
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set("fs.viewfs.mounttable.store.link./orders", f"file://{tmp_path}/far")
    assert jobs.archive(spark, f"file://{shards}", "viewfs://store/orders/archive") == 100
    assert jobs.archive(spark, shards, "viewfs://store/orders/archive") == 0
    jobs.restore(spark, "viewfs://store/orders/archive", f"file://{tmp_path}/back", prefix="orders", bits=1)
    assert contents(tmp_path / "back") == contents(shards)
    assert sorted(os.listdir(tmp_path)) == sorted([*before, "back", "far"])


def test_reshard_keeps_the_order_of_a_key_and_continues(spark: SparkSession, tmp_path: Path) -> None:
    keys = [b"k%d" % (number % 13) for number in range(500)]
    values = [b"%d" % number for number in range(500)]
    source = shard.Path(tmp_path / "old", "orders", 1)
    with shard.Writer(source) as writer:
        writer.append_many(values[:300], keys[:300])
    assert (
        jobs.reshard(spark, tmp_path / "old", tmp_path / "new", prefix="orders", bits=3, messages_per_batch=97) == 300
    )
    with shard.Writer(source) as writer:
        writer.append_many(values[300:], keys[300:])
    assert jobs.reshard(spark, tmp_path / "old", tmp_path / "new", prefix="orders", bits=3) == 200
    by_key: dict[bytes, list[int]] = {}
    for directory in shard.find(tmp_path / "new"):
        with sej.Scanner(directory.path) as scanner:
            for message in scanner:
                assert shard.index_of(message.key, 3) == directory.index
                by_key.setdefault(message.key, []).append(int(message.value))
    assert by_key == {b"k%d" % key: list(range(key, 500, 13)) for key in range(13)}


def test_compact_keeps_the_latest_and_deletes_by_empty_value(spark: SparkSession, tmp_path: Path) -> None:
    with sej.Writer(tmp_path / "j") as writer:
        writer.append_many([b"1", b"2", b"3", b"", b"5"], [b"a", b"b", b"a", b"b", b"c"], timestamp=BASE_NS)
    seen: list[int] = []
    jobs.compact(spark, tmp_path / "j", tmp_path / "small", progress=seen.append)
    assert seen[-1] == 5
    assert seen == sorted(seen)
    assert [(key, value) for _, _, key, value in contents(tmp_path / "small")] == [(b"a", b"3"), (b"c", b"5")]
    jobs.compact(spark, tmp_path / "j", tmp_path / "j", keep_deleted=True)
    assert [(key, value) for _, _, key, value in contents(tmp_path / "j")] == [(b"a", b"3"), (b"b", b""), (b"c", b"5")]
    assert sej.Journal(tmp_path / "j").first_offset == 5


@pytest.mark.parametrize("job", ["compact", "dedupe"])
def test_what_comes_in_while_a_source_is_replaced_is_not_lost(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    for index in range(2):
        fill(tmp_path / "t" / f"orders.1.{index:03x}", 20)
    write = jobs._Rewriting.write

    def append_first(*given: Any) -> None:
        fill(tmp_path / "t" / "orders.1.001", 3, first=100)
        write(*given)

    monkeypatch.setattr(jobs._Rewriting, "write", append_first)
    run = functools.partial(getattr(jobs, job), spark, tmp_path / "t", tmp_path / "t", prefix="orders", bits=1)
    with pytest.raises(Exception, match=r"orders\.1\.001 ends at offset 23, expected 20"):
        run()
    assert pipeline.count(tmp_path / "t") == 43
    assert not [path for kind in ("task-*", "job-*") for path in (tmp_path / "t" / ".staging").glob(kind)]
    monkeypatch.undo()
    run()
    with shard.Scanner(shard.Path(tmp_path / "t", "orders", 1)) as scanner:
        assert b"v-102" in [message.value for _, message in scanner]


def test_compacted_copy_follows_its_source(
    spark: SparkSession, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        jobs.compact(spark, journal, tmp_path / "small", bits=1)
        assert len(contents(tmp_path / "small")) == 7
    fill(journal, 1, first=107)
    with sej.Writer(journal) as writer:
        writer.append(b"late", b"k-new")
    monkeypatch.setattr("time.time_ns", lambda: BASE_NS)  # the clock was set back
    jobs.compact(spark, journal, tmp_path / "small", bits=1)
    assert b"late" in [value for _, _, _, value in contents(tmp_path / "small")]
    assert len(contents(tmp_path / "small")) == 8
    fill(tmp_path / "other", 3)
    with pytest.raises(pipeline.OptionError, match="holds messages that this job did not write"):
        jobs.compact(spark, journal, tmp_path / "other")
    assert pipeline.count(tmp_path / "other") == 3


def test_dedupe_keeps_the_first(spark: SparkSession, tmp_path: Path) -> None:
    with sej.Writer(tmp_path / "j") as writer:
        writer.append_many([b"x", b"x", b"y", b"x"], [b"a", b"a", b"a", b"b"], timestamp=[4, 3, 2, 1])
    jobs.dedupe(spark, tmp_path / "j", tmp_path / "once")
    assert contents(tmp_path / "once") == [(1, 0, b"b", b"x"), (2, 0, b"a", b"y"), (4, 0, b"a", b"x")]


@pytest.mark.parametrize("through_hub", [False, True])
def test_journals_that_have_the_same_columns_are_not_taken_for_one(hub_root: Path, through_hub: bool) -> None:
    """The latest message of a key would be that of one journal, and the offsets of both would be counted as one's."""
    no_spark: Any = None
    fill(hub_root / "berlin.other.log", 3)
    refused = pytest.raises(OptionError, match=r"cannot tell 'berlin\.other\.log' and 'berlin\.plain\.log' apart")
    with hub.Store(hub_root) as store, Server(store, "127.0.0.1:0") as server:
        source, address = ("berlin", server.address) if through_hub else (str(hub_root), None)
        with refused:
            jobs.compact(no_spark, source, hub_root.parent / "out", hub=address)
        with refused:
            jobs.dedupe(no_spark, source, hub_root.parent / "out", hub=address)
        with refused:
            jobs.stats(no_spark, source, hub=address)


def test_dedupe_by_no_column_is_refused(journal: Path) -> None:
    no_spark: Any = None
    for by, error, words in (
        ([], OptionError, "all messages would be equal"),
        ("key", TypeError, "by must be an iter"),
    ):
        with pytest.raises(error, match=words):
            jobs.dedupe(no_spark, journal, journal, by=by)


def test_stats_say_what_is_there(spark: SparkSession, tmp_path: Path) -> None:
    with sej.Writer(tmp_path / "j", first_offset=10) as writer:
        times = [BASE_NS, BASE_NS + 4 * 10**9, BASE_NS + 2 * 10**9, BASE_NS + 3 * 10**9]
        writer.append_many([b"12345", b"1", b"", b"12"], [b"a", b"a", b"b", b"a"], timestamp=times)
    (found,) = jobs.stats(spark, tmp_path / "j")
    assert (found.messages, found.missing, found.size, found.max_value_bytes) == (4, 0, 12, 5)
    assert (found.rate, found.keys, found.top_key, found.top_key_share, found.disordered) == (1.0, 2, b"a", 0.75, 1)
    many = [found._replace(prefix="orders", shard_bits=10, shard=index, messages=index) for index in range(100)]
    assert many[7].name == "orders.a.007"


def test_an_archive_among_the_files_of_a_journal_is_refused(spark: SparkSession, journal: Path) -> None:
    with pytest.raises(OptionError, match="is among the files of the journal"):
        jobs.archive(spark, journal, journal / "tmp" / "archive")
    assert not (journal / "tmp" / "archive").exists()
