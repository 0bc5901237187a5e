"""Import Kestrel queues into a journal, without Spark: they fit one machine."""

from __future__ import annotations

import hashlib
import os
import re
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Any, Final

import sej
from kestrel.v2.listing import queue_names
from pipeline.jobs.running import Progress
from pipeline.options import OptionError
from pipeline.paths import local_path
from pipeline.reading.kestrel_items import Kind, rows_of
from shard.names import Path

_BATCH: Final = 10_000
_NAME_CHARS: Final = 100


def import_kestrel(
    directory: str | os.PathLike[str],
    queue: str,
    target: str | os.PathLike[str],
    *,
    kind: Kind | None = None,
    reader: str | None = None,
    progress: Progress | None = None,
) -> int:
    """Append a queue's items to a journal, head first; their time becomes the message's, and there is no key.

    Each item is appended once: when the import is run again, it continues, also if it was interrupted. The queue must
    not change during the import. Between two runs, items may be added to it, but none may be taken.

    Args:
        directory: the directory of the queue's files.
        queue: its name.
        target: a SEJ directory; created if it is missing.
        kind: ``"kestrel"`` or ``"libkestrel"``; None: detected from the files.
        reader: for libkestrel: only items that this reader has not confirmed. Each reader's import is separate.
        progress: called with the items so far.

    Returns:
        How many items this run appended.

    Raises:
        OptionError: a path is not on a local disk, or items were taken from the queue since the last
            run.
        CorruptionError: a file of the queue is damaged.
    """
    directory, target = local_path(directory), local_path(target)
    whose = os.fsencode("\0".join((os.path.realpath(directory), queue, reader or "")))
    shown = re.sub(r"[^0-9A-Za-z_-]", "_", queue)[:_NAME_CHARS]
    name = f"kestrel-{shown}-{hashlib.sha256(whose).hexdigest()[:12]}"  # other directories have queues of this name
    with sej.Writer(target) as writer:
        rows = rows_of(os.fspath(directory), queue=queue, kind=kind, reader=reader)
        done = before = _passed(writer, name, rows, queue)
        if done and progress is not None:
            progress(done)
        for batch in _batches(rows):
            done += len(batch)
            times = [_ns(row["add_time"]) for row in batch]
            writer.append_once(name, done, [row["data"] for row in batch], timestamp=times)
            if progress is not None:
                progress(done)
    return done - before


def import_kestrel_directory(
    directory: str | os.PathLike[str],
    root: str | os.PathLike[str],
    *,
    kind: Kind | None = None,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Import every queue of a directory, each into a journal of its name below a root; like :func:`import_kestrel`.

    Args:
        directory: the directory of the queues' files.
        root: the root of journals named like the queues.
        kind: as for :func:`import_kestrel`.
        progress: called with the items of all queues so far.

    Returns:
        How many items this run appended, by queue.

    Raises:
        OptionError: as :func:`import_kestrel`.
        InvalidNameError: a queue's name is not allowed for a journal; nothing was imported.
        CorruptionError: a file of a queue is damaged; the queues before it were imported.
    """
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


def _passed(writer: sej.Writer, name: str, rows: Iterator[dict[str, Any]], queue: str) -> int:
    """Pass the items that were imported before; return how many.

    Raises:
        OptionError: the queue has fewer, or the last batch had others.
    """
    before = writer.end.last_batch(name)  # a batch has the number of items up to its end
    if before is None:
        return 0
    last: deque[bytes] = deque(maxlen=writer.end.batch_messages(name, before))
    found = 0
    for row in islice(rows, before):
        last.append(row["data"])
        found += 1
    reason = f"has {found} items, and {before} were imported before"
    if found == before:
        try:
            writer.append_once(name, before, last)  # a repeat, which appends nothing
            return before
        except sej.BatchConflictError:
            reason = f"has other items among the first {before}, which were imported before"
    raise OptionError(f"queue {queue!r} {reason}: items were taken from it since; import it into another journal")


def _batches(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while batch := list(islice(rows, _BATCH)):
        yield batch


def _ns(moment: datetime | None) -> int:
    return sej.NO_TIMESTAMP if moment is None else round(moment.timestamp() * 1000) * 10**6
