"""The state log of a queue on disk: caught up with, appended to and compacted, all under the queue's lock.

``ofs/NAME.queue`` is appended to by every process that has the queue open; ``ofs/NAME.queue.lck`` is locked for each
change. A process that holds the lock first takes in what the others wrote, so that all agree on the state.

What it promises:

- A log that ends inside a record was left by a writer that died: the rest is cut. Bad records at the end are torn,
  too. Where good records follow bad ones the log is damaged: it is kept aside, the state is what stood before the
  damage, every lease is void, and what was done behind it is handed out again. Nothing is lost.
- A state never outlives its messages: before the log is synced, the journal is, up to the frontier; and where the
  journal does not hold the newest message that the log knows (the machine lost power before either was synced), what
  the log says of those that were lost is forgotten: others come in their place.
- The kept offset, ``ofs/NAME.ofs``, is never above the first message that is not done.
- Whatever ends an operation in the middle, a signal's handler included, leaves ``unsure`` True, because it is True from
  the operation's beginning to its end. The next operation reads the log again.
"""

from __future__ import annotations

import errno
import os
import time
from typing import Final

from sej.errors import ClosedError, CorruptionError, OffsetBeyondEndError, SejError, WriterFailedError
from sej.journal.directory import Directory
from sej.journal.end import Tail
from sej.journal.medium import sync_up_to
from sej.journal.recovery import keep
from sej.journal.retention import readers_lock
from sej.journal.twin import drop_twin, keep_offset
from sej.journal.view import Journal
from sej.message import FIRST, Start
from sej.queue.clock import Clock
from sej.queue.interface import require_known
from sej.queue.lock import QueueLock
from sej.queue.log_format import RECORD_SIZE
from sej.queue.proof import holds, proven
from sej.queue.reader import MessageReader
from sej.queue.records import booted, deduped, head, kept, message_check, purged, read_head
from sej.queue.replay import apply, good_bytes
from sej.queue.reserve import RESERVE_BYTES, Reserve
from sej.queue.snapshot import Contents
from sej.queue.state import QueueState
from sej.reading.offset import read_offset
from sej.system.disk import File, full_disk_advice, is_full, replace_file
from sej.system.durable import KeptPosition, renew
from sej.system.group_commit import is_failure

__all__ = ["QueueLog", "queue_names", "register_queue"]

_COMPACT_BYTES: Final = 1 << 22
_SUFFIX: Final = ".queue"
_READ_BYTES: Final = RECORD_SIZE << 14


class QueueLog:
    """The log of one queue, as one process has it open.

    Attributes:
        state: what the log says; up to date while the lock is held.
        epoch: of the log; a lease of another epoch is void.
        recovered: what opening found damaged, or None.
        reserve: the room on the disk that is kept for this log.
        appended: how many bytes this process has appended.
        unsure: whether the state may not be what the log says; so it is while an operation changes it.
        guard: the queue's lock; its ``release`` is for the ``finally`` of an operation.
    """

    def __init__(
        self,
        directory: Directory,
        name: str,
        clock: Clock,
        *,
        default: int | Start = FIRST,
        compact_bytes: int = _COMPACT_BYTES,
    ) -> None:
        """Open the log; made if missing."""
        self._directory = directory
        self._disk = directory.disk
        self._name = name
        self._clock = clock
        self._default = default
        self._compact_bytes = compact_bytes
        self.path = directory.at("ofs", f"{name}.queue")
        self._kept = KeptPosition(directory.disk, f"{self.path}.durable")
        self._in_doubt = (0, 0)
        self.ofs_path = directory.at("ofs", f"{name}.ofs")
        self.tail = Tail(directory)
        self.state = QueueState()
        self.epoch = 0
        self.recovered: str | None = None
        self.appended = 0
        self._position = 0
        self._compacted_bytes = self._synced_to = 0
        self._failure: BaseException | None = None
        self.unsure = True
        self._file: File | None = None
        self.reserve = Reserve(directory, name)
        self.guard = QueueLock(directory, name, self._read_ahead)
        try:
            self.guard.take()
            self._open(first=True)
            self.reserve.fill()
            self.unsure = False
        finally:
            self.guard.release()

    def _read_ahead(self) -> bool:
        """Without the lock: apply whole, good records; whatever else is there is the business of who has the lock.

        The log only grows, so that less is left to be read by one process at a time.
        """
        file = self._file
        if file is None or self._failure is not None or self.unsure:
            return False
        size = file.status().size - self._position
        if size < RECORD_SIZE:
            return False
        data = file.read(min(size - size % RECORD_SIZE, _READ_BYTES), self._position)
        good, _ = good_bytes(data)
        self._take_up(memoryview(data)[:good])
        return good > 0

    def _take_up(self, records: bytes | memoryview) -> None:
        """Apply what stands at the position: both change, or the state is in doubt."""
        before, self.unsure = self.unsure, True
        apply(self.state, records)
        self._position += len(records)
        self.unsure = before

    # --- under the lock

    def catch_up(self) -> None:
        """Take in what the others wrote, and begin an operation: whoever ends it well sets ``unsure`` to False.

        Raises:
            WriterFailedError: a write of this process failed before.
        """
        if self._failure is not None:
            raise self._failed(self._failure) from self._failure
        before, self.unsure = self.unsure, True
        if before:
            self._open()
            return
        file = self._file
        assert file is not None
        status = file.status()
        if status.size == self._position and status.links:
            self.guard.noticed(False)
            return
        self.guard.noticed(True)
        if not status.links or status.size < self._position:
            self._open()
        else:
            self._take_in(file, status.size)

    def append(self, *records: bytes) -> None:
        """Write records and apply them.

        Raises:
            WriterFailedError: the write failed; the queue is to be opened anew.
        """
        data = records[0] if len(records) == 1 else b"".join(records)
        assert self._file is not None and self.unsure
        try:
            try:
                self._file.write(data)
            except OSError as error:
                if not is_full(error):
                    raise
                self.reserve.release()
                self._file.write(data[self._file.size() - self._position :])  # some of it may have been written
        except OSError as error:
            raise self._broken(error) from error
        self.appended += len(data)
        apply(self.state, data)
        self._position += len(data)

    @property
    def large(self) -> bool:
        """Whether a compaction is due."""
        least = min(self._compact_bytes, RESERVE_BYTES // 4) if self.reserve.spent else self._compact_bytes
        return self._position > least + 2 * self._compacted_bytes

    def compact(self) -> None:
        """Write the state anew, without its history: durable, and only after its messages are."""
        try:
            self.keep_head()
            self._replace(self.epoch, Contents.of(self.state))
        except OSError as error:
            raise self._broken(error) from error

    def purge(self, end: int) -> None:
        """Throw away what waits below end: durable first, or what is put there after a loss of power would go, too."""
        try:
            sync_up_to(self._directory, end, self.tail)
        except OSError as error:
            raise self._broken(error) from error
        self.append(purged(self.state.frontier, max(end, self.state.frontier)))
        self.compact()

    def keep_head(self) -> None:
        """Let readers that know nothing of the queue, and retention, know what is done."""
        value = self.state.head()
        if value == self.state.kept:
            return
        self.prepare_head()
        void = [deduped(key, 0, 0, 0) for _, key, _ in self.state.dedupe.unproven(value)]
        if void:  # forgotten before retention may take what tells so
            self.append(*void)
        self._disk.mkdir(self._directory.at("tmp"))
        self.reserve.with_room(lambda: keep_offset(self._directory, self._name, value, strict=True))
        self.append(kept(value, self._clock.boot_ns()))
        if self.reserve.spent:
            self.reserve.fill()

    def _compare_keys(self, value: int) -> None:
        """Compare the dedupe keys below a head with their messages; those whose messages were never written stay."""
        rows = self.state.dedupe.unproven(value)
        if not rows:
            return
        void = []
        reader = MessageReader(self._directory, 64)
        try:
            for offset, key, check in rows:
                try:
                    message = reader.at(offset)
                except SejError:  # it is gone, or damaged: nobody can tell
                    continue
                if message is None or message.offset != offset or message_check(message) != check:
                    void.append((offset, key))
        finally:
            reader.close()
        self.state.dedupe.compared(value, void)

    def prepare_head(self) -> None:
        """Make durable what :meth:`keep_head` relies on: without the lock, so that nobody waits for that."""
        value = self.state.head()
        if value != self.state.kept and value > self._synced_to:
            sync_up_to(self._directory, value, self.tail)
            self._synced_to = value
        if value != self.state.kept:
            self._compare_keys(value)

    def sync(self) -> int:
        """Force the log to the disk, without the lock; returns what :attr:`appended` was before.

        Raises:
            ClosedError: another thread or a signal's handler closed the log meanwhile.
        """
        appended, file, position, doubt = self.appended, self._file, self._position, self._in_doubt
        if file is not None:
            try:
                renew(self._disk, file, *doubt, check=self._check_renewed, piece_bytes=_READ_BYTES)
                file.sync()
            except OSError as error:
                if error.errno != errno.EBADF:
                    raise
                raise ClosedError("the queue was closed before its log was synced", path=self.path) from error
            if doubt is self._in_doubt:
                self._in_doubt = (0, 0)
            self._kept.store(file, 0, position, 0)
        return appended

    def _check_renewed(self, data: bytes, position: int) -> None:
        if good_bytes(data)[0] != len(data):
            raise CorruptionError(
                "the records of this queue's log are not what was written: the disk lost them; open the queue again",
                path=self.path,
                position=position,
            )

    def force(self) -> None:
        """With the lock: what was logged so far is on the disk when this returns.

        Raises:
            WriterFailedError: the sync failed.
        """
        try:
            self.sync()
        except OSError as error:
            raise self._broken(error) from error

    def fail(self, error: BaseException) -> None:
        """Take note that a sync failed: nobody knows what is on disk."""
        self._failure = self._failure or error

    @property
    def failed(self) -> bool:
        """Whether a write or sync failed."""
        return self._failure is not None

    def close(self) -> None:
        """Close the files; a second time does nothing."""
        if self._file is not None:
            self._file.close()
        self._kept.forget()
        self.guard.close()

    # --- opening

    def _open(self, *, first: bool = False) -> None:
        """Read the whole log, or make one."""
        file = self._disk.open(self.path, "append")
        self._file = file
        self.state = QueueState()
        self._position = self._compacted_bytes = 0
        size = file.status().size
        epoch = read_head(file.read(RECORD_SIZE, 0), self._name)
        if epoch is None:
            reason = f"{size} bytes that begin with no head of a queue's log" if size else ""
            self._rebuild(reason)
        else:
            self.epoch = epoch
            self._position = self._compacted_bytes = RECORD_SIZE
            self._take_in(file, size)
            if first:
                self._reconcile()
        self._compacted_bytes = min(self._position, self._compacted_bytes)
        if self._file is file:
            self._find_doubt(file)
        self._boot()

    def _find_doubt(self, file: File) -> None:
        """What was written before this process opened the log, and is not known to be on the medium."""
        kept = self._kept.load(file, 0)
        if kept is None or not kept.position:
            self._disk.sync_dir(os.path.dirname(self.path))
        self._in_doubt = max(RECORD_SIZE, kept.position if kept else 0), self._position

    def _take_in(self, file: File, size: int) -> None:
        """Apply what stands behind the position; cut a torn tail."""
        while self._position < size:
            data = file.read(min(_READ_BYTES, size - self._position), self._position)
            good, damaged = good_bytes(data)
            self._take_up(memoryview(data)[:good])
            if good == len(data):
                continue
            if damaged or self._good_behind(file, self._position + RECORD_SIZE, size):
                self._rebuild(f"a bad record at position {self._position}, and good ones behind it")
                return
            file.truncate(self._position)
            return

    def _good_behind(self, file: File, position: int, size: int) -> bool:
        while position < size:
            data = file.read(min(_READ_BYTES, size - position), position)
            if data.count(0) != len(data):  # zeros, which may be many, are no records
                good, damaged = good_bytes(data)
                if good or damaged:
                    return True
            position += _READ_BYTES
        return False

    def _reconcile(self) -> None:
        """On opening: is this the state of this journal, and of this kept offset?"""
        state = self.state
        there = self._read_kept()
        if state.kept is not None and (there is None or there < state.kept):
            self._replace(self._fresh_epoch(), Contents.of(QueueState(self._first_offset(there))))
            return
        if self._lost():
            self._rebuild("the journal does not hold the newest message that was taken: it lost messages")
            return
        if there is not None and there > state.head():  # it was reset forwards, or a crash came between it and the log
            self._replace(self.epoch, Contents.of(state).from_offset(there))

    def _lost(self) -> bool:
        """Whether the journal lost messages that were taken."""
        known = [row for row in (self.state.anchor, self.state.ahead) if row is not None]
        return not all(holds(self._directory, self.tail, *row) for row in known)

    def _rebuild(self, reason: str) -> None:
        """Start from the good records and the kept offset; what is in doubt is handed out again."""
        file = self._file
        assert file is not None
        there = self._read_kept()
        if reason:
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            where = keep(self._directory, file, 0, file.status().size, f"{self._name}.queue.{stamp}")
            self.recovered = f"{self.path}: {reason}; it is kept in {where}, and items may come twice"
        contents, stop = Contents.of(self.state), None
        if self._position > RECORD_SIZE and self._lost():
            stop = proven(self._directory, self.tail, file.read(self._position - RECORD_SIZE, RECORD_SIZE))
            if stop is not None:
                contents = contents.up_to(max(stop, there or 0))
        if self._position <= RECORD_SIZE or (stop is None and self._lost()):
            contents = Contents.of(QueueState(self._first_offset(there)))
        self._replace(self._fresh_epoch(), contents.given_back()._replace(kept=there))

    def _read_kept(self) -> int | None:
        """The kept offset, as it stands on disk."""
        there = read_offset(self._directory.path, self._name, disk=self._disk)
        if there is not None and there > (end := self.tail.end_offset()):
            raise OffsetBeyondEndError(
                f"queue {self._name!r} stands at {there}, but the journal ends at {end}: it lost messages or was"
                " replaced, and what is put now would count as done; put the reader back with `sej reset`",
                path=self.ofs_path,
                offset=there,
            )
        return there

    def _first_offset(self, kept: int | None) -> int:
        if kept is not None:
            return kept
        if self._default is FIRST:
            return Journal(self._directory.path, disk=self._disk).first_offset
        return self.tail.end_offset() if isinstance(self._default, Start) else self._default

    def _boot(self) -> None:
        """Let times be of this boot."""
        boot_id = self._clock.boot_id()
        if self.state.boot is None or self.state.boot[0] != boot_id:
            began = max(self._clock.wall_ns() - self._clock.boot_ns(), 0)
            self.append(booted(boot_id, began, self._clock.boot_ns()))

    def _replace(self, epoch: int, contents: Contents) -> None:
        """Let a new log take the place of this one; its state is what its records say."""
        end = self.tail.end_offset()
        if contents.frontier > end:
            contents = contents._replace(frontier=end)  # only if the journal lost messages
        ahead = 0 if contents.ahead is None else min(contents.ahead[0] + 1, end)
        sync_up_to(self._directory, max(contents.frontier, ahead), self.tail)
        data = head(epoch, self._name) + b"".join(contents.records(self._clock.boot_ns(), end))
        self._disk.mkdir(self._directory.at("tmp"))
        temporary = self._directory.at("tmp", f"{self._name}.queue")
        self.reserve.with_room(lambda: replace_file(self._disk, temporary, self.path, data))
        self._file = self._disk.open(self.path, "append")  # the old one closes when nobody syncs it any more
        self.epoch = epoch
        self._position = self._compacted_bytes = len(data)
        self._kept.store(self._file, 0, len(data), 0)
        self._in_doubt = (0, 0)
        fresh = QueueState()
        apply(fresh, memoryview(data)[RECORD_SIZE:])
        self.state = fresh

    def _fresh_epoch(self) -> int:
        return int.from_bytes(os.urandom(4), "big")

    def _broken(self, error: OSError) -> Exception:
        """What is to be raised after a write or a sync; an interrupt is handed on, and says nothing of the disk."""
        if not is_failure(error):
            return error
        self.fail(error)
        return self._failed(error)

    def _failed(self, error: BaseException) -> WriterFailedError:
        return WriterFailedError(
            f"a write to the queue's log failed: {error}; open the queue again, which finds what is on disk"
            f"{full_disk_advice(self._disk, self._directory.path, error)}",
            path=self.path,
            position=self._position,
        )


def queue_names(directory: Directory) -> list[str]:
    """The names of the queues over a journal."""
    if directory.disk.status(directory.at("ofs")) is None:
        return []
    return [name.removesuffix(_SUFFIX) for name in directory.disk.list(directory.at("ofs")) if name.endswith(_SUFFIX)]


def register_queue(directory: Directory, name: str, create: bool | None) -> None:
    """Let retention, and whoever opens a queue of another name, know of this one before it has kept anything.

    Raises:
        QueueNotFoundError: it would be made, and create does not allow that.
    """
    with readers_lock(directory):
        require_known(name, queue_names(directory), create, directory.path)
        if directory.disk.status(directory.at("ofs", f"{name}.ofs")) is None:
            drop_twin(directory, name)
        for path in (directory.at("ofs", f"{name}.ofs"), directory.at("ofs", f"{name}{_SUFFIX}")):
            if directory.disk.status(path) is None:
                directory.disk.open(path, "append").close()
