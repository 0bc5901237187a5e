"""``shard.lag``: how far each shard's reader is behind. Takes no lock and changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from sej.checks import CALLABLE, DISK, require
from sej.codec.format import NO_TIMESTAMP
from sej.errors import OffsetBeyondEndError
from sej.journal.directory import Directory, check_name, containing, is_journal
from sej.journal.end import Tail
from sej.journal.index import IndexFile
from sej.journal.segment import SegmentReader
from sej.reading.offset import read_offset
from sej.system.disk import OS, Disk
from shard.names import TREE, Path

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a reader is behind in one shard.

    Attributes:
        index: the shard.
        offset: the next offset of the reader; the first existing one if it never committed.
        end_offset: the offset of the next message.
        messages: how many messages it has not read.
        bytes: how many bytes of the segments these take.
        seconds: how old the oldest of them is; 0.0 if none exists, or if it has no timestamp.
    """

    index: int
    offset: int
    end_offset: int
    messages: int
    bytes: int
    seconds: float


def lag(path: Path, name: str, *, now_ns: Callable[[], int] = time.time_ns, disk: Disk = OS) -> list[Lag]:
    """Return how far a reader is behind, in every shard: the row at i is shard i. A missing shard has no lag.

    Args:
        path: the sharded journal.
        name: the reader's name, as passed to :class:`shard.Worker`.
        now_ns: the clock for ages.
        disk: the disk.

    Raises:
        CorruptionError: a shard cannot be read from the reader's offset on.
        OffsetBeyondEndError: a kept offset is past the end of its shard.
        InvalidNameError: the name is not a reader's.
    """
    require(path=(path, TREE), disk=(disk, DISK), now_ns=(now_ns, CALLABLE))
    check_name(name, "a reader's name")
    now = now_ns()
    return [_lag(path, index, name, now, disk) for index in range(path.count)]


def _lag(path: Path, index: int, name: str, now: int, disk: Disk) -> Lag:
    while True:
        with suppress(FileNotFoundError):  # retention or a merge removed the segment in the meantime
            return _lag_now(path, index, name, now, disk)


def _lag_now(path: Path, index: int, name: str, now: int, disk: Disk) -> Lag:
    if not is_journal(disk, path.dir(index)):
        return Lag(index, 0, 0, 0, 0, 0.0)
    directory = Directory(path.dir(index), disk)
    kept = read_offset(directory.path, name, disk=disk)
    end = Tail(directory).end_offset()
    segments = directory.segments()
    first = segments[0].first_offset if segments else 0
    offset = first if kept is None else kept
    if offset > end:
        raise OffsetBeyondEndError(
            f"reader {name!r} is at offset {offset}, but the journal ends at {end}: it lost messages or was replaced;"
            " move the reader with `sej reset`",
            path=directory.path,
            offset=offset,
        )
    if offset >= end:
        return Lag(index, offset, end, 0, 0, 0.0)
    there = max(offset, first)  # messages that retention removed are not counted
    at = containing(segments, there)
    reader = SegmentReader(disk, segments[at].path, 0, segments[at].first_offset)
    try:
        block_index = IndexFile(directory, segments[at]).load(reader.file, segments[at].first_offset)
        reader.skip(*block_index.before_offset(there))
        while reader.due < there and reader.read(there - reader.due):
            pass
        size = reader.status().size - reader.position
        oldest = reader.read(1)
    finally:
        reader.close()
    for segment in segments[at + 1 :]:
        status = disk.status(segment.path)
        size += 0 if status is None else status.size
    stamp = oldest[0].timestamp if oldest else NO_TIMESTAMP
    seconds = 0.0 if stamp == NO_TIMESTAMP else max(now - stamp, 0) / _NS
    return Lag(index, offset, end, end - there, size, seconds)
