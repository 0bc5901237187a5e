from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import GreaterThan, IsNotNull, LessThanOrEqual
from pyspark.sql.types import StructType

import pipeline
import sej
from pipeline.columns import ONE_SOURCE, check_projection
from pipeline.options import READ, parse
from pipeline.reading.stream import FilteringSejReader
from tests.pipeline.conftest import BASE_NS, fill
from tests.sej.support import overwrite, read_all, write

pytestmark = pytest.mark.spark


def load(spark: SparkSession, path: Path, schema: str | None = None, **options: object) -> DataFrame:
    reader = spark.read.format("sej").options(**{name: str(value) for name, value in options.items()})
    return (reader.schema(schema) if schema else reader).load(str(path))


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.collect())


def failure(frame: DataFrame) -> str:
    with pytest.raises(Exception) as caught:
        frame.collect()
    return str(caught.value)


def test_directory_has_every_message_as_it_was_written(spark: SparkSession, journal: Path) -> None:
    frame = load(spark, journal)
    assert frame.columns == list(ONE_SOURCE)
    rows = sorted(frame.collect(), key=lambda row: row.offset)
    written = read_all(journal)
    assert [(r.offset, r.timestamp_ns, r.type, bytes(r.key), bytes(r.value)) for r in rows] == written
    assert {(row.client, row.prefix, row.shard_bits, row.shard) for row in rows} == {(None, None, None, None)}
    seconds = [row["seconds"] for row in frame.selectExpr("unix_micros(timestamp) AS seconds").collect()]
    assert sorted(seconds) == [message.timestamp // 1000 for message in written]


@pytest.fixture
def catalogue(spark: SparkSession) -> Iterator[SparkSession]:
    """A session whose tables are dropped at the end."""
    yield spark
    for table in spark.catalog.listTables():
        spark.sql(f"DROP {'VIEW' if table.isTemporary else 'TABLE'} {table.name}")


@pytest.mark.parametrize(
    "given", ["OPTIONS (path '{path}', startingOffsets '{{\"journal\": 90}}')", "LOCATION '{path}'"]
)
def test_a_table_of_the_catalogue_keeps_its_path(catalogue: SparkSession, journal: Path, given: str) -> None:
    catalogue.sql(f"CREATE TABLE t USING sej {given}".format(path=journal))
    table = catalogue.table("t")
    assert offsets(table) == list(range(90 if "Offsets" in given else 0, 100))
    assert catalogue.sql("SELECT a.offset FROM t a JOIN t b USING (offset) WHERE offset < 95").count() in (5, 95)
    assert catalogue.sql(f"SELECT offset FROM t WITH ('path' = '{journal}')").count() == 100
    stream = catalogue.readStream.option("startingOffsets", "earliest").table("t").writeStream
    stream.format("memory").queryName("seen").trigger(availableNow=True).start().awaitTermination()
    assert catalogue.table("seen").count() == 100

    for refused in (
        lambda: catalogue.sql("INSERT INTO t SELECT * FROM t"),
        lambda: table.write.format("sej").option("path", f"{journal}-2").saveAsTable("copy"),
    ):
        with pytest.raises(Exception, match=r"which INSERT cannot write to: select the columns key and value"):
            refused()
    table.select("key", "value").write.format("sej").mode("append").save(f"{journal}-2")
    assert pipeline.count(f"{journal}-2") == table.count()
    catalogue.sql("DROP TABLE t")
    assert pipeline.count(journal) == 100


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("OPTIONS (path '{path}', start 'x')", "has no option 'start' here"),
        ("OPTIONS (path 'orders', hub 'h:1')", "a table on a hub has no path; name what it reads"),
        ("OPTIONS (hub 'h:1', hubToken 'x')", "hubToken would be readable in the catalogue; leave it out"),
        ("LOCATION 's3a://bucket/orders'", "journals and queues are on a local disk"),
    ],
)
def test_a_wrong_table_is_refused_when_it_is_created(
    catalogue: SparkSession, journal: Path, given: str, says: str
) -> None:
    with pytest.raises(Exception, match=says):
        catalogue.sql(f"CREATE TABLE t USING sej {given}".format(path=journal))


def test_a_table_with_columns_of_its_own_says_how_its_path_is_named(catalogue: SparkSession, journal: Path) -> None:
    catalogue.sql(f"CREATE TABLE t (offset BIGINT) USING sej OPTIONS (path '{journal}')")
    assert "A table of the catalogue keeps its path if its columns are left out" in failure(catalogue.table("t"))
    assert catalogue.sql(f"SELECT offset FROM t WITH ('path' = '{journal}')").count() == 100
    catalogue.sql(f"CREATE TEMPORARY VIEW looked USING sej OPTIONS (path '{journal}')")
    assert catalogue.table("looked").count() == 100


@pytest.mark.parametrize(
    ("root", "layout", "expected"),
    [
        ("shards", "shards", {(None, "orders", index): 10 * (index + 1) for index in range(4)}),
        ("shards", "hub", {("orders", None, index): 10 * (index + 1) for index in range(4)}),
        ("hub_root", "hub", {("berlin", None, None): 3, ("berlin", "orders", 0): 5, ("berlin", "orders", 1): 6,
                             ("tokyo", "orders", 0): 5, ("tokyo", "orders", 1): 6}),
    ],
)  # fmt: skip
def test_names_say_client_prefix_and_shard(
    spark: SparkSession, request: pytest.FixtureRequest, root: str, layout: str, expected: dict[tuple[object, ...], int]
) -> None:
    frame = load(spark, request.getfixturevalue(root), **{"layout": layout} if root == "shards" else {})
    counted = frame.groupBy("client", "prefix", "shard").count().collect()
    assert {(row.client, row.prefix, row.shard): row["count"] for row in counted} == expected


def test_many_paths_are_read_as_one(spark: SparkSession, journal: Path, shards: Path) -> None:
    for paths in ([str(journal), str(shards)], f"{journal.parent}/[jt]*"):
        reader = spark.read.format("sej").option("pushFilters", True)
        found = reader.load(paths).groupBy("source").count().collect()
        assert dict(found) == {str(journal): 100, str(shards): 100}
        assert reader.load(paths).where(f"source = '{shards}' and shard = 1").count() == 20


def test_count_needs_no_spark(journal: Path, shards: Path, hub_root: Path) -> None:
    assert [pipeline.count(path) for path in (journal, shards, hub_root)] == [100, 100, 25]
    assert pipeline.count(hub_root, pattern="tokyo\\..*") == 11


# --- projection


def test_user_schema_is_the_projection_in_its_order(spark: SparkSession, journal: Path) -> None:
    frame = load(spark, journal, "key BINARY, offset BIGINT NOT NULL")
    assert frame.columns == ["key", "offset"]
    assert bytes(frame.where("offset = 8").collect()[0].key) == b"k-1"


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("offset BIGINT, colour STRING", "unknown column 'colour'"),
        ("offset INT", "column 'offset' must be bigint, got int"),
    ],
)
def test_foreign_column_or_type_is_named(spark: SparkSession, journal: Path, schema: str, says: str) -> None:
    with pytest.raises(Exception, match=says):
        load(spark, journal, schema).collect()


# --- traps of Spark 4.3


def test_batches_differ_in_size_but_not_in_schema(spark: SparkSession, tmp_path: Path) -> None:
    with sej.Writer(tmp_path / "j") as writer:
        writer.append(b"large" * 400_000)
        writer.append_many([b""] * 50_000)
        writer.append(b"last", timestamp=sej.NO_TIMESTAMP)
    frame = load(spark, tmp_path / "j")
    assert frame.count() == 50_002
    assert frame.selectExpr("sum(length(value))").collect()[0][0] == 2_000_004
    last = frame.where("offset = 50001").collect()[0]
    assert (last.timestamp, last.timestamp_ns) == (None, sej.NO_TIMESTAMP)


def test_filters_of_one_query_do_not_stay(spark: SparkSession, shards: Path) -> None:
    frame = load(spark, shards)
    assert frame.where("shard = 3").count() == 40
    assert frame.count() == 100
    assert frame.where("shard = 1").union(frame.where("shard = 2")).count() == 50


def test_dataframe_is_a_snapshot(spark: SparkSession, journal: Path) -> None:
    frame = load(spark, journal)
    assert frame.count() == 100
    fill(journal, 5, first=100)
    assert (frame.count(), load(spark, journal).count()) == (100, 105)


def test_filters_are_pushed_where_spark_lets_them(spark: SparkSession, journal: Path) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    try:
        assert "DATA_SOURCE_PUSHDOWN_DISABLED" in failure(load(spark, journal, pushFilters=True).where("offset > 90"))
        assert offsets(load(spark, journal).where("offset > 90")) == list(range(91, 100))
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


# --- which messages


def test_offsets_by_directory(spark: SparkSession, shards: Path) -> None:
    frame = load(
        spark,
        shards,
        startingOffsets='{"orders.2.000": 4, "orders.2.001": -1, "orders.2.002": -2}',
        endingOffsets='{"orders.2.003": 7}',
    )
    counted = {row.shard: row["count"] for row in frame.groupBy("shard").count().collect()}
    assert counted == {0: 6, 2: 30, 3: 7}


def test_times_choose_the_offsets(spark: SparkSession, journal: Path) -> None:
    start = datetime.fromtimestamp(BASE_NS // 10**9 + 20, UTC).isoformat()
    frame = load(spark, journal, startingTimestamp=start, endingTimestamp=BASE_NS // 10**6 + 30_000)
    assert offsets(frame) == list(range(20, 30))
    assert offsets(load(spark, journal, STARTINGtimestamp=BASE_NS + 95 * 10**9)) == list(range(95, 100))


def test_pattern_chooses_directories(spark: SparkSession, hub_root: Path) -> None:
    assert load(spark, hub_root, pattern=r"berlin\.orders\..*").count() == 11
    assert load(spark, hub_root, pattern="*.orders.1.001").count() == 12


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("startingOffsets", '{"nowhere": 3}', "names 'nowhere', which is not read; the directories are journal"),
        ("startingOffsets", '{"journal": -3}', "earliest"),
        ("startingOffsets", "soon", "earliest, latest or JSON"),
        ("startingTimestamp", "2013-01-01", "the time has no zone"),
        ("maxPartitions", "0", "must be a whole number of 1 or more"),
        ("startingOfsets", "latest", "did you mean 'startingOffsets'?"),
        ("layout", "tree", "must be directory, shards or hub"),
    ],
)
def test_bad_option_says_what_was_expected(
    spark: SparkSession, journal: Path, option: str, value: str, says: str
) -> None:
    with pytest.raises(Exception) as caught:
        load(spark, journal, **{option: value}).collect()
    assert says in str(caught.value)


def test_bad_paths_say_what_is_there(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    assert "the path does not exist" in failure(load(spark, tmp_path / "missing"))
    assert "has no jnl/ and holds no SEJ directories" in failure(load(spark, tmp_path / "nothing"))


# --- partitions


def test_many_directories_share_a_partition(spark: SparkSession, tmp_path: Path) -> None:
    for index in range(64):
        fill(tmp_path / f"many.6.{index:03x}", 3)
    frame = load(spark, tmp_path)
    assert frame.rdd.getNumPartitions() == 1
    assert frame.count() == 192


# --- filters


def test_filters_choose_what_is_read(spark: SparkSession, hub_root: Path) -> None:
    def asked(condition: str) -> list[int]:
        return offsets(load(spark, hub_root, pushFilters=True).where(condition))

    assert asked("client = 'tokyo' AND shard = 1 AND offset >= 2 AND offset < 5") == [2, 3, 4]
    assert len(asked("client IN ('tokyo', 'paris')")) == 11
    assert asked("shard IS NULL") == [0, 1, 2]
    assert len(asked("shard IS NOT NULL AND offset IN (1, 4)")) == 8
    assert len(asked("NOT offset = 1")) == 20


def test_filter_on_time_is_exact(spark: SparkSession, journal: Path) -> None:
    def asked(condition: str) -> list[int]:
        return offsets(load(spark, journal, pushFilters=True).where(condition))

    assert asked(f"timestamp_ns > {BASE_NS + 96 * 10**9}") == [97, 98, 99]
    assert asked(f"timestamp_ns < {BASE_NS + 2 * 10**9}") == [0, 1]
    assert asked(f"timestamp_ns BETWEEN {BASE_NS + 7 * 10**9} AND {BASE_NS + 9 * 10**9}") == [7, 8, 9]
    at = datetime.fromtimestamp(BASE_NS // 10**9 + 98, UTC).strftime("%Y-%m-%d %H:%M:%S")
    assert asked(f"timestamp >= '{at}'") == [98, 99]
    assert asked(f"timestamp <= '{at}'") == list(range(99))
    assert asked(f"timestamp = '{at}'") == [98]


def test_times_outside_the_bounds_are_not_sent(tmp_path: Path) -> None:
    times = [40, 10, 20, 30, 5, 20, 50]
    write(tmp_path / "j", [b"x"] * len(times), timestamp=times)
    reader = FilteringSejReader(
        [str(tmp_path / "j")], parse(READ, {}), check_projection(StructType().add("offset", "long", False))
    )
    asked = [GreaterThan(("timestamp_ns",), 9), LessThanOrEqual(("timestamp_ns",), 30), IsNotNull(("timestamp_ns",))]
    assert list(reader.pushFilters(asked)) == asked[:2]
    sent = [offset for part in reader.partitions() for batch in reader.read(part) for offset in batch[0].to_pylist()]
    assert sent == [1, 2, 3, 5]


# --- damage and loss


def test_corruption_names_its_place_or_is_skipped_and_counted(
    spark: SparkSession, journal: Path, tmp_path: Path
) -> None:
    segment = journal / "jnl" / "0000000000000000.jnl"
    overwrite(segment, segment.read_bytes().index(b"v-42") - 30, b"\xff" * 8)
    said = failure(load(spark, journal))
    assert "0000000000000000.jnl, position" in said
    assert "CorruptionError" in said
    report = tmp_path / "report"
    found = offsets(load(spark, journal, onCorruption="skip", damageReport=report))
    lost = sorted(set(range(100)) - set(found))
    assert lost
    assert set(lost) <= {41, 42, 43}
    rows = spark.read.json(str(report)).collect()
    assert sum(row.missing for row in rows) == len(lost)


def test_deleted_messages_are_data_loss(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "j", [b"x"] * 10, first_offset=50)
    start = '{"j": 20}'
    assert "message 20, which was deleted" in failure(load(spark, tmp_path / "j", startingOffsets=start))
    assert "journal ends at 60" in failure(load(spark, tmp_path / "j", endingOffsets='{"j": 61}'))
    assert offsets(load(spark, tmp_path / "j", startingOffsets=start, failOnDataLoss="false")) == list(range(50, 60))
