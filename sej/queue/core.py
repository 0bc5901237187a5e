"""What the parts of one open queue share: its files, its locks, and how a call is made under them.

A signal handler may raise between any two bytecodes. Every operation runs inside :meth:`QueueCore.under_lock`, under
the same two rules as in :mod:`sej.writing.shared_writer`: only C code releases locks, and the log is marked unsure from
an operation's beginning to its end, so that after any other exit the next operation reads the log again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from typing import Any, Final, NamedTuple, TypeVar

from sej.errors import InvalidNameError, LockLostError, QueueFullError, SejError
from sej.journal.directory import Directory, check_name
from sej.message import Start
from sej.queue.dead_letters import DeadLetterJournal
from sej.queue.interface.queue import require_known
from sej.queue.interface.values import Backoff
from sej.queue.log.file import QueueLog, holders_of, register_queue
from sej.queue.log.format import FREE, LIMIT, ORDER, WAIT, in_parts
from sej.queue.log.reader import MessageReader, ParkedItems, missing_keys
from sej.queue.log.ready_queue import BY_KEY, LIMITED, UNORDERED, KeyOrder, Kinds
from sej.queue.log.state import QueueState
from sej.reading.dead_letters import letters_path
from sej.system.clock import Clock
from sej.system.disk import File, Resolved, Tolerated, full_disk_advice, is_full, of_system
from sej.system.group_commit import Syncer
from sej.system.lifecycle import Lifecycle
from sej.system.locks import Lock
from sej.system.watch import Watch, wait_any
from sej.writing.shared_writer import SharedOptions, SharedWriter

ORDERS: Final = ("ready", "key")
"""ready: every item as soon as it is ready; key: the items of a key one after another."""
ON_DEAD: Final = ("next", "block")
"""next: after a dead letter the next item of its key is delivered; block: its key waits until it is put back."""
_KEEP_NS: Final = 1_000_000_000
_SUFFIX: Final = ".queue"
_PARTS: Final = (
    *(("watchers", "leave"), ("watchers", "close"), ("syncer", "close"), ("holders", "release"), ("log", "close")),
    *(("fresh", "close"), ("others", "close"), ("parked", "close"), ("reader_lock", "release"), ("writer", "close")),
)
"""What a queue gives back, and how."""
_WATCHERS: Final = 3
_FEW: Final = 2
_T = TypeVar("_T")


class Opening(NamedTuple):
    """How a queue is opened, and what is kept with it: the options of the queue of these names."""

    default: int | Start
    create: bool | None
    dead_letter: str | os.PathLike[str] | None
    compact_bytes: int
    max_attempts: int | None
    order: str | None
    on_dead: str | None
    kinds: Kinds | None


class Delivery(NamedTuple):
    """How items are taken and returned.

    Attributes:
        lease_ns: how long an item is leased.
        expire_ns: messages older than this are removed; None: none.
        per_key: how many items of a key may be leased in a queue with an order of keys.
        backoff: how long ``retry()`` waits.
    """

    lease_ns: int
    expire_ns: int | None
    per_key: int
    backoff: Backoff


class Watchers:
    """Which of the processes that wait for an item watch the queue.

    An item wakes all that watch, and one gets it. So three watch: each has the lock of one file,
    ``ofs/NAME.slots/watch-N.lck``. The others wait for a change of the folder of these files: a watcher that leaves
    with fewer than two left truncates its file. Then all of them look for items, and try to become watchers. A new
    watcher looks again after it began to watch, so it misses none.

    If all watchers were killed or stopped, the others look for items when their wait ends, after one second.
    """

    def __init__(self, directory: Directory, name: str) -> None:
        """Set the files; nothing is opened."""
        self._disk = directory.disk
        self.folder = directory.at("ofs", f"{name}.slots")
        self._files: list[File] = []
        self._mine: File | None = None

    def join(self) -> bool:
        """Return whether this process is to watch: as one of the three, or because the files cannot be opened."""
        try:
            for number in range(len(self._files), _WATCHERS):
                self._files.append(self._disk.open(os.path.join(self.folder, f"watch-{number}.lck"), "append"))
        except OSError as error:
            if not of_system(error):
                raise
            return True
        if self._mine is None:
            self._mine = next((file for file in self._files if file.lock()), None)
        return self._mine is not None

    def leave(self) -> None:
        """Watch no more, and call others if too few are left. The last one that leaves sees that."""
        mine, self._mine = self._mine, None
        if mine is None:
            return
        mine.unlock()
        left = 0
        for file in self._files:
            if file.lock(exclusive=False):
                file.unlock()
            else:
                left += 1
        if left < _FEW:
            with Tolerated():  # an item may have been taken, which an error would hide
                mine.truncate(0)  # it is empty: this only wakes the others

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        for file in self._files:
            file.close()


class QueueCore:
    """One open queue, for its parts.

    Attributes:
        directory: the journal.
        path: of the journal.
        name: the queue's name.
        clock: the clocks.
        delivery: how items are taken and returned.
        life: whether it is open, and the mutex.
        writer: the journal's writer.
        holders: the leases of this queue, and who else lives.
        watchers: which of the waiting processes watch the queue.
        log: the state.
        letters: the dead letters.
        syncer: shares syncs of the log between threads.
        fresh: reads messages from the frontier on.
        others: looks up messages that are not taken in order.
        durable: whether calls return only when what they did is on the disk.
        keep_at: the time of the next :meth:`keep_head`.
        problems: why items were not delivered or not made, for the user, until the next call that takes items.
        parked: the items of a queue with an order of keys that wait for their keys.
    """

    def __init__(
        self,
        directory: Directory,
        name: str,
        clock: Clock,
        delivery: Delivery,
    ) -> None:
        """Set the queue; nothing is opened."""
        self.directory, self.path, self.clock = directory, directory.path, clock
        self.name = check_name(name, "a queue's name")
        if name.endswith(_SUFFIX):
            raise InvalidNameError(
                f"queue name {name!r} must not end in {_SUFFIX!r}, which is used for files of other queues"
            )
        self.delivery = delivery
        self.life = Lifecycle(f"queue {name!r}", self.path, self)
        self.keep_at = clock.boot_ns() + _KEEP_NS
        self._kept: int | None = None
        self.problems: list[str] = []
        self._watched: list[Watch] = []
        self._follows = False
        self._waiting: set[int] = set()
        """The threads that wait for an item."""

    def open(self, opening: Opening, writer: SharedOptions) -> None:
        """Open it; if this fails, the caller calls :meth:`_release`."""
        directory, name, clock, disk = self.directory, self.name, self.clock, self.directory.disk
        if opening.create is False:
            directory.require()
        require_known(name, directory.queue_names(), opening.create, self.path)
        letters = Resolved(directory.at("dead", name)) if opening.dead_letter is None else opening.dead_letter
        letters = letters_path(directory, letters)
        self.writer = SharedWriter(directory.path, disk=disk, **writer)
        self.durable = self.writer.durability == "disk"
        disk.mkdir(directory.at("ofs"))  # a copy of a journal may lack an empty directory
        self.reader_lock = Lock(directory.at("ofs", f"{name}.lck"), what=f"reader {name!r}", exclusive=False, disk=disk)
        self.holders = holders_of(directory, name)
        self.watchers = Watchers(directory, name)
        self.fresh, self.others = MessageReader(directory), MessageReader(directory, 64, places=32)
        self.parked = ParkedItems(directory)
        self.reader_lock.acquire()
        register_queue(directory, name, opening.create)
        mode = BY_KEY if opening.order == "key" else UNORDERED if opening.kinds is None else LIMITED
        self.log = QueueLog(
            directory,
            name,
            clock,
            self.life,
            default=opening.default,
            compact_bytes=opening.compact_bytes,
            order=KeyOrder(mode, block=opening.on_dead == "block", kinds=opening.kinds),
        )
        self.letters = DeadLetterJournal(directory, name, letters)
        self.syncer = Syncer(self.log, interval_s=self.writer.interval_s)
        self.locked(self._settle, opening)
        self._kept = self.log.state.kept

    def _settle(self, opening: Opening) -> None:
        """Take a number, and settle what is kept with the queue."""
        log = self.log
        number = self.holders.take()
        if number in log.state.holders():  # its last owner died
            log.append(FREE(number))
        _require_order(log.state, opening.order, opening.on_dead, opening.kinds)
        kinds, known = opening.kinds, log.state.order.kinds
        if kinds is not None and kinds != known:
            log.append(*in_parts(LIMIT, 0, json.dumps(kinds).encode()), ORDER(LIMITED, 0, 0))
            if known is None:  # items that wait were put without a kind
                log.append(*missing_keys(self.directory, log.state))
        order, most = log.state.order, opening.max_attempts
        if most not in (None, log.state.max_attempts):
            log.append(ORDER(order.mode, order.block, most))

    def require_reserve(self) -> None:
        """Require that the reserve of the log is whole: while it is not, nothing is put."""
        reserve = self.log.reserve
        if reserve.spent and not reserve.fill():
            advice = full_disk_advice(self.directory.disk, self.path)
            raise QueueFullError(f"nothing is put: {advice}", path=self.path)

    # --- calls

    def locked(self, act: Callable[..., _T], *arguments: Any) -> _T:
        """Call a function with the mutex and the queue's lock, with the log read."""
        self.life.require_outside()
        with self.life.mutex:
            return self.under_lock(act, *arguments)

    def under_lock(self, act: Callable[..., _T], *arguments: Any) -> _T:
        """Call a function with the queue's lock; the caller called ``require_outside`` and holds the mutex."""
        if not self.life.open:
            self.life.refuse()
        log = self.log
        if log.unsure:
            self.close_readers()  # reopened at their next use
        try:
            log.guard.take()
            log.catch_up()
            found = act(*arguments)
            log.unsure = False
            return found
        finally:
            log.guard.release()  # the last call, and in C: no handler comes before it

    def end(self, act: Callable[..., _T], *arguments: Any) -> _T:
        """Call a function under the lock, and sync if the durability requires it."""
        self.life.require_outside()
        with self.life.mutex:
            found = self.under_lock(act, *arguments)
        if self.durable:
            self.syncer.make_durable(self.log.appended)
        return found

    def end_in_turn(self, act: Callable[..., _T], *arguments: Any) -> _T:
        """Call a function under both locks.

        The journal's lock first: no process waits for the queue while another one holds the journal.
        """
        found: _T = self.writer.turn(self.end, act, *arguments)
        return found

    def keep_head(self, now: int) -> None:
        """Keep the head about once a second, once for all processes: without the lock while the journal is synced."""
        log = self.log
        if log.unsure:
            return
        self.keep_at = now + _KEEP_NS
        kept, self._kept = self._kept, log.state.kept
        if kept != self._kept or log.state.head() == kept:
            return  # another process did it, or there is nothing to do
        log.prepare_head()
        try:
            self.under_lock(log.keep_head)
        except OSError as error:
            if not is_full(error):
                raise
            return  # the reserve did not suffice; retention waits longer, but workers continue
        self._kept = log.state.kept

    def wait(self, left_s: float | None, due_s: float | None, *, shared: bool) -> bool:
        """Wait until an item may be available; return False if only the time is over.

        All threads of a queue wait for the same: where one begins to watch, or ceases to, the others are woken. Or one
        could take the event that calls them all, and leave with an item.

        Args:
            left_s: seconds; None: without a limit.
            due_s: in how many seconds an item may become ready on its own; None: never. Only those that watch see it.
            shared: whether other processes can take each item that this one can.
        """
        with self.life.mutex:
            if not self._watch(shared=shared):
                return True
            watches, follows = list(self._watched), self._follows
        due = None if follows else due_s
        limit = due if left_s is None else left_s if due is None else min(left_s, due)
        changed = bool(wait_any(watches, limit))
        if changed and follows:
            with self.life.mutex:
                self._watch(shared=shared)
        return changed or limit != left_s

    def _watch(self, *, shared: bool) -> bool:
        """Watch, or follow those that do; return False if the caller must look for items before it waits."""
        if not self.life.open:
            return False
        self._waiting.add(get_ident())
        follows = shared and not self.watchers.join()
        if self._watched and follows == self._follows:
            return True
        self._close_watches()
        folders = [self.watchers.folder] if follows else [self.directory.jnl, self.directory.at("ofs")]
        self._watched, self._follows = [Watch(folder) for folder in folders], follows
        return False

    def stop_waiting(self) -> None:
        """This thread waits no more: the last one of a queue lets another process watch."""
        with self.life.mutex:
            self._waiting.discard(get_ident())
            if not self._waiting and self.life.open:
                self.watchers.leave()

    def _close_watches(self) -> None:
        while self._watched:
            self._watched.pop().close()

    # --- under the lock

    def requeue_of_dead_holders(self, now: int) -> None:
        """Return the items of holders that died to the queue."""
        state = self.log.state
        if state.leased:
            dead = self.holders.dead(state.holders())
            if dead:
                self.log.append(*(FREE(holder) for holder in sorted(dead)))
                state.ready_queue.tick(now)

    def requeue_expired(self, now: int) -> None:
        """Return items to the queue whose holder died, or whose lease is over."""
        log, state = self.log, self.log.state
        self.requeue_of_dead_holders(now)
        state.ready_queue.tick(now)
        back = [WAIT(at, 0, state.attempts(at), state.priority(at)) for at in sorted(state.ready_queue.expired)]
        if back:
            log.append(*back)

    def look_for_lost_letters(self) -> None:
        """Stop counting letters that retention removed before they were put back."""
        if record := self.letters.lost(self.log.state):
            self.log.append(record)

    # --- closing

    def close_readers(self) -> None:
        """Close the readers; each is reopened at its next use."""
        for reader in (self.fresh, self.others, self.parked):
            reader.close()

    def close(self) -> None:
        """Return the items, and close; see :meth:`sej.queue.JournalQueue.close`."""
        self.writer.life.require_outside()
        self.life.close()

    def _finish(self) -> None:
        """Return the items of this queue, and keep the head."""
        with self.life.mutex:
            if not self.log.unsure:  # else what an interrupt left of the state is read again first
                self.log.prepare_head()
            self.under_lock(self._requeue_own)
        if self.durable:
            self.syncer.make_durable(self.log.appended)

    def _requeue_own(self) -> None:
        with suppress(LockLostError):  # another queue may have this number, and its items must stay leased
            self.holders.check()
            if self.holders.mine in self.log.state.holders():
                self.log.append(FREE(self.holders.mine))
        self.log.keep_head()

    def _release(self) -> None:
        """Release everything; if this is interrupted, the next close() calls it again."""
        for name, release in _PARTS:
            part = vars(self).get(name)  # None: the opening failed before it
            if part is not None:
                getattr(part, release)()
        self._close_watches()

    def _close_copies(self) -> None:
        """Close a forked child's copies of the descriptors, which would keep the parent's locks."""
        if hasattr(self, "log"):
            self.watchers.close()
            self.log.close()

    def _reworded(self, cause: BaseException) -> SejError:
        return self.log.as_writer_failed(cause)


def _require_order(state: QueueState, order: str | None, on_dead: str | None, limit: Kinds | None) -> None:
    """Compare the order that is kept with a queue with the requested one; None: as the queue has it.

    Raises:
        ValueError: it differs.
    """
    kinds = state.order.kinds
    has = "key" if state.order.mode == BY_KEY else "ready"
    ends = "block" if state.order.block else "next"
    by = None if limit is None else limit.by
    rows = [("order", has, order), ("on_dead", ends, on_dead), ("limit.by", by if kinds is None else kinds.by, by)]
    if limit is not None:
        rows.append(("order", has, "ready"))
    for name, kept, got in rows:
        if got not in (None, kept):
            raise ValueError(
                f"{name} must be {kept!r}, as when this queue was created, got {got!r}; pass {kept!r}, or create a"
                " queue with another name"
            )
