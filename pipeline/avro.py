"""Avro values as Arrow columns, decoded in step by numpy: a field of all values, then the next field.

A cursor has the position in each value. A field reads its bytes of all values, and moves all positions. Positions only
grow, and never past the end of their value. So values are whole records exactly if all positions end at their ends.

Not every schema can be read in this way, nor an array of very many items: that raises :exc:`NotInStepError`. A wrong
value raises another error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

_ITEMS_MAX: Final = 256
"""An array with more items is not read in step: each item is one more step for all values."""
_OF_LONG: Final = {
    None: pa.int64(),
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_OF_FIXED_SIZE: Final = {"boolean": np.dtype("?"), "float": np.dtype("<f4"), "double": np.dtype("<f8")}

_Numbers = np.ndarray[Any, np.dtype[Any]]


class NotInStepError(ValueError):
    """A schema, or values, that cannot be read in step."""


class Cursor:
    """Positions in values.

    Attributes:
        data: the bytes of all values.
        at: the position in each value.
        end: where each value ends.
    """

    def __init__(self, data: pa.Buffer, at: _Numbers, end: _Numbers) -> None:
        """Set the positions."""
        self.data, self.at, self.end = data, at, end
        self._octets = np.frombuffer(data, np.uint8)

    def some(self, rows: _Numbers, read: Callable[[Cursor], Any]) -> Any:
        """Return what ``read`` returns for some of the values, which it moves."""
        few = Cursor(self.data, self.at[rows], self.end[rows])
        found = read(few)
        self.at[rows] = few.at
        return found

    def move(self, sizes: Any) -> _Numbers:
        """Move past so many bytes, and return where they begin."""
        begin = self.at
        if np.any((sizes < 0) | (sizes > self.end - begin)):
            raise ValueError("a field goes past the end of the value")
        self.at = begin + sizes
        return begin

    def octets(self, size: int) -> _Numbers:
        """Return the next bytes, a row for each value."""
        found: _Numbers = self._octets[self.move(size)[:, None] + np.arange(size)]
        return found

    def longs(self) -> _Numbers:
        """Return the next numbers: each byte has seven bits, and the lowest bit of a number is its sign."""
        last = self._octets[self.move(1)]
        found = (last & 127).astype(np.uint64)
        rows, shift = np.flatnonzero(last > 127), 7
        while rows.size:
            if shift > 63:
                raise ValueError("a number has more than ten bytes")
            last = self.some(rows, lambda few: few.octets(1)[:, 0])
            found[rows] |= (last & 127).astype(np.uint64) << np.uint64(shift)
            rows, shift = rows[last > 127], shift + 7
        numbers: _Numbers = (found >> np.uint64(1)).astype(np.int64) ^ -(found & np.uint64(1)).astype(np.int64)
        return numbers

    def texts(self, sizes: Any) -> pa.Array:
        """Return the next bytes as an array: of each other piece between a beginning and an end."""
        begin = self.move(sizes)
        ends = np.empty(2 * len(begin) + 1, np.int32)
        ends[:-1:2], ends[1::2], ends[-1] = begin, self.at, self.at[-1] if len(begin) else 0
        pieces = pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, pa.py_buffer(ends), self.data])
        return pieces.take(pa.array(np.arange(0, len(ends) - 1, 2)))


_Read = Callable[[Cursor], Any]
"""Reads a field of all values, and returns an array; it may be anything if the field is not wanted."""


def in_step(
    schema: Any, named: Mapping[str, Any], wanted: Mapping[str, pa.DataType]
) -> Callable[[pa.Array], list[pa.Array]]:
    """Return a function that reads values, and returns the wanted fields.

    Args:
        schema: the schema of the values, as fastavro parses it.
        named: its types by their names.
        wanted: names and types of fields.

    Raises:
        NotInStepError: the schema, or a type that is wanted for a field, cannot be read in step.
    """
    if not isinstance(schema, dict) or schema["type"] != "record":
        raise NotInStepError
    read = _fields(schema, wanted, named, ())

    def columns(values: pa.Array) -> list[pa.Array]:
        _, ends, data = values.buffers()
        places = np.frombuffer(ends, np.int32, len(values) + 1, values.offset * 4).astype(np.int64)
        cursor = Cursor(data, places[:-1].copy(), places[1:])
        found = read(cursor)
        if np.any(cursor.at != cursor.end):
            raise ValueError("bytes follow the record")
        return found

    return columns


def _fields(
    schema: Any, wanted: Mapping[str, pa.DataType], named: Mapping[str, Any], inside: tuple[str, ...]
) -> Callable[[Cursor], list[pa.Array]]:
    """Return what reads a record, and returns the wanted fields; those that it lacks are null."""
    if schema["name"] in inside:
        raise NotInStepError  # a record that contains itself
    inside = (*inside, schema["name"])
    reads = {each["name"]: _read(each["type"], wanted.get(each["name"]), named, inside) for each in schema["fields"]}

    def read(cursor: Cursor) -> list[pa.Array]:
        found = {name: each(cursor) for name, each in reads.items()}
        return [found[name] if name in found else pa.nulls(len(cursor.at), kind) for name, kind in wanted.items()]

    return read


def _read(schema: Any, kind: pa.DataType | None, named: Mapping[str, Any], inside: tuple[str, ...]) -> _Read:
    """Return what reads a type of Avro as a type of Arrow; None: it is passed over."""
    if isinstance(schema, str):
        schema = named.get(schema) or {"type": schema}
    if isinstance(schema, list):
        return _union(schema, kind, named, inside)
    form, logical = schema["type"], schema.get("logicalType")
    if not isinstance(form, str):
        return _read(form, kind, named, inside)
    if form == "record" and (kind is None or pa.types.is_struct(kind)):
        fields = list(kind or ())
        record = _fields(schema, {field.name: field.type for field in fields}, named, inside)

        def structs(cursor: Cursor) -> pa.Array | None:
            columns = record(cursor)
            return pa.StructArray.from_arrays(columns, fields=fields) if fields else None

        return structs
    if form == "array" and (kind is None or pa.types.is_list(kind)):
        return _array(_read(schema["items"], None if kind is None else kind.value_type, named, inside), kind)
    if form == "map" and kind is None:
        value = _read(schema["values"], None, named, inside)
        return _array(lambda cursor: (cursor.move(cursor.longs()), value(cursor)), None)
    if form == "null":
        return lambda cursor: pa.nulls(len(cursor.at), kind or pa.null())
    if form in ("int", "long") and kind is None:
        return Cursor.longs
    if form in ("int", "long") and _alike(written := _OF_LONG.get(logical), kind):
        stored = pa.int32() if logical == "date" else pa.int64()
        return lambda cursor: pa.array(cursor.longs()).cast(stored).view(written).cast(kind)
    if dtype := _OF_FIXED_SIZE.get(form):
        if kind not in (None, pa.from_numpy_dtype(dtype)):
            raise NotInStepError
        return lambda cursor: pa.array(np.ascontiguousarray(cursor.octets(dtype.itemsize)).view(dtype)[:, 0])
    if form == "enum" and kind in (None, pa.string()):
        symbols = pa.array(schema["symbols"], pa.string())
        return lambda cursor: symbols.take(pa.array(cursor.longs()))
    if form in ("string", "bytes", "fixed"):
        return _bytes(schema, logical, kind)
    raise NotInStepError


def _bytes(schema: Any, logical: str | None, kind: pa.DataType | None) -> _Read:
    """Return what reads bytes, of a size that is before them, or in the schema."""
    size = schema["size"] if schema["type"] == "fixed" else None

    def sizes(cursor: Cursor) -> Any:
        return cursor.longs() if size is None else np.int64(size)

    if kind is None:
        return lambda cursor: cursor.move(sizes(cursor))
    if logical == "decimal" and pa.types.is_decimal128(kind) and schema["precision"] <= kind.precision:
        precision, scale = schema["precision"], schema.get("scale", 0)

        def decimals(cursor: Cursor) -> pa.Array:
            numbers = [int.from_bytes(each, signed=True) for each in cursor.texts(sizes(cursor)).to_pylist()]
            whole = pa.array(numbers, pa.decimal128(precision, 0))
            written = pa.Array.from_buffers(pa.decimal128(precision, scale), len(whole), whole.buffers())
            return written.cast(kind)

        return decimals
    if logical is not None or kind != (pa.string() if schema["type"] == "string" else pa.binary()):
        raise NotInStepError
    return lambda cursor: cursor.texts(sizes(cursor)).cast(kind)


def _alike(written: pa.DataType | None, kind: pa.DataType) -> bool:
    """Return whether numbers of a type may be read as another one."""
    if written is None:
        return False
    if pa.types.is_timestamp(written):
        return bool(pa.types.is_timestamp(kind) and (kind.tz is None) == (written.tz is None))
    return bool(kind == written or (pa.types.is_integer(kind) and pa.types.is_integer(written)))


def _union(branches: list[Any], kind: pa.DataType | None, named: Mapping[str, Any], inside: tuple[str, ...]) -> _Read:
    """Return what reads null or another type; other unions are not read in step."""
    if len(branches) != 2 or "null" not in branches:
        raise NotInStepError
    empty = branches.index("null")
    read = _read(branches[1 - empty], kind, named, inside)

    def union(cursor: Cursor) -> pa.Array | None:
        branch = cursor.longs()
        if np.any((branch < 0) | (branch > 1)):
            raise ValueError("a union has no such branch")
        there = branch != empty
        found = cursor.some(np.flatnonzero(there), read)
        return None if kind is None else found.take(pa.array(np.cumsum(there) - 1, mask=~there))

    return union


def _array(read: _Read, kind: pa.DataType | None) -> _Read:
    """Return what reads arrays: the first item of all of them, the second one, and so on."""

    def block(cursor: Cursor) -> _Numbers:
        """Return the number of items that follow; the size of a block in bytes is after a negative number."""
        count = cursor.longs()
        cursor.some(np.flatnonzero(count < 0), lambda few: few.longs())
        return np.abs(count)

    def arrays(cursor: Cursor) -> pa.Array | None:
        left = block(cursor)
        rows = np.flatnonzero(left)
        items: list[pa.Array] = []
        whose = [rows[:0]]
        while rows.size:
            if len(items) == _ITEMS_MAX:
                raise NotInStepError("an array has too many items")
            items.append(cursor.some(rows, read))
            whose.append(rows)
            left[rows] -= 1
            ended = rows[left[rows] == 0]
            left[ended] = cursor.some(ended, block)
            rows = np.flatnonzero(left)
        if kind is None:
            return None
        owners = np.concatenate(whose)
        ends = np.cumsum(np.bincount(owners + 1, minlength=len(left) + 1)).astype(np.int32)
        together = pa.concat_arrays(items) if items else pa.nulls(0, kind.value_type)
        ordered = together.take(pa.array(np.argsort(owners, kind="stable")))
        return pa.ListArray.from_arrays(pa.array(ends), ordered, type=kind)

    return arrays
