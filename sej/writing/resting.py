"""A writer that can rest: for whoever keeps more journals than a process may have open files.

Closing a writer syncs, and opening one reads the journal's end; both cost far more than an append. A resting writer
has given back its descriptors and the lock, but remembers where the journal ended; waking looks whether it still ends
there.
"""

from __future__ import annotations

import os

from sej.journal.directory import Segment
from sej.journal.writer_lock import lock_segment
from sej.system.disk import OsFile
from sej.system.durable import renew
from sej.writing.writer import Writer

__all__ = ["RestingWriter"]


class RestingWriter(Writer):
    """A :class:`~sej.writing.writer.Writer` for one owner, who lets it rest and wakes it before the next append."""

    resting = False
    _left: tuple[Segment | None, tuple[int, int]] = (None, (0, 0))
    """The segment that was written to last, and which file that is; it ends where the buffer's position is."""

    def rest(self) -> None:
        """Hand everything to the kernel, then give back the descriptors and the lock.

        Raises:
            WriterFailedError: the last write failed, now or before.
        """
        with self._mutex:
            self._require_open()
            self._buffer.flush()
            if self._left[0] is not self._segment:
                self._left = self._segment, self._file.status().identity
            self._index_file.close()
            self._in_doubt = self._buffer.position  # the descriptor that would report a failed writeback goes
            self._buffer.steady(None, None, 0, 0)  # it holds the file's method, and with it the file
            self._kept.forget()  # so does this, of a file that was synced
            self._file.unlock()
            # A sync in the background may hold the file still: it closes with the last who does.
            self._file = OsFile(-1, self._segment.path)
            self._need()
            self.resting = True
            self._lock.release()

    def wake(self) -> bool:
        """Take the lock again, and go on if nobody wrote meanwhile.

        Returns:
            False: somebody did, or somebody's batch waits to be rolled forward. This writer is closed: open a new one.

        Raises:
            LockedError: another writer has the journal; this one rests on.
        """
        self._lock.acquire(brief=True)
        try:
            if self._unchanged():
                with self._mutex:
                    self._file = self._directory.disk.open(self._segment.path, "append")
                    self._need(self._lock, self._file, self._index_file)
                    lock_segment(self._file)
                    self._set_limits()
                    self.resting = False
                return True
        except BaseException:
            self._lock.release()
            raise
        self._lock.release()
        self._end()
        return False

    def _unchanged(self) -> bool:
        directory = self._directory
        there = directory.disk.status(self._segment.path)
        if there is None or there.identity != self._left[1] or there.size != self._buffer.position:
            return False
        if self._lock.undisturbed:
            return True
        if self._buffer.position and directory.disk.status(directory.segment(self._buffer.offset).path) is not None:
            return False  # a batch was published behind the segment
        txn = directory.at("txn")
        return directory.disk.status(txn) is None or not any(
            name.endswith(".intent") for name in directory.disk.list(txn)
        )

    def sync(self) -> None:
        """Force everything appended so far to the disk, at rest too: any process may sync a file."""
        if self.resting:
            self._syncer.commit(self._buffer.offset)
        else:
            super().sync()

    def flush(self) -> None:
        """Hand everything to the kernel; a resting writer has done so."""
        if not self.resting:
            super().flush()

    def close(self) -> None:
        """Sync what is left; the index of a journal closed at rest grows when it is opened next."""
        if not self.resting:
            super().close()
        elif not self._closed and os.getpid() == self._pid:
            try:
                self.sync()
            finally:
                self._end()

    def _end(self) -> None:
        self._closed = True
        self.resting = False
        self._buffer.stop(self._refuse)
        self._syncer.close()
        self._need()

    def _sync_some(self) -> int:
        with self._mutex:
            resting, offset = self.resting, self._buffer.offset
            if resting and self._failure is not None:
                self._refuse()
        if not resting:
            return super()._sync_some()
        try:
            file = self._directory.disk.open(self._segment.path, "edit")
        except FileNotFoundError:
            return offset  # another writer sealed it, which syncs it, and retention took it since
        try:
            if self._in_doubt > self._synced_position and file.status().identity == self._left[1]:
                renew(self._directory.disk, file, self._synced_position, self._in_doubt)
            file.sync()  # of a file that a merge put in its place this is not needed, and does no harm
        finally:
            file.close()
        return offset
