"""Small files as rows that Python makes: the entries of ``.tq`` files, and the items of Kestrel's queues.

Reading changes no file. Each source imports its format at its first use.
"""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from pipeline.columns import KESTREL, TEXTQUEUE
from pipeline.options import EPOCH, OptionError
from sej.errors import CorruptionError
from sej.system.disk import OS, absolute_path

if TYPE_CHECKING:
    import pyarrow as pa


_ROWS: Final = 4096
_BYTES: Final = 1 << 20
"""A batch ends with the row that reaches this size: an Arrow column holds at most 2 GiB."""


class TextEntries:
    """The entries of files, and of the ``.tq`` files of directories; see :class:`RowSource`."""

    columns: Mapping[str, str] = TEXTQUEUE

    def __init__(self, paths: Sequence[str]) -> None:
        """Set the paths."""
        self._paths = [absolute_path(path) for path in paths]  # an executor has another working directory

    def parts(self) -> list[tuple[str, str]]:
        """Return the files, each as path and name."""
        from textqueue.files import is_special

        found = []
        for path in self._paths:
            there = OS.status(path)
            if there is None:
                raise FileNotFoundError(
                    2, "expected a .tq file or a directory of them, and the path does not exist", path
                )
            names = sorted(glob.glob(os.path.join(glob.escape(path), "*.tq"))) if there.is_dir else [path]
            found += [(name, os.path.basename(name)) for name in names if not (there.is_dir and is_special(name))]
        return found

    def rows(self, part: tuple[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the entries of a file, in order; bytes that are not UTF-8 become U+FFFD."""
        from textqueue import MessageStatus, TextQueue

        shown = _text(os.fsencode(part[0]))
        with TextQueue(part[0], settle_s=0.0) as queue:
            for message in queue.messages(set(MessageStatus)):
                yield {
                    "path": shown,
                    "position": message.position,
                    "status": message.status.name,
                    "value": _text(message.value_bytes),
                    "variables": [
                        _text(variable.encode("utf-8", "surrogateescape")) for variable in message.get_variables()
                    ],
                }


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


_Item = tuple[str, int | None, int | None, int | None, int | None, bytes]
"""State, id, times of adding and expiry in ms, errors, data."""
_MOST_MS: Final = (2**63 - 1) // 10**6
"""The largest time of a message in a journal, in the year 2262: Kestrel's times may be much larger."""
_log = logging.getLogger("pipeline")


class KestrelItems:
    """The items of queues; see :class:`RowSource`."""

    columns: Mapping[str, str] = KESTREL

    def __init__(
        self,
        paths: Sequence[str],
        queue: str | None = None,
        kind: Literal["kestrel", "libkestrel"] | None = None,
        reader: str | None = None,
        on_damage: Literal["raise", "skip"] = "raise",
    ) -> None:
        """Set what is read: one queue of each directory, or None: what the paths mean, see :func:`queues`."""
        self._paths = [absolute_path(path) for path in paths]  # an executor has another working directory
        self._queue = queue
        self._kind, self._reader, self._on_damage = kind, reader, on_damage

    def parts(self) -> list[tuple[str, str]]:
        """Return the queues, each as directory and name."""
        if self._queue is None:
            return [queue for path in self._paths for queue in queues(path)]
        from kestrel.files import names_in

        for path in self._paths:
            names_in(path, OS)  # raises here, and not in a task, if the directory does not exist
        return [(path, self._queue) for path in self._paths]

    def rows(self, part: tuple[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the items of a queue, head first; reserved items come first, as after a restart.

        Raises:
            MissingError: the queue has no file.
            CorruptionError: a file is damaged; with ``skip`` it is read up to the damage, which is logged.
            OptionError: the queue has no such reader; a Kestrel 2 queue has none.
        """
        from kestrel.errors import MissingError
        from kestrel.files import formats_of

        directory, queue = part
        if not any(name == queue or name.startswith((f"{queue}.", f"{queue}~~")) for name in os.listdir(directory)):
            raise MissingError(
                f"queue {queue!r} has no file here; `sej kestrel ls` lists the queues of a directory", path=directory
            )
        if self._kind == "libkestrel" or (self._kind is None and True in formats_of(directory, queue)):
            found = _libkestrel(directory, queue, self._reader, self._on_damage)
        elif self._reader is None:
            found = _kestrel(directory, queue, self._on_damage)
        else:
            raise OptionError(
                f"queue {queue!r} has the format of Kestrel 2, which has no readers; leave the option reader out"
            )
        for ordinal, (state, id_, added, expires, errors, data) in enumerate(found):
            times = {"add_time": _time(added), "expire_time": _time(expires)}
            row = {"queue": queue, "ordinal": ordinal, "id": id_, "state": state, "error_count": errors}
            yield {**row, **times, "data": data}


def _kestrel(directory: str, queue: str, on_damage: str) -> Iterator[_Item]:
    import kestrel

    found = kestrel.replay(directory, queue)
    _judge(found.damage, on_damage)
    for state, items in (("reserved", found.open_transactions.values()), ("ready", found.items)):
        for item in items:
            yield state, None, item.add_time, item.expiry or None, None, item.data


def _libkestrel(directory: str, queue: str, reader: str | None, on_damage: str) -> Iterator[_Item]:
    from kestrel import segmented

    found = segmented.load(directory, queue)
    _judge(found.damage, on_damage)
    if reader is not None and reader not in found.readers:
        known = ", ".join(map(repr, sorted(found.readers))) or "none"
        raise OptionError(f"queue {queue!r} has no reader {reader!r}; it has: {known}")
    wanted = None if reader is None else set(found.pending(reader))
    for item in found.items:
        if wanted is None or item.id in wanted:
            yield "ready", item.id, item.add_time, item.expire_time, item.error_count, item.data


def queues(path: str) -> list[tuple[str, str]]:
    """Return the Kestrel queues that a path means, as directory and name: all of a directory, or one in it."""
    from kestrel.files import files_of, queues_in

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
    from kestrel.files import READER_MAGIC, WRITER_MAGIC, magic_of
    from kestrel.v2.format import LAYOUTS

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
    return None if ms is None else EPOCH + timedelta(milliseconds=max(-_MOST_MS, min(ms, _MOST_MS)))


RowSource = TextEntries | KestrelItems
"""Small files whose rows Python makes; pickled for Spark's tasks. Its parts are pairs of a path and a name."""


def batches_of(source: RowSource, part: tuple[str, str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield rows as batches of a schema, which selects their columns."""
    import pyarrow as pa

    batch: list[dict[str, Any]] = []
    size = 0
    for row in source.rows(part):
        batch.append(row)
        size += sum(len(value) for value in row.values() if isinstance(value, str | bytes))
        if size >= _BYTES or len(batch) == _ROWS:
            yield pa.RecordBatch.from_pylist(batch, schema)
            batch, size = [], 0
    if batch:
        yield pa.RecordBatch.from_pylist(batch, schema)
