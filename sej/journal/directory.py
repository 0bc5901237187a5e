"""Where things stand in a SEJ directory, and which segments it has.

::

    jnl/0123456789abcdef.jnl   segments, named by their first offset; nothing foreign is ever put here
    jnl.lck                    the writer's lock; names its holder
    ofs/NAME.ofs, NAME.lck     kept offsets of readers and their locks
    ofs/NAME.check             their twins, with a checksum
    kept/                      cut tails and damaged bytes: nothing is ever thrown away
    tmp/                       files before their rename
    idx/                       the sidecar index, one file a segment; rebuilt at any time
    gaps/                      gaps that a repair recorded
    txn/                       pending and done batches of ``append_once``
    id                         16 random bytes and their checksum: this journal's identity

Source: the SEJ document, "SEJ Directory"; everything but ``jnl/``, ``jnl.lck`` and ``ofs/`` is ours, and the original
does not look at it. Looking creates nothing.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from typing import Final, NamedTuple

from sej.checks import PATH
from sej.codec.format import MAX_OFFSET
from sej.errors import CorruptionError, InvalidNameError, JournalNotFoundError, NotAJournalError
from sej.system.disk import Disk, File

__all__ = ["Directory", "Segment", "check_name", "containing", "is_still"]

_SEGMENT: Final = re.compile(r"[0-9a-f]{16}\.jnl")
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
_NAME_BYTES: Final = 200


class Segment(NamedTuple):
    """One ``.jnl`` file."""

    first_offset: int
    path: str

    @property
    def name(self) -> str:
        """The file's name without its directory."""
        return os.path.basename(self.path)


class Directory:
    """The paths of one SEJ directory."""

    __slots__ = ("disk", "path")

    def __init__(self, path: str | os.PathLike[str], disk: Disk) -> None:
        """Name it; nothing is looked at. A relative path means the directory that the process is in now."""
        PATH("path", path)
        self.path = os.fspath(path)
        if not os.path.isabs(self.path):
            self.path = os.path.join(os.getcwd(), self.path)
        self.disk = disk

    def at(self, *parts: str) -> str:
        """A path in it."""
        return os.path.join(self.path, *parts)

    @property
    def jnl(self) -> str:
        """The directory of the segments."""
        return self.at("jnl")

    def segment(self, first_offset: int) -> Segment:
        """The segment that starts with an offset, there or not."""
        return Segment(first_offset, self.at("jnl", f"{first_offset:016x}.jnl"))

    def require(self) -> None:
        """Make sure that it is a SEJ directory.

        Raises:
            JournalNotFoundError: nothing is there, or an empty directory: a writer makes that first.
            NotAJournalError: a file, or a directory of something else: without ``jnl/``.
        """
        there = self.disk.status(self.path)
        if there is None:
            raise JournalNotFoundError(
                "there is no journal here; a Writer makes one, reading never does", path=self.path
            )
        if not there.is_dir:
            raise NotAJournalError("this is a file; a SEJ directory is due", path=self.path)
        inside = self.disk.status(self.jnl)
        if inside is None and self._is_empty():
            raise JournalNotFoundError("this directory is empty: a Writer makes a journal of it", path=self.path)
        if inside is None or not inside.is_dir:
            raise NotAJournalError("this directory has no jnl/ in it: it is no SEJ directory", path=self.path)

    def _is_empty(self) -> bool:
        try:
            return not self.disk.list(self.path)
        except FileNotFoundError:
            return True

    def segments(self) -> list[Segment]:
        """Its segments by first offset. Names that are not 16 lower-case hex digits and ``.jnl`` are not segments.

        A name that comes while the directory is listed may be missing where a later one is there: whoever finds a gap
        looks again before it is believed.

        Raises:
            CorruptionError: a segment's name is an offset that no journal reaches.
        """
        jnl = self.jnl
        try:
            names = self.disk.list(jnl)
        except (FileNotFoundError, NotADirectoryError):
            self.require()
            raise
        is_segment, prefix = _SEGMENT.fullmatch, os.path.join(jnl, "")
        found = [Segment(int(name[:16], 16), prefix + name) for name in names if is_segment(name)]
        if found and found[-1].first_offset > MAX_OFFSET:
            raise CorruptionError(
                f"no journal reaches offset {found[-1].first_offset}: move this file out of jnl/", path=found[-1].path
            )
        return found

    def foreign(self) -> list[str]:
        """Names in ``jnl/`` that are no segments: the original's scanner breaks on them."""
        return [name for name in self.disk.list(self.jnl) if not _SEGMENT.fullmatch(name)]


def containing(segments: list[Segment], offset: int) -> int:
    """The index of the segment that offset lies in or behind; -1 where it lies before them all."""
    return bisect_right(segments, offset, key=lambda segment: segment.first_offset) - 1


def is_still(disk: Disk, segment: Segment, file: File) -> bool:
    """Whether a segment is the file that was opened, and nobody has put another in its place."""
    there = disk.status(segment.path)
    return there is not None and there.identity == file.status().identity


def check_name(name: str, what: str) -> str:
    """Make sure that a name cannot leave its directory.

    Raises:
        InvalidNameError: it is not letters, digits, ``_``, ``-`` and ``.`` (not first), at most 200.
    """
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a str, got {name!r} ({type(name).__name__})")
    if not _NAME.fullmatch(name) or len(name) > _NAME_BYTES:
        raise InvalidNameError(
            f"{what} {name!r}: letters, digits, '_', '-' and '.' (not first) are allowed, at most {_NAME_BYTES}"
        )
    return name
