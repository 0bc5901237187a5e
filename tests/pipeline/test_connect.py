"""Spark Connect: a client without a JVM reads, writes and streams through the JVM that the tests share."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pipeline
from tests.hub.support import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.long]

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

SESSION = """
import sys
from pyspark.sql import SparkSession
import pipeline
from tests.quick_spark import CONF

remote = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
print("same", pipeline.session() is remote, pipeline.session(master="local[1]") is remote)
remote.stop()
spark = pipeline.session(master="local[1]", conf=CONF)
print("then", spark.sparkContext.master, spark.read.format("sej").load(sys.argv[2]).count())
"""


def client(text: str, *words: object, **environment: str) -> str:
    """Run a client's program; return what it printed."""
    kept = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_REMOTE")}
    done = subprocess.run(
        [sys.executable, "-c", text, *map(str, words)],
        cwd=ROOT, env=kept | environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def server(spark: SparkSession, port: int) -> Iterator[str]:
    """The address of a server of Spark Connect in the shared session."""
    jvm = spark.sparkContext._jvm
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
    printed = client(CLIENT, server, root)
    assert "read [Row(offset=0, value=b'v-0'), Row(offset=1, value=b'v-1')]" in printed
    assert "archived 100" in printed
    assert "restored 100" in printed
    assert [pipeline.count(root / name) for name in ("tree", "copy", "restored")] == [50, 100, 100]


def test_a_session_during_and_after_one_of_spark_connect(server: str, spark_home: Path, journal: Path) -> None:
    python = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), str(spark_home / "python"))
    printed = client(SESSION, server, journal, JAVA_HOME=os.environ["JAVA_HOME"], **python)
    assert printed.splitlines() == ["same True True", "then local[1] 100"]
