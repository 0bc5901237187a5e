"""The columns of each source, by name, with the type in words: the basis of all schemas and checks.

Imports no library, so that Spark's sources and tables without Spark share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pipeline.options import OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


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


def check_projection(schema: StructType, columns: Mapping[str, str] = SEJ) -> StructType:
    """Return a user's schema if the source has all of its columns.

    A schema from the user is the projection: some columns, in any order. Spark 4.3 prunes no columns of a Python
    source, so ``.schema("offset BIGINT, key BINARY")`` is the way to transfer fewer bytes.

    Raises:
        OptionError: the source does not have a column, or has it with another type.
    """
    for field in schema.fields:
        kind, given = columns.get(field.name), field.dataType.simpleString()
        if kind is None:
            raise OptionError(f"unknown column {field.name!r}; expected some of {', '.join(columns)}")
        if given != kind:
            raise OptionError(
                f"column {field.name!r} must be {kind}, got {given}; the schema only selects columns, cast afterwards"
            )
    if not schema.fields:
        raise OptionError(f"the schema has no columns; expected some of {', '.join(columns)}")
    return schema


def ddl(columns: Mapping[str, str]) -> str:
    """Return all columns as the schema of a Spark source."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of batches with these columns, which a user may call NOT NULL."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
