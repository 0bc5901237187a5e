"""Through a hub: Spark reads and writes the same rows as on a disk, which is not shared; and attempts to reach it."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import hub
import pipeline
import sej
from hub.errors import UnavailableError
from hub.readers import holders
from hub.wire import Client, ClientTLS, Server
from hub.wire.status import HandshakeError
from pipeline import cli, connection, jobs
from pipeline.connection import Remote, Retry
from pipeline.options import READ, WRITE, OptionError, parse
from pipeline.reading import remote
from pipeline.reading.discovery import EVERYTHING, Origin, Slice, Way
from pipeline.writing.sink import batch_sink, stream_sink
from tests.hub.support import ROOT, Killed, until
from tests.pipeline.conftest import BASE_NS, fill, serving
from tests.pipeline.copying import copy
from tests.pipeline.test_sink import numbers, save, tree_values, wanted

pytestmark = pytest.mark.spark
Load = Callable[..., DataFrame]


@pytest.fixture
def reading(hub_root: Path) -> Iterator[dict[str, str]]:
    """How to reach a real server before the hub's root; its token is good for berlin, tokyo and paris."""
    with serving(hub_root, "read", "berlin", "tokyo", "paris") as options:
        fill(hub_root / "moscow.orders.1.000", 9, tag="hidden")
        yield options


@pytest.fixture
def far(spark: SparkSession, reading: dict[str, str]) -> Load:
    def load(*names: str, **more: object) -> DataFrame:
        given = {name: str(value) for name, value in more.items()}
        reader = spark.read.format("sej").options(**reading, **given)
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


def test_what_the_hub_does_not_give_is_named(far: Load) -> None:
    for name in ("berlin.nothing.1", "moscow", "x/y"):
        with pytest.raises(Exception, match=f"no readable journal, sharded journal or client '{name}'"):
            far(name).collect()
    with pytest.raises(Exception, match="layout is for a path"):
        far("tokyo", layout="hub").collect()


def test_stream_of_what_is_not_there_fails(spark: SparkSession, reading: dict[str, str], tmp_path: Path) -> None:
    frame = spark.readStream.format("sej").options(**reading).load("paris")
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    with pytest.raises(Exception, match="no readable journal, sharded journal or client 'paris'"):
        query.awaitTermination(60)


def test_a_changed_byte_in_a_value_is_noticed_unless_that_is_turned_off(hub_root: Path, far: Load) -> None:
    path = hub_root / "berlin.plain.log"
    with sej.Writer(path) as writer:
        writer.end.rotate()  # writes the index, which has the checksums
    segment = path / "jnl" / f"{0:016x}.jnl"
    segment.write_bytes(segment.read_bytes().replace(b"plain-1", b"plane-1"))

    def rows(**options: object) -> list[bytes]:
        return [bytes(row.value) for row in far("berlin.plain.log", **options).orderBy("offset").collect()]

    with pytest.raises(Exception, match="CorruptionError"):
        rows()
    assert rows(verify=False) == [b"plain-0", b"plane-1", b"plain-2"]


@pytest.mark.long
def test_jobs_read_from_a_hub(spark: SparkSession, reading: dict[str, str], tmp_path: Path) -> None:
    way: dict[str, Any] = {"hub": reading["hub"], "token": reading["hubToken"], "tls": ClientTLS(reading["hubCa"])}
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
        rows = remote.read(
            Slice(Origin("", "berlin.large", "berlin"), 0, 20_000, 1),
            ("value",),
            Way(remote=Remote((address,))),
            EVERYTHING,
        )
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


# --- writing


@pytest.mark.timeout(60)
def test_a_stream_ends_though_the_hub_is_out_of_reach(
    port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pipeline.writing.places._SOON_S", 0.2)
    given = {"hub": f"127.0.0.1:{port}", "prefix": "orders"}
    options, schema = parse(WRITE, {**given, "txnAppId": "copy"}), StructType().add("value", "binary")
    assert options["hubRetryFor"] == 600
    writer = stream_sink("berlin", options, schema, overwrite=False, checkpoint=None)
    writer.abort([], 7)
    assert "will remove the staged rows" in caplog.messages[-1]
    with pytest.raises(hub.UnavailableError):
        batch_sink("berlin", parse(WRITE, {**given, "hubRetryFor": "0.2s"}), schema, overwrite=False)


@pytest.mark.parametrize(
    ("more", "client", "says"),
    [
        ({"prefix": "o"}, "tokyo", "does not let you append for 'tokyo'"),
        ({}, "berlin", "set prefix, or prefix and bits"),
        ({"prefix": "o", "lockTimeout": 3}, "berlin", "the option lockTimeout applies to a path"),
        ({"prefix": "o", "bits": 1}, "a/b", "client id must be"),
    ],
)
def test_what_a_hub_refuses_fails_before_a_row_is_sent(
    spark: SparkSession, options: dict[str, str], tmp_path: Path, more: dict[str, Any], client: str, says: str
) -> None:
    with pytest.raises(Exception, match=says):
        save(numbers(spark, 10), client, **options, **more)
    with pytest.raises(Exception, match="cannot be overwritten"):
        save(numbers(spark, 10), "berlin", "overwrite", **options, prefix="o")
    assert tree_values(tmp_path / "hub") == []


def test_a_job_continues_when_a_killed_hub_is_back(spark: SparkSession, tmp_path: Path, port: int) -> None:
    address, root = f"127.0.0.1:{port}", tmp_path / "hub"
    server = Killed("--address", address, root)

    def kill() -> None:
        until(lambda: list(root.glob(".staging/task-*/*.rows")))
        server.restart()

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        wide = numbers(spark, 20_000).selectExpr("key", "concat(value, repeat('x', 1000)) AS value")
        save(wide, "berlin", hub=address, prefix="orders", bits=1)
        thread.join()
        assert sorted(value.rstrip(b"x") for value in tree_values(root)) == wanted(20_000)
    finally:
        thread.join()
        server.kill()


@pytest.mark.long
@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_every_message_once_though_drivers_executors_and_the_hub_are_killed(
    spark: SparkSession, spark_home: Path, tmp_path: Path, port: int, torture_s: float
) -> None:
    address, root, source = f"127.0.0.1:{port}", tmp_path / "hub", tmp_path / "from" / "orders.1.000"
    fill(source, 4000)
    server = Killed("--address", address, root)
    deadline, due = time.monotonic() + torture_s, 1000
    try:
        while due == 1000 or time.monotonic() < deadline:
            command = [sys.executable, "-m", "tests.pipeline.copying", str(source.parent), str(tmp_path / "to")]
            python = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), str(spark_home / "python"))
            # Its JVM and workers die with it.
            run = subprocess.Popen([*command, address], cwd=ROOT, env={**os.environ, **python}, start_new_session=True)
            until(lambda: run.poll() is not None or len(tree_values(root)) >= due, 120)  # noqa: B023 called in this round only
            server.kill()
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
            found = tree_values(root)
            assert len(found) == len(set(found))
            fill(source, 2000, first=3000 + due)
            due += 2000
            server.start()
        copy(spark, str(source.parent), str(tmp_path / "to"), once=True, hub=address)
        assert tree_values(root) == wanted(3000 + due)
    finally:
        server.kill()


# --- attempts


class Time:
    """Takes the place of the module in ``pipeline.connection``."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    """A clock without jitter."""
    found = Time()
    monkeypatch.setattr(connection, "time", found)
    monkeypatch.setattr("random.uniform", max)
    return found


def never_reached(attempts: Retry) -> None:
    while True:
        attempts.wait(UnavailableError("down"))


def test_waits_grow_to_ten_seconds_and_end_with_the_time(clock: Time, caplog: pytest.LogCaptureFixture) -> None:
    attempts = Retry(600.0, "hubRetryFor")

    with caplog.at_level(logging.WARNING), pytest.raises(UnavailableError, match="down") as ended:
        never_reached(attempts)
    assert clock.slept[:8] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0]
    assert set(clock.slept[8:-1]) == {10.0}
    assert clock.now == 700.0
    assert ended.value.__notes__ == [f"{len(clock.slept) + 1} attempts in 10 min (hubRetryFor)"]
    assert caplog.messages[0] == "down; attempt 1 failed, trying again for 10 min (hubRetryFor)"
    assert len(caplog.messages) < len(clock.slept)  # one line in ten seconds


def test_a_hub_that_answers_again_starts_the_time_again(clock: Time) -> None:
    attempts = Retry(1.0)
    for _ in range(3):
        attempts.wait(UnavailableError("down"))
    attempts.reached()
    clock.now += 1000
    attempts.wait(UnavailableError("down"))
    assert clock.slept[-1] == 0.1


def test_what_cannot_heal_is_not_repeated(clock: Time) -> None:
    with pytest.raises(HandshakeError):
        Retry(600.0).wait(HandshakeError("CERTIFICATE_VERIFY_FAILED"))
    assert clock.slept == []


def test_a_relative_address_means_the_directory_of_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for way in (Remote.named("h:1,unix:hub.sock", None, None), Remote.of(parse(READ, {"hub": "h:1,unix:hub.sock"}))):
        assert way is not None
        assert way.addresses == ("h:1", f"unix:{tmp_path}/hub.sock")


@pytest.mark.parametrize("given", ["localhost", "h:1,localhost", "h:99999"])
def test_an_address_without_a_port_is_an_error_before_a_connection(given: str) -> None:
    """The rule is that of ``hub.wire.Client``: gRPC would try port 443, for ten minutes with a stream."""
    wrong = "is not the address of a hub; expected host:port"
    with pytest.raises(OptionError, match=wrong):
        pipeline.table("berlin", hub=given)
    with pytest.raises(OptionError, match=wrong):
        pipeline.count("berlin", hub=given.split(","))
    for options in (READ, WRITE):
        with pytest.raises(OptionError, match=wrong):
            Remote.of(parse(options, {"hub": given}))
    done = CliRunner().invoke(cli.app, ["count", "--hub", given, "berlin"])
    assert done.exit_code == 2
    assert wrong in done.output


@pytest.mark.parametrize(("given", "seconds"), [("90", 90.0), ("90s", 90.0), ("10m", 600.0), ("0", 0.0)])
def test_the_option(given: str, seconds: float) -> None:
    way = Remote.of(parse(READ, {"hub": "h:1", "hubRetryFor": given}))
    assert way is not None
    assert (way.retry_s, way.retry_setting) == (seconds, "hubRetryFor")
    with pytest.raises(OptionError, match="hubRetryFor must be seconds"):
        parse(READ, {"hubRetryFor": "soon"})
