"""Streams: what comes in which batch, and what happens to journals under a stream that runs."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

import sej
from pipeline.formats import KestrelSource, TextQueueSource
from pipeline.options import OptionError
from tests.pipeline.conftest import BASE_NS, fill, serving
from tests.pipeline.test_losses import reader
from tests.sej.support import overwrite

pytestmark = pytest.mark.spark
LIMIT_S = 60


class Run:
    """One run of a stream until nothing is left; continues from the checkpoint of an earlier run."""

    def __init__(self, spark: SparkSession, root: Path | None, checkpoint: Path, **options: object) -> None:
        self.rows: list[Row] = []
        self.sizes: list[int] = []
        reader = spark.readStream.format("sej").options(**{name: str(value) for name, value in options.items()})
        frame = reader.load(str(root)) if root else reader.load()
        writer = frame.writeStream.foreachBatch(self._take)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        self.ends = [json.loads(progress.json)["sources"][0]["endOffset"] for progress in query.recentProgress]

    def _take(self, frame: DataFrame, batch: int) -> None:
        found = frame.collect()
        self.rows += found
        self.sizes.append(len(found))

    @property
    def offsets(self) -> list[int]:
        return sorted(row.offset for row in self.rows)


def failing(spark: SparkSession, root: Path, checkpoint: Path, **options: object) -> str:
    with pytest.raises(Exception) as caught:
        Run(spark, root, checkpoint, **options)
    return str(caught.value)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def test_a_wrong_option_is_the_error_of_the_query(spark: SparkSession, shards: Path, checkpoint: Path) -> None:
    error = failing(spark, shards, checkpoint, wrong=1)
    assert "the source 'sej' has no option 'wrong' here" in error and "UnboundLocalError" not in error


@pytest.mark.parametrize("source", [KestrelSource, TextQueueSource])
def test_a_source_without_a_stream_says_so(source: type[DataSource]) -> None:
    reader = source({"path": "x"}).streamReader(StructType())
    with pytest.raises(OptionError, match=f"the source '{source.name()}' cannot be read as a stream"):
        reader.initialOffset()


def test_a_limit_is_shared_by_backlog_and_everything_comes_once(
    spark: SparkSession, shards: Path, checkpoint: Path
) -> None:
    run = Run(spark, shards, checkpoint, maxMessagesPerTrigger=40)
    assert run.sizes == [40, 40, 20]
    ends = [[run.ends[batch][f"orders.2.{index:03x}"]["offset"] for index in range(4)] for batch in (0, 2)]
    assert ends == [[4, 8, 12, 16], [10, 20, 30, 40]]
    assert {(row.shard, row.offset) for row in run.rows} == {(i, n) for i in range(4) for n in range(10 * (i + 1))}


def test_limit_in_bytes(spark: SparkSession, tmp_path: Path, checkpoint: Path) -> None:
    with sej.Writer(tmp_path / "j") as writer:
        writer.append_many([b"x" * 974] * 100)
    run = Run(spark, tmp_path / "j", checkpoint, maxBytesPerTrigger=30_000)
    assert run.offsets == list(range(100))
    assert run.sizes == [30, 30, 30, 10]


@pytest.mark.parametrize("through_hub", [False, True])
def test_restart_continues_with_new_messages_directories_and_clients(
    spark: SparkSession, hub_root: Path, checkpoint: Path, through_hub: bool
) -> None:
    with ExitStack() as stack:
        clients = ("berlin", "paris", "tokyo")
        options = stack.enter_context(serving(hub_root, "read", *clients)) if through_hub else {}

        def run() -> list[tuple[str, int]]:
            rows = Run(spark, None if through_hub else hub_root, checkpoint, **options, pattern=r".*\.orders\..*").rows
            return sorted((row.client, row.offset) for row in rows)

        counts = [("berlin", 5), ("berlin", 6), ("tokyo", 5), ("tokyo", 6)]
        assert run() == sorted((client, offset) for client, count in counts for offset in range(count))
        assert run() == []
        fill(hub_root / "tokyo.orders.1.000", 3, first=5)
        fill(hub_root / "paris.orders.1.001", 2)
        assert run() == [("paris", 0), ("paris", 1), ("tokyo", 5), ("tokyo", 6), ("tokyo", 7)]


@pytest.mark.parametrize(
    ("option", "value", "first"),
    [
        ("startingOffsets", "latest", 100),
        ("startingOffsets", '{"journal": 97}', 97),
        ("startingTimestamp", str(BASE_NS + 98 * 10**9), 98),
    ],
)
def test_start(journal: Path, option: str, value: str, first: int) -> None:
    assert reader(journal, **{option: value}).initialOffset()["journal"]["offset"] == first


def test_damage_after_the_last_message_fails_instead_of_hanging(
    spark: SparkSession, journal: Path, checkpoint: Path
) -> None:
    segment = journal / "jnl" / "0000000000000000.jnl"
    overwrite(segment, segment.read_bytes().index(b"v-42") - 30, b"\xff" * 8)
    assert "CorruptionError" in failing(spark, journal, checkpoint)


def test_a_reader_is_kept_as_soon_as_the_batch_is_done(spark: SparkSession, journal: Path, checkpoint: Path) -> None:
    with sej.Offset(journal, "spark"):
        assert "reader 'spark'" in failing(spark, journal, checkpoint.with_name("second"), reader="spark")
    Run(spark, journal, checkpoint, reader="spark", maxMessagesPerTrigger=60)
    assert sej.read_offset(journal, "spark") == 100  # the last batch too, though Spark never commits it


# --- a stream that runs


class Live:
    """A stream that runs until it is stopped, and what it has brought so far."""

    def __init__(self, spark: SparkSession, root: Path, checkpoint: Path, **options: object) -> None:
        self.values: list[bytes] = []
        self._changed = threading.Condition()
        reader = spark.readStream.format("sej").options(**{name: str(value) for name, value in options.items()})
        writer = reader.schema("value BINARY").load(str(root)).writeStream.foreachBatch(self._take)
        self.query = writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="0 seconds").start()

    def _take(self, frame: DataFrame, _: int) -> None:
        found = [bytes(row.value) for row in frame.collect()]
        with self._changed:
            self.values += found
            self._changed.notify_all()

    def wait_for(self, values: list[bytes]) -> None:
        """Until exactly these have come, each once."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.values) >= len(values) or not self.query.isActive, LIMIT_S)
            assert sorted(self.values) == sorted(values), str(self.query.exception())

    def failure(self) -> str:
        """What it fails with."""
        with pytest.raises(Exception) as caught:
            assert self.query.awaitTermination(LIMIT_S)
        return str(caught.value)


@pytest.fixture
def live(spark: SparkSession, tmp_path: Path) -> Iterator[Callable[..., Live]]:
    started: list[Live] = []

    def start(root: Path, **options: object) -> Live:
        started.append(Live(spark, root, tmp_path / f"checkpoint-{len(started)}", **options))
        return started[-1]

    yield start
    for stream in started:
        stream.query.stop()


def values_of(path: Path, count: int, first: int = 0) -> list[bytes]:
    """Append messages v-first, ... in small segments; returns their values."""
    values = [b"v-%d" % number for number in range(first, first + count)]
    with sej.Writer(path, segment_bytes=1000) as writer:
        writer.append_many(values)
    return values


def test_rotated_cleaned_and_torn(live: Callable[..., Live], tmp_path: Path) -> None:
    path = tmp_path / "j"
    wanted = values_of(path, 100)
    stream = live(path, reader="live", maxMessagesPerTrigger=150)
    stream.wait_for(wanted)

    wanted += values_of(path, 200, 100)  # rotated a few times
    stream.wait_for(wanted)

    wanted += values_of(path, 10, 300)
    stream.wait_for(wanted)
    journal = sej.Journal(path)
    removed = journal.clean(max_bytes=1)  # goes as far as the stream has read, and keeps the rest
    assert removed
    assert journal.first_offset <= 310
    wanted += values_of(path, 100, 310)
    stream.wait_for(wanted)

    last = sorted((path / "jnl").iterdir())[-1]
    whole = last.read_bytes()
    with last.open("ab") as file:
        file.write(whole[:20])  # a writer died inside a message
    stream.query.processAllAvailable()
    with sej.Writer(path) as writer:
        assert writer.recovery is not None
    wanted += values_of(path, 50, 410)
    stream.wait_for(wanted)


def test_new_and_vanished_directories_under_a_running_stream(live: Callable[..., Live], tmp_path: Path) -> None:
    for index in range(2):
        fill(tmp_path / "tree" / f"orders.1.{index:03x}", 5, tag=f"s{index}")
    stream = live(tmp_path / "tree")
    wanted = [b"s%d-%d" % (index, number) for index in range(2) for number in range(5)]
    stream.wait_for(wanted)
    fill(tmp_path / "tree" / "payments.1.001", 5, tag="new")
    stream.wait_for(wanted + [b"new-%d" % number for number in range(5)])
    (tmp_path / "tree" / "orders.1.001").rename(tmp_path / "aside")
    assert "'orders.1.001', which was removed" in stream.failure()
