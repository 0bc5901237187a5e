"""Python rows as Arrow batches: shared by the sources of small files, with Spark and without."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

_ROWS: Final = 4096
_BYTES: Final = 1 << 20
"""A batch ends with the row that reaches this size: an Arrow column holds at most 2 GiB."""


def batches_of(
    rows: Iterable[dict[str, Any]], size_of: Callable[[dict[str, Any]], int], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield rows as batches of a schema, which selects their columns.

    Args:
        rows: by column.
        size_of: returns about how many bytes a row has.
        schema: the columns.
    """
    batch: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += size_of(row)
        if size >= _BYTES or len(batch) == _ROWS:
            yield pa.RecordBatch.from_pylist(batch, schema)
            batch, size = [], 0
    if batch:
        yield pa.RecordBatch.from_pylist(batch, schema)
