"""The open writers of a store: a limited number, shared by threads, the least recently used closed first.

A borrowed entry keeps its writer open. Lock order: an entry's lock, then the pool's condition; never the reverse, and
nothing slow under the condition. The thread that opens a writer holds its entry's lock, so that other threads wait for
that directory alone. Entries in use are never closed, so a thread that waits for room only waits for users that need no
room themselves.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from hub.naming import Source
from sej.errors import ClosedError, SejError, WriterFailedError
from sej.writing.writer import Writer


class Entry:
    """One directory: its lock, and its writer while it is open."""

    __slots__ = ("lock", "users", "writer")

    def __init__(self) -> None:
        """Create an entry without a writer."""
        self.lock = threading.Lock()
        self.writer: Writer | None = None
        self.users = 0


class Opening(Protocol):
    """What opens writers: :class:`hub.Store`."""

    root: str

    def open_writer(self, source: Source, first_offset: int) -> Writer:
        """Open the writer of a source, whose first offset is used if the journal is new."""


class WriterPool:
    """Opens writers at their first use, and closes the least recently used one to make room."""

    def __init__(self, store: Opening, max_open: int) -> None:
        """Create a pool without writers.

        Args:
            store: opens the writers.
            max_open: the most writers open at one time.
        """
        self._store = store
        self._max_open = max_open
        self._entries: OrderedDict[Source, Entry] = OrderedDict()
        self._condition = threading.Condition(threading.Lock())
        self._open = 0
        self._closed = False

    @property
    def open_writers(self) -> int:
        """The number of open writers."""
        return self._open

    @contextmanager
    def borrow(self, source: Source) -> Iterator[Entry]:
        """Borrow the entry of a source until the block ends; its writer may not be open yet.

        Raises:
            ClosedError: the pool was closed; raised when the block begins.
        """
        with self._condition:
            if self._closed:
                raise ClosedError("the store is closed; open another one", path=self._store.root)
            entry = self._entries.setdefault(source, Entry())
            self._entries.move_to_end(source)
            entry.users += 1
        try:
            yield entry
        finally:
            self._give_back(source, entry)

    def writer(self, source: Source, entry: Entry, first_offset: int) -> Writer:
        """Return the writer of a borrowed entry whose lock the caller holds; one that failed is reopened."""
        if entry.writer is not None:
            return entry.writer
        self._make_room()
        try:
            entry.writer = self._store.open_writer(source, first_offset)
        except BaseException:
            self._made_room()
            raise
        return entry.writer

    def drop(self, entry: Entry, failed: Writer) -> None:
        """Close a writer that failed, so that the next caller reopens it and finds what is on disk."""
        with entry.lock:
            if entry.writer is failed:
                self._close_entry(entry)

    def close(self) -> None:
        """Refuse new users, wait for current ones, and close every writer.

        Raises:
            SejError: a last write or sync failed; the others were closed anyway.
        """
        with self._condition:
            self._closed = True
            self._condition.wait_for(lambda: not any(entry.users for entry in self._entries.values()))
            entries = list(self._entries.values())
            self._entries.clear()
        failure: SejError | None = None
        for entry in entries:
            with entry.lock:
                try:
                    self._close_entry(entry, quiet=False)
                except SejError as error:
                    failure = failure or error
        if failure is not None:
            raise failure

    def _give_back(self, source: Source, entry: Entry) -> None:
        """End the use of an entry."""
        with self._condition:
            entry.users -= 1
            if not entry.users and entry.writer is None and self._entries.get(source) is entry:
                del self._entries[source]
            self._condition.notify_all()

    def _made_room(self) -> None:
        with self._condition:
            self._open -= 1
            self._condition.notify_all()

    def _make_room(self) -> None:
        """Reserve room for one more, by closing the least recently used writer or by waiting for one that is in use."""
        while True:
            with self._condition:
                if self._open < self._max_open:
                    self._open += 1
                    return
                idle = next(
                    ((s, e) for s, e in self._entries.items() if not e.users and e.writer is not None),
                    None,
                )
                if idle is None:
                    self._condition.wait()
                    continue
                source, entry = idle
                entry.users += 1
            try:
                with entry.lock:
                    self._close_entry(entry)
            finally:
                self._give_back(source, entry)

    def _close_entry(self, entry: Entry, *, quiet: bool = True) -> None:
        writer, entry.writer = entry.writer, None
        if writer is None:
            return
        try:
            writer.close()
        except WriterFailedError:
            # Acknowledged messages are durable already; the next opening finds what else reached the disk.
            if not quiet:
                raise
        finally:
            self._made_room()
