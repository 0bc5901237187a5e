"""Import Kestrel queues into a journal, without Spark: they fit one machine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any, Final

import sej
from kestrel.v2.listing import queue_names
from pipeline.jobs.running import Progress, refuse_hub
from pipeline.paths import local_path
from pipeline.reading.kestrel_items import Kind, rows_of
from shard.names import Path

__all__ = ["import_kestrel", "import_kestrel_directory"]

_BATCH: Final = 10_000


def import_kestrel(
    directory: str | os.PathLike[str],
    queue: str,
    target: str | os.PathLike[str],
    *,
    kind: Kind | None = None,
    reader: str | None = None,
    hub: None = None,
    progress: Progress | None = None,
) -> int:
    """Append a queue's items to a journal, head first; their time becomes the message's, and there is no key.

    Each batch is appended once, so an interrupted import continues when it is run again. The queue must not change
    during the import.

    Args:
        directory: the directory of the queue's files.
        queue: its name.
        target: a SEJ directory; created if it is missing.
        kind: ``"kestrel"`` or ``"libkestrel"``; None: detected from the files.
        reader: for libkestrel: only items that this reader has not confirmed.
        hub: refused, because the target is local; the error names the way to a hub.
        progress: called with the items so far.

    Returns:
        How many items this run appended.

    Raises:
        OptionError: a path is not on a local disk, or a hub is passed.
        CorruptionError: a file of the queue is damaged.
    """
    refuse_hub("import-kestrel", hub)
    directory, target = local_path(directory), local_path(target)
    where = hashlib.sha256(os.path.realpath(directory).encode()).hexdigest()[:12]
    name = f"kestrel-{queue}-{where}"  # another machine's queue may have the same name
    done = added = 0
    with sej.Writer(target) as writer:
        last = writer.tail.last_batch(name)
        rows = rows_of(os.fspath(directory), queue=queue, kind=kind, reader=reader)
        for number, batch in enumerate(_batches(rows)):
            done += len(batch)
            if last is None or number > last:
                times = [_ns(row["add_time"]) for row in batch]
                writer.append_once(name, number, [row["data"] for row in batch], timestamp=times)
                added += len(batch)
            if progress is not None:
                progress(done)
    return added


def import_kestrel_directory(
    directory: str | os.PathLike[str],
    root: str | os.PathLike[str],
    *,
    kind: Kind | None = None,
    hub: None = None,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Import every queue of a directory, each into a journal of its name below a root; like :func:`import_kestrel`.

    Args:
        directory: the directory of the queues' files.
        root: the root of journals named like the queues.
        kind: as for :func:`import_kestrel`.
        hub: refused, because the target is local; the error names the way to a hub.
        progress: called with the items of all queues so far.

    Returns:
        How many items this run appended, by queue.

    Raises:
        OptionError: a path is not on a local disk, or a hub is passed.
        InvalidNameError: a queue's name is not allowed for a journal; nothing was imported.
        CorruptionError: a file of a queue is damaged; the queues before it were imported.
    """
    refuse_hub("import-kestrel", hub)
    directory, root = local_path(directory), local_path(root)
    targets = {queue: Path(os.fspath(root), queue, 0).dir(0) for queue in queue_names(directory)}
    added: dict[str, int] = {}
    seen = 0
    for queue, target in targets.items():
        last = 0

        def show(done: int, before: int = seen) -> None:
            nonlocal last
            last = done
            if progress is not None:
                progress(before + done)

        added[queue] = import_kestrel(directory, queue, target, kind=kind, progress=show)
        seen += last
    return added


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while batch := list(islice(rows, _BATCH)):
        yield batch


def _ns(moment: datetime | None) -> int:
    return sej.NO_TIMESTAMP if moment is None else round(moment.timestamp() * 1000) * 10**6
