"""Spark through a real server with TLS and tokens: the same rows as from the disk."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import hub
import pipeline
import sej
from hub.readers import holders
from hub.tokens import Grant, hash_token
from hub.wire import Client, ClientTLS, Server, Tokens
from pipeline import jobs
from pipeline.connection import Remote
from pipeline.reading import remote
from pipeline.reading.discovery import Origin, Slice
from tests.hub.support import until
from tests.pipeline.conftest import BASE_NS, fill, serving

pytestmark = pytest.mark.spark
Load = Callable[..., DataFrame]


@pytest.fixture
def options(hub_root: Path) -> Iterator[dict[str, str]]:
    """How to reach a real server before the hub's root; its token is good for berlin, tokyo and paris."""
    with serving(hub_root, "read", "berlin", "tokyo", "paris") as options:
        fill(hub_root / "moscow.orders.1.000", 9, tag="hidden")
        yield options


@pytest.fixture
def far(spark: SparkSession, options: dict[str, str]) -> Load:
    def load(*names: str, **more: object) -> DataFrame:
        given = {name: str(value) for name, value in more.items()}
        reader = spark.read.format("sej").options(**options).options(**given)
        return reader.load(list(names)) if names else reader.load()

    return load


def test_everything_that_may_be_read_equals_the_disk(spark: SparkSession, hub_root: Path, far: Load) -> None:
    near = spark.read.format("sej").load(str(hub_root)).where("client <> 'moscow'")
    order = ["client", "prefix", "shard", "offset"]
    assert far().orderBy(order).collect() == near.orderBy(order).collect()
    assert far().count() == 25


def test_filters_offsets_times_and_partitions_as_on_a_disk(far: Load) -> None:
    assert far("tokyo.orders.1.001", pushFilters=True).where("offset >= 4").count() == 2
    start = '{"tokyo.orders.1.001": 4}'
    assert far("tokyo.orders.1.001", startingOffsets=start).count() == 2
    times = {"startingTimestamp": BASE_NS + 2 * 10**9, "endingTimestamp": BASE_NS + 4 * 10**9}
    assert [row.offset for row in far("tokyo.orders.1.000", **times).collect()] == [2, 3]
    assert far("tokyo", minPartitions=4).rdd.getNumPartitions() == 4
    assert far("tokyo", minPartitions=4).count() == 11


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("berlin.nothing.1", "no readable journal, sharded journal or client 'berlin.nothing.1'"),
        ("moscow", "no readable journal, sharded journal or client 'moscow'"),
        ("x/y", "no readable journal, sharded journal or client"),
    ],
)
def test_what_the_hub_does_not_give_is_named(far: Load, name: str, says: str) -> None:
    with pytest.raises(Exception, match=says):
        far(name).collect()
    with pytest.raises(Exception, match="layout is for a path"):
        far("tokyo", layout="hub").collect()


def test_stream_of_what_is_not_there_fails(spark: SparkSession, options: dict[str, str], tmp_path: Path) -> None:
    frame = spark.readStream.format("sej").options(**options).load("paris")
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    with pytest.raises(Exception, match="no readable journal, sharded journal or client 'paris'"):
        query.awaitTermination(60)


def test_a_token_that_is_missing_or_may_not_read_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    tokens = Tokens([Grant(hash_token("known"), "write", ("berlin",))])
    with hub.Store(tmp_path) as store, Server(store, "127.0.0.1:0", tokens=tokens) as server:
        reader = spark.read.format("sej").option("hub", server.address)
        with pytest.raises(Exception, match="requires a token"):
            reader.load().count()
        with pytest.raises(Exception, match="the token lets you write only"):
            reader.option("hubToken", "known").load().count()


@pytest.mark.parametrize("through_hub", [False, True])
def test_a_changed_byte_in_a_value_is_noticed_unless_that_is_turned_off(
    spark: SparkSession, hub_root: Path, far: Load, through_hub: bool
) -> None:
    path = hub_root / "berlin.plain.log"
    with sej.Writer(path) as writer:
        writer.end.rotate()  # writes the index, which has the checksums
    segment = path / "jnl" / f"{0:016x}.jnl"
    segment.write_bytes(segment.read_bytes().replace(b"plain-1", b"plane-1"))

    def rows(**options: object) -> list[bytes]:
        near = spark.read.format("sej").options(**{name: str(value) for name, value in options.items()})
        frame = far("berlin.plain.log", **options) if through_hub else near.load(str(path))
        return [bytes(row.value) for row in frame.orderBy("offset").collect()]

    with pytest.raises(Exception, match="CorruptionError"):
        rows()
    assert rows(verify=False) == [b"plain-0", b"plane-1", b"plain-2"]


@pytest.mark.long
def test_jobs_read_from_a_hub(spark: SparkSession, hub_root: Path, options: dict[str, str], tmp_path: Path) -> None:
    way: dict[str, Any] = {"hub": options["hub"], "token": options["hubToken"], "tls": ClientTLS(options["hubCa"])}
    assert jobs.archive(spark, "berlin", tmp_path / "archive", **way) == 14
    assert jobs.archive(spark, "berlin", tmp_path / "archive", **way) == 0
    assert sum(stat.messages for stat in jobs.stats(spark, "tokyo", **way)) == 11
    jobs.compact(spark, "tokyo.orders.1", tmp_path / "compacted", **way)
    assert 0 < pipeline.count(tmp_path / "compacted") <= 11
    jobs.dedupe(spark, "tokyo.orders.1", tmp_path / "distinct", **way)
    jobs.dedupe(spark, "tokyo.orders.1", tmp_path / "distinct", **way)  # replaces what it wrote
    assert pipeline.count(tmp_path / "distinct") == 11
    assert jobs.reshard(spark, "tokyo.orders.1", tmp_path / "wider", prefix="orders", bits=2, **way) == 11
    assert pipeline.count(None, **way) == 25


def test_a_stream_keeps_its_progress_on_the_hub(spark: SparkSession, hub_root: Path, tmp_path: Path) -> None:
    with hub.Store(hub_root) as store, Server(store, "127.0.0.1:0") as server:
        frame = spark.readStream.format("sej").option("hub", server.address).option("reader", "report").load("tokyo")

        def run() -> None:
            writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
            writer.trigger(availableNow=True).start().awaitTermination()

        run()
        until(lambda: not holders(str(hub_root)))  # it was given back: a lease that ended would still be recorded
        store.put("tokyo", "orders.1.000", [sej.Message(5, BASE_NS, 0, b"k", b"new")])
        run()  # names the end of the run before
        kept = {name: sej.read_offset(hub_root / f"tokyo.orders.1.{name}", "report") for name in ("000", "001")}
        assert kept["000"] in (5, 6)
        assert kept["001"] == 6
        assert {journal.source.client for journal in hub.stats(hub_root) if "report" in journal.lag} == {"tokyo"}


def test_reading_continues_when_the_hub_is_back(tmp_path: Path, port: int) -> None:
    with sej.Writer(tmp_path / "berlin.large") as writer:
        writer.append_many([b"x" * 1000] * 20_000)
    address = f"127.0.0.1:{port}"
    with hub.Store(tmp_path) as store:
        first = Server(store, address)
        rows = remote.read(Remote((address,)), Slice(Origin("", "berlin.large", "berlin"), 0, 20_000, 1), ("value",))
        seen = [next(rows)]
        back: list[Server] = []

        def restart() -> None:
            first.close()
            back.append(Server(store, address))

        thread = threading.Thread(target=restart)
        thread.start()
        seen += rows
        thread.join()
        with back[0], Client(address) as client:
            assert client.journals()[0].next_offset == 20_000
    assert [rows.first for rows in seen] == [
        sum(rows.found.messages for rows in seen[:turn]) for turn in range(len(seen))
    ]
    assert sum(rows.found.messages for rows in seen) == 20_000
