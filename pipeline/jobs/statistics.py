"""What is in journals: sizes, rates, skewed keys, gaps and disorder, by directory; as rows and as a picture."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.counting import count
from pipeline.jobs.running import Progress, watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DirectoryStats", "draw", "stats"]

_WHOSE = ("client", "prefix", "shard_bits", "shard")


class DirectoryStats(NamedTuple):
    """One directory.

    Attributes:
        client: the hub's client, or None.
        prefix: of the shard, or None.
        shard_bits: of the shard, or None.
        shard: its index, or None.
        messages: how many.
        missing: offsets between the first and the last that no message has.
        size: bytes of keys and values.
        mean_value_bytes: of a value.
        max_value_bytes: of a value.
        first_ns: the oldest timestamp, ns; None where no message has one.
        last_ns: the newest timestamp, ns.
        rate: messages a second between them.
        keys: about how many different ones.
        top_key: the most frequent.
        top_key_share: of all messages.
        disordered: messages that are older than the one before them.
    """

    client: str | None
    prefix: str | None
    shard_bits: int | None
    shard: int | None
    messages: int
    missing: int
    size: int
    mean_value_bytes: float
    max_value_bytes: int
    first_ns: int | None
    last_ns: int | None
    rate: float | None
    keys: int
    top_key: bytes
    top_key_share: float
    disordered: int

    @property
    def name(self) -> str:
        """The directory, as far as its columns say."""
        parts = [self.client, self.prefix, None if self.shard is None else f"{self.shard:03x}"]
        return ".".join(part for part in parts if part) or "journal"


def stats(
    spark: SparkSession, root: str | os.PathLike[str], *, progress: Progress | None = None
) -> list[DirectoryStats]:
    """Read everything once or twice, and say what is there.

    Args:
        spark: the session.
        root: a SEJ directory, a tree of shards or a hub's root.
        progress: called with the messages so far.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    journals = spark.read.format("sej").load(os.fspath(root))
    time = f.when(f.col("timestamp").isNotNull(), f.col("timestamp_ns"))
    before = f.lag("time").over(Window.partitionBy(*_WHOSE).orderBy("offset"))
    sizes = journals.select(
        *_WHOSE, "offset", "key", f.length("key").alias("k"), f.length("value").alias("v"), time.alias("time")
    )
    base = sizes.withColumn("back", (f.col("time") < before).cast("int")).groupBy(*_WHOSE)
    summed = base.agg(
        f.count("*").alias("messages"),
        (f.max("offset") - f.min("offset") + 1 - f.count("*")).alias("missing"),
        f.sum(f.col("k") + f.col("v")).alias("size"),
        f.avg("v").alias("mean_value_bytes"),
        f.max("v").alias("max_value_bytes"),
        f.min("time").alias("first_ns"),
        f.max("time").alias("last_ns"),
        f.approx_count_distinct("key").alias("keys"),
        f.coalesce(f.sum("back"), f.lit(0)).alias("disordered"),
    )
    keys = journals.groupBy(*_WHOSE, "key").count().groupBy(*_WHOSE)
    top = keys.agg(f.max_by("key", "count").alias("top_key"), f.max("count").alias("top_count"))
    with watched(spark, lambda: count(root), progress):
        tops = {tuple(row[name] for name in _WHOSE): row for row in top.collect()}
        rows = summed.collect()
    found = []
    for row in rows:
        most = tops[tuple(row[name] for name in _WHOSE)]
        values: dict[str, Any] = row.asDict()
        seconds = (row.last_ns - row.first_ns) / 1e9 if row.first_ns is not None else 0
        values |= {
            "rate": row.messages / seconds if seconds else None,
            "top_key": bytes(most.top_key),
            "top_key_share": most.top_count / row.messages,
        }
        found.append(DirectoryStats(**values))
    return sorted(found, key=lambda stat: (stat.client or "", stat.prefix or "", stat.shard or 0))


def draw(found: list[DirectoryStats], target: str | os.PathLike[str]) -> None:
    """Draw messages, and the share of each directory's most frequent key, into a PNG file. Needs matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = [stat.name for stat in found]
    height = max(2.0, 0.28 * len(found) + 1.2)
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, height), dpi=130, sharey=True, layout="constrained")
    left.barh(names, [stat.messages for stat in found], color="#1b6ca8")
    left.set_title("messages", loc="left", weight="bold")
    right.barh(names, [stat.top_key_share for stat in found], color="#c8553d")
    right.set_title("share of the most frequent key", loc="left", weight="bold")
    right.xaxis.set_major_formatter(mpl.ticker.PercentFormatter(1.0))
    left.invert_yaxis()
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", color="#e4e8ec")
        axes.set_axisbelow(True)
    figure.savefig(os.fspath(target))
    plt.close(figure)
