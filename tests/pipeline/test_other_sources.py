import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import kestrel
from kestrel import segmented
from pipeline import Behind, Lag, OptionError
from pipeline.formats import TextQueueSource
from pipeline.reading.rows import KestrelItems
from pipeline.writing.on_file import _append_once
from sej.system.sealed import seal
from tests.pipeline.conftest import fill
from textqueue import InvalidTextError

pytestmark = pytest.mark.spark


def test_text_queue_is_a_table_of_all_its_entries(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "jobs.tq"
    path.write_text("#hello\n-ship 17\n\\retries=3 \n")
    rows = spark.read.format("textqueue").load(str(path)).collect()
    assert [row[1:] for row in rows] == [(0, "comment", "hello", []), (7, "queued", "ship 17", ["retries=3 "])]
    chosen = spark.read.format("textqueue").schema("value STRING").load(str(tmp_path))
    assert [row.value for row in chosen.collect()] == ["hello", "ship 17"]


def test_rows_are_appended_to_a_text_queue_once(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "review.tq"
    path.write_text("-first\n")
    rows = spark.sql("SELECT concat('flight ', id) AS value FROM range(3)")
    for version in (1, 1, 2):
        writer = rows.write.format("textqueue").mode("append").option("txnAppId", "late").option("txnVersion", version)
        writer.save(str(path))
    rows.write.format("textqueue").mode("append").save(str(path))
    assert path.read_text().splitlines() == ["-first", *(["-flight 0", "-flight 1", "-flight 2"] * 3)]
    with pytest.raises(Exception, match="cannot be overwritten"):
        rows.write.format("textqueue").mode("overwrite").save(str(path))


@pytest.mark.parametrize(
    ("columns", "says"),
    [("'x' AS value, 1 AS status", "column 'status' cannot be written: a row becomes"),
     ("1 AS value", "column 'value' must be string, got int; cast it")],
)  # fmt: skip
def test_a_text_queue_takes_nothing_but_text(spark: SparkSession, tmp_path: Path, columns: str, says: str) -> None:
    with pytest.raises(Exception, match=says):
        spark.sql(f"SELECT {columns}").write.format("textqueue").mode("append").save(str(tmp_path / "review.tq"))
    assert not (tmp_path / "review.tq").exists()


BEFORE = b"-first\r\n-unended"


@pytest.mark.parametrize(
    ("size", "there", "after"),
    [
        (0, b"", b"-a\n-b\n"),
        (0, b"=a\n-b\n", b"=a\n-b\n"),  # a person has marked a line already
        (len(BEFORE), BEFORE + b"\r\n-a\r\n-", BEFORE + b"\r\n-a\r\n-b\r\n"),
    ],
)
def test_an_append_that_died_is_finished_unless_it_happened(
    tmp_path: Path, size: int, there: bytes, after: bytes
) -> None:
    path, ledger = tmp_path / "review.tq", tmp_path / ".review.tq.spark"
    intent = {"name": "late", "number": 0, "keep": True, "rows": ["a", "b"], "before": 0, "size": size}
    path.write_bytes(there)
    ledger.write_bytes(seal(ledger, {"done": {}, "intent": intent}))
    _append_once(str(path), "late", 0, ["a", "b"], keep=True)
    assert path.read_bytes() == after


def test_a_row_that_cannot_be_written_does_not_stop_later_jobs(tmp_path: Path) -> None:
    path = tmp_path / "review.tq"
    with pytest.raises(InvalidTextError, match="ends with a carriage return"):
        _append_once(str(path), "one", 0, ["a", "b\r\nc"], keep=True)
    _append_once(str(path), "other", 0, ["a"], keep=True)
    assert path.read_bytes() == b"-a\n"


def test_only_a_regular_file_is_a_text_queue(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.tq")
    (tmp_path / "b.tq").write_text("-b\n")
    reader = TextQueueSource({"path": str(tmp_path)}).reader(StructType().add("value", "string"))
    assert len(reader.partitions()) == 1


def test_stream_into_a_text_queue(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    frame = spark.readStream.format("sej").option("maxMessagesPerTrigger", 60).load(str(journal))
    texts = frame.selectExpr("CAST(value AS STRING) AS value")
    for _ in range(2):
        writer = texts.writeStream.format("textqueue").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start(str(tmp_path / "out.tq")).awaitTermination()
    assert (tmp_path / "out.tq").read_text().splitlines() == [f"-v-{number}" for number in range(100)]


def test_queues_of_both_kestrels_are_tables(spark: SparkSession, tmp_path: Path) -> None:
    reader = spark.read.format("kestrel")
    with kestrel.Queue(tmp_path, "cars") as queue:
        for number in range(2):
            queue.put(b"car %d" % number)
        queue.reserve()
        rows = reader.option("queue", "cars").load(str(tmp_path)).collect()
    assert [(row.queue, row.state, bytes(row.data)) for row in rows] == [
        ("cars", "reserved", b"car 0"),
        ("cars", "ready", b"car 1"),
    ]
    with segmented.Queue(tmp_path, "jobs") as jobs:
        jobs.put_many([b"a", b"b"])
    rows = reader.option("queue", "jobs").schema("id BIGINT, data BINARY").load(str(tmp_path)).collect()
    assert [(row.id, bytes(row.data)) for row in rows] == [(1, b"a"), (2, b"b")]


def test_a_missing_kestrel_queue_or_reader_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(kestrel.KestrelError, match="queue 'jobs' has no file"):
        list(KestrelItems([]).rows((str(tmp_path), "jobs")))
    with segmented.Queue(tmp_path, "jobs") as queue:
        queue.reader("alpha")
    assert list(KestrelItems([], reader="alpha").rows((str(tmp_path), "jobs"))) == []
    with pytest.raises(OptionError, match="no reader 'beta'; it has: 'alpha'"):
        list(KestrelItems([], reader="beta").rows((str(tmp_path), "jobs")))


def test_lag_is_reported_and_exported(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    seen: list[Behind] = []
    lag = Lag(seen.append, metrics=str(tmp_path / "lag.prom"))
    spark.streams.addListener(lag)
    try:
        fill(journal, 20, first=100)
        frame = spark.readStream.format("sej").option("maxMessagesPerTrigger", 100).load(str(journal))
        writer = frame.writeStream.format("noop").queryName("lagging")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    finally:
        spark.streams.removeListener(lag)
    assert [(behind.messages, behind.lag) for behind in seen if behind.messages] == [
        (100, {"journal": 20}),
        (20, {"journal": 0}),
    ]
    assert 'directory="journal"} 0' in (tmp_path / "lag.prom").read_text()
