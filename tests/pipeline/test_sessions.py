"""What opening a session does to the process that opens it, and to Spark's workers."""

import os
from concurrent.futures import ThreadPoolExecutor
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


def test_a_thread_that_did_not_create_the_session_writes(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(3).selectExpr("string(id) AS value")
    with ThreadPoolExecutor(1) as thread:
        thread.submit(rows.write.format("sej").mode("append").save, f"{tmp_path}/numbers").result()
    assert pipeline.count(tmp_path / "numbers") == 3


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
