"""Read everything once and report what is wrong. Changes nothing; bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from sej.errors import CorruptionError
from sej.journal.directory import Directory, Segment, containing, is_still
from sej.journal.gaps import Gap, is_recorded, read_gaps
from sej.journal.identity import journal_id
from sej.journal.index import IndexFile
from sej.journal.recovery import Damage, good_end
from sej.system.disk import File, open_existing

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
    if damage.resume is not None:
        return Problem("corruption", segment.path, damage.position, damage.offset, damage.found, *damage.resume)
    if damage.indexed is not None:
        return Problem("corruption", segment.path, damage.position, damage.offset, damage.found)
    if last:
        reason = f"{damage.reason}; the next writer cuts these {damage.size} bytes and keeps them in kept/"
        return Problem("torn tail", segment.path, damage.position, damage.offset, reason)
    reason = f"{damage.reason}, and this is not the last segment"
    return Problem("corruption", segment.path, damage.position, damage.offset, reason)
