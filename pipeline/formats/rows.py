"""What small sources share: rows in Python, as Arrow batches of the columns that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pipeline.schema import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RowReader"]

_ROWS: Final = 4096
_BYTES: Final = 1 << 20
"""A batch ends with the row that makes it this large: an Arrow column holds 2 GiB at most."""


class RowReader(DataSourceReader):
    """Reads some files, one after the other, as rows."""

    def __init__(
        self,
        paths: list[str],
        schema: StructType,
        rows: Callable[[str], Iterable[dict[str, Any]]],
        size_of: Callable[[dict[str, Any]], int],
        *,
        at_once: int = 1,
    ) -> None:
        """Keep what was asked for.

        Args:
            paths: what rows is called with.
            schema: the columns.
            rows: the rows of one path, by column.
            size_of: about how many bytes a row has.
            at_once: paths to a partition.
        """
        self._paths = paths
        self._schema = schema
        self._rows = rows
        self._size_of = size_of
        self._at_once = at_once

    def partitions(self) -> list[InputPartition]:
        """Some paths each."""
        paths = self._paths
        return [InputPartition(paths[at : at + self._at_once]) for at in range(0, len(paths), self._at_once)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition."""
        import pyarrow as pa

        schema = arrow_schema(self._schema)
        for path in partition.value or ():
            for some in self._batches(path):
                yield pa.RecordBatch.from_pylist(some, schema)

    def _batches(self, path: str) -> Iterator[list[dict[str, Any]]]:
        batch: list[dict[str, Any]] = []
        size, size_of = 0, self._size_of
        for row in self._rows(path):
            batch.append(row)
            size += size_of(row)
            if size >= _BYTES or len(batch) == _ROWS:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch
