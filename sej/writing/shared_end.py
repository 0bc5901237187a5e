"""The end of a journal that many processes append to: what other writers did since the last turn, and the next append.

A turn is the time in which a shared writer holds the journal's lock, ``jnl.lck``. Between its turns it holds nothing
but open files, so each turn starts with :meth:`SharedEnd.look`.

The invariant is about the mark in ``jnl.lck``, ``shared`` and 16 random hex digits. A shared writer replaces the mark
whenever it starts a segment. An exclusive writer destroys it: ours signs the file, the original truncates it. **So if
a writer finds the mark that it has left or seen, the last segment is still the same file, and since then only shared
writers have appended to it.**

=====================  ====================================  ======================================================
mark                   size of the segment                   then the writer
=====================  ====================================  ======================================================
the same               the same                              appends
the same               larger, and all of it whole messages  measures them, which gives the next offset, and appends
the same               anything else                         searches for the end
another, or none       any                                   searches for the end
=====================  ====================================  ======================================================

A search finds the end as an exclusive writer does when it opens: it cuts a torn tail and extends the index. If a
process died with something promised (``append_once``, a repair), an exclusive writer is opened first, which
finishes it. After a trace of the original (:mod:`sej.system.original`), the trace follows the mark in the file, and
each turn also checks that the lock file is still the file at its path.

Crash points: a writer removes the mark before it seals a segment, and writes a new one after it has started the next.
If it dies in between, every other writer searches for the end.

Every call runs with the mutex of its writer held, except :meth:`SharedEnd.sync`, which waits for the disk.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from typing import Final

from sej.codec import measure
from sej.errors import DecodeError, JournalNotFoundError, LockedError, LockLostError
from sej.journal.directory import Directory
from sej.journal.identity import journal_id
from sej.journal.medium import kept_position
from sej.journal.retention import Retention, clean
from sej.journal.writer_lock import require_name
from sej.system.disk import File, Tolerated, of_system
from sej.system.durable import renew
from sej.system.original import Trace, find_trace, is_current, pause
from sej.writing.end import End
from sej.writing.guarded import write_guarded
from sej.writing.opening import open_end, refuse_surplus, start_segment
from sej.writing.writer import Writer

_MARK: Final = b"shared "
_MARK_BYTES: Final = len(_MARK) + 16
_SIGNED_BYTES: Final = 256
_PAUSE_S: Final = 0.00005
"""Longer than a turn, so that the holder of the lock can take several turns before a switch to another process."""
_PAUSE_MAX_S: Final = 0.002
_LOCK_CHECK_S: Final = 0.1
_INDEX_BYTES: Final = 1 << 24
"""The index is extended after this many bytes. A reader that looks for one message walks at most as many."""


class SharedEnd:
    """The end of a journal, as one of many writers knows it.

    Attributes:
        offset: the offset of the next message, as of this turn or the last one.
        position: the position of the next message in the last segment.
        file: the last segment; None before the first turn.
        first_offset: the first offset of the last segment.
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
        """Open the lock file; it is created if it is missing.

        Args:
            directory: the SEJ directory.
            segment_bytes: the message with which a segment reaches this size is the last one in it.
            retention: applied whenever this writer ends a segment.
            lock_timeout: seconds to wait while an exclusive writer has the journal; None waits without a limit.
            sealed: called with an offset when every message below it is known to be durable.
        """
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._retention = retention
        self._lock_timeout = lock_timeout
        self._sealed = sealed
        self._kept = kept_position(directory)
        self._in_doubt: dict[File, tuple[int, int]] = {}
        """The start and end of a segment's bytes that may not be on the medium (sej.system.durable).

        A turn adds a segment while :meth:`sync` of another one, in another thread, removes that one.
        """
        self._mark = b""
        self._lock_path = directory.at("jnl.lck")
        self._was_missing = directory.disk.status(self._lock_path) is None
        self._lock = directory.disk.open(self._lock_path, "append")
        self.leave: Callable[[], object] = self._lock.unlocker()
        """Releases the lock in one call into C. It may be called at any time."""
        self._original: Trace | None = None
        self._lock_check_at = 0.0
        self._indexed_to = 0
        self._id: bytes | None = None
        self.file: File | None = None
        self.offset = self.position = self.first_offset = 0

    def enter(self) -> None:
        """Take the lock. The caller then calls :meth:`look`.

        Raises:
            LockedError: an exclusive writer has had the journal for longer than lock_timeout.
        """
        if not self._lock.lock(wait=False):
            self._wait_for_lock()

    def doubt(self) -> None:
        """Make the next :meth:`look` search for the end, because a turn was interrupted."""
        self._mark = b""

    def write(self, data: bytes, count: int) -> None:
        """Append data, the encoded form of count messages, within a turn."""
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
        """Sync a segment and store its kept position. Another thread may be within a turn.

        Args:
            file: the segment.
            first_offset: its first offset.
            position: every byte before this position was written before the call.
            offset: the offset of the message at the position.

        Raises:
            OSError: the system refused; nothing may be written or synced after that.
        """
        if span := self._in_doubt.get(file):
            renew(self._directory.disk, file, *span)
            self._in_doubt.pop(file, None)
        file.sync()
        self._kept.store(file, first_offset, position, offset)

    def require_place(self, file: File | None, first_offset: int) -> None:
        """Check that what was appended to a segment is still in the journal. Another thread may be within a turn.

        A segment that has a successor may be removed: it was synced, and retention does this.

        Args:
            file: the segment, if this object has looked for it.
            first_offset: its first offset.

        Raises:
            JournalNotFoundError: the journal was removed.
            OSError: ESTALE: only the segment was.
        """
        if file is None:
            self._directory.require()
        elif not file.extent()[1]:
            if journal_id(self._directory) != self._id:
                self._directory.require()
                raise JournalNotFoundError(
                    "this journal was removed and created again, and what was appended before is lost; open it again",
                    path=self._directory.path,
                )
            segments = self._directory.segments()
            if not segments or segments[-1].first_offset <= first_offset:
                require_name(file)

    def close(self) -> None:
        """Close the files; a second time does nothing."""
        self.leave = _nothing
        self._lock.close()
        self._kept.forget()
        self._in_doubt.clear()
        self.file = None  # a sync in another thread may use the file; it is closed with its last reference

    def look(self) -> None:
        """Find the end of the journal, which other writers may have moved since the last turn; see the module."""
        now = time.monotonic()
        due = now >= self._lock_check_at or self._original is not None
        if due:
            self._check_lock_file()
        if self.file is None or not self._mark or self._lock.read(_MARK_BYTES, 0) != self._mark:
            self._search()
        else:
            if due:
                require_name(self.file)
            size = self.file.size()
            if size != self.position and not self._catch_up(size):
                self._search()
        if due:
            self._lock_check_at = now + _LOCK_CHECK_S

    def _catch_up(self, size: int) -> bool:
        """Measure what other writers appended; return False if it is not all whole messages."""
        assert self.file is not None
        if size < self.position or size - self.position > _INDEX_BYTES:
            return False  # the search walks a large part piece by piece
        data = self.file.read(size - self.position, self.position)
        try:
            run = measure(data, 0, len(data), self.offset, len(data))
        except DecodeError:
            return False
        self.offset += run.messages
        self.position += run.position
        return run.position == len(data)

    def _search(self) -> None:
        """Find the end as an exclusive writer does when it opens."""
        while True:
            self._check_lock_file()
            self._find_trace()
            while self._has_promise():
                self._open_exclusively()
            if self._original is not None:
                refuse_surplus(self._directory)
            self._take(self._look_at_end())
            if self._original is None or self._is_current():
                break
        self._id = journal_id(self._directory, create=True)
        mark = self._lock.read(_MARK_BYTES, 0)
        if self.position >= self._segment_bytes:
            self._rotate()
            self._sign()
        elif len(mark) == _MARK_BYTES and mark.startswith(_MARK):
            self._mark = mark  # another shared writer's mark, which belongs to the segment found just now
        else:
            self._sign()

    def _open_exclusively(self) -> None:
        """Open and close an exclusive writer, which takes the lock itself and finishes what it finds."""
        self._lock.unlock()
        try:
            Writer(self._directory.path, segment_bytes=self._segment_bytes, lock_timeout=self._lock_timeout,
                   allow_network_fs=True, disk=self._directory.disk).close()  # fmt: skip
        finally:
            self._wait_for_lock()
            self._check_lock_file()

    def _find_trace(self) -> None:
        """Look for the trace of an original. If one may have just closed, wait until it has removed the lock file."""
        content = self._lock.read(_SIGNED_BYTES, 0)
        written = bool(content) or bool(self._directory.segments())
        self._original = find_trace(content, missing=self._was_missing, written=written)
        if self._original is not None and not content and not self._was_missing:
            pause(self._lock.status(), self._is_current)
            self._check_lock_file()

    def _has_promise(self) -> bool:
        """Return whether an exclusive writer has to finish something first."""
        disk, txn = self._directory.disk, self._directory.at("txn")
        if disk.status(txn) is None:
            return False
        return any(name == "repair" or name.endswith(".intent") for name in disk.list(txn))

    def _take(self, end: End, *, sealing: bool = False) -> None:
        """Continue at an end. The index entries that it lacks are written after their bytes are synced.

        Args:
            end: what was opened.
            sealing: sync everything, and write the entry of the last messages too.
        """
        if end.file is not self.file and end.synced_position < end.position:
            self._in_doubt[end.file] = end.synced_position, end.position
        self.file = end.file
        self._sealed(end.synced_offset)
        self.position, self.offset, self.first_offset = end.position, end.offset, end.segment.first_offset
        blocks = [*end.blocks, end.partial] if sealing and end.partial is not None else end.blocks
        if sealing or (blocks and end.synced_position < blocks[-1].end):
            self.sync(end.file, end.segment.first_offset, end.position, end.offset)
            self._sealed(end.offset)
        if blocks:
            with Tolerated():  # a missing entry only costs time: the next writer adds it
                end.index_file.write(blocks, end.known)
        end.index_file.close()
        self._indexed_to = end.position

    def _look_at_end(self) -> End:
        """Open the end as an exclusive writer does. If the open file is still the last segment, it is used again."""
        return open_end(self._directory, self._kept, known=self.file)

    def _rotate(self) -> None:
        """Seal the last segment, with its index, and start the next one.

        The mark is removed first. A writer that finds it believes that the old segment is still the last one, and this
        process may die after it has created the next.
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
        """Write a mark that no writer has seen before, and the trace of the original if there is one."""
        mark = _MARK + os.urandom(8).hex().encode()
        self._mark = b""
        self._lock.truncate(0)
        self._lock.write(mark + b"\n" + (b"" if self._original is None else self._original.line()))
        self._was_missing = False
        self._mark = mark

    def _wait_for_lock(self) -> None:
        """Wait for the lock. Shared writers hold it for microseconds, an exclusive writer as long as it is open.

        Raises:
            LockedError: lock_timeout is over.
        """
        start = time.monotonic()
        pause = _PAUSE_S
        while not self._lock.lock(wait=False):
            if self._lock_timeout is not None and time.monotonic() - start >= self._lock_timeout:
                raise self._locked()
            time.sleep(pause)
            pause = min(pause * 1.5, _PAUSE_MAX_S)

    def _locked(self) -> LockedError:
        holder = self._lock.read(256, 0).decode("utf-8", "replace").split("\n", 1)[0] or None
        return LockedError(
            f"the journal's writer lock is held by {holder or 'another process'}: a sej.Writer keeps it while it is"
            " open; append through that writer, or close it",
            path=self._lock_path,
            holder=holder,
        )

    def _is_current(self) -> bool:
        """Return whether the locked file is still at its path."""
        return is_current(self._directory.disk, self._lock.status().identity, self._lock_path)

    def _require_lock_file(self) -> None:
        if not self._is_current():
            raise LockLostError(
                "an original SEJ removed the journal's lock file during this append, so the message may or may not be"
                " in the journal: read the last messages before you append it again",
                path=self._lock_path,
            )

    def _check_lock_file(self) -> None:
        """Open and lock the lock file again if the locked file is not at its path any more.

        The original removes the lock file when it closes, and a lock on a removed file excludes no writer.
        """
        while True:
            there = self._directory.disk.status(self._lock_path)
            if there is not None and there.identity == self._lock.status().identity:
                return
            self._was_missing = there is None
            self._mark = b""
            try:
                old, fresh = self._lock, self._directory.disk.open(self._lock_path, "append")
            except FileNotFoundError:
                self._directory.require()  # the journal was removed
                raise
            self._lock, self.leave = fresh, fresh.unlocker()
            old.close()
            self._wait_for_lock()


def _nothing() -> None:
    """Do nothing: ``leave`` of an end that is closed, whose lock is released."""
