"""Move the uncommitted items of a libkestrel reader into a SEJ journal, and messages into a queue.

``kestrel.transfer`` describes the mapping of the fields. To finish an interrupted call, call it again. The written
messages are counted, and their checksum is compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final, Literal
from zlib import crc32

from kestrel.errors import MissingError, MoveError
from kestrel.files import KEPT, check_place, join, opening
from kestrel.limits import wall_clock_ms
from kestrel.segmented.codec import Item
from kestrel.segmented.files import Bookmark
from kestrel.segmented.queue import Queue, refuse_kestrel_2
from kestrel.segmented.snapshot import Snapshot
from kestrel.transfer import (
    BATCH,
    Expired,
    Fields,
    Imported,
    MessageLike,
    Moved,
    Progress,
    WriterLike,
    check_export,
    check_import,
    checksum,
    export_rows,
    fields_of,
    row_of,
    rows_of,
)
from sej.checks import TEXT
from sej.system.disk import OS, Disk
from sej.system.paths import absolute_path

_NOW: Final = -1
"""The time of adding of a message that has none, for ``Queue.restore``."""


def export(
    directory: str | os.PathLike[str],
    name: str,
    writer: WriterLike,
    *,
    reader: str = "",
    expired: Expired = "mark",
    read_back: Callable[[int], Iterable[MessageLike]] | None = None,
    disk: Disk = OS,
    now_ms: Callable[[], int] = wall_clock_ms,
) -> Moved:
    """Append what a reader has not committed to a SEJ journal. The queue is not changed: its directory is only read.

    An original may run on the same files. If it changes the queue meanwhile, the export fails.
    A second call after it has finished appends nothing, as in :func:`kestrel.export`.

    Args:
        directory: where the queue's files are.
        name: the queue.
        writer: a ``sej.Writer``.
        reader: the reader whose items to export; empty: the default reader.
        expired: ``"mark"``: an item that has expired gets the key ``expired=<ms>`` instead of ``expiry=<ms>``;
            ``"leave"``: it is left out.
        read_back: called with an offset, gives the messages from there on, to be compared; as for
            :func:`kestrel.export`.
        disk: the seam of the queue's files.
        now_ms: the clock, for what has expired.

    Raises:
        MoveError: the queue or the SEJ journal changed since an export that was cut short, what was read back is
            something else, or the same queue was exported with other options.
        BusyError: another process has the queue open, or a program changed it while it was read.
        DamageError: the files are those of a Kestrel 2 queue.
        MissingError: the queue has no such reader.
    """
    check_place(directory, name, disk)
    directory = absolute_path(directory)
    check_export(writer, read_back, expired, now_ms)
    TEXT("reader", reader)
    with opening(join(directory, name)):
        snapshot = Snapshot(directory, name, disk=disk, exclude=True)
        try:
            refuse_kestrel_2(directory, name, disk)
            # A reader whose file is unreadable begins at the first item, as when the queue is opened.
            readers = {**dict.fromkeys(snapshot.unreadable, Bookmark()), **snapshot.readers} or {"": Bookmark()}
            if reader not in readers:
                raise MissingError(
                    f"the queue {name} has no reader {reader!r}; its readers are {sorted(readers)}",
                    path=os.fspath(directory),
                )
            bookmark = readers[reader]
            source = [snapshot.tail_id, bookmark.head, sorted(bookmark.done)]
            progress = Progress.of_export(directory, f"{name}.read.{reader}", writer, source, disk, snapshot.written())
            at = progress.time_ms(now_ms)
            items = ((item.data, item.add_time, item.expire_time) for item in snapshot.items(bookmark))
            rows = rows_of(items, at, at + 1, expired)  # an item expires at its time, not after it
            return export_rows(rows, writer, progress, snapshot.damage, read_back, snapshot.check)
        finally:
            snapshot.close()


def import_(
    directory: str | os.PathLike[str],
    name: str,
    messages: Iterable[MessageLike],
    *,
    keys: Literal["refuse", "drop"] = "refuse",
    disk: Disk = OS,
    now_ms: Callable[[], int] = wall_clock_ms,
) -> Moved:
    """Put messages into a queue that no process has open, for all of its readers; those before a refused one are in.

    A second call with the same messages after it has finished adds nothing, as in :func:`kestrel.import_`.

    Args:
        directory: where the queue's files are; made if missing.
        name: the queue.
        messages: after a call that was cut short: the same ones again.
        keys: what to do with keys and types, for which the format has no place.
        disk: the seam.
        now_ms: the clock, for messages without a timestamp.

    Raises:
        MoveError: a message has a key or type, the messages are not those of a call that was cut short, what was
            written reads as something else, or the record of an import cannot be read.
        BusyError: another process has the queue open.
        DamageError: the files are those of a Kestrel 2 queue.
    """
    check_place(directory, name, disk)
    directory = absolute_path(directory)
    check_import(messages, keys, now_ms)
    with opening(join(directory, name)), Queue(directory, name, now_ms=now_ms, disk=disk) as queue:
        disk.mkdir(join(directory, KEPT))
        progress = Progress(join(directory, join(KEPT, f"{name}.import")), ["messages"], disk)
        imported = Imported(directory, name, disk)
        state = progress.load()
        last = imported.load(_state(queue)) if state is None else None
        items: Iterator[Fields] = (fields_of(message, keys, _NOW) for message in messages)
        if last is not None:
            first, count, found = last
            left = _unless_same(queue, first, items)
            if left is None:
                return Moved(count, found, None, queue.damage)
            items = left
        start = queue.tail_id if state is None else state["start"]
        if state is None:
            progress.save(start, 0)
        count, found = 0, 0
        for there, item in zip(queue.items_after(start), items, strict=False):
            if there.data != item.data:
                raise MoveError(
                    f"item {there.id} of an import that was cut short differs from the message in its place; pass the"
                    " same messages again, or remove this file to import all of them",
                    path=progress.path,
                )
            found = checksum([row_of(there.data, 0, there.expire_time)], found)[1]
            count += 1
        while batch := list(islice(items, BATCH)):
            rows = [row_of(item.data, 0, item.expiry) for item in batch]
            queue.restore(Item(0, item.add_time, item.expiry or None, 0, item.data) for item in batch)
            found = checksum(rows, found)[1]
            count += len(batch)
        queue.sync()
        there_rows = (row_of(one.data, 0, one.expire_time) for one in queue.items_after(start))
        moved = Moved(count, found, None, queue.damage)
        if checksum(there_rows) != (count, found):
            raise MoveError(
                "the items that were read back differ from those written; check the disk, and do not remove the source",
                path=progress.path,
            )
        if count:
            imported.save(_state(queue), [start, count, found])
        progress.remove()
        return moved


def _state(queue: Queue) -> list[Any]:
    """The state of a queue, as JSON has it; an item that is put or committed changes it."""
    marks = {reader: queue.reader(reader).bookmark for reader in queue.readers}
    return [queue.tail_id, {name: [one.head, crc32(repr(sorted(one.done)).encode())] for name, one in marks.items()}]


def _unless_same(queue: Queue, start: int, fields: Iterator[Fields]) -> Iterator[Fields] | None:
    """All of the messages; None if they are the items above an id. Those that were read are taken from the items."""
    there = queue.items_after(start)
    now = bytearray()  # of each message, whether it has no time
    for field in fields:
        item = next(there, None)
        if item is None or _fields(item, field.add_time == _NOW) != field:
            return chain(_again(queue, start, now), (field,), fields)
        now.append(field.add_time == _NOW)
    return None if next(there, None) is None else _again(queue, start, now)


def _again(queue: Queue, start: int, now: bytearray) -> Iterator[Fields]:
    """The items above an id as messages; now: of each one, whether its time is that of this import."""
    return map(_fields, queue.items_after(start), now)


def _fields(item: Item, now: int) -> Fields:
    return Fields(item.data, _NOW if now else item.add_time, item.expire_time or 0)
