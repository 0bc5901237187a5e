"""The last segment of a journal as its exclusive writer has it: the file, how much of it is on the medium, its blocks.

The caller holds the writer's mutex, except for :meth:`LastSegment.sync`, which waits for the disk while the writer
continues. So the caller reads ``file`` with the mutex and syncs it without. Before :meth:`LastSegment.keep`, with the
mutex again, it checks that ``file`` is still the same.
"""

from __future__ import annotations

from sej.codec import measure
from sej.codec.format import OFFSET
from sej.errors import SejError
from sej.journal.directory import Directory
from sej.journal.writer_lock import require_name
from sej.system.disk import File
from sej.system.durable import KeptPosition, renew
from sej.system.locks import Lock
from sej.writing.blocks import Blocks
from sej.writing.end import End
from sej.writing.guarded import write_guarded


class LastSegment:
    """One segment, from the moment when it becomes the last one until the next one does.

    Attributes:
        segment: the path and the first offset.
        file: open for appending, with the segment's lock.
        blocks: the blocks for the index.
        synced_position: the bytes before this position are on the medium.
    """

    def __init__(self, directory: Directory, kept: KeptPosition, end: End) -> None:
        """Continue at an end that was opened. This object closes the file."""
        self._disk = directory.disk
        self._kept = kept
        self.segment = end.segment
        self.file: File = end.file
        self.blocks = Blocks(end)
        self.synced_position = end.synced_position
        self._in_doubt = end.position
        """Unsynced bytes before this position were written before this file was opened (sej.system.durable)."""

    def write(self, view: memoryview, position: int, lock: Lock) -> None:
        """Append whole messages. After a trace of the original, each message is written between two checks.

        Args:
            view: the messages.
            position: the end of the segment.
            lock: the journal's lock.
        """
        if lock.original is None:
            self.file.write(view)
        else:
            write_guarded(self.file, view, position, lock.check)

    def require_name(self) -> None:
        """Check that the segment is still in its directory.

        Raises:
            OSError: ESTALE: it was removed.
        """
        require_name(self.file)

    def cut_partial_write(self, view: memoryview, position: int, lock: Lock) -> None:
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
