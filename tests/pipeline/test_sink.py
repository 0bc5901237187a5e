import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession

import pipeline
import sej
import shard
from tests.pipeline.conftest import BASE_NS, fill
from tests.sej.support import commit, read_all, write

pytestmark = pytest.mark.spark
GOLDEN = Path(__file__).parent.parent / "golden" / "shard" / "xxhash64.tsv"


def numbers(spark: SparkSession, count: int, start: int = 0) -> DataFrame:
    """Rows with key k-N and value v-N."""
    return spark.range(start, start + count, 1, 2).selectExpr(
        "CAST(concat('k-', id % 50) AS BINARY) AS key", "concat('v-', id) AS value"
    )


def save(frame: DataFrame, root: Path | str, mode: str = "append", **options: object) -> None:
    frame.write.format("sej").options(**{k: str(v) for k, v in options.items()}).mode(mode).save(str(root))


def values(path: Path) -> list[bytes]:
    return [message.value for message in read_all(path)]


def tree_values(root: Path) -> list[bytes]:
    return sorted(value for found in shard.find(root) for value in values(Path(found.path)))


def wanted(count: int, start: int = 0) -> list[bytes]:
    return sorted(b"v-%d" % number for number in range(start, start + count))


def litter(root: Path) -> list[str]:
    """What is left of jobs below a root."""
    staging = root / "tmp" / "staging" if (root / "jnl").exists() else root / ".staging"
    return [name for name in os.listdir(staging) if name.startswith(("task-", "job-"))]


def failure(frame: DataFrame, root: Path | str, mode: str = "append", **options: object) -> str:
    with pytest.raises(Exception) as caught:
        save(frame, root, mode, **options)
    return str(caught.value)


class Place(NamedTuple):
    """Where a sink writes: what is passed to ``save``, with which options; and the folder of the journals."""

    given: str
    options: dict[str, str]
    root: Path


@pytest.fixture(params=["disk", "hub"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "disk":
        return Place(str(tmp_path / "tree"), {}, tmp_path / "tree")
    return Place("berlin", request.getfixturevalue("options"), tmp_path / "hub")


def test_a_batch_is_written_once_to_the_shards_of_its_keys(spark: SparkSession, place: Place) -> None:
    given: dict[str, Any] = {**place.options, "prefix": "orders", "bits": 2, "txnAppId": "nightly"}
    for version in (1, 1, 2, 1):
        save(numbers(spark, 300, 300 * version), place.given, **given, txnVersion=version)
    assert tree_values(place.root) == wanted(600, 300)
    for found in shard.find(place.root):
        assert {shard.index_of(message.key, 2) for message in read_all(found.path)} == {found.index}
    read = spark.read.format("sej").load(str(place.root))
    assert read.where("shard <> CAST(xxhash64(key) & 3 AS INT)").count() == 0
    assert litter(place.root) == []
    assert "need each other" in failure(numbers(spark, 1), place.given, **given)


def test_columns_that_are_given_are_kept(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    save(spark.read.format("sej").load(str(journal)), tmp_path / "copy")
    with sej.Scanner(journal) as left, sej.Scanner(tmp_path / "copy") as right:
        assert [message[1:] for message in right] == [message[1:] for message in left]


def test_null_key_is_the_empty_key_before_it_is_hashed(spark: SparkSession, tmp_path: Path) -> None:
    save(spark.sql("SELECT CAST(NULL AS BINARY) AS key, 'x' AS value"), tmp_path / "tree", bits=4)
    assert [found.index for found in shard.find(tmp_path / "tree")] == [shard.index_of(b"", 4)]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT 'x' AS value, 1 AS colour", "cannot store column 'colour'"),
        ("SELECT 'x' AS key", "there is no column 'value'"),
        ("SELECT 1 AS value", "column 'value' must be binary or string, got int"),
        ("SELECT 'x' AS value, 256 AS type", "256"),
        ("SELECT 'x' AS value, repeat('k', 128) AS key", "at most 127 bytes, got 128"),
    ],
)
def test_what_a_journal_cannot_hold_is_named(spark: SparkSession, tmp_path: Path, query: str, says: str) -> None:
    assert says in failure(spark.sql(query), tmp_path / "j")
    assert not (tmp_path / "j" / "jnl").exists()


def test_failed_job_leaves_no_message_and_no_litter(spark: SparkSession, place: Place) -> None:
    given: dict[str, Any] = {**place.options, "prefix": "orders", "bits": 2}
    save(numbers(spark, 10), place.given, **given)
    broken = numbers(spark, 1000).selectExpr("key", "IF(value = 'v-900', raise_error('row 900'), value) AS value")
    assert "row 900" in failure(broken, place.given, **given)
    assert tree_values(place.root) == wanted(10)
    assert litter(place.root) == []


def test_name_counts_in_each_tree_of_a_root(spark: SparkSession, tmp_path: Path) -> None:
    for prefix in ("orders", "payments"):
        save(numbers(spark, 50), tmp_path / "tree", prefix=prefix, bits=1, txnAppId="nightly", txnVersion=1)
    assert tree_values(tmp_path / "tree") == sorted(wanted(50) * 2)


def test_no_rows_make_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    save(numbers(spark, 0), tmp_path / "tree", prefix="orders", bits=3)
    save(numbers(spark, 0), tmp_path / "j")
    for path in (tmp_path / "tree", tmp_path / "j"):
        assert spark.read.format("sej").load(str(path)).count() == 0


def test_journal_and_tree_are_not_mixed(spark: SparkSession, journal: Path, shards: Path) -> None:
    assert "this is one SEJ directory" in failure(numbers(spark, 1), journal, bits=2)
    assert "set prefix and bits" in failure(numbers(spark, 1), shards)


def test_writer_of_another_process_is_waited_for_and_named(spark: SparkSession, tmp_path: Path) -> None:
    with sej.Writer(tmp_path / "j") as writer:
        writer.append(b"mine")
        assert "writer lock" in failure(numbers(spark, 5), tmp_path / "j", lockTimeout=0.1)
    save(numbers(spark, 5), tmp_path / "j")
    assert sorted(values(tmp_path / "j")) == sorted([b"mine", *wanted(5)])
    assert litter(tmp_path / "j") == []


# --- overwrite


def test_overwrite_continues_the_offsets(spark: SparkSession, tmp_path: Path) -> None:
    save(numbers(spark, 100), tmp_path / "tree", bits=2)
    ends = {found.index: sej.Journal(found.path).end_offset for found in shard.find(tmp_path / "tree")}
    save(numbers(spark, 3, 1000), tmp_path / "tree", "overwrite", bits=2)
    assert tree_values(tmp_path / "tree") == wanted(3, 1000)
    assert {found.index: sej.Journal(found.path).first_offset for found in shard.find(tmp_path / "tree")} == ends


def test_overwrite_waits_for_readers_unless_named(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path / "j", 10)
    commit(tmp_path / "j", "slow", 4)
    assert "reader 'slow' has read 4 of 10" in failure(numbers(spark, 1), tmp_path / "j", "overwrite")
    save(numbers(spark, 1), tmp_path / "j", "overwrite", discardReaders="slow")
    assert values(tmp_path / "j") == [b"v-0"]


# --- streams


def stream(spark: SparkSession, source: Path, place: Place, checkpoint: Path) -> None:
    frame = spark.readStream.format("sej").option("maxMessagesPerTrigger", 40).load(str(source))
    writer = frame.writeStream.format("sej").options(**place.options, prefix="orders", bits="2")
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.start(place.given).awaitTermination()


def test_stream_writes_every_row_once_though_spark_replays_a_batch(
    spark: SparkSession, journal: Path, place: Place, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    stream(spark, journal, place, checkpoint)
    for batch in (1, 2):  # as if the driver had died before Spark noted the end of the batch
        (checkpoint / "commits" / str(batch)).unlink()
        (checkpoint / "commits" / f".{batch}.crc").unlink(missing_ok=True)
    fill(journal, 30, first=100)
    stream(spark, journal, place, checkpoint)
    assert tree_values(place.root) == wanted(130)
    assert litter(place.root) == []


def test_a_recreated_checkpoint_counts_from_scratch(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    """Whoever removes it wants the rows again, and Spark counts its batches from 0."""
    place = Place(str(tmp_path / "tree"), {}, tmp_path / "tree")
    for _ in range(2):
        stream(spark, journal, place, tmp_path / "checkpoint")
        shutil.rmtree(tmp_path / "checkpoint")
    assert tree_values(place.root) == sorted(wanted(100) * 2)


def test_stream_needs_a_name_for_its_batches(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    frame = spark.readStream.format("sej").load(str(journal))
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "everywhere"))
    try:
        with pytest.raises(Exception, match="checkpointLocation"):
            frame.writeStream.format("sej").start(str(tmp_path / "j")).awaitTermination()
        query = frame.writeStream.format("sej").option("txnAppId", "copy").trigger(availableNow=True)
        query.start(str(tmp_path / "j")).awaitTermination()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert len(values(tmp_path / "j")) == 100


def test_times_and_types_travel(spark: SparkSession, tmp_path: Path) -> None:
    rows = f"SELECT 'a' AS value, 7 AS type, {BASE_NS}L AS timestamp_ns UNION ALL SELECT 'b', NULL, NULL"
    save(spark.sql(rows), tmp_path / "j")
    first, second = sorted(read_all(tmp_path / "j"), key=lambda message: message.value)
    assert (first.type, first.timestamp) == (7, BASE_NS)
    assert (second.type, second.timestamp > BASE_NS) == (0, True)
    times = f"SELECT 'c' AS value, timestamp_micros({BASE_NS // 1000}) AS timestamp UNION ALL SELECT 'd', NULL"
    save(spark.sql(times), tmp_path / "micros")
    third, fourth = sorted(read_all(tmp_path / "micros"), key=lambda message: message.value)
    assert (third.timestamp, fourth.timestamp > BASE_NS) == (BASE_NS, True)


def test_a_job_keeps_the_hash_of_a_sharded_journal_and_splits_no_key(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql("SELECT CAST(CONCAT('k', id) AS BINARY) AS key, CAST('v' AS BINARY) AS value FROM range(50)")
    with shard.Writer(shard.Path(tmp_path / "fnv", "o", 3), route="fnv") as writer:
        writer.append(b"v", b"k0")
    save(rows, tmp_path / "fnv", prefix="o", bits=3)
    write(tmp_path / "own" / "o.3.000", [b"v"] * 50, [b"k%d" % number for number in range(50)])
    assert "RouteError" in failure(rows, tmp_path / "own", prefix="o", bits=3)
    assert pipeline.count(tmp_path / "own") == 50
    save(rows, tmp_path / "own", "overwrite", prefix="o", bits=3)
    for root, route in (("fnv", "fnv"), ("own", "xxh64")):
        for found in shard.find(tmp_path / root):
            indexes = {shard.index_of(message.key, 3, route) for message in read_all(found.path)}  # type: ignore[arg-type]
            assert indexes <= {found.index}
    assert pipeline.count(tmp_path / "own") == 50


def test_the_golden_table_is_what_spark_computes(spark: SparkSession) -> None:
    rows = [line.split("\t") for line in GOLDEN.read_text().splitlines()[1:]]
    assert len(rows) == 1000
    keys = [(number, bytes.fromhex(key)) for number, (key, _) in enumerate(rows)]
    frame = spark.createDataFrame(keys, "number INT, key BINARY")
    found = frame.selectExpr("number", "xxhash64(key) AS hash").orderBy("number").collect()
    assert [row["hash"] for row in found] == [int(value) for _, value in rows]
