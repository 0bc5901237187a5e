"""The last segment of a journal as its exclusive writer has it: the file, how much of it is on the medium, its blocks.

The caller holds the writer's mutex, except for :meth:`LastSegment.sync`, which waits for the disk while the writer
continues. Before :meth:`LastSegment.keep`, with the mutex again, the caller checks that it is still the last segment.

**The blocks** are collected while the segment is written, and added to the index after their bytes are synced. A block
has at least 256 KiB, unless it is the last one of its segment or of its writer. The bytes of the current block are
still in the writer's buffer, so its checksum costs no read::

    segment    | block | block | block | block | current block |
    its entry  |  in the file  |   unindexed   | in the buffer |

The invariant: every entry in the index file describes synced bytes.
"""

from __future__ import annotations

import errno

from sej.codec import Buffer, measure
from sej.codec.format import NO_TIMESTAMP, OFFSET
from sej.errors import LockLostError, SejError
from sej.journal.directory import Segment
from sej.journal.index import BLOCK_BYTES, Block, IndexFile, read_blocks
from sej.journal.writer_lock import WriterLock
from sej.system.checksum import crc32c
from sej.system.disk import Disk, File
from sej.system.durable import KeptPosition, renew
from sej.system.group_commit import is_failure


class Blocks:
    """The blocks of one segment. The caller of each method holds the writer's mutex.

    Attributes:
        unindexed: the full blocks that the index lacks.
    """

    def __init__(self, index_file: IndexFile, first_offset: int) -> None:
        """Begin with an empty segment."""
        self._index_file = index_file
        self._indexed = self._position = 0
        self._offset = first_offset
        self.unindexed: list[Block] = []
        self._newest = NO_TIMESTAMP
        self._partial: Block | None = None
        """The block of the messages after the last full block, if there are any."""
        self._partial_known = False
        """Whether the index has that block too."""

    def load(self, file: File, size: int) -> tuple[int, int]:
        """Continue after the good messages of a segment of this size; return where they end, and the offset there."""
        if not size:
            return 0, self._offset
        self._indexed, index = self._index_file.load_end(file, self._offset, to_write=True)
        self._partial = index.open_block(size)
        self._partial_known = self._partial is not None
        self._indexed -= self._partial_known
        position, offset = index.position, index.due
        for block in read_blocks(file, position, offset) if size > position else ():
            position, offset = block.end, block.next_offset
            if block.end - block.position >= BLOCK_BYTES:
                self.unindexed.append(index.add(block))
            else:
                self._partial = block
        self._position, self._offset, self._newest = position, offset, index.newest_timestamp
        return position, offset

    def end_block(self, buffer: Buffer) -> None:
        """Make a block of the messages in the buffer, then clear it. They are all written."""
        position, offset = buffer.position, buffer.offset
        if self._partial is not None:
            self.unindexed.append(self._joined(self._partial, buffer))
            self._partial = None
        elif len(buffer):
            crc = crc32c(buffer.block())
            first, last, newest = buffer.first_timestamp, buffer.last_timestamp, buffer.newest_timestamp
            if newest > self._newest:
                self._newest = newest
            start, start_offset = self._position, self._offset
            count = offset - start_offset
            self.unindexed.append(Block(start, position, start_offset, count, crc, first, last, self._newest))
        else:
            return
        self._position, self._offset = position, offset
        buffer.clear()

    def _joined(self, part: Block, buffer: Buffer) -> Block:
        """Return the block that an earlier writer left partial, extended by the messages in the buffer."""
        last, newest = part.last_timestamp, part.newest_timestamp
        if len(buffer):
            last, newest = buffer.last_timestamp, max(newest, buffer.newest_timestamp)
        self._newest = max(self._newest, newest)
        messages, crc = buffer.offset - part.first_offset, crc32c(buffer.block(), part.crc32c)
        times = part.first_timestamp, last, self._newest
        return Block(part.position, buffer.position, part.first_offset, messages, crc, *times)

    def write(self, synced_position: int) -> None:
        """Write the entries whose bytes are synced.

        A failure is only logged, because an index can be rebuilt. The entries are not tried again.
        """
        if not self.unindexed:
            return
        ready = [block for block in self.unindexed if block.end <= synced_position]
        if ready:
            self._store(ready)

    def _store(self, ready: list[Block]) -> None:
        count = len(ready)
        try:
            self._index_file.write(ready, self._indexed)
        except OSError as error:
            if not is_failure(error):
                raise
            if not isinstance(error, FileNotFoundError):  # else the directory was moved or removed
                from sej.system.logs import WARNING, record

                record(__name__, WARNING, "the index %s could not be written: %s", self._index_file.path, error)
            self.unindexed = self.unindexed[count:]
            return
        # No call between these: a signal handler sees both old values or both new ones.
        self._indexed, self.unindexed = self._indexed + count, self.unindexed[count:]

    def finish(self, buffer: Buffer, synced_position: int) -> None:
        """Add the last messages to the index too, when the writer closes."""
        if len(buffer) or (self._partial is not None and not self._partial_known):
            self.end_block(buffer)
            if buffer.position <= synced_position:
                self._store(self.unindexed)

    def close(self) -> None:
        """Close the index file, if it is open."""
        self._index_file.close()


class LastSegment:
    """One segment, from the moment when it becomes the last one until the next one does.

    Attributes:
        segment: the path and the first offset.
        file: open for appending, with the segment's lock.
        blocks: the blocks for the index.
        synced_position: the bytes before this position are on the medium.
        in_doubt: unsynced bytes before this position were written before the file was opened (sej.system.durable).
    """

    def __init__(
        self,
        disk: Disk,
        lock: WriterLock,
        kept: KeptPosition,
        segment: Segment,
        file: File,
        blocks: Blocks,
        synced_position: int = 0,
        in_doubt: int = 0,
    ) -> None:
        """Remember a segment that was opened or started. This object closes the file."""
        self._disk = disk
        self._lock = lock
        self._kept = kept
        self.segment = segment
        self.file = file
        self.blocks = blocks
        self.synced_position = synced_position
        self.in_doubt = in_doubt

    def write(self, view: memoryview, position: int) -> None:
        """Append whole messages at the end of the segment.

        After a trace of the original, each message is written between two checks, which :mod:`sej.journal.writer_lock`
        explains.

        Raises:
            LockLostError: a check failed. The message before the failed check may be in the segment, unacknowledged.
        """
        if self._lock.original is None:
            self.file.write(view)
            return
        at = 0
        self._require_end(position)
        while at < len(view):
            end = measure(view, at, len(view), int.from_bytes(view[at : at + OFFSET.size], "big"), 1).position
            self.file.write(view[at:end])
            at = end
            self._require_end(position + at)

    def _require_end(self, position: int) -> None:
        self._lock.check()
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
            OSError: ESTALE: it was removed, and what was appended after that is lost.
        """
        if not self.file.extent()[1]:
            raise OSError(
                errno.ESTALE,
                "this segment was removed while a writer appended to it, and its messages with it: find the program"
                " that removes it, then open a new writer",
                self.file.path,
            )

    def cut_partial_write(self, view: memoryview, position: int) -> None:
        """Cut a partial message after a failed write. Whole messages stay, because a reader may have seen them.

        Args:
            view: the bytes of the failed write.
            position: the end of the segment before the write.
        """
        try:
            there = min(max(self.file.size() - position, 0), len(view))
            first = int.from_bytes(view[: OFFSET.size], "big")
            good = measure(view, 0, there, first, there).position if there else 0
            if self._lock.is_current():
                self.file.truncate(position + good)
        except (OSError, SejError):
            return  # the next opening cuts the torn tail

    def sync(self) -> None:
        """Sync the segment, including the bytes in doubt.

        Raises:
            OSError: the system refused; nothing may be written or synced after that.
        """
        if self.in_doubt > self.synced_position:
            renew(self._disk, self.file, self.synced_position, self.in_doubt)
        self.file.sync()

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
        """Close the files. A second call does nothing, or finishes an interrupted one."""
        self.blocks.close()
        self.file.close()
