"""The blocks of the last segment: collected while it is written, and added to the index after their bytes are synced.

A block has at least 256 KiB, unless it is the last one of its segment or of its writer. The bytes of the current block
are still in the writer's buffer, so its checksum costs no read::

    segment    | block | block | block | block | current block |
    its entry  |  in the file  |  _unindexed   | in the buffer |

The invariant: every entry in the index file describes synced bytes.
"""

from __future__ import annotations

from sej.codec import Buffer
from sej.journal.index import Block
from sej.system.checksum import crc32c
from sej.system.group_commit import is_failure
from sej.writing.opening import Found


class Blocks:
    """The blocks of one segment. The caller of each method holds the writer's mutex."""

    def __init__(self, end: Found) -> None:
        """Continue after the blocks that an opening found."""
        self._index_file = end.index_file
        self._indexed = end.known
        self._unindexed: list[Block] = end.blocks
        self._newest = end.newest_timestamp
        self._partial = end.partial
        self._partial_known = end.partial_known
        self._position = end.position
        self._offset = end.offset

    def end_block(self, buffer: Buffer) -> None:
        """Make a block of the messages in the buffer, then clear it. They are all written."""
        position, offset = buffer.position, buffer.offset
        if self._partial is not None:
            self._unindexed.append(self._joined(self._partial, buffer))
            self._partial = None
        elif len(buffer):
            crc = crc32c(buffer.block())
            first, last, newest = buffer.first_timestamp, buffer.last_timestamp, buffer.newest_timestamp
            if newest > self._newest:
                self._newest = newest
            start, start_offset = self._position, self._offset
            count = offset - start_offset
            self._unindexed.append(Block(start, position, start_offset, count, crc, first, last, self._newest))
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
        if not self._unindexed:
            return
        ready = [block for block in self._unindexed if block.end <= synced_position]
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
            self._unindexed = self._unindexed[count:]
            return
        # No call between these: a signal handler sees both old values or both new ones.
        self._indexed, self._unindexed = self._indexed + count, self._unindexed[count:]

    def finish(self, buffer: Buffer, synced_position: int) -> None:
        """Add the last messages to the index too, when the writer closes."""
        if len(buffer) or (self._partial is not None and not self._partial_known):
            self.end_block(buffer)
            if buffer.position <= synced_position:
                self._store(self._unindexed)

    def close(self) -> None:
        """Close the index file, if it is open."""
        self._index_file.close()
