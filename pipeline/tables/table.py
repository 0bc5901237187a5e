"""``pipeline.table``: journals as a table, without Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from pipeline.columns import arrow_schema, check_names
from pipeline.connection import Remote
from pipeline.needs import needed
from pipeline.options import OptionError
from pipeline.paths import local_path
from pipeline.reading.conditions import Condition
from pipeline.tables.sources import Journals, Rows, Source, in_order, kind_of
from pipeline.tables.where import Selection, Way, Where, bounds_of, conditions_of, expression_of
from sej.checks import FLAG, ITERABLE, PATH, TEXT, one_of, optional, require
from sej.system.paths import absolute_path

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from hub.wire import ClientTLS

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

        return scan(self.schema, self.narrowed)

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
) -> Table:
    """Return journals as a table. No message is read before a call needs rows.

    Args:
        paths: SEJ directories, sharded journals or hubs' roots; or ``.tq`` files and directories of them; or Kestrel
            queues (``spool/cars``) and directories of them. With ``hub``: clients, sharded journals or journals there;
            None: everything readable.
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
    require(columns=(columns, optional(ITERABLE)))
    way = way_of(clients, pattern, hub, token, tls, verify, on_corruption)
    bounds = bounds_of(start, end)
    source = _source(paths_of(paths, way.remote), way, bounded=bool(bounds))
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
    require(
        pattern=(pattern, optional(TEXT)),
        token=(token, optional(TEXT)),
        verify=(verify, FLAG),
        on_corruption=(on_corruption, one_of(("raise", "skip"))),
    )
    return Way(verify, on_corruption, pattern, _clients(clients), Remote.named(hub, token, tls))


def paths_of(paths: PathLike | Sequence[PathLike] | None, remote: Remote | None) -> list[str]:
    """Check the argument ``paths``, and return it as a list."""
    if paths is None and remote is None:
        raise TypeError("paths must be a path or a list of paths, got None; only a hub is read without")
    if paths is not None and not isinstance(paths, str | os.PathLike):
        ITERABLE("paths", paths)
    given = [] if paths is None else [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    for path in given:
        PATH("paths", path)
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


def _source(paths: Sequence[str], way: Way, *, bounded: bool) -> Source:
    kinds = {path: "sej" if way.remote is not None else kind_of(path) for path in paths}
    several = sorted(set(kinds.values()))
    if len(several) > 1:
        raise OptionError(
            f"the paths are of different kinds ({', '.join(f'{path}: {kind}' for path, kind in kinds.items())}); make"
            " a table of each"
        )
    kind = several[0] if several else "sej"
    if kind == "textqueue" or kind == "kestrel":
        for name, given in (("start and end", bounded), ("clients", way.clients is not None)):
            if given:
                raise OptionError(f"{name} are for journals; {paths[0]} is {kind}: use where with one of its columns")
        if kind == "textqueue":
            from pipeline.reading.text_entries import TextEntries

            return Rows(TextEntries(paths), way.pattern)
        from pipeline.reading.kestrel_items import KestrelItems

        return Rows(KestrelItems(paths, on_damage=way.on_corruption), way.pattern)
    return Journals(paths, way)
