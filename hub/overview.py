"""The contents of a hub, journal by journal: offsets, bytes and the lag of readers; and how long messages stay.

A directory that cannot be read or cleaned is reported, and does not stop the others. Retention goes by each journal's
own readers: a segment that a reader with a kept offset still needs is kept, and so is the last one; see
``Journal.clean``. Merges keep their offsets in every directory, so they count as readers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from hub.naming import Source, find_sources, require_root, source_path
from hub.readers import Holder, holders
from sej.checks import require
from sej.errors import SejError
from sej.journal.view import Journal
from sej.system.disk import OS, Disk, is_scarce


class JournalStats(NamedTuple):
    """One client's journal on the hub.

    Attributes:
        source: client and journal.
        first_offset: the offset of the first message that still exists.
        end_offset: the offset of the next message.
        size: bytes of its segments.
        segments: the number of segments.
        last_arrival_ns: when it was last written, ns since the epoch; None: never.
        lag: for each reader with a kept offset, how many messages it has not read.
        error: why it cannot be read, or None.
        holders: for each reader that a program on another machine has, or had last, that program and its lease.
    """

    source: Source
    first_offset: int
    end_offset: int
    size: int
    segments: int
    last_arrival_ns: int | None
    lag: Mapping[str, int]
    error: str | None = None
    holders: Mapping[str, Holder] = MappingProxyType({})

    @property
    def messages(self) -> int:
        """The number of messages that still exist."""
        return self.end_offset - self.first_offset


def stats(root: str | os.PathLike[str], *, disk: Disk = OS) -> list[JournalStats]:
    """Return every client's journals, sorted.

    Raises:
        JournalNotFoundError: the root does not exist.
        NotAJournalError: the root is a file or a SEJ directory.
        OSError: this process has no descriptor or memory left.
    """
    require(root=root, disk=disk)
    path = os.fspath(root)
    require_root(path, disk=disk)
    held = holders(path)
    return [
        _look(path, source, disk)._replace(holders=held.get(source, {})) for source in find_sources(path, disk=disk)
    ]


def _look(root: str, source: Source, disk: Disk) -> JournalStats:
    try:
        journal = Journal(source_path(root, source), disk=disk)
        first, end, segments, kept = journal.first_offset, journal.end_offset, journal.segments, journal.offsets()
    except (SejError, OSError) as error:
        if is_scarce(error):
            raise
        return JournalStats(source, 0, 0, 0, 0, None, {}, str(error))
    filled = [segment.mtime_ns for segment in segments if segment.size]
    return JournalStats(
        source,
        first,
        end,
        sum(segment.size for segment in segments),
        len(segments),
        max(filled, default=None),
        {reader: end - max(offset or 0, first) for reader, offset in kept.items()},
    )


def clean(root: str | os.PathLike[str], *, disk: Disk = OS, **limits: Any) -> dict[Source, Any]:
    """Remove segments that exceed the limits, in every directory.

    Args:
        root: the hub's root.
        disk: the disk.
        limits: as for :meth:`sej.Journal.clean`: ``max_age_s``, ``max_bytes``, ``keep_segments``, ``dry_run``.

    Returns:
        For each directory the result of ``Journal.clean``, or the error that prevented it.

    Raises:
        JournalNotFoundError: the root does not exist.
    """
    require(root=root, disk=disk)
    path = os.fspath(root)
    require_root(path, disk=disk)
    done: dict[Source, Any] = {}
    for source in find_sources(path, disk=disk):
        try:
            done[source] = Journal(source_path(path, source), disk=disk).clean(**limits)
        except SejError as error:
            done[source] = error
        except OSError as error:
            done[source] = SejError(error.strerror or str(error), path=error.filename or source_path(path, source))
            done[source].__cause__ = error
    return done
