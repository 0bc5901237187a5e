"""Look at a queue without taking anything: what is in it, in which state, and which process holds it.

Nothing is locked or written, so this works on a read-only directory and disturbs no process. The state log only grows,
or is replaced as a whole: it is read up to the last good record. What an opening would write is applied to this copy of
the state: a kept offset that was moved, a reboot, and the leases of processes that died. :func:`listed` and
:func:`upcoming` turn the state into rows, and :class:`QueueLook` adds the messages.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from heapq import merge, nsmallest
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from sej.errors import JournalNotFoundError, OffsetTooSmallError
from sej.journal.directory import Directory
from sej.journal.tail import Tail
from sej.journal.view import Journal
from sej.queue.dead_letters import DeadLetterJournal
from sej.queue.interface.queue import require_known
from sej.queue.interface.values import Limit, QueuedItem, Schedule, Serializer, Stats
from sej.queue.log.file import holders_of
from sej.queue.log.format import FREE, RECORD_SIZE, booted, good_bytes, headers_of, message_check, read_head
from sej.queue.log.reader import MessageReader, lost_before, parked_offsets
from sej.queue.log.ready_queue import NEVER, Lease, Waiting, key_hash
from sej.queue.log.state import QueueState, WrongRecordError
from sej.reading.offset import read_offset
from sej.system.clock import SYSTEM, Clock
from sej.system.disk import OS, Disk, Resolved, absolute_path

_MORE: Final = 1 << 20
"""So many messages may be appended and taken while the log is read."""
_READY: Final = "ready"


class Row(NamedTuple):
    """An item in a state.

    Attributes:
        offset: the item.
        state: ``"ready"``, ``"delayed"`` or ``"leased"``.
        attempts: how often it was delivered.
        at_ns: when it may be taken, or when its lease ends, on the boot-time clock; 0: now.
        holder: the number of the open queue that holds it; -1: none.
        priority: its priority.
        intent: (timestamp, check) that its message must have; None: it was compared.
        parked: whether it is an item only if its message has a key with parked items.
    """

    offset: int
    state: str
    attempts: int = 0
    at_ns: int = 0
    holder: int = -1
    priority: int = 0
    intent: tuple[int, int] | None = None
    parked: bool = False


class Summary(NamedTuple):
    """A queue at one moment.

    Attributes:
        stats: how many items there are.
        schedules: in the order of their names.
        limit: the limit for each kind of items, or None.
        at_limit: how many kinds have no item delivered now because of it.
    """

    stats: Stats
    schedules: list[Schedule]
    limit: Limit | None
    at_limit: int


def _held(state: QueueState, now_ns: int, end: int) -> Iterator[Row]:
    """Yield the items that are leased or set aside, in no order."""
    expired = state.ready_queue.expired
    for offset, lease in state.leased.items():
        if lease.deadline_ns <= now_ns or offset in expired:
            yield Row(offset, _READY, lease.attempt, 0, -1, lease.priority)
        else:
            yield Row(offset, "leased", lease.attempt, lease.deadline_ns, lease.holder, lease.priority)
    for offset, there in state.waiting.items():
        if offset < end:
            late = there.ready_at_ns > now_ns
            at_ns = there.ready_at_ns if late else 0
            yield Row(offset, "delayed" if late else _READY, there.attempt, at_ns, -1, there.priority,
                      state.intents.get(offset))  # fmt: skip


def _fresh(state: QueueState, end: int, after: int) -> Iterator[Row]:
    """Yield the items that were never taken or set aside, in order."""
    for offset in range(max(state.low(), after + 1), state.frontier):
        if not state.has(offset):
            yield Row(offset, _READY, parked=True)
    for offset in range(max(state.frontier, after + 1), end):
        if offset not in state.out_of_order:
            yield Row(offset, _READY)


def listed(state: QueueState, now_ns: int, end: int, wanted: str | None, after: int) -> Iterator[Row]:
    """Return the items of a state in their order; wanted: as in :meth:`sej.WorkQueue.items`."""
    waits = wanted == "waiting"
    held = sorted(
        row
        for row in _held(state, now_ns, end)
        if row.offset > after and (wanted in (None, row.state) or (waits and row.state != "leased"))
    )
    fresh: Iterable[Row] = _fresh(state, end, after) if wanted in (None, "waiting", _READY) else ()
    return merge(held, fresh, key=attrgetter("offset"))


def heads(state: QueueState, items: Iterable[QueuedItem], n: int) -> list[QueuedItem]:
    """Return the next n items of a queue with an order of keys: one of each key that is free.

    Args:
        state: the state.
        items: the items that are ready, in the order of their offsets.
        n: how many.
    """
    there: dict[int, Lease | Waiting] = {**state.waiting, **state.leased}
    later = sorted((offset for offset, item in there.items() if item.priority > 0), reverse=True)
    found: list[QueuedItem] = []
    seen: set[int] = set()
    for item in items:
        key = key_hash(item.key)
        held = state.order.held.get(key, ())
        if not key or item.offset in held or not (held or key in seen):
            found.append(item)
        seen.add(key)
        while later and later[-1] <= item.offset:
            later.pop()
        if not later and sum(item.priority >= 0 for item in found) >= n:
            break
    return nsmallest(n, found, key=lambda item: (-item.priority, item.offset))


def counted(state: QueueState, now_ns: int, end: int) -> Stats:
    """Return how many items are in each state, in a journal that ends at end."""
    ready, delayed, leased = state.counts(now_ns, end)
    return Stats(ready + state.fresh(end), delayed, leased, state.done, state.dead, state.lost, paused=state.paused)


class QueueLook:
    """Looks at a queue that this process has not opened."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str,
        *,
        dead_letter: str | os.PathLike[str] | None = None,
        clock: Clock = SYSTEM,
        disk: Disk = OS,
    ) -> None:
        """Set the queue; nothing is opened yet.

        Raises:
            JournalNotFoundError: the journal does not exist.
            QueueNotFoundError: the journal has no such queue.
        """
        self._directory = directory = Directory(path, disk)
        directory.require()
        require_known(name, directory.queue_names(), False, directory.path)
        self._name = name
        self._clock = clock
        self._holders = holders_of(directory, name)
        letters = Resolved(directory.at("dead", name) if dead_letter is None else absolute_path(dead_letter))
        self._letters = DeadLetterJournal(directory, name, letters)

    def summary(self) -> Summary:
        """Return what does not name items."""
        state, now = self._read(), self._clock.boot_ns()
        state.apply(self._letters.lost(state))
        order, limit, at_limit = state.order, None, 0
        if (kinds := order.kinds) is not None:
            limit, full_at = Limit(*kinds[:3]), state.full_at_ns
            known = {*order.held, *full_at} - {0}
            at_limit = sum(kinds.room(1, len(order.held.get(k, ())), full_at.get(k, 0), now) < 1 for k in known)
        return Summary(counted(state, now, self._end()), state.timetable.shown(None), limit, at_limit)

    def stats(self) -> Stats:
        """Return how many items there are."""
        return self.summary().stats

    def schedules(self) -> list[Schedule]:
        """Return the schedules, in the order of their names."""
        return self.summary().schedules

    def peek(self, n: int = 1, *, serializer: Serializer | None = None) -> list[QueuedItem]:
        """Return the next n items, as :meth:`sej.WorkQueue.peek`."""
        there, now, end = self._read(), self._clock.boot_ns(), self._end()
        if not there.order.mode:  # which come next is known without their messages
            ready = [row for row in _held(there, now, end) if row.state == _READY]
            ready += islice(_fresh(there, end, -1), n)
            rows = nsmallest(n, ready, key=lambda row: (-row.priority, row.offset))
            return list(self._items(there, rows, serializer))
        items = self._items(there, listed(there, now, end, _READY, -1), serializer)
        if there.order.kinds is not None:  # which kind is next depends on the workers
            return nsmallest(n, items, key=lambda item: (-item.priority, item.offset))
        return heads(there, items, n)

    def items(
        self,
        state: str | None = None,
        *,
        limit: int | None = None,
        after: int | None = None,
        serializer: Serializer | None = None,
    ) -> list[QueuedItem]:
        """Return items, as :meth:`sej.WorkQueue.items`."""
        there, last = self._read(), -1 if after is None else after
        if state == "dead":
            letters = self._dead(there, last, serializer)
            return nsmallest(sys.maxsize if limit is None else limit, letters, key=lambda item: item.offset)
        rows = listed(there, self._clock.boot_ns(), self._end(), state, last)
        return list(islice(self._items(there, rows, serializer), limit))

    def _items(self, state: QueueState, rows: Iterable[Row], serializer: Serializer | None) -> Iterator[QueuedItem]:
        """Yield the items whose messages exist."""
        order = state.order
        offset_ns = self._clock.wall_ns() - self._clock.boot_ns()
        holders: dict[int, str | None] = {-1: None}
        with contextlib.closing(MessageReader(self._directory, 64)) as reader:
            for row in rows:
                message = reader.find(row.offset)
                if message is None:
                    continue
                if row.parked and not order.may_be_parked(row.offset, state.key_of(message)):
                    continue
                if row.intent is not None and row.intent != (message.timestamp, message_check(message)):
                    row = Row(row.offset, _READY)  # the record is void: another message has this offset, and is fresh
                if row.holder not in holders:
                    holders[row.holder] = self._holders.text(row.holder)
                at = row.at_ns + offset_ns if row.at_ns else None
                yield QueuedItem(row.offset, row.state, row.attempts, at, holders[row.holder], row.priority, "",
                                 message, serializer, headers_of(state.headers, message))  # fmt: skip

    def _dead(self, state: QueueState, after: int, serializer: Serializer | None) -> Iterator[QueuedItem]:
        """Yield the dead letters that were not put back, oldest letter first."""
        with contextlib.suppress(JournalNotFoundError):
            for letter in self._letters.left(state):
                if letter.message.offset > after:
                    yield QueuedItem(letter.message.offset, "dead", letter.attempts, None, None, letter.priority,
                                     letter.reason, letter.message, serializer, letter.headers,
                                     letter.traceback)  # fmt: skip

    # --- the state

    def _end(self) -> int:
        """Return the end of the journal."""
        return Tail(self._directory).end_offset()

    def _read(self) -> QueueState:
        """Read the state log, and apply what an opening would find."""
        directory, disk = self._directory, self._directory.disk
        state = QueueState(self._first())
        file = disk.open(directory.at("ofs", f"{self._name}.queue"), "read")
        with file.closing():
            if read_head(file.read(RECORD_SIZE, 0), self._name) is not None:
                state = QueueState()
                state.most = self._end() + _MORE
                data = file.read(file.size(), RECORD_SIZE)
                with contextlib.suppress(WrongRecordError):  # what was read before it counts, as before a bad record
                    state.apply(data[: good_bytes(data)[0]])
                state.most = NEVER
                if not state.whole:
                    state = state.begun_again(self._first(), state.order)
        state = self._moved(state)
        now, holders = self._clock.boot_ns(), holders_of(directory, self._name)
        if state.boot is not None and state.boot[0] != self._clock.boot_id():  # the machine was restarted
            state.apply(booted(self._clock.boot_id(), max(self._clock.wall_ns() - now, 0), now))
        dead = holders.dead(state.holders())
        state.apply(b"".join(FREE(holder) for holder in sorted(dead)))
        self._lose(state)
        return state

    def _lose(self, state: QueueState) -> None:
        """Drop what retention removed before it was delivered."""
        try:
            with contextlib.closing(MessageReader(self._directory, 1)) as reader:
                reader.at(state.low())
        except OffsetTooSmallError as error:
            state.apply(lost_before(self._directory, state, error.first_available, state.waiting))

    def _moved(self, state: QueueState) -> QueueState:
        """Return the state after a reset of the kept offset, which the log does not know."""
        there = read_offset(self._directory.path, self._name, disk=self._directory.disk)
        if state.kept is not None and (there is None or there < state.kept):
            return state.begun_again(self._first(), state.order)
        if there is None or there <= state.head():
            return state
        state.begin_at(there)
        if state.order.mode:
            state.order.count = sum(1 for _ in parked_offsets(self._directory, state))
        return state

    def _first(self) -> int:
        there = read_offset(self._directory.path, self._name, disk=self._directory.disk)
        return Journal(self._directory.path, disk=self._directory.disk).first_offset if there is None else there
