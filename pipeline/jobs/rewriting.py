"""Journals written anew with fewer messages: the latest of each key, or each message once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["compact", "dedupe"]

_MESSAGE = ("offset", "timestamp_ns", "type", "value")
_WHOSE = ("client", "prefix", "shard_bits", "shard")


def compact(
    spark: SparkSession,
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    prefix: str | None = None,
    bits: int | None = None,
    keep_deleted: bool = False,
) -> None:
    """Keep the latest message of each key; one with an empty value deletes its key.

    All of it becomes visible at once, or nothing. Latest is the highest offset in a directory; a hub's clients are
    apart.

    Args:
        spark: the session.
        source: where from.
        target: where to; the source itself is replaced, and readers that are behind forbid it.
        prefix: of the target's shards.
        bits: of the target's shards.
        keep_deleted: keep the empty values.
    """
    from pyspark.sql import functions as f

    journals = spark.read.format("sej").load(os.fspath(source))
    latest = journals.groupBy(*_WHOSE, "key").agg(f.max_by(f.struct(*_MESSAGE), "offset").alias("m"))
    rows = latest.select(*_WHOSE, "key", "m.*")
    if not keep_deleted:
        rows = rows.where(f.length("value") > 0)
    _write(rows, source, target, prefix, bits)


def dedupe(
    spark: SparkSession,
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    by: Sequence[str] = ("key", "value"),
    prefix: str | None = None,
    bits: int | None = None,
) -> None:
    """Keep the first of the messages that are equal in some columns; as :func:`compact`.

    Args:
        spark: the session.
        source: where from.
        target: where to.
        by: the columns that make messages equal.
        prefix: of the target's shards.
        bits: of the target's shards.
    """
    from pyspark.sql import functions as f

    journals = spark.read.format("sej").load(os.fspath(source))
    message = ("key", *_MESSAGE)
    first = journals.groupBy(*_WHOSE, *(f.col(name).alias(f"by_{name}") for name in by)).agg(
        f.min_by(f.struct(*message), "offset").alias("m")
    )
    _write(first.select(*_WHOSE, "m.*"), source, target, prefix, bits)


def _write(
    rows: DataFrame,
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    prefix: str | None,
    bits: int | None,
) -> None:
    ordered = rows.repartition(*_WHOSE).sortWithinPartitions(*_WHOSE, "offset")
    writer = ordered.select("key", "value", "type", "timestamp_ns").write.format("sej")
    if prefix is not None:
        writer = writer.option("prefix", prefix)
    if bits is not None:
        writer = writer.option("bits", bits)
    same = os.path.realpath(source) == os.path.realpath(target)
    writer.mode("overwrite" if same else "append").save(os.fspath(target))
