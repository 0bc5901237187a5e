"""Reading everything once and saying what is wrong with it. Changes nothing; bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from sej.directory import Directory, Segment
from sej.disk import File
from sej.errors import CorruptionError
from sej.gaps import read_gaps
from sej.index import IndexFile, verify_block
from sej.recovery import Damage, find_damage, good_end

__all__ = ["Problem", "verify"]

_Kind = Literal["torn tail", "corruption", "gap", "checksum", "foreign file"]


class Problem(NamedTuple):
    """One thing that is wrong.

    Attributes:
        kind: what sort of thing.
        path: the file.
        position: the byte in it.
        offset: the message that is due there.
        reason: what was found and what was expected.
        end: where the good messages go on in the same file; None: not in this file.
        next_offset: the offset that is due there.
    """

    kind: _Kind
    path: str
    position: int
    offset: int
    reason: str
    end: int | None = None
    next_offset: int | None = None

    def __str__(self) -> str:
        """One line for people."""
        return f"{self.path}: position {self.position}, offset {self.offset}: {self.kind}: {self.reason}"


def verify(directory: Directory, *, progress: Callable[[int, int], object] | None = None) -> list[Problem]:
    """Every problem of a journal, in order: torn tail, corruption, unrecorded gaps, checksums, foreign files."""
    problems: list[Problem] = []
    segments = directory.segments()
    sizes = [0 if (there := directory.disk.status(segment.path)) is None else there.size for segment in segments]
    gaps = read_gaps(directory)
    for at, segment in enumerate(segments):
        if progress is not None:
            progress(sum(sizes[:at]), sum(sizes))
        try:
            file = directory.disk.open(segment.path, "read")
        except FileNotFoundError:
            continue  # retention took it meanwhile
        try:
            last = at == len(segments) - 1
            due, found = _segment(directory, segment, file, last=last)
            problems += found
            end = file.status().size
        finally:
            file.close()
        following = None if last else segments[at + 1].first_offset
        recorded = any(gap.start <= due and following is not None and following <= gap.stop for gap in gaps)
        if following is not None and following > due and not recorded:
            reason = f"messages {due} to {following - 1} are missing before the next segment"
            problems.append(Problem("gap", segment.path, end, due, reason))
    for name in directory.foreign():
        reason = "this is no segment: the original's scanner breaks on foreign files; move it out of jnl/"
        problems.append(Problem("foreign file", directory.at("jnl", name), 0, 0, reason))
    return problems


def _segment(directory: Directory, segment: Segment, file: File, *, last: bool) -> tuple[int, list[Problem]]:
    """The offset behind the last good message of a segment, and what is wrong in it."""
    problems: list[Problem] = []
    position, due = 0, segment.first_offset
    while True:
        position, due = good_end(file, position, due)
        damage = find_damage(file, position, due)
        if damage is None:
            break
        problems.append(_problem(segment, damage, last=last))
        if damage.follower is None:
            break
        position, due = damage.follower.position, damage.follower.offset
        if damage.follower.offset < damage.offset:
            position, due = damage.follower.end, damage.offset
    if not problems:
        for block in IndexFile(directory, segment).sound_blocks(file):
            try:
                verify_block(file, block)
            except CorruptionError as error:
                problems.append(
                    Problem("checksum", segment.path, block.position, block.first_offset, error.reason, block.end)
                )
    return due, problems


def _problem(segment: Segment, damage: Damage, *, last: bool) -> Problem:
    if damage.follower is not None:
        reason = f"{damage.reason}; message {damage.follower.offset} follows at position {damage.follower.position}"
        follower = damage.follower
        return Problem(
            "corruption", segment.path, damage.position, damage.offset, reason, follower.position, follower.offset
        )
    if last:
        reason = f"{damage.reason}; the next writer cuts these {damage.size} bytes and keeps them in kept/"
        return Problem("torn tail", segment.path, damage.position, damage.offset, reason)
    reason = f"{damage.reason}, and this is not the last segment"
    return Problem("corruption", segment.path, damage.position, damage.offset, reason)
