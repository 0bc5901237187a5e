"""What takes segments away: retention and merging, under one lock over ``ofs/``.

The lock (``ofs/.lock``) decides races with readers: a reader that is made or goes backwards holds it meanwhile, so
retention either sees its kept offset, or the reader sees what is left. Deleting goes from the oldest segment on, so
what is left is always the journal's end without a hole.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Self

from sej.checks import COUNT, POSITIVE, SECONDS, optional, require
from sej.codec.format import MAX_OFFSET, NO_TIMESTAMP, OFFSET, OFFSET_SIZE
from sej.errors import BadOffsetFileError, CorruptionError, InvalidNameError
from sej.journal.directory import Directory, Segment, containing
from sej.journal.index import Block, BlockIndex, IndexFile, read_blocks
from sej.journal.recovery import good_end, last_message_start
from sej.journal.twin import read_kept
from sej.system.disk import Disk, File, read_small, replace_file
from sej.system.sealed import seal, unseal, whole

__all__ = [
    "MARKER_BYTES",
    "Retention",
    "clean",
    "finish_merge",
    "merge",
    "merged_away",
    "readers_lock",
    "slowest_reader",
]

_COPY_BYTES: Final = 1 << 20
_UINT32_MAX: Final = 2**32 - 1
MARKER_BYTES: Final = 1 << 26
"""At most so many bytes has what a merge or a repair had begun: blocks of a joined segment of 100 GiB."""


class _Limits(NamedTuple):
    max_age_s: float | None
    max_bytes: int | None
    keep_segments: int


class Retention(_Limits):
    """What a journal keeps. A segment goes when it passes any limit that is set.

    Attributes:
        max_age_s: seconds since a segment's last append.
        max_bytes: size of all segments together.
        keep_segments: so many of the newest stay, whatever the limits; at least 1.
    """

    __slots__ = ()

    def __new__(cls, max_age_s: float | None = None, max_bytes: int | None = None, keep_segments: int = 1) -> Self:
        """Limits; None: no such limit.

        Raises:
            TypeError: a limit is not a number.
            ValueError: a limit is below 0, or keep_segments is: the last segment always stays.
        """
        require(
            max_age_s=(max_age_s, optional(SECONDS)),
            max_bytes=(max_bytes, optional(COUNT)),
            keep_segments=(keep_segments, POSITIVE),
        )
        return super().__new__(cls, max_age_s, max_bytes, keep_segments)


def readers_lock(directory: Directory) -> AbstractContextManager[object]:
    """Let no reader be made or reset backwards, and no segment be removed, by any other process or thread.

    Taken when this returns, and given back by the ``with`` block, see :meth:`sej.system.disk.File.closing`.
    """
    lock = _readers_lock(directory, wait=True)
    assert lock is not None
    return lock


def _readers_lock(directory: Directory, *, wait: bool) -> AbstractContextManager[object] | None:
    """The same; None if another process has the lock and wait is False."""
    directory.disk.mkdir(directory.at("ofs"))
    file = directory.disk.open(directory.at("ofs", ".lock"), "append")
    try:
        if file.lock(wait=wait, brief=True):
            return file.closing()
    except BaseException:
        file.close()
        raise
    file.close()
    return None


def slowest_reader(directory: Directory, ignore_readers: Collection[str] = ()) -> tuple[int, str] | None:
    """The lowest kept offset and whose it is; None without readers. One that never committed counts as offset 0."""
    kept = []
    for entry in directory.disk.list(directory.at("ofs")):
        name, dot, end = entry.rpartition(".")
        if dot and end == "ofs" and name and name not in ignore_readers:
            try:
                offset = read_kept(directory, name)
            except BadOffsetFileError:  # nobody knows where its reader is: it protects everything
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
        dry_run: only say what would go.
        ignore_readers: readers, by name, whose kept offsets do not count.
        now_ns: the time that ages are counted to; None: now.
        wait: False removes nothing where somebody else takes segments away just now: for a writer, which must not wait.

    Returns:
        The paths that were removed, or with dry_run would be.

    Raises:
        InvalidNameError: a reader to be ignored does not exist.
    """
    now_ns = time.time_ns() if now_ns is None else now_ns
    removed: list[str] = []
    lock = _readers_lock(directory, wait=wait)
    if lock is None:
        return []
    with lock:
        readers = {entry.removesuffix(".ofs") for entry in directory.disk.list(directory.at("ofs"))}
        for name in ignore_readers:
            if name not in readers:
                raise InvalidNameError(f"there is no reader {name!r} to be ignored", path=directory.at("ofs"))
        slowest = slowest_reader(directory, ignore_readers)
        if not dry_run:
            _finish_merge(directory)  # a joined segment reaches further than the name of the next one says
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
                directory.disk.sync_dir(directory.at("ofs"))  # what a reader has kept must not go back after this
            removed.append(segment.path)
            if not dry_run:
                directory.disk.unlink(segment.path)
                directory.disk.unlink(IndexFile(directory, segment).path)
    return removed


def merge(directory: Directory, min_bytes: int) -> int:
    """Join runs of small sealed segments until each has min_bytes; readers may go on meanwhile.

    The joined bytes are written beside the journal, checked and synced; they take the first segment's name by rename,
    then the other segments go. A marker in ``txn/`` lets the next writer finish what a crash interrupted; it holds the
    joined index, with the checksums that the parts had. New readers wait for one joint segment at the most.

    Returns:
        How many segments went.
    """
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
                gone += _join(directory, group)
    return gone


def finish_merge(directory: Directory) -> None:
    """Finish what a merge that crashed had begun; called by a writer when it opens.

    Where the marker is lost, as in a copy of ``jnl/`` alone, the segments tell: what a longer one has, too, goes.

    Raises:
        CorruptionError: its marker is damaged.
    """
    if directory.disk.status(directory.at("txn", "merge")) is not None:
        with readers_lock(directory):
            _finish_merge(directory)
    if _covered(directory):
        with readers_lock(directory):
            _remove_joined(directory, _covered(directory))


def merged_away(directory: Directory) -> list[Segment]:
    """The segments that :func:`finish_merge` would remove.

    Raises:
        CorruptionError: the marker of a merge is damaged.
    """
    begun = _read_marker(directory)
    return begun.others if begun is not None and _is_joined(directory, begun) else []


class _Merge(NamedTuple):
    """What the marker says: the joined segment, its size in bytes, those that are in it now, and its index."""

    first: Segment
    size: int
    others: list[Segment]
    blocks: list[Block]


def _read_marker(directory: Directory) -> _Merge | None:
    disk = directory.disk
    marker = directory.at("txn", "merge")
    if disk.status(marker) is None:
        return None
    data = read_small(disk, marker, MARKER_BYTES)
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
            f"what a merge had begun cannot be read from this file ({error}); move it to kept/: the next writer sees by"
            " the segments themselves what was joined already",
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
    """Whether the rename had happened."""
    there = directory.disk.status(begun.first.path)
    return there is not None and there.size == begun.size


def _finish_merge(directory: Directory) -> None:
    begun = _read_marker(directory)
    if begun is None:
        return
    if _is_joined(directory, begun):
        index_file = IndexFile(directory, begun.first)
        index_file.write(begun.blocks, 0)
        index_file.close()
        _remove_joined(directory, begun.others)
    directory.disk.unlink(directory.at("tmp", "merge"))
    directory.disk.unlink(directory.at("txn", "merge"))


def _join(directory: Directory, group: list[Segment]) -> int:
    if len(group) < 2:
        return 0
    disk = directory.disk
    for name in ("tmp", "txn"):
        disk.mkdir(directory.at(name))
    joined = directory.at("tmp", "merge")
    file = disk.open(joined, "temp")
    try:
        for segment in group:
            _copy(disk, segment.path, file)
        file.sync()
        size = file.status().size
    finally:
        file.close()
    first, *others = (segment.first_offset for segment in group)
    plan = {"first_offset": first, "size": size, "others": others, "blocks": _joined_blocks(directory, group)}
    replace_file(disk, directory.at("tmp", "merge.plan"), directory.at("txn", "merge"), seal("merge", plan))
    disk.rename(joined, group[0].path)  # the index of the first part is true of it too, as far as it goes
    _finish_merge(directory)
    return len(others)


def _joined_blocks(directory: Directory, group: list[Segment]) -> list[Block]:
    """The blocks of the joined segment, with the checksums that its parts have: joining does not make bytes true."""
    index = BlockIndex(group[0].first_offset)
    for segment in group:
        base = index.position
        file = directory.disk.open(segment.path, "read")
        try:
            known = IndexFile(directory, segment).load(file, segment.first_offset)
            for block in (*known.blocks, *read_blocks(file, known.position, known.due)):
                index.add(block._replace(position=base + block.position, end=base + block.end))
        finally:
            file.close()
    return index.blocks


def _remove_joined(directory: Directory, others: list[Segment]) -> None:
    # From the oldest on: behind the joined segment there is never a hole, so that a reader who looks for an offset
    # meanwhile finds it in the joined segment or in one of those that are left, and each of these goes on to the next.
    for segment in others:
        directory.disk.unlink(segment.path)
        directory.disk.unlink(IndexFile(directory, segment).path)


def _covered(directory: Directory) -> list[Segment]:
    """The segments whose bytes are the end of a longer one before them, which is good and goes up to the next one."""
    disk, segments = directory.disk, directory.segments()
    if len(segments) < 3:
        return []
    found: list[Segment] = []
    covered: set[Segment] = set()
    there = [disk.status(segment.path) for segment in segments]
    for at, joined in enumerate(segments[:-2]):
        status, next_status = there[at], there[at + 1]
        if status is None or next_status is None or status.mtime_ns < next_status.mtime_ns or joined in covered:
            continue  # what was joined was written behind its parts
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
    """What follows its last message, by the size at its end; its own first offset where none can be found so."""
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
    """Whether from that position on a segment holds the bytes of those parts and nothing else."""
    whole = disk.open(segment.path, "read")
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
        return position == whole.status().size
    except FileNotFoundError:
        return False
    finally:
        whole.close()


def _ends_at(disk: Disk, segment: Segment, due: int) -> bool:
    """Whether a segment is there, good from its first byte to its last, and ends where the next one starts."""
    try:
        file = disk.open(segment.path, "read")
    except FileNotFoundError:
        return False
    try:
        return good_end(file, 0, segment.first_offset) == (file.status().size, due)
    finally:
        file.close()


def _copy(disk: Disk, path: str, target: File) -> None:
    source = disk.open(path, "read")
    try:
        position = 0
        while data := source.read(_COPY_BYTES, position):
            target.write(data)
            position += len(data)
    finally:
        source.close()
