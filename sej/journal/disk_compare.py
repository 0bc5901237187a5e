"""Which part of a journal is on the medium: the durable position of its last segment, and syncing up to an offset.

Only the last segment can have bytes that are not synced, because a segment is synced before its successor is created.
The durable position is stored in ``idx/durable``; :mod:`sej.system.durable` explains why a successful sync alone proves
nothing.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from sej.errors import OffsetBeyondEndError
from sej.journal.directory import Directory, Segment, containing
from sej.journal.recovery import good_end
from sej.system.disk import File
from sej.system.durable import renew

if TYPE_CHECKING:
    from sej.journal.tail import Tail

_READ_ONLY: Final = (errno.EACCES, errno.EPERM, errno.EROFS)


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
    segments = directory.segments()
    at = containing(segments, offset - 1)
    if tail is None:
        from sej.journal.tail import Tail  # here, because an exclusive writer never comes here

        tail = Tail(directory)
    end = tail.end_offset()
    past = tail.past_damage(offset) if offset > end else None
    if offset > end and past is None:
        raise OffsetBeyondEndError(
            f"this offset is beyond {end}, where the journal ends or is damaged, and cannot be saved; run `sej doctor`",
            path=directory.path,
            offset=offset,
        )
    if at < 0 or at != len(segments) - 1 or offset <= segments[at].first_offset:
        return
    writable = True
    try:
        file = directory.disk.open(segments[at].path, "edit")
    except FileNotFoundError:
        return  # sealed and removed in the meantime
    except OSError as error:  # a reader may sync what it may not write, if the system allows it
        if error.errno not in _READ_ONLY:
            raise
        file, writable = directory.disk.open(segments[at].path, "read"), False
    with file:
        kept = directory.kept_position()
        known = kept.load(file, segments[at].first_offset)
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
                kept.store(file, segments[at].first_offset, place.position, end)
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
