"""A libkestrel queue: one journal of items, several readers that each see all of them.

Relies on ``journal`` (one write per put or commit) and ``reader``. Promises: a put or commit that returned survives the
death of the process. An item that a reader did not commit is delivered again after the next opening, one that it did
commit is not, in whatever order. A writer file is removed when every reader is past it.

A reader whose file is missing, damaged or foreign begins at the first item: what may have been seen is seen again,
nothing is lost. (The original lets it begin at the end.) One process opens a queue; its threads share it.

The uncommitted items of a reader are moved into a SEJ journal, and messages into a queue, as ``kestrel.transfer`` says.
To finish an interrupted call, call it again. The written messages are counted, and their checksum is compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import Final, Literal
from zlib import crc32

from kestrel.errors import BadNameError, Damage, DamageError, FullError, MissingError, MoveError
from kestrel.fast import Puts, shorten
from kestrel.files import WRITER_MAGIC, Limits, Place, open_file, wall_clock_ms
from kestrel.segmented.files import Bookmark, Snapshot, fit, items_of, list_files, read_bookmarks
from kestrel.segmented.format import MAX_DATA_SIZE, MAX_ID, Item, encode_put
from kestrel.segmented.journal import LEAST_BYTES, Journal
from kestrel.segmented.reader import Reader, Rules
from kestrel.tail import OpenQueue, Sync, end
from kestrel.transfer import BATCH, Expired, Fields, Import, Moved, WriterLike, checksum_of, export_to
from sej.checks import COUNT, TEXT, Seconds, between, optional, require, seconds
from sej.message import Message
from sej.system.disk import OS, Disk, File
from sej.system.sealed import SealedFile

_TIME: Final = optional(between(-(2**63), 2**63 - 1))


def refuse_kestrel_2(place: Place) -> None:
    """A journal of Kestrel 2 has just the queue's name; its rotated files are named like writer files.

    Raises:
        DamageError: the directory has such a file, with content.
    """
    path = place.path()
    journal = place.disk.status(path)
    if journal is not None and journal.size and not journal.is_dir:
        raise DamageError(
            "this file has the name of the queue, so it is a journal of Kestrel 2; open it with kestrel.Queue, or"
            " choose another name; nothing was changed",
            path=path,
            position=0,
        )


class Queue(Puts, OpenQueue):
    """A queue and its readers.

    Attributes:
        name: the queue's name.
        directory: where its files are.
        damage: the unreadable parts that were found at the opening; their bytes are in ``kept/`` or in their file.

    Example:
        >>> with Queue(directory, "jobs") as queue:  # doctest: +SKIP
        ...     queue.put(b"a job")
        ...     reader = queue.reader("worker")
        ...     item = reader.get()
        ...     reader.commit(item.id)
    """

    _store: Journal

    def __init__(
        self,
        directory: str | os.PathLike[str],
        name: str,
        *,
        journal_bytes: int = 16 << 20,
        archive_to: str | os.PathLike[str] | None = None,
        max_items: int | None = None,
        max_bytes: int | None = None,
        max_item_bytes: int = MAX_DATA_SIZE,
        drop_oldest: bool = False,
        max_age_s: Seconds | None = None,
        on_expired: Callable[[Item], None] | None = None,
        max_errors: int | None = None,
        on_given_up: Callable[[str, Item], None] | None = None,
        checkpoint_s: Seconds = 1.0,
        sync: Sync = "never",
        now_ms: Callable[[], int] = wall_clock_ms,
        disk: Disk = OS,
    ) -> None:
        """Open a queue, or make it.

        Args:
            directory: where the files are; made if missing.
            name: at least one character, none of ``. / ~``.
            journal_bytes: how large a writer file may become. If an original is to open the files later, at most its
                ``journalSize``. If it was killed, its file shows that size, and a smaller size counts until ``close``.
            archive_to: a directory on the same file system for retired writer files; None: they are deleted.
            max_items: how many items a reader may have uncommitted.
            max_bytes: how much data a reader may have uncommitted.
            max_item_bytes: how much data one item may have, 16 MiB at most.
            drop_oldest: at a limit a reader's oldest items are dropped; otherwise put is refused if any reader is full.
            max_age_s: after how many seconds every item expires.
            on_expired: called with an item that a reader did not get because it expired.
            max_errors: how often an item may be given back before the reader gives it up; None: no limit.
            on_given_up: called with the reader's name and the item.
            checkpoint_s: the least time between two checkpoints. At one, reader files are replaced by short ones, and
                writer files that every reader has passed are retired.
            sync: when puts and commits are synced to disk: ``"never"``, ``"always"``, or the seconds between syncs.
            now_ms: the clock, in ms since the epoch.
            disk: the seam.

        Raises:
            BusyError: another process or object has the queue open.
            BadNameError: no queue can have this name.
            DamageError: the files are those of a Kestrel 2 queue.
            FailedError: the lock or a write failed.
            ValueError: a size, count or time is below 0, or journal_bytes leaves no room for an item.
        """
        max_age_s, checkpoint_s = seconds("max_age_s", max_age_s), seconds("checkpoint_s", checkpoint_s)
        place = Place.of(directory, name, disk, now_ms)
        require(journal_bytes=journal_bytes, archive_to=archive_to, max_errors=max_errors, checkpoint_s=checkpoint_s)
        require(drop_oldest=drop_oldest, on_expired=on_expired, on_given_up=on_given_up)
        require(max_item_bytes=(max_item_bytes, COUNT))
        if journal_bytes < LEAST_BYTES:
            raise ValueError(f"journal_bytes must be at least {LEAST_BYTES}, got {journal_bytes!r}")
        self._drop_oldest = drop_oldest
        limits = Limits(place, max_items, max_bytes, max_item_bytes, max_age_s, most=MAX_DATA_SIZE)
        self._rules = Rules(limits, on_expired, max_errors, on_given_up)
        with place.opening():
            self._store = Journal(place, journal_bytes, archive_to, checkpoint_s, sync)
            OpenQueue.__init__(self, self._store)
            try:
                self._open(place, limits)
            except BaseException:
                end(self._store)
                raise

    def _open(self, place: Place, limits: Limits) -> None:
        refuse_kestrel_2(place)
        listing = list_files(place.files(), place.name)
        bookmarks: dict[str, Bookmark] = {}
        damage = []
        for reader, bookmark, broken in read_bookmarks(listing, place):
            if broken is not None:
                damage.append(broken)
                place.keep_tail(broken.path, broken.position)
            bookmarks[reader] = bookmark or Bookmark()
        if len(bookmarks) > 1 and bookmarks.pop("", None) is not None:
            place.disk.unlink(listing.readers[""])
        self._store.open(listing)
        limits.max_item_bytes = min(limits.max_item_bytes, self._store.journal_bytes - LEAST_BYTES)
        self._readers: dict[str, Reader] = self._store.readers
        plain = not (limits.bounded and self._drop_oldest)
        super().__init__(self._store, self._tail, limits, plain=plain, now_ms=place.now_ms)
        self.damage: list[Damage] = self._store.damage + damage
        for reader, bookmark in (bookmarks or {"": Bookmark()}).items():
            self._add_reader(reader, fit(bookmark, self._store.lowest_id, self.tail_id))

    def put(self, data: bytes, *, expire_time: int | None = None) -> int:
        """Add an item for every reader.

        Args:
            data: its bytes.
            expire_time: when it expires, in ms since the epoch; None: never, or by max_age_s.

        Returns:
            Its id.

        Raises:
            FullError: a reader would pass a limit, and drop_oldest is not set.
            TooLargeError: the item is over the limit for one, or over journal_bytes.
            FailedError: a write failed, now or before.
        """
        return self.put_many((data,), expire_time=expire_time)[0]

    def put_many(self, values: Iterable[bytes], *, expire_time: int | None = None) -> range:
        """Add items, each one for every reader.

        Args:
            values: their bytes.
            expire_time: when they expire, in ms since the epoch; None: never, or by max_age_s.

        Returns:
            Their ids.

        Raises:
            FullError: a reader would pass a limit, and drop_oldest is not set; none is in.
            TooLargeError: an item is over the limit for one, or over journal_bytes; none is in.
            FailedError: a write failed, now or before.
        """
        _TIME("expire_time", expire_time)
        return self.restore(Item(0, -1, expire_time, 0, data) for data in values)

    def restore(self, items: Iterable[Item]) -> range:
        """Add items with the times and error counts that they have; an add time of -1 is now. As :meth:`put_many`.

        Args:
            items: their ids do not count, they get the next ones.

        Raises:
            FullError: as :meth:`put_many`.
            TooLargeError: as :meth:`put_many`.
        """
        checked = self._limits.checked
        found = [Item(0, one.add_time, one.expire_time, one.error_count, checked(one.data)) for one in items]
        with self._signal.guard:
            self._tail.check()
            self._make_room([item.data for item in found])
            start, now = self.tail_id + 1, self._now_ms()
            if self.tail_id + len(found) > MAX_ID:
                raise FullError(
                    f"the last id is {self.tail_id}, and the format has none above {MAX_ID}; move the items to a new"
                    " queue",
                    path=self.directory,
                )
            found = [
                Item(number, now if add_time == -1 else add_time, expire_time, errors, data)
                for number, (_, add_time, expire_time, errors, data) in enumerate(found, start)
            ]
            self._store.append([encode_put(item) for item in found])
            size = sum(len(item.data) for item in found)
            for reader in self._readers.values():
                reader.items += len(found)
                reader.bytes += size
            self._fuse.live = True
            for reader in self._readers.values() if self._drop_oldest else ():
                while self._limits.full(len(reader), reader.bytes - 1, ()) and reader.drop_oldest():
                    pass
            self._signal.changed.notify_all()
            return range(start, self.tail_id + 1)

    def reader(self, name: str = "", *, start: Literal["auto", "first", "last"] = "auto") -> Reader:
        """The reader of that name; made if it is missing.

        Args:
            name: empty for the default reader, which is there until the first named one takes its place and position.
            start: where a new reader begins: at the first item in the files, after the last, or ``"auto"``: where the
                default reader is, else after the last.

        Raises:
            BadNameError: no reader can have this name, or the default reader is requested and there are named ones.
        """
        with self._signal.guard:
            self._tail.check()
            if name in self._readers:
                return self._readers[name]
            if not name:
                raise BadNameError(
                    f"the queue {self.name} has named readers, so it has no default reader;"
                    f" name one of {', '.join(self._readers)}",
                    path=self.directory,
                )
            if any(mark in name for mark in "/~\\\0"):
                raise BadNameError(
                    f"a reader's name must have none of / ~ \\ and NUL, got {name!r}", path=self.directory
                )
            default = self._readers.get("")
            if default is not None:
                default.checkpoint()
                self._fuse.live = False
                default.file.rename(name)
                default.name = name
                self._readers[name] = self._readers.pop("")
                self._fuse.live = True
                if start == "auto":
                    return default
                default.close()
            head = self.tail_id if start != "first" else self._store.lowest_id - 1
            return self._add_reader(name, Bookmark(max(head, 0)))

    def drop_reader(self, name: str) -> None:
        """Forget a reader and remove its file; after the last one a default reader continues at its place.

        Raises:
            MissingError: there is no reader of this name.
        """
        with self._signal.guard:
            self._tail.check()
            if name not in self._readers:
                raise MissingError(
                    f"the queue {self.name} has no reader {name!r}; its readers are {sorted(self._readers)}",
                    path=self.directory,
                )
            reader = self._readers[name]
            if len(self._readers) == 1:
                self._add_reader("", reader.bookmark)
            self._fuse.live = False
            del self._readers[name]
            reader.close()
            reader.file.remove()
            self._fuse.live = True

    @property
    def readers(self) -> list[str]:
        """The names of all readers."""
        with self._signal.guard:
            return sorted(self._readers)

    @property
    def tail_id(self) -> int:
        """The last id that was given; 0 before the first."""
        return self._store.tail_id

    @property
    def size(self) -> int:
        """The bytes of all writer files."""
        return self._store.size

    def checkpoint(self) -> None:
        """Replace all reader files by short ones, and retire what every reader has passed."""
        self._store.checkpoint()

    # Every method from here on is called under the mutex.

    def _add_reader(self, name: str, bookmark: Bookmark) -> Reader:
        reader = Reader(self._store, self._rules, name, bookmark)
        for writer in self._store.files:
            found = writer.scanned
            if writer.last_id <= bookmark.head:
                continue
            if (
                found.size == writer.size
                and found.lowest_id > bookmark.head
                and not any(found.lowest_id <= number <= found.last_id for number in bookmark.done)
            ):
                reader.items += found.items
                reader.bytes += found.data_bytes
                continue
            with open_file(writer.path, self._tail.place.disk) as items:
                for batch in items_of(items, end=writer.size).batches():
                    reader.added(batch)
        self._readers[name] = reader
        return reader

    def _make_room(self, items: list[bytes]) -> None:
        """Refuse items at a limit."""
        limits = self._limits
        if self._drop_oldest or not limits.bounded or not items:
            return
        for reader in self._readers.values():
            if limits.full(len(reader), reader.size, items):
                reader.upcoming()  # what has expired takes no room
            if limits.full(len(reader), reader.size, items):
                way_out = "let it catch up, or open the queue with drop_oldest"
                limits.refuse(f"the reader {reader.name!r} of the queue {self.name}", len(reader), reader.size, way_out)


shorten(Queue, "put")


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
