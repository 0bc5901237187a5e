"""Shared by the formats: Python rows as Arrow batches, and a stream reader that cannot read.

PySpark's process for stream readers hides an error of ``streamReader``: it then calls ``stop`` of the reader that does
not exist, and the query ends with an ``UnboundLocalError``. An error of a method is reported as it is, so
:class:`RefusedReader` raises it at its first call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pipeline.columns import RowSource, batches_of
from pipeline.options import OptionError
from pipeline.paths import unseen
from pipeline.schema import arrow_schema
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
            path = self._source.path(part)
            if OS.status(path) is None:  # a queue that is opened would be created
                raise SejError(unseen(), path=path)
            yield from batches_of(self._source, part, arrow_schema(self._schema))


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises one error in every method that Spark calls."""

    def __init__(self, error: Exception) -> None:
        """Set the error."""
        self._error = error

    def _refuse(self, *_: object) -> NoReturn:
        raise self._error

    initialOffset = latestOffset = getDefaultReadLimit = _refuse  # type: ignore[assignment]  # noqa: N815
    prepareForTriggerAvailableNow = partitions = read = _refuse  # type: ignore[assignment]  # noqa: N815


def reader_or_refusal(create: Callable[[], DataSourceStreamReader]) -> DataSourceStreamReader:
    """Return the reader, or one that raises why it could not be created."""
    try:
        return create()
    except (SejError, OSError) as error:
        return RefusedReader(error)


def no_stream(source: str) -> RefusedReader:
    """Return the reader of a source that has no stream."""
    return RefusedReader(
        OptionError(f"the source {source!r} cannot be read as a stream; read it as a table, with spark.read")
    )
