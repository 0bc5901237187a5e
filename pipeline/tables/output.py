"""Rows of a query on standard output or in a file, in one of four formats."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from typing import IO, Any, Final

import pyarrow as pa

from pipeline.options import OptionError
from sej.message import text_or_b64
from sej.system.disk import OS, absolute_path, full_disk_advice, is_full

SUFFIXES: Final = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet", ".txt": "table"}
_CONTROLS: Final = {number: f"\\x{number:02x}" for number in (*range(32), 127)} | {9: "\\t", 10: "\\n", 13: "\\r"}
_GROUP_BYTES: Final = 32 << 20
_GROUP_ROWS: Final = 1 << 20
_COPY_BYTES: Final = 1 << 20


def format_of(path: str) -> str | None:
    """Return the format that a file's suffix means; None for a suffix that has no format."""
    return SUFFIXES.get(os.path.splitext(path)[1].lower())


def write_text(found: pa.RecordBatchReader, form: str, out: IO[bytes]) -> int:
    """Write rows as ``table``, ``csv`` or ``json``; return their number."""
    return {"table": _table, "csv": _csv, "json": _json}[form](found, out)


@contextmanager
def replaced(path: str) -> Iterator[str]:
    """Yield a temporary path in the same directory; afterwards it is synced and renamed to ``path``.

    After an error, or if the process dies, ``path`` is as it was.

    Raises:
        OSError: the file could not be written, with its path.
    """
    directory = absolute_path(os.path.dirname(path))
    temporary = os.path.join(directory, f".{os.path.basename(path)}.{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        with OS.open(temporary, "edit") as file:
            file.sync()
        os.replace(temporary, path)
        OS.sync_dir(directory)
    except OSError as error:
        if error.filename is not None:
            raise
        what = full_disk_advice(OS, directory) if is_full(error) else error.strerror or str(error)
        raise OSError(error.errno, f"this file was not written: {what}", path) from error
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)


def write_file(found: pa.RecordBatchReader, form: str, path: str) -> int:
    """Write rows to a file, which is replaced when all are written; return how many."""
    with replaced(path) as temporary:
        if form == "arrow":
            return _write_arrow(found, temporary)
        if form == "parquet":
            return write_parquet(found, temporary)
        with open(temporary, "wb") as file:
            return write_text(found, form, file)


def write_parquet(
    found: pa.RecordBatchReader, path: str, metadata: dict[str, str] | None = None, *, compression: str = "zstd"
) -> int:
    """Write rows as Parquet, compressed, in row groups of about 32 MiB; return their number."""
    import pyarrow.parquet as pq

    schema = found.schema.with_metadata(metadata) if metadata else found.schema
    rows = 0
    with pq.ParquetWriter(path, schema, compression=compression) as writer:
        for table in _groups(found, schema):
            writer.write_table(table, row_group_size=max(table.num_rows, 1))
            rows += table.num_rows
    return rows


def extend_parquet(old: str, batch: pa.RecordBatch, path: str, metadata: dict[str, str], *, compression: str) -> None:
    """Write the rows of a Parquet file and those of a batch of the same columns to another file.

    It begins with all bytes of the old one, which its new end refers to. So a reader that has opened the old file, or
    has read its end, finds the old rows in the new file too.
    """
    import pyarrow.parquet as pq

    ends: list[Any] = []
    with (
        open(old, "rb") as source,
        pa.OSFile(path, "wb") as file,
        pq.ParquetWriter(file, batch.schema, compression=compression, metadata_collector=ends) as writer,
    ):
        source.seek(file.tell())  # the writer has written the four bytes with which each Parquet file begins
        shutil.copyfileobj(source, file, _COPY_BYTES)
        writer.write_batch(batch)
        size = file.tell()
    empty, end = io.BytesIO(), io.BytesIO()
    pq.ParquetWriter(empty, batch.schema.with_metadata(metadata)).close()
    whole = pq.read_metadata(empty)
    for part in (pq.read_metadata(old), *ends):
        whole.append_row_groups(part)
    whole.write_metadata_file(end)
    os.truncate(path, size)
    with open(path, "ab") as rest:
        rest.write(end.getvalue()[4:])


def _write_arrow(found: pa.RecordBatchReader, path: str) -> int:
    """Write rows as an Arrow file; return their number."""
    rows = 0
    with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, found.schema) as writer:
        for batch in found:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


def _groups(found: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.Table]:
    gathered: list[pa.RecordBatch] = []
    size = rows = 0
    for batch in found:
        gathered.append(batch)
        size += batch.nbytes
        rows += batch.num_rows
        if size >= _GROUP_BYTES or rows >= _GROUP_ROWS:
            yield pa.Table.from_batches(gathered).cast(schema)
            gathered, size, rows = [], 0, 0
    if gathered:
        yield pa.Table.from_batches(gathered).cast(schema)


def _rows(found: pa.RecordBatchReader) -> Iterator[list[Any]]:
    for batch in found:
        columns = [_values(name, column) for name, column in zip(batch.schema.names, batch.columns, strict=True)]
        yield from map(list, zip(*columns, strict=True))


def _values(name: str, column: pa.Array) -> list[Any]:
    try:
        found: list[Any] = column.to_pylist()
    except OverflowError:
        raise OptionError(
            f"column {name!r} has a time before the year 1 or after 9999, or infinity, which only Parquet can hold; in"
            f' the query, write it as text: "{name}"::VARCHAR'
        ) from None
    return found


def _table(found: pa.RecordBatchReader, out: IO[bytes]) -> int:
    names = found.schema.names
    right = [pa.types.is_integer(kind) or pa.types.is_decimal(kind) for kind in found.schema.types]
    rows = [
        ["NULL" if value is None else str(_plain(value)).translate(_CONTROLS) for value in row] for row in _rows(found)
    ]
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]

    def line(cells: list[str]) -> bytes:
        pairs = zip(cells, widths, right, strict=True)
        padded = (cell.rjust(width) if is_right else cell.ljust(width) for cell, width, is_right in pairs)
        return "  ".join(padded).rstrip().encode() + b"\n"

    out.write(line(names))
    out.write(line(["-" * width for width in widths]))
    for row in rows:
        out.write(line(row))
    return len(rows)


def _csv(found: pa.RecordBatchReader, out: IO[bytes]) -> int:
    text = io.TextIOWrapper(out, "utf-8", newline="", write_through=True)
    try:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(found.schema.names)
        count = 0
        for row in _rows(found):
            writer.writerow(["" if value is None else _plain(value) for value in row])
            count += 1
        return count
    finally:
        text.detach()


def _json(found: pa.RecordBatchReader, out: IO[bytes]) -> int:
    encode: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, default=str, allow_nan=False).encode
    names, count = found.schema.names, 0
    for row in _rows(found):
        line: dict[str, Any] = {}
        for name, value in zip(names, row, strict=True):
            line |= text_or_b64(name, value) if isinstance(value, bytes) else {name: _plain(value)}
        try:
            text = encode(line)
        except ValueError:
            text = encode(_finite(line))
        out.write(text.encode() + b"\n")
        count += 1
    return count


def _finite(value: Any) -> Any:
    """Return a value with NaN and infinity as text: JSON has no such numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    """Return a value as text or number: times in UTC with a Z, bytes as text, sums of integers as integers."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else str(value)
    return value
