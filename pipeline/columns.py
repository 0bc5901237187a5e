"""The columns of each source, by name, with the type in words: the basis of all schemas and checks.

Imports no library, so that Spark's sources and tables without Spark share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from pipeline.options import OptionError

if TYPE_CHECKING:
    import pyarrow as pa


SEJ: Final[dict[str, str]] = {
    "client": "string",
    "prefix": "string",
    "shard_bits": "int",
    "shard": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestamp_ns": "bigint",
    "type": "int",
    "key": "binary",
    "value": "binary",
}
TEXTQUEUE: Final[dict[str, str]] = {
    "path": "string",
    "position": "bigint",
    "status": "string",
    "value": "string",
    "variables": "array<string>",
}
KESTREL: Final[dict[str, str]] = {
    "queue": "string",
    "ordinal": "bigint",
    "id": "bigint",
    "state": "string",
    "add_time": "timestamp",
    "expire_time": "timestamp",
    "error_count": "int",
    "data": "binary",
}


def check_names(names: Iterable[str], columns: Mapping[str, str]) -> list[str]:
    """Return the names of a projection, if there are such columns.

    Raises:
        OptionError: a column does not exist or is named twice, or the list is empty.
    """
    found = list(names)
    for name in found:
        if name not in columns:
            raise OptionError(f"unknown column {name!r}; expected some of {', '.join(columns)}")
    if not found:
        raise OptionError(f"columns must name at least one column, expected some of {', '.join(columns)}")
    if len(set(found)) < len(found):
        raise OptionError(f"a column is named twice, leave one out: {', '.join(found)}")
    return found


def arrow_schema(names: Iterable[str], columns: Mapping[str, str]) -> pa.Schema:
    """Return the Arrow schema of these columns."""
    import pyarrow as pa

    kinds: dict[str, Any] = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "binary": pa.binary(),
        "array<string>": pa.list_(pa.string()),
    }
    return pa.schema([(name, kinds[columns[name]]) for name in names])


_ROWS: Final = 4096
_BYTES: Final = 1 << 20
"""A batch ends with the row that reaches this size: an Arrow column holds at most 2 GiB."""


class RowSource(Protocol):
    """Small files whose rows Python makes; pickled for Spark's tasks."""

    columns: Mapping[str, str]

    def parts(self) -> list[Any]:
        """Return what is read: arguments of the other methods."""

    def name(self, part: Any) -> str:
        """Return the name that a pattern is compared with."""

    def path(self, part: Any) -> str:
        """Return the file or directory."""

    def rows(self, part: Any) -> Iterator[dict[str, Any]]:
        """Yield rows, by column."""

    def size_of(self, row: dict[str, Any]) -> int:
        """Return about how many bytes a row has."""


def batches_of(source: RowSource, part: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows as batches of a schema, which selects their columns."""
    import pyarrow as pa

    batch: list[dict[str, Any]] = []
    size = 0
    for row in source.rows(part):
        batch.append(row)
        size += source.size_of(row)
        if size >= _BYTES or len(batch) == _ROWS:
            yield pa.RecordBatch.from_pylist(batch, schema)
            batch, size = [], 0
    if batch:
        yield pa.RecordBatch.from_pylist(batch, schema)
