"""Journals to Parquet, partitioned by day and shard, and back."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pipeline.jobs.running import PER_TRIGGER, Origin, Progress, run_to_end
from pipeline.options import WRITE, OptionError, parse
from pipeline.paths import local_path, outside, reaching, spark_path
from pipeline.writing.target import Target
from sej.system.paths import absolute_path
from shard.committing import last_number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from hub.wire import ClientTLS

_DAY_NS: Final = 86_400 * 10**9
_UTC_DAY: Final = (
    f"date_from_unix_date(int(timestamp_ns div {_DAY_NS} - if(timestamp_ns % {_DAY_NS} < 0, 1, 0)))"  # rounded down
)


def archive(
    spark: SparkSession,
    root: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    reader: str | None = None,
    messages_per_batch: int = PER_TRIGGER,
    hub: str | Sequence[str] | None = None,
    token: str | None = None,
    tls: ClientTLS | None = None,
    progress: Progress | None = None,
) -> int:
    """Add new messages to an archive; each message once, whatever crashes.

    Args:
        spark: the session.
        root: a SEJ directory, a sharded journal or a hub's root.
        target: a folder of Parquet files, by ``day`` (of the timestamp, UTC) and ``shard``; it also holds the archive's
            own state. A path, or the address of any file system that Spark can write, as in ``"s3a://bucket/orders"``.
        reader: commit the progress under this name in ``ofs/``, so that retention deletes only archived messages. With
            ``hub`` the token needs the role ``reader``.
        messages_per_batch: the most messages in one step.
        hub: the address ``host:port`` of a hub to read from, or several of the same hub. Then ``root`` is a client,
            sharded journal or journal there.
        token: the token for the hub.
        tls: how to reach the hub with TLS; None: without.
        progress: called with the messages so far.

    Returns:
        How many messages this run added.

    Raises:
        OptionError: Spark has no client of the target's file system, or the target is among the files of a journal.
    """
    from pyspark.sql import functions as f

    folder = outside(spark_path(target))
    origin = Origin.of(root, hub, token, tls)
    options = origin.options | {"startingOffsets": "earliest", "maxMessagesPerTrigger": str(messages_per_batch)}
    if reader is not None:
        options["reader"] = reader
    journals = spark.readStream.format("sej").options(**options).load(origin.name)
    day = f.expr(_UTC_DAY)  # to_date() would return the day in the session's time zone
    writer = journals.withColumn("day", f.when(f.col("timestamp").isNotNull(), day)).writeStream.format("parquet")
    writer = writer.partitionBy("day", "shard").option("path", folder)
    with reaching(folder):
        return run_to_end(writer.option("checkpointLocation", f"{folder}/_checkpoint"), progress)


def restore(
    spark: SparkSession,
    source: str | os.PathLike[str],
    root: str | os.PathLike[str],
    *,
    prefix: str | None = None,
    bits: int | None = None,
    where: str | None = None,
    progress: Progress | None = None,
) -> None:
    """Write an archive, or the part of it that ``where`` selects, into journals; a second run adds nothing.

    If the archive has other messages than at the first run, a second run is an error.

    The order of each shard is kept. Key, value, type and timestamp are the archived ones; offsets are new.

    Args:
        spark: the session.
        source: the archive: a path, or an address.
        root: the target: a SEJ directory, or with prefix and bits a sharded journal.
        prefix: prefix of the shards.
        bits: bits of the shards.
        where: a condition on the columns, ``"client = 'berlin' AND day >= '2013-07-01'"``.
        progress: called with the number of messages, at the end.

    Raises:
        OptionError: the archive has no messages, or Spark has no client of its file system, or the root is not on a
            local disk; or the archive has grown since it was restored into the root.
    """
    source, root = spark_path(source), absolute_path(local_path(root))
    with reaching(source):
        archived = _archived(spark, source)
    chosen = archived if where is None else archived.where(where)
    ordered = chosen.repartition("client", "prefix", "shard").sortWithinPartitions(
        "client", "prefix", "shard", "offset"
    )
    about = "|".join([source, root, where or ""])
    name = f"restore-{hashlib.sha256(about.encode()).hexdigest()[:20]}"
    options = {} if prefix is None else {"prefix": prefix}
    options |= {} if bits is None else {"bits": str(bits)}
    messages = chosen.count()
    number = messages + 1
    before = last_number(Target.of(root, parse(WRITE, options)), name)
    if before not in (None, number):
        raise OptionError(
            f"{before - 1} messages of this archive were restored into {root} before, and it has {messages} now;"
            " restore it into another directory, or only the new messages with where"
        )
    options |= {"txnAppId": name, "txnVersion": str(number)}
    rows = ordered.select("key", "value", "type", "timestamp_ns")
    rows.write.format("sej").options(**options).mode("append").save(root)
    if progress is not None:
        progress(messages)


def _archived(spark: SparkSession, source: str) -> DataFrame:
    from pyspark.errors import AnalysisException

    try:
        return spark.read.parquet(source)
    except AnalysisException as error:
        if "UNABLE_TO_INFER_SCHEMA" not in str(error):
            raise
        raise OptionError(f"found no messages in {source!r}: nothing was archived there yet; check the path") from None
