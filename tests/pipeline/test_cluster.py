"""What a cluster needs from the package: it is found, it is there on the executors, and its codec is compiled."""

import os
import stat
import sys
import zipfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pyspark_sej
import pyspark_sej_kestrel
import pyspark_sej_textqueue
from pipeline.formats.sej import SejSource
from pipeline.reading.planning import cores
from pipeline.sessions import check_executors
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
    from pipeline.sessions import register

    fill(tmp_path / "j", 200_000)
    monkeypatch.setattr("pipeline.sessions._parallelism", lambda _: 5)
    register(spark)
    try:
        assert spark.read.format("sej").load(str(tmp_path / "j")).rdd.getNumPartitions() == 5
    finally:
        monkeypatch.undo()
        register(spark)
    assert SejSource.parallelism is None
