"""The shards that a scanner or a worker reads: a position in each, few of them open, one wait for all.

Waiting uses the process's one inotify instance, with a watch on each shard's ``jnl/`` and one on the root, so that new
shards are added.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Literal

from sej.journal.cursor import Cursor
from sej.journal.directory import Directory, is_journal
from sej.journal.end import Tail
from sej.journal.gaps import Gap
from sej.journal.segment import CHUNK_BYTES
from sej.journal.view import Journal
from sej.message import FIRST, Message, Start
from sej.system.disk import Disk
from sej.system.watch import Watch, wait_any
from shard.names import Path


class Source:
    """One shard and the position in it."""

    __slots__ = ("cursor", "directory", "index", "watch")

    def __init__(self, index: int, directory: Directory, cursor: Cursor) -> None:
        """Read from the cursor's position."""
        self.index = index
        self.directory = directory
        self.cursor = cursor
        self.watch: Watch | None = None

    @property
    def offset(self) -> int:
        """The next offset to read."""
        return self.cursor.due

    @property
    def gaps(self) -> list[Gap]:
        """Lost messages that were passed."""
        return self.cursor.gaps


class Sources:
    """Positions in many shards of one sharded journal.

    Attributes:
        there: the existing shards, by index.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_open: int,
        on_corruption: Literal["raise", "skip"] = "raise",
        verify: bool = False,
        chunk_bytes: int = CHUNK_BYTES,
        disk: Disk,
    ) -> None:
        """Create it without shards; see :meth:`join`.

        Args:
            path: the sharded journal.
            max_open: the most shards with an open file at one time.
            on_corruption: as for :class:`sej.Scanner`.
            verify: as for :class:`sej.Scanner`.
            chunk_bytes: bytes of a shard that are read in one step, but at least a whole message.
            disk: the disk.
        """
        self._path = path
        self._max_open = max_open
        self._on_corruption: Literal["raise", "skip"] = on_corruption
        self._verify = verify
        self._chunk_bytes = chunk_bytes
        self._disk = disk
        self._open: OrderedDict[int, Source] = OrderedDict()
        self._root: Watch | None = None
        self._woken = False
        self._growing: dict[int, Watch] = {}
        self.there: dict[int, Source] = {}

    def join(self, index: int, offset: int | Start) -> Source | None:
        """Add a shard at an offset; return None if it does not exist yet.

        Raises:
            OffsetTooSmallError: the offset was deleted.
        """
        directory = Directory(self._path.dir(index), self._disk)
        if not is_journal(self._disk, directory.path):
            return None
        at: int | None
        if isinstance(offset, Start):
            if offset is FIRST:
                at = Journal(directory.path, disk=self._disk).first_offset
            else:
                at = Tail(directory).end_offset(judge=self._on_corruption == "raise")
        else:
            at = offset
        cursor = Cursor(
            directory, at, on_corruption=self._on_corruption, verify=self._verify, chunk_bytes=self._chunk_bytes
        )
        cursor.check_available()
        source = self.there[index] = Source(index, directory, cursor)
        if self._root is not None:
            source.watch = Watch(directory.jnl)
        return source

    def remove(self, index: int) -> None:
        """Remove a shard."""
        source = self.there.pop(index, None)
        if source is not None:
            self._open.pop(index, None)
            source.cursor.close()
            if source.watch is not None:
                source.watch.close()

    def read(self, index: int, limit: int) -> list[Message]:
        """Read up to limit messages of a shard; an empty list at its end.

        Raises:
            SejError: as :meth:`sej.journal.cursor.Cursor.read`; the path names the shard.
        """
        source = self.there[index]
        batch = source.cursor.read(limit)
        self._open[index] = source
        self._open.move_to_end(index)
        while len(self._open) > self._max_open:
            self._open.popitem(last=False)[1].cursor.park()  # the next read reopens it without a listing
        return batch

    def watch(self) -> None:
        """Start watching; later changes end :meth:`wait`."""
        if self._root is None:
            root = self._path.root
            self._root = Watch(root)
            for source in self.there.values():
                source.watch = Watch(source.directory.jnl)

    @property
    def watched(self) -> bool:
        """True if :meth:`watch` was called."""
        return self._root is not None

    def missing(self, indexes: Iterable[int]) -> list[int]:
        """Return the shards that still do not exist.

        One that is being created ends :meth:`wait` when it is complete.
        """
        absent = []
        for index in indexes:
            path = self._path.dir(index)
            if is_journal(self._disk, path):
                growing = self._growing.pop(index, None)
                if growing is not None:
                    growing.close()
                continue
            absent.append(index)
            if self._root is not None and self._disk.status(path) is None:
                if index in self._growing:
                    self._growing.pop(index).close()
            elif self._root is not None and index not in self._growing:
                self._growing[index] = Watch(path)
                if is_journal(self._disk, path):  # it was created between the two checks
                    absent.pop()
        return absent

    def wait(self, timeout: float | None) -> tuple[list[int], bool]:
        """Wait for changes.

        Args:
            timeout: seconds; None waits until the safety net's time.

        Returns:
            The shards to read again, and whether to check for new shards.
        """
        self.watch()
        assert self._root is not None
        if self._woken:
            return [], False
        owner: dict[Watch, int] = {}
        for source in self.there.values():
            if source.watch is not None:
                owner[source.watch] = source.index
        found = wait_any([self._root, *self._growing.values(), *owner], timeout)
        fresh = [owner[watch] for watch in found if watch in owner]
        return fresh, len(fresh) < len(found)

    def wake(self) -> None:
        """End a wait in another thread, and every later one immediately."""
        self._woken = True
        if self._root is not None:
            self._root.wake()

    def close(self) -> None:
        """Close everything."""
        for index in list(self.there):
            self.remove(index)
        for watch in (*self._growing.values(), *([self._root] if self._root else [])):
            watch.close()
        self._growing.clear()
        self._root = None
