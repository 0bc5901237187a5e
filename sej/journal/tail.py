"""The end of a journal, computed repeatedly while it grows, and which part of the journal is on the medium.

Only the last segment can have bytes that are not synced, because a segment is synced before its successor is created.
The durable position is stored in ``idx/durable``; :mod:`sej.system.durable` explains why a successful sync alone proves
nothing.
"""

from __future__ import annotations

import errno
from typing import Final

from sej.errors import OffsetBeyondEndError
from sej.journal.directory import Directory, Segment
from sej.journal.index import IndexFile
from sej.journal.recovery import corruption_at, find_damage, good_end, last_message
from sej.journal.segment import Place
from sej.system.disk import File, open_existing
from sej.system.durable import renew

_HEAD_BYTES: Final = 16
"""Offset and timestamp distinguish a message from another one at the same position of a new file."""

_READ_ONLY: Final = (errno.EACCES, errno.EPERM, errno.EROFS)


class Tail:
    """The end of a journal; each call walks only the messages that are new since the last one.

    For callers that need it often: kept offsets, the hub, Spark's streams.

    Attributes:
        segment: the last segment, after the last call; None if there was none.
    """

    __slots__ = ("_directory", "_due", "_identity", "_last", "_position", "segment")

    def __init__(self, directory: Directory) -> None:
        """Create it; nothing is read yet."""
        self._directory = directory
        self.segment: Segment | None = None
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
                    self.segment, self._identity = segments[-1], file.status().identity
                    self._position, self._due = IndexFile(self._directory, segments[-1]).end(file)
                    self._last = 0, b""
                before = self._position
                self._position, self._due = good_end(file, before, self._due)
                if self._position != before or not self._last[1]:
                    start, head = last_message(file, self._position) or (0, file.read(_HEAD_BYTES, 0))
                    self._last = start, head[:_HEAD_BYTES]
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
        if self.segment is None or self._identity is None:
            return None
        file = open_existing(self._directory.disk, self.segment.path, "read")
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
            (segment, status.identity) == (self.segment, self._identity)
            and status.size >= self._position
            and file.read(len(head), start) == head
        )


def sync_up_to(directory: Directory, offset: int, tail: Tail | None = None) -> None:
    """Make every message below offset durable; any process may sync a file.

    All bytes are synced, whichever process wrote them. Nothing is done if they are known to be on the medium. A process
    that may not write the segment cannot rewrite doubtful bytes, and relies on the sync alone.

    Args:
        directory: the journal.
        offset: the messages below it are durable when this returns.
        tail: of this journal, if the caller has one: it remembers where the journal ended.

    Raises:
        OffsetBeyondEndError: the journal ends before offset.
        OSError: the sync failed.
    """
    tail = tail or Tail(directory)
    end = tail.end_offset()
    past = tail.past_damage(offset) if offset > end else None
    if offset > end and past is None:
        raise OffsetBeyondEndError(
            f"this offset is beyond {end}, where the journal ends or is damaged, and cannot be saved; run `sej doctor`",
            path=directory.path,
            offset=offset,
        )
    segment = tail.segment
    if segment is None or offset <= segment.first_offset:
        return  # the segments before the last one were synced
    writable = True
    try:
        file = directory.disk.open(segment.path, "edit")
    except FileNotFoundError:
        return  # sealed and removed in the meantime
    except OSError as error:  # a reader may sync what it may not write, if the system allows it
        if error.errno not in _READ_ONLY:
            raise
        file, writable = directory.disk.open(segment.path, "read"), False
    with file:
        kept = directory.kept_position()
        known = kept.load(file, segment.first_offset)
        if not known.position:
            directory.sync_names()
        if known.offset >= offset:
            return
        place = past or tail.place
        if place is None or place.identity != file.status().identity:
            return  # sealed between two steps, which synced it
        if writable:
            renew(directory.disk, file, known.position, place.position)
            if past is None:  # the next opening would take a stored position for sound, and pass the damage
                kept.store(file, segment.first_offset, place.position, end)
        else:
            file.sync()


def sync_segment(directory: Directory, segment: Segment, file: File) -> None:
    """Make a whole segment durable, under the writer's lock.

    Args:
        directory: the journal.
        segment: one of its segments.
        file: the segment, opened for editing.
    """
    kept = directory.kept_position()
    known = kept.load(file, segment.first_offset)
    if not known.position:
        directory.sync_names()
    position, due = good_end(file, *known)
    renew(directory.disk, file, known.position, position)
    kept.store(file, segment.first_offset, position, due)
