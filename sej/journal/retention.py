"""Removing segments: retention and merging, under one lock over ``ofs/``.

The lock (``ofs/.lock``) decides races with readers: it is held while a reader is created or moves backwards, so either
retention sees its kept offset, or the reader sees what is left. Segments are removed from the oldest on, so the
remaining ones are always the journal's end without a gap.

A segment is renamed to ``tmp/`` and deleted there. A deletion in ``jnl/`` would end readers of the original, see
:mod:`sej.system.followers`. After a crash between the two steps the next writer deletes the file.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Self

from sej.checks import COUNT, POSITIVE, SECONDS, optional, require
from sej.codec.format import MAX_OFFSET, NO_TIMESTAMP, OFFSET, OFFSET_SIZE
from sej.durations import Seconds, seconds
from sej.errors import BadOffsetFileError, CorruptionError, InvalidNameError, LockedError, SejError
from sej.journal.directory import Directory, Segment, containing
from sej.journal.index import Block, BlockIndex, IndexFile, read_blocks
from sej.journal.recovery import good_end, last_message_start
from sej.journal.twin import read_kept
from sej.system.disk import Disk, File, Tolerated, of_system, read_small, replace_file
from sej.system.followers import find_followers
from sej.system.logs import INFO, record
from sej.system.sealed import seal, unseal, whole

_COPY_BYTES: Final = 1 << 20
_UINT32_MAX: Final = 2**32 - 1
MARKER_BYTES: Final = 1 << 26
"""The most bytes of an unfinished merge's or repair's file: the blocks of a joined segment of 100 GiB."""


class _Limits(NamedTuple):
    max_age_s: float | None
    max_bytes: int | None
    keep_segments: int


class Retention(_Limits):
    """What a journal keeps. A segment that exceeds any limit is removed.

    Attributes:
        max_age_s: seconds since a segment's last append.
        max_bytes: size of all segments together.
        keep_segments: at least this many of the newest are kept, whatever the limits; at least 1.
    """

    __slots__ = ()

    def __new__(cls, max_age_s: Seconds | None = None, max_bytes: int | None = None, keep_segments: int = 1) -> Self:
        """Set the limits; None: no limit.

        Raises:
            TypeError: a limit is not a number.
            ValueError: a limit is below 0, or keep_segments is below 1: the last segment is always kept.
        """
        max_age_s = seconds("max_age_s", max_age_s)
        require(
            max_age_s=(max_age_s, optional(SECONDS)),
            max_bytes=(max_bytes, optional(COUNT)),
            keep_segments=(keep_segments, POSITIVE),
        )
        return super().__new__(cls, max_age_s, max_bytes, keep_segments)


def readers_lock(directory: Directory) -> AbstractContextManager[object]:
    """Hold a lock under which no other process or thread creates a reader, moves one backwards or removes a segment.

    The lock is taken when this returns, and released by the ``with`` block, see :meth:`sej.system.disk.File.closing`.
    """
    lock = _readers_lock(directory, wait=True)
    assert lock is not None
    return lock


def _readers_lock(directory: Directory, *, wait: bool) -> AbstractContextManager[object] | None:
    """Take the same lock; None if another process has it and wait is False."""
    directory.disk.mkdir(directory.at("ofs"))
    file = directory.disk.open(directory.at("ofs", ".lock"), "append")
    try:
        if file.lock(wait=wait):
            return file.closing()
    except BaseException:
        file.close()
        raise
    file.close()
    return None


def slowest_reader(directory: Directory, ignore_readers: Collection[str] = ()) -> tuple[int, str] | None:
    """Return the lowest kept offset and its reader; None without readers.

    One that never committed counts as offset 0.
    """
    kept = []
    for entry in directory.disk.list(directory.at("ofs")):
        name, dot, end = entry.rpartition(".")
        if dot and end == "ofs" and name and name not in ignore_readers:
            try:
                offset = read_kept(directory, name)
            except BadOffsetFileError:  # its reader's offset is unknown: it protects everything
                offset = None
            kept.append((offset or 0, name))
    return min(kept, default=None)


def clean(
    directory: Directory,
    policy: Retention,
    *,
    dry_run: bool = False,
    ignore_readers: Collection[str] = (),
    now_ns: int | None = None,
    wait: bool = True,
) -> list[str]:
    """Remove the oldest segments that the policy does not keep and no reader needs.

    Args:
        directory: the journal.
        policy: what it keeps.
        dry_run: only return what would be removed.
        ignore_readers: readers, by name, whose kept offsets do not count.
        now_ns: the current time for ages; None: the clock's.
        wait: False removes nothing if another process removes segments at this moment: for a writer, which must not
            wait.

    Returns:
        The paths that were removed, or with dry_run would be.

    Raises:
        InvalidNameError: a reader to ignore does not exist.
    """
    now_ns = time.time_ns() if now_ns is None else now_ns
    removed: list[str] = []
    lock = _readers_lock(directory, wait=wait)
    if lock is None:
        return []
    with lock:
        entries = directory.disk.list(directory.at("ofs"))
        readers = sorted(entry.removesuffix(".ofs") for entry in entries if entry.endswith(".ofs"))
        for name in ignore_readers:
            if name not in readers:
                raise InvalidNameError(
                    f"ignore_readers must name existing readers, got {name!r}; this journal has"
                    f" {', '.join(map(repr, readers)) or 'none'}",
                    path=directory.at("ofs"),
                )
        slowest = slowest_reader(directory, ignore_readers)
        if not dry_run:
            _finish_merge(directory)  # a joined segment contains more than the next one's name tells
        gone = set(merged_away(directory))
        segments = [segment for segment in directory.segments() if segment not in gone]
        status = [directory.disk.status(segment.path) for segment in segments]
        left = sum(there.size for there in status if there is not None)
        for at, segment in enumerate(segments[: max(len(segments) - policy.keep_segments, 0)]):
            there = status[at]
            if there is None:
                continue
            old = policy.max_age_s is not None and now_ns - there.mtime_ns > policy.max_age_s * 1e9
            much = policy.max_bytes is not None and left > policy.max_bytes
            needed = slowest is not None and slowest[0] < segments[at + 1].first_offset
            if needed or not (old or much):
                break
            left -= there.size
            if not dry_run and not removed:
                directory.disk.sync_dir(directory.at("ofs"))  # a reader's kept offset must not go back after this
            removed.append(segment.path)
            if not dry_run:
                _remove(directory, segment)
    if removed and not dry_run:
        record(__name__, INFO, "%s: removed %d segments, up to %s", directory.path, len(removed), removed[-1])
    return removed


def _remove(directory: Directory, segment: Segment) -> None:
    """Remove a segment and its index."""
    disk = directory.disk
    away = directory.at("tmp", f"{segment.first_offset:016x}.removed")
    try:
        disk.mkdir(directory.at("tmp"))
        disk.rename(segment.path, away)
    except OSError as error:
        if not of_system(error):
            raise
        disk.unlink(segment.path)  # it is gone, the disk is full, or jnl/ is on another file system than tmp/
    disk.unlink(away)
    disk.unlink(IndexFile(directory, segment).path)


def merge(directory: Directory, min_bytes: int, *, unless_followed: bool = False) -> int:
    """Join runs of small sealed segments until each has min_bytes; readers may continue in the meantime.

    The joined bytes are written to a file next to the journal, checked and synced. They get the time of the last append
    of the newest part, and the first segment's name by rename. Then the other segments are removed. A marker in
    ``txn/`` lets the next writer finish after a crash; it holds the joined index, with the checksums of the parts. New
    readers wait for at most one joined segment.

    Args:
        directory: the journal.
        min_bytes: segments of at least this size are not joined.
        unless_followed: look for readers of the original before each rename, which would end them.

    Returns:
        How many segments were removed.

    Raises:
        LockedError: a reader of the original follows the journal; the groups before were merged.
        UnsupportedError: the system cannot tell whether one does.
    """
    if unless_followed:
        _require_unfollowed(directory)
    finish_merge(directory)
    groups: list[list[Segment]] = []
    size = 0
    segments = directory.segments()
    for at, segment in enumerate(segments[:-1]):
        there = directory.disk.status(segment.path)
        sound = there is not None and _ends_at(directory.disk, segment, segments[at + 1].first_offset)
        if there is None or there.size >= min_bytes or not sound:
            size = 0
            continue
        if size == 0 or size >= min_bytes:
            groups.append([])
            size = 0
        groups[-1].append(segment)
        size += there.size
    gone = 0
    for group in groups:
        with readers_lock(directory):
            _finish_merge(directory)
            if all(directory.disk.status(segment.path) is not None for segment in group):
                gone += _join(directory, group, unless_followed=unless_followed)
    return gone


def _require_unfollowed(directory: Directory) -> None:
    found = [directory.disk.status(segment.path) for segment in directory.segments()]
    followers = find_followers(directory.jnl, {there.identity for there in found if there is not None})
    if followers:
        raise LockedError(
            f"a reader of the original follows this journal, and a merge would end it: {', '.join(followers)}; stop it"
            " first, or merge without unless_followed",
            path=directory.path,
            holder=followers[0],
        )


def finish_merge(directory: Directory) -> list[Segment]:
    """Finish a merge that crashed; called by a writer when it opens.

    If the marker is lost, as in a copy of ``jnl/`` alone, the segments tell: one whose messages a longer one also has
    is removed.

    Returns:
        The segments that the journal has now.

    Raises:
        CorruptionError: its marker is damaged.
    """
    if directory.disk.status(directory.at("txn", "merge")) is not None:
        with readers_lock(directory):
            _finish_merge(directory)
    segments = directory.segments()
    if _covered(directory, segments):
        with readers_lock(directory):
            _remove_joined(directory, _covered(directory, directory.segments()))
        segments = directory.segments()
    return segments


def merged_away(directory: Directory) -> list[Segment]:
    """Return the segments that :func:`finish_merge` would remove.

    Raises:
        CorruptionError: the marker of a merge is damaged.
    """
    begun = _read_marker(directory)
    return begun.others if begun is not None and _is_joined(directory, begun) else []


class _Merge(NamedTuple):
    """The content of the marker: the joined segment, its size in bytes, the segments in it, and its index."""

    first: Segment
    size: int
    others: list[Segment]
    blocks: list[Block]


def _read_marker(directory: Directory) -> _Merge | None:
    disk = directory.disk
    marker = directory.at("txn", "merge")
    try:
        data = read_small(disk, marker, MARKER_BYTES)
    except FileNotFoundError:  # also if another process finishes the merge at this moment
        return None
    try:
        plan = unseal(marker, data, ("first_offset", "size", "others", "blocks"))
        first = whole(plan["first_offset"], 0, MAX_OFFSET)
        return _Merge(
            directory.segment(first),
            whole(plan["size"]),
            [directory.segment(whole(other, first + 1, MAX_OFFSET)) for other in plan["others"]],
            [_block(row) for row in plan["blocks"]],
        )
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptionError(
            f"the marker of a merge cannot be read from this file ({error}); move it to kept/, and the next writer"
            " finds the joined segments by their messages",
            path=marker,
            position=0,
        ) from error


def _block(row: list[Any]) -> Block:
    position, end, first_offset, messages, check, *times = row
    return Block(
        whole(position), whole(end), whole(first_offset), whole(messages, 1, _UINT32_MAX), whole(check, 0, _UINT32_MAX),
        *(whole(time, NO_TIMESTAMP) for time in times),
    )  # fmt: skip


def _is_joined(directory: Directory, begun: _Merge) -> bool:
    """Return whether the rename had happened."""
    there = directory.disk.status(begun.first.path)
    return there is not None and there.size == begun.size


def _finish_merge(directory: Directory) -> None:
    begun = _read_marker(directory)
    if begun is not None and _is_joined(directory, begun):
        index_file = IndexFile(directory, begun.first)
        index_file.write(begun.blocks, 0)
        index_file.close()
        _remove_joined(directory, begun.others)
    directory.disk.unlink(directory.at("tmp", "merge"))  # also that of a merge that was killed before its marker
    if begun is not None:
        directory.disk.unlink(directory.at("txn", "merge"))


def _join(directory: Directory, group: list[Segment], *, unless_followed: bool) -> int:
    if len(group) < 2:
        return 0
    disk = directory.disk
    blocks = _joined_blocks(directory, group)
    if len(_marker(group, MAX_OFFSET, blocks)) > MARKER_BYTES:  # no writer would read it
        half = len(group) // 2
        return sum(_join(directory, part, unless_followed=unless_followed) for part in (group[:half], group[half:]))
    for name in ("tmp", "txn"):
        disk.mkdir(directory.at(name))
    joined = directory.at("tmp", "merge")
    file = disk.open(joined, "temp")
    try:
        newest = max(_copy(disk, segment.path, file) for segment in group)
        with Tolerated():  # retention would only wait longer
            file.set_time(newest)
        file.sync()
        size = file.size()
    except BaseException:
        disk.unlink(joined)  # the disk may be full
        raise
    finally:
        file.close()
    replace_file(disk, directory.at("tmp", "merge.plan"), directory.at("txn", "merge"), _marker(group, size, blocks))
    if unless_followed:
        try:
            _require_unfollowed(directory)
        except SejError:
            _finish_merge(directory)  # nothing was renamed: this removes the joined file and the marker
            raise
    disk.rename(joined, group[0].path)  # the index of the first part also matches it, as far as it goes
    _finish_merge(directory)
    return len(group) - 1


def _marker(group: list[Segment], size: int, blocks: list[Block]) -> bytes:
    first, *others = (segment.first_offset for segment in group)
    return seal("merge", {"first_offset": first, "size": size, "others": others, "blocks": blocks})


def _joined_blocks(directory: Directory, group: list[Segment]) -> list[Block]:
    """Return the blocks of the joined segment, with the checksums of its parts: joining does not confirm bytes.

    Raises:
        CorruptionError: a part was damaged after :func:`merge` found it good; nothing is joined.
    """
    index = BlockIndex(group[0].first_offset)
    for segment in group:
        base = index.position
        file = directory.disk.open(segment.path, "read")
        try:
            known = IndexFile(directory, segment).load(file, segment.first_offset)
            for block in (*known.blocks, *read_blocks(file, known.position, known.due)):
                index.add(block._replace(position=base + block.position, end=base + block.end))
            if index.position - base != file.size():
                raise CorruptionError(
                    "the segment was damaged while segments were merged; run sej verify",
                    path=segment.path,
                    position=index.position - base,
                    offset=index.due,
                )
        finally:
            file.close()
    return index.blocks


def _remove_joined(directory: Directory, others: list[Segment]) -> None:
    # From the oldest on, so that there is never a gap after the joined segment. A reader that looks for an offset in
    # the meantime finds it in the joined segment or in a remaining one, and each of these leads to the next.
    for segment in others:
        _remove(directory, segment)


def _covered(directory: Directory, segments: list[Segment]) -> list[Segment]:
    """Return segments whose bytes are the end of a longer one before them that is good and reaches the next one."""
    disk = directory.disk
    if len(segments) < 3:
        return []
    found: list[Segment] = []
    covered: set[Segment] = set()
    there = [disk.status(segment.path) for segment in segments]
    for at, joined in enumerate(segments[:-2]):
        status, next_status = there[at], there[at + 1]
        if status is None or next_status is None or status.mtime_ns < next_status.mtime_ns or joined in covered:
            continue  # a joined segment has the time of its newest part, or was written after it
        due = _offset_behind(disk, joined, status.size)
        stop = containing(segments, due)
        parts = segments[at + 1 : stop]
        if parts and segments[stop].first_offset == due and _ends_at(disk, joined, due):
            position = status.size - sum(part.size for part in there[at + 1 : stop] if part is not None)
            if position > 0 and _ends_with(disk, joined, position, parts):
                found.extend(parts)
                covered.update(parts)
    return found


def _offset_behind(disk: Disk, segment: Segment, size: int) -> int:
    """Return the offset after its last message, by the size at its end; its own first offset if that fails."""
    try:
        file = disk.open(segment.path, "read")
    except FileNotFoundError:
        return segment.first_offset
    try:
        start = last_message_start(file, size)
        return segment.first_offset if start is None else OFFSET.unpack(file.read(OFFSET_SIZE, start))[0] + 1
    finally:
        file.close()


def _ends_with(disk: Disk, segment: Segment, position: int, parts: list[Segment]) -> bool:
    """Return whether a segment holds exactly the bytes of those parts from that position on."""
    try:
        whole = disk.open(segment.path, "read")
    except FileNotFoundError:
        return False
    try:
        for part in parts:
            file = disk.open(part.path, "read")
            try:
                at = 0
                while data := file.read(_COPY_BYTES, at):
                    if whole.read(len(data), position) != data:
                        return False
                    at, position = at + len(data), position + len(data)
            finally:
                file.close()
        return position == whole.size()
    except FileNotFoundError:
        return False
    finally:
        whole.close()


def _ends_at(disk: Disk, segment: Segment, due: int) -> bool:
    """Return whether a segment exists, is good from its first byte to its last, and ends where the next one starts."""
    try:
        file = disk.open(segment.path, "read")
    except FileNotFoundError:
        return False
    try:
        return good_end(file, 0, segment.first_offset) == (file.size(), due)
    finally:
        file.close()


def _copy(disk: Disk, path: str, target: File) -> int:
    """Copy a segment to the end of a file; return the time of its last append."""
    source = disk.open(path, "read")
    try:
        position = 0
        while data := source.read(_COPY_BYTES, position):
            target.write(data)
            position += len(data)
        return source.status().mtime_ns
    finally:
        source.close()
