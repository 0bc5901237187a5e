"""Repair a damaged journal so that it opens, without losing a byte. Runs under the writer's lock.

First all damage is found, by the rule of :mod:`sej.journal.salvage`. Then, segment by segment:

1. The damaged bytes are copied to ``kept/``, the lost offsets recorded in ``gaps/``. If damaged ranges are close to
   each other, one copy holds them and the bytes between them.
2. The good runs, joined if no offset is lost between them, are written into ``tmp/`` and synced. An intent in
   ``txn/repair`` names them.
3. The runs are renamed into ``jnl/`` from the last to the first, so the one that replaces the damaged segment comes
   last. A segment without a good start is removed.

Retention waits while a segment is repaired. If it has removed one since they were listed, the repair stops.

After a crash the next writer (or repair) finishes from the intent. A well-formed block with a wrong CRC32C is kept,
because it is unknown which of its messages changed. Its bytes are copied to ``kept/``, its checksum is computed again,
and the report names it.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from sej.codec.format import MAX_OFFSET
from sej.errors import LockedError
from sej.journal.directory import Directory, Segment
from sej.journal.gaps import Gap, read_gaps, record_gap
from sej.journal.index import BlockIndex, IndexFile, read_blocks
from sej.journal.recovery import keep
from sej.journal.retention import readers_lock
from sej.journal.salvage import Plan, Run, plan_between
from sej.journal.tail import sync_segment
from sej.journal.writer_lock import WriterLock
from sej.system.disk import File, Tolerated
from sej.system.logs import WARNING, record
from sej.system.sealed import SealedFile, whole

_COPY_BYTES: Final = 1 << 20
_INTENT_BYTES: Final = 1 << 26
_NEAR_BYTES: Final = 1 << 16
"""Damaged bytes at most this far apart are kept as one piece of the file, named by its position."""


class Repair(NamedTuple):
    """The result of a repair, or with dry_run of what it would do.

    Attributes:
        gaps: lost offsets, each recorded.
        kept: the files that hold the damaged bytes.
        segments: the segments that were rewritten.
        notes: one line for each finding.
    """

    gaps: list[Gap]
    kept: list[str]
    segments: list[str]
    notes: list[str]


def repair(
    directory: Directory, *, dry_run: bool = False, progress: Callable[[int, int], object] | None = None
) -> Repair:
    """See :meth:`sej.Journal.repair`."""
    done = Repair([], [], [], [])
    with WriterLock(directory) as lock:
        if not dry_run:
            finish_repair(directory)
        segments = directory.segments()
        if segments:
            last_file = directory.disk.open(segments[-1].path, "edit")
            try:
                lock.lock_segment(last_file)
            finally:
                lock.keep(None)
                last_file.close()
        known = read_gaps(directory)
        behind = segments[0].first_offset if segments else 0
        sizes = [0 if (there := directory.disk.status(segment.path)) is None else there.size for segment in segments]
        read, total = 0, sum(sizes)
        for at in range(len(segments)):
            if progress is not None:
                progress(read, total)
            read += sizes[at]
            retention_waits = contextlib.nullcontext() if dry_run else readers_lock(directory)
            with retention_waits, _open_listed(directory, segments, at) as file:
                behind = _repair_segment(directory, segments, at, file, behind, known, done, dry_run)
    if done.notes and not dry_run:
        record(__name__, WARNING, "%s: repaired: %s", directory.path, "; ".join(done.notes))
    return done


def _open_listed(directory: Directory, segments: list[Segment], at: int) -> File:
    """Open a segment, if retention has removed neither it nor its successor since the segments were listed.

    Raises:
        LockedError: retention has removed one.
    """
    disk = directory.disk
    gone = next((one for one in segments[at : at + 2] if disk.status(one.path) is None), None)
    if gone is not None:
        raise LockedError("retention removed this segment during the repair; run the repair again", path=gone.path)
    return disk.open(segments[at].path, "read")


def _repair_segment(
    directory: Directory,
    segments: list[Segment],
    at: int,
    file: File,
    behind: int,
    known: list[Gap],
    done: Repair,
    dry_run: bool,
) -> int:
    """Repair one of these segments; return the offset after its last message.

    Args:
        directory: the journal.
        segments: its segments.
        at: the number of the segment.
        file: the segment.
        behind: the offset after the last message before the segment.
        known: the gaps that were recorded before.
        done: extended by what is done.
        dry_run: change nothing else.
    """
    segment = segments[at]
    last = at == len(segments) - 1 and segment.first_offset >= behind  # else an earlier segment has later messages
    indexed, _ = IndexFile(directory, segment).end(file)
    plan, _ = plan_between(directory, segments, at, file, floor=behind, indexed=indexed)
    kept = _keep(directory, segment, file, plan.damage, done, dry_run)
    starts = [(run.start, run.first, run.stop) for run in plan.runs]
    if last and not starts:  # its name tells where the journal continues
        starts = [(file.status().size, segment.first_offset, segment.first_offset)]
    ends = [end for _, end, _ in plan.damage]
    for start, first, stop in starts:
        if first > behind:
            at_damage = bisect_right(ends, start) - 1
            reason, copy = "no segment holds them", None
            if at_damage >= 0:
                reason, copy = plan.damage[at_damage][2], kept[at_damage]
            _gap(directory, done, Gap(behind, first, reason, copy), known, dry_run)
        behind = max(behind, stop)
    changed = _keep_changed(directory, segment, file, plan.runs, done, dry_run)
    if not (plan.damage or plan.runs or last):
        done.notes.append(f"{segment.path}: no bytes, and not the last segment: it is removed")
    if plan.damage or not (plan.runs or last):
        _rewrite(directory, segment, file, plan, done, dry_run, last=last)
    elif changed and not dry_run:
        _reindex(directory, segment, file)
    return behind


def _keep(
    directory: Directory, segment: Segment, file: File, damage: list[tuple[int, int, str]], done: Repair, dry_run: bool
) -> list[str | None]:
    """Note every range of damaged bytes and copy it; ranges that are close together become one piece of the file.

    Returns:
        The path of the copy of each; None if there are no bytes, or with dry_run.
    """
    pieces: list[tuple[int, int]] = []
    for start, end, reason in damage:
        done.notes.append(f"{segment.path}: bytes {start} to {end}: {reason}")
        if start == end:
            continue
        if pieces and start - pieces[-1][1] <= _NEAR_BYTES:
            start = pieces.pop()[0]
        pieces.append((start, end))
    if dry_run:
        return [None] * len(damage)
    copies = [
        keep(directory, file, start, end - start, f"{segment.name}.{start:012x}.damaged") for start, end in pieces
    ]
    done.kept.extend(copies)
    starts = [start for start, _ in pieces]
    return [copies[bisect_right(starts, start) - 1] if start < end else None for start, end, _ in damage]


def _rewrite(
    directory: Directory, segment: Segment, file: File, plan: Plan, done: Repair, dry_run: bool, *, last: bool
) -> None:
    """Replace a segment by its good runs; those whose offsets follow each other are one segment."""
    groups: list[list[Run]] = []
    for run in plan.runs:
        if groups and run.first == groups[-1][-1].stop:
            groups[-1].append(run)
        else:
            groups.append([run])
    done.segments.extend(directory.segment(group[0].first).path for group in groups)
    if dry_run:
        return
    names = []
    directory.disk.mkdir(directory.at("tmp"))
    for group in groups:
        name = _name(group[0].first)
        directory.disk.unlink(directory.at("tmp", name))
        with directory.disk.open(directory.at("tmp", name), "new") as copy:
            for run in group:
                _copy(file, run, copy)
            with Tolerated():  # retention by age would only wait longer
                copy.set_time(file.status().mtime_ns)
            copy.sync()
        names.append((name, group[0].first))
    directory.disk.mkdir(directory.at("txn"))
    _intent(directory).store({"segment": segment.first_offset, "runs": names, "last": last})
    _finish_repair(directory)


def _copy(file: File, run: Run, target: File) -> None:
    position = run.start
    while position < run.end:
        data = file.read(min(_COPY_BYTES, run.end - position), position)
        target.write(data)
        position += len(data)


def _intent(directory: Directory) -> SealedFile:
    way_out = "move it to kept/ and run `sej repair` again"
    return directory.sealed("an intent of a repair", way_out, "txn", "repair", max_bytes=_INTENT_BYTES)


def finish_repair(directory: Directory) -> None:
    """Publish the runs that an intent names; called by a writer when it opens, under the lock."""
    if directory.disk.status(directory.at("txn", "repair")) is not None:
        with readers_lock(directory):  # retention waits
            _finish_repair(directory)


def _finish_repair(directory: Directory) -> None:
    disk = directory.disk
    intent = _intent(directory)
    found = intent.load()
    if found is None:
        return
    with intent.checking():
        damaged = directory.segment(whole(found["segment"], 0, MAX_OFFSET))
        runs = [(_staged(directory, first), directory.segment(first)) for first in _starts(found["runs"])]
        is_last = bool(found["last"])
    disk.unlink(IndexFile(directory, damaged).path)
    for staged, segment in reversed(runs):
        if disk.status(staged) is None:
            continue
        if disk.status(damaged.path) is None:  # it exists until the last rename: retention removed it with all its runs
            disk.unlink(staged)
            continue
        disk.unlink(IndexFile(directory, segment).path)
        disk.rename(staged, segment.path)
    if not runs and is_last:  # nothing of it was good, but the journal continues at its name
        with disk.open(damaged.path, "edit") as emptied:
            emptied.truncate(0)
            emptied.sync()
    elif damaged not in (segment for _, segment in runs):
        disk.unlink(damaged.path)
    for _, segment in runs:
        if disk.status(segment.path) is None:
            continue  # retention has removed it since
        with disk.open(segment.path, "read") as file:
            _reindex(directory, segment, file)
    intent.remove()


def _starts(runs: Any) -> list[int]:
    """Return the first offsets of the runs that an intent names, each with the name of its file."""
    found = [whole(first, 0, MAX_OFFSET) for _, first in runs]
    if [name for name, _ in runs] != [_name(first) for first in found]:
        raise ValueError("the names of its runs do not match their offsets")
    return found


def _name(first: int) -> str:
    return f"repair.{first:016x}"


def _staged(directory: Directory, first: int) -> str:
    return directory.at("tmp", _name(first))


def _gap(directory: Directory, done: Repair, gap: Gap, known: list[Gap], dry_run: bool) -> None:
    if any(one.start <= gap.start and gap.stop <= one.stop for one in known):
        return
    done.gaps.append(gap)
    done.notes.append(str(gap))
    if not dry_run:
        record_gap(directory, gap)


def _keep_changed(
    directory: Directory, segment: Segment, file: File, runs: list[Run], done: Repair, dry_run: bool
) -> bool:
    """Note and keep the blocks of good messages whose checksums are wrong; return whether there are any."""
    found = False
    starts = [run.start for run in runs]
    for block, error in IndexFile(directory, segment).changed_blocks(file):
        at = bisect_right(starts, block.position) - 1
        if at < 0 or block.end > runs[at].end:
            continue
        found = True
        done.notes.append(f"{error}. It is unknown which of them changed: all are kept, with a new checksum")
        if not dry_run:
            name = f"{segment.name}.{block.position:012x}.checksum"
            done.kept.append(keep(directory, file, block.position, block.end - block.position, name))
    return found


def reindex(directory: Directory) -> int:
    """Rebuild the index of every segment; return the number of blocks."""
    blocks = 0
    with WriterLock(directory):
        segments = directory.segments()
        for segment in segments:
            with readers_lock(directory):  # retention waits
                if directory.disk.status(segment.path) is None:
                    continue
                with directory.disk.open(segment.path, "edit") as file:
                    if segment == segments[-1]:  # an entry is written after its bytes are durable
                        sync_segment(directory, segment, file)
                    else:
                        file.sync()
                    blocks += _reindex(directory, segment, file)
    return blocks


def _reindex(directory: Directory, segment: Segment, file: File) -> int:
    index = BlockIndex(segment.first_offset)
    for block in read_blocks(file, 0, segment.first_offset):
        index.add(block)
    index_file = IndexFile(directory, segment)
    index_file.write(index.blocks, 0)
    index_file.close()
    return len(index.blocks)
