"""What small sources share: rows in Python, as Arrow batches of the columns that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pipeline.schema import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RowReader"]

_ROWS = 4096


class RowReader(DataSourceReader):
    """Reads some files, one after the other, as rows."""

    def __init__(
        self, paths: list[str], schema: StructType, rows: Callable[[str], Iterable[dict[str, Any]]], *, at_once: int = 1
    ) -> None:
        """Keep what was asked for.

        Args:
            paths: what rows is called with.
            schema: the columns.
            rows: the rows of one path, by column.
            at_once: paths to a partition.
        """
        self._paths = paths
        self._schema = schema
        self._rows = rows
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
            rows = iter(self._rows(path))
            while some := list(islice(rows, _ROWS)):
                yield pa.RecordBatch.from_pylist([{name: row[name] for name in schema.names} for row in some], schema)
