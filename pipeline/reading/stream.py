"""The source ``sej`` in Spark, as a table and as a stream, and the lag of streams.

The driver plans slices, each task reads its own. Spark pickles these objects: they hold text, and open no file until a
method needs it.

One process next to Spark's driver plans a streaming query for as long as it runs. It caches the ends of the journals
and holds the reader's locks, but nothing depends on them: all state that must survive is in the offsets that Spark
stores.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.types import StructType

from pipeline.columns import arrow_schema_of, check_projection
from pipeline.connection import Remote
from pipeline.options import Options
from pipeline.reading.discovery import EVERYTHING, Chosen, Condition, Slice, Way, narrow
from pipeline.reading.extents import Root
from pipeline.reading.planning import (
    PARTITION_BYTES_MIN,
    Extents,
    Followers,
    by_bytes,
    by_messages,
    cores,
    extents_of,
    pack,
)
from pipeline.reading.progress import (
    EARLIEST,
    LATEST,
    Offsets,
    Progress,
    advance,
    by_directory,
    entry,
    slices,
    start_in,
    still_there,
)
from pipeline.reading.remote import RemoteProgress, RemoteRoot
from pipeline.reading.task import read
from pipeline.values import values_of
from sej.checks import require

if TYPE_CHECKING:
    import pyarrow as pa


class _Read:
    """What a query reads, in batch mode or as a stream."""

    def __init__(self, paths: list[str], options: Options, schema: StructType, parallelism: int | None) -> None:
        self.paths = paths
        self.options = options
        self._parallelism = parallelism
        self._schema = check_projection(schema, others=options["valueFormat"] is not None)
        self.way = way_of(options)

    def packed(self, parts: list[Slice], extents: Mapping[str, Extents]) -> list[InputPartition]:
        """Return slices as partitions."""
        least, most = self.options["minPartitions"], self.options["maxPartitions"]
        return [
            *map(InputPartition, pack(parts, extents, at_least=least, at_most=most, at_once=cores(self._parallelism)))
        ]

    def rows(self, partition: InputPartition, chosen: Chosen = EVERYTHING) -> Iterator[pa.RecordBatch]:
        """Read the partition of one task. Spark passes None if it was given an empty list of them."""
        return read(partition.value or (), arrow_schema_of(self._schema), self.way, chosen)


def way_of(options: Options) -> Way:
    """Return how journals are read by the options of the source."""
    on_corruption = options["onCorruption"]
    return Way(
        layout=options["layout"],
        pattern=options["pattern"],
        remote=Remote.of(options),
        on_corruption=on_corruption,
        fail_on_data_loss=options["failOnDataLoss"],
        verify=on_corruption == "raise" if options["verify"] is None else options["verify"],
        report=options["damageReport"],
        values=values_of(options),
    )


class SejReader(DataSourceReader):
    """Reads journals in batch mode: plans on the driver, reads in the tasks."""

    def __init__(self, paths: list[str], options: Options, schema: StructType, parallelism: int | None = None) -> None:
        """Store the arguments; nothing is opened. parallelism: tasks at the same time, None: unknown."""
        self._read = _Read(paths, options, schema, parallelism)
        self._chosen = EVERYTHING

    def partitions(self) -> list[InputPartition]:
        """Return the slices of each task; empty if there is nothing to read."""
        way = self._read.way
        extents = list(extents_of(self._read.paths, way, self._chosen))
        parts = slices(extents, self._read.options, way, self._chosen)
        return self._read.packed(parts, {extent.origin.name: extent for extent in extents})

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the partition of one task."""
        return self._read.rows(partition, self._chosen)


class FilteringSejReader(SejReader):
    """The same reader with filters; used only if requested, and for one query.

    Spark 4.3 keeps the plan with the filters of one query in the table's object, and reads the same partitions in the
    next query of that DataFrame, or in the other side of a join. It also refuses a reader with this method if its
    setting is off.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Accept the filters that limit what is read; return the others."""
        rest = []
        for given in filters:
            attribute: tuple[str, ...] = getattr(given, "attribute", ())
            test, done = _TESTS.get(type(given)), False
            if len(attribute) == 1 and test is not None:
                self._chosen, done = narrow(self._chosen, Condition(attribute[0], test, getattr(given, "value", None)))
            if not done:
                rest.append(given)
        return rest


_TESTS: Final[dict[type[Filter], Any]] = {
    EqualTo: "=",
    EqualNullSafe: "<=>",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    In: "in",
    IsNull: "is null",
    IsNotNull: "is not null",
}

_RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
"""The program of a process that only plans a stream. Spark's daemon has its name as an argument."""
_GRACE_S: Final = 5
"""How long a call to the hub may delay the end of that process."""


class SejStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches over growing journals, and reads them."""

    def __init__(self, paths: list[str], options: Options, schema: StructType, parallelism: int | None = None) -> None:
        """Store the arguments; nothing is opened. parallelism: tasks at the same time, None: unknown."""
        self._read = _Read(paths, options, schema, parallelism)
        self._options = options
        self._target: dict[str, int] | None = None

    @cached_property
    def _root(self) -> Root | RemoteRoot:
        way = self._read.way
        return (Root if way.remote is None else RemoteRoot)(self._read.paths, way)

    @cached_property
    def _progress(self) -> Progress | RemoteProgress | None:
        reader, remote = self._options["reader"], self._read.way.remote
        if reader is None:
            return None
        if remote is None:
            return Progress(reader)
        if _is_planner() and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _end_soon)
        return RemoteProgress(remote, reader)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that is pickled: only the arguments."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_root", "_progress")}

    # --- planning

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a new query starts."""
        options = self._options
        self._root.check()
        followers: Mapping[str, Followers] = self._root.look()
        there = [follower.origin for follower in followers.values()]
        given = by_directory(options["startingOffsets"] or "earliest", there, "startingOffsets", EARLIEST)
        found = {}
        for name, follower in followers.items():
            offset = {EARLIEST: follower.first, LATEST: follower.end}.get(given[name], given[name])
            if options["startingTimestamp"] is not None:
                offset = follower.extent().find_time(options["startingTimestamp"])
            found[name] = entry(follower, offset)
        return dict(sorted(found.items()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a micro-batch, from the options."""
        if self._options["maxMessagesPerTrigger"] is not None:
            return ReadMaxRows(self._options["maxMessagesPerTrigger"])
        if self._options["maxBytesPerTrigger"] is not None:
            return ReadMaxBytes(self._options["maxBytesPerTrigger"])
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember the current ends: this run stops there."""
        self._root.look()  # the second poll checks bytes after the last whole message
        self._target = {name: follower.end for name, follower in self._root.look().items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch. Everything up to start is finished."""
        followers: Mapping[str, Followers] = self._root.look()
        fail = self._options["failOnDataLoss"]
        starts = {name: start_in(follower, start, fail=fail) for name, follower in followers.items()}
        ends = {name: max(follower.end, starts[name]) for name, follower in followers.items()}
        if self._target is not None:
            ends = {
                name: max(min(end, self._target.get(name, starts[name])), starts[name]) for name, end in ends.items()
            }
        if not isinstance(limit, ReadAllAvailable):
            ends = self._limited(starts, ends, followers)
        self._keep_progress(start, followers)
        return advance(followers, start, ends, fail=fail)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the current ends, with which a query's progress compares its own."""
        followers = self._root.look()
        return dict(sorted((name, entry(follower, follower.end)) for name, follower in followers.items()))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the slices between two offsets, packed."""
        followers: Mapping[str, Followers] = self._root.look()
        fail = self._options["failOnDataLoss"]
        parts: list[Slice] = []
        extents: dict[str, Extents] = {}
        for name, until in end.items():
            follower = followers.get(name)
            if start.get(name) == until or not still_there(follower, name, until, fail=fail):
                continue
            assert follower is not None
            first = start_in(follower, start, fail=fail)
            stop = int(until["offset"])
            if first >= stop:
                continue
            size = follower.size_of(first, stop)
            parts.append(Slice(follower.origin, first, stop, size, follower.place(first), follower.id))
            if size > PARTITION_BYTES_MIN:
                extents[name] = follower.extent()
        return self._read.packed(parts, extents)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark has finished everything up to end."""
        self._keep_progress(end, self._root.followers)

    def stop(self) -> None:
        """Release the reader's locks and the connection to the hub."""
        if "_progress" in self.__dict__ and self._progress is not None:
            self._progress.close()
        if "_root" in self.__dict__:
            self._root.close()
        if _is_planner() and isinstance(sys.exc_info()[1], EOFError):
            os._exit(0)  # Spark has disconnected: its runner would only print a traceback about that

    def _limited(
        self, starts: dict[str, int], ends: dict[str, int], followers: Mapping[str, Followers]
    ) -> dict[str, int]:
        if self._options["maxMessagesPerTrigger"] is not None:
            ends = by_messages(starts, ends, self._options["maxMessagesPerTrigger"])
        if self._options["maxBytesPerTrigger"] is not None:
            limit = self._options["maxBytesPerTrigger"]
            late = [name for name, end in ends.items() if end > starts[name]]
            waiting = {name: followers[name].size_of(starts[name], ends[name]) for name in late}
            ends = by_bytes(starts, ends, limit, waiting)
        return ends

    def _keep_progress(self, done: Offsets, followers: Mapping[str, Followers]) -> None:
        progress = self._progress
        if progress is None:
            return
        places = {
            follower.origin.path: (int(known["offset"]), follower.id)
            for name, follower in followers.items()
            if (known := done.get(name)) is not None and known["id"] in ("", follower.id)
        }
        kept = {path: places[path][0] for path in progress.begin(places)}
        progress.keep(kept, wait=self._target is not None)  # a run that ends soon is not called again

    # --- reading

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the partition of one task."""
        return self._read.rows(partition)


def _is_planner() -> bool:
    """Return whether this process only plans a stream."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return sys.argv[1:2] == [_RUNNER] or (spec is not None and spec.name == _RUNNER)


def _end_soon(*_: object) -> None:
    """Handle Spark's SIGTERM: it disconnects too, so ``stop()`` is called, which gives the reader back to the hub.

    If that takes too long, the process ends by the alarm, and the hub waits for the end of the lease.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_GRACE_S)


_log = logging.getLogger("pipeline.lag")


class Behind(NamedTuple):
    """One stream after a micro-batch.

    Attributes:
        query: its name, or its id if it has none.
        batch: the micro-batch's number.
        messages: messages in that micro-batch.
        rate: messages a second.
        lag: messages not read yet, by directory.
    """

    query: str
    batch: int
    messages: int
    rate: float
    lag: dict[str, int]

    @property
    def total(self) -> int:
        """Messages not read yet in all directories."""
        return sum(self.lag.values())

    def __str__(self) -> str:
        """Format as one line."""
        return (
            f"{self.query}: batch {self.batch}, {self.messages:,} messages, {self.rate:,.0f} a second,"
            f" {self.total:,} behind in {sum(count > 0 for count in self.lag.values())} of {len(self.lag)} directories"
        )


class Lag(StreamingQueryListener):
    """Reports the lag of every stream over journals."""

    def __init__(self, report: Callable[[Behind], None] | None = None, *, metrics: str | None = None) -> None:
        """Choose the output.

        Args:
            report: called after each micro-batch; None: a line in the log ``pipeline.lag``.
            metrics: a file that is replaced each time, in Prometheus' text format (for its textfile collector).
        """
        require(report=report, metrics=metrics)
        self._report = report or (lambda behind: _log.info("%s", behind))
        self._metrics = metrics
        self.latest: dict[str, Behind] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Report after a micro-batch."""
        progress = event.progress
        lag: dict[str, int] = {}
        for source in progress.sources:
            done = _offsets(source.endOffset)
            lag |= {name: max(last - done.get(name, 0), 0) for name, last in _offsets(source.latestOffset).items()}
        name = progress.name or str(progress.id)
        rate = progress.processedRowsPerSecond or 0.0
        found = Behind(name, progress.batchId, progress.numInputRows, rate if rate == rate else 0.0, lag)
        self.latest[name] = found
        self._report(found)
        if self._metrics is not None:
            _export(self._metrics, self.latest)


def _offsets(text: Any) -> dict[str, int]:
    """Return a source's offset as (directory, next message); empty for another source."""
    try:
        found = json.loads(text) if isinstance(text, str) else text
        return {name: entry["offset"] for name, entry in found.items()}
    except (TypeError, KeyError, AttributeError, ValueError):
        return {}


def _export(path: str, latest: Mapping[str, Behind]) -> None:
    lines = ["# TYPE sej_stream_lag_messages gauge"]
    for behind in latest.values():
        for directory, count in sorted(behind.lag.items()):
            labels = f"query={json.dumps(behind.query)},directory={json.dumps(directory)}"
            lines.append(f"sej_stream_lag_messages{{{labels}}} {count}")
    temporary = f"{path}.new"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    os.replace(temporary, path)
