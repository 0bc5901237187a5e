"""The routing hash is Spark's own: the golden table of a thousand keys, by a real session."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TABLE = Path(__file__).parent.parent / "golden" / "shard" / "xxhash64.tsv"


def test_the_golden_table_is_what_spark_computes(spark: SparkSession) -> None:
    rows = [line.split("\t") for line in TABLE.read_text().splitlines()[1:]]
    assert len(rows) == 1000
    keys = [(number, bytes.fromhex(key)) for number, (key, _) in enumerate(rows)]
    frame = spark.createDataFrame(keys, "number INT, key BINARY")
    found = frame.selectExpr("number", "xxhash64(key) AS hash").orderBy("number").collect()
    assert [row["hash"] for row in found] == [int(value) for _, value in rows]
