"""The work queue on a journal: any number of processes and threads put, take and end items.

The messages stay in the journal. The shared writer puts (:mod:`sej.queue.put`). The state log records the holders
of items (:mod:`sej.queue.log.file`); every operation first reads its new records, under the queue's lock. A lease is
fenced: an item can be ended only if it is still leased to this queue, for the same attempt, in the epoch of that
delivery. Otherwise another worker may have it, and ``done`` raises :class:`~sej.LeaseLostError`. That is checked under
the queue's lock, but raised without it: an exception under the lock makes the queue read its log again.

Ready items of one priority are delivered in order. An item that was put is never lost, and an item that was done is not
delivered again. No two workers hold the same item. Items leased by a process that died are ready as soon as another
process checks its lock; those of a stuck process at the deadline, on a clock that cannot be set.

The queue checks arguments and makes the calls; the parts are in the modules of :mod:`sej.queue`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Unpack

from sej.checks import (
    COUNT,
    ITERABLE,
    OFFSET,
    POSITIVE,
    POSITIVE_SECONDS,
    SECONDS,
    Seconds,
    between,
    instance_of,
    one_of,
    optional,
    options_of,
    reason_of,
    refuse_unknown,
    require,
    seconds,
)
from sej.errors import ItemFailedError, LeaseLostError, ResultGoneError
from sej.journal.directory import Directory
from sej.message import FIRST, Message, Start
from sej.queue.core import ON_DEAD, ORDERS, Delivery, Opening, QueueCore
from sej.queue.interface.queue import CAPABILITIES, OPENING, Item, Outcome, WorkQueue, require_listing
from sej.queue.interface.values import Backoff, Limit, Plan, PutOptions, QueuedItem, Schedule, Stats
from sej.queue.listing import QueueLook, counted
from sej.queue.log import format as records
from sej.queue.log.format import NO_RESULT, RESULT_KEPT, headers_of, stamp_of
from sej.queue.put import Putter, Scheduler
from sej.queue.take import PROBE_NS, Taker, kinds_of, require_limit, require_rate
from sej.system.clock import SYSTEM, Clock, span_ns
from sej.system.disk import OS, Disk
from sej.system.watch import Watch
from sej.writing.shared_writer import SharedOptions, check_shared_options

_NS: Final = 1_000_000_000
_LOOK_NS: Final = 100_000_000
"""Between two checks that the files of the locks are in their places."""
_SEGMENT_BYTES: Final = 1 << 26


class JournalItem(Item):
    """An item of a :class:`~sej.queue.journal_queue.JournalQueue`."""

    __slots__ = ("_core", "_headers", "epoch")
    message: Message

    def __init__(
        self,
        queue: WorkQueue,
        core: QueueCore,
        message: Message,
        attempts: int,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Create an item that is leased to ``queue``."""
        self._queue, self._core, self._headers = queue, core, headers
        self.message, self.attempts, self.ended = message, attempts, False
        self.epoch = core.log.epoch

    @property
    def key(self) -> bytes:
        """The message's key."""
        return self.message.key

    @property
    def headers(self) -> dict[str, str]:
        """The headers that were put, a new dict at each access; empty if none were put."""
        return dict(self._headers or {})

    def done(self, result: Any = None) -> None:
        """Mark the item done: it is not delivered again; see :meth:`sej.Item.done`."""
        data = None if result is None else self._queue.result_data(result)
        if not self._core.end(self._done, data):
            raise self.lost()

    def retry(self, delay_s: Seconds | None = None, reason: str | BaseException = "") -> None:
        """Return the item to the queue, or to the dead letters after max_attempts."""
        delay_s = seconds("delay_s", delay_s)
        if delay_s is not None:
            SECONDS("delay_s", delay_s)
        self._if_held(self._retry, delay_s, reason_of(reason))

    def give_back(self) -> None:
        """Return the item to the queue immediately, with its previous number of attempts."""
        self._if_held(self._wait, self.attempts - 1)

    def fail(self, reason: str | BaseException = "") -> None:
        """Write the item to the dead letters."""
        self._if_held(self._fail, reason_of(reason))

    def extend(self, lease_s: Seconds) -> None:
        """Extend the lease to ``lease_s`` seconds from now."""
        lease_s = seconds("lease_s", lease_s)
        POSITIVE_SECONDS("lease_s", lease_s)
        self._if_held(self._extend, lease_s)

    def lost(self) -> LeaseLostError:
        """Return the error to raise if another worker may have the item."""
        why = (
            "it was ended here already"
            if self.ended
            else "its lease ran out and another worker has it, or the queue was rebuilt; extend() longer work in time"
        )
        return LeaseLostError(
            f"attempt {self.attempts} of this item is no longer held: {why}",
            path=self._queue.path,
            offset=self.message.offset,
        )

    def __repr__(self) -> str:
        """Show offset and attempts."""
        return f"<sej.Item offset={self.message.offset} attempts={self.attempts}>"

    # --- under the lock

    def _if_held(self, act: Callable[..., None], *arguments: object) -> None:
        def ended() -> bool:
            held = self.is_held()
            if held:
                act(*arguments)
            return held

        if not self._core.end(ended):
            raise self.lost()

    def is_held(self) -> bool:
        """Return whether no other worker may have the item."""
        log = self._core.log
        there = log.state.leased.get(self.message.offset)
        return (
            there is not None
            and there.attempt == self.attempts
            and there.holder == self._core.holders.mine
            and self.epoch == log.epoch
            and not self.ended
        )

    def _done(self, result: bytes | None) -> bool:
        if not self.is_held():
            return False
        log, message = self._core.log, self.message
        offset, stamp = message.offset, message.timestamp & 0xFFFFFFFF
        if log.state.keeps:  # before the record that ends the item: a crash between them delivers it again
            log.append(log.result(message, NO_RESULT if result is None else RESULT_KEPT, result or b""))
        log.write(records.one_done(offset, stamp))
        log.state.end(offset, offset + 1, stamp)
        self.ended = True
        return True

    def _retry(self, delay_s: float | None, reason: str) -> None:
        core, offset, attempts = self._core, self.message.offset, self.attempts
        if attempts >= core.log.state.max_attempts:
            self._fail(reason or core.log.state.with_reason(offset, f"returned at attempt {attempts}"))
            return
        wait_s = core.delivery.backoff.after(attempts) if delay_s is None else delay_s
        at = core.clock.boot_ns() + span_ns(wait_s) if wait_s else 0
        if at:
            core.log.keep_clock()
        self._wait(attempts, at, reason)

    def _wait(self, attempts: int, ready_at_ns: int = 0, reason: str = "") -> None:
        log, offset = self._core.log, self.message.offset
        log.append(
            records.reason_kept(offset, reason), records.WAIT(offset, ready_at_ns, attempts, log.state.priority(offset))
        )
        self.ended = True

    def _fail(self, reason: str) -> None:
        if reason:  # for the letter, if this process dies before it has written it
            self._core.log.append(records.reason_kept(self.message.offset, reason))
        self._core.letters.give_up(self._core.log, self.message, self.attempts, reason)
        self.ended = True

    def _extend(self, lease_s: float) -> None:
        deadline = self._core.clock.boot_ns() + span_ns(lease_s)
        self._core.log.append(records.EXTEND(self.message.offset, deadline, self.attempts))


def end_all(core: QueueCore, items: list[Item]) -> LeaseLostError | None:
    """End as many items as possible with one write, under the lock; return the error of the first of the others."""
    lost: LeaseLostError | None = None
    good: list[JournalItem] = []
    check = instance_of(JournalItem)
    for item in items:
        check("items", item)
        assert isinstance(item, JournalItem)
        if item.is_held():
            good.append(item)
        else:
            lost = lost or item.lost()
    if good:
        found = [core.log.result(item.message, NO_RESULT) for item in good] if core.log.state.keeps else ()
        rows = sorted((item.message.offset, stamp_of(item.message.timestamp)) for item in good)
        core.log.append(*found, *records.all_done(rows))
    for item in good:
        item.ended = True
    return lost


class JournalQueue(WorkQueue):
    """A work queue over a SEJ directory; open it with :func:`sej.open_queue`.

    Attributes:
        dead_letter: the journal of the dead letters.
        maxsize: the most items that may wait; 0: no limit.
        lease_s: how long an item is leased, in seconds.
        recovered: the damage found by opening, or None.

    Example:
        >>> import tempfile, sej
        >>> with sej.open_queue(tempfile.mkdtemp(), "worker") as q:
        ...     _ = q.put(b"job")
        ...     with q.get(timeout=0) as item:
        ...         print(item.value, item.attempts)
        ...     q.stats()
        b'job' 1
        Stats(ready=0, delayed=0, leased=0, done=1, dead=0, lost=0)
    """

    can: ClassVar[frozenset[str]] = frozenset(CAPABILITIES)

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str,
        *,
        lease_s: Seconds = 60.0,
        max_attempts: int | None = None,
        default: int | Start = FIRST,
        dead_letter: str | os.PathLike[str] | None = None,
        maxsize: int = 0,
        expire_s: Seconds | None = None,
        dedupe_window_s: Seconds = 3600.0,
        backoff_s: Seconds = 1.0,
        backoff_max_s: Seconds = 600.0,
        compact_bytes: int = 1 << 22,
        create: bool | None = None,
        order: str | None = None,
        on_dead: str | None = None,
        per_key: int = 1,
        concurrency: int | None = None,
        rate: str | None = None,
        limit: Limit | None = None,
        clock: Clock = SYSTEM,
        disk: Disk = OS,
        **writer: Unpack[SharedOptions],
    ) -> None:
        """Open a queue; the journal is created if it is missing.

        Args:
            path: the SEJ directory.
            name: the queue's name, with the characters of a reader's.
            lease_s: how long an item is leased, in seconds or as in ``"5m"``, unless it is extended.
            max_attempts: after this many attempts an item becomes a dead letter. It is kept with the queue, and another
                value changes it for all workers. None: as the queue has it; 5 for a new one.
            default: where a new queue begins: an offset, FIRST or LAST.
            dead_letter: the journal of the dead letters; None: ``dead/<name>`` in the SEJ directory.
            maxsize: put waits, or raises QueueFullError, while this many items wait; 0: no limit.
            expire_s: messages older than this many seconds are removed when they would be delivered; None: never. A
                message without a timestamp never expires.
            dedupe_window_s: how long a dedupe_key is remembered.
            backoff_s: the first wait of ``retry()``, doubled with each attempt, with jitter.
            backoff_max_s: the longest wait.
            compact_bytes: the log is compacted after this many added bytes.
            create: whether to create the queue if it is missing. None: only if the journal has no queue yet, because
                every message is delivered again to a second queue; True: create it; False: create neither queue nor
                journal.
            order: ``"key"``: at most one item of a key is leased, and items of a key are delivered in the order of
                their puts. ``"ready"``: each item as soon as it is ready. The queue keeps it. None: as the queue has
                it; ``"ready"`` for a new one.
            on_dead: in a queue with ``order="key"``: ``"next"`` delivers the next item of a key after a dead letter;
                ``"block"`` keeps the key waiting until the letter is put back or cancelled. It is kept with the queue.
                None: as the queue has it; ``"next"`` for a new one.
            per_key: with ``order="key"``: the most items of a key that are leased or wait for a retry at a time.
            concurrency: this queue takes no item while so many are leased, by all processes together; None: no limit.
            rate: how many items all processes that set it take in a time, as in ``"10/s"`` or ``"100/m"``: a token
                bucket that is kept with the queue. None: no limit.
            limit: a limit for each kind of items, as in ``Limit("header:tenant", concurrency=2)``. It is kept with the
                queue; another ``concurrency`` or ``rate`` changes it for all workers. It excludes ``order="key"``.
                None: as the queue has it.
            clock: the clocks.
            disk: the disk.
            writer: the options of :class:`sej.SharedWriter`, which puts. ``durability`` also says what ``done`` waits
                for; the default of ``segment_bytes`` is 64 MiB here.

        Raises:
            LockedError: an ordinary reader of that name runs.
            CorruptionError: the journal's end is damaged.
            OffsetBeyondEndError: the kept offset is past the journal's end.
            QueueNotFoundError: the queue is missing, and ``create`` does not allow creating it.
            JournalNotFoundError: the journal is missing, and ``create`` is False.
            ValueError: the queue has another order.
        """
        known = (*options_of(JournalQueue.__init__), *SharedOptions.__annotations__)
        refuse_unknown("a queue", writer, known, OPENING)
        lease_s, expire_s = seconds("lease_s", lease_s), seconds("expire_s", expire_s)
        dedupe_window_s = seconds("dedupe_window_s", dedupe_window_s)
        backoff_s, backoff_max_s = seconds("backoff_s", backoff_s), seconds("backoff_max_s", backoff_max_s)
        require(path=path, lease_s=lease_s, default=default, dead_letter=dead_letter, maxsize=maxsize)
        require(dedupe_window_s=dedupe_window_s, backoff_s=backoff_s, backoff_max_s=backoff_max_s)
        require(compact_bytes=compact_bytes, create=create, per_key=per_key, concurrency=concurrency, clock=clock)
        require(expire_s=(expire_s, optional(POSITIVE_SECONDS)), order=(order, optional(one_of(ORDERS))))
        require(on_dead=(on_dead, optional(one_of(ON_DEAD))), rate=(rate, optional(require_rate)))
        require(limit=(limit, optional(require_limit)))
        optional(between(1, records.MAX_ATTEMPT))("max_attempts", max_attempts)
        check_shared_options(disk=disk, **writer)
        if limit is not None and order == "key":
            raise ValueError("limit and order='key' must not both be given: a queue has one of them")
        kinds = None if limit is None else kinds_of(limit)
        opening = Opening(default, create, dead_letter, compact_bytes, max_attempts, order, on_dead, kinds)
        expire_ns = None if expire_s is None else span_ns(expire_s)
        delivery = Delivery(span_ns(lease_s), expire_ns, per_key, Backoff(backoff_s, backoff_max_s))
        options: SharedOptions = {"segment_bytes": _SEGMENT_BYTES, **writer}
        self._core = core = QueueCore(Directory(path, disk), name, clock, delivery)
        try:
            core.open(opening, options)
            self.path, self.name, self.maxsize, self.lease_s = core.path, name, maxsize, lease_s
            self.dead_letter, self.recovered = core.letters.path, core.log.recovered
            self._clock = clock
            self._judge_at = self._look_at = 0
            self._taker = Taker(core, Limit("", concurrency, rate))
            self._putter = Putter(core, maxsize=maxsize, window_ns=span_ns(dedupe_window_s))
            self._scheduler = Scheduler(core, self._putter)
            self._look = QueueLook(self.path, name, dead_letter=self.dead_letter, clock=clock, disk=disk)
            if rate is not None:
                core.locked(self._taker.begin, clock.boot_ns())
        except BaseException:
            core._release()
            raise

    # --- putting and taking

    def _put(self, values: Iterable[bytes], keys: Iterable[bytes] | None, options: PutOptions) -> Sequence[int]:
        core = self._core
        if not core.life.open:  # the writer notices a fork
            core.life.refuse()
        if core.log.reserve.spent:
            core.require_reserve()
        return self._putter.put(values, keys, options)

    def _take(self, n: int, max_bytes: int | None = None) -> list[Item]:
        core = self._core
        core.life.require_outside()
        with core.life.mutex:
            now = self._clock.boot_ns()
            look = now >= self._look_at
            if look:  # first, because if it fails, no item must have been taken
                core.life.require()
                core.reader_lock.check()
                core.holders.check()
                core.log.guard.check()
                self._look_at = now + _LOOK_NS
            if now >= core.keep_at:
                core.keep_head(now)
            items = core.under_lock(self._take_now, n, max_bytes, look)
            while items == [] and self._taker.unfinished:  # other workers may take the lock in between
                items = core.under_lock(self._take_now, n, max_bytes, False)
        if items is None:  # nothing was taken: if the next step fails, no caller has an item
            self._scheduler.make()
            with core.life.mutex:
                items = core.under_lock(self._take_now, n, max_bytes, False, True) or []
        if core.problems:
            self._warn(items)
        return items

    def _take_now(self, n: int, max_bytes: int | None, check: bool, made: bool = False) -> list[Item] | None:
        """Return items; None: an item of a schedule must be made first."""
        core = self._core
        log = core.log
        if log.large:
            log.compact()
        if check:  # first, because if it fails, no item must have been taken
            log.keep_clock()
        now = self._clock.boot_ns()  # under the lock, and after what may take long: leases begin now
        if log.state.timetable.turns and not made and self._scheduler.is_over(now):
            return None
        taker = self._taker
        if log.state.order.mode and taker.source is None:  # at first, or another process has set a limit
            from sej.queue.keyed_take import KeyedSource

            taker.source = KeyedSource(core, taker)
        found = taker.take(n, now, max_bytes)
        if not found and now >= self._judge_at and not taker.unfinished:
            self._judge_at = now + _NS
            core.fresh.judge()  # nothing was appended for a while: are the bytes at the end corruption?
        headers = log.state.headers
        items: list[Item] = []
        for message, attempts in found:
            items.append(JournalItem(self, core, message, attempts, headers_of(headers, message) if headers else None))
        return items

    def _warn(self, items: list[Item]) -> None:
        """Warn once about items that are missing, or cannot be given up or made."""
        problems, self._core.problems = self._core.problems, []
        try:
            for problem in dict.fromkeys(problems):
                warnings.warn(f"queue {self.name!r} in {self.path}: {problem}", RuntimeWarning, stacklevel=5)
        except RuntimeWarning:  # the program turns warnings into errors
            for item in items:
                item.give_back()
            raise

    def _due_s(self) -> float | None:
        state = self._core.log.state
        with self._core.life.mutex:
            if self._core.log.unsure:
                return 0.0  # the next call reads the log again
            due = state.ready_queue.next_due_ns()
            others = any(lease.holder != self._core.holders.mine for lease in state.leased.values())
            now = self._clock.boot_ns()
            planned = self._scheduler.wait_ns(now) if state.timetable.turns else None
        waits = [] if due is None else [max(due - now, 0) / _NS + 0.0005]
        allowed = self._taker.next_ns()
        if allowed is not None and allowed > now:
            waits.append((allowed - now) / _NS + 0.0005)
        if others:
            waits.append(PROBE_NS / _NS)
        if planned is not None:
            waits.append(planned / _NS + 0.0005)
        return min(waits, default=None)

    def _wait(self, left_s: float | None) -> bool:
        any_item = self._taker.source is None and not self._taker.limited
        return self._core.wait(left_s, self._due_s(), shared=any_item)

    def _get_later(self, n: int, timeout: Any, max_bytes: int | None) -> list[Item]:
        try:
            return super()._get_later(n, timeout, max_bytes)
        finally:
            self._core.stop_waiting()

    def done_many(self, items: Iterable[Item]) -> None:
        """End many items with one write; as many as possible are done before LeaseLostError is raised."""
        ITERABLE("items", items)
        lost = self._core.end(end_all, self._core, list(items))  # the iterable must not run under the lock
        if lost is not None:
            raise lost

    # --- results

    def _outcome(self, offset: int) -> Outcome | None:
        return self._core.locked(self._outcome_now, offset)

    def _ended(self, offsets: Collection[int]) -> set[int]:
        return self._core.locked(lambda: set(offsets).difference(self._core.log.state.keeps))

    def _outcome_now(self, offset: int) -> Outcome | None:
        state = self._core.log.state
        if offset in state.keeps:
            return None
        found = records.result_of(state.results.get(offset))
        if found is None:
            why = "it was put without keep_result, it was removed before it ended, or keep_result's time is over"
        elif found.until_ns <= self._clock.boot_ns():
            why = "keep_result's time is over"
        elif found.outcome == records.FAILED:
            text = found.data.decode(errors="ignore")
            return Outcome(None, ItemFailedError(f"the item failed: {text}", path=self.path, offset=offset))
        else:
            return Outcome(found.data if found.outcome == RESULT_KEPT else None)
        return Outcome(None, ResultGoneError(f"the item has no result: {why}", path=self.path, offset=offset))

    def _result_watch(self) -> Watch:
        return Watch(self._core.directory.at("ofs"))

    # --- schedules

    def _schedule(self, plan: Plan, key: bytes, value: bytes) -> int:
        return self._core.end(self._scheduler.add, plan, key, value)

    def _schedules(self) -> list[Schedule]:
        return self._core.locked(lambda: self._core.log.state.timetable.shown(self.serializer))

    def _change_schedule(self, name: str, state: int) -> bool:
        return self._core.end(self._scheduler.change, name, state)

    # --- the whole

    def stats(self) -> Stats:
        """Return how many items there are; reads where the journal ends."""
        return self._core.locked(self._count)

    def _count(self) -> Stats:
        self._taker.look_for_losses()
        log = self._core.log
        self._core.look_for_lost_letters()
        return counted(log.state, self._clock.boot_ns(), log.tail.end_offset())

    def peek(self, n: int = 1) -> list[QueuedItem]:
        """Return the next n items that can be taken now, without taking them; see :meth:`sej.WorkQueue.peek`."""
        POSITIVE("n", n)
        self._core.life.require()
        return self._look.peek(n, serializer=self.serializer)

    def items(
        self, state: str | None = None, *, limit: int | None = None, after: int | None = None
    ) -> list[QueuedItem]:
        """Return items in the order of their numbers, without taking them; see :meth:`sej.WorkQueue.items`."""
        require_listing(state, limit, after)
        self._core.life.require()
        return self._look.items(state, limit=limit, after=after, serializer=self.serializer)

    def pause(self) -> None:
        """Deliver no item to any worker, until :meth:`resume`; see :meth:`sej.WorkQueue.pause`."""
        self._core.end(self._core.log.append, records.PAUSE(1))

    def resume(self) -> None:
        """Deliver items again after :meth:`pause`."""
        self._core.end(self._core.log.append, records.PAUSE(0))

    def purge(self) -> int:
        """Remove every item that is not leased, and items leased by a process that died; leased items stay leased."""
        return self._core.locked(self._taker.purge)

    def cancel(self, offset: int) -> bool:
        """Remove one item, leased or not; see :meth:`sej.WorkQueue.cancel`."""
        OFFSET("offset", offset)
        return self._core.end(self._taker.cancel, offset)

    def requeue(self, offset: int) -> int | None:
        """Put one dead letter back as a new message, with 0 attempts; see :meth:`redrive`."""
        OFFSET("offset", offset)
        self._core.life.require()
        found = self._core.letters.of_item(offset, self._core.log.state)
        new = [] if found is None else self._core.end_in_turn(self._putter.put_one_back, *found)
        return new[0] if new else None

    def discard(self, offset: int) -> bool:
        """Remove one dead letter for good: no worker receives its item, and :meth:`redrive` skips it.

        Its message stays in the journal of the dead letters. Nothing is appended to the queue's journal. If this
        process dies, or the power fails, the letter is removed or as it was; the item is not delivered. A removed
        letter is not counted by :meth:`stats`.

        Args:
            offset: the number of the item that was given up.

        Returns:
            True if it was removed; False if the item has no letter, or its letter was put back or removed before.
        """
        OFFSET("offset", offset)
        self._core.life.require()
        found = self._core.letters.of_item(offset, self._core.log.state)
        return found is not None and self._core.end_in_turn(self._putter.remove_letter, *found)

    def redrive(self, limit: int | None = None) -> int:
        """Put this queue's dead letters back as new messages, oldest first, with 0 attempts.

        Each keeps its value, key, type and priority. An expiry starts again when the letter is put back. A dedupe key
        still means the original message, for as long as it would have without this.

        Each is put back once, whatever crashes. The position is stored in the queue's state, and for retention next to
        the journal of the dead letters, under the name ``redrive-<name>``; if that is not the queue's own journal,
        the name ends with a hash of the queue's journal. The new messages have the time of the redrive.

        Raises:
            LockedError: another call of any process is putting letters of this queue back. It does not wait for it.
        """
        optional(COUNT)("limit", limit)
        self._core.locked(self._core.look_for_lost_letters)
        return self._putter.redrive(limit)

    def sync(self) -> None:
        """Sync to the disk what was put and ended through this object so far.

        Raises:
            JournalNotFoundError: the journal was removed.
            WriterFailedError: a sync failed, or the last segment was removed.
        """
        core = self._core
        core.life.require()
        core.writer.sync()
        core.life.require()
        core.syncer.make_durable(core.log.appended)

    def close(self) -> None:
        """Return the items that this object holds, keep the head, and close.

        A second call does nothing, or finishes what an exception interrupted: until then the queue is open.

        Raises:
            LockedError: a signal handler calls this during a call of this queue; nothing was closed.
            WriterFailedError: a sync in the background failed, and no call has reported it. The queue is closed.
        """
        self._core.close()

    def __exit__(self, *error: object) -> None:
        """Close the queue. An error of the block is not replaced by an error of a sync in the background."""
        if any(error):
            self._core.life.unreported = self._core.writer.life.unreported = False
        super().__exit__(*error)


def open_backend(path: str, name: str, **options: Any) -> WorkQueue:
    """Open a queue for the entry point ``journal`` of ``sej.backends``."""
    return JournalQueue(path, name, **options)
