"""The state log of a queue on disk: read, appended to and compacted, all under the queue's lock.

Every process that has the queue open appends to ``ofs/NAME.queue``, and locks ``ofs/NAME.queue.lck`` for each change.
The holder of the lock first reads the records of the others, so that all agree on the state.

The invariants:

- If the log ends inside a record, its writer died: the rest is cut. Bad records at the end are a torn tail too. If good
  records follow bad ones, the log is damaged. It is then kept in ``kept/``, the state is the one before the damage,
  every lease is void, and items that were done after the damage are delivered again. No item is lost: if one of the
  records of the last compaction is bad or missing, which list the items in flight, the state is that of the kept
  offset.
- A state never outlives its messages: before the log is synced, the journal is synced up to the frontier. If the
  journal does not hold the newest message that the log knows (the power failed before either was synced), the records
  of the lost messages are dropped, because other messages will have their offsets.
- The kept offset, ``ofs/NAME.ofs``, is never above the first message that is not done.
- The queue's lock is ``flock`` on ``ofs/NAME.queue.lck``, held for one operation. The kernel gives it to those that
  wait in their order.
- ``unsure`` is True from the beginning of an operation to its end. So if anything ends an operation in the middle, a
  signal handler for example, ``unsure`` stays True and the next operation reads the log again.

**The reserve.** Ending an item writes: ``done`` appends to the log, and the head that retention waits for is a file
that is replaced. On a full disk no item could be ended, the head could not move, and ``sej clean`` had nothing to
remove. The remedy is a file of zeros, ``ofs/NAME.reserve``, whose bytes are allocated when the queue is opened::

    whole  --a write of the queue finds the disk full-->  spent   (the file is removed, the write is repeated)
    spent  --there is room for all of it again-->         whole

While the reserve is spent the queue puts nothing: the room is for ``get``, ``done``, ``retry``, ``fail`` and the
compaction of the log. The file has no content and is not synced; if it is lost, it is created again.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Final

from sej.errors import (
    BadOffsetFileError,
    ClosedError,
    CorruptionError,
    LockLostError,
    OffsetBeyondEndError,
    SejError,
    WriterFailedError,
)
from sej.journal.directory import Directory
from sej.journal.offset_check import drop_twin, keep_offset, lowest_kept, may_have_twin, twin_path
from sej.journal.recovery import keep
from sej.journal.retention import readers_lock
from sej.journal.tail import Tail, sync_up_to
from sej.journal.view import Journal
from sej.message import FIRST, Message, Start
from sej.queue.interface.queue import require_known
from sej.queue.log import format as records
from sej.queue.log.reader import MessageReader, holds, missing_keys, parked_offsets, proven
from sej.queue.log.ready_queue import NEVER, KeyOrder
from sej.queue.log.state import QueueState, WrongRecordError, snapshot
from sej.reading.offset import read_offset
from sej.system.clock import Clock
from sej.system.disk import File, Tolerated, is_full, of_system, replace_file, way_out
from sej.system.durable import KeptPosition, renew
from sej.system.group_commit import is_failure
from sej.system.lifecycle import Lifecycle
from sej.system.locks import NumberedLocks
from sej.system.logs import WARNING, record

RESERVE_BYTES: Final = 1 << 18
"""Room for more than 5,000 records, or for many compactions of a log."""
_COMPACT_BYTES: Final = 1 << 22
_READ_BYTES: Final = records.RECORD_SIZE << 14
_MOST: Final = 1 << 20
"""A record about more messages than this is compared with the journal before it is applied."""
_SET_NS: Final = 1_000_000_000
"""A clock that moved less than this against the boot-time clock was not set, but adjusted."""


class QueueLock:
    """The lock of one queue, for one open queue."""

    def __init__(self, directory: Directory, name: str) -> None:
        """Open the lock file; created if it is missing."""
        self._disk = directory.disk
        self._path = directory.at("ofs", f"{name}.queue.lck")
        self._file = self._disk.open(self._path, "append")
        self.take: Callable[[], object] = partial(self._file.lock, wait=True)
        """Takes the lock, for one operation."""
        self.release: Callable[[], object] = self._file.unlocker()
        """Releases the lock, in C; callable at any time."""

    def check(self) -> None:
        """Check from time to time, with the lock held, that others lock the same file.

        Raises:
            LockLostError: it was removed or replaced.
        """
        there = self._disk.status(self._path)
        if there is None or there.identity != self._file.status().identity:
            raise LockLostError(
                "the queue's lock file was removed or replaced, so it does not keep other workers out; reopen the"
                " queue, and leave the files in ofs/ in their places",
                path=self._path,
            )

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self.release = _nothing
        self._file.close()


def _nothing() -> None:
    """Do nothing: the release function of a lock whose file is closed."""


def holders_of(directory: Directory, name: str) -> NumberedLocks:
    """Return the holders of one queue's leases, as one open queue sees them.

    They are numbered, so that other processes see immediately that one has died: its leases have the number N, and
    ``ofs/NAME.slots/N.lck`` is locked as long as it lives. Numbers are taken and tested under the queue's lock, so that
    none changes between a test and its consequence. The files stay and are used again.
    """
    return NumberedLocks(directory.at("ofs", f"{name}.slots"), "{}.lck", directory.disk)


class Reserve:
    """The reserve of one queue, as one process sees it.

    Attributes:
        spent: whether this process found the disk full, and has not filled the reserve since.
    """

    def __init__(self, directory: Directory, name: str) -> None:
        """Set the file; nothing is written."""
        self._disk = directory.disk
        self._path = directory.at("ofs", f"{name}.reserve")
        self.spent = False

    def fill(self) -> bool:
        """Allocate what is missing, all of it or nothing; return whether the reserve is whole."""
        try:
            there = self._disk.status(self._path)
            if there is None or there.size != RESERVE_BYTES:
                file = self._disk.open(self._path, "temp")
                try:
                    file.allocate(RESERVE_BYTES)
                finally:
                    file.close()
            self.spent = False
        except OSError as error:
            if not of_system(error):
                raise
            self.release()  # the queue works without it
            self.spent = is_full(error)
        return not self.spent

    def release(self) -> None:
        """Return the space to the disk, for the write that needs it."""
        self.spent = True
        with Tolerated():
            self._disk.unlink(self._path)

    def make_room(self, error: BaseException) -> None:
        """Give the space to a write that found the disk full, which the caller repeats; raise any other error."""
        if not is_full(error):
            raise error
        self.release()


class QueueLog:
    """The log of one queue, as one process has it open.

    Attributes:
        state: the state of the log; up to date while the lock is held.
        epoch: the log's epoch; a lease of another epoch is void.
        recovered: the damage found by opening, or None.
        reserve: the disk space reserved for this log.
        appended: how many bytes this process has appended.
        unsure: whether the state may differ from the log; True while an operation changes it.
        guard: the queue's lock; its ``release`` is for the ``finally`` of an operation.
    """

    def __init__(
        self,
        directory: Directory,
        name: str,
        clock: Clock,
        life: Lifecycle,
        *,
        default: int | Start = FIRST,
        compact_bytes: int = _COMPACT_BYTES,
        order: KeyOrder,
    ) -> None:
        """Open the log; created if it is missing, with this order."""
        self._directory = directory
        self._disk = directory.disk
        self._name = name
        self._clock = clock
        self.life = life
        self._default = default
        self._compact_bytes = compact_bytes
        self._new_order = order
        self.path = directory.at("ofs", f"{name}.queue")
        self._kept = KeptPosition(directory.disk, f"{self.path}.durable")
        self._in_doubt = (0, 0)
        self.ofs_path = directory.at("ofs", f"{name}.ofs")
        self.tail = Tail(directory)
        self.state = QueueState()
        self.epoch = 0
        self.recovered: str | None = None
        self.appended = 0
        self._most = _MOST
        self._position = 0
        self._compacted_bytes = self._synced_to = 0
        self.unsure = True
        self._file: File | None = None
        self.reserve = Reserve(directory, name)
        self.guard = QueueLock(directory, name)
        try:
            self.guard.take()
            self._open(first=True)
            self.reserve.fill()
            self.unsure = False
        except BaseException:
            self.close()
            raise
        finally:
            self.guard.release()

    # --- under the lock

    def catch_up(self) -> None:
        """Read the records of others, and begin an operation, which sets ``unsure`` to False if it succeeds."""
        before, self.unsure = self.unsure, True
        if before:
            self._open()
            return
        file = self._file
        assert file is not None
        size, links = file.extent()
        if size == self._position and links:
            return
        if not links or size < self._position:
            self._open()
        else:
            self._take_in(file, size)

    def append(self, *records: bytes) -> None:
        """Write records and apply them.

        Raises:
            WriterFailedError: the write failed; the queue must be reopened.
        """
        data = records[0] if len(records) == 1 else b"".join(records)
        self.write(data)
        self.state.apply(data)

    def write(self, data: bytes) -> None:
        """Write records, which the caller then applies.

        Raises:
            WriterFailedError: as :meth:`append`.
        """
        assert self._file is not None and self.unsure
        try:
            try:
                self._file.write(data)
            except OSError as error:
                self.reserve.make_room(error)
                self._file.write(data[self._file.size() - self._position :])  # a part may have been written
        except OSError as error:
            raise self._broken(error) from error
        self.appended += len(data)
        self._position += len(data)

    @property
    def large(self) -> bool:
        """Return whether the log must be compacted."""
        least = min(self._compact_bytes, RESERVE_BYTES // 4) if self.reserve.spent else self._compact_bytes
        return self._position > least + 2 * self._compacted_bytes

    def compact(self) -> None:
        """Write a new log with the state and without its history: durable, and only after its messages are."""
        try:
            self.keep_head()
            self._replace(self.epoch, self.state)
        except OSError as error:
            raise self._broken(error) from error

    def result(self, message: Message, outcome: int, data: bytes = b"") -> bytes:
        """Return the records of a result, which come before the one that ends the item; none if it is not kept."""
        keep_ns, *link = self.state.keeps.get(message.offset, (0,))
        if link != [message.timestamp, records.message_check(message)]:
            return b""
        until_ns = min(self._clock.boot_ns() + keep_ns, NEVER)
        text = records.packed_result(outcome, until_ns, data)
        return b"".join(records.in_parts(records.RESULT, message.offset, text))

    def expires_in_s(self, message: Message) -> float | None:
        """Return after how many seconds an item expires; None: never.

        The log has the time. If the wall clock was set back since, the result is at least the remaining time.
        """
        row = self.state.expires.get(message.offset)
        if row is None or row[1:] != (message.timestamp, records.message_check(message)):
            return None
        left = row[0] - self._clock.boot_ns()
        return max(left + self._clock.wall_ns() - message.timestamp, left, 0) / 1e9

    def purge(self, end: int) -> None:
        """Remove what waits below end: durably first, or messages put there after a power loss would be removed too."""
        try:
            sync_up_to(self._directory, end, self.tail)
        except OSError as error:
            raise self._broken(error) from error
        self.append(records.PURGE(self.state.frontier, max(end, self.state.frontier)))
        self.compact()

    def keep_clock(self) -> None:
        """Record again when this boot began if the wall clock was set since: a reboot carries times by it."""
        began = self._began_ns()
        boot_id, recorded = self.state.boot or (self._clock.boot_id(), -_SET_NS)
        if abs(began - recorded) >= _SET_NS:
            self.append(records.booted(boot_id, began, self._clock.boot_ns()))

    def keep_head(self) -> None:
        """Commit the head, for readers that do not know the queue, and for retention."""
        value = self.state.head()
        if value == self.state.kept:
            return
        self.prepare_head()
        void = [records.deduped(key, 0, 0, 0) for _, key, _ in self.state.dedupe.unproven(value)]
        if void:  # recorded before retention may remove the messages that prove it
            self.append(*void)
        self._keep_offset(value)
        self.append(records.KEPT(value, self._clock.boot_ns()))
        if self.reserve.spent:
            self.reserve.fill()

    def _keep_offset(self, value: int) -> None:
        self._disk.mkdir(self._directory.at("tmp"))
        try:
            keep_offset(self._directory, self._name, value, strict=True)
        except OSError as error:
            self.reserve.make_room(error)
            keep_offset(self._directory, self._name, value, strict=True)

    def _compare_keys(self, value: int) -> None:
        """Compare the dedupe keys below a head with their messages; keys whose messages were never written are kept."""
        rows = self.state.dedupe.unproven(value)
        if not rows:
            return
        void = []
        with closing(MessageReader(self._directory, 64)) as reader:
            for offset, key, check in rows:
                try:
                    message = reader.at(offset)
                except SejError:  # it was removed or is damaged: unknown
                    continue
                if message is None or message.offset != offset or records.message_check(message) != check:
                    void.append((offset, key))
        self.state.dedupe.compared(value, void)

    def prepare_head(self) -> None:
        """Sync what :meth:`keep_head` relies on, without the lock, so that no process waits for that."""
        value = self.state.head()
        if value == self.state.kept:
            return
        if value > self._synced_to:
            sync_up_to(self._directory, value, self.tail)
            self._synced_to = value
        self._compare_keys(value)

    def fail(self, error: BaseException) -> None:
        """Let every later call of the queue raise."""
        self.life.fail(error)

    def sync_some(self) -> int:
        """Sync the log, without the lock; return the previous value of :attr:`appended`.

        Raises:
            ClosedError: another thread or a signal handler closed the log in the meantime.
            WriterFailedError: it was closed because a write or sync had failed.
        """
        appended, file, position, doubt = self.appended, self._file, self._position, self._in_doubt
        if file is not None:
            try:
                renew(self._disk, file, *doubt, check=self._check_renewed, piece_bytes=_READ_BYTES)
                file.sync()
            except OSError as error:
                if error.errno != errno.EBADF:
                    raise
                self.life.require()
                raise ClosedError(
                    "the queue was closed before its log was synced; open it again, and repeat the call", path=self.path
                ) from error
            if doubt is self._in_doubt:
                self._in_doubt = (0, 0)
            self._kept.store(file, 0, position, 0)
        return appended

    def _check_renewed(self, data: bytes, position: int) -> None:
        if records.good_bytes(data)[0] != len(data):
            raise CorruptionError(
                "the disk lost records of this queue's log: they are not the bytes that were written; reopen the queue",
                path=self.path,
                position=position,
            )

    def force(self) -> None:
        """With the lock held, sync what was logged so far.

        Raises:
            WriterFailedError: the sync failed.
        """
        try:
            self.sync_some()
        except OSError as error:
            raise self._broken(error) from error

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        if self._file is not None:
            self._file.close()
        self._kept.forget()
        self.guard.close()

    # --- opening

    def _open(self, *, first: bool = False) -> None:
        """Read the whole log, or create it."""
        if not first:
            self._directory.require()  # perhaps the journal was removed
        file = self._disk.open(self.path, "append")
        self._file = file
        self.state = QueueState()
        self._position = self._compacted_bytes = 0
        size = file.status().size
        epoch = records.read_head(file.read(records.RECORD_SIZE, 0), self._name)
        if epoch is None:
            reason = f"{size} bytes that do not begin with the head of this queue's log" if size else ""
            self._rebuild(reason)
        else:
            self.epoch = epoch
            self._position = self._compacted_bytes = records.RECORD_SIZE
            self._take_in(file, size)
            if not self.state.whole:
                self._rebuild("the records of the last compaction are not complete")
            if self._is_new_boot() and self.state.order.mode:  # power may have failed between the records of an item
                self.append(*missing_keys(self._directory, self.state))
            if first:
                self._reconcile()
        self._compacted_bytes = min(self._position, self._compacted_bytes)
        if self._file is file:  # what was written before this process opened the log may not be on the medium
            kept = self._kept.load(file, 0)
            if not kept.position:
                self._disk.sync_dir(os.path.dirname(self.path))
            self._in_doubt = max(records.RECORD_SIZE, kept.position), self._position
        if self._is_new_boot():
            self.append(records.booted(self._clock.boot_id(), self._began_ns(), self._clock.boot_ns()))
        else:
            self.keep_clock()

    def _take_in(self, file: File, size: int) -> None:
        """Apply the records after the position; cut a torn tail."""
        data = file.read(size - self._position, self._position)
        good, damaged = records.good_bytes(data)
        self.state.most = self._most
        try:
            self.state.apply(data[:good])
        except WrongRecordError:
            end = self.tail.end_offset()
            if end <= self._most:
                self._rebuild(f"a record after position {self._position} about messages that the journal does not have")
                return
            self._most, self.state, self._position = end, QueueState(), records.RECORD_SIZE  # from the start
            self._take_in(file, size)
            return
        self.state.most = NEVER
        self._position += good
        if damaged:
            self._rebuild(f"a bad record at position {self._position}, followed by good ones")
        elif good != len(data) and self.state.whole:  # else the opening rebuilds the log, and keeps all of it
            file.truncate(self._position)

    def _reconcile(self) -> None:
        """On opening, check that the state matches this journal and its kept offset."""
        state = self.state
        there = self._read_kept()
        if state.kept is not None and (there is None or there < state.kept):
            self._replace(self._fresh_epoch(), self._from_start(there))
        elif self._lost():
            self._rebuild("the journal does not hold the newest message that was taken: it lost messages")
        elif there is not None and there > state.head():  # reset forwards, or a crash came between it and the log
            state.begin_at(there)
            self._replace(self.epoch, state, recount=True)

    def _lost(self) -> bool:
        """Return whether the journal lost messages that were taken."""
        known = [row for row in (self.state.anchor, self.state.ahead) if row is not None]
        return not all(holds(self._directory, self.tail, *row) for row in known)

    def _rebuild(self, reason: str) -> None:
        """Start from the good records and the kept offset; items in doubt are delivered again."""
        file = self._file
        assert file is not None
        there = self._read_kept()
        if reason:
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            where = keep(self._directory, file, 0, file.status().size, f"{self._name}.queue.{stamp}")
            self.recovered = f"{self.path}: {reason}; it is kept in {where}, and items may be delivered twice"
            record(__name__, WARNING, "%s", self.recovered)
        state, stop = self.state, None
        if state.whole and state.order.mode:
            state.apply(b"".join(missing_keys(self._directory, state)))
        if state.whole and self._lost():
            stop = proven(
                self._directory, self.tail, file.read(self._position - records.RECORD_SIZE, records.RECORD_SIZE)
            )
            if stop is not None:
                state.end_at(max(stop, there or 0))
        if not state.whole or (stop is None and self._lost()):
            state = self._from_start(there)
        state.requeue_all()
        state.kept = there
        self._replace(self._fresh_epoch(), state, recount=stop is not None)

    def _from_start(self, there: int | None) -> QueueState:
        """Return a state in which nothing is taken, with the known order, attempts and pause of this queue."""
        order = self.state.order if self.state.order.mode else self._new_order
        return self.state.begun_again(self._first_offset(there), order)

    def _read_kept(self) -> int | None:
        """Return the kept offset from the disk."""
        try:
            there = read_offset(self._directory.path, self._name, disk=self._disk)
        except BadOffsetFileError:
            there = lowest_kept(self._directory, self._name)
            if there is None:
                raise
            self._begin_a_copy(there)
        if there is not None and there > (end := self.tail.end_offset()):
            raise OffsetBeyondEndError(
                f"queue {self._name!r} is at offset {there}, but the journal ends at {end}: it lost messages or was"
                " replaced, and new items would count as done; move it back with the command that `sej doctor` prints",
                path=self.ofs_path,
                offset=there,
            )
        return there

    def _begin_a_copy(self, there: int) -> None:
        """Make the kept offset and its twin agree, which were copied while the queue was in use, and report it."""
        self.recovered = (
            f"{self.ofs_path}: this file and its twin differ, as in a copy of a queue in use; the queue continues at"
            f" the lower offset, {there}, and items may be delivered twice"
        )
        self._keep_offset(there)

    def _first_offset(self, kept: int | None) -> int:
        if kept is not None:
            return kept
        if self._default is FIRST:
            return Journal(self._directory.path, disk=self._disk).first_offset
        return self.tail.end_offset() if isinstance(self._default, Start) else self._default

    def _began_ns(self) -> int:
        return max(self._clock.wall_ns() - self._clock.boot_ns(), 0)

    def _is_new_boot(self) -> bool:
        """Return whether times are to be converted: the log is new, or the machine was restarted."""
        return self.state.boot is None or self.state.boot[0] != self._clock.boot_id()

    def _replace(self, epoch: int, state: QueueState, *, recount: bool = False) -> None:
        """Replace this log by one of a state; what was read of the old one is forgotten.

        Args:
            epoch: of the new log.
            state: written as records.
            recount: whether its parked items must be counted, in the journal.
        """
        end = self.tail.end_offset()
        state.frontier = min(state.frontier, end)  # lower only if the journal lost messages
        ahead = 0 if state.ahead is None else min(state.ahead[0] + 1, end)
        sync_up_to(self._directory, max(state.frontier, ahead), self.tail)
        if recount:
            state.order.count = sum(1 for _ in parked_offsets(self._directory, state))
        data = records.head(epoch, self._name) + snapshot(state, self._clock.boot_ns(), end)
        self._disk.mkdir(self._directory.at("tmp"))
        temporary = self._directory.at("tmp", f"{self._name}.queue")
        try:
            replace_file(self._disk, temporary, self.path, data)
        except OSError as error:
            self.reserve.make_room(error)
            replace_file(self._disk, temporary, self.path, data)
        self._file = self._disk.open(self.path, "append")  # the old file is closed after the last sync of it
        self.epoch = epoch
        self._position = self._compacted_bytes = len(data)
        self._kept.store(self._file, 0, len(data), 0)
        self._in_doubt = (0, 0)
        fresh = QueueState()
        fresh.apply(data[records.RECORD_SIZE :])
        self.state = fresh

    def _fresh_epoch(self) -> int:
        return int.from_bytes(os.urandom(4), "big")

    def _broken(self, error: OSError) -> Exception:
        """Return the exception for a failed write or sync; an interrupt is returned unchanged."""
        if not is_failure(error):
            return error
        self.fail(error)
        return self.as_writer_failed(error)

    def as_writer_failed(self, error: BaseException) -> WriterFailedError:
        """Return the error that reports a failed write or sync."""
        return WriterFailedError(
            f"a write to the queue's log failed: {way_out(self._disk, self.path, error)}; then open the"
            " queue again, which finds what is on disk",
            path=self.path,
            position=self._position,
        )


def register_queue(directory: Directory, name: str, create: bool | None) -> None:
    """Register this queue for retention, and for the check of other queues' names, before it has kept an offset.

    Raises:
        QueueNotFoundError: it does not exist, and ``create`` does not allow creating it.
    """
    with readers_lock(directory):
        require_known(name, directory.queue_names(), create, directory.path)
        paths = [directory.at("ofs", f"{name}.ofs"), directory.at("ofs", f"{name}.queue")]
        if directory.disk.status(paths[0]) is None:
            drop_twin(directory, name)
            if may_have_twin(name):  # now: later there may be no inode for it
                paths.insert(0, twin_path(directory, name))
        for path in paths:
            if directory.disk.status(path) is None:
                directory.disk.open(path, "append").close()
