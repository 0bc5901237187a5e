"""Copy a journal, a sharded journal or a hub into a sharded journal with another number of shards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.jobs.running import PER_TRIGGER, Origin, Progress, run_to_end
from pipeline.paths import local_path
from sej.system.paths import absolute_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hub.wire import ClientTLS


def reshard(
    spark: SparkSession,
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    prefix: str | None = None,
    bits: int,
    pattern: str | None = None,
    messages_per_batch: int = PER_TRIGGER,
    hub: str | Sequence[str] | None = None,
    token: str | None = None,
    tls: ClientTLS | None = None,
    progress: Progress | None = None,
) -> int:
    """Copy journals into a sharded journal; a second run adds the messages appended since.

    Messages of one key keep their order if they are all in one source directory. On a single machine
    :func:`shard.reshard` does the same without Spark.

    Args:
        spark: the session.
        source: the source.
        target: the root of the new sharded journal.
        prefix: prefix of the new shards.
        bits: bits of the new shards.
        pattern: only source directories whose name matches.
        messages_per_batch: the most messages in one step.
        hub: the address ``host:port`` of a hub to read from, or several of the same hub. Then ``source`` is a client,
            sharded journal or journal there.
        token: the token for the hub.
        tls: how to reach the hub with TLS; None: without.
        progress: called with the messages so far.

    Returns:
        How many messages this run copied.
    """
    origin = Origin.of(source, hub, token, tls)
    options = origin.options | {"startingOffsets": "earliest", "maxMessagesPerTrigger": str(messages_per_batch)}
    if pattern is not None:
        options["pattern"] = pattern
    journals = spark.readStream.format("sej").options(**options).load(origin.name)
    folder = absolute_path(local_path(target))
    name = f"{prefix or ''}.{bits:x}".lstrip(".")
    writer = (
        journals.select("key", "value", "type", "timestamp_ns")
        .writeStream.format("sej")
        .option("path", folder)
        .option("bits", bits)
        .option("checkpointLocation", os.path.join(folder, ".staging", f"reshard-{name}"))
    )
    return run_to_end(writer if prefix is None else writer.option("prefix", prefix), progress)
