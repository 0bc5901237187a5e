"""What opening a session does to the process that opens it, and to Spark's workers."""

import os
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path
from subprocess import PIPE

import pytest
from pyspark.sql import SparkSession

import pipeline
from tests.house.house import ROOT

pytestmark = pytest.mark.spark


def test_only_workers_get_the_import_path(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    told = spark.sparkContext.parallelize(["PYTHONPATH"], 1).map(os.getenv).first()
    assert told is not None
    assert str(ROOT) in told.split(os.pathsep)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    pipeline.session()
    assert "PYTHONPATH" not in os.environ, "every program that this process starts would inherit it"


def test_a_version_of_spark_that_is_too_old_is_one_sentence(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.1.4")
    with pytest.raises(RuntimeError, match=r"need Spark 4\.2 or newer, and this is PySpark 4\.1\.4: pip install"):
        pipeline.register(spark)


def test_a_program_whose_codec_is_not_compiled_is_warned(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline.register(spark)
    assert caplog.messages == []
    monkeypatch.setattr("pipeline.sessions.why_not_compiled", lambda: "sej was imported from packages.zip")
    pipeline.register(spark)
    expected = "the codec of this program is pure Python, which is slow: sej was imported from packages.zip"
    assert caplog.messages == [expected]


PLANNER = """
def main(infile, outfile):
    task = infile.read(1)
    if task:
        import pipeline.formats
    outfile.write(task or b"where is the task?")
    if not task:
        raise SystemExit(1)
"""


def test_a_worker_that_plans_ends_quietly_with_its_session(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A worker of Spark's own daemon: it finds its socket closed, and writes that as an error to the same socket."""
    tmp_path = tmp_path_factory.mktemp("d")  # the path of a socket must be short
    (tmp_path / "pyspark_planner.py").write_text(PLANNER)
    env = {
        **os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(tmp_path), "SPARK_REUSE_WORKER": "1",
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "pyspark.daemon", "pyspark_planner"]
    with (
        subprocess.Popen(command, env=env, stdin=PIPE, stdout=PIPE, stderr=PIPE) as daemon,
        socket.socket(socket.AF_UNIX) as line,
    ):
        assert daemon.stdout is not None
        size = int.from_bytes(daemon.stdout.read(4))
        line.connect(daemon.stdout.read(size))
        worker = os.pidfd_open(int.from_bytes(line.recv(4, socket.MSG_WAITALL)))
        line.sendall(b"1")
        assert line.recv(1) == b"1"
        line.close()
        select.select([worker], [], [])
        os.close(worker)
        _, errors = daemon.communicate()
    assert errors == b""


def test_a_thread_writes_once_it_has_registered_the_session(spark: SparkSession, tmp_path: Path) -> None:
    def write() -> None:
        pipeline.register(spark)
        spark.range(3).selectExpr("cast(id as string) value").write.format("sej").mode("append").save(str(tmp_path))

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert pipeline.count(tmp_path) == 3
