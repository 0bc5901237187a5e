"""The sharded scanner: many shards as one iterator, in turn or ordered by time.

It returns every message of every shard once, in order within its shard. In turn (the default), a shard with a long
backlog does not delay the others: each returns a limited batch and moves to the end of the queue. By time, the oldest
message of all shards with messages comes first; it does not wait for a shard without messages, so a late message is
returned late. Memory is bounded by the batches: a few dozen messages for each shard, and 64 KiB, with 1,024 shards.

Waiting uses the process's one inotify instance, with a watch on each shard's ``jnl/`` and one on the root, so that new
shards are added.
"""

from __future__ import annotations

import heapq
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal, Self

from sej.checks import START, Seconds, one_of, refuse_pickling, require, seconds
from sej.codec.format import NO_TIMESTAMP
from sej.errors import ClosedError, JournalNotFoundError, OffsetBeyondEndError
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory, Gap, check_name, containing, is_journal
from sej.journal.index import IndexFile
from sej.journal.segment import CHUNK_BYTES, SegmentReader
from sej.journal.tail import Tail
from sej.journal.view import Journal
from sej.message import FIRST, Message, Start
from sej.reading.offset import read_offset
from sej.system.disk import OS, Disk
from sej.system.watch import Watch, wait_any
from shard.names import TREE, Arrivals, Path


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


_TURN: Final = 256
_WHOLE: Final = 1 << 14
"""If shards must be reopened at each turn, a turn takes everything from one read of the file."""
_HELD: Final = 1 << 15
"""By time, at most this many messages are held for all shards together (but at least one of each)."""
_HELD_BYTES: Final = 1 << 26
"""By time, about this many bytes are held at most (but at least one message of each shard)."""
_LEAST_BYTES: Final = 1 << 14
_LOOK_EVERY: Final = 4096
"""Messages returned between two checks of idle shards."""
_JUDGE_AFTER_S: Final = 1.0

Item = tuple[int, Message]
"""A message and its shard."""


class Scanner:
    """Reads a sharded journal as one stream of (index, message).

    It stores nothing on disk. Use it from one thread; :meth:`close` may be called from any, and from a signal handler.

    Attributes:
        path: the sharded journal.
        timeout: seconds to wait for a message; None follows without a limit.

    Example:
        >>> import tempfile, shard
        >>> p = shard.Path(tempfile.mkdtemp(), "orders", 1)
        >>> with shard.Writer(p) as w:
        ...     _ = w.append_many([b"a", b"b", b"c"], [b"", b"y", b"z"], timestamp=[1, 2, 3])
        >>> with Scanner(p, by="time") as s:
        ...     [(index, message.value) for index, message in s]
        [(0, b'a'), (1, b'b'), (1, b'c')]
    """

    __reduce__ = refuse_pickling

    def __init__(
        self,
        path: Path,
        indexes: Iterable[int] | None = None,
        offset: int | Start | Mapping[int, int | Start] = FIRST,
        timeout: Seconds | None = 0.0,
        *,
        by: Literal["turn", "time"] = "turn",
        max_open: int = 64,
        on_corruption: Literal["raise", "skip"] = "raise",
        verify: bool = False,
        disk: Disk = OS,
    ) -> None:
        """Open a sharded journal for reading; nothing is created.

        Shards that are created later are added with their first message.

        Args:
            path: the sharded journal.
            indexes: the shards to read; None: all.
            offset: where to start, for all or by index; other shards start at the first message.
            timeout: seconds without a message after which reading ends; 0 reads the existing messages, None follows
                without a limit.
            by: ``"turn"``, or ``"time"`` for the order of timestamps, then shards, then offsets.
            max_open: the most shards with an open file at one time.
            on_corruption: as for :class:`sej.Scanner`.
            verify: as for :class:`sej.Scanner`.
            disk: the disk.

        Raises:
            JournalNotFoundError: the root does not exist.
            OffsetTooSmallError: an offset was deleted.
        """
        timeout = seconds("timeout", timeout)
        TREE("path", path)
        path = path.absolute()
        require(indexes=indexes, timeout=timeout, max_open=max_open, on_corruption=on_corruption, verify=verify)
        require(disk=disk)
        require(by=(by, one_of(("turn", "time"))))
        for each in offset.values() if isinstance(offset, Mapping) else (offset,):
            START("offset", each)
        if disk.status(path.root) is None:
            raise JournalNotFoundError("the path does not exist; shard.Writer creates the root", path=path.root)
        self.path = path
        self.timeout = timeout
        self._starts: dict[int, int | Start] = dict(offset) if isinstance(offset, Mapping) else {}
        default = FIRST if isinstance(offset, Mapping) else offset
        wanted = range(path.count) if indexes is None else sorted(set(indexes))
        for index in (*wanted, *self._starts):
            path.dir(index)  # raises for an index that is out of range
        self._by_time = by == "time"
        chunk_bytes = CHUNK_BYTES
        if self._by_time:
            chunk_bytes = min(max(_HELD_BYTES // max(len(wanted), 1), _LEAST_BYTES), CHUNK_BYTES)
        self._sources = Sources(
            path, max_open=max_open, on_corruption=on_corruption, verify=verify, chunk_bytes=chunk_bytes, disk=disk
        )
        self._offsets: dict[int, int] = {}
        self._absent: list[int] = []
        self._row: deque[int] = deque()
        self._heads: list[tuple[int, int, deque[Message]]] = []
        self._ready: Iterator[Item] = iter(())
        self._since_look = 0
        self._closed = False
        self._using = threading.Lock()
        self._reading = 0
        """The thread that reads now: its signal handlers may close the scanner, and must not wait for it."""
        for index in wanted:
            self._join(index, self._starts.get(index, default))
        self._limit = _TURN if len(wanted) <= max_open else _WHOLE
        if self._by_time:
            self._limit = max(_HELD // len(wanted), 1) if wanted else 1

    # --- reading

    def read(self, max_messages: int = 1024, timeout: Seconds | Start | None = FIRST) -> list[Item]:
        """Read a batch; returns as soon as there is one message.

        Args:
            max_messages: the most messages to return.
            timeout: seconds to wait for the first; default: the scanner's own.

        Returns:
            The messages with their shards; an empty list after the timeout, or if the scanner was closed in the
            meantime.

        Raises:
            SejError: as :class:`sej.Scanner`; the path names the shard.
            ClosedError: the scanner was closed before.
        """
        timeout = seconds("timeout", timeout)
        if max_messages < 1:
            raise ValueError(f"max_messages must be at least 1, got {max_messages}")
        self._require_open()
        with self._use():
            batch = list(islice(self._ready, max_messages))
            if not batch and self._fill(self.timeout if isinstance(timeout, Start) else timeout):
                batch = list(islice(self._ready, max_messages))
        for index, message in batch:
            self._offsets[index] = message.offset + 1
        return batch

    def __iter__(self) -> Iterator[Item]:
        """Yield messages until the timeout passes. A second iteration continues where the first ended."""
        self._require_open()
        while True:
            for index, message in self._ready:
                self._offsets[index] = message.offset + 1
                yield index, message
            with self._use():
                if not self._fill(self.timeout):
                    return

    @property
    def offsets(self) -> dict[int, int]:
        """Return the offset of the next message of each existing shard."""
        return dict(sorted(self._offsets.items()))

    @property
    def gaps(self) -> dict[int, list[Gap]]:
        """Return lost messages that were passed, of each shard that has any."""
        return {index: cursor.gaps for index, cursor in sorted(self._sources.there.items()) if cursor.gaps}

    def close(self) -> None:
        """Close the scanner; a read that waits in another thread, or that a signal handler interrupted, returns."""
        self._closed = True
        self._sources.wake()
        if self._reading != threading.get_ident():
            with self._using:
                self._sources.close()

    @property
    def closed(self) -> bool:
        """True if :meth:`close` was called."""
        return self._closed

    def __enter__(self) -> Self:
        """Return the scanner."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the scanner."""
        self.close()

    def __repr__(self) -> str:
        """Show the path and the number of existing shards."""
        return f"<shard.Scanner {self.path.name!r} in {self.path.root!r}, {len(self._sources.there)} shards>"

    # --- filling

    @contextmanager
    def _use(self) -> Iterator[None]:
        """Read in this thread; if a signal handler closes the scanner during the block, it is closed after it."""
        self._reading = threading.get_ident()
        try:
            with self._using:
                try:
                    yield
                finally:
                    if self._closed:
                        self._sources.close()
        finally:
            self._reading = 0

    def _join(self, index: int, offset: int | Start) -> None:
        cursor = self._sources.join(index, offset)
        if cursor is None:
            self._absent.append(index)
        else:
            self._offsets[index] = cursor.due
            self._row.append(index)

    def _fill(self, timeout: float | None) -> bool:
        """Make sure that ``_ready`` has messages; return False after the timeout."""
        start = time.monotonic()
        judged = False
        while not self._closed:
            if self._since_look >= _LOOK_EVERY and (self._sources.watched or timeout != 0):
                self._since_look = 0
                self._take_in(*self._sources.wait(0.0))
            batch = self._oldest() if self._by_time else self._turn()
            if batch:
                self._since_look += len(batch)
                self._ready = iter(batch)
                return True
            waited = time.monotonic() - start
            left = None if timeout is None else timeout - waited
            if (left is not None and left <= 0) or (waited >= _JUDGE_AFTER_S and not judged):
                judged = True
                if self._judge():
                    continue
                if left is not None and left <= 0:
                    return False
            self._take_in(*self._sources.wait(left))
        return False

    def _take_in(self, fresh: list[int], look_for_new: bool) -> None:
        """Queue shards that changed, and new ones."""
        waiting = set(self._row)
        held = {head[1] for head in self._heads}
        self._row.extend(index for index in fresh if index not in waiting and index not in held)
        if look_for_new and self._absent:
            absent = set(self._sources.missing(self._absent))
            new = [index for index in self._absent if index not in absent]
            self._absent = sorted(absent)
            for index in new:
                self._join(index, self._starts.get(index, FIRST))

    def _turn(self) -> list[Item]:
        """Return the next batch of the first shard in the queue; shards at their end leave it."""
        while self._row:
            index = self._row.popleft()
            batch = self._sources.read(index, self._limit)
            if batch:
                self._row.append(index)
                return [(index, message) for message in batch]
        return []

    def _oldest(self) -> list[Item]:
        """Return the oldest messages up to the point where another shard has older ones."""
        while self._row:
            index = self._row.popleft()
            batch = self._sources.read(index, self._limit)
            if batch:
                heapq.heappush(self._heads, (batch[0].timestamp, index, deque(batch)))
        if not self._heads:
            return []
        _, index, messages = heapq.heappop(self._heads)
        run: list[Item] = []
        if self._heads:
            bound = self._heads[0][:2]
            while messages and (messages[0].timestamp, index) < bound:
                run.append((index, messages.popleft()))
        else:
            run = [(index, message) for message in messages]
            messages.clear()
        if messages:
            heapq.heappush(self._heads, (messages[0].timestamp, index, messages))
        else:
            self._row.append(index)  # not read before these are returned: an error after them must not lose them
        return run

    def _judge(self) -> bool:
        """At the end of everything, decide between torn tail and corruption; return whether there is more to read."""
        more = [index for index, cursor in self._sources.there.items() if cursor.judge()]
        self._row.extend(index for index in more if index not in self._row)
        return bool(more)

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("the scanner is closed; open another one", path=self.path.root)
