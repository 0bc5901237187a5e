"""The last segment of a journal as its exclusive writer has it: the file, how much of it is on the medium, its blocks.

The caller holds the writer's mutex, except for :meth:`LastSegment.sync`, which waits for the disk while the writer
continues. So the caller reads ``file`` with the mutex and syncs it without. Before :meth:`LastSegment.keep`, with the
mutex again, it checks that ``file`` is still the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sej.codec import measure
from sej.codec.format import OFFSET
from sej.errors import LockLostError, SejError
from sej.journal.directory import Directory
from sej.journal.writer_lock import require_name
from sej.system.disk import File
from sej.system.durable import KeptPosition, renew
from sej.writing.blocks import Blocks
from sej.writing.opening import Found

if TYPE_CHECKING:
    from sej.journal.writer_lock import WriterLock
    from sej.writing.turn_lock import TurnLock


class LastSegment:
    """One segment, from the moment when it becomes the last one until the next one does.

    Attributes:
        segment: the path and the first offset.
        file: open for appending, with the segment's lock.
        blocks: the blocks for the index.
        synced_position: the bytes before this position are on the medium.
    """

    def __init__(self, directory: Directory, kept: KeptPosition, end: Found, before: LastSegment | None) -> None:
        """Continue at an end that was found, after the last segment before it. This object closes the file."""
        self._disk = directory.disk
        self._kept = kept
        self.segment = end.segment
        self.file: File = end.file
        self.blocks = Blocks(end)
        self.synced_position = end.synced_position
        again = before is not None and before.file is end.file
        self._in_doubt: int = before._in_doubt if before is not None and again else end.position
        """Unsynced bytes before this position were written before this file was opened (sej.system.durable)."""

    def write(self, view: memoryview, position: int, lock: WriterLock | TurnLock) -> None:
        """Append whole messages. After a trace of the original, each message is written between two checks.

        Args:
            view: the messages.
            position: the end of the segment.
            lock: the journal's lock.
        """
        if lock.original is None:
            self.file.write(view)
        else:
            self._write_guarded(view, position, lock)

    def _write_guarded(self, data: memoryview, position: int, lock: WriterLock | TurnLock) -> None:
        """Append whole messages, each between two checks, which :mod:`sej.system.original` explains.

        Raises:
            LockLostError: a check failed. The message before the failed check may be in the segment, unacknowledged.
        """
        at = 0
        self._require_end(position, lock)
        while at < len(data):
            offset = int.from_bytes(data[at : at + 8], "big")
            end = measure(data, at, len(data), offset, 1).position
            self.file.write(data[at:end])
            at = end
            self._require_end(position + at, lock)

    def _require_end(self, position: int, lock: WriterLock | TurnLock) -> None:
        lock.check()
        size = self.file.size()
        if size != position:
            raise LockLostError(
                f"the segment has {size} bytes, but this writer left it at {position}: another process is writing it"
                " too; close that process, then open this writer again",
                path=self.file.path,
                position=position,
            )

    def require_name(self) -> None:
        """Check that the segment is still in its directory.

        Raises:
            OSError: ESTALE: it was removed.
        """
        require_name(self.file)

    def cut_partial_write(self, view: memoryview, position: int, lock: WriterLock | TurnLock) -> None:
        """Cut a partial message after a failed write. Whole messages stay, because a reader may have seen them.

        Args:
            view: the bytes of the failed write.
            position: the end of the segment before the write.
            lock: the journal's lock.
        """
        try:
            there = min(max(self.file.size() - position, 0), len(view))
            first = int.from_bytes(view[: OFFSET.size], "big")
            good = measure(view, 0, there, first, there).position if there else 0
            if lock.is_current():
                self.file.truncate(position + good)
        except (OSError, SejError):
            return  # the next opening cuts the torn tail

    def sync(self, file: File) -> None:
        """Sync the segment through a file of it, including the bytes in doubt.

        Raises:
            OSError: the system refused; nothing may be written or synced after that.
        """
        if self._in_doubt > self.synced_position:
            renew(self._disk, file, self.synced_position, self._in_doubt)
        file.sync()

    def keep(self, position: int, offset: int) -> None:
        """Store how much was synced, in this object and for the process that opens the journal next.

        Args:
            position: every byte before this position is on the medium.
            offset: the offset of the message at the position.
        """
        if position > self.synced_position:
            self.synced_position = position
            self._kept.store(self.file, self.segment.first_offset, position, offset)

    def close(self) -> None:
        """Close the files and release the lock. A second call does nothing, or finishes an interrupted one."""
        self.blocks.close()
        self.file.unlock()  # a child that was just forked may still have a copy of the descriptor
        self.file.close()
