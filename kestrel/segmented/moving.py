"""Move the uncommitted items of a libkestrel reader into a SEJ journal, and messages into a queue.

``kestrel.transfer`` describes the mapping of the fields and the plan. To finish an interrupted call, call it again. The
written messages are counted, and their checksum is compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import Final, Literal
from zlib import crc32

from kestrel.errors import MissingError, MoveError
from kestrel.files import WRITER_MAGIC, Place, wall_clock_ms
from kestrel.segmented.files import Bookmark, Snapshot, items_of
from kestrel.segmented.format import Item, encode_put
from kestrel.segmented.queue import Queue, refuse_kestrel_2
from kestrel.transfer import BATCH, Expired, Fields, Import, Moved, WriterLike, checksum_of, export_to
from sej.checks import TEXT
from sej.message import Message
from sej.system.disk import OS, Disk, File
from sej.system.sealed import SealedFile

_NOW: Final = -1
"""The time of adding of a message that has none, for ``Queue.restore``."""


def export(
    directory: str | os.PathLike[str],
    name: str,
    writer: WriterLike,
    *,
    reader: str = "",
    expired: Expired = "mark",
    read_back: Callable[[int], Iterable[Message]] | None = None,
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
    place = Place.of(directory, name, disk, now_ms)
    TEXT("reader", reader)
    with place.opening(), closing(Snapshot(place, exclude=True)) as snapshot:
        refuse_kestrel_2(place)
        # A reader whose file is unreadable begins at the first item, as when the queue is opened.
        readers = {**dict.fromkeys(snapshot.unreadable, Bookmark()), **snapshot.readers} or {"": Bookmark()}
        if reader not in readers:
            raise MissingError(
                f"the queue {name} has no reader {reader!r}; its readers are {sorted(readers)}", path=place.directory
            )
        bookmark = readers[reader]
        return export_to(
            writer,
            snapshot,
            ((item.data, item.add_time, item.expire_time) for item in snapshot.items(bookmark)),
            [snapshot.tail_id, bookmark.head, sorted(bookmark.done)],
            expired=expired,
            read_back=read_back,
            grace_ms=0,
            reader=f".read.{reader}",
        )


def import_(
    directory: str | os.PathLike[str],
    name: str,
    messages: Iterable[Message],
    *,
    keys: Literal["refuse", "drop"] = "refuse",
    disk: Disk = OS,
    now_ms: Callable[[], int] = wall_clock_ms,
) -> Moved:
    """Put messages into a queue that no process has open, for all of its readers: all, or none if one is refused.

    A second call with the same messages after it has finished adds nothing, as in :func:`kestrel.import_`. After one
    that was cut short it adds the rest.

    Args:
        directory: where the queue's files are; made if missing.
        name: the queue.
        messages: after a call that was cut short: the same ones again.
        keys: what to do with keys and types, for which the format has no place.
        disk: the seam.
        now_ms: the clock, for messages without a timestamp.

    Raises:
        MoveError: a message has a key or type, what was written reads as something else, or the record of an import
            cannot be read.
        TooLargeError: a message is over the limit for one.
        BusyError: another process has the queue open.
        DamageError: the files are those of a Kestrel 2 queue.
    """
    place = Place.of(directory, name, disk, now_ms)
    moving = Import(place, messages, keys)
    with place.opening(), Queue(directory, name, now_ms=now_ms, disk=disk) as queue:
        plan, form = moving.plan, _Form(queue)
        staged = moving.stage(form, _NOW)
        start = _decide(queue, plan, [staged.count, staged.messages])
        with disk.open(staged.path, "read") as file:
            items = form.decode(file)
            there = checksum_of(_items_after(queue, start))
            if there != checksum_of(islice(items, there[0])):
                raise MoveError(
                    f"the items from id {start + 1} on are not those that an interrupted import added; remove this file"
                    " to import all of them",
                    path=plan.path,
                )
            while batch := list(islice(items, BATCH)):
                queue.restore(Item(0, item.add_time, item.expiry or None, 0, item.data) for item in batch)
        queue.sync()
        if checksum_of(_items_after(queue, start)) != (staged.count, staged.checksum):
            raise MoveError(
                "the items that were read back differ from those written; check the disk, and do not remove the source",
                path=plan.path,
            )
        disk.unlink(staged.path)
        return Moved(staged.count, staged.checksum, None, queue.damage)


def _decide(queue: Queue, plan: SealedFile, messages: list[int]) -> int:
    """The last id before the items of an import: that of an earlier call if it was cut short or nothing has changed."""
    readers = {reader: queue.reader(reader).bookmark for reader in queue.readers}
    marks = {name: [one.head, crc32(repr(sorted(one.done)).encode())] for name, one in readers.items()}
    decided = plan.load()
    if decided is not None and decided["messages"] == messages:
        there = queue.tail_id - decided["start"]
        if 0 <= there < messages[0] or (there == messages[0] and decided["readers"] == marks):
            return int(decided["start"])
    if messages[0]:
        plan.store({"messages": messages, "start": queue.tail_id, "readers": marks})
    return queue.tail_id


def _items_after(queue: Queue, number: int) -> Iterator[Fields]:
    return (_fields(item) for item in queue._store.items_after(number))


def _fields(item: Item) -> Fields:
    return Fields(item.data, item.add_time, item.expire_time or 0)


class _Form:
    """A staged item is a PUT."""

    head = WRITER_MAGIC

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def encode(self, item: Fields) -> bytes:
        return encode_put(Item(0, item.add_time, item.expiry or None, 0, self._queue._limits.checked(item.data)))

    def decode(self, file: File) -> Iterator[Fields]:
        return (_fields(item) for item in items_of(file).records())
