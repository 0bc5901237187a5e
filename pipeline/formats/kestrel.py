"""The source ``kestrel``: the items of Kestrel 2 and libkestrel queues as a table. It changes no file.

Used as ``load(directory)`` with the option ``queue``. The format is detected from the files' first bytes, or set by
``kind``. With ``reader``, a libkestrel queue shows the items that this reader has not confirmed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Literal

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import kestrel
from kestrel import segmented
from kestrel.errors import MissingError
from kestrel.segmented.format import MAGIC_SIZE, WRITER_MAGIC
from pipeline.formats.rows import RowReader
from pipeline.options import KESTREL_READ, OptionError, parse
from pipeline.paths import paths_of
from pipeline.schema import check_projection
from sej.errors import CorruptionError
from sej.system.disk import OS

__all__ = ["KestrelSource", "Kind", "kind_of", "rows_of"]

Kind = Literal["kestrel", "libkestrel"]
_COLUMNS: Final[dict[str, DataType]] = {
    "queue": StringType(),
    "ordinal": LongType(),
    "id": LongType(),
    "state": StringType(),
    "add_time": TimestampType(),
    "expire_time": TimestampType(),
    "error_count": IntegerType(),
    "data": BinaryType(),
}
_SCHEMA: Final = StructType([StructField(name, kind) for name, kind in _COLUMNS.items()])
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_log = logging.getLogger("pipeline")


class KestrelSource(DataSource):
    """The source for Kestrel's queues."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "kestrel"

    def schema(self) -> StructType:
        """Return all columns."""
        return _SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader."""
        options = parse(KESTREL_READ, self.options, "kestrel")
        if options["queue"] is None:
            raise OptionError("the option queue is required: the name of a queue in the directory")
        rows = partial(
            rows_of,
            queue=options["queue"],
            kind=options["kind"],
            reader=options["reader"],
            on_damage=options["onCorruption"],
        )
        return RowReader(paths_of(self.options), check_projection(schema, _COLUMNS), rows, _size_of)


def kind_of(directory: str, queue: str) -> Kind:
    """Return the format of a queue's files."""
    for name in sorted(os.listdir(directory)):
        if name == queue or name.startswith(f"{queue}."):
            file = OS.open(os.path.join(directory, name), "read")
            try:
                if file.read(MAGIC_SIZE, 0) == WRITER_MAGIC:
                    return "libkestrel"
            finally:
                file.close()
    return "kestrel"


def rows_of(
    directory: str,
    *,
    queue: str,
    kind: Kind | None = None,
    reader: str | None = None,
    on_damage: Literal["raise", "skip"] = "raise",
) -> Iterator[dict[str, Any]]:
    """Yield the items of a queue, head first; reserved items come first, as after a restart.

    Raises:
        MissingError: there is no file of this queue.
        CorruptionError: a file is damaged; with ``skip`` it is read up to the damage, which is logged.
        OptionError: the queue has no such reader; a Kestrel 2 queue has none.
    """
    if not any(name == queue or name.startswith((f"{queue}.", f"{queue}~~")) for name in os.listdir(directory)):
        raise MissingError(f"there is no file of a queue {queue!r}", path=directory)
    kind = kind or kind_of(directory, queue)
    if kind == "libkestrel":
        yield from _libkestrel(directory, queue, reader, on_damage)
        return
    if reader is not None:
        raise OptionError(
            f"queue {queue!r} has the format of Kestrel 2, which has no readers; leave the option reader out"
        )
    state = kestrel.replay(directory, queue)
    _judge(state.damage, on_damage)
    ordinal = 0
    for name, items in (("reserved", state.open_transactions.values()), ("ready", state.items)):
        for item in items:
            times = {"add_time": _time(item.add_time), "expire_time": _time(item.expiry or None)}
            row = {"queue": queue, "ordinal": ordinal, "id": None, "state": name, "error_count": None}
            yield {**row, **times, "data": item.data}
            ordinal += 1


def _libkestrel(directory: str, queue: str, reader: str | None, on_damage: str) -> Iterator[dict[str, Any]]:
    state = segmented.load(directory, queue)
    _judge(state.damage, on_damage)
    if reader is not None and reader not in state.readers:
        known = ", ".join(map(repr, sorted(state.readers))) or "none"
        raise OptionError(f"queue {queue!r} has no reader {reader!r}; it has: {known}")
    wanted = None if reader is None else set(state.pending(reader))
    for ordinal, item in enumerate(item for item in state.items if wanted is None or item.id in wanted):
        times = {"add_time": _time(item.add_time), "expire_time": _time(item.expire_time)}
        row = {"queue": queue, "ordinal": ordinal, "id": item.id, "state": "ready", "error_count": item.error_count}
        yield {**row, **times, "data": item.data}


def _size_of(row: dict[str, Any]) -> int:
    return len(row["data"])


def _judge(damage: Iterable[object], on_damage: str) -> None:
    for found in damage:
        if on_damage == "raise":
            raise CorruptionError(f"{found}; onCorruption=skip reads each file up to its damage")
        _log.warning("%s", found)


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else _EPOCH + timedelta(milliseconds=ms)
