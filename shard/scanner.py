"""The sharded scanner: many shards as one iterator, in turn or in the order of their times.

What it promises: every message of every shard once, in order within its shard. In turn (the default), a shard with a
long backlog does not keep the others waiting: each gives a limited batch and goes to the back of the row. By time, the
oldest message of all shards that have one comes first; a shard that has nothing is not waited for, so a message that
comes late is given late. Memory is bounded by the batches: a few dozen messages a shard, and 64 KiB, at 1,024 shards.
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
from sej.errors import ClosedError, JournalNotFoundError
from sej.journal.gaps import Gap
from sej.journal.segment import CHUNK_BYTES
from sej.message import FIRST, Message, Start
from sej.system.disk import OS, Disk
from shard.names import Path
from shard.sources import Sources

__all__ = ["Item", "Scanner"]

_TURN: Final = 256
_WHOLE: Final = 1 << 14
"""Where shards have to be opened anew at each turn, a turn takes whatever one read of the file brings."""
_HELD: Final = 1 << 15
"""By time, so many messages are held at most, of all shards together (but one of each at the least)."""
_HELD_BYTES: Final = 1 << 26
"""By time, about so many bytes are held at most (but one message of each shard at the least)."""
_LEAST_BYTES: Final = 1 << 14
_LOOK_EVERY: Final = 4096
"""So many messages are given out before idle shards are looked at again."""
_JUDGE_AFTER_S: Final = 1.0

Item = tuple[int, Message]
"""A message and the shard it comes from."""


class Scanner:
    """Reads the shards of a tree as one stream of (index, message).

    It keeps nothing on disk. Use it from one thread; :meth:`close` may be called from any, and from a signal handler.

    Attributes:
        path: the tree.
        timeout: seconds to wait for a message; None follows for ever.

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
        timeout: float | None = 0.0,
        *,
        by: Literal["turn", "time"] = "turn",
        max_open: int = 64,
        on_corruption: Literal["raise", "skip"] = "raise",
        verify: bool = False,
        disk: Disk = OS,
    ) -> None:
        """Open a tree for reading; nothing is created. Shards that are made later join in at their first message.

        Args:
            path: the tree.
            indexes: the shards to read; None: all.
            offset: where to start, for all or by index; those that are not named start at the first message.
            timeout: seconds without a message after which reading ends; 0 reads what is there, None follows for ever.
            by: ``"turn"``, or ``"time"`` for the order of timestamps, then shards, then offsets.
            max_open: so many shards have a file open at a time.
            on_corruption: as for :class:`sej.Scanner`.
            verify: as for :class:`sej.Scanner`.
            disk: the seam.

        Raises:
            JournalNotFoundError: the root is not there.
            OffsetTooSmallError: an offset was deleted.
        """
        if not isinstance(path, Path):
            raise TypeError(f"path must be a shard.Path, not {type(path).__name__}: shard.Path(root, prefix, bits)")
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
            raise JournalNotFoundError("there is nothing here; a shard.Writer makes its root", path=path.root)
        self.path = path
        self.timeout = timeout
        self._starts: dict[int, int | Start] = dict(offset) if isinstance(offset, Mapping) else {}
        default = FIRST if isinstance(offset, Mapping) else offset
        wanted = range(path.count) if indexes is None else sorted(set(indexes))
        for index in (*wanted, *self._starts):
            path.dir(index)  # refuses one that the tree does not have
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
        """The thread that reads now: a signal handler of its may close, and must not wait for it."""
        for index in wanted:
            self._join(index, self._starts.get(index, default))
        self._limit = _TURN if len(wanted) <= max_open else _WHOLE
        if self._by_time:
            self._limit = max(_HELD // len(wanted), 1) if wanted else 1

    # --- reading

    def read(self, max_messages: int = 1024, timeout: float | Start | None = FIRST) -> list[Item]:
        """A batch, as soon as there is one message.

        Args:
            max_messages: at most so many.
            timeout: seconds to wait for the first; not given: the scanner's own.

        Returns:
            The messages with their shards; an empty list after the time-out, or when the scanner was closed meanwhile.

        Raises:
            SejError: as :class:`sej.Scanner`; the path names the shard.
            ClosedError: the scanner was closed before.
        """
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
        """Message after message; ends after the time-out. Iterating again goes on where it ended."""
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
        """The offset of the next message, of each shard that is there."""
        return dict(sorted(self._offsets.items()))

    @property
    def gaps(self) -> dict[int, list[Gap]]:
        """Lost messages that were passed, of each shard that has any."""
        return {index: source.gaps for index, source in sorted(self._sources.there.items()) if source.gaps}

    def close(self) -> None:
        """Stop; a read that waits in another thread, or that a signal handler interrupted to call this, returns."""
        self._closed = True
        self._sources.wake()
        if self._reading != threading.get_ident():
            with self._using:
                self._sources.close()

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """Path and how many shards are there."""
        return f"<shard.Scanner {self.path.name!r} in {self.path.root!r}, {len(self._sources.there)} shards>"

    # --- filling

    @contextmanager
    def _use(self) -> Iterator[None]:
        """Read in this thread; what a signal handler of its closed meanwhile is closed behind it."""
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
        source = self._sources.join(index, offset)
        if source is None:
            self._absent.append(index)
        else:
            self._offsets[index] = source.offset
            self._row.append(index)

    def _fill(self, timeout: float | None) -> bool:
        """Have something in ``_ready``; False after the timeout."""
        start = time.monotonic()
        judged = False
        while not self._closed:
            if self._since_look >= _LOOK_EVERY and (self._sources.watched or timeout != 0):
                self._since_look = 0
                self._look_around()
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
            if not self._sources.watched:
                self._look_around()
                continue
            self._take_in(*self._sources.wait(left))
        return False

    def _look_around(self) -> None:
        """Put what came into idle shards meanwhile, and new shards, back into the row, without waiting."""
        if self._sources.watched:
            self._take_in(*self._sources.wait(0.0))
        else:  # whatever comes from now on wakes the wait; what came before is found by one more look
            self._sources.watch()
            self._take_in(list(self._sources.there), True)

    def _take_in(self, fresh: list[int], look_for_new: bool) -> None:
        """Put shards that changed, and new ones, back into the row."""
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
        """The next batch of the shard whose turn it is; shards at their end leave the row."""
        while self._row:
            index = self._row.popleft()
            batch = self._sources.read(index, self._limit)
            if batch:
                self._row.append(index)
                return [(index, message) for message in batch]
        return []

    def _oldest(self) -> list[Item]:
        """The run of the oldest messages up to where another shard's are older."""
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
            self._row.append(index)  # not read before these are delivered: what is wrong behind them must not lose them
        return run

    def _hold(self, index: int) -> None:
        batch = self._sources.read(index, self._limit)
        if batch:
            heapq.heappush(self._heads, (batch[0].timestamp, index, deque(batch)))

    def _judge(self) -> bool:
        """At the end of everything: is what stands there torn, or corruption? Whether there is more to read."""
        more = [index for index, source in self._sources.there.items() if source.cursor.judge()]
        self._row.extend(index for index in more if index not in self._row)
        return bool(more)

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("the scanner is closed", path=self.path.root)
