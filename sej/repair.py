"""Repair: from a damaged journal to one that opens, without losing a byte. Runs under the writer's lock.

What is damaged is found first, all of it. Then, segment by segment:

1. The damaged bytes are copied to ``kept/``, the lost offsets recorded in ``gaps/``.
2. The good runs are written into ``tmp/`` and synced; an intent in ``txn/repair`` names them.
3. The runs are renamed into ``jnl/`` from the last to the first, so the one that replaces the damaged segment comes
   last. A segment that had no good start is removed.

After a crash the next writer (or repair) finishes from the intent. A block that is well formed but whose CRC32C is
wrong stays: nobody can tell which of its messages changed. Its bytes are copied to ``kept/``, its checksum is made
anew, and the report names it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from sej.codec import Candidate
from sej.directory import Directory, Segment
from sej.disk import File, replace_file
from sej.errors import CorruptionError
from sej.format import MAX_OFFSET, OVERHEAD_SIZE
from sej.gaps import Gap, read_gaps, record_gap
from sej.index import BlockIndex, IndexFile, read_blocks, verify_block
from sej.locks import Lock
from sej.opening import lock_segment
from sej.recovery import find_damage, good_end, keep, next_candidate

__all__ = ["Repair", "finish_repair", "reindex", "repair"]

_COPY_BYTES: Final = 1 << 20
_ANY_REACH: Final = 1 << 50
_JUMP_MAX: Final = 1 << 20
"""A single message at a segment's end is believed when it is not further ahead than this."""


class Repair(NamedTuple):
    """What a repair did, or with dry_run would do.

    Attributes:
        gaps: offsets that are lost, each recorded.
        kept: the files that hold the damaged bytes.
        segments: the segments that were written anew.
        notes: one line for each thing that was found.
    """

    gaps: list[Gap]
    kept: list[str]
    segments: list[str]
    notes: list[str]


class _Run(NamedTuple):
    """Good messages: bytes [start, end) of a segment, offsets [first, stop)."""

    start: int
    end: int
    first: int
    stop: int


class _Plan(NamedTuple):
    """What is to be done with one segment: the good runs, and the bytes between them with their reasons."""

    runs: list[_Run]
    damage: list[tuple[int, int, str]]


def repair(
    directory: Directory, *, dry_run: bool = False, progress: Callable[[int, int], object] | None = None
) -> Repair:
    """See :meth:`sej.Journal.repair`."""
    done = Repair([], [], [], [])
    with Lock(directory.at("jnl.lck"), what="the journal's writer lock", disk=directory.disk):
        if not dry_run:
            finish_repair(directory)
        segments = directory.segments()
        if segments:
            last_file = directory.disk.open(segments[-1].path, "edit")
            try:
                lock_segment(last_file)
            finally:
                last_file.close()
        behind = segments[0].first_offset if segments else 0
        sizes = [0 if (found := directory.disk.status(segment.path)) is None else found.size for segment in segments]
        for at, segment in enumerate(segments):
            if progress is not None:
                progress(sum(sizes[:at]), sum(sizes))
            last = at == len(segments) - 1
            file = directory.disk.open(segment.path, "read")
            try:
                ceiling = MAX_OFFSET if last else segments[at + 1].first_offset
                plan = _plan(file, segment, max(behind, segment.first_offset), ceiling)
                kept = [_keep(directory, segment, file, damage, done, dry_run) for damage in plan.damage]
                starts = [(run.start, run.first, run.stop) for run in plan.runs]
                if last and not starts:  # its name says where the journal goes on
                    starts = [(file.status().size, segment.first_offset, segment.first_offset)]
                for start, first, stop in starts:
                    if first > behind:
                        reasons = [
                            (damage[2], copy)
                            for damage, copy in zip(plan.damage, kept, strict=True)
                            if damage[1] <= start
                        ]
                        reason, copy = reasons[-1] if reasons else ("no segment holds them", None)
                        _gap(directory, done, Gap(behind, first, reason, copy), dry_run)
                    behind = max(behind, stop)
                if plan.damage or not (plan.runs or last):
                    _write_anew(directory, segment, file, plan, done, dry_run, last=last)
                else:
                    _mend_checksums(directory, segment, file, done, dry_run)
            finally:
                file.close()
    return done


def _plan(file: File, segment: Segment, floor: int, ceiling: int) -> _Plan:
    """Read a segment once: its good runs of offsets from floor to below ceiling, and what lies between them."""
    size = file.status().size
    runs: list[_Run] = []
    damage: list[tuple[int, int, str]] = []
    position, due = 0, segment.first_offset
    while position < size:
        end, stop = good_end(file, position, due)
        if end > position:
            runs.append(_Run(position, end, due, stop))
            position, due = end, stop
        found = find_damage(file, position, due)
        if found is None:
            break
        follower = _resume(file, position, size, max(due, floor), ceiling)
        until = size if follower is None else follower.position
        damage.append((position, until, found.reason))
        if follower is None:
            break
        position, due = follower.position, follower.offset
    return _Plan(runs, damage)


def _resume(file: File, position: int, size: int, due: int, ceiling: int) -> Candidate | None:
    """Where good messages go on behind damage at position: the first that is due or later and is no chance hit.

    Recovery asks for an offset that is reachable; here bytes may be missing, so any later offset will do, if another
    good message or the file's end follows it.
    """
    start = position
    while True:
        found = next_candidate(file, start, size, due - 1, position - _ANY_REACH)
        if found is None:
            return None
        end, stop = good_end(file, found.position, found.offset)
        chained = stop - found.offset >= 2
        reachable = found.offset - due <= (found.position - position) // OVERHEAD_SIZE
        if stop <= ceiling and (chained or reachable or (end == size and found.offset - due < _JUMP_MAX)):
            # One message with a later offset may be one whose offset is what is damaged: then the next one says so.
            behind = (
                next_candidate(file, end, size, due - 1, position - _ANY_REACH) if stop == found.offset + 1 else None
            )
            if behind is None or behind.offset > found.offset:
                return found
        start = found.position + 1


def _keep(
    directory: Directory, segment: Segment, file: File, damage: tuple[int, int, str], done: Repair, dry_run: bool
) -> str | None:
    """Note one stretch of damaged bytes and copy it aside."""
    start, end, reason = damage
    done.notes.append(f"{segment.path}: bytes {start} to {end}: {reason}")
    if dry_run:
        return None
    path = keep(directory, file, start, end - start, f"{segment.name}.{start:012x}.damaged")
    done.kept.append(path)
    return path


def _write_anew(
    directory: Directory, segment: Segment, file: File, plan: _Plan, done: Repair, dry_run: bool, *, last: bool
) -> None:
    """Put the good runs of a segment in its place."""
    done.segments.extend(directory.segment(run.first).path for run in plan.runs)
    if dry_run:
        return
    names = []
    directory.disk.mkdir(directory.at("tmp"))
    for run in plan.runs:
        name = f"repair.{run.first:016x}"
        directory.disk.unlink(directory.at("tmp", name))
        copy = directory.disk.open(directory.at("tmp", name), "new")
        try:
            position = run.start
            while position < run.end:
                data = file.read(min(_COPY_BYTES, run.end - position), position)
                copy.write(data)
                position += len(data)
            copy.sync()
        finally:
            copy.close()
        names.append((name, run.first))
    directory.disk.mkdir(directory.at("txn"))
    intent = {"segment": segment.first_offset, "runs": names, "last": last}
    replace_file(
        directory.disk, directory.at("tmp", "repair"), directory.at("txn", "repair"), json.dumps(intent).encode()
    )
    finish_repair(directory)


def finish_repair(directory: Directory) -> None:
    """Publish the runs that an intent names; called by a writer when it opens, under the lock."""
    disk = directory.disk
    path = directory.at("txn", "repair")
    if disk.status(path) is None:
        return
    file = disk.open(path, "read")
    try:
        intent: dict[str, Any] = json.loads(file.read(file.status().size, 0))
    finally:
        file.close()
    damaged = directory.segment(intent["segment"])
    disk.unlink(IndexFile(directory, damaged).path)
    for name, first in reversed(intent["runs"]):
        staged = directory.at("tmp", name)
        if disk.status(staged) is not None:
            disk.unlink(IndexFile(directory, directory.segment(first)).path)
            disk.rename(staged, directory.segment(first).path)
    if not intent["runs"] and intent["last"]:  # nothing of it was good, but the journal goes on at its name
        emptied = disk.open(damaged.path, "edit")
        try:
            emptied.truncate(0)
            emptied.sync()
        finally:
            emptied.close()
    elif all(first != damaged.first_offset for _, first in intent["runs"]):
        disk.unlink(damaged.path)
    disk.unlink(path)


def _gap(directory: Directory, done: Repair, gap: Gap, dry_run: bool) -> None:
    if any(known.start <= gap.start and gap.stop <= known.stop for known in read_gaps(directory)):
        return
    done.gaps.append(gap)
    done.notes.append(f"messages {gap.start} to {gap.stop - 1} are lost: {gap.reason}")
    if not dry_run:
        record_gap(directory, gap)


def _mend_checksums(directory: Directory, segment: Segment, file: File, done: Repair, dry_run: bool) -> None:
    index_file = IndexFile(directory, segment)
    wrong = []
    for block in index_file.load(file, segment.first_offset).blocks:
        try:
            verify_block(file, block)
        except CorruptionError as error:
            wrong.append(block)
            done.notes.append(str(error))
    if not wrong or dry_run:
        return
    for block in wrong:
        name = f"{segment.name}.{block.position:012x}.checksum"
        done.kept.append(keep(directory, file, block.position, block.end - block.position, name))
    _reindex(directory, segment, file)


def reindex(directory: Directory) -> int:
    """Write the index of every segment anew; returns the number of blocks."""
    blocks = 0
    with Lock(directory.at("jnl.lck"), what="the journal's writer lock", disk=directory.disk):
        for segment in directory.segments():
            file = directory.disk.open(segment.path, "edit")
            try:
                file.sync()  # an entry is written after its bytes are durable
                blocks += _reindex(directory, segment, file)
            finally:
                file.close()
    return blocks


def _reindex(directory: Directory, segment: Segment, file: File) -> int:
    index = BlockIndex(segment.first_offset)
    for block in read_blocks(file, 0, segment.first_offset):
        index.add(block)
    index_file = IndexFile(directory, segment)
    index_file.write(index.blocks, 0)
    index_file.close()
    return len(index.blocks)
