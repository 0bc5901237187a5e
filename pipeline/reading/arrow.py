"""The codec's columns as Arrow batches, without copying a value.

The codec walks a chunk once and returns arrays in the machine's byte order. Here they get Arrow's names and types, next
to the columns that are constant for a journal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.reading.places import Origin
from sej.codec import Columns
from sej.codec.format import NO_TIMESTAMP

__all__ = ["Batches"]

_NS_IN_US: Final = 1000


class Batches:
    """Builds batches of one schema.

    Attributes:
        wants: whether the codec must copy keys and values, as its arguments.
        columns: the columns of a message that are needed, as a hub calls them.
    """

    def __init__(self, schema: pa.Schema, origin: Origin) -> None:
        """Select the columns of a schema, for messages of one origin."""
        self._schema = schema
        self.wants = {"keys": "key" in schema.names, "values": "value" in schema.names}
        called = (name.removesuffix("_ns") for name in schema.names)
        self.columns = [name for name in dict.fromkeys(called) if name in ("timestamp", "type", "key", "value")]
        self._origin = origin
        self._constant: dict[str, pa.Array] = {}
        self._make: list[Callable[[Columns, int], pa.Array]] = [
            _BUILDERS[name] if name in _BUILDERS else self._constant_column(name, schema.field(name).type)
            for name in schema.names
        ]

    def batch(self, found: Columns, first_offset: int) -> pa.RecordBatch:
        """Return columns as a batch; its first message has the offset ``first_offset``."""
        arrays = [make(found, first_offset) for make in self._make]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _constant_column(self, name: str, kind: pa.DataType) -> Callable[[Columns, int], pa.Array]:
        value = getattr(self._origin, _ORIGINS[name])

        def make(found: Columns, _: int) -> pa.Array:
            known = self._constant.get(name)
            if known is None or len(known) < found.messages:
                known = self._constant[name] = _repeated(value, kind, max(found.messages, 1024))
            return known[: found.messages]

        return make


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


def _offset(found: Columns, first: int) -> pa.Array:
    return _fixed(pa.int64(), found.messages, np.arange(first, first + found.messages, dtype=np.int64))


def _timestamp_ns(found: Columns, _: int) -> pa.Array:
    return _fixed(pa.int64(), found.messages, found.timestamps)


def _timestamp(found: Columns, _: int) -> pa.Array:
    ns = np.frombuffer(found.timestamps, np.int64)
    us = ns // _NS_IN_US
    if ns.size and int(np.min(ns)) == NO_TIMESTAMP:
        return pa.array(us, pa.timestamp("us", "UTC"), mask=ns == NO_TIMESTAMP)
    return _fixed(pa.timestamp("us", "UTC"), found.messages, us)


def _type(found: Columns, _: int) -> pa.Array:
    return _fixed(pa.int32(), found.messages, found.types)


def _key(found: Columns, _: int) -> pa.Array:
    return _binary(found.messages, found.key_ends, found.key_data)


def _value(found: Columns, _: int) -> pa.Array:
    return _binary(found.messages, found.value_ends, found.value_data)


def _fixed(kind: pa.DataType, count: int, data: Any) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])


def _binary(count: int, ends: bytes, data: bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])


_BUILDERS: Final = {
    "offset": _offset,
    "timestamp": _timestamp,
    "timestamp_ns": _timestamp_ns,
    "type": _type,
    "key": _key,
    "value": _value,
}
