"""What opening a session does to the process that opens it, and to Spark's workers."""

import os
import select
import signal
import subprocess
from pathlib import Path

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


# --- What the shared session starts as Python: tests/spark_python.py


TEXT = "import os, sys; print(sys.argv, os.getcwd(), os.environ['NAME'], sys.stdin.read(), os.getppid()); sys.exit(3)"


@pytest.mark.parametrize("server", [True, False])
def test_a_forked_interpreter_is_like_a_fresh_one(spark_home: Path, tmp_path: Path, server: bool) -> None:
    program = tmp_path / "python"
    text = (spark_home / "python").read_text()
    program.write_text(text if server else text.replace(str(spark_home), "/nothing"))
    program.chmod(0o700)
    done = subprocess.run(
        [program, "-c", TEXT, "word"], cwd=tmp_path, env={**os.environ, "NAME": "value"},
        input="given", text=True, capture_output=True, check=False,
    )  # fmt: skip
    *printed, parent = done.stdout.split()
    assert (done.returncode, printed, done.stderr) == (3, ["['-c',", "'word']", str(tmp_path), "value", "given"], "")
    assert (int(parent) != os.getpid()) is server


def test_spark_runs_forked_interpreters(spark: SparkSession) -> None:
    command = spark.sparkContext.parallelize(["/proc/self/cmdline"], 1).map(lambda path: Path(path).read_bytes())
    assert b"tests.spark_python" in command.first()


def test_a_forked_interpreter_ends_with_its_program(spark_home: Path) -> None:
    text = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    with subprocess.Popen([spark_home / "python", "-c", text], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        ending = select.poll()
        ending.register(handle := os.pidfd_open(int(program.stdout.readline())), select.POLLIN)
        program.terminate()
        assert ending.poll(60_000)
        os.close(handle)


def test_the_server_continues_after_a_program_that_ends_together_with_its_interpreter(spark_home: Path) -> None:
    text = "import os, signal; print(os.getpid(), os.getppid(), flush=True); signal.pause()"
    with subprocess.Popen([spark_home / "python", "-c", text], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        child, server = map(int, program.stdout.readline().split())
        os.kill(server, signal.SIGSTOP)
        try:
            os.waitpid(server, os.WUNTRACED)
            handle = os.pidfd_open(child)
            os.kill(child, signal.SIGKILL)
            assert select.select([handle], [], [], 60)[0]
            os.close(handle)
            program.kill()
            program.wait()
        finally:
            os.kill(server, signal.SIGCONT)
    command = [str(spark_home / "python"), "-c", "import os; print(os.getppid())"]
    assert int(subprocess.run(command, capture_output=True, check=True).stdout) == server
