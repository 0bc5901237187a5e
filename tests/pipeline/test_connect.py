"""Spark Connect: a client without a JVM reads, writes and streams through the JVM that the tests share."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pipeline
from tests.hub.support import ROOT, free_port

pytestmark = pytest.mark.spark

CLIENT = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
import pipeline
from pipeline import jobs

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
root = Path(sys.argv[2])
frame = spark.read.format("sej").schema("offset BIGINT, value BINARY").load(str(root / "journal"))
print("read", frame.where("offset < 2").collect())
pipeline.register(spark)
rows = spark.range(50).selectExpr("concat('k-', id) AS key", "concat('v-', id) AS value")
for _ in range(2):
    writer = rows.write.format("sej").options(prefix="orders", bits=1, txnAppId="nightly", txnVersion=1)
    writer.mode("append").save(str(root / "tree"))
for _ in range(2):
    stream = spark.readStream.format("sej").option("maxMessagesPerTrigger", 60).load(str(root / "journal"))
    writer = stream.writeStream.format("sej").option("checkpointLocation", str(root / "checkpoint"))
    writer.trigger(availableNow=True).start(str(root / "copy")).awaitTermination()
print("archived", jobs.archive(spark, root / "journal", root / "archive"))
jobs.restore(spark, root / "archive", root / "restored", progress=lambda count: print("restored", count))
"""


@pytest.fixture
def server(spark: SparkSession) -> Iterator[str]:
    """The address of a server of Spark Connect in the shared session."""
    jvm, port = spark.sparkContext._jvm, free_port()
    assert jvm is not None
    conf = spark.sparkContext._jsc.sc().conf()
    conf.set("spark.connect.grpc.binding.address", "127.0.0.1")
    conf.set("spark.connect.grpc.binding.port", str(port))
    service = jvm.org.apache.spark.sql.connect.SparkConnectPlugin().driverPlugin()
    service.init(spark.sparkContext._jsc.sc(), None)
    try:
        yield f"sc://127.0.0.1:{port}"
    finally:
        service.shutdown()


def test_a_client_reads_writes_and_streams(server: str, journal: Path) -> None:
    root = journal.parent
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_REMOTE")}
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, server, str(root)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "read [Row(offset=0, value=b'v-0'), Row(offset=1, value=b'v-1')]" in done.stdout
    assert "archived 100" in done.stdout
    assert "restored 100" in done.stdout
    assert [pipeline.count(root / name) for name in ("tree", "copy", "restored")] == [50, 100, 100]
