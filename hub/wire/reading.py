"""What readers of the hub get: which journals there are and where each stands, and messages as they stand in a journal.

Reading goes past the writers: a cursor of its own for each call, so that a reader never holds up a producer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hub.naming import Source, source_path
from hub.store import Store
from hub.wire import hub_pb2 as pb
from sej.cursor import Cursor
from sej.directory import Directory
from sej.disk import OS
from sej.format import MAX_OFFSET
from sej.journal import Journal
from sej.opening import journal_id

__all__ = ["Catalog", "encoded", "find_time"]

_CHUNK_BYTES: Final = 1 << 20
_LEAST_BYTES: Final = 4096


class Catalog:
    """The journals of a store and where each stands; what did not change since it was asked last is not read again."""

    def __init__(self, store: Store) -> None:
        """Nothing is looked at yet."""
        self._store = store
        self._known: dict[Source, tuple[object, pb.Listed]] = {}

    def listed(self, source: Source) -> pb.Listed | None:
        """Where a journal stands; None where the hub does not have it after all."""
        path = source_path(self._store.root, source)
        mark = _mark(Directory(path, OS))
        known = self._known.get(source)
        if mark is not None and known is not None and known[0] == mark:
            return known[1]
        first = self._store.first_offset(*source)
        if first is None:
            return None
        found = pb.Listed(
            ClientID=source.client,
            JournalDir=source.journal_dir,
            FirstOffset=first,
            NextOffset=_behind_damage(Directory(path, OS), self._store.end_offset(*source)),
            Size=sum(segment.size for segment in Journal(path).segments),
            ID=journal_id(Directory(path, OS)) or b"",
        )
        self._known[source] = (mark, found)
        return found


def _mark(directory: Directory) -> object | None:
    """What changes whenever a message comes or a segment goes; None where that cannot be told."""
    jnl = OS.status(directory.jnl)
    segments = directory.segments() if jnl is not None else []
    last = OS.status(segments[-1].path) if segments else None
    if jnl is None or last is None:
        return None
    return jnl.identity, jnl.mtime_ns, last.identity, last.size


def _behind_damage(directory: Directory, end: int) -> int:
    """Where messages end although some are damaged: who reads up to there is told, or passes over them."""
    cursor = Cursor(directory, end, on_corruption="skip")
    try:
        while cursor.read_encoded(_CHUNK_BYTES)[1] or cursor.judge():
            pass
        return cursor.due if cursor.gaps else end
    finally:
        cursor.close()


def find_time(store: Store, source: Source, timestamp: int) -> int:
    """The first offset as new as timestamp, ns; the end where there is none."""
    return min(Journal(source_path(store.root, source)).find_time(timestamp), store.end_offset(*source))


def encoded(
    store: Store, source: Source, request: pb.ReadRequest, *, most_bytes: int = _CHUNK_BYTES
) -> Iterator[bytes]:
    """Whole messages from request.Offset on, until request.StopOffset is passed or nothing more is there.

    Args:
        store: the journal's.
        source: the journal.
        request: what is asked for.
        most_bytes: no chunk is larger; a message that is goes alone.

    Raises:
        JournalNotFoundError: the hub has no such journal.
        OffsetTooSmallError: the first message was deleted.
        CorruptionError: the hub's copy is damaged, and request.Skip is not set.
        ValueError: no journal reaches request.Offset.
    """
    if request.Offset > MAX_OFFSET:
        raise ValueError(f"offset {request.Offset}: 0 to {MAX_OFFSET} is due")
    directory = Directory(source_path(store.root, source), OS)
    directory.require()
    chunk_bytes = min(max(most_bytes, _LEAST_BYTES), _CHUNK_BYTES)
    cursor = Cursor(
        directory,
        request.Offset,
        on_corruption="skip" if request.Skip else "raise",
        verify=request.Verify,
        chunk_bytes=chunk_bytes,
    )
    try:
        cursor.check_available()
        while not request.StopOffset or cursor.due < request.StopOffset:
            data, count = cursor.read_encoded(chunk_bytes)
            if count:
                yield data
            elif not cursor.judge():
                return
    finally:
        cursor.close()
