"""The columns of :mod:`pipeline.columns` as Spark's schemas.

A schema from the user is the projection: some of these columns, in any order. Spark 4.3 prunes no columns of a Python
source, so ``.schema("offset BIGINT, key BINARY")`` is the way to transfer fewer bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pipeline.columns import SEJ
from pipeline.options import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

_KINDS: Final[dict[str, DataType]] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "binary": BinaryType(),
    "array<string>": ArrayType(StringType()),
}


def spark_columns(columns: Mapping[str, str]) -> dict[str, DataType]:
    """Return columns with Spark's types."""
    return {name: _KINDS[kind] for name, kind in columns.items()}


COLUMNS: Final = spark_columns(SEJ)
SCHEMA: Final = StructType([StructField(name, kind) for name, kind in COLUMNS.items()])


def check_projection(schema: StructType, columns: dict[str, DataType] = COLUMNS) -> StructType:
    """Return a user's schema if the source has all of its columns.

    Raises:
        OptionError: the source does not have a column, or has it with another type.
    """
    for field in schema.fields:
        kind = columns.get(field.name)
        if kind is None:
            raise OptionError(f"unknown column {field.name!r}; expected some of {', '.join(columns)}")
        if field.dataType != kind:
            raise OptionError(
                f"column {field.name!r} must be {kind.simpleString()}, got {field.dataType.simpleString()}; the"
                " schema only selects columns, cast afterwards"
            )
    if not schema.fields:
        raise OptionError(f"the schema has no columns; expected some of {', '.join(columns)}")
    return schema


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of batches with these columns."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
