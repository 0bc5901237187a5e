"""Spark on a cluster whose machines share no disk: a master, two workers and a hub. Each process of it is killed."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import sej
from hub.naming import find_sources
from tests.hub.support import until
from tests.pipeline.cluster import WORKERS, Cluster, copy, driver_process, hub_process
from tests.pipeline.conftest import fill

pytestmark = [pytest.mark.spark, pytest.mark.long]
TORTURE = "SEJ_TORTURE_S" in os.environ
"""Whether the driver is a process that is killed: it is the most expensive one to start."""
HUB_NEEDED = "executors need the same disk"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, spark_home: Path) -> Iterator[Cluster]:
    """The cluster of this module; this process is a driver, with the JVM that all tests share."""
    running = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        with chdir(spark_home / "here"):
            yield running
    finally:
        running.stop_session()
        running.close()


@pytest.fixture
def driver(cluster: Cluster) -> SparkSession:
    """This process's session, with an executor on each worker."""
    session = cluster.session()
    until(lambda: all(cluster.executors(name) for name in WORKERS))
    return session


@pytest.fixture
def address(port: int) -> str:
    """Where a hub listens, also after it was killed."""
    return f"127.0.0.1:{port}"


@contextmanager
def query_here(cluster: Cluster, address: str, checkpoint: str) -> Iterator[None]:
    """A query of this process, stopped at the end."""
    query = copy(cluster.session(), address, checkpoint, once=False)
    yield
    query.stop()


def written(root: Path) -> list[bytes]:
    """Return the values of the client ``spark`` on a hub, sorted."""
    found = []
    for source in find_sources(str(root)):
        if source.client == "spark":
            with sej.Scanner(root / source.name) as scanner:
                found += [message.value.rstrip(b"x") for message in scanner]
    return sorted(found)


def wait_for(root: Path, count: int) -> None:
    """Wait until so many messages were copied."""
    sources = [root / f"spark.orders.1.{shard:03x}" for shard in range(2)]
    until(lambda: sum(sej.Journal(source).end_offset for source in sources if (source / "jnl").exists()) >= count, 180)


def wanted(count: int) -> list[bytes]:
    return sorted(b"v-%d" % number for number in range(count))


def test_executors_that_do_not_see_the_journals_say_so(driver: SparkSession, cluster: Cluster) -> None:
    fill(cluster.near / "orders", 100)
    with pytest.raises(Exception, match=rf"{cluster.disk}/orders: host .* cannot see this path.*{HUB_NEEDED}"):
        driver.read.format("sej").load(str(cluster.disk / "orders")).collect()


def test_a_batch_is_written_and_read_once_though_an_executor_is_killed(
    driver: SparkSession, cluster: Cluster, address: str, tmp_path: Path
) -> None:
    columns = ["concat('k-', id % 50) AS key", "concat('v-', id, repeat('x', 1000)) AS value"]
    rows = driver.range(0, 20_000, 1, 2).selectExpr(*columns)
    with hub_process(tmp_path, address) as server:

        def kill() -> None:
            until(lambda: list(tmp_path.glob(".staging/task-*/*.rows")))
            server.send_signal(signal.SIGSTOP)  # so that the tasks do not end before the executor does
            os.kill(cluster.executors("worker-1")[0], signal.SIGKILL)
            server.send_signal(signal.SIGCONT)

        killer = threading.Thread(target=kill)
        killer.start()
        rows.write.format("sej").options(hub=address, prefix="orders", bits=1).mode("append").save("spark")
        killer.join()
        assert written(tmp_path) == wanted(20_000)
        back = driver.read.format("sej").options(hub=address, minPartitions=4).load("spark.orders.1")
        assert sorted(bytes(row.value).rstrip(b"x") for row in back.select("value").collect()) == wanted(20_000)


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_a_stream_copies_each_message_once_though_worker_hub_and_driver_are_killed(
    cluster: Cluster, address: str, tmp_path: Path, torture_s: float
) -> None:
    root, checkpoint = tmp_path / "hub", str(tmp_path / "checkpoint")
    count, deadline = 0, time.monotonic() + torture_s
    if TORTURE:
        cluster.stop_session()
    while not count or time.monotonic() < deadline:
        fill(root / "producer.orders.1.000", 1600, first=count)
        start = driver_process if TORTURE else query_here
        with ExitStack() as hubs, start(cluster, address, checkpoint):
            with hub_process(root, address):
                wait_for(root, count + 400)
                cluster.kill_worker("worker-2")
                cluster.start_worker("worker-2")
                wait_for(root, count + 800)
            hubs.enter_context(hub_process(root, address))  # the first one was killed
            wait_for(root, count + 1200)
            # The query ends before the hub, whose return it would wait for.
        assert len(set(written(root))) == len(written(root))
        count += 1600
    fill(root / "producer.orders.1.001", 100, first=count)
    with hub_process(root, address):
        copy(cluster.session(), address, checkpoint, once=True).awaitTermination()
    assert written(root) == wanted(count + 100)
