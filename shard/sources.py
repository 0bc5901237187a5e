"""The shards that a scanner or a worker reads: a position in each, few of them open, one wait for all; and the lag.

Waiting uses the process's one inotify instance, with a watch on each shard's ``jnl/`` and one on the root, so that new
shards are added.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from sej.checks import require
from sej.codec.format import NO_TIMESTAMP
from sej.errors import OffsetBeyondEndError
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory, check_name, containing, is_journal
from sej.journal.index import IndexFile
from sej.journal.segment import CHUNK_BYTES, SegmentReader
from sej.journal.tail import Tail
from sej.journal.view import Journal
from sej.message import FIRST, Message, Start
from sej.reading.offset import read_offset
from sej.system.disk import OS, Disk
from sej.system.watch import Watch, wait_any
from shard.names import TREE, Path
from shard.trees import Arrivals


class Sources:
    """Positions in many shards of one sharded journal.

    Attributes:
        there: the existing shards: a cursor at the position in each, by index.
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
        self._open: OrderedDict[int, Cursor] = OrderedDict()
        self._watches: dict[int, Watch] = {}
        self._arrivals: Arrivals | None = None
        self._woken = False
        self.there: dict[int, Cursor] = {}

    def join(self, index: int, offset: int | Start) -> Cursor | None:
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
        self.there[index] = cursor
        if self._arrivals is not None:
            self._watches[index] = Watch(directory.jnl)
        return cursor

    def remove(self, index: int) -> None:
        """Remove a shard."""
        cursor = self.there.pop(index, None)
        if cursor is not None:
            self._open.pop(index, None)
            cursor.close()
            if index in self._watches:
                self._watches.pop(index).close()

    def read(self, index: int, limit: int) -> list[Message]:
        """Read up to limit messages of a shard; an empty list at its end.

        Raises:
            SejError: as :meth:`sej.journal.cursor.Cursor.read`; the path names the shard.
        """
        cursor = self.there[index]
        batch = cursor.read(limit)
        self._open[index] = cursor
        self._open.move_to_end(index)
        while len(self._open) > self._max_open:
            self._open.popitem(last=False)[1].park()  # the next read reopens it without a listing
        return batch

    def watch(self) -> None:
        """Start watching; later changes end :meth:`wait`."""
        if self._arrivals is None:
            self._arrivals = Arrivals(self._path.root, self._disk)
            for index in self.there:
                self._watches[index] = Watch(os.path.join(self._path.dir(index), "jnl"))

    @property
    def watched(self) -> bool:
        """True if :meth:`watch` was called."""
        return self._arrivals is not None

    def missing(self, indexes: Iterable[int]) -> list[int]:
        """Return the shards that still do not exist.

        One that is being created ends :meth:`wait` when it is complete.
        """
        left = {os.path.basename(self._path.dir(index)): index for index in indexes}
        if self._arrivals is not None:
            found = self._arrivals.look(left)
        else:
            found = [name for name, index in left.items() if is_journal(self._disk, self._path.dir(index))]
        for name in found:
            del left[name]
        return list(left.values())

    def wait(self, timeout: float | None) -> tuple[list[int], bool]:
        """Wait for changes.

        Args:
            timeout: seconds; None waits until the safety net's time.

        Returns:
            The shards to read again, and whether to check for new shards.
        """
        if self._woken:
            return [], False
        if self._arrivals is None:  # later appends wake the wait; earlier ones are found by one more check
            self.watch()
            return list(self.there), True
        owner = {watch: index for index, watch in self._watches.items()}
        found = wait_any([*self._arrivals.watches, *owner], timeout)
        fresh = [owner[watch] for watch in found if watch in owner]
        return fresh, len(fresh) < len(found)

    def wake(self) -> None:
        """End a wait in another thread, and every later one immediately."""
        self._woken = True
        if self._arrivals is not None:
            self._arrivals.wake()

    def close(self) -> None:
        """Close everything."""
        for index in list(self.there):
            self.remove(index)
        if self._arrivals is not None:
            self._arrivals.close()
            self._arrivals = None


_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a reader is behind in one shard.

    Attributes:
        index: the shard.
        offset: the next offset of the reader; the first existing one if it never committed.
        end_offset: the offset of the next message.
        messages: how many messages it has not read.
        bytes: how many bytes of the segments these take.
        seconds: how old the oldest of them is; 0.0 if none exists, or if it has no timestamp.
    """

    index: int
    offset: int
    end_offset: int
    messages: int
    bytes: int
    seconds: float


def lag(path: Path, name: str, *, now_ns: Callable[[], int] = time.time_ns, disk: Disk = OS) -> list[Lag]:
    """Return how far a reader is behind, in every shard: the row at i is shard i. A missing shard has no lag.

    Args:
        path: the sharded journal.
        name: the reader's name, as passed to :class:`shard.Worker`.
        now_ns: the clock for ages.
        disk: the disk.

    Raises:
        CorruptionError: a shard cannot be read from the reader's offset on.
        OffsetBeyondEndError: a kept offset is past the end of its shard.
        InvalidNameError: the name is not a reader's.
    """
    require(disk=disk, now_ns=now_ns)
    TREE("path", path)
    check_name(name, "a reader's name")
    now = now_ns()
    return [_lag(path, index, name, now, disk) for index in range(path.count)]


def _lag(path: Path, index: int, name: str, now: int, disk: Disk) -> Lag:
    while True:
        with suppress(FileNotFoundError):  # retention or a merge removed the segment in the meantime
            return _lag_now(path, index, name, now, disk)


def _lag_now(path: Path, index: int, name: str, now: int, disk: Disk) -> Lag:
    if not is_journal(disk, path.dir(index)):
        return Lag(index, 0, 0, 0, 0, 0.0)
    directory = Directory(path.dir(index), disk)
    kept = read_offset(directory.path, name, disk=disk)
    end = Tail(directory).end_offset()
    segments = directory.segments()
    first = segments[0].first_offset if segments else 0
    offset = first if kept is None else kept
    if offset > end:
        raise OffsetBeyondEndError(
            f"reader {name!r} is at offset {offset}, but the journal ends at {end}: it lost messages or was replaced;"
            " move the reader with `sej reset`",
            path=directory.path,
            offset=offset,
        )
    if offset >= end:
        return Lag(index, offset, end, 0, 0, 0.0)
    there = max(offset, first)  # messages that retention removed are not counted
    at = containing(segments, there)
    with SegmentReader(disk, segments[at].path, 0, segments[at].first_offset) as reader:
        block_index = IndexFile(directory, segments[at]).load(reader.file)
        reader.skip(*block_index.before_offset(there))
        while reader.due < there and reader.read(there - reader.due):
            pass
        size = reader.status().size - reader.position
        oldest = reader.read(1)
    for segment in segments[at + 1 :]:
        status = disk.status(segment.path)
        size += 0 if status is None else status.size
    stamp = oldest[0].timestamp if oldest else NO_TIMESTAMP
    seconds = 0.0 if stamp == NO_TIMESTAMP else max(now - stamp, 0) / _NS
    return Lag(index, offset, end, end - there, size, seconds)
