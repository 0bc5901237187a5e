"""The items of Kestrel 2 and libkestrel queues as rows. Changes no file."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import kestrel
from kestrel import segmented
from kestrel.errors import MissingError
from kestrel.files import READER_MAGIC, WRITER_MAGIC, names_in
from kestrel.queues import files_of, formats_of, magic_of, queues_in
from kestrel.v2.format import LAYOUTS
from pipeline.columns import KESTREL
from pipeline.options import OptionError
from sej.errors import CorruptionError
from sej.system.disk import OS
from sej.system.paths import absolute_path

Kind = Literal["kestrel", "libkestrel"]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_MS: Final = (2**63 - 1) // 10**6
"""The largest time of a message in a journal, in the year 2262: Kestrel's times may be much larger."""
_log = logging.getLogger("pipeline")


class KestrelItems:
    """The items of queues; see :class:`pipeline.columns.RowSource`."""

    columns: Mapping[str, str] = KESTREL

    def __init__(
        self,
        paths: Sequence[str],
        queue: str | None = None,
        kind: Kind | None = None,
        reader: str | None = None,
        on_damage: Literal["raise", "skip"] = "raise",
    ) -> None:
        """Set what is read: one queue of each directory, or None: what the paths mean, see :func:`queues`."""
        self._paths = [absolute_path(path) for path in paths]  # an executor has another working directory
        self._queue = queue
        self._how: dict[str, Any] = {"kind": kind, "reader": reader, "on_damage": on_damage}

    def parts(self) -> list[tuple[str, str]]:
        """Return the queues, each as directory and name."""
        if self._queue is None:
            return [queue for path in self._paths for queue in queues(path)]
        for path in self._paths:
            names_in(path, OS)  # raises here, and not in a task, if the directory does not exist
        return [(path, self._queue) for path in self._paths]

    def name(self, part: tuple[str, str]) -> str:
        """Return the queue's name."""
        return part[1]

    def path(self, part: tuple[str, str]) -> str:
        """Return the directory."""
        return part[0]

    def rows(self, part: tuple[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the items of a queue, as :func:`rows_of` does."""
        return rows_of(part[0], queue=part[1], **self._how)

    def size_of(self, row: dict[str, Any]) -> int:
        """Return about how many bytes a row has."""
        return len(row["data"])


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


def queues(path: str) -> list[tuple[str, str]]:
    """Return the Kestrel queues that a path means, as directory and name: all of a directory, or one in it."""
    there = OS.status(path)
    if there is not None and there.is_dir:
        found = [(path, name) for name in queues_in(path)]
    else:
        directory, name = os.path.split(os.path.abspath(path))
        inside = OS.status(directory)
        if inside is None or not inside.is_dir or not name:
            return []
        found = [(directory, name)] if name in queues_in(directory) else []
    return [(place, name) for place, name in found if all(map(_is_kestrels, files_of(place, name)))]


def _is_kestrels(path: str) -> bool:
    """Return whether a file begins like one of Kestrel's: any name may be a queue's."""
    there = OS.status(path)
    if there is None or there.is_dir or "~~" in os.path.basename(path):
        return True
    try:
        magic = magic_of(path)
    except FileNotFoundError:  # a running Kestrel has removed it
        return True
    return not magic or magic in (READER_MAGIC, WRITER_MAGIC) or magic[0] in LAYOUTS


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
