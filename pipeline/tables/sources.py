"""The sources of tables: which there are, what a path is, and how each is planned and read.

A source plans parts, which threads then read. Planning looks at the disk each time, so every read of a table sees what
is there at its beginning.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar

from pipeline.columns import SEJ, RowSource, batches_of
from pipeline.options import OptionError
from pipeline.reading.conditions import Chosen, Condition, narrow
from pipeline.reading.discovery import Origin, Slice, discover, layout_of, matcher
from pipeline.reading.extents import Extent, Follower
from pipeline.reading.planning import extents_of, pack, refuse_unknown
from pipeline.reading.remote import RemoteExtent
from pipeline.reading.task import TaskOptions, read
from pipeline.tables.where import Selection, Way
from sej.errors import CorruptionError, NotAJournalError, OffsetTooSmallError
from sej.journal.directory import Directory
from sej.journal.gaps import gap_at
from sej.system.disk import OS

if TYPE_CHECKING:
    import pyarrow as pa


_PART_BYTES: Final = 16 << 20
"""A thread reads a part of this size into memory: a few batches."""


_CHUNK_BYTES: Final = 4 << 20
"""Larger than the chunks of Spark, which takes small batches: a read into Polars then takes at least 10 % less CPU."""
_BATCH_ROWS: Final = 1 << 10
_BATCH_BYTES: Final = 1 << 16
"""Batches smaller than both are combined. That copies them, and a larger batch costs a consumer of Arrow little."""
_BOUNDS: Final = ("=", "<", "<=", ">", ">=")


class Source(Protocol):
    """What a table reads.

    Attributes:
        columns: all of its columns, with their types in words.
    """

    columns: Mapping[str, str]

    def plan(self, selection: Selection) -> tuple[list[Any], list[Condition]]:
        """Return the parts to read, and the conditions that each of their rows must still be tested for."""
        ...

    def read(self, part: Any, selection: Selection, schema: pa.Schema
             ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """Yield the rows of a part, as batches of a schema."""
        ...

    def count(self, selection: Selection) -> int | None:
        """Return the number of rows, if that is known without reading them."""
        ...


def chosen_of(selection: Selection) -> tuple[Chosen, list[Condition]]:
    """Return what is left to read, and the conditions that need a test of each row."""
    chosen, rest = Chosen(), []
    for condition in (*selection.bounds, *selection.hints):
        chosen, _ = narrow(chosen, condition)
    for condition in selection.where:
        chosen, done = narrow(chosen, condition)
        exact = condition.column == "timestamp_ns" and condition.test in _BOUNDS
        if not done and not exact:  # readers return only messages within bounds of nanoseconds
            rest.append(condition)
    return chosen, rest


class Journals:
    """SEJ directories, sharded journals and hubs."""

    columns: Mapping[str, str] = SEJ

    def __init__(self, paths: Sequence[str], way: Way) -> None:
        """Set what is read. A path that does not exist is an error here."""
        self._paths = paths
        self._way = way
        if way.remote is None:
            there = discover(paths, pattern=way.pattern)
            refuse_unknown(way.clients or (), there)

    def plan(self, selection: Selection) -> tuple[list[list[Slice]], list[Condition]]:
        """Return the parts, each a few slices, and the conditions to test.

        Raises:
            OffsetTooSmallError: the message at the start was deleted.
        """
        chosen, rest = chosen_of(selection)
        extents: dict[str, Extent | RemoteExtent] = {}
        slices = []
        for extent in self._extents(chosen):
            refuse_deleted(extent, selection.start)
            extents[extent.origin.name] = extent
            part = extent.slice(*self._bounds(extent, chosen))
            if part.start < part.stop:
                slices.append(part)
        size = sum(part.size for part in slices)
        many = -(-size // _PART_BYTES)
        return pack(slices, extents, at_least=max(many, 1), at_once=max(THREADS, many)), rest

    def read(self, part: list[Slice], selection: Selection, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a part."""
        chosen, _ = chosen_of(selection)
        way = self._way
        bounds = chosen.since, chosen.until
        how = TaskOptions(way.on_corruption, True, way.verify, None, way.remote, *bounds, _CHUNK_BYTES)
        return read(part, schema, how, batch_rows=_BATCH_ROWS, batch_bytes=_BATCH_BYTES)

    def count(self, selection: Selection) -> int | None:
        """Return the number of messages from the index; None if a message decides for itself, or may be damaged."""
        chosen, rest = chosen_of(selection)
        timed = chosen.since is not None or chosen.until is not None
        if rest or timed or self._way.on_corruption == "skip":
            return None
        total = 0
        for extent in self._extents(chosen):
            refuse_deleted(extent, selection.start)
            count = extent.count(*self._bounds(extent, chosen))
            if count is None:  # damage, or a part of a journal with gaps
                return None
            total += count
        return total

    def _bounds(self, extent: Extent | RemoteExtent, chosen: Chosen) -> tuple[int, int]:
        start, stop = max(chosen.low, extent.first), extent.end
        if chosen.high is not None:
            stop = min(chosen.high, stop)
        if chosen.since is not None and start < stop:
            try:
                start = max(start, extent.find_time(chosen.since))
            except CorruptionError:
                if self._way.on_corruption == "raise":
                    raise
        return start, stop

    def _extents(self, chosen: Chosen) -> Iterator[Extent | RemoteExtent]:
        way = self._way
        return extents_of(
            self._paths,
            way.remote,
            pattern=way.pattern,
            clients=way.clients,
            on_corruption=way.on_corruption,
            chosen=chosen,
        )


class Rows:
    """Small files whose rows Python makes."""

    def __init__(self, source: RowSource, pattern: str | None) -> None:
        """Set what is read. A path that does not exist is an error here."""
        self.columns = source.columns
        self._source = source
        self._pattern = pattern
        self._parts()

    def plan(self, selection: Selection) -> tuple[list[Any], list[Condition]]:
        """Return the files or queues, and all conditions."""
        return self._parts(), list(selection.where)

    def read(self, part: Any, selection: Selection, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file or queue."""
        return batches_of(self._source, part, schema)

    def count(self, selection: Selection) -> None:
        """Return None: only the rows themselves can be counted."""

    def _parts(self) -> list[Any]:
        found = self._source.parts()
        if self._pattern is None:
            return found
        expression = matcher(self._pattern)
        chosen = [part for part in found if expression.fullmatch(self._source.name(part))]
        if found and not chosen:
            one = self._source.name(found[0])
            raise OptionError(f"pattern={self._pattern!r} matches none of {len(found)}; one of them is {one!r}")
        return chosen


def refuse_deleted(extent: _Bounded, start: int | None) -> None:
    """Refuse a start whose message was deleted; a recorded gap is not a deletion.

    Raises:
        OffsetTooSmallError: it was deleted.
    """
    if start is None or start >= extent.first:
        return
    path = extent.origin.path
    local = isinstance(extent, Extent | Follower)
    gap = gap_at(Directory(path, OS), start) if local else None
    if gap is None or gap.stop < extent.first:
        raise OffsetTooSmallError(
            f"start is message {start}, which was deleted; start from {extent.first}, the first existing message, or"
            f' use where="offset >= {start}", which selects among the existing ones',
            first_available=extent.first,
            path=path,
            offset=start,
        )


class _Bounded(Protocol):
    """An extent or a follower."""

    origin: Origin
    first: int


def kind_of(path: str) -> Literal["sej", "textqueue", "kestrel"]:
    """Return which source a path is for.

    Raises:
        JournalNotFoundError: nothing of the kind exists.
        NotAJournalError: it is something else.
    """
    there = OS.status(path)
    if there is not None and not there.is_dir and path.endswith(".tq"):
        return "textqueue"
    try:
        layout_of(path)
    except NotAJournalError:  # which includes that nothing exists: the files of libkestrel's queue are cars.1, cars.2
        from pipeline.reading.kestrel_items import queues  # imports Kestrel, a tenth of the time of a short command

        if there is not None and there.is_dir and any(name.endswith(".tq") for name in OS.list(path)):
            return "textqueue"
        if queues(path):
            return "kestrel"
        raise
    return "sej"


_Part = TypeVar("_Part")
_Row = TypeVar("_Row")

THREADS: Final = min(len(os.sched_getaffinity(0)), 8)
"""Threads of one read."""
_KEPT_BYTES: Final = 16 << 20


def in_order(
    parts: Sequence[_Part], read: Callable[[_Part], Iterable[_Row]], threads: int = THREADS
) -> Generator[_Row, None, None]:
    """Yield what ``read`` returns for each part, in the order of the parts.

    A single part is read in the caller's thread. If the iterator is closed, parts that were not begun are not read.

    Example:
        >>> list(in_order([1, 2, 3], lambda part: [part, part * 10]))
        [1, 10, 2, 20, 3, 30]
    """
    if len(parts) == 1 or threads == 1:
        for part in parts:
            yield from read(part)
        return
    rest = iter(parts)
    waiting: deque[Future[list[_Row]]] = deque()
    _keep_freed_memory()
    own: set[int] = set()
    pool = ThreadPoolExecutor(threads, "table", initializer=lambda: own.add(threading.get_ident()))
    try:
        for part in rest:
            waiting.append(pool.submit(lambda one: list(read(one)), part))
            if len(waiting) > threads:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        # Polars drops what it does not need any more in any thread that calls it, also in one of these.
        pool.shutdown(wait=threading.get_ident() not in own, cancel_futures=True)


@cache
def _keep_freed_memory() -> None:
    """Let the allocator keep the memory of a part that was used, for the next one.

    The page faults of fresh memory cost a third of the time of a streamed read. glibc returns less memory to the kernel
    once a large block was freed: see M_TRIM_THRESHOLD in mallopt(3). It remembers at most 32 MiB. Other allocators
    take no notice.
    """
    bytes(_KEPT_BYTES)
