"""Spark writes through a real hub with TLS and tokens: every row once, and no disk is shared."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import hub
from hub.wire.client import JobCalls
from pipeline import OptionError
from pipeline.connection import Remote
from pipeline.options import WRITE, parse
from pipeline.writing.on_hub import OnHub
from pipeline.writing.sink import batch_sink, stream_sink
from tests.hub.support import ROOT, Killed, until
from tests.pipeline.conftest import fill
from tests.pipeline.copying import copy
from tests.pipeline.test_sink import numbers, save, tree_values, wanted

pytestmark = pytest.mark.spark


@pytest.mark.timeout(60)
def test_a_stream_ends_though_the_hub_is_out_of_reach(
    port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pipeline.writing.on_hub._SOON_S", 0.2)
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
