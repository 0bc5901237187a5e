"""Jobs over journals; each is a function here and a command of ``sej spark``.

Each reports through ``progress``, and continues where it stopped when it is run again. An archive is Parquet,
partitioned by day and shard. ``compact`` and ``dedupe`` write a copy that follows its source: when
the job is run again, it replaces what it wrote there.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pipeline.columns import ONE_SOURCE, SEJ, ddl
from pipeline.connection import ANSWER_S, RETRY_S, Line, Remote
from pipeline.options import WRITE, OptionError, parse
from pipeline.paths import local_path, outside, reaching, spark_path
from pipeline.reading.discovery import Origin as Place
from pipeline.reading.discovery import Way, discover, name_several
from pipeline.reading.extents import Extent
from pipeline.reading.planning import count, total
from pipeline.reading.remote import listed_on
from pipeline.writing.places import Target
from sej.checks import ITERABLE
from sej.system.disk import absolute_path
from shard.committing import last_number, wrote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from hub.wire import ClientTLS


_Progress = Callable[[int], None]
"""Called from time to time with the messages so far."""
_PER_TRIGGER: Final = 1_000_000


class _Origin:
    """What a job reads: a path, or journals on a hub.

    Attributes:
        name: the argument of ``load``.
        remote: the hub, or None.
        described: an absolute path, or hub and name: the same for each run, in whatever order addresses are passed.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        hub: str | Sequence[str] | None,
        token: str | None,
        tls: ClientTLS | None,
    ) -> None:
        """Check the arguments of a job.

        Raises:
            OptionError: the path is not local, or the hub is not an address.
        """
        remote = Remote.named(hub, token, tls)
        if remote is None:
            self.name = local_path(root)
            self.described = os.path.realpath(self.name)
        else:
            remote = remote._replace(retry_s=RETRY_S)  # a job takes long, and would have to read again
            self.name = os.fspath(root)
            self.described = f"hub {','.join(sorted(remote.addresses))} {self.name}"
        self.remote = remote

    def load(self, reader: Any, /, **more: Any) -> DataFrame:
        """Read the columns of the journals, without those of a kept schema, as a table or a stream of Spark."""
        columns = SEJ if self.remote is None and name_several([self.name]) else ONE_SOURCE
        options = _set(more) | ({} if self.remote is None else self.remote.options())
        found: DataFrame = reader.format("sej").schema(ddl(columns)).options(**options).load(self.name)
        return found

    def stream(self, spark: SparkSession, messages_per_batch: int, **more: str | None) -> DataFrame:
        """Read from the first message on, in steps."""
        steps = {"startingOffsets": "earliest", "maxMessagesPerTrigger": messages_per_batch}
        return self.load(spark.readStream, **steps, **more)

    def require_distinct(self) -> None:
        """Refuse journals that have the same client, prefix and shard: a job would take them for one.

        Raises:
            OptionError: there are such journals, as two of one client that are not shards.
        """
        if self.remote is None:
            there: Iterable[Place] = discover([self.name], Way())
        else:
            with Line(self.remote._replace(retry_s=ANSWER_S)) as line:
                there = listed_on(line, [self.name], None)
        known: dict[tuple[object, ...], str] = {}
        for place in there:
            first = known.setdefault(place[2:], place.name)
            if first != place.name:
                raise OptionError(
                    f"this job cannot tell {first!r} and {place.name!r} apart: they have the same client, prefix and"
                    " shard; run it for each of them alone"
                )


def _set(options: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in options.items() if value is not None}


def _run_to_end(writer: DataStreamWriter, progress: _Progress | None) -> int:
    """Process the existing messages and stop; return how many this run took.

    Raises:
        StreamingQueryException: it failed; the next run continues where it stopped.
    """
    query = writer.trigger(availableNow=True).start()
    seen: dict[int, int] = {}

    def look() -> int:
        for batch in query.recentProgress:
            found: Any = batch
            seen[found.batchId] = found.numInputRows
        total = sum(seen.values())
        if progress is not None:
            progress(total)
        return total

    while not query.awaitTermination(1):
        look()
    return look()


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
    messages_per_batch: int = _PER_TRIGGER,
    hub: str | Sequence[str] | None = None,
    token: str | None = None,
    tls: ClientTLS | None = None,
    progress: _Progress | None = None,
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
    journals = _Origin(root, hub, token, tls).stream(spark, messages_per_batch, reader=reader)
    day = f.expr(_UTC_DAY)  # to_date() would return the day in the session's time zone
    writer = journals.withColumn("day", f.when(f.col("timestamp").isNotNull(), day)).writeStream.format("parquet")
    options = {"path": folder, "compression": "zstd", "checkpointLocation": f"{folder}/_checkpoint"}
    with reaching(folder):
        return _run_to_end(writer.partitionBy("day", "shard").options(**options), progress)


def restore(
    spark: SparkSession,
    source: str | os.PathLike[str],
    root: str | os.PathLike[str],
    *,
    prefix: str | None = None,
    bits: int | None = None,
    where: str | None = None,
    progress: _Progress | None = None,
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
    name, options = _named("restore", source, root, where or ""), _set({"prefix": prefix, "bits": bits})
    messages = chosen.count()
    number = messages + 1
    before = last_number(Target.of(root, parse(WRITE, options)), name)
    if before not in (None, number):
        raise OptionError(
            f"an earlier run restored {before - 1} messages of this archive into {root}, and the archive has {messages}"
            " now; restore it into another directory, or choose the new messages with where="
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
    progress: _Progress | None = None,
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

    job = _Rewriting("compact", spark, _Origin(source, hub, token, tls), local_path(target))
    latest = job.journals.groupBy(*_WHOSE, "key").agg(f.max_by(f.struct(*_MESSAGE), "offset").alias("m"))
    rows = latest.select(*_WHOSE, "key", "m.*")
    if not keep_deleted:
        rows = rows.where(f.length("value") > 0)
    job.write(rows, prefix, bits, progress)


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
    progress: _Progress | None = None,
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
        if name not in ONE_SOURCE:
            raise OptionError(f"by has the column {name!r}; expected some of {', '.join(ONE_SOURCE)}")
    if not names:
        raise OptionError(
            f"by names no column, so all messages would be equal; expected some of {', '.join(ONE_SOURCE)}"
        )
    job = _Rewriting("dedupe", spark, _Origin(source, hub, token, tls), local_path(target))
    message = ("key", *_MESSAGE)
    first = job.journals.groupBy(*_WHOSE, *(f.col(name).alias(f"by_{name}") for name in names)).agg(
        f.min_by(f.struct(*message), "offset").alias("m")
    )
    job.write(first.select(*_WHOSE, "m.*"), prefix, bits, progress)


def _named(job: str, *about: str) -> str:
    """The name of a job that is the same for each run of it."""
    return f"{job}-{hashlib.sha256('|'.join(about).encode()).hexdigest()[:20]}"


class _Rewriting:
    """A job that replaces what it wrote to its target before, and its source if that is the target.

    Attributes:
        journals: what it reads.
    """

    def __init__(self, job: str, spark: SparkSession, origin: _Origin, target: str) -> None:
        origin.require_distinct()
        self._target = target
        self._in_place = origin.described == os.path.realpath(target)
        self._name = _named(job, origin.described, os.path.realpath(target))
        self._ends: str | None = None
        if self._in_place:  # what is appended meanwhile must not be removed
            self._ends = json.dumps({place.name: Extent(place).end for place in discover([target], Way())})
        self.journals = origin.load(spark.read, endingOffsets=self._ends)
        self._origin = origin

    def write(self, rows: DataFrame, prefix: str | None, bits: int | None, progress: _Progress | None) -> None:
        messages = 0 if progress is None else total([self._origin.name], Way(remote=self._origin.remote))
        options = _set({"txnAppId": self._name, "prefix": prefix, "bits": bits, "expectedOffsets": self._ends})
        place = Target.of(self._target, parse(WRITE, options))
        held = place.existing() and count(self._target) and not wrote(place, self._name)
        if held and not self._in_place:
            raise OptionError(f"{place.root} holds messages that this job did not write; choose another target")
        ordered = rows.repartition(*_WHOSE).sortWithinPartitions(*_WHOSE, "offset")
        writer = ordered.select("key", "value", "type", "timestamp_ns").write.format("sej")
        number = max(time.time_ns(), (last_number(place, self._name) or 0) + 1)  # also if the clock was set back
        writer.options(**options).option("txnVersion", number).mode("overwrite").save(place.root)
        if progress is not None:
            progress(messages)


def reshard(
    spark: SparkSession,
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    prefix: str | None = None,
    bits: int,
    pattern: str | None = None,
    messages_per_batch: int = _PER_TRIGGER,
    hub: str | Sequence[str] | None = None,
    token: str | None = None,
    tls: ClientTLS | None = None,
    progress: _Progress | None = None,
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
    journals = _Origin(source, hub, token, tls).stream(spark, messages_per_batch, pattern=pattern)
    folder = absolute_path(local_path(target))
    name = f"{prefix or ''}.{bits:x}".lstrip(".")
    checkpoint = os.path.join(folder, ".staging", f"reshard-{name}")
    options = _set({"path": folder, "prefix": prefix, "bits": bits, "checkpointLocation": checkpoint})
    rows = journals.select("key", "value", "type", "timestamp_ns")
    return _run_to_end(rows.writeStream.format("sej").options(**options), progress)


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
    progress: _Progress | None = None,
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

    origin = _Origin(root, hub, token, tls)
    origin.require_distinct()
    journals = origin.load(spark.read)
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
    tops = {row[: len(_WHOSE)]: row for row in top.collect()}
    rows = summed.collect()
    if progress is not None:
        progress(sum(row.messages for row in rows))
    found = []
    for row in rows:
        most = tops[row[: len(_WHOSE)]]
        seconds = (row.last_ns - row.first_ns) / 1e9 if row.first_ns is not None else 0
        rate = row.messages / seconds if seconds else None
        share = most.top_count / row.messages
        found.append(DirectoryStats(**row.asDict(), rate=rate, top_key=bytes(most.top_key), top_key_share=share))
    return sorted(found, key=lambda stat: (stat.client or "", stat.prefix or "", stat.shard or 0))


__all__ = ["DirectoryStats", "archive", "compact", "dedupe", "reshard", "restore", "stats"]
