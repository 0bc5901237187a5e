"""Statistics of journals: sizes, rates, skewed keys, gaps and disorder, by directory; as rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.jobs.running import Origin, Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hub.wire import ClientTLS

_WHOSE = ("client", "prefix", "shard_bits", "shard")


class DirectoryStats(NamedTuple):
    """The statistics of one directory.

    Attributes:
        client: the hub's client, or None.
        prefix: the shard's prefix, or None.
        shard_bits: the shard's bits, or None.
        shard: the shard's index, or None.
        messages: the number of messages.
        missing: offsets between the first and the last without a message.
        size: bytes of keys and values.
        mean_value_bytes: mean bytes of a value.
        max_value_bytes: most bytes of a value.
        first_ns: the oldest timestamp, ns; None if no message has one.
        last_ns: the newest timestamp, ns.
        rate: messages a second between them.
        keys: about how many distinct keys there are.
        top_key: the most frequent key.
        top_key_share: its share of all messages.
        disordered: messages that are older than the previous one.
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
        """The directory's name, from its columns."""
        parts = [self.client, self.prefix]
        if self.shard_bits:
            parts += [f"{self.shard_bits:x}", f"{self.shard:03x}"]
        return ".".join(part for part in parts if part) or "journal"


def stats(
    spark: SparkSession,
    root: str | os.PathLike[str],
    *,
    hub: str | Sequence[str] | None = None,
    token: str | None = None,
    tls: ClientTLS | None = None,
    progress: Progress | None = None,
) -> list[DirectoryStats]:
    """Read everything once or twice, and return the statistics of each directory.

    Args:
        spark: the session.
        root: a SEJ directory, a sharded journal or a hub's root.
        hub: the address ``host:port`` of a hub to read from, or several of the same hub. Then ``root`` is a client,
            sharded journal or journal there.
        token: the token for the hub.
        tls: how to reach the hub with TLS; None: without.
        progress: called with the number of messages, at the end.

    Raises:
        OptionError: two journals have the same client, prefix and shard, as those of a client that are not shards.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    origin = Origin.of(root, hub, token, tls)
    origin.require_distinct()
    journals = spark.read.format("sej").options(**origin.options).load(origin.name)
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
    tops = {tuple(row[name] for name in _WHOSE): row for row in top.collect()}
    rows = summed.collect()
    if progress is not None:
        progress(sum(row.messages for row in rows))
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
