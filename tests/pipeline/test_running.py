"""What happens to journals under a stream that runs: nothing is lost, nothing comes twice, and loss is loud."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import sej
from tests.pipeline.conftest import fill

pytestmark = pytest.mark.spark
LIMIT_S = 60


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
