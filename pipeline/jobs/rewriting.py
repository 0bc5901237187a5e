"""Rewrite journals with fewer messages: the latest of each key, or each message once.

A target other than the source is a copy that follows it: when the job is run again, it replaces what it wrote there.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.columns import SEJ
from pipeline.jobs.running import PER_TRIGGER, Origin, Progress, run_to_end
from pipeline.options import WRITE, OptionError, parse
from pipeline.paths import local_path
from pipeline.reading.counting import count
from pipeline.reading.discovery import discover
from pipeline.reading.extents import Extent
from pipeline.writing.target import Target
from sej.checks import ITERABLE
from sej.system.paths import absolute_path
from shard.committing import last_number, wrote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from hub.wire import ClientTLS


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
    hub: str | Sequence[str] | None = None,
    token: str | None = None,
    tls: ClientTLS | None = None,
    progress: Progress | None = None,
) -> None:
    """Keep the latest message of each key; one with an empty value deletes its key.

    If the job is interrupted, each shard has either nothing or everything. The latest message is the one with the
    highest offset in a directory; a hub's clients are separate.

    Args:
        spark: the session.
        source: the source.
        target: the target; what this job wrote there before is replaced, and so is the source, if it is the target too.
            The job is refused if readers are behind, or if messages are appended to the source in the meantime.
        prefix: prefix of the target's shards.
        bits: bits of the target's shards.
        keep_deleted: keep the empty values.
        hub: the address ``host:port`` of a hub to read from, or several of the same hub. Then ``source`` is a client,
            sharded journal or journal there.
        token: the token for the hub.
        tls: how to reach the hub with TLS; None: without.
        progress: called with the number of messages, at the end.

    Raises:
        OptionError: the target holds messages of another writer, a reader is behind, or messages were appended to a
            source that would be replaced; or two journals have the same client, prefix and shard, as those of a
            client that are not shards.
    """
    from pyspark.sql import functions as f

    origin, target = Origin.of(source, hub, token, tls), local_path(target)
    journals, ends = _read(spark, origin, target)
    latest = journals.groupBy(*_WHOSE, "key").agg(f.max_by(f.struct(*_MESSAGE), "offset").alias("m"))
    rows = latest.select(*_WHOSE, "key", "m.*")
    if not keep_deleted:
        rows = rows.where(f.length("value") > 0)
    messages = 0 if progress is None else count(source, hub=hub, token=token, tls=tls)
    _write("compact", rows, origin, target, prefix, bits, ends)
    if progress is not None:
        progress(messages)


def dedupe(
    spark: SparkSession,
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    by: Sequence[str] = ("key", "value"),
    prefix: str | None = None,
    bits: int | None = None,
    hub: str | Sequence[str] | None = None,
    token: str | None = None,
    tls: ClientTLS | None = None,
    progress: Progress | None = None,
) -> None:
    """Keep only the first of messages that are equal in some columns; like :func:`compact`.

    Args:
        spark: the session.
        source: the source.
        target: the target.
        by: the columns that decide whether messages are equal.
        prefix: prefix of the target's shards.
        bits: bits of the target's shards.
        hub: the address ``host:port`` of a hub to read from, or several of the same hub. Then ``source`` is a client,
            sharded journal or journal there.
        token: the token for the hub.
        tls: how to reach the hub with TLS; None: without.
        progress: called with the number of messages, at the end.

    Raises:
        OptionError: as :func:`compact`; or ``by`` names a column that a journal does not have.
    """
    from pyspark.sql import functions as f

    ITERABLE("by", by)
    names = list(by)
    for name in names:
        if name not in SEJ:
            raise OptionError(f"by names the column {name!r}; expected some of {', '.join(SEJ)}")
    if not names:
        raise OptionError(f"by names no column, so all messages would be equal; expected some of {', '.join(SEJ)}")
    origin, target = Origin.of(source, hub, token, tls), local_path(target)
    journals, ends = _read(spark, origin, target)
    message = ("key", *_MESSAGE)
    first = journals.groupBy(*_WHOSE, *(f.col(name).alias(f"by_{name}") for name in names)).agg(
        f.min_by(f.struct(*message), "offset").alias("m")
    )
    messages = 0 if progress is None else count(source, hub=hub, token=token, tls=tls)
    _write("dedupe", first.select(*_WHOSE, "m.*"), origin, target, prefix, bits, ends)
    if progress is not None:
        progress(messages)


def _read(spark: SparkSession, origin: Origin, target: str) -> tuple[DataFrame, dict[str, int] | None]:
    """Read the messages and, if the source is replaced, where each journal ends: later messages must not be removed."""
    origin.require_distinct()
    reader = spark.read.format("sej").options(**origin.options)
    if origin.described != os.path.realpath(target):
        return reader.load(origin.name), None
    root = os.fspath(target)
    ends = {origin.name: Extent(origin).end for origin in discover([root])}
    return reader.option("endingOffsets", json.dumps(ends)).load(root), ends


def _write(
    job: str,
    rows: DataFrame,
    origin: Origin,
    target: str | os.PathLike[str],
    prefix: str | None,
    bits: int | None,
    ends: dict[str, int] | None,
) -> None:
    about = "|".join((origin.described, os.path.realpath(target)))
    options = {"txnAppId": f"{job}-{hashlib.sha256(about.encode()).hexdigest()[:20]}"}
    options |= {} if prefix is None else {"prefix": prefix}
    options |= {} if bits is None else {"bits": str(bits)}
    options |= {} if ends is None else {"expectedOffsets": json.dumps(ends)}
    place = Target.of(os.fspath(target), parse(WRITE, options))
    held = place.existing() and count(target) and not wrote(place, options["txnAppId"])
    if held and origin.described != os.path.realpath(target):
        raise OptionError(f"{place.root} holds messages that this job did not write; choose another target")
    ordered = rows.repartition(*_WHOSE).sortWithinPartitions(*_WHOSE, "offset")
    writer = ordered.select("key", "value", "type", "timestamp_ns").write.format("sej")
    number = max(time.time_ns(), (last_number(place, options["txnAppId"]) or 0) + 1)  # also if the clock was set back
    writer.options(**options).option("txnVersion", number).mode("overwrite").save(place.root)


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
