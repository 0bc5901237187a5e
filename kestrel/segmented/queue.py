"""A libkestrel queue: one journal of items, several readers that each see all of them.

Relies on ``writing`` (one write per put), ``bookmarks`` (one write per commit) and ``reader``. Promises: a put or
commit that returned survives the death of the process; an item that a reader did not commit comes back when the queue
is opened, one that it did commit does not, in whatever order; a writer file goes when every reader is past it.

A reader whose file is missing, damaged or foreign begins at the first item: what may have been seen is seen again,
nothing is lost. (The original lets it begin at the end.) One process opens a queue; its threads share it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Literal, Self

from kestrel.clock import wall_clock_ms
from kestrel.errors import BadNameError, Damage, DamageError, FullError, ShutError, TooLargeError
from kestrel.files import check_name, check_numbers, join, keep_tail, open_file
from kestrel.fuse import opening
from kestrel.segmented.bookmarks import BookmarkFile
from kestrel.segmented.codec import Item, encode_put
from kestrel.segmented.files import Bookmark, Reading, list_files, read_bookmark
from kestrel.segmented.format import MAGIC_SIZE, MAX_DATA_SIZE, MAX_ID, PUT_EXPIRING_HEAD
from kestrel.segmented.reader import Reader
from kestrel.segmented.state import fit
from kestrel.segmented.writing import WriterFiles
from kestrel.syncing import Sync, check_sync
from sej.checks import CALLABLE, COUNT, DISK, FLAG, PATH, SECONDS, optional, refuse_pickling, require
from sej.system.disk import OS, Disk

__all__ = ["Queue"]


class Queue:
    """A queue and its readers.

    Attributes:
        name: the queue's name.
        directory: where its files are.
        damage: what was unreadable when it was opened; those bytes are in ``kept/`` or where they were.

    Example:
        >>> with Queue(directory, "jobs") as queue:  # doctest: +SKIP
        ...     queue.put(b"a job")
        ...     reader = queue.reader("worker")
        ...     item = reader.get()
        ...     reader.commit(item.id)
    """

    __reduce__ = refuse_pickling

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
        max_age_s: float | None = None,
        on_expired: Callable[[Item], None] | None = None,
        max_errors: int | None = None,
        on_given_up: Callable[[str, Item], None] | None = None,
        checkpoint_s: float = 1.0,
        sync: Sync = "never",
        now_ms: Callable[[], int] = wall_clock_ms,
        disk: Disk = OS,
    ) -> None:
        """Open a queue, or make it.

        Args:
            directory: where the files are; made if missing.
            name: at least one character, none of ``. / ~``.
            journal_bytes: how large a writer file may become.
            archive_to: a directory on the same file system for retired writer files; None: they are deleted.
            max_items: how many items a reader may have uncommitted.
            max_bytes: how much data a reader may have uncommitted.
            max_item_bytes: how much data one item may have, 16 MiB at most.
            drop_oldest: at a limit a reader's oldest items are dropped; otherwise put is refused if any reader is full.
            max_age_s: after how many seconds every item expires.
            on_expired: called with an item that a reader did not get because it expired.
            max_errors: how often an item may be given back before the reader gives it up; None: for ever.
            on_given_up: called with the reader's name and the item.
            checkpoint_s: how often at most the reader files are written anew, at a commit, and old files retired.
            sync: when puts and commits are forced to the medium: ``"never"``, ``"always"`` or every so many seconds.
            now_ms: the clock, in ms since the epoch.
            disk: the seam.

        Raises:
            BusyError: somebody else has the queue open.
            BadNameError: no queue can have this name.
            DamageError: the files are those of a Kestrel 2 queue.
            FailedError: the lock or a write failed.
            ValueError: a size, count or time is below 0, or journal_bytes leaves no room for an item.
        """
        require(
            directory=(directory, PATH),
            journal_bytes=(journal_bytes, COUNT),
            archive_to=(archive_to, optional(PATH)),
            max_item_bytes=(max_item_bytes, COUNT),
            checkpoint_s=(checkpoint_s, SECONDS),
            drop_oldest=(drop_oldest, FLAG),
            on_expired=(on_expired, optional(CALLABLE)),
            on_given_up=(on_given_up, optional(CALLABLE)),
            now_ms=(now_ms, CALLABLE),
            disk=(disk, DISK),
        )
        check_name(name)
        check_sync(sync)
        check_numbers(max_items=max_items, max_bytes=max_bytes, max_item_bytes=max_item_bytes, max_age_s=max_age_s)
        check_numbers(max_errors=max_errors)
        if journal_bytes < (least := MAGIC_SIZE + PUT_EXPIRING_HEAD.size):
            raise ValueError(f"journal_bytes must be {least} or more, not {journal_bytes!r}")
        self.name = check_name(name)
        self.directory = os.fspath(directory)
        self.guard = threading.RLock()
        self.changed = threading.Condition(self.guard)
        self.evictions = 0
        self._limits = (max_items, max_bytes)
        self._max_item_bytes = min(max_item_bytes, MAX_DATA_SIZE, journal_bytes - MAGIC_SIZE - PUT_EXPIRING_HEAD.size)
        self._drop_oldest = drop_oldest
        self._max_age_ms = None if max_age_s is None else int(max_age_s * 1000)
        self._on_expired = on_expired
        self._max_errors = max_errors
        self._on_given_up = on_given_up
        self._checkpoint_s = checkpoint_s
        self._checkpointed = time.monotonic()
        self._now_ms = now_ms
        self._disk = disk
        self._closed = False
        self._readers: dict[str, Reader] = {}
        with opening(join(directory, name)):
            self._files = WriterFiles(
                directory,
                name,
                journal_bytes=journal_bytes,
                archive_to=archive_to,
                sync=sync,
                sync_soon=self.sync,
                disk=disk,
                now_ms=now_ms,
            )
            try:
                self._open()
            except BaseException:
                self._files.close()
                raise

    def _open(self) -> None:
        journal = self._disk.status(join(self.directory, self.name))
        if journal is not None and journal.size and not journal.is_dir:
            raise DamageError(
                "a file of just the queue's name is a journal of Kestrel 2, whose rotated files are named as writer"
                " files are: open it as that, or take another name; nothing was changed",
                path=join(self.directory, self.name),
                position=0,
            )
        listing = list_files(self.directory, self.name, self._disk)
        bookmarks: dict[str, Bookmark] = {}
        damage = []
        for reader, path in listing.readers.items():
            file = open_file(path, self._disk)
            try:
                bookmark, broken = read_bookmark(file)
            finally:
                file.close()
            if broken is not None:
                damage.append(Damage(path, broken.position or 0, broken.reason))
                keep_tail(self._disk, path, broken.position or 0, self._now_ms())
            bookmarks[reader] = bookmark or Bookmark()
        if len(bookmarks) > 1 and bookmarks.pop("", None) is not None:
            self._disk.unlink(listing.readers[""])
        self._files.open(listing)
        self.damage: list[Damage] = self._files.damage + damage
        first = self._files.files[0].first_id
        for name, bookmark in (bookmarks or {"": Bookmark()}).items():
            self._add_reader(name, fit(bookmark, first, self.tail_id))

    def put(self, data: bytes, *, expire_time: int | None = None) -> int:
        """Add an item; returns its id. As :meth:`put_many`."""
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
        return self.restore(Item(0, -1, expire_time, 0, data) for data in values)

    def restore(self, items: Iterable[Item]) -> range:
        """Add items with the times and the error counts that they have; an add time of -1 is now. As :meth:`put_many`.

        Args:
            items: their ids do not count, they get the next ones.

        Raises:
            FullError: as :meth:`put_many`.
            TooLargeError: as :meth:`put_many`.
        """
        found = [Item(0, one.add_time, one.expire_time, one.error_count, self._checked(one.data)) for one in items]
        with self.guard:
            self.check()
            self._make_room(found)
            start, now = self.tail_id + 1, self._now_ms()
            if self.tail_id + len(found) > MAX_ID:
                raise FullError(
                    f"the last id is {self.tail_id}, and there is none above {MAX_ID}: move the items to a new queue",
                    path=self.directory,
                )
            found = [
                Item(number, now if add_time == -1 else add_time, expire_time, errors, data)
                for number, (_, add_time, expire_time, errors, data) in enumerate(found, start)
            ]
            self._files.append([encode_put(item) for item in found])
            for reader in self._readers.values():
                for item in found:
                    reader.count(item)
            self._files.settled()
            if self._drop_oldest:
                self._trim()
            self.changed.notify_all()
            return range(start, self.tail_id + 1)

    def reader(self, name: str = "", *, start: Literal["auto", "first", "last"] = "auto") -> Reader:
        """The reader of that name; made if there is none.

        Args:
            name: empty for the default reader, which is there until the first named one takes its place and position.
            start: where a new reader begins: at the first item that is there, behind the last, or ``"auto"``: where the
                default reader stood, else behind the last.

        Raises:
            BadNameError: no reader can have this name, or the default reader is asked for where there are named ones.
        """
        with self.guard:
            self.check()
            if name in self._readers:
                return self._readers[name]
            if not name:
                raise BadNameError(
                    f"the queue {self.name} has named readers and so no default one: {', '.join(self._readers)}",
                    path=self.directory,
                )
            if any(mark in name for mark in "/~\\\0"):
                raise BadNameError(f"a reader cannot be named {name!r}: none of / ~ \\ and NUL", path=self.directory)
            default = self._readers.pop("", None)
            if default is not None:
                default.file.rename(name)
                default.name = name
                self._readers[name] = default
                if start == "auto":
                    return default
                default.close()
            head = self.tail_id if start != "first" else self._files.files[0].first_id - 1
            return self._add_reader(name, Bookmark(max(head, 0)))

    def drop_reader(self, name: str) -> None:
        """Forget a reader and remove its file; the last one that goes leaves a default reader at its place."""
        with self.guard:
            self.check()
            reader = self._readers.pop(name)
            if not self._readers:
                self._add_reader("", reader.bookmark)
            reader.close()
            reader.file.remove()

    @property
    def readers(self) -> list[str]:
        """The names of all readers."""
        with self.guard:
            return sorted(self._readers)

    @property
    def tail_id(self) -> int:
        """The last id that was given; 0 before the first."""
        return self._files.tail_id

    @property
    def size(self) -> int:
        """The bytes of all writer files."""
        return self._files.size

    def checkpoint(self) -> None:
        """Write all reader files anew, and retire what every reader has passed."""
        with self.guard:
            self.check()
            for reader in self._readers.values():
                if reader.file.dirty:
                    reader.checkpoint()
            self._retire()
            self._checkpointed = time.monotonic()

    def sync(self) -> None:
        """Force everything that was written to the medium, items before commits."""
        with self.guard:
            if not self._closed:
                self._files.sync()
                for reader in self._readers.values():
                    reader.file.sync()

    def evict_waiters(self) -> None:
        """Let every waiting get and peek return None now."""
        with self.guard:
            self.evictions += 1
            self.changed.notify_all()

    def close(self) -> None:
        """Write all reader files anew, sync and close. What is taken comes back at the next opening."""
        with self.guard:
            if self._closed:
                return
            try:
                if self._files.fuse.live:
                    self.checkpoint()
            finally:
                self._closed = True
                self.changed.notify_all()
        self._files.stop()
        with self.guard:
            for reader in self._readers.values():
                reader.close()
            self._files.close()

    def delete(self) -> None:
        """Close the queue and remove its files; its lock file stays."""
        with self.guard:
            self.check()
            self._files.erase()
            for reader in self._readers.values():
                reader.file.remove()
            self._readers.clear()
            self._closed = True
            self.changed.notify_all()
        self._files.stop()
        with self.guard:
            self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What the readers call, under the lock.

    def check(self) -> None:
        """Make sure that the queue is open and well.

        Raises:
            ShutError: it was closed.
            FailedError: a write or sync failed before.
        """
        if self._closed:
            raise ShutError("the queue is closed; open it anew", path=join(self.directory, self.name))
        self._files.check()

    def expired(self, item: Item) -> bool:
        """Whether an item has expired: at its time, not after it."""
        expire_time = item.expire_time
        if self._max_age_ms is not None:
            latest = item.add_time + self._max_age_ms
            expire_time = latest if expire_time is None else min(expire_time, latest)
        return expire_time is not None and expire_time <= self._now_ms()

    def tell_expired(self, item: Item) -> None:
        """Hand an expired item on."""
        if self._on_expired is not None:
            self._on_expired(item)

    def gives_up(self, reader: Reader, item: Item) -> bool:
        """Whether an item was given back too often."""
        if self._max_errors is None or item.error_count < self._max_errors:
            return False
        if self._on_given_up is not None:
            self._on_given_up(reader.name, item)
        return True

    def committed(self, reader: Reader) -> None:
        """A reader has committed an item."""
        self._files.touched()
        if reader.file.overgrown:
            reader.checkpoint()
        if time.monotonic() - self._checkpointed >= self._checkpoint_s:
            self.checkpoint()

    def items_after(self, number: int) -> Iterator[Item]:
        """The items above an id, from the files."""
        for writer in list(self._files.files):
            if writer.last_id > number:
                file = open_file(writer.path, self._disk)
                try:
                    for item in Reading(file, end=writer.size).items():
                        if item.id > number:
                            yield item
                finally:
                    file.close()

    def _add_reader(self, name: str, bookmark: Bookmark) -> Reader:
        file = BookmarkFile(
            self.directory, self.name, name, fuse=self._files.fuse, disk=self._disk, now_ms=self._now_ms
        )
        file.replace(bookmark.head, sorted(bookmark.done))
        reader = Reader(self, name, bookmark, self._files, file, self._disk)
        for item in self.items_after(bookmark.head):
            reader.count(item)
        self._readers[name] = reader
        return reader

    def _retire(self) -> None:
        self._files.retire(min((reader.head for reader in self._readers.values()), default=self.tail_id))

    def _checked(self, data: bytes) -> bytes:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"an item is bytes, not {type(data).__name__}")
        data = bytes(data)
        if len(data) > self._max_item_bytes:
            raise TooLargeError(
                f"an item of {len(data)} bytes; {self._max_item_bytes} are possible by the format's 16 MiB,"
                " max_item_bytes and journal_bytes",
                path=self.directory,
            )
        return data

    def _full(self, reader: Reader, items: int, size: int) -> bool:
        """Whether the reader is at a limit, if so many items of so much data were more there."""
        max_items, max_bytes = self._limits
        return (max_items is not None and len(reader) + items >= max_items) or (
            max_bytes is not None and reader.size + size >= max_bytes
        )

    def _make_room(self, items: list[Item]) -> None:
        """Refuse. The last item is the one that may pass max_bytes, as a single one may."""
        if self._drop_oldest or self._limits == (None, None) or not items:
            return
        more, extra = len(items) - 1, sum(len(item.data) for item in items[:-1])
        for reader in self._readers.values():
            if self._full(reader, more, extra):
                reader.sweep()  # what has expired takes no room
            if self._full(reader, more, extra):
                raise FullError(
                    f"the reader {reader.name!r} of the queue {self.name} has {len(reader)} items of {reader.size}"
                    f" bytes open; the limits are {self._limits[0]} items and {self._limits[1]} bytes: let it catch up,"
                    " or open the queue with drop_oldest",
                    path=self.directory,
                )

    def _trim(self) -> None:
        for reader in self._readers.values():
            while self._full(reader, -1, -1) and reader.drop_oldest():
                pass
