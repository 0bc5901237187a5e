"""The end of a journal that was opened for appending."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sej.journal.directory import Segment
    from sej.journal.index import Block, IndexFile
    from sej.journal.recovery import Recovery
    from sej.system.disk import File


class End(NamedTuple):
    """The end of a journal, ready for appending.

    Attributes:
        segment: the last segment.
        file: the segment, open for appending.
        position: the size of the segment. It consists of whole messages.
        offset: the offset of the next message.
        synced_position: the bytes before this position are durable. The writer syncs the others.
        synced_offset: the messages below this offset are durable.
        newest_timestamp: the newest timestamp in the full blocks, in ns.
        index_file: the index of the segment.
        known: the number of full blocks in the index.
        blocks: the full blocks that the index lacks.
        partial: the block of the messages after the last full block, or None.
        partial_known: whether the index has the partial block, after its full blocks.
        recovery: what was cut, or None.
        promised: whether ``txn/`` may have batches that the writer completes before its first append.
    """

    segment: Segment
    file: File
    position: int
    offset: int
    synced_position: int
    synced_offset: int
    newest_timestamp: int
    index_file: IndexFile
    known: int
    blocks: list[Block]
    partial: Block | None
    partial_known: bool
    recovery: Recovery | None
    promised: bool = False
