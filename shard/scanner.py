"""The sharded scanner: many shards as one iterator, in turn or ordered by time.

It returns every message of every shard once, in order within its shard. In turn (the default), a shard with a long
backlog does not delay the others: each returns a limited batch and moves to the end of the queue. By time, the oldest
message of all shards with messages comes first; it does not wait for a shard without messages, so a late message is
returned late. Memory is bounded by the batches: a few dozen messages for each shard, and 64 KiB, with 1,024 shards.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Final, Literal, Self

from sej.checks import DISK, FLAG, ITERABLE, POSITIVE, START, WAIT, one_of, optional, refuse_pickling, require
from sej.durations import Seconds, seconds
from sej.errors import ClosedError, JournalNotFoundError
from sej.journal.gaps import Gap
from sej.journal.segment import CHUNK_BYTES
from sej.message import FIRST, Message, Start
from sej.system.disk import OS, Disk
from shard.names import TREE, Path
from shard.sources import Sources

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
        require(
            indexes=(indexes, optional(ITERABLE)),
            timeout=(timeout, WAIT),
            by=(by, one_of(("turn", "time"))),
            max_open=(max_open, POSITIVE),
            on_corruption=(on_corruption, one_of(("raise", "skip"))),
            verify=(verify, FLAG),
            disk=(disk, DISK),
        )
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
            self._hold(index)
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

    def _hold(self, index: int) -> None:
        batch = self._sources.read(index, self._limit)
        if batch:
            heapq.heappush(self._heads, (batch[0].timestamp, index, deque(batch)))

    def _judge(self) -> bool:
        """At the end of everything, decide between torn tail and corruption; return whether there is more to read."""
        more = [index for index, cursor in self._sources.there.items() if cursor.judge()]
        self._row.extend(index for index in more if index not in self._row)
        return bool(more)

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("the scanner is closed; open another one", path=self.path.root)
