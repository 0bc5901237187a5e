"""Shared by the formats: Python rows as Arrow batches, a stream reader that cannot read; and the source ``kestrel``.

PySpark's process for stream readers hides an error of ``streamReader``: it then calls ``stop`` of the reader that does
not exist, and the query ends with an ``UnboundLocalError``. An error of a method is reported as it is, so
:class:`RefusedReader` raises it at its first call.

``kestrel`` is used as ``load(directory)`` with the option ``queue``. The format is detected from the files' first
bytes, or set by ``kind``. With ``reader``, a libkestrel queue shows the items that this reader has not confirmed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pipeline.columns import KESTREL, arrow_schema_of, check_projection, ddl
from pipeline.options import KESTREL_READ, OptionError, parse
from pipeline.paths import paths_of, unseen
from pipeline.reading.rows import KestrelItems, RowSource, batches_of
from sej.errors import SejError
from sej.system.disk import OS

if TYPE_CHECKING:
    import pyarrow as pa


class RowReader(DataSourceReader):
    """Reads small files as rows; a file or queue is a partition."""

    def __init__(self, source: RowSource, schema: StructType) -> None:
        """List the files."""
        self._source = source
        self._schema = schema
        self._parts = source.parts()

    def partitions(self) -> list[InputPartition]:
        """Return a partition for each file or queue."""
        return [InputPartition([part]) for part in self._parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition.

        Raises:
            SejError: this host does not have a path.
        """
        for part in partition.value or ():
            if OS.status(part[0]) is None:  # a queue that is opened would be created
                raise SejError(unseen(), path=part[0])
            yield from batches_of(self._source, part, arrow_schema_of(self._schema))


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises one error in every method that Spark calls."""

    def __init__(self, error: Exception) -> None:
        """Set the error."""
        self._error = error

    def _refuse(self, *_: object) -> NoReturn:
        raise self._error

    initialOffset = latestOffset = getDefaultReadLimit = _refuse  # type: ignore[assignment]  # noqa: N815
    prepareForTriggerAvailableNow = partitions = read = _refuse  # type: ignore[assignment]  # noqa: N815


def no_stream(source: str) -> RefusedReader:
    """Return the reader of a source that has no stream."""
    return RefusedReader(
        OptionError(f"the source {source!r} cannot be read as a stream; read it as a table, with spark.read")
    )


class KestrelSource(DataSource):
    """The source for Kestrel's queues."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "kestrel"

    def schema(self) -> str:
        """Return all columns."""
        return ddl(KESTREL)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader."""
        options = parse(KESTREL_READ, self.options, "kestrel")
        if options["queue"] is None:
            raise OptionError("the option queue is required: the name of a queue in the directory")
        how = (options[name] for name in ("queue", "kind", "reader", "onCorruption"))
        return RowReader(KestrelItems(paths_of(self.options), *how), check_projection(schema, KESTREL))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a stream reader that raises: this source is a table only."""
        return no_stream("kestrel")
