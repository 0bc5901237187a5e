"""Shared by the formats: Python rows as Arrow batches, and a stream reader that cannot read.

PySpark's process for stream readers hides an error of ``streamReader``: it then calls ``stop`` of the reader that does
not exist, and the query ends with an ``UnboundLocalError``. An error of a method is reported as it is, so
:class:`RefusedReader` raises it at its first call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pipeline.options import OptionError
from pipeline.paths import unseen
from pipeline.schema import arrow_schema
from sej.errors import SejError
from sej.system.disk import OS
from sej.system.paths import absolute_path

if TYPE_CHECKING:
    import pyarrow as pa


class RowReader(DataSourceReader):
    """Reads files, one after the other, as rows."""

    def __init__(
        self,
        paths: list[str],
        schema: StructType,
        rows: Callable[[str], Iterable[dict[str, Any]]],
        size_of: Callable[[dict[str, Any]], int],
        *,
        at_once: int = 1,
    ) -> None:
        """Set the files and columns.

        Args:
            paths: the arguments of ``rows``.
            schema: the columns.
            rows: returns the rows of one path, by column.
            size_of: returns about how many bytes a row has.
            at_once: paths in one partition.
        """
        self._paths = [absolute_path(path) for path in paths]  # an executor has another working directory
        self._schema = schema
        self._rows = rows
        self._size_of = size_of
        self._at_once = at_once

    def partitions(self) -> list[InputPartition]:
        """Return partitions of a few paths each."""
        paths = self._paths
        return [InputPartition(paths[at : at + self._at_once]) for at in range(0, len(paths), self._at_once)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition.

        Raises:
            SejError: this host does not have a path.
        """
        from pipeline.columns import batches_of

        schema = arrow_schema(self._schema)
        for path in partition.value or ():
            if OS.status(path) is None:  # a queue that is opened would be created
                raise SejError(unseen(), path=path)
            yield from batches_of(self._rows(path), self._size_of, schema)


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises one error in every method that Spark calls."""

    def __init__(self, error: Exception) -> None:
        """Set the error."""
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Raise the error."""
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Raise the error."""
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Raise the error."""
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Raise the error."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Raise the error."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Raise the error."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise self._error


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
