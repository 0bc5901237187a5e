"""The last segment of a journal as its exclusive writer has it: the file, what of it is on the medium, its blocks.

It is open, or it is left: a writer that idles has given the descriptors and the lock back, but remembers which file it
was. A left segment can still be synced, because any process may sync a file.

Every call runs with the writer's mutex held, but for :meth:`LastSegment.sync` and :meth:`LastSegment.sync_left`. Those
wait for the disk, and the writer continues meanwhile. So the caller reads ``file`` with the mutex, syncs it
without, and compares it with the mutex again before :meth:`LastSegment.keep`.
"""

from __future__ import annotations

from sej.codec import measure
from sej.codec.format import OFFSET
from sej.errors import SejError
from sej.journal.directory import Directory
from sej.journal.writer_lock import lock_segment
from sej.system.disk import File, OsFile
from sej.system.durable import KeptPosition, renew
from sej.system.locks import Lock
from sej.writing.blocks import Blocks
from sej.writing.guarded import write_guarded
from sej.writing.opening import End

__all__ = ["LastSegment"]


class LastSegment:
    """One segment, from when it becomes the last one until the next one does.

    Attributes:
        segment: its name.
        file: open for appending, with its lock; closed if the segment is left.
        left: whether the descriptors were given back.
        blocks: what goes into its index.
        synced_position: the bytes before it are on the medium.
    """

    def __init__(self, directory: Directory, kept: KeptPosition, end: End) -> None:
        """Continue at an end that was opened; its file belongs to this object from now on."""
        self._disk = directory.disk
        self._kept = kept
        self.segment = end.segment
        self.file: File = end.file
        self.left = False
        self.blocks = Blocks(end)
        self.synced_position = end.synced_position
        self._in_doubt = end.position
        """Unsynced bytes before this position were written before the file was opened here (sej.system.durable)."""
        self._identity: tuple[int, int] | None = None

    def write(self, view: memoryview, position: int, lock: Lock) -> None:
        """Append whole messages at the end; beside an original each one between two looks.

        Args:
            view: the messages.
            position: where the segment ends.
            lock: the journal's.
        """
        if lock.original is None:
            self.file.write(view)
        else:
            write_guarded(self.file, view, position, lock.check)

    def cut_partial_write(self, view: memoryview, position: int, lock: Lock) -> None:
        """After a failed write: cut a message that is not whole, so that the tail is clean. Whole ones may be seen.

        Args:
            view: what was to be written.
            position: where the segment ended before.
            lock: the journal's.
        """
        try:
            there = min(max(self.file.status().size - position, 0), len(view))
            first = int.from_bytes(view[: OFFSET.size], "big")
            good = measure(view, 0, there, first, there).position if there else 0
            if lock.is_current():
                self.file.truncate(position + good)
        except (OSError, SejError):
            return  # the next opening finds a torn tail and cuts it

    def sync(self, file: File) -> None:
        """Force what was written through a file of this segment to the medium, and what is in doubt.

        Raises:
            OSError: the system refused; nothing may be written or synced any more.
        """
        if self._in_doubt > self.synced_position:
            renew(self._disk, file, self.synced_position, self._in_doubt)
        file.sync()

    def sync_left(self) -> None:
        """Force a segment that is left to the medium.

        Raises:
            OSError: as :meth:`sync`.
        """
        try:
            file = self._disk.open(self.segment.path, "edit")
        except FileNotFoundError:
            return  # another writer sealed it, which syncs it, and retention took it since
        try:
            if self._in_doubt > self.synced_position and file.status().identity == self._identity:
                renew(self._disk, file, self.synced_position, self._in_doubt)
            file.sync()  # of a file that a merge put in its place this is not needed, and does no harm
        finally:
            file.close()

    def keep(self, position: int, offset: int) -> None:
        """Take note of what was synced, here and for the process that opens the journal next.

        Args:
            position: every byte before it is on the medium.
            offset: the offset that follows.
        """
        if position > self.synced_position:
            self.synced_position = position
            self._kept.store(self.file, self.segment.first_offset, position, offset)

    def leave(self, position: int) -> None:
        """Give the descriptors and the lock back.

        Args:
            position: where the segment ends; all of it was handed to the kernel.
        """
        if self._identity is None:
            self._identity = self.file.status().identity
        self.blocks.close()
        self._in_doubt = position  # the descriptor that would report a failed writeback goes
        self._kept.forget()  # it holds a file that was synced
        self.file.unlock()
        self.file = OsFile(
            -1, self.segment.path
        )  # a sync in another thread may hold the old one, which closes after it
        self.left = True

    def is_unchanged(self, position: int) -> bool:
        """Whether a segment that is left is the same file still, and ends at the position where it was left."""
        there = self._disk.status(self.segment.path)
        return there is not None and there.identity == self._identity and there.size == position

    def take_up(self) -> None:
        """Open a segment that is left and has not changed.

        Raises:
            LockedError: another writer has the segment's lock; it stays left.
        """
        file = self._disk.open(self.segment.path, "append")
        try:
            lock_segment(file)
        except BaseException:
            file.close()
            raise
        self.file = file
        self.left = False

    def close(self) -> None:
        """Close the files and give the lock back; a second time does nothing, or finishes what was interrupted."""
        self.blocks.close()
        if not self.left:
            self.file.unlock()  # aloud: a child that was just forked may still have the descriptor
            self.file.close()
