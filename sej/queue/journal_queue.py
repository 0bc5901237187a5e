"""The work queue on a journal: any number of processes and threads put, take and end items.

The messages stay in the journal. The shared writer puts (:mod:`sej.queue.items.put`). The state log records the holders
of items (:mod:`sej.queue.disk.log`); every operation first reads its new records, under the queue's lock. A lease is
fenced by its attempt: a later delivery of the same item has a higher one, and the earlier holder's ``done`` raises
:class:`~sej.LeaseLostError`.

Ready items of one priority are delivered in order. An item that was put is never lost, and an item that was done is not
delivered again. No two workers hold the same item. Items leased by a process that died are ready as soon as another
process checks its lock; those of a stuck process at the deadline, on a clock that cannot be set.

A signal handler may raise between any two bytecodes. Every operation runs inside :meth:`JournalQueue._locked`, under
the same two rules as in :mod:`sej.writing.shared_writer`: only C code releases locks, and the log is marked unsure from
an operation's beginning to its end, so that after any other exit the next operation reads the log again.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Final, TypeVar, Unpack

from sej.checks import (
    COUNT,
    FLAG,
    ITERABLE,
    OFFSET,
    PATH,
    POSITIVE,
    POSITIVE_SECONDS,
    SECONDS,
    START,
    between,
    one_of,
    optional,
    options_of,
    refuse_unknown,
    require,
    with_methods,
)
from sej.durations import Seconds, seconds
from sej.errors import InvalidNameError, LockLostError, QueueFullError
from sej.journal.directory import Directory, check_name
from sej.message import FIRST, Start
from sej.queue.disk.convert import ON_DEAD, ORDERS, settle_order
from sej.queue.disk.lock import Holders
from sej.queue.disk.log import QueueLog, queue_names, register_queue
from sej.queue.interface.item import Item
from sej.queue.interface.queue import CAPABILITIES, OPENING, WorkQueue, require_known, require_listing
from sej.queue.interface.values import Backoff, QueuedItem, Stats, Wishes
from sej.queue.items.ack import Acknowledger
from sej.queue.items.dead_letters import DeadLetterJournal
from sej.queue.items.flow import Flow, parse_rate, require_rate
from sej.queue.items.item import JournalItem
from sej.queue.items.look import QueueLook, counted
from sej.queue.items.put import Putter
from sej.queue.items.remove import Remover
from sej.queue.items.take import PROBE_NS, Taker
from sej.queue.log.format import FREE, MAX_ATTEMPT, ORDER, PAUSE, headers_of
from sej.queue.log.key_order import KeyOrder
from sej.reading.dead_letters import DeadLetter, letters_path
from sej.system.clock import SYSTEM, Clock, span_ns
from sej.system.disk import OS, Disk, full_disk_advice, is_full
from sej.system.group_commit import Syncer
from sej.system.lifecycle import Lifecycle
from sej.system.locks import Lock
from sej.system.paths import Resolved
from sej.system.watch import Watch
from sej.writing.shared_writer import SharedOptions, SharedWriter, check_shared_options

_NS: Final = 1_000_000_000
_KEEP_NS: Final = _NS
_LOOK_NS: Final = 100_000_000
"""Between two checks that the files of the locks are in their places."""
_SEGMENT_BYTES: Final = 1 << 26
_SUFFIX: Final = ".queue"
_T = TypeVar("_T")
_Letters = TypeVar("_Letters", DeadLetter, Sequence[DeadLetter])


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
        convert_order: bool = False,
        per_key: int = 1,
        concurrency: int | None = None,
        rate: str | None = None,
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
            convert_order: convert a queue that has another order or another ``on_dead``, for all workers.
            per_key: with ``order="key"``: the most items of a key that are leased or wait for a retry at a time.
            concurrency: this queue takes no item while so many are leased, by all processes together; None: no limit.
            rate: how many items all processes that set it take in a time, as in ``"10/s"`` or ``"100/m"``: a token
                bucket that is kept with the queue. None: no limit.
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
            ValueError: the queue has another order, and ``convert_order`` is False.
        """
        known = (*options_of(JournalQueue.__init__), *SharedOptions.__annotations__)
        refuse_unknown("a queue", writer, known, OPENING)
        lease_s, expire_s = seconds("lease_s", lease_s), seconds("expire_s", expire_s)
        dedupe_window_s = seconds("dedupe_window_s", dedupe_window_s)
        backoff_s, backoff_max_s = seconds("backoff_s", backoff_s), seconds("backoff_max_s", backoff_max_s)
        require(
            path=(path, PATH),
            lease_s=(lease_s, POSITIVE_SECONDS),
            max_attempts=(max_attempts, optional(between(1, MAX_ATTEMPT))),
            default=(default, START),
            dead_letter=(dead_letter, optional(PATH)),
            maxsize=(maxsize, COUNT),
            expire_s=(expire_s, optional(POSITIVE_SECONDS)),
            dedupe_window_s=(dedupe_window_s, SECONDS),
            backoff_s=(backoff_s, SECONDS),
            backoff_max_s=(backoff_max_s, SECONDS),
            compact_bytes=(compact_bytes, COUNT),
            create=(create, optional(FLAG)),
            order=(order, optional(one_of(ORDERS))),
            on_dead=(on_dead, optional(one_of(ON_DEAD))),
            convert_order=(convert_order, FLAG),
            per_key=(per_key, POSITIVE),
            concurrency=(concurrency, optional(POSITIVE)),
            rate=(rate, optional(require_rate)),
            clock=(clock, with_methods("a clock", "boot_ns", "wall_ns", "boot_id")),
        )
        check_shared_options(disk=disk, **writer)
        self._directory = Directory(path, disk)
        self.path = self._directory.path
        self.name = check_name(name, "a queue's name")
        if name.endswith(_SUFFIX):
            raise InvalidNameError(
                f"queue name {name!r} must not end in {_SUFFIX!r}, which is used for files of other queues"
            )
        if create is False:
            self._directory.require()
        require_known(name, queue_names(self._directory), create, self.path)
        self.maxsize = maxsize
        self.lease_s = lease_s
        self.dead_letter = letters_path(
            self._directory, Resolved(self._directory.at("dead", name)) if dead_letter is None else dead_letter
        )
        self._clock = clock
        self._disk = disk
        self._life = Lifecycle(f"queue {name!r}", self.path)
        self._judge_at = self._look_at = 0
        self._keep_at = clock.boot_ns() + _KEEP_NS
        self._kept: int | None = None
        self._watched: list[Watch] = []
        options: SharedOptions = {"segment_bytes": _SEGMENT_BYTES, **writer}
        self._writer = SharedWriter(path, disk=disk, **options)
        self._durable = self._writer.durability == "disk"
        self._reader_lock = Lock(
            self._directory.at("ofs", f"{name}.lck"), what=f"reader {name!r}", exclusive=False, disk=disk
        )
        self._holders = Holders(self._directory, name)
        try:
            self._reader_lock.acquire()
            register_queue(self._directory, name, create)
            new_order = KeyOrder(block=on_dead == "block") if order == "key" else None
            self._log = QueueLog(
                self._directory, name, clock, default=default, compact_bytes=compact_bytes, order=new_order
            )
            self.recovered = self._log.recovered
            self._dead_letters = DeadLetterJournal(self._directory, self.name, self._log, clock, self.dead_letter)
            self._taker = Taker(
                self._directory,
                self._log,
                self._holders,
                clock,
                self._dead_letters.give_up,
                lease_ns=span_ns(lease_s),
                expire_ns=None if expire_s is None else span_ns(expire_s),
                per_key=per_key,
                flow=Flow(concurrency, None if rate is None else parse_rate(rate)),
            )
            self._acks = Acknowledger(
                self._log,
                self._holders,
                clock,
                self._dead_letters.give_up,
                Backoff(backoff_s, backoff_max_s),
                self._end,
            )
            self._remover = Remover(self._log, self._taker)
            self._look = QueueLook(self.path, name, dead_letter=self.dead_letter, clock=clock, disk=disk)
            self._syncer = Syncer(
                self._log.sync,
                self._log.fail,
                lambda: self._log.appended,
                0,
                interval_s=self._writer.interval_s,
                untold=self._log.leave_untold,
            )
            self._putter = Putter(
                self._log, self._writer, clock, self._taker.others, maxsize=maxsize, window_ns=span_ns(dedupe_window_s)
            )
            self._locked(self._take_number)
            if rate is not None:
                self._locked(lambda: self._taker.begin(clock.boot_ns()))
            if order is not None or on_dead is not None:
                self._locked(self._settle_order, order, on_dead, convert_order)
            if max_attempts is not None:
                self._locked(self._keep_max_attempts, max_attempts)
            self._kept = self._log.state.kept
            self._life.in_child = self._log.close  # the copies of the descriptors must not keep the parent's locks
        except BaseException:
            for part in ("_syncer", "_log", "_taker"):  # those that were made
                if part in self.__dict__:
                    self.__dict__[part].close()
            self._holders.release()
            self._reader_lock.release()
            self._writer.close()
            raise

    # --- putting

    def _put(self, values: Iterable[bytes], keys: Iterable[bytes] | None, wishes: Wishes) -> Sequence[int]:
        self._life.require()
        reserve = self._log.reserve
        if reserve.spent and not reserve.fill():
            raise QueueFullError(f"nothing is put: {full_disk_advice(self._disk, self.path)}", path=self.path)
        return self._putter.put(values, keys, wishes, self._locked, self._watches)

    # --- taking

    def _take(self, n: int) -> list[Item]:
        return self._take_within(n, None)

    def _take_within(self, n: int, max_bytes: int | None) -> list[Item]:
        self._life.require_outside()
        with self._life.mutex:
            now = self._clock.boot_ns()
            look = now >= self._look_at
            if look:  # first, because if it fails, no item must have been taken
                self._life.require()
                self._reader_lock.check()
                self._holders.check()
                self._look_at = now + _LOOK_NS
            if now >= self._keep_at:
                self._keep_head(now)
            items = self._under_lock(self._take_now, n, max_bytes, look)
            while not items and self._taker.unfinished:  # other workers may take the lock in between
                items = self._under_lock(self._take_now, n, max_bytes, False)
        if self._taker.lost or self._taker.unwritten is not None:
            self._tell(items)
        return items

    def _take_now(self, n: int, max_bytes: int | None, check: bool) -> list[Item]:
        log = self._log
        if log.large:
            log.compact()
        if check:  # first, because if it fails, no item must have been taken
            log.keep_clock()
        now = self._clock.boot_ns()  # under the lock, and after what may take long: leases begin now
        found = self._taker.take(n, now, max_bytes)
        if not found and now >= self._judge_at and not self._taker.unfinished:
            self._judge_at = now + _NS
            self._taker.judge()
        if check:
            log.guard.check()
        acks, epoch, headers = self._acks, log.epoch, log.state.headers
        if headers:
            return [
                JournalItem(self, acks, message, attempts, epoch, headers_of(headers, message))
                for message, attempts in found
            ]
        return [JournalItem(self, acks, message, attempts, epoch) for message, attempts in found]

    def _tell(self, items: list[Item]) -> None:
        """Warn once about items that are missing or cannot be given up."""
        try:
            for problem in self._taker.problems():
                warnings.warn(f"queue {self.name!r} in {self.path}: {problem}", RuntimeWarning, stacklevel=5)
        except RuntimeWarning:  # the program turns warnings into errors
            for item in items:
                item.give_back()
            raise

    def _due_s(self) -> float | None:
        state = self._log.state
        now = self._clock.boot_ns()
        due = state.schedule.next_due_ns()
        waits = [] if due is None else [max(due - now, 0) / _NS + 0.0005]
        allowed = self._taker.next_ns()
        if allowed is not None and allowed > now:
            waits.append((allowed - now) / _NS + 0.0005)
        if any(lease.holder != self._holders.mine for lease in list(state.leased.values())):
            waits.append(PROBE_NS / _NS)
        return min(waits, default=None)

    def _watches(self) -> Sequence[Watch]:
        with self._life.mutex:
            if not self._watched:
                self._watched = [Watch(self._directory.jnl), Watch(self._directory.at("ofs"))]
            return self._watched

    # --- ending

    def done_many(self, items: Iterable[Item]) -> None:
        """End many items with one write; as many as possible are done before LeaseLostError is raised."""
        ITERABLE("items", items)
        self._acks.done_many(list(items))  # the iterable must not run under the lock

    def _end(self, act: Callable[..., _T], *arguments: Any) -> _T:
        """Run under the lock, and sync if the durability requires it."""
        found = self._locked(act, *arguments)
        if self._durable:
            self._syncer.commit(self._log.appended)
        return found

    # --- the whole

    def stats(self) -> Stats:
        """Return how many items there are; reads where the journal ends."""
        return self._locked(self._count)

    def _count(self) -> Stats:
        self._taker.look_for_losses()
        self._dead_letters.look_for_losses()
        return counted(self._log.state, self._clock.boot_ns(), self._log.tail.end_offset())

    def peek(self, n: int = 1) -> list[QueuedItem]:
        """Return the next n items that can be taken now, without taking them; see :meth:`sej.WorkQueue.peek`."""
        POSITIVE("n", n)
        self._life.require()
        return self._look.peek(n, serializer=self.serializer)

    def items(
        self, state: str | None = None, *, limit: int | None = None, after: int | None = None
    ) -> list[QueuedItem]:
        """Return items in the order of their numbers, without taking them; see :meth:`sej.WorkQueue.items`."""
        require_listing(state, limit, after)
        self._life.require()
        return self._look.items(state, limit=limit, after=after, serializer=self.serializer)

    def pause(self) -> None:
        """Deliver no item to any worker, until :meth:`resume`; see :meth:`sej.WorkQueue.pause`."""
        self._end(self._log.append, PAUSE(1))

    def resume(self) -> None:
        """Deliver items again after :meth:`pause`."""
        self._end(self._log.append, PAUSE(0))

    def purge(self) -> int:
        """Remove every item that is not leased, and items leased by a process that died; leased items stay leased."""
        return self._locked(lambda: self._remover.purge(self._clock.boot_ns()))

    def cancel(self, offset: int) -> bool:
        """Remove one item, leased or not; see :meth:`sej.WorkQueue.cancel`."""
        OFFSET("offset", offset)
        return self._end(self._remover.cancel, offset)

    def requeue(self, offset: int) -> int | None:
        """Put one dead letter back as a new message, with 0 attempts; see :meth:`redrive`."""
        OFFSET("offset", offset)
        self._life.require()
        return self._dead_letters.requeue(offset, partial(self._in_turn, self._putter.put_one_back))

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
        self._life.require()
        return bool(self._dead_letters.requeue(offset, partial(self._in_turn, self._putter.remove_letter)))

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
        self._locked(self._dead_letters.look_for_losses)
        return self._dead_letters.redrive(limit, partial(self._in_turn, self._putter.put_back))

    def _in_turn(self, act: Callable[[int, _Letters], _T], journal: int, letters: _Letters) -> _T:
        """Change dead letters under both locks.

        The journal's lock first: no process waits for the queue while another one holds the journal.
        """
        found: _T = self._writer.turn(self._end, act, journal, letters)
        return found

    def sync(self) -> None:
        """Sync to the disk what was put and ended through this object so far.

        Raises:
            JournalNotFoundError: the journal was removed.
            WriterFailedError: a sync failed, or the last segment was removed.
        """
        self._life.require()
        self._writer.sync()
        self._log.require()
        self._syncer.commit(self._log.appended)

    def close(self) -> None:
        """Return the items that this object holds, keep the head, and close.

        A second call does nothing, or finishes what an exception interrupted: until then the queue is open.

        Raises:
            LockedError: a signal handler calls this during a call of this queue; nothing was closed.
            WriterFailedError: a sync in the background failed, and no call has reported it. The queue is closed.
        """
        self._writer.life.require_outside()
        self._life.close(self._finish, self._release)
        if self._log.untold:
            self._log.require()

    def __exit__(self, *error: object) -> None:
        """Close the queue. An error of the block is not replaced by an error of a sync in the background."""
        if any(error):
            self._log.untold = self._writer.life.untold = False
        super().__exit__(*error)

    def _finish(self) -> None:
        if self._log.failed:
            return
        with self._life.mutex:
            self._log.prepare_head()
            self._under_lock(self._leave)
        if self._durable:
            self._syncer.commit(self._log.appended)

    def _release(self) -> None:
        """Release everything; if this is interrupted, the next close() calls it again."""
        self._syncer.close()
        for watch in self._watched:
            watch.close()
        self._holders.release()
        self._log.close()
        self._taker.close()
        self._reader_lock.release()
        self._writer.close()

    # --- the lock, and the functions that need it

    def _locked(self, act: Callable[..., _T], *arguments: Any) -> _T:
        """Call a function with the mutex and the queue's lock, with the log read."""
        self._life.require_outside()
        with self._life.mutex:
            return self._under_lock(act, *arguments)

    def _under_lock(self, act: Callable[..., _T], *arguments: Any) -> _T:
        """Call a function with the queue's lock; the caller holds the mutex."""
        self._life.require()
        log = self._log
        if log.unsure:
            self._taker.close()  # reopened at their next use
        try:
            log.guard.take()
            log.catch_up()
            found = act(*arguments)
            log.unsure = False
            return found
        finally:
            log.guard.release()  # the last call, and in C: no handler comes before it

    def _take_number(self) -> None:
        number = self._holders.take()
        if number in self._log.state.holders():  # its last owner died
            self._log.append(FREE(number))

    def _settle_order(self, order: str | None, on_dead: str | None, convert: bool) -> None:
        if convert:
            self._taker.take_back(self._clock.boot_ns())
        settle_order(self._log, self._directory, order, on_dead, convert=convert)

    def _keep_max_attempts(self, most: int) -> None:
        order, known = self._log.state.order, self._log.state.max_attempts
        if most != known:
            self._log.append(ORDER(order is not None, order is not None and order.block, most))

    def _leave(self) -> None:
        state = self._log.state
        with suppress(LockLostError):  # another queue may have this number, and its items must stay leased
            self._holders.check()
            if self._holders.mine in state.holders():
                self._log.append(FREE(self._holders.mine))
        self._log.keep_head()

    def _keep_head(self, now: int) -> None:
        """Keep the head about once a second, once for all processes: without the lock while the journal is synced."""
        log = self._log
        self._keep_at = now + _KEEP_NS
        kept, self._kept = self._kept, log.state.kept
        if kept != self._kept or log.state.head() == kept:
            return  # another process did it, or there is nothing to do
        log.prepare_head()
        try:
            self._under_lock(log.keep_head)
        except OSError as error:
            if not is_full(error):
                raise
            return  # the reserve did not suffice; retention waits longer, but workers continue
        self._kept = log.state.kept


def open_backend(path: str, name: str, **options: Any) -> WorkQueue:
    """Open a queue for the entry point ``journal`` of ``sej.backends``."""
    return JournalQueue(path, name, **options)
