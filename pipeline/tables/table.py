"""``pipeline.table``: journals and small files as a table, without Spark.

A source plans parts, which threads then read. Planning looks at the disk each time, so every read of a table sees what
is there at its beginning.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import date
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import pyarrow as pa

from pipeline.columns import ONE_SOURCE, SEJ, arrow_schema, check_names
from pipeline.connection import Remote
from pipeline.needs import needed
from pipeline.options import VALUE_FORMATS, VALUE_MODES, Fields, OptionError
from pipeline.paths import local_path, several
from pipeline.reading.discovery import (
    Chosen,
    Condition,
    Slice,
    Way,
    discover,
    layout_of,
    matching,
    name_several,
    roots_of,
    with_roots,
)
from pipeline.reading.extents import Extent, Follower
from pipeline.reading.planning import Extents, Followers, extents_of, pack, part_of, refuse_unknown
from pipeline.reading.rows import KestrelItems, RowSource, TextEntries, batches_of, queues
from pipeline.reading.task import read
from pipeline.schemas import kept_schema
from pipeline.tables.where import Selection, Where, bounds_of, conditions_of, expression_of
from pipeline.values import value_columns, value_format
from sej.checks import ITERABLE, TEXT, one_of, optional, require
from sej.errors import NotAJournalError, OffsetTooSmallError
from sej.journal.directory import Directory, gap_at
from sej.system.disk import OS, absolute_path

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from hub.wire import ClientTLS


_PART_BYTES: Final = 16 << 20
"""A thread reads a part of this size into memory: a few batches."""


_CHUNK_BYTES: Final = 4 << 20
"""Larger than the chunks of Spark, which takes small batches: a read into Polars then takes at least 10 % less CPU."""
_BATCH_ROWS: Final = 1 << 10
_BATCH_BYTES: Final = 1 << 16
"""Batches smaller than both are combined. That copies them, and a larger batch costs a consumer of Arrow little."""


class Journals:
    """SEJ directories, sharded journals and hubs."""

    def __init__(self, paths: Sequence[str], way: Way, columns: Mapping[str, str]) -> None:
        """Set what is read. A path that does not exist is an error here."""
        self.columns = columns
        self._paths = paths
        self._way = way._replace(chunk_bytes=_CHUNK_BYTES)
        if way.remote is None:
            refuse_unknown(way.clients or (), discover(paths, way))

    def plan(self, selection: Selection) -> tuple[list[list[Slice]], list[Condition]]:
        """Return the parts, each a few slices, and the conditions to test.

        Raises:
            OffsetTooSmallError: the message at the start was deleted.
        """
        chosen, rest = selection.chosen()
        extents: dict[str, Extents] = {}
        slices = []
        for extent, part in self._slices(selection, chosen):
            extents[extent.origin.name] = extent
            if part.start < part.stop:
                slices.append(part)
        size = sum(part.size for part in slices)
        many = -(-size // _PART_BYTES)
        return pack(slices, extents, at_least=max(many, 1), at_once=max(THREADS, many)), rest

    def read(self, part: list[Slice], selection: Selection, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a part."""
        chosen, _ = selection.chosen()
        return read(part, schema, self._way, chosen, batch_rows=_BATCH_ROWS, batch_bytes=_BATCH_BYTES)

    def count(self, selection: Selection) -> int | None:
        """Return the number of messages from the index; None if a message decides for itself, or may be damaged."""
        chosen, rest = selection.chosen()
        if rest or chosen.is_timed or self._way.on_corruption == "skip":
            return None
        total = 0
        for extent, part in self._slices(selection, chosen):
            count = extent.count(part.start, part.stop)
            if count is None:  # damage, or a part of a journal with gaps
                return None
            total += count
        return total

    def _slices(self, selection: Selection, chosen: Chosen) -> Iterator[tuple[Extents, Slice]]:
        for extent in extents_of(self._paths, self._way, chosen):
            refuse_deleted(extent, selection.start)
            yield extent, part_of(extent, self._way, chosen, extent.first, extent.end)


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

    def _parts(self) -> list[tuple[str, str]]:
        return matching(self._pattern, {part: part[1] for part in self._source.parts()})


Source = Journals | Rows
"""What a table reads: it plans parts, reads each, and counts rows if the index knows their number."""


def refuse_deleted(extent: Extents | Followers, start: int | None) -> None:
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
        if there is not None and there.is_dir and any(name.endswith(".tq") for name in OS.list(path)):
            return "textqueue"
        if queues(path):
            return "kestrel"
        if roots_of(path) == [path]:
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
    _keep_freed_memory()
    if len(parts) == 1 or threads == 1:
        for part in parts:
            yield from read(part)
        return
    rest = iter(parts)
    waiting: deque[Future[list[_Row]]] = deque()
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


PathLike = str | os.PathLike[str]
"""The type of a path."""
Place = int | str | date
"""The type of the arguments ``start`` and ``end``."""


class Table:
    """Rows that are read by each call, from the beginning.

    Every read sees what is there when it begins: messages that are appended meanwhile belong to the next one. Rows are
    in the order of the directories, and of the offsets in each. Several threads read. Memory holds the parts that they
    are reading, about 16 MiB each, or the largest message.

    A library that takes Arrow data takes a table: ``duckdb.from_arrow(t)``, ``polars.DataFrame(t)``,
    ``pyarrow.table(t)``.

    All reads raise :class:`~sej.CorruptionError` at bytes that are wrong, :class:`~sej.OffsetTooSmallError` if messages
    were deleted while they were read, and :class:`~sej.JournalNotFoundError` if a journal was removed.
    """

    def __init__(self, source: Source, columns: Sequence[str], selection: Selection) -> None:
        """Use :func:`table`."""
        self._source = source
        self._selection = selection
        self.schema: pa.Schema = arrow_schema(columns, source.columns)
        """The columns, as an Arrow schema."""

    def count(self) -> int:
        """Return the number of rows.

        It is known from the index, without reading a message, unless the time, a message's content or
        ``on_corruption="skip"`` decides which messages count.
        """
        known = self._source.count(self._selection)
        if known is not None:
            return known
        names = [name for name in self._source.columns if name in ("offset", "ordinal", "position")]
        return sum(batch.num_rows for batch in Table(self._source, names, self._selection).to_batches())

    def to_batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows as Arrow batches, with bounded memory. Closing the generator ends the read."""
        return self._batches(lambda batch: batch)

    def narrowed(
        self, columns: Iterable[str], hints: Sequence[Condition], change: Callable[[pa.RecordBatch], Any]
    ) -> Generator[Any, None, None]:
        """Yield what ``change`` makes of the batches with these columns, in the threads that read.

        Rows that do not fulfil the hints may be left out.
        """
        narrow = Table(self._source, list(columns), self._selection._replace(hints=hints))
        return narrow._batches(change)

    def _batches(self, change: Callable[[pa.RecordBatch], Any]) -> Generator[Any, None, None]:
        parts, rest = self._source.plan(self._selection)
        names = self.schema.names
        tested = [condition.column for condition in rest if condition.column not in names]
        inner = arrow_schema(dict.fromkeys([*names, *tested]), self._source.columns)
        test = expression_of(rest, inner)

        def read(part: Any) -> Iterator[Any]:
            found = self._source.read(part, self._selection, inner)
            if test is not None:
                kept = (batch.filter(test).select(names) for batch in found)
                few = pa.Table.from_batches([batch for batch in kept if batch.num_rows], self.schema)
                found = iter(few.combine_chunks().to_batches())
            return map(change, found)

        return in_order(parts, read)

    def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table, in memory."""
        return pa.Table.from_batches(self.to_batches(), self.schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a reader of Arrow batches, with bounded memory."""
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def to_polars(self) -> pl.DataFrame:
        """Return the rows as a Polars DataFrame, in memory; needs polars."""
        with needed("polars"):
            import polars as pl

        from pipeline.tables.lazy import frame_of

        frames = list(self._batches(frame_of))  # in the threads that read
        return pl.concat(frames, rechunk=False) if frames else frame_of(self.schema.empty_table())

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a pandas DataFrame, in memory; needs pandas."""
        with needed("pandas"):
            import pandas  # noqa: F401

        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def scan(self) -> pl.LazyFrame:
        """Return a Polars LazyFrame over the rows; needs polars.

        A query reads only the columns that it uses. Its conditions on offset, time, shard, prefix and client limit what
        is read, as those of ``where``.
        """
        with needed("polars"):
            from pipeline.tables.lazy import scan

        return scan(self)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a new stream of the rows, for any library with the Arrow PyCapsule interface."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        """Return the columns, for any library with the Arrow PyCapsule interface."""
        return self.schema.__arrow_c_schema__()

    def __repr__(self) -> str:
        """Show the columns."""
        return f"<pipeline.Table {', '.join(self.schema.names)}>"


def table(
    paths: PathLike | Sequence[PathLike] | None,
    *,
    columns: Iterable[str] | None = None,
    start: Place | None = None,
    end: Place | None = None,
    where: Where | None = None,
    clients: str | Iterable[str] | None = None,
    pattern: str | None = None,
    hub: str | Sequence[str] | None = None,
    token: str | None = None,
    tls: ClientTLS | None = None,
    verify: bool = True,
    on_corruption: Literal["raise", "skip"] = "raise",
    schema: str | None = None,
    format: Literal["json", "avro", "msgpack", "protobuf"] = "json",
    definition: str | None = None,
    mode: Literal["permissive", "failfast", "drop"] = "permissive",
) -> Table:
    """Return journals as a table. No message is read before a call needs rows.

    Args:
        paths: SEJ directories, sharded journals or hubs' roots, globs of them (``/data/*/orders``), or directories of
            sharded journals; or ``.tq`` files and directories of them; or Kestrel queues (``spool/cars``) and
            directories of them. With ``hub``: clients, sharded journals or journals there; None: everything readable.
            Unless it is one path of one root, the column ``source`` is the root of each message.
        columns: their names, in any order; None: all. See docs/ask.md for the columns of each kind.
        start: the first message: an offset, a datetime, or a text as the command takes it (``"2026-01-31 12:00"``,
            ``"10m ago"``). A time without a zone is UTC. Messages are compared with a time one by one.
        end: the end, in the same way: the first offset or time that is not included.
        where: conditions joined by AND, as in ``"shard = 3 AND offset >= 1000"``, or a list of triples such as
            ``("shard", "=", 3)``. Conditions on offset, time, shard, prefix and client limit what is read.
        clients: only these clients of a hub.
        pattern: only directories whose whole name matches this regular expression, or else glob.
        hub: the address ``host:port`` of a hub to read through, or several of the same hub. A read fails with
            ``hub.UnavailableError`` if the hub cannot be reached for 20 seconds.
        token: the token for the hub.
        tls: how to reach the hub with TLS; None: without.
        verify: check blocks against their checksums; with ``on_corruption="skip"`` a damaged block is skipped whole.
        on_corruption: ``"raise"``, or ``"skip"`` to pass damaged messages and log them.
        schema: columns that are fields of the values, as in ``"id bigint, amount decimal(10,2), at timestamp"``, with
            the types of Spark; None: as kept by ``sej schema set``, if anything is. A field that is missing is null. A
            field with the name of a journal's own column is ``value_key``, ``value_type`` and so on.
        format: what the values are.
        definition: of Avro, the schema that the values were written with, as JSON or a file; of Protocol Buffers
            ``FILE:MESSAGE``, a file as ``protoc --include_imports --descriptor_set_out=FILE`` writes it.
        mode: a value that does not fit leaves its columns null, and the column ``bad_value`` has its bytes
            (``"permissive"``); raises :class:`~pipeline.FormatError` (``"failfast"``); or its row is left out
            (``"drop"``). Only the columns that are read decide. How many do not fit is logged.

    Raises:
        JournalNotFoundError: a path, or a client, does not exist.
        NotAJournalError: a path is something else.
        OptionError: an argument cannot be used for these paths, or a column does not exist.

    Example:
        >>> import tempfile, sej
        >>> path = tempfile.mkdtemp()
        >>> with sej.Writer(path) as w:
        ...     _ = w.append_many([b"a", b"b", b"c"])
        >>> t = table(path, columns=["offset", "value"], where="offset >= 1")
        >>> t.count(), t.to_arrow().to_pylist()
        (2, [{'offset': 1, 'value': b'b'}, {'offset': 2, 'value': b'c'}])
    """
    require(columns=columns)
    way = way_of(clients, pattern, hub, token, tls, verify, on_corruption)
    bounds = bounds_of(start, end)
    given = paths_of(paths, way.remote)
    way, read_columns = with_values(way, given, Fields(schema, format, definition, mode))
    source = _source(given, way, read_columns, bounded=bool(bounds))
    names = list(source.columns) if columns is None else check_names(columns, source.columns)
    return Table(source, names, Selection(bounds, conditions_of(where, source.columns)))


def way_of(
    clients: str | Iterable[str] | None,
    pattern: str | None,
    hub: str | Sequence[str] | None,
    token: str | None,
    tls: ClientTLS | None,
    verify: bool,
    on_corruption: Literal["raise", "skip"],
) -> Way:
    """Check the arguments that say how journals are read, and return them."""
    require(pattern=pattern, token=token, verify=verify, on_corruption=on_corruption)
    names, remote = _clients(clients), Remote.named(hub, token, tls)
    return Way(pattern=pattern, clients=names, remote=remote, on_corruption=on_corruption, verify=verify)


def with_values(way: Way, paths: Sequence[str], fields: Fields) -> tuple[Way, Mapping[str, str]]:
    """Return the way with the format of the values, and the columns of the paths and of the values.

    Those are given, or kept in the first of the paths. If several roots are read, there is a column that says which.
    """
    kinds = (optional(TEXT), one_of(VALUE_FORMATS), optional(TEXT), one_of(VALUE_MODES))
    require(**{name: (value, kind) for name, value, kind in zip(Fields._fields, fields, kinds, strict=True)})
    columns = SEJ if way.remote is None and name_several(paths) else ONE_SOURCE
    if fields.schema is None and way.remote is None:
        kept = kept_schema(with_roots(paths))
        fields = fields if kept is None else kept._replace(mode=fields.mode)
    if fields.schema is None:
        return way, columns
    values = value_format(fields, ("format", "definition"))
    return way._replace(values=values), {**columns, **value_columns(fields)}


def paths_of(paths: PathLike | Sequence[PathLike] | None, remote: Remote | None) -> list[str]:
    """Check the argument ``paths``, and return it as a list."""
    if paths is None and remote is None:
        raise TypeError("paths must be a path or a list of paths, got None, which is allowed only with hub=")
    given = [] if paths is None else several("paths", paths)
    if not given and remote is None:
        raise OptionError("paths must name at least one path, got none")
    return [local_path(path) if remote is not None else absolute_path(local_path(path)) for path in given]


def _clients(clients: str | Iterable[str] | None) -> tuple[str, ...] | None:
    if clients is None:
        return None
    found = (clients,) if isinstance(clients, str) else clients
    ITERABLE("clients", found)
    names = tuple(found)
    for name in names:
        TEXT("clients", name)
    return names


def _source(paths: Sequence[str], way: Way, columns: Mapping[str, str], *, bounded: bool) -> Source:
    kinds = {path: "sej" if way.remote is not None else kind_of(path) for path in paths}
    different = sorted(set(kinds.values()))
    if len(different) > 1:
        raise OptionError(
            f"the paths are of different kinds ({', '.join(f'{path}: {kind}' for path, kind in kinds.items())}); make"
            " a table of each"
        )
    kind = different[0] if different else "sej"
    if kind == "sej":
        return Journals(paths, way, columns)
    for name, given in (
        ("start and end", bounded),
        ("clients", way.clients is not None),
        ("schema", way.values is not None),
    ):
        if given:
            raise OptionError(f"{name} need a journal, and {paths[0]} is {kind}: use where with one of its columns")
    if kind == "textqueue":
        return Rows(TextEntries(paths), way.pattern)
    return Rows(KestrelItems(paths, on_damage=way.on_corruption), way.pattern)
