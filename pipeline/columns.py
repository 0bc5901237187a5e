"""The columns of each source, by name, with the type in words: the basis of all schemas and checks.

Imports no library, so that Spark's sources and tables without Spark share it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from pipeline.options import OptionError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


SEJ: Final[dict[str, str]] = {
    "source": "string",
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
ONE_SOURCE: Final = {name: kind for name, kind in SEJ.items() if name != "source"}
"""The columns of one path: only a table of several has the column that says which."""
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
_TYPES: Final = {
    "boolean": "bool",
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    "integer": "int32",
    "bigint": "int64",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date32",
}
_EXPECTED: Final = (
    f"{', '.join(_TYPES)}, timestamp, timestamp_ntz, decimal(10,2), array<TYPE> or struct<NAME TYPE, ...>"
)


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

    return pa.schema([(name, arrow_type(columns[name])) for name in names])


def arrow_type(kind: str) -> pa.DataType:
    """Return the Arrow type of a type in words, as Spark writes it.

    Raises:
        OptionError: the type is unknown.

    Example:
        >>> arrow_type("array<struct<id bigint, amount decimal(10,2)>>")
        ListType(list<item: struct<id: int64, amount: decimal128(10, 2)>>)
    """
    import pyarrow as pa

    text = " ".join(kind.lower().split())
    outer, _, inner = text.partition("<")
    try:
        if outer.strip() == "array" and inner.endswith(">"):
            return pa.list_(arrow_type(inner[:-1]))
        if outer.strip() == "struct" and inner.endswith(">"):
            return pa.struct([(name, arrow_type(each)) for name, each in columns_of(inner[:-1]).items()])
        if match := re.fullmatch(r"decimal ?(?:\( ?(\d+) ?(?:, ?(\d+) ?)?\))?", text):
            return pa.decimal128(int(match[1] or 10), int(match[2] or 0))
        if text in ("timestamp", "timestamp_ntz"):
            return pa.timestamp("us", "UTC" if text == "timestamp" else None)
        return pa.type_for_alias(_TYPES.get(text, text and "?"))
    except ValueError as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(f"unknown type {kind.strip()!r}; expected {_EXPECTED}") from None


def columns_of(schema: str) -> dict[str, str]:
    """Return the columns of a schema such as ``"id bigint, amount decimal(10,2)"``, each with its type in words.

    Raises:
        OptionError: it is not a list of names and types, or a name comes twice.
    """
    found: dict[str, str] = {}
    for column in _separated(schema):
        match = re.fullmatch(r"\s*(?:`([^`]+)`|(\w+))\s*[:\s]\s*(\S.*?)\s*", column, re.DOTALL)
        if match is None:
            raise OptionError(f"the schema has {column.strip()!r}; expected a name and a type, as in 'id bigint'")
        name, kind = match[1] or match[2], match[3]
        if name in found:
            raise OptionError(f"the schema has the column {name!r} twice; leave one out")
        arrow_type(kind)
        found[name] = kind
    return found


def _separated(text: str) -> Iterator[str]:
    """Yield what is between the commas that are outside of brackets."""
    depth = begin = 0
    for at, letter in enumerate(text):
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            yield text[begin:at]
            begin = at + 1
    yield text[begin:]


def check_projection(schema: StructType, columns: Mapping[str, str] = SEJ, *, others: bool = False) -> StructType:
    """Return a user's schema if the source has all of its columns.

    A schema from the user is the projection: some columns, in any order. Spark 4.3 prunes no columns of a Python
    source, so ``.schema("offset BIGINT, key BINARY")`` is the way to transfer fewer bytes. Others are columns that the
    source does not have, which are read from the values.

    Raises:
        OptionError: the source does not have a column, or has it with another type.
    """
    for field in schema.fields:
        kind, given = columns.get(field.name), field.dataType.simpleString()
        if kind is None and others:
            if not field.nullable:
                raise OptionError(f"column {field.name!r} comes from the values, so it may be null: leave out NOT NULL")
            continue
        if kind is None:
            hint = "; a column of the values needs the option valueFormat" if columns is SEJ else ""
            raise OptionError(f"unknown column {field.name!r}; expected some of {', '.join(columns)}{hint}")
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
