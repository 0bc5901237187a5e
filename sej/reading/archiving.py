"""``sej archive``: moves the messages of a journal into its cold tier, and back.

The archiver is the reader ``cold-tier``: it reads all messages up to the segment that is being written, and writes them
as objects, one for each segment. After each object it lists the object, then commits its offset. Retention then
removes the segments that no reader needs. A crash between two of these steps repeats the step, with the same result:

=====================================  =================================  =======================================
a crash after                          leaves                             the next run
=====================================  =================================  =======================================
a part of an object, or all of it      an object that is not listed       writes it again, under the same name
the list                               the kept offset of before          continues after the listed messages
the commit                             segments that are in the tier too  removes them
=====================================  =================================  =======================================
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from typing import Final, NamedTuple

from sej.checks import require
from sej.codec import columns
from sej.errors import CorruptionError, JournalNotFoundError, NotAJournalError, OffsetTooSmallError, SejError
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory, Gap, Segment, gap_at, journal_id, record_gap
from sej.journal.retention import Retention, clean, readers_lock
from sej.journal.tier import READER, Archived, Listed, Tier, fetched
from sej.reading.offset import Offset
from sej.system.checksum import crc32c
from sej.system.disk import OS, Disk, absolute_path, pieces

_DELETED: Final = "deleted before they were archived, by a limit for readers or in spite of this one"
_CHUNK_BYTES: Final = 1 << 20


class Moved(NamedTuple):
    """What a run has done.

    Attributes:
        messages: how many it has added to the tier.
        objects: in how many objects.
        removed: the paths of segments that are only in the tier now.
    """

    messages: int
    objects: int
    removed: list[str]


def archive(
    path: str | os.PathLike[str],
    to: str | os.PathLike[str] | None,
    *,
    keep_bytes: int = 0,
    accept_gaps: bool = False,
    compress: bool = False,
    disk: Disk = OS,
) -> Moved:
    """Move the messages of complete segments into the journal's tier; those that a reader needs stay in ``jnl/`` too.

    Args:
        path: the SEJ directory.
        to: a directory, or a URL such as ``s3://bucket/journals``; None: as before. The journal gets a directory there.
        keep_bytes: leave so many bytes in ``jnl/``, as ``sej clean --max-bytes`` does.
        accept_gaps: record a gap if messages were deleted before they were archived, by a limit for readers.
        compress: compress each object with gzip; readers decompress a copy.
        disk: the disk.

    Raises:
        SejError: ``to`` is missing, or another place than before.
        LockedError: another process archives this journal.
        CorruptionError: messages are damaged, or an object is not what was written.
        OffsetTooSmallError: messages were deleted before they were archived, and accept_gaps is not set.
    """
    require(to=to, keep_bytes=keep_bytes, disk=disk)
    require(accept_gaps=accept_gaps, compress=compress)
    directory = Directory(path, disk)
    directory.require()
    tier = _tier(directory, None if to is None else os.fspath(to))
    with Offset(path, READER, disk=disk) as kept:
        segments = directory.segments()
        start = tier.objects[-1].next_offset if tier.objects else segments[0].first_offset if segments else 0
        stop = segments[-1].first_offset if segments else 0
        if segments and start < segments[0].first_offset and gap_at(directory, start) is None:
            _accept(directory, Gap(start, segments[0].first_offset, _DELETED), accept_gaps=accept_gaps)
        done: list[Listed] = []
        with closing(Cursor(directory, start, verify=True)) as cursor:
            for listed in _written(cursor, tier, segments, stop, compress=compress):
                tier.add(listed)
                kept.commit(listed.next_offset)
                done.append(listed)
            kept.commit(max(kept.value, min(cursor.due, stop)))
        removed = clean(directory, Retention(max_bytes=keep_bytes))
    return Moved(sum(each.next_offset - each.first_offset for each in done), len(done), removed)


def _accept(directory: Directory, gap: Gap, *, accept_gaps: bool) -> None:
    """Record messages that were deleted, if that is accepted."""
    if not accept_gaps:
        raise OffsetTooSmallError(
            f"messages {gap.start} to {gap.stop - 1} were {_DELETED}; `sej archive move --accept-gaps` records the gap"
            " and continues after it",
            first_available=gap.stop,
            path=directory.path,
            offset=gap.start,
        )
    record_gap(directory, gap)


def restore(path: str | os.PathLike[str], *, disk: Disk = OS) -> list[str]:
    """Copy all messages of the tier back to ``jnl/``, the newest first; return the paths of the segments.

    Raises:
        CorruptionError: an object is missing or wrong.
        LockedError: another process archives this journal.
    """
    directory = Directory(path, disk)
    restored = []
    for segment in reversed(objects(path, disk=disk)):
        with Offset(path, READER, disk=disk), readers_lock(directory):  # no segment is removed meanwhile
            there = directory.segments()
            if there and there[0].first_offset <= segment.first_offset:
                continue
            disk.mkdir(directory.at("tmp"))
            temporary, place = directory.at("tmp", "restored"), directory.segment(segment.first_offset).path
            disk.unlink(temporary)
            with disk.open(fetched(segment), "read") as source, disk.open(temporary, "temp") as copy:
                for data in pieces(source):
                    copy.write(data)
                copy.sync()
            disk.rename(temporary, place)
            restored.append(place)
    return restored


def objects(path: str | os.PathLike[str], *, disk: Disk = OS) -> list[Archived]:
    """Return the objects of a journal's tier.

    Raises:
        JournalNotFoundError: it has no tier.
    """
    directory = Directory(path, disk)
    directory.require()
    tier = Tier.of(directory)
    if tier is None:
        raise JournalNotFoundError("this journal has no cold tier; `sej archive --to` makes one", path=directory.path)
    return tier.segments()


def problems(path: str | os.PathLike[str], *, disk: Disk = OS) -> Iterator[CorruptionError]:
    """Yield the error of each object that is missing or wrong, after reading it completely."""
    for segment in objects(path, disk=disk):
        try:
            fetched(segment)
        except CorruptionError as error:
            yield error


def _tier(directory: Directory, to: str | None) -> Tier:
    tier, identity = Tier.of(directory), journal_id(directory)
    if identity is None:
        raise NotAJournalError(
            "this journal has no identity, which names it in the tier; open it once with sej.Writer",
            path=directory.path,
        )
    if to is None and tier is None:
        raise SejError("expected a directory or a URL for the tier; pass --to", path=directory.path)
    if to is not None:
        place = to.rstrip("/") if "://" in to else absolute_path(to)
        address = f"{place}/{identity.hex()}"
        if tier is not None and tier.address != address:
            raise SejError(
                f"this journal has its tier in {tier.address}; leave out --to, or move the objects and edit nothing",
                path=directory.path,
            )
        tier = tier or Tier(directory, address, [])
    assert tier is not None
    return tier


def _written(cursor: Cursor, tier: Tier, segments: list[Segment], stop: int, *, compress: bool) -> Iterator[Listed]:
    """Write the messages before ``stop`` as objects; yield what to list."""
    chunks = _chunks(cursor, stop)
    chunk = next(chunks, None)
    while chunk is not None:
        end = next((each.first_offset for each in segments if each.first_offset > chunk.first), stop)
        written = _Object(chunk, chunks, end)
        packed_size = tier.put(chunk.first, written.contents(), compress=compress)
        yield written.listed(packed_size)
        chunk = written.following


class _Chunk(NamedTuple):
    first: int
    messages: int
    data: bytes


def _chunks(cursor: Cursor, stop: int) -> Iterator[_Chunk]:
    while cursor.due < stop:
        data, messages = cursor.read_encoded(_CHUNK_BYTES)
        if not messages or cursor.due - messages >= stop:
            return
        yield _Chunk(cursor.due - messages, messages, data)


class _Object:
    """An object while it is written: from a chunk on, up to an offset, or to a gap before it.

    Attributes:
        following: the chunk after it; None: there is none.
    """

    def __init__(self, chunk: _Chunk, chunks: Iterator[_Chunk], end: int) -> None:
        self.following: _Chunk | None = chunk
        self._chunks, self._end = chunks, end
        self._first = self._next = chunk.first
        self._size = self._crc = 0
        self._newest = -(2**63)

    def contents(self) -> Iterator[bytes]:
        while (chunk := self.following) is not None and chunk.first == self._next < self._end:
            data, first, count = chunk.data, chunk.first, chunk.messages
            times = columns(data, 0, len(data), first, count, keys=False, values=False).timestamps
            self._newest = max(self._newest, max(memoryview(times).cast("B").cast("q")))
            self._crc, self._size, self._next = crc32c(data, self._crc), self._size + len(data), first + count
            yield data
            self.following = next(self._chunks, None)

    def listed(self, packed_size: int) -> Listed:
        return Listed(self._first, self._next, self._size, self._crc, self._newest, packed_size)
