"""Recorded gaps: ranges of offsets that a repair found lost, so that readers may pass and report them.

``gaps/<first>.gap`` holds one gap as JSON with a checksum (:mod:`sej.system.sealed`): the first missing offset, the
next existing one, and the file with the damaged bytes. The original cannot pass a gap.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sej.codec.format import MAX_OFFSET
from sej.journal.directory import Directory
from sej.system.sealed import SealedFile, whole

_GAP_BYTES: Final = 1 << 16


class Gap(NamedTuple):
    """Lost offsets.

    Attributes:
        start: the first missing offset.
        stop: the next existing offset.
        reason: what was found.
        kept: the file with the damaged bytes, or None.
    """

    start: int
    stop: int
    reason: str
    kept: str | None = None

    @property
    def missing(self) -> int:
        """The number of missing messages."""
        return self.stop - self.start

    def __str__(self) -> str:
        """Format as one line."""
        lost = f"message {self.start} is" if self.missing == 1 else f"messages {self.start} to {self.stop - 1} are"
        return f"{lost} lost: {self.reason}"


def read_gaps(directory: Directory) -> list[Gap]:
    """Return the recorded gaps of a journal, by offset.

    Raises:
        CorruptionError: a gap's file is damaged.
    """
    return sorted((_read(directory, name) for name in _names(directory)), key=lambda gap: gap[:2])


def is_recorded(gaps: list[Gap], start: int, stop: int) -> bool:
    """Return whether one of the gaps contains the offsets [start, stop)."""
    return any(gap.start <= start and stop <= gap.stop for gap in gaps)


def count_messages(directory: Directory, start: int, stop: int) -> int:
    """Return how many of the offsets [start, stop) are in no recorded gap. Gaps of two repairs may overlap.

    Raises:
        CorruptionError: a gap's file is damaged.
    """
    found = 0
    for gap in read_gaps(directory):
        found += max(min(gap.start, stop) - start, 0)
        start = max(start, gap.stop)
    return found + max(stop - start, 0)


def gap_at(directory: Directory, offset: int) -> Gap | None:
    """Return the recorded gap that contains an offset, or None; of two that overlap, the one that starts later.

    A file is named by the first offset of its gap, so usually one file is read.

    Raises:
        CorruptionError: a gap's file is damaged.
    """
    for name in sorted(_names(directory), reverse=True):
        if name <= _name(offset):
            gap = _read(directory, name)
            if gap.start <= offset < gap.stop:
                return gap
    return None


def _name(start: int) -> str:
    return f"{start:016x}.gap"


def _names(directory: Directory) -> list[str]:
    return [name for name in directory.names("gaps") if name.endswith(".gap")]


def _read(directory: Directory, name: str) -> Gap:
    file = _file(directory, name)
    row = file.load() or {}
    with file.checking():
        start = whole(row["start"], 0, MAX_OFFSET - 1)
        kept = row["kept"]
        return Gap(start, whole(row["stop"], start + 1, MAX_OFFSET), str(row["reason"]), kept and str(kept))


def _file(directory: Directory, name: str) -> SealedFile:
    way_out = "move it to kept/ and run `sej repair`, which records the gap again"
    return directory.sealed("a readable gap", way_out, "gaps", name, max_bytes=_GAP_BYTES)


def record_gap(directory: Directory, gap: Gap) -> None:
    """Record a gap, durably."""
    for name in ("gaps", "tmp"):
        directory.disk.mkdir(directory.at(name))
    _file(directory, _name(gap.start)).store(gap._asdict())
