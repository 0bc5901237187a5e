"""The source ``sej`` as a stream.

Planning lives in one process beside Spark's driver for as long as a query runs; what it remembers there (the ends of
the journals, the reader's locks) saves looking, and nothing depends on it: everything that has to survive is in the
offsets that Spark keeps. Reading happens in the tasks, by another instance that holds text alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pipeline.options import OptionError, Options
from pipeline.reading.bounds import EARLIEST, LATEST, by_directory
from pipeline.reading.discovery import discover
from pipeline.reading.extents import Extent
from pipeline.reading.following import Follower, Root
from pipeline.reading.limits import by_bytes, by_messages
from pipeline.reading.places import Slice
from pipeline.reading.planning import PARTITION_BYTES_MIN, pack
from pipeline.reading.positions import Offsets, advance, entry, start_in, still_there
from pipeline.reading.progress import Progress
from pipeline.reading.remote import Remote, RemoteExtent, RemoteFollower, RemoteRoot
from pipeline.reading.task import how, read
from pipeline.schema import arrow_schema, check_projection
from sej.errors import JournalNotFoundError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SejStreamReader"]

_RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
"""The program of the process that plans a stream, and nothing else."""


class SejStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches over journals that grow, and reads them."""

    def __init__(self, paths: list[str], options: Options, schema: StructType) -> None:
        """Keep what was asked for; nothing is looked at."""
        self._paths = paths
        self._options = options
        self._schema = check_projection(schema)
        self._target: dict[str, int] | None = None

    @cached_property
    def _root(self) -> Root | RemoteRoot:
        options = self._options
        remote = Remote.of(options)
        if remote is not None:
            return RemoteRoot(remote, self._paths, options["pattern"])
        return Root(
            self._paths,
            lambda gone: discover(
                self._paths,
                layout=options["layout"],
                pattern=options["pattern"],
                may_be_empty=True,
                may_be_gone=gone,
            ),
            lambda origin: Follower(origin, options["onCorruption"]),
            may_vanish=not options["failOnDataLoss"],
        )

    @cached_property
    def _progress(self) -> Progress | None:
        return None if self._options["reader"] is None else Progress(self._options["reader"])

    def __getstate__(self) -> dict[str, Any]:
        """What travels: nothing that was looked at."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_root", "_progress")}

    # --- planning

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query starts."""
        options = self._options
        if isinstance(self._root, RemoteRoot):
            self._root.check()
        followers: Mapping[str, Follower | RemoteFollower] = self._root.look()
        there = [follower.origin for follower in followers.values()]
        given = by_directory(options["startingOffsets"] or "earliest", there, "startingOffsets", EARLIEST)
        found = {}
        for name, follower in followers.items():
            offset = given[name]
            if options["startingTimestamp"] is not None:
                offset = _extent(follower).find_time(options["startingTimestamp"])
            elif offset == EARLIEST:
                offset = follower.first
            elif offset == LATEST:
                offset = follower.end
            found[name] = entry(follower, offset)
        return dict(sorted(found.items()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit of a micro-batch, from the options."""
        if self._options["maxMessagesPerTrigger"] is not None:
            return ReadMaxRows(self._options["maxMessagesPerTrigger"])
        if self._options["maxBytesPerTrigger"] is not None:
            return ReadMaxBytes(self._options["maxBytesPerTrigger"])
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember where everything ends now: this run goes that far and no further."""
        self._root.look()  # bytes behind the last whole message are judged at the second look
        self._target = {name: follower.end for name, follower in self._root.look().items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next micro-batch goes. Everything up to start is finished by now."""
        followers: Mapping[str, Follower | RemoteFollower] = self._root.look()
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
        """Where everything ends: what a query's progress compares its own end with."""
        followers = self._root.look()
        return dict(sorted((name, entry(follower, follower.end)) for name, follower in followers.items()))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The slices between two offsets, packed."""
        followers: Mapping[str, Follower | RemoteFollower] = self._root.look()
        fail = self._options["failOnDataLoss"]
        parts: list[Slice] = []
        extents: dict[str, Extent | RemoteExtent] = {}
        for name, until in end.items():
            follower = followers.get(name)
            if _same(start.get(name), until) or not still_there(follower, name, until, fail=fail):
                continue
            assert follower is not None
            first = start_in(follower, start, fail=fail)
            stop = int(until["offset"])
            if first >= stop:
                continue
            size = follower.size_of(first, stop)
            parts.append(Slice(follower.origin, first, stop, size, follower.place(first)))
            if size > PARTITION_BYTES_MIN:
                extents[name] = _extent(follower)
        packed = pack(parts, extents, at_least=self._options["minPartitions"], at_most=self._options["maxPartitions"])
        return [InputPartition(part) for part in packed]

    def commit(self, end: dict[str, Any]) -> None:
        """Spark has finished everything up to end."""
        self._keep_progress(end, self._root.followers)

    def stop(self) -> None:
        """Let go of the reader's locks and of the hub."""
        if "_progress" in self.__dict__ and self._progress is not None:
            self._progress.close()
        root = self.__dict__.get("_root")
        if isinstance(root, RemoteRoot):
            root.close()
        if sys.argv[1:2] == [_RUNNER] and isinstance(sys.exc_info()[1], EOFError):
            os._exit(0)  # Spark hung up: its runner would complain of that, to nobody, with a traceback

    def _limited(
        self, starts: dict[str, int], ends: dict[str, int], followers: Mapping[str, Follower | RemoteFollower]
    ) -> dict[str, int]:
        if self._options["maxMessagesPerTrigger"] is not None:
            ends = by_messages(starts, ends, self._options["maxMessagesPerTrigger"])
        if self._options["maxBytesPerTrigger"] is not None:
            limit = self._options["maxBytesPerTrigger"]
            ends = by_bytes(starts, ends, limit, lambda name, left, right: followers[name].size_of(left, right))
        return ends

    def _keep_progress(self, done: Offsets, followers: Mapping[str, Follower | RemoteFollower]) -> None:
        progress = self._progress
        if progress is None:
            return
        if self._options["hub"]:
            raise OptionError("reader keeps progress in a directory's ofs/, which a hub's reader does not have")
        kept = {}
        for name, follower in followers.items():
            known = done.get(name)
            if known is not None and known["id"] in ("", follower.id):
                try:
                    progress.begin(follower.origin.path, int(known["offset"]), follower.id)
                except JournalNotFoundError:
                    continue  # removed a moment ago: the next look decides about it
                kept[follower.origin.path] = int(known["offset"])
        progress.keep(kept, wait=self._target is not None)  # a run that ends soon is not asked again

    # --- reading

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task."""
        return read(partition.value or (), arrow_schema(self._schema), how(self._options))


def _extent(follower: Follower | RemoteFollower) -> Extent | RemoteExtent:
    return follower.extent if isinstance(follower, RemoteFollower) else Extent(follower.origin, judge=False)


def _same(left: dict[str, Any] | None, right: dict[str, Any]) -> bool:
    return left is not None and left == right
