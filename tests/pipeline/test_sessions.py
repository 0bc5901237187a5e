"""Sessions, and what a cluster needs: the package is found, it is on the executors, and its codec is compiled."""

import os
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pipeline
import pyspark_sej
import pyspark_sej_kestrel
import pyspark_sej_textqueue
from pipeline.formats import SejSource
from pipeline.reading.planning import cores
from pipeline.sessions import check_executors, register
from tests.house.house import ROOT, run
from tests.pipeline.conftest import fill

PROGRAM = """
import os, sys
from pyspark.sql import SparkSession
from tests.quick_spark import CONF
journal, bare = sys.argv[1:]
os.chdir("/")  # workers find packages in the directory where the JVM was started
spark = SparkSession.builder.master("local[1]").config(map=CONF).getOrCreate()
print("rows", spark.read.format("sej").load(journal).count())
print("rows", spark.read.format("textqueue").load(journal + "/jobs.tq").count())
spark.stop()

from pipeline.sessions import session, check_executors
os.environ["PYSPARK_PYTHON"] = bare
spark = session(master="local[1]", conf={**CONF, "spark.log.level": "OFF", "spark.executorEnv.PYTHONPATH": "/nothing"})
try:
    check_executors(spark)
except ModuleNotFoundError as error:
    print("error:", error)
"""
"""Two contexts of one JVM: a plain session of Spark, and one whose workers do not have the package."""


def program(text: str, *words: str | Path) -> str:
    done = run([sys.executable, "-c", text, *words], ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What PROGRAM prints about a journal with 100 messages and a text queue with two."""
    folder = tmp_path_factory.mktemp("apart")
    fill(folder / "journal", 100)
    (folder / "journal" / "jobs.tq").write_text("-a\n-b\n")
    bare = folder / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(bare.stat().st_mode | stat.S_IXUSR)
    return program(PROGRAM, folder / "journal", bare)


@pytest.mark.spark
@pytest.mark.long
def test_spark_finds_the_sources_by_itself(printed: str) -> None:
    assert [line for line in printed.splitlines() if line.startswith("rows")] == ["rows 100", "rows 2"]


def test_each_module_has_one_source() -> None:
    modules = (pyspark_sej, pyspark_sej_textqueue, pyspark_sej_kestrel)
    assert [module.DefaultSource.name() for module in modules] == ["sej", "textqueue", "kestrel"]


@pytest.mark.parametrize("name", ["pyspark_sej", "pyspark_sej_textqueue", "pyspark_sej_kestrel"])
def test_their_import_never_fails(name: str) -> None:
    text = f"import sys; sys.modules['pyspark.sql.datasource'] = None; import {name}; print(dir({name}))"
    printed = program(text)
    assert "DefaultSource" not in printed
    assert "by itself: " in printed


@pytest.mark.spark
@pytest.mark.long
def test_executors_without_the_package_are_one_clear_sentence(printed: str) -> None:
    assert "error: the executors' Python has no package sej-journals: install its wheel on every node" in printed


@pytest.mark.spark
def test_executors_with_the_package_pass(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    check_executors(spark)
    assert [record for record in caplog.records if record.name == "pipeline"] == []


def test_a_codec_that_is_not_compiled_is_explained(tmp_path: Path) -> None:
    packed = tmp_path / "packages.zip"
    with zipfile.ZipFile(packed, "w") as file:
        for package in ("sej", "pipeline", "shard", "hub", "textqueue", "kestrel"):
            for path in (ROOT / package).rglob("*.py"):
                file.write(path, path.relative_to(ROOT))
    text = (
        f"import sys; sys.path.insert(0, {str(packed)!r}); from pipeline import needs; print(needs.why_not_compiled())"
    )
    printed = program(text)
    assert "No module named 'sej.codec._codec_c'" in printed
    assert f"sej was imported from {packed} (a zip file, as of --py-files, cannot hold compiled modules)" in printed


def test_partitions_follow_the_cluster_and_not_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cores(64) == 64
    assert cores() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("SEJ_SPARK_CORES", "7")
    assert cores(64) == 7


@pytest.mark.spark
def test_a_registered_source_knows_the_clusters_parallelism(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "j", 200_000)
    monkeypatch.setattr("pipeline.sessions._parallelism", lambda _: 5)
    register(spark)
    try:
        assert spark.read.format("sej").load(str(tmp_path / "j")).rdd.getNumPartitions() == 5
    finally:
        monkeypatch.undo()
        register(spark)
    assert SejSource.parallelism is None


@pytest.mark.spark
def test_only_workers_get_the_import_path(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    told = spark.sparkContext.parallelize(["PYTHONPATH"], 1).map(os.getenv).first()
    assert told is not None
    assert str(ROOT) in told.split(os.pathsep)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    pipeline.session()
    assert "PYTHONPATH" not in os.environ, "every program that this process starts would inherit it"


@pytest.mark.spark
def test_a_thread_that_did_not_create_the_session_writes(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(3).selectExpr("string(id) AS value")
    with ThreadPoolExecutor(1) as thread:
        thread.submit(rows.write.format("sej").mode("append").save, f"{tmp_path}/numbers").result()
    assert pipeline.count(tmp_path / "numbers") == 3


@pytest.mark.spark
def test_a_version_of_spark_that_is_too_old_is_one_sentence(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.1.4")
    with pytest.raises(RuntimeError, match=r"need Spark 4\.2 or newer, and this is PySpark 4\.1\.4: pip install"):
        pipeline.register(spark)


@pytest.mark.spark
def test_a_program_whose_codec_is_not_compiled_is_warned(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline.register(spark)
    assert caplog.messages == []
    monkeypatch.setattr("pipeline.sessions.why_not_compiled", lambda: "sej was imported from packages.zip")
    pipeline.register(spark)
    expected = "the codec of this program is pure Python, which is slow: sej was imported from packages.zip"
    assert caplog.messages == [expected]


# --- Spark Connect: a client without a JVM uses the JVM that the tests share

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


@pytest.mark.spark
@pytest.mark.long
def test_a_client_reads_writes_and_streams(server: str, journal: Path) -> None:
    root = journal.parent
    printed = client(CLIENT, server, root)
    assert "read [Row(offset=0, value=b'v-0'), Row(offset=1, value=b'v-1')]" in printed
    assert "archived 100" in printed
    assert "restored 100" in printed
    assert [pipeline.count(root / name) for name in ("tree", "copy", "restored")] == [50, 100, 100]


@pytest.mark.spark
@pytest.mark.long
def test_a_session_during_and_after_one_of_spark_connect(server: str, spark_home: Path, journal: Path) -> None:
    python = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), str(spark_home / "python"))
    printed = client(SESSION, server, journal, JAVA_HOME=os.environ["JAVA_HOME"], **python)
    assert printed.splitlines() == ["same True True", "then local[1] 100"]
