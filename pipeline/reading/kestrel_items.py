"""The items of Kestrel 2 and libkestrel queues as rows. Changes no file."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import kestrel
from kestrel import segmented
from kestrel.errors import MissingError
from kestrel.spool import formats_of
from pipeline.options import OptionError
from sej.errors import CorruptionError

Kind = Literal["kestrel", "libkestrel"]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_MS: Final = (2**63 - 1) // 10**6
"""The largest time of a message in a journal, in the year 2262: Kestrel's times may be much larger."""
_log = logging.getLogger("pipeline")


def kind_of(directory: str, queue: str) -> Kind:
    """Return the format of a queue's files."""
    return "libkestrel" if True in formats_of(directory, queue) else "kestrel"


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
        MissingError: the queue has no file.
        CorruptionError: a file is damaged; with ``skip`` it is read up to the damage, which is logged.
        OptionError: the queue has no such reader; a Kestrel 2 queue has none.
    """
    if not any(name == queue or name.startswith((f"{queue}.", f"{queue}~~")) for name in os.listdir(directory)):
        raise MissingError(
            f"queue {queue!r} has no file here; `sej kestrel ls` lists the queues of a directory", path=directory
        )
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


def size_of(row: dict[str, Any]) -> int:
    """Return about how many bytes a row has."""
    return len(row["data"])


def _judge(damage: Iterable[object], on_damage: str) -> None:
    for found in damage:
        if on_damage == "raise":
            raise CorruptionError(
                f"{found}; to read each file up to its damage, skip damage (onCorruption=skip in Spark,"
                " on_corruption='skip' or --skip-damage)"
            )
        _log.warning("%s", found)


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else _EPOCH + timedelta(milliseconds=max(-_MOST_MS, min(ms, _MOST_MS)))
