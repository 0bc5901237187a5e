"""The codec's columns as Arrow batches, without copying a value.

The codec walks a chunk once and returns arrays in the machine's byte order. Here they get Arrow's names and types, next
to the columns that are constant for a journal. Verified blocks are read directly, in larger pieces, if no key and no
value is copied: if there are none in the schema, or if they are views into the bytes that were read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.reading.memory import allocate
from pipeline.reading.places import Origin
from sej.codec import Columns, Views
from sej.codec.format import NO_TIMESTAMP
from sej.journal.blocks import BlockColumns

_NS_IN_US: Final = 1000
_Builder = Callable[[Columns | Views, int], pa.Array]


class Batches:
    """Builds batches of one schema.

    Attributes:
        wants: whether the codec must copy keys and values, as its arguments.
        columns: the columns of a message that are needed, as a hub calls them.
        blocks: how verified blocks are read; None: like other messages.
    """

    def __init__(self, schema: pa.Schema, origin: Origin, blocks_bytes: int = 0) -> None:
        """Select the columns of a schema, for messages of one origin; blocks are read in pieces of this size."""
        self._schema = schema
        self.wants = {"keys": "key" in schema.names, "values": "value" in schema.names}
        called = (name.removesuffix("_ns") for name in schema.names)
        self.columns = [name for name in dict.fromkeys(called) if name in ("timestamp", "type", "key", "value")]
        self.blocks = _blocks(schema, blocks_bytes)
        self._origin = origin
        self._constant: dict[str, pa.Array] = {}
        self._make: list[_Builder] = [
            self._constant_column(name, schema.field(name).type) if name in _ORIGINS else _builder(schema.field(name))
            for name in schema.names
        ]

    def batch(self, found: Columns | Views, first_offset: int) -> pa.RecordBatch:
        """Return columns as a batch; its first message has the offset ``first_offset``."""
        arrays = [make(found, first_offset) for make in self._make]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _constant_column(self, name: str, kind: pa.DataType) -> _Builder:
        value = getattr(self._origin, _ORIGINS[name])

        def make(found: Columns | Views, _: int) -> pa.Array:
            known = self._constant.get(name)
            if known is None or len(known) < found.messages:
                known = self._constant[name] = _repeated(value, kind, max(found.messages, 1024))
            return known[: found.messages]

        return make


def viewed(schema: pa.Schema) -> pa.Schema:
    """Return a schema with views instead of bytes."""
    return pa.schema([each.with_type(pa.binary_view()) if each.type == pa.binary() else each for each in schema])


def _blocks(schema: pa.Schema, size: int) -> BlockColumns | None:
    types, keys, values = (name in schema.names for name in ("type", "key", "value"))
    if not keys and not values:
        return BlockColumns(size, types)
    kind = schema.field("key" if keys else "value").type
    return BlockColumns(size, types, keys, values, allocate) if kind == pa.binary_view() else None


_ORIGINS: Final = {"client": "client", "prefix": "prefix", "shard_bits": "bits", "shard": "shard"}


def _repeated(value: str | int | None, kind: pa.DataType, count: int) -> pa.Array:
    """Return an array of one value. A scalar of Arrow would import pandas, if that is installed."""
    if value is None:
        return pa.nulls(count, kind)
    if isinstance(value, int):
        return _fixed(kind, count, np.full(count, value, kind.to_pandas_dtype()))
    data = value.encode()
    ends = pa.py_buffer(np.arange(count + 1, dtype=np.int32) * np.int32(len(data)))
    return pa.Array.from_buffers(kind, count, [None, ends, pa.py_buffer(data * count)])


def _offset(found: Columns | Views, first: int) -> pa.Array:
    if isinstance(found, Views):
        return _fixed(pa.int64(), found.messages, found.offsets)
    return _fixed(pa.int64(), found.messages, np.arange(first, first + found.messages, dtype=np.int64))


def _timestamp_ns(found: Columns | Views, _: int) -> pa.Array:
    return _fixed(pa.int64(), found.messages, found.timestamps)


def _timestamp(found: Columns | Views, _: int) -> pa.Array:
    ns = np.frombuffer(found.timestamps, np.int64)
    us = ns // _NS_IN_US
    if ns.size and int(np.min(ns)) == NO_TIMESTAMP:
        return pa.array(us, pa.timestamp("us", "UTC"), mask=ns == NO_TIMESTAMP)
    return _fixed(pa.timestamp("us", "UTC"), found.messages, us)


def _type(found: Columns | Views, _: int) -> pa.Array:
    return _fixed(pa.int32(), found.messages, found.types)


def _key(found: Columns | Views, _: int) -> pa.Array:
    if isinstance(found, Views):
        return _view(found.messages, found.keys, found.data)
    return _binary(found.messages, found.key_ends, found.key_data)


def _value(found: Columns | Views, _: int) -> pa.Array:
    if isinstance(found, Views):
        return _view(found.messages, found.values, found.data)
    return _binary(found.messages, found.value_ends, found.value_data)


def _fixed(kind: pa.DataType, count: int, data: Any) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])


def _binary(count: int, ends: bytes, data: bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _view(count: int, views: memoryview, data: memoryview) -> pa.Array:
    return pa.Array.from_buffers(pa.binary_view(), count, [None, pa.py_buffer(views), pa.py_buffer(data)])


def _builder(field: pa.Field) -> _Builder:
    make = _BUILDERS[field.name]
    if field.type != pa.binary_view():
        return make
    return lambda found, first: make(found, first).cast(pa.binary_view())


_BUILDERS: Final = {
    "offset": _offset,
    "timestamp": _timestamp,
    "timestamp_ns": _timestamp_ns,
    "type": _type,
    "key": _key,
    "value": _value,
}
