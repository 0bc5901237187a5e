from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import hub
from hub.wire import Server
from tests.pipeline.conftest import fill

pytestmark = pytest.mark.spark


@pytest.fixture
def address(hub_root: Path) -> Iterator[str]:
    """A real server before the hub's root."""
    with hub.Store(hub_root) as store, Server(store, "127.0.0.1:0") as server:
        yield server.address


def test_batch_through_the_hub_equals_the_disk(spark: SparkSession, hub_root: Path, address: str) -> None:
    near = spark.read.format("sej").load(str(hub_root)).where("client = 'berlin'")
    far = spark.read.format("sej").option("hub", address).load(["berlin.orders.1", "berlin.plain.log"])
    order = ["prefix", "shard", "offset"]
    assert far.orderBy(order).collect() == near.orderBy(order).collect()
    assert far.where("shard = 1 AND offset >= 4").count() == 2


def test_offsets_through_the_hub(spark: SparkSession, address: str) -> None:
    frame = spark.read.format("sej").option("hub", address).option("startingOffsets", '{"tokyo.orders.1.001": 4}')
    assert frame.option("minPartitions", 2).load("tokyo.orders.1.001").count() == 2


def test_stream_through_the_hub(spark: SparkSession, hub_root: Path, address: str, tmp_path: Path) -> None:
    found: list[int] = []

    def run() -> None:
        frame = spark.readStream.format("sej").option("hub", address).option("maxMessagesPerTrigger", 4)
        query = frame.load("tokyo.orders.1").writeStream.foreachBatch(
            lambda rows, _: found.extend(row.offset for row in rows.collect())
        )
        query.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()

    run()
    assert sorted(found) == sorted([*range(5), *range(6)])
    fill(hub_root / "tokyo.orders.1.000", 3, first=5)
    run()
    assert sorted(found) == sorted([*range(8), *range(6)])


@pytest.mark.parametrize(
    ("name", "says"),
    [("berlin.nothing.1", "no shard of"), ("berlin.other.log", "no journal 'berlin.other.log'"), ("x", "load names")],
)
def test_what_the_hub_does_not_have_is_named(spark: SparkSession, address: str, name: str, says: str) -> None:
    with pytest.raises(Exception, match=says):
        spark.read.format("sej").option("hub", address).load(name).collect()
