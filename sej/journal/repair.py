"""Find damage, and repair it so that the journal opens, without losing a byte.

:func:`verify` reads everything once and reports what is wrong. It changes nothing. :func:`repair` runs under the
writer's lock.

First all damage is found, by the rule of :mod:`sej.journal.recovery`. Then, segment by segment:

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
from typing import Any, Final, Literal, NamedTuple

from sej.codec.format import MAX_OFFSET
from sej.errors import CorruptionError, LockedError
from sej.journal.directory import (
    Directory,
    Gap,
    Segment,
    containing,
    is_recorded,
    is_still,
    journal_id,
    read_gaps,
    record_gap,
)
from sej.journal.index import BlockIndex, IndexFile, read_blocks
from sej.journal.recovery import Damage, Plan, Run, good_end, keep, plan_between
from sej.journal.retention import readers_lock
from sej.journal.tail import sync_segment
from sej.journal.writer_lock import WriterLock
from sej.system.disk import File, Tolerated, open_existing, pieces
from sej.system.logs import WARNING, record
from sej.system.sealed import SealedFile, whole

_INTENT_BYTES: Final = 1 << 26
_NEAR_BYTES: Final = 1 << 16
"""Damaged bytes at most this far apart are kept as one piece of the file, named by its position."""
_Kind = Literal["torn tail", "corruption", "gap", "checksum", "foreign file", "identity"]


class Problem(NamedTuple):
    """One problem of a journal.

    Attributes:
        kind: the kind of problem.
        path: the file.
        position: the byte in it.
        offset: the message that is expected there.
        reason: what was found and what was expected.
        end: where good messages continue in the same file; None: not in this file.
        next_offset: the offset that is expected there.
    """

    kind: _Kind
    path: str
    position: int
    offset: int
    reason: str
    end: int | None = None
    next_offset: int | None = None

    def __str__(self) -> str:
        """Format as one line."""
        return f"{self.path}: position {self.position}, offset {self.offset}: {self.kind}: {self.reason}"


def verify(directory: Directory, *, progress: Callable[[int, int], object] | None = None) -> list[Problem]:
    """Return every problem of a journal: those of its segments in order, foreign files, a damaged identity.

    Problems are checked again if another process has changed the segments in the meantime.
    """
    problems: dict[str, list[Problem]] = {}
    segments, gaps = directory.segments(), read_gaps(directory)
    sizes = [0 if (there := directory.disk.status(segment.path)) is None else there.size for segment in segments]
    total = sum(sizes)
    at = read = 0
    while at < len(segments):
        segment = segments[at]
        if progress is not None:
            progress(min(read, total), total)
        file = open_existing(directory.disk, segment.path, "read")
        if file is None:  # retention removed it
            segments = directory.segments()
            at = max(containing(segments, segment.first_offset), 0)
            continue
        with file:
            following = segments[at + 1].first_offset if at + 1 < len(segments) else None
            found = _problems(directory, segment, file, following, gaps)
            if found:
                again = directory.segments()
                if again != segments or not is_still(directory.disk, segment, file):
                    segments, gaps = again, read_gaps(directory)
                    at = max(containing(segments, segment.first_offset), 0)
                    continue
            problems[segment.path] = found
            read += file.status().size
        at += 1
    listed = [problem for found in problems.values() for problem in found]
    for name in directory.foreign():
        reason = "this is not a segment, and the original's scanner fails on foreign files; move it out of jnl/"
        listed.append(Problem("foreign file", directory.at("jnl", name), 0, 0, reason))
    try:
        journal_id(directory)
    except CorruptionError as error:
        listed.append(Problem("identity", directory.at("id"), 0, 0, error.reason))
    return listed


def _problems(
    directory: Directory, segment: Segment, file: File, following: int | None, gaps: list[Gap]
) -> list[Problem]:
    """Return what is wrong in a segment, and between it and the next one, which starts with following."""
    due, problems = _segment(directory, segment, file, last=following is None)
    if following is not None and following > due and not is_recorded(gaps, due, following):
        reason = f"messages {due} to {following - 1} are missing before the next segment"
        problems.append(Problem("gap", segment.path, file.status().size, due, reason))
    if following is not None and following < due and not problems:
        reason = f"messages {following} to {due - 1} are in the next segment too: two writers appended at the same time"
        problems.append(Problem("corruption", segment.path, file.status().size, following, reason))
    return problems


def _segment(directory: Directory, segment: Segment, file: File, *, last: bool) -> tuple[int, list[Problem]]:
    """Return the offset after the last good message of a segment, and its problems."""
    problems: list[Problem] = []
    position, due = 0, segment.first_offset
    index = IndexFile(directory, segment)
    while True:
        position, due = good_end(file, position, due)
        damage = index.find_damage(file, position, due)
        if damage is None:
            break
        problem = _problem(segment, damage, last=last)
        if problems and problems[-1].end == position and problem.end is not None:
            problems[-1] = problems[-1]._replace(end=problem.end, next_offset=problem.next_offset)
        else:  # else no good message was between: it is one problem for any number of messages
            problems.append(problem)
        if problem.end is None or problem.next_offset is None:
            break
        position, due = problem.end, problem.next_offset
    if not problems:
        for block, error in index.changed_blocks(file):
            where = block.position, block.first_offset
            problems.append(Problem("checksum", segment.path, *where, error.reason, block.end))
    return due, problems


def _problem(segment: Segment, damage: Damage, *, last: bool) -> Problem:
    kind: _Kind = "corruption"
    reason = damage.found
    if damage.torn and last:
        kind = "torn tail"
        reason = f"{damage.reason}; the next writer cuts these {damage.size} bytes and keeps them in kept/"
    elif damage.torn:
        reason = f"{damage.reason}, and this is not the last segment"
    return Problem(kind, segment.path, damage.position, damage.offset, reason, *(damage.resume or ()))


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
    with WriterLock(directory) as lock:
        if not dry_run:
            finish_repair(directory)
        segments = directory.segments()
        if segments:
            with directory.disk.open(segments[-1].path, "edit") as last_file:
                try:
                    lock.lock_segment(last_file)
                finally:
                    lock.keep(None)
        work = _Work(directory, segments, dry_run)
        sizes = [0 if (there := directory.disk.status(segment.path)) is None else there.size for segment in segments]
        for at in range(len(segments)):
            if progress is not None:
                progress(sum(sizes[:at]), sum(sizes))
            retention_waits = contextlib.nullcontext() if dry_run else readers_lock(directory)
            with retention_waits, _open_listed(directory, segments, at) as file:
                work.repair_segment(at, file)
    done = work.done
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


class _Work:
    """A repair under way.

    Attributes:
        done: what was found, and done unless ``dry_run``.
    """

    def __init__(self, directory: Directory, segments: list[Segment], dry_run: bool) -> None:
        self.done = Repair([], [], [], [])
        self._directory, self._segments, self._dry_run = directory, segments, dry_run
        self._known = read_gaps(directory)
        self._due = segments[0].first_offset if segments else 0
        """The offset after the last message of the segments before."""

    def repair_segment(self, at: int, file: File) -> None:
        """Repair one of the segments; those before it are repaired."""
        segment, done = self._segments[at], self.done
        last = at == len(self._segments) - 1 and segment.first_offset >= self._due  # else an earlier one has later ones
        indexed, _ = IndexFile(self._directory, segment).end(file)
        plan, _ = plan_between(self._directory, self._segments, at, file, floor=self._due, indexed=indexed)
        kept = self._keep(segment, file, plan.damage)
        starts = [(run.start, run.first, run.stop) for run in plan.runs]
        if last and not starts:  # its name tells where the journal continues
            starts = [(file.status().size, segment.first_offset, segment.first_offset)]
        ends = [end for _, end, _ in plan.damage]
        for start, first, stop in starts:
            if first > self._due:
                at_damage = bisect_right(ends, start) - 1
                reason, copy = "no segment holds them", None
                if at_damage >= 0:
                    reason, copy = plan.damage[at_damage][2], kept[at_damage]
                self._lose(Gap(self._due, first, reason, copy))
            self._due = max(self._due, stop)
        changed = self._keep_changed(segment, file, plan.runs)
        if not (plan.damage or plan.runs or last):
            done.notes.append(f"{segment.path}: no bytes, and not the last segment: it is removed")
        if plan.damage or not (plan.runs or last):
            self._rewrite(segment, file, plan, last=last)
        elif changed and not self._dry_run:
            _reindex(self._directory, segment, file)

    def _keep(self, segment: Segment, file: File, damage: list[tuple[int, int, str]]) -> list[str | None]:
        """Note every range of damaged bytes and copy it; ranges that are close together become one piece of the file.

        Returns:
            The path of the copy of each; None if nothing was put aside, or with dry_run.
        """
        pieces: list[tuple[int, int]] = []
        for start, end, reason in damage:
            self.done.notes.append(f"{segment.path}: bytes {start} to {end}: {reason}")
            if start == end:
                continue
            if pieces and start - pieces[-1][1] <= _NEAR_BYTES:
                start = pieces.pop()[0]
            pieces.append((start, end))
        if self._dry_run:
            return [None] * len(damage)
        copies = [self._copy_of(segment, file, start, end, "damaged") for start, end in pieces]
        starts = [start for start, _ in pieces]
        return [copies[bisect_right(starts, start) - 1] if start < end else None for start, end, _ in damage]

    def _copy_of(self, segment: Segment, file: File, start: int, end: int, why: str) -> str:
        copy = keep(self._directory, file, start, end - start, f"{segment.name}.{start:012x}.{why}")
        self.done.kept.append(copy)
        return copy

    def _lose(self, gap: Gap) -> None:
        """Note and record lost offsets, unless an earlier repair has."""
        if is_recorded(self._known, gap.start, gap.stop):
            return
        self.done.gaps.append(gap)
        self.done.notes.append(str(gap))
        if not self._dry_run:
            record_gap(self._directory, gap)

    def _keep_changed(self, segment: Segment, file: File, runs: list[Run]) -> bool:
        """Note and keep the blocks of good messages whose checksums are wrong; return whether there are any."""
        found = False
        starts = [run.start for run in runs]
        for block, error in IndexFile(self._directory, segment).changed_blocks(file):
            at = bisect_right(starts, block.position) - 1
            if at < 0 or block.end > runs[at].end:
                continue
            found = True
            self.done.notes.append(f"{error}. It is unknown which of them changed: all are kept, with a new checksum")
            if not self._dry_run:
                self._copy_of(segment, file, block.position, block.end, "checksum")
        return found

    def _rewrite(self, segment: Segment, file: File, plan: Plan, *, last: bool) -> None:
        """Replace a segment by its good runs; those whose offsets follow each other are one segment."""
        directory = self._directory
        groups: list[list[Run]] = []
        for run in plan.runs:
            if groups and run.first == groups[-1][-1].stop:
                groups[-1].append(run)
            else:
                groups.append([run])
        self.done.segments.extend(directory.segment(group[0].first).path for group in groups)
        if self._dry_run:
            return
        names = []
        directory.disk.mkdir(directory.at("tmp"))
        for group in groups:
            staged = _staged(directory, group[0].first)
            directory.disk.unlink(staged)
            with directory.disk.open(staged, "new") as copy:
                for run in group:
                    for data in pieces(file, run.start, run.end):
                        copy.write(data)
                with Tolerated():  # retention by age would only wait longer
                    copy.set_time(file.status().mtime_ns)
                copy.sync()
            names.append((_name(group[0].first), group[0].first))
        directory.disk.mkdir(directory.at("txn"))
        _intent(directory).store({"segment": segment.first_offset, "runs": names, "last": last})
        _finish_repair(directory)


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
