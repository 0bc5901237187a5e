"""Spark reads the hub's root: delays by airport, carrier and hour, and the flights that a person has to look at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from demo.flights import LATE_MINUTES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_FLIGHT: Final = """
    month INT, day INT, hour INT, minute INT, carrier STRING, flight INT, tailnum STRING, dest STRING,
    dep_delay INT, arr_delay INT, time_hour STRING
"""


def read_flights(spark: SparkSession, root: Path) -> DataFrame:
    """The hub's journals as a table of flights."""
    schema = f"client STRING, shard INT, key BINARY, {_FLIGHT}"
    journals = spark.read.format("sej").schema(schema).option("valueFormat", "json").load(str(root))
    return journals.withColumnRenamed("client", "airport")


def delays(flights: DataFrame, target: Path) -> pa.Table:
    """Write delays by airport, carrier and hour as Parquet, and read them back."""
    from pyspark.sql import functions as f

    delay = f.col("dep_delay")
    table = (
        flights.groupBy("airport", "carrier", "hour")
        .agg(
            f.count("*").alias("flights"),
            f.count_if(delay.isNull()).alias("cancelled"),
            f.count_if(f.length("key") == 0).alias("without_tail_number"),
            f.coalesce(f.sum(delay), f.lit(0)).alias("delay_minutes"),
            f.round(f.avg(delay), 1).alias("mean_delay"),
            f.percentile_approx(delay, 0.9, 1000).alias("p90_delay"),
            f.round(f.avg((delay > 15).cast("int")), 3).alias("late_share"),
        )
        .coalesce(1)
        .orderBy("airport", "carrier", "hour")
    )
    table.write.mode("overwrite").parquet(str(target))
    return table.sparkSession.read.parquet(str(target)).toArrow()


def late_flights(flights: DataFrame) -> list[dict[str, Any]]:
    """The flights that left more than six hours late, the latest first."""
    late = flights.where(f"dep_delay > {LATE_MINUTES}").drop("key", "shard")
    rows = [row.asDict() for row in late.collect()]
    return sorted(rows, key=lambda row: (-row["dep_delay"], row["time_hour"], row["carrier"], row["flight"]))
