"""What opening a session does to the process that opens it, and to Spark's workers."""

import os

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
