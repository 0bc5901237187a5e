"""Shared by the small sources: Python rows as Arrow batches of the requested columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

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
        from pipeline.reading.rows import batches_of

        schema = arrow_schema(self._schema)
        for path in partition.value or ():
            if OS.status(path) is None:  # a queue that is opened would be created
                raise SejError(unseen(), path=path)
            yield from batches_of(self._rows(path), self._size_of, schema)
