"""Polars reads the hub's root too: the same delays by airport, carrier and hour, as a check of Spark's numbers."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pyarrow as pa

import pipeline

_FLIGHT = pl.Struct({"hour": pl.Int32, "carrier": pl.String, "dep_delay": pl.Int32})
_GROUP = ("airport", "carrier", "hour")
_COUNTS = ("flights", "cancelled", "without_tail_number", "delay_minutes")


def delays(root: Path) -> pa.Table:
    """Delays by airport, carrier and hour, with the columns that the chart draws."""
    delay = pl.col("dep_delay")
    rows = pipeline.table(root, columns=["client", "key", "value"]).scan()
    flight = pl.col("value").cast(pl.String).str.json_decode(_FLIGHT).alias("flight")
    flights = rows.select(pl.col("client").alias("airport"), "key", flight).unnest("flight")
    found = (
        flights.group_by(_GROUP)
        .agg(
            pl.len().cast(pl.Int64).alias("flights"),
            delay.is_null().sum().cast(pl.Int64).alias("cancelled"),
            (pl.col("key").bin.size() == 0).sum().cast(pl.Int64).alias("without_tail_number"),
            delay.cast(pl.Int64).sum().alias("delay_minutes"),
            delay.mean().round(1).alias("mean_delay"),
        )
        .sort(_GROUP)
        .collect()
    )
    return found.to_arrow()


def differences(one: pa.Table, other: pa.Table) -> list[tuple[str, str, int]]:
    """The airports, carriers and hours whose counts differ between two tables, or that only one has."""

    def counts(table: pa.Table) -> dict[tuple[str, str, int], list[int]]:
        return {
            (row["airport"], row["carrier"], row["hour"]): [row[name] for name in _COUNTS] for row in table.to_pylist()
        }

    left, right = counts(one), counts(other)
    return sorted(group for group in left.keys() | right.keys() if left.get(group) != right.get(group))
