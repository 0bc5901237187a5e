"""Spark writes through a real hub with TLS and tokens: every row once, and no disk is shared."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import hub
import sej
from hub.naming import find_sources
from hub.tokens import Grant, hash_token
from hub.wire import Server, ServerTLS, Tokens, make_token
from hub.wire.client import JobCalls
from pipeline import OptionError
from pipeline.connection import Remote
from pipeline.options import WRITE, parse
from pipeline.writing.on_hub import OnHub
from pipeline.writing.sink import SejStreamWriter, SejWriter
from tests.hub.support import CERTIFICATES, ROOT, until
from tests.pipeline.conftest import fill
from tests.pipeline.copying import copy

pytestmark = pytest.mark.spark
HUB = [sys.executable, "-c", "from hub.cli import app; app(prog_name='sej hub')"]


@pytest.fixture
def options(tmp_path: Path) -> Iterator[dict[str, str]]:
    """How to reach a hub with an empty root; the token may append and not read."""
    token = make_token()
    tls = ServerTLS(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
    tokens = Tokens([Grant(hash_token(token), "append", ("berlin",))])
    with hub.Store(tmp_path / "hub") as store, Server(store, "127.0.0.1:0", tls=tls, tokens=tokens) as server:
        yield {"hub": server.address, "hubToken": token, "hubCa": str(CERTIFICATES / "ca.pem")}


def serving(root: Path, address: str) -> "subprocess.Popen[str]":
    """A hub in a process of its own."""
    process = subprocess.Popen([*HUB, "serve", "--address", address, str(root)], cwd=ROOT, text=True, stdout=-1)
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.timeout(60)
def test_a_stream_ends_though_the_hub_is_out_of_reach(
    port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pipeline.writing.on_hub._SOON_S", 0.2)
    given = {"hub": f"127.0.0.1:{port}", "prefix": "orders"}
    options, schema = parse(WRITE, {**given, "txnAppId": "copy"}), StructType().add("value", "binary")
    assert options["hubRetryFor"] == 600
    writer = SejStreamWriter("berlin", options, schema, overwrite=False, checkpoint=None)
    writer.abort([], 7)
    assert "will remove the staged rows" in caplog.messages[-1]
    with pytest.raises(hub.UnavailableError):
        SejWriter("berlin", parse(WRITE, {**given, "hubRetryFor": "0.2s"}), schema, overwrite=False)


def numbers(spark: SparkSession, count: int, start: int = 0) -> DataFrame:
    """Rows with key k-N and value v-N."""
    return spark.range(start, start + count, 1, 2).selectExpr(
        "concat('k-', id % 50) AS key", "concat('v-', id) AS value"
    )


def save(frame: DataFrame, options: dict[str, str], client: str = "berlin", mode: str = "append", **more: Any) -> None:
    given = {name: str(value) for name, value in more.items()}
    frame.write.format("sej").options(**options, **given).mode(mode).save(client)


def values(root: Path) -> list[bytes]:
    found = []
    for source in find_sources(str(root)):
        with sej.Scanner(root / source.name) as scanner:
            found += [message.value for message in scanner]
    return sorted(found)


def wanted(count: int, start: int = 0) -> list[bytes]:
    return sorted(b"v-%d" % number for number in range(start, start + count))


def test_a_batch_is_written_once_to_the_shards_of_its_keys(
    spark: SparkSession, options: dict[str, str], tmp_path: Path
) -> None:
    root = tmp_path / "hub"
    for version in (1, 1, 2):
        frame = numbers(spark, 300, 300 * version)
        save(frame, options, prefix="orders", bits=2, txnAppId="nightly", txnVersion=version)
    assert values(root) == wanted(600, 300)
    near = spark.read.format("sej").load(str(root))
    assert near.where("shard <> CAST(xxhash64(key) & 3 AS INT) OR client <> 'berlin'").count() == 0
    save(numbers(spark, 10), options, prefix="plain")
    assert [source.name for source in find_sources(str(root))][-1] == "berlin.plain"
    assert not list((root / ".staging").glob("task-*"))


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
        save(numbers(spark, 10), options, client, **more)
    with pytest.raises(Exception, match="cannot be overwritten"):
        save(numbers(spark, 10), options, mode="overwrite", prefix="o")
    assert values(tmp_path / "hub") == []


def test_a_failed_job_leaves_nothing_on_the_hub(spark: SparkSession, options: dict[str, str], tmp_path: Path) -> None:
    broken = numbers(spark, 1000).selectExpr("key", "IF(value = 'v-900', raise_error('row 900'), value) AS value")
    with pytest.raises(Exception, match="row 900"):
        save(broken, options, prefix="orders", bits=2)
    assert values(tmp_path / "hub") == []
    assert not list((tmp_path / "hub" / ".staging").glob("task-*"))


def test_a_stream_writes_every_row_once_though_spark_replays_a_batch(
    spark: SparkSession, journal: Path, options: dict[str, str], tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        frame = spark.readStream.format("sej").option("maxMessagesPerTrigger", 40).load(str(journal))
        writer = frame.writeStream.format("sej").options(**options).options(prefix="orders", bits=1)
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        writer.start("berlin").awaitTermination()

    run()
    for batch in (1, 2):  # as if the driver had died before Spark noted the end of the batch
        (checkpoint / "commits" / str(batch)).unlink()
        (checkpoint / "commits" / f".{batch}.crc").unlink(missing_ok=True)
    fill(journal, 30, first=100)
    run()
    assert values(tmp_path / "hub") == wanted(130)


def test_a_job_continues_when_a_killed_hub_is_back(spark: SparkSession, tmp_path: Path, port: int) -> None:
    address, root = f"127.0.0.1:{port}", tmp_path / "hub"

    server = [serving(root, address)]

    def kill() -> None:
        until(lambda: list(root.glob(".staging/task-*/*.rows")))
        server[0].send_signal(signal.SIGKILL)
        server[0].communicate()
        server[0] = serving(root, address)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        wide = numbers(spark, 20_000).selectExpr("key", "concat(value, repeat('x', 1000)) AS value")
        save(wide, {"hub": address}, prefix="orders", bits=1)
        thread.join()
        assert sorted(value.rstrip(b"x") for value in values(root)) == wanted(20_000)
    finally:
        thread.join()
        server[0].terminate()
        server[0].communicate()


@pytest.mark.long
@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_every_message_once_though_drivers_executors_and_the_hub_are_killed(
    spark: SparkSession, spark_home: Path, tmp_path: Path, port: int, torture_s: float
) -> None:
    address, root, source = f"127.0.0.1:{port}", tmp_path / "hub", tmp_path / "from" / "orders.1.000"
    fill(source, 4000)
    server = serving(root, address)
    deadline, due = time.monotonic() + torture_s, 1000
    try:
        while due == 1000 or time.monotonic() < deadline:
            command = [
                sys.executable,
                "-m",
                "tests.pipeline.copying",
                str(source.parent),
                str(tmp_path / "to"),
                address,
            ]
            env = {
                **os.environ,
                **dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), str(spark_home / "python")),
            }
            run = subprocess.Popen(
                command, cwd=ROOT, env=env, start_new_session=True
            )  # its JVM and workers die with it
            until(lambda: run.poll() is not None or len(values(root)) >= due, 120)  # noqa: B023 called in this round only
            server.send_signal(signal.SIGKILL)
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
            server.communicate()
            found = values(root)
            assert len(found) == len(set(found))
            fill(source, 2000, first=3000 + due)
            due += 2000
            server = serving(root, address)
        copy(spark, str(source.parent), str(tmp_path / "to"), once=True, hub=address)
        assert values(root) == wanted(3000 + due)
    finally:
        server.kill()
        server.communicate()


@pytest.mark.parametrize(("bits", "part_bytes"), [(3, 2 << 20), (4, 1 << 20)])
def test_a_task_sends_large_parts_if_there_are_few_shards(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch, bits: int, part_bytes: int
) -> None:
    sent: list[int] = []
    monkeypatch.setattr(JobCalls, "stage", lambda *arguments: sent.append(len(arguments[-1])))
    given = parse(WRITE, {**options, "prefix": "orders", "bits": str(bits)})
    remote = Remote.of(given)
    assert remote is not None
    stage = OnHub("berlin", remote, given, overwrite=False, stream=False).stage("01", None)
    stage.append(0, [bytes(1 << 18)] * 8, [b""] * 8, 0, 1)
    assert [size // part_bytes for size in sent] == [1] * ((2 << 20) // part_bytes)
    stage.drop()


def test_the_options_of_a_hub_are_parsed() -> None:
    options = parse(WRITE, {"hub": "h:1,h:2", "hubRetryFor": "5s"})
    assert options["hub"] == ("h:1", "h:2")
    with pytest.raises(OptionError, match="hubRetryFor"):
        parse(WRITE, {"hubRetryFor": "never"})
