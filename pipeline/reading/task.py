"""The work of a task: slices of journals as Arrow batches.

It runs in Spark's Python workers and needs only the slices, and how they are read. Memory is bounded by one chunk of
a segment and by the largest message. Small slices are combined into one batch, because each batch has a fixed cost in
Spark.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pipeline.paths import unseen
from pipeline.reading import remote
from pipeline.reading.discovery import CHUNK_BYTES, EVERYTHING, OF_ORIGIN, Chosen, Origin, Slice, Way, lost, short_id
from sej.codec import Columns
from sej.codec.format import NO_TIMESTAMP
from sej.errors import JournalNotFoundError, OffsetTooSmallError, SejError, TruncatedError
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory, Gap
from sej.system.disk import OS
from sej.system.locks import host_name

BATCH_ROWS: Final = 1 << 14
BATCH_BYTES: Final = CHUNK_BYTES // 2
"""Batches smaller than both are combined, which copies them: the rows of a whole chunk are more than this."""
_CHUNK_BYTES_MIN: Final = 1 << 16
_MESSAGE_BYTES: Final = CHUNK_BYTES // BATCH_ROWS
"""A batch ends within a chunk if its messages are smaller than this."""
_RECREATED: Final = "the journal was removed or re-created while it was read; read again"
_log = logging.getLogger("pipeline")


def read(
    slices: Iterable[Slice],
    schema: pa.Schema,
    way: Way,
    chosen: Chosen = EVERYTHING,
    *,
    batch_rows: int = BATCH_ROWS,
    batch_bytes: int = BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of slices in the chosen time, as batches of a schema.

    Batches smaller than both limits are combined.

    Raises:
        CorruptionError: bytes are wrong and not a torn tail; names file and position.
        FormatError: a value does not fit the schema, and that is to fail.
        JournalNotFoundError: this host does not have a journal of the plan.
        OffsetTooSmallError: messages were deleted since the plan was made.
        TruncatedError: a journal is shorter than the plan, or another one.
    """
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    one = _read_one if way.remote is None else _read_remote
    inner = schema if way.values is None else way.values.inner(schema)
    try:
        for part in slices:
            batches = one(part, inner, way, chosen)
            for batch in batches if way.values is None else way.values.converted(batches, schema, part.origin.path):
                gathered.append(batch)
                rows += batch.num_rows
                size += batch.nbytes
                if rows >= batch_rows or size >= batch_bytes:
                    yield gathered[0] if len(gathered) == 1 else pa.concat_batches(gathered)
                    gathered, rows, size = [], 0, 0
    except SejError:
        if gathered:  # a reader that commits what it has gets past the good messages
            yield pa.concat_batches(gathered)
        raise
    if gathered:
        yield pa.concat_batches(gathered)


def _read_one(part: Slice, schema: pa.Schema, way: Way, chosen: Chosen) -> Iterator[pa.RecordBatch]:
    if not _is_same(part, way, _unlike()):
        return
    batches = Batches(schema, part.origin)
    # Only the walk over a chunk takes time without keys and values: a larger one has fewer beginnings.
    chunk_bytes = way.chunk_bytes if any(batches.wants.values()) else way.chunk_bytes * 2
    cursor = _cursor(part, part.start, way, chunk_bytes)
    rows_max = chunk_bytes // _MESSAGE_BYTES
    begun = False
    try:
        while cursor.due < part.stop:
            try:
                found = cursor.read_columns(min(rows_max, part.stop - cursor.due), **batches.wants)
            except OffsetTooSmallError as error:
                lost(error, fail=way.fail_on_data_loss)
                cursor.close()
                cursor = _cursor(part, error.first_available, way, chunk_bytes)
                continue
            except JournalNotFoundError:
                if not _is_same(part, way, _RECREATED):
                    return
                raise
            if found is None:
                if cursor.due >= part.stop or cursor.judge():  # damage was skipped up to the end, or may be now
                    continue
                if cursor.gaps and cursor.gaps[-1].start == cursor.due:  # skipped too: damage up to the end
                    break
                _missing(part, cursor.due, way)
                break
            # In between it is the same one: the cursor opens no segment of another journal.
            if (not begun or cursor.due >= part.stop) and not _is_same(part, way, _RECREATED):
                return
            begun = True
            first = cursor.due - found.messages
            batch = batches.batch(found, first)
            if cursor.due > part.stop:  # damage was skipped, to a point after the end of the slice
                batch = batch.slice(0, max(part.stop - first, 0))
            batch = _within(batch, found, chosen)
            if batch.num_rows:
                yield batch
        _report(part, cursor.gaps, way)
    finally:
        cursor.close()


def _is_same(part: Slice, way: Way, why: str) -> bool:
    """Return whether the journal is the one of the plan, and not another one, with other messages under these offsets.

    Raises:
        JournalNotFoundError: this host does not have it.
        TruncatedError: it is another one.
    """
    directory = Directory(part.origin.path, OS)
    if OS.status(directory.jnl) is None:
        raise JournalNotFoundError(unseen(), path=part.origin.path)
    if not part.id or part.id == short_id(directory):
        return True
    lost(TruncatedError(why, path=part.origin.path, offset=part.start), fail=way.fail_on_data_loss)
    return False


def _unlike() -> str:
    return (
        f"host {host_name()} has another journal at this path than the driver: executors need the same disk, or the"
        " option hub. If the journal was re-created after the read was planned, read again; a Spark read may set"
        " failOnDataLoss=false instead"
    )


def _read_remote(part: Slice, schema: pa.Schema, way: Way, chosen: Chosen) -> Iterator[pa.RecordBatch]:
    batches = Batches(schema, part.origin)
    due, gaps = part.start, []
    while due < part.stop:
        try:
            rest = part._replace(start=due)
            for begin, stop, first, found in remote.read(rest, batches.columns, way, chosen):
                if begin > due:
                    gaps.append(Gap(due, min(begin, part.stop), "missing or damaged on the hub"))
                due = stop
                if found.messages and (batch := _within(batches.batch(found, first), found, chosen)).num_rows:
                    yield batch
        except OffsetTooSmallError as error:
            lost(error, fail=way.fail_on_data_loss)
            due = error.first_available
            continue
        except TruncatedError as error:
            lost(error, fail=way.fail_on_data_loss)
            return
        if due < part.stop:
            if way.on_corruption == "skip" and remote.has(way, part):
                gaps.append(Gap(due, part.stop, "damaged on the hub, up to the end"))
            else:
                _missing(part, due, way)
        break
    _report(part, gaps, way)


def _within(batch: pa.RecordBatch, found: Columns, chosen: Chosen) -> pa.RecordBatch:
    """Return the rows whose time is within the bounds; consecutive rows are not copied."""
    if not chosen.is_timed or not batch.num_rows:
        return batch
    times = np.frombuffer(found.timestamps, np.int64, batch.num_rows)
    keep = (times >= chosen.since) & (times <= chosen.until)
    rows = np.flatnonzero(keep)
    if not rows.size:
        return batch.slice(0, 0)
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == rows.size:
        return batch.slice(first, rows.size)
    return batch.filter(pa.array(keep))


def _cursor(part: Slice, start: int, way: Way, chunk_bytes: int) -> Cursor:
    return Cursor(
        Directory(part.origin.path, OS),
        start,
        on_corruption=way.on_corruption,
        verify=way.verify,
        place=part.place if start == part.start else None,
        chunk_bytes=min(max(part.size, _CHUNK_BYTES_MIN), chunk_bytes),
    )


def _missing(part: Slice, due: int, way: Way) -> None:
    error = TruncatedError(
        f"messages up to {part.stop - 1} existed when the read was planned, but the journal ends at {due}: it was"
        " truncated or replaced; read again; a Spark read may set failOnDataLoss=false instead",
        path=part.origin.path,
        offset=due,
    )
    lost(error, fail=way.fail_on_data_loss)


def _report(part: Slice, gaps: Sequence[Gap], way: Way) -> None:
    """Report skipped messages: in the log, and in the report if one is requested."""
    if way.on_corruption != "skip" or not gaps:
        return
    lines = []
    for gap in gaps:
        _log.warning("%s: %d messages from %d on are lost: %s", part.origin.path, gap.missing, gap.start, gap.reason)
        row = {"directory": part.origin.name, "path": part.origin.path, "start": gap.start, "stop": gap.stop}
        lines.append(json.dumps({**row, "missing": gap.missing, "reason": gap.reason}) + "\n")
    if way.report is not None:
        os.makedirs(way.report, exist_ok=True)
        with open(os.path.join(way.report, f"damage-{uuid.uuid4().hex}.json"), "w", encoding="utf-8") as file:
            file.writelines(lines)


_NS_IN_US: Final = 1000


class Batches:
    """Builds batches of one schema, without a copy of a value.

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

    def batch(self, found: Columns, first_offset: int) -> pa.RecordBatch:
        """Return columns as a batch; its first message has the offset ``first_offset``."""
        arrays = [self._column(name, found, first_offset) for name in self._schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, name: str, found: Columns, first: int) -> pa.Array:
        count = found.messages
        if name in OF_ORIGIN:
            known = self._constant.get(name)
            if known is None or len(known) < count:
                value, kind = getattr(self._origin, OF_ORIGIN[name]), self._schema.field(name).type
                known = self._constant[name] = _repeated(value, kind, max(count, 1024))
            return known[:count]
        if name == "offset":
            return _array(pa.int64(), count, np.arange(first, first + count, dtype=np.int64))
        if name == "timestamp_ns":
            return _array(pa.int64(), count, found.timestamps)
        if name == "type":
            return _array(pa.int32(), count, found.types)
        if name == "key":
            return _array(pa.binary(), count, found.key_ends, found.key_data)
        if name == "value":
            return _array(pa.binary(), count, found.value_ends, found.value_data)
        ns = np.frombuffer(found.timestamps, np.int64)
        us = ns // _NS_IN_US
        if ns.size and int(np.min(ns)) == NO_TIMESTAMP:
            return pa.array(us, pa.timestamp("us", "UTC"), mask=ns == NO_TIMESTAMP)
        return _array(pa.timestamp("us", "UTC"), count, us)


def _repeated(value: str | int | None, kind: pa.DataType, count: int) -> pa.Array:
    """Return an array of one value. A scalar of Arrow would import pandas, if that is installed."""
    if value is None:
        return pa.nulls(count, kind)
    if isinstance(value, int):
        return _array(kind, count, np.full(count, value, kind.to_pandas_dtype()))
    data = value.encode()
    return _array(kind, count, np.arange(count + 1, dtype=np.int32) * np.int32(len(data)), data * count)


def _array(kind: pa.DataType, count: int, *data: Any) -> pa.Array:
    """Return an array over these bytes; of texts and bytes: where each ends, and all of them."""
    return pa.Array.from_buffers(kind, count, [None, *map(pa.py_buffer, data)])
