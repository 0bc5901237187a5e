"""The blocks of the last segment: collected while it is written, put into the index once their bytes are synced.

A block has at least 256 KiB, unless it is the last one of its segment or of its writer. The bytes of the block that is
being collected are in the writer's buffer, so its checksum costs no read.
"""

from __future__ import annotations

import warnings

from sej.codec import Buffer
from sej.journal.index import Block
from sej.system.checksum import crc32c
from sej.system.group_commit import is_failure
from sej.writing.opening import End

__all__ = ["Blocks"]


class Blocks:
    """The blocks of one segment. Every call runs with the writer's mutex held."""

    def __init__(self, end: End) -> None:
        """Continue after the blocks that an opening found."""
        self._index_file = end.index_file
        self._indexed = end.known
        self._due: list[Block] = end.blocks
        self._newest = end.newest_timestamp
        self._partial = end.partial
        self._partial_known = end.partial_known
        self._position = end.position
        self._offset = end.offset

    def end_block(self, buffer: Buffer) -> None:
        """Make a block of what the buffer holds, all of it written; then clear the buffer."""
        position, offset = buffer.position, buffer.offset
        if self._partial is not None:
            self._due.append(self._joined(self._partial, buffer))
            self._partial = None
        elif len(buffer):
            crc = crc32c(buffer.block())
            first, last, newest = buffer.first_timestamp, buffer.last_timestamp, buffer.newest_timestamp
            if newest > self._newest:
                self._newest = newest
            start, due = self._position, self._offset
            self._due.append(Block(start, position, due, offset - due, crc, first, last, self._newest))
        else:
            return
        self._position, self._offset = position, offset
        buffer.clear()

    def _joined(self, part: Block, buffer: Buffer) -> Block:
        """The block that an earlier writer left open, with what the buffer holds."""
        last, newest = part.last_timestamp, part.newest_timestamp
        if len(buffer):
            last, newest = buffer.last_timestamp, max(newest, buffer.newest_timestamp)
        self._newest = max(self._newest, newest)
        return part._replace(
            end=buffer.position,
            messages=buffer.offset - part.first_offset,
            crc32c=crc32c(buffer.block(), part.crc32c),
            last_timestamp=last,
            newest_timestamp=self._newest,
        )

    def write(self, synced_position: int) -> None:
        """Write the entries whose bytes are synced. The index can be rebuilt: its failure harms nothing."""
        if not self._due:
            return
        ready = [block for block in self._due if block.end <= synced_position]
        if not ready:
            return
        count = len(ready)
        try:
            self._index_file.write(ready, self._indexed)
        except OSError as error:
            if not is_failure(error):
                raise
            warnings.warn(
                f"the index {self._index_file.path} could not be written: {error}", RuntimeWarning, stacklevel=2
            )
            self._due = self._due[count:]
            return
        # No call between these: a signal's handler finds them as they were, or as they will be.
        self._indexed, self._due = self._indexed + count, self._due[count:]

    def finish(self, buffer: Buffer, synced_position: int) -> None:
        """At the end of writing: give the last messages their checksum, too."""
        if len(buffer) or (self._partial is not None and not self._partial_known):
            self.end_block(buffer)
            self.write(synced_position)

    def close(self) -> None:
        """Close the index file, if it was written."""
        self._index_file.close()
