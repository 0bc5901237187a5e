"""The end of a journal that others append to as well: what happened since one's last turn, and the next append.

Between its turns a shared writer holds nothing but open files. So at each turn it looks what happened meanwhile:

- ``jnl.lck`` holds a mark, ``shared`` and 16 hex digits, which changes whenever the last segment does, and which every
  exclusive writer (ours signs the file, the original wipes it) destroys. The mark it left is the mark it finds: the
  last segment is still the last one, and only other shared writers were here.
- After an original's trace (:mod:`sej.system.original`) the mark says so, and each turn looks at the lock file, too.
- Then the segment's size says whether they appended; what is new is measured, so that the next offset is known.
- Anything else is looked at afresh: the end is found, a torn tail cut and kept, the index extended.

What a dead writer had promised (``append_once``, a merge, a repair) is finished by opening an exclusive writer first.
Everything here runs with the mutex of its writer held.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from typing import Final

from sej.codec import measure
from sej.errors import CorruptionError, DecodeError, LockedError, LockLostError
from sej.journal.directory import Directory
from sej.journal.identity import journal_id
from sej.journal.medium import kept_position
from sej.journal.retention import Retention, clean
from sej.system.disk import File, Tolerated, of_system
from sej.system.durable import renew
from sej.system.original import Trace, find_trace, is_current, pause
from sej.writing.guarded import write_guarded
from sej.writing.opening import End, open_end, start_segment
from sej.writing.overlap import has_surplus
from sej.writing.writer import Writer

__all__ = ["SharedEnd"]

_MARK: Final = b"shared "
_MARK_BYTES: Final = len(_MARK) + 16
_SIGNED_BYTES: Final = 256
_PAUSE_S: Final = 0.00005
"""Longer than a turn: who has the lock gets on with it, instead of handing it over at the price of a switch each."""
_PAUSE_MAX_S: Final = 0.002
_LOCK_CHECK_S: Final = 0.1
_INDEX_BYTES: Final = 1 << 24
"""So much grows without an index: what somebody who looks for one message has to walk at most."""


class SharedEnd:
    """The end of a journal, as one of many writers knows it.

    Attributes:
        offset: within a turn, what the next message gets; else what it was at the last turn.
        position: where it will stand in the last segment.
        file: the last segment; None before the first turn.
        first_offset: of the last segment.
    """

    def __init__(
        self,
        directory: Directory,
        *,
        segment_bytes: int,
        retention: Retention | None,
        lock_timeout: float | None,
        sealed: Callable[[int], None],
    ) -> None:
        """Open the lock file; made if missing.

        Args:
            directory: the SEJ directory.
            segment_bytes: a segment is ended by the message that makes it this long.
            retention: applied whenever this writer ends a segment.
            lock_timeout: seconds to wait while an exclusive writer has the journal; None waits for ever.
            sealed: told below which offset everything is durable, when that is known.
        """
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._retention = retention
        self._lock_timeout = lock_timeout
        self._sealed = sealed
        self._kept = kept_position(directory)
        self._in_doubt: tuple[File | None, int, int] = None, 0, 0
        """A segment and the stretch of it that was not synced when it was opened, see :mod:`sej.system.durable`."""
        self._mark = b""
        self._lock_path = directory.at("jnl.lck")
        self._was_missing = directory.disk.status(self._lock_path) is None
        self._lock = directory.disk.open(self._lock_path, "append")
        self.leave: Callable[[], object] = self._lock.unlocker()
        """Lets go of the lock, in C; at any time."""
        self._original: Trace | None = None
        self._lock_check_at = 0.0
        self._indexed_to = 0
        self.file: File | None = None
        self.offset = self.position = self.first_offset = 0

    def enter(self) -> None:
        """Take the lock; :meth:`look` comes next.

        Raises:
            LockedError: an exclusive writer has the journal, for longer than lock_timeout.
        """
        if not self._lock.lock(wait=False, brief=True):
            self._wait_for_lock()

    def doubt(self) -> None:
        """Something ended a turn in the middle: :meth:`look` searches for the end again."""
        self._mark = b""

    def write(self, data: bytes, count: int) -> None:
        """Append count messages, within a turn."""
        file = self.file
        assert file is not None
        if self._original is None:
            file.write(data)
        else:
            with memoryview(data) as view:
                write_guarded(file, view, self.position, self._require_lock_file)
        self.position += len(data)
        self.offset += count
        if self.position >= self._segment_bytes:
            self._rotate()
            self._sign()
        elif self.position - self._indexed_to >= _INDEX_BYTES:
            self._take(self._look_at_end())  # extends the index

    def sync(self, file: File, first_offset: int, position: int, offset: int) -> None:
        """Force a segment to the medium and keep its position; another thread may be within a turn."""
        of, start, end = self._in_doubt
        if of is file:
            renew(self._directory.disk, file, start, end)
            self._in_doubt = None, 0, 0
        file.sync()
        self._kept.store(file, first_offset, position, offset)

    def close(self) -> None:
        """Close the files; a second time does nothing."""
        self.leave = _nothing
        self._lock.close()
        self._kept.forget()
        self.file = None  # a sync in another thread may have it still: it closes with the last who does

    def look(self) -> None:
        """What happened since the last turn?"""
        now = time.monotonic()
        if now >= self._lock_check_at or self._original is not None:
            self._check_lock_file()
            self._lock_check_at = now + _LOCK_CHECK_S
        if self.file is None or not self._mark or self._lock.read(_MARK_BYTES, 0) != self._mark:
            self._look_afresh()
            return
        size = self.file.status().size
        if size != self.position and not self._catch_up(size):
            self._look_afresh()

    def _catch_up(self, size: int) -> bool:
        """Measure what others appended; False where it is not all whole messages."""
        assert self.file is not None
        if size < self.position or size - self.position > _INDEX_BYTES:
            return False  # so much is walked piece by piece
        data = self.file.read(size - self.position, self.position)
        try:
            run = measure(data, 0, len(data), self.offset, len(data))
        except DecodeError:
            return False
        self.offset += run.messages
        self.position += run.position
        return run.position == len(data)

    def _look_afresh(self) -> None:
        """Find the end as an exclusive writer does when it opens."""
        while True:
            self._check_lock_file()
            self._find_trace()
            while self._promised():
                self._let_a_writer_finish()
            try:
                self._take(self._look_at_end())
            except CorruptionError:
                if self._original is None:
                    raise
                self._let_a_writer_finish()  # what two writers left, or it raises the same
                continue
            if self._original is not None and has_surplus(self._directory):
                self._let_a_writer_finish()
                continue
            if self._original is None or is_current(self._directory.disk, self._lock, self._lock_path):
                break
        journal_id(self._directory, create=True)
        mark = self._lock.read(_MARK_BYTES, 0)
        if self.position >= self._segment_bytes:
            self._rotate()
            self._sign()
        elif len(mark) == _MARK_BYTES and mark.startswith(_MARK):
            self._mark = mark  # another shared writer's: what was found just now is what it stands for
        else:
            self._sign()

    def _let_a_writer_finish(self) -> None:
        """Open an exclusive writer, which takes the lock itself and finishes or mends what is there."""
        self._lock.unlock()
        try:
            Writer(self._directory.path, segment_bytes=self._segment_bytes, lock_timeout=self._lock_timeout,
                   allow_network_fs=True, disk=self._directory.disk).close()  # fmt: skip
        finally:
            self._wait_for_lock()
            self._check_lock_file()

    def _find_trace(self) -> None:
        """Whether an original was here of late; give one that has just closed the time to unlink."""
        content = self._lock.read(_SIGNED_BYTES, 0)
        written = bool(content) or bool(self._directory.segments())
        self._original = find_trace(content, missing=self._was_missing, written=written)
        if self._original is not None and not content and not self._was_missing:
            pause(self._lock.status(), lambda: is_current(self._directory.disk, self._lock, self._lock_path))
            self._check_lock_file()

    def _promised(self) -> bool:
        disk, txn = self._directory.disk, self._directory.at("txn")
        if disk.status(txn) is None:
            return False
        return any(name in ("merge", "repair") or name.endswith(".intent") for name in disk.list(txn))

    def _take(self, end: End, *, sealing: bool = False) -> None:
        """Go on at an end, and write the index entries it lacks once their bytes are synced."""
        if end.file is not self.file and end.synced_position < end.position:
            self._in_doubt = end.file, end.synced_position, end.position
        self.file = end.file
        self._sealed(end.synced_offset)
        self.position, self.offset, self.first_offset = end.position, end.offset, end.segment.first_offset
        blocks = [*end.blocks, end.partial] if sealing and end.partial is not None else end.blocks
        if sealing or (blocks and end.synced_position < blocks[-1].end):
            self.sync(end.file, end.segment.first_offset, end.position, end.offset)
            self._sealed(end.offset)
        if blocks:
            with Tolerated():  # an index can be rebuilt; its absence only costs time
                end.index_file.write(blocks, end.known)
        end.index_file.close()
        self._indexed_to = end.position

    def _look_at_end(self) -> End:
        """Find the end as an exclusive writer does; the file that is open stays open if it is still the last one."""
        return open_end(self._directory, self._kept, known=self.file)

    def _rotate(self) -> None:
        """Seal the last segment, with its index, and start the next one.

        The mark goes first: whoever finds it believes that the old segment is still the last, and one who dies in here
        may leave a new one behind.
        """
        self._mark = b""
        self._lock.truncate(0)
        assert self.file is not None
        self._take(self._look_at_end(), sealing=True)
        self._sealed(self.offset)
        self._take(start_segment(self._directory, self.offset))
        if self._retention is not None:
            try:
                clean(self._directory, self._retention, wait=False)
            except OSError as error:
                if not of_system(error):
                    raise
                path = self._directory.path
                warnings.warn(f"retention failed in {path}: {error}", RuntimeWarning, stacklevel=2)

    def _sign(self) -> None:
        """Leave a mark that nobody has seen before."""
        mark = _MARK + os.urandom(8).hex().encode()
        self._mark = b""
        self._lock.truncate(0)
        self._lock.write(mark + b"\n" + (b"" if self._original is None else self._original.line()))
        self._was_missing = False
        self._mark = mark

    def _wait_for_lock(self) -> None:
        """Others hold it for microseconds; an exclusive writer for as long as it is open."""
        start = time.monotonic()
        pause = _PAUSE_S
        while not self._lock.lock(wait=False, brief=True):
            if self._lock_timeout is not None and time.monotonic() - start >= self._lock_timeout:
                raise self._locked()
            time.sleep(pause)
            pause = min(pause * 1.5, _PAUSE_MAX_S)

    def _locked(self) -> LockedError:
        holder = self._lock.read(256, 0).decode("utf-8", "replace").split("\n", 1)[0] or None
        return LockedError(
            f"the journal's writer lock is held by {holder or 'another process'}: a sej.Writer keeps it as long as it"
            " is open; put through it, or close it",
            path=self._lock_path,
            holder=holder,
        )

    def _require_lock_file(self) -> None:
        if not is_current(self._directory.disk, self._lock, self._lock_path):
            raise LockLostError(
                "the journal's lock file was removed during this turn, by an original that closed; whether the last"
                " message is in the journal is not known: the next append takes the new lock",
                path=self._lock_path,
            )

    def _check_lock_file(self) -> None:
        """The original unlinks the lock file: a lock on what has no name any more protects nothing."""
        while True:
            there = self._directory.disk.status(self._lock_path)
            if there is not None and there.identity == self._lock.status().identity:
                return
            self._was_missing = there is None
            self._mark = b""
            old, fresh = self._lock, self._directory.disk.open(self._lock_path, "append")
            self._lock, self.leave = fresh, fresh.unlocker()
            old.close()
            self._wait_for_lock()


def _nothing() -> None:
    """What leaves a lock whose file is closed."""
