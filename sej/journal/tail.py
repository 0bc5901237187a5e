"""The end of a journal, computed repeatedly while it grows."""

from __future__ import annotations

from typing import Final

from sej.journal.directory import Directory, Segment
from sej.journal.index import IndexFile
from sej.journal.recovery import corruption_at, find_damage, good_end, last_message_start
from sej.journal.segment import Place
from sej.system.disk import File, open_existing

_HEAD_BYTES: Final = 16
"""Offset and timestamp distinguish a message from another one at the same position of a new file."""


class Tail:
    """The end of a journal; each call walks only the messages that are new since the last one.

    For callers that need it often: kept offsets, the hub, Spark's streams.
    """

    __slots__ = ("_directory", "_due", "_identity", "_last", "_position", "_segment")

    def __init__(self, directory: Directory) -> None:
        """Create it; nothing is read yet."""
        self._directory = directory
        self._segment: Segment | None = None
        self._identity: tuple[int, int] | None = None
        self._position = self._due = 0
        self._last = (0, b"")

    @property
    def place(self) -> Place | None:
        """The position of the next message, after the last call; None if there was no segment."""
        return None if self._identity is None else Place(self._identity, self._position)

    @property
    def last(self) -> tuple[int, int] | None:
        """Offset and timestamp of the last message, after the last call; None: the last segment has none."""
        head = self._last[1]
        if len(head) < _HEAD_BYTES:
            return None
        offset, timestamp = int.from_bytes(head[:8]), int.from_bytes(head[8:], signed=True)
        return (offset, timestamp) if offset + 1 == self._due else None

    def end_offset(self, *, judge: bool = False) -> int:
        """Return the offset that the next message gets.

        Args:
            judge: check that the bytes after the last good message are a torn tail.

        Raises:
            CorruptionError: with ``judge``: they are not.
        """
        while segments := self._directory.segments():
            file = open_existing(self._directory.disk, segments[-1].path, "read")
            if file is None:
                continue  # a rotation and retention came between: read again
            with file:
                if not self._is_known(segments[-1], file):
                    self._segment, self._identity = segments[-1], file.status().identity
                    _, index = IndexFile(self._directory, segments[-1]).load_end(file, segments[-1].first_offset)
                    self._position, self._due, self._last = index.position, index.due, (0, b"")
                before = self._position
                self._position, self._due = good_end(file, before, self._due)
                if self._position != before or not self._last[1]:
                    start = last_message_start(file, self._position) or 0
                    self._last = start, file.read(_HEAD_BYTES, start)
                if judge and (error := corruption_at(file, self._position, self._due)) is not None:
                    raise error
                return self._due
        return 0

    def past_damage(self, offset: int) -> Place | None:
        """Return where the last segment's messages end, counting those after damage.

        A reader that skips damage returns them. The index has their positions, but not every journal has one.

        Args:
            offset: above what :meth:`end_offset` returned last.

        Returns:
            None if the messages up to this offset are not there.
        """
        if self._segment is None or self._identity is None:
            return None
        file = open_existing(self._directory.disk, self._segment.path, "read")
        if file is None:
            return None
        with file:
            position, due = self._position, self._due
            while due < offset:
                damage = find_damage(file, position, due)
                if damage is None or damage.resume is None or file.status().identity != self._identity:
                    return None
                position, due = good_end(file, *damage.resume)
            return Place(self._identity, position)

    def _is_known(self, segment: Segment, file: File) -> bool:
        """Return whether it is the file of the last call: inode numbers are soon reused."""
        start, head = self._last
        status = file.status()
        return (
            (segment, status.identity) == (self._segment, self._identity)
            and status.size >= self._position
            and file.read(len(head), start) == head
        )
