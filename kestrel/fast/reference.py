"""What is done for each item and each record, in pure Python: the reference for the compiled module.

The compiled module has the same classes, and calls for one item (``put``, ``get``, ``reserve``, ``confirm``,
``commit``). These have a short way if nothing is left to do but one write and its effect in memory. Otherwise they call
the method of the queue or reader, which alone knows the rules; :func:`kestrel.fast.shorten` puts them before it.

The lifecycle of an open queue is a :class:`Fuse`::

    opening ──► live ◄──► inside an operation ──► failed        a write, a sync or the lock failed
                 │                 └────────────► interrupted   a signal's handler raised inside the operation
                 ├──► closed
                 └──► forked                                    only in the child

While an operation is under way, the files and the memory may differ, so ``live`` is False. The operation sets it again
as its last step. If an exception ends the operation before that, ``live`` stays False and every later call is refused.
A failed fsync is never tried again: Linux reports the failure once and marks the pages clean.

An append has four steps::

    1. require ``live``, look after the lock every 100 ms
    2. ``live = False``
    3. one write(2) of whole operations or records, and a sync if the policy wants one
    4. the caller changes its memory, and sets ``live = True``
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from threading import Condition, RLock
from typing import TYPE_CHECKING, Any, Final, NoReturn

from kestrel.errors import FailedError, ShutError
from sej.checks import Seconds, seconds
from sej.errors import ClosedError, LockLostError
from sej.fork import notice_fork, watch_forks

if TYPE_CHECKING:
    from kestrel.files import Limits
    from kestrel.segmented.format import Item as SegmentedItem
    from kestrel.v2.format import Operation
    from kestrel.v2.items import Row
    from sej.system.disk import File

_CHECK_NS: Final = 100_000_000
FAILURES: Final = (OSError, LockLostError, ClosedError)
"""What ends a write or a sync for good."""
tick_ns = time.monotonic_ns


class Fuse:
    """Refuses calls after the first failure, after an interrupted operation, after ``close`` and in a forked child.

    Attributes:
        path: the queue.
        shut: whether the queue was closed, or is being closed.
        failure: the first failure, or that this is a forked child; else None.
    """

    def __init__(self, path: str) -> None:
        """Make one for a queue that is being opened."""
        self.path = path
        self._live = False
        self.shut = False
        self.failure: FailedError | ShutError | None = None
        watch_forks(self)

    @property
    def live(self) -> bool:
        """Whether the next operation may begin."""
        notice_fork()  # the compiled one is asked with the queue's mutex held, which notices it
        return self._live

    @live.setter
    def live(self, live: bool) -> None:
        self._live = live

    def require_open(self) -> None:
        """Make sure that the queue was not closed.

        Raises:
            ShutError: it was.
        """
        notice_fork()
        if self.shut:
            raise ShutError("the queue is closed; open it again", path=self.path)

    def refuse(self) -> NoReturn:
        """Raise the error that says why no operation may begin.

        Raises:
            FailedError: something failed or was interrupted before.
            ShutError: the queue was closed, or was opened by the parent process.
        """
        if self.failure is not None:
            raise type(self.failure)(self.failure.reason, path=self.path) from self.failure
        self.require_open()
        raise FailedError(
            "an operation was interrupted, so the files and the memory may differ; close the queue and open it again,"
            " which reads the files",
            path=self.path,
        )

    def fail(self, cause: Exception) -> NoReturn:
        """Remember a failure. Raises as :meth:`refuse`."""
        self.live = False
        if isinstance(cause, ClosedError):
            raise ShutError("this process does not hold the queue's lock; open the queue again", path=self.path) from (
                cause
            )
        self.failure = FailedError(
            f"writing failed ({cause}); it is unknown which bytes reached the disk; close the queue and open it again,"
            " which reads the files",
            path=self.path,
        )
        raise self.failure from cause

    def _after_fork(self) -> None:
        """In a forked child: the lock, and the state in memory, belong to the parent."""
        self.live = False
        self.failure = ShutError(
            "the queue was opened by the parent process; a forked child can open it after the parent has closed it",
            path=self.path,
        )


class Signal:
    """The mutex of a queue, and the calls that wait for an item.

    Attributes:
        guard: the mutex.
        changed: its condition.
        waiters: how many calls wait.
        limit_s: after how many seconds a call that waits looks again, whatever happens; None: without a limit.
    """

    def __init__(self) -> None:
        self.guard = RLock()
        self.changed = Condition(self.guard)
        self.waiters = 0
        self.evictions = 0
        self.limit_s: float | None = None

    def turns(self, timeout: Seconds | None) -> Iterator[None]:
        """Yield now, and after each change until the time is up or waiting ends; under the mutex."""
        timeout = seconds("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout if timeout else 0.0
        evictions = self.evictions
        while True:
            yield
            left = None if deadline is None else deadline - time.monotonic()
            if (left is not None and left <= 0) or evictions != self.evictions:
                return
            if self.limit_s is not None:
                left = self.limit_s if left is None else min(left, self.limit_s)
            self.waiters += 1
            try:
                self.changed.wait(left)
            finally:
                self.waiters -= 1

    def notify(self, count: int = 1) -> None:
        """Wake calls that wait for an item."""
        if self.waiters:
            self.changed.notify(count)

    def evict(self) -> None:
        """End all waiting."""
        with self.guard:
            self.evictions += 1
            self.changed.notify_all()


class Entry:
    """A file in the queue's list.

    Attributes:
        path: the file.
        stamp: the number in its name; None for the current file of Kestrel 2.
        size: how many of its bytes count.
        first_id: of its first item; 0: it has none, or the format has no ids.
        last_id: of its last item.
    """

    def __init__(self, path: str, stamp: int | None, size: int = 0, first_id: int = 0, last_id: int = 0) -> None:
        self.path = path
        self.stamp = stamp
        self.size = size
        self.first_id = first_id
        self.last_id = last_id


class Output:
    """Writes at the end of one open file. After a failure, every later call raises it.

    Attributes:
        fuse: the queue's.
        file: the file; None: it has none.
        grown: the bytes that were written to it.
        unsynced: whether any of them may not be on disk.
        enough: after how many bytes a log is emptied.
    """

    def __init__(self, fuse: Fuse) -> None:
        self.fuse = fuse
        self.enough = 0
        self.aim(None)

    def aim(self, file: File | None) -> None:
        """Write to this file from now on; None: to none."""
        self.file = file
        self._write = None if file is None else file.writer()
        self.grown = 0
        self.unsynced = False

    def out(self, data: bytes) -> None:
        """Write all of it. Raises as :meth:`Appender.append`."""
        if self.file is None or self._write is None:
            self.fuse.refuse()
        try:
            done = self._write(data)
            if done != len(data):
                self.file.write(data[done:])
        except FAILURES as error:
            self.fuse.fail(error)
        self.grown += len(data)
        self.unsynced = True

    def sync(self) -> None:
        """Sync what was written; an ``OSError`` is the caller's."""
        if self.file is not None and self.unsynced:
            self.file.sync()
            self.unsynced = False

    def close(self) -> None:
        """Close the file."""
        file = self.file
        self.aim(None)
        if file is not None:
            file.close()


class Appender:
    """Appends to the newest file of a queue; :class:`~kestrel.tail.Tail` says what the lock and the policy are.

    Attributes:
        check_lock: makes sure that no other process may hold the queue.
        by_policy: syncs now or later after an append, if the policy syncs.
        signal: the mutex of the queue.
        fuse: the lifecycle. :meth:`append` leaves it not live; the caller sets ``fuse.live = True`` when the memory is
            as the file is.
        output: writes to the file.
        entry: the file's entry in the queue's list, whose size is kept current.
        active: whether the policy syncs.
    """

    check_lock: Callable[[], None]
    by_policy: Callable[[], None]

    def __init__(self, fuse: Fuse, *, active: bool) -> None:
        """Make one that has no file yet."""
        self.fuse, self.signal = fuse, Signal()
        self.output = Output(fuse)
        self.entry = Entry("", None)
        self.active = active
        self._checked_ns = 0

    def append(self, data: bytes, *, midway: bool = False) -> None:
        """Write at the end of the file, and sync by the policy.

        Args:
            data: whole operations or records.
            midway: this continues the operation that the last append began.

        Raises:
            FailedError: a write, a sync or the lock failed, now or before, or an operation was interrupted.
            ShutError: the queue was closed, or belongs to the parent process.
        """
        if not self.fuse.live and not midway:
            self.fuse.refuse()
        self.fuse.live = False
        self._look()
        self.output.out(data)
        self.entry.size += len(data)
        if self.active:
            self.by_policy()

    def check(self) -> None:
        """Make sure that an operation may begin. Raises as :meth:`append`."""
        if not self.fuse.live:
            self.fuse.refuse()
        self._look()

    def _look(self) -> None:
        """Look after the lock, once in a while."""
        tick = tick_ns()
        if not 0 <= tick - self._checked_ns < _CHECK_NS:
            try:
                self.check_lock()
            except FAILURES as error:
                self.fuse.fail(error)
            self._checked_ns = tick


class Table:
    """The records of a format whose first byte tells their layout. Each one is decoded to a tuple with names."""

    def __init__(
        self, kind: Any, byte: str, most: int, layouts: Iterable[tuple[int, tuple[str, ...], Any, int]]
    ) -> None:
        """Make it.

        Args:
            kind: a NamedTuple. Its fields are those of the layouts, ``position`` and ``data``; others become None.
            byte: the name of the first byte.
            most: how much data a record may have.
            layouts: the first byte; the names of the fields after it; how it and they are stored; and how much of its
                ``size``, if it has one, is not data.
        """
        self._kind = kind
        self._most = most
        self._layouts = {}
        for number, names, head, covered in layouts:
            there = ("position", "", byte, *names, "data")
            pick = itemgetter(*(there.index(name) if name in there else 1 for name in kind._fields))
            self._layouts[number] = head, pick, 1 + names.index("size") if "size" in names else 0, covered

    def decode(self, data: bytes, base: int = 0, at: int = 0) -> tuple[list[Any], int]:
        """All whole records from ``at`` on, and where in data the next one begins: incomplete, unknown or damaged.

        Args:
            data: bytes of a file.
            base: where in the file they begin.
            at: where in them the first record begins.
        """
        found: list[Any] = []
        append, kind, end = found.append, self._kind, len(data)
        while at < end and (layout := self._layouts.get(data[at])) is not None:
            head, pick, size_at, covered = layout
            start = stop = at + head.size
            if start > end:
                break
            values = head.unpack_from(data, at)
            content = None
            if size_at:
                size = values[size_at] - covered
                stop += size
                if not 0 <= size <= self._most or stop > end:
                    break
                content = data[start:stop]
            append(tuple.__new__(kind, pick((base + at, None, *values, content))))
            at = stop
        return found, at


# --- Kestrel 2


class Rows:
    """What a Kestrel 2 queue holds in memory. The limits are for the short ways of the compiled module.

    Attributes:
        memory: the waiting entries that are in memory, head first.
        memory_bytes: the data of those.
        behind: how many waiting entries are in the journal only.
        behind_bytes: the data of these.
        enough: if entries are behind and no more than this are in memory, the next take reads more.
        expiring: whether any entry had an expiry of its own.
        open: the reserved rows by xid.
        last_xid: the transaction id that was used last.
        added: how many items were added so far, so the number of the next one.
        transactions: how many items were reserved.
        taken_add_time: the add time of the item that was removed or reserved last, ms since the epoch; 0: none was.
        plain_below: while the current file is smaller than this, the short ways may be used if an item waits.
        empty_below: as ``plain_below``, if no item waits.
        behind_below: as ``plain_below``, while some items are in the journal only.
    """

    def __init__(self) -> None:
        self.memory: deque[Row] = deque()
        self.memory_bytes = self.behind = self.behind_bytes = self.enough = 0
        self.expiring = False
        self.open: dict[int, Row] = {}
        self.last_xid = self.added = self.transactions = self.taken_add_time = 0
        self.plain_below = self.empty_below = self.behind_below = 0

    def replay(self, operations: list[Operation], at: int, limit_bytes: int) -> int:
        """The short way of a replay: apply adds and removes from ``at`` on; returns where that ends."""
        return at


# --- libkestrel


class WriterEnd:
    """The end of the writer files.

    Attributes:
        appender: appends to the last file.
        tail_id: the last id that was given.
        journal_bytes: how large a file may become: the option, or less if a killed original left a smaller file.
        due_ns: from when on a commit writes a checkpoint, by ``tick_ns``.
        readers: the readers by name, each a :class:`Following`.
    """

    def __init__(self, appender: Appender, journal_bytes: int) -> None:
        self.appender = appender
        self.tail_id = 0
        self.journal_bytes = journal_bytes
        self.due_ns = 0
        self.readers: dict[str, Any] = {}


class Following:
    """What a reader has taken, and its position.

    Attributes:
        head: every id up to it is committed.
        seen: the highest id that was taken or passed.
        after: every id up to it was passed without being taken.
        done: the committed ids above head, and maybe some that are not above it any more.
        skip: the ids that were done at the opening and that the reader has not passed yet.
        outstanding: the taken items by id; given back ones too.
        lowest: a heap of the taken ids; some may be committed already.
        returned: the ids that were given back, first the next one.
        batch: items that were read.
        at: how many of them were passed.
        ahead: the next item, if it was looked at and not taken.
        reading: whether a call looks for the next item; after an interrupt it stays True.
        items: how many items are not committed, taken ones included.
        bytes: the data of these.
        gets: the calls of get.
        hits: those that found an item.
        committed: how many items were committed.
    """

    def __init__(self, end: WriterEnd, log: Output, head: int, done: frozenset[int], *, ageless: bool) -> None:
        """Begin.

        Args:
            end: of the writer files.
            log: where commits are written.
            head: every id up to it is committed.
            done: the committed ids above it.
            ageless: whether items expire by their own expiry alone.
        """
        self._end, self._signal, self._log, self._ageless = end, end.appender.signal, log, ageless
        self.head = self.seen = self.after = head
        self.done = set(done)
        self.skip = set(done)
        self.outstanding: dict[int, SegmentedItem] = {}
        self.lowest: list[int] = []
        self.returned: OrderedDict[int, None] = OrderedDict()
        self.batch: list[SegmentedItem] = []
        self.at = 0
        self.ahead: SegmentedItem | None = None
        self.reading = False
        self.items = self.bytes = 0
        self.gets = self.hits = self.committed = 0


class Putting:
    """What the compiled calls of a queue for each item need."""

    def __init__(
        self, held: Rows | WriterEnd, appender: Appender, limits: Limits, *, plain: bool, now_ms: Callable[[], int]
    ) -> None:
        """Put it together.

        Args:
            held: what the queue of Kestrel 2 holds; the end of the writer files of libkestrel.
            appender: appends to the newest file.
            limits: of the queue.
            plain: whether the short ways may be used: no rule of the queue needs a look before a call.
            now_ms: the clock, in ms since the epoch.
        """
        self._limits, self._now_ms = limits, now_ms


class Calls(Putting):
    """For a queue of Kestrel 2."""


class Puts(Putting):
    """For a queue of libkestrel."""
