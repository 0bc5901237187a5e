"""Journals that are sampled repeatedly: ``sej top`` and the web page share this.

Most samples of most journals equal the one before. So a sample of a journal first looks at what changes with every
append, commit and lock: the times of its directories and lock files, the size of the last segment, and the system's
table of locks. Only if one of them differs is the journal read again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from sej.cli.shared.readers import Queued, Reader, held_locks, holder_of, journals_below, queues_of, readers_of
from sej.errors import SejError
from sej.journal.directory import Directory
from sej.journal.tail import Tail
from sej.journal.view import Journal
from sej.system.disk import OS

_AGAIN_LOOKS: Final = 32
"""A journal that looks unchanged is read again after this many samples: locks of other containers are not listed."""
_SETTLED_NS: Final = 10**9
"""A folder that changed less than this before it was listed is listed again: a later change may have the same time."""
_Look = tuple[int, int, int, bool] | None


class _State(NamedTuple):
    """What changes with every append, commit, lock and removed segment: its folders, and the files to look at."""

    folders: list[_Look]
    files: list[str]
    looks: list[_Look]
    settled: bool


class Sample(NamedTuple):
    """One journal at one moment; a rate is per second since the previous sample, None in the first.

    Attributes:
        path: the journal's path.
        time_ns: when it was sampled, ns since the epoch.
        end_offset: the offset of the next message.
        rate: messages per second.
        bytes: bytes of all segments.
        byte_rate: bytes per second.
        writer: the holder of the writer's lock, or None.
        idle_s: seconds since the last change of a segment.
        readers: each reader with its rate in messages per second.
        error: why the journal cannot be read, or None.
        first_offset: the offset of the first message that still exists.
        segments: the number of segments.
        queues: its work queues.
    """

    path: str
    time_ns: int
    end_offset: int = 0
    rate: float | None = None
    bytes: int = 0
    byte_rate: float | None = None
    writer: str | None = None
    idle_s: float | None = None
    readers: tuple[tuple[Reader, float | None], ...] = ()
    error: str | None = None
    first_offset: int = 0
    segments: int = 0
    queues: tuple[Queued, ...] = ()

    @property
    def behind(self) -> int:
        """Messages that its slowest reader has not read."""
        return max((reader.behind for reader, _ in self.readers), default=0)

    @property
    def messages(self) -> int:
        """The number of messages that still exist, with those in gaps."""
        return self.end_offset - self.first_offset

    @property
    def dead(self) -> int:
        """Dead letters of its queues."""
        return sum(queue.summary.stats["dead"] for queue in self.queues)

    @property
    def oldest_s(self) -> float:
        """How long the oldest ready item of its queues has waited; 0: none is ready."""
        return max((queue.oldest_s or 0.0 for queue in self.queues), default=0.0)


SORTS: Final[dict[str, Callable[[Sample], Any]]] = {
    "name": lambda row: row.path,
    "rate": lambda row: (-(row.rate or 0), row.path),
    "lag": lambda row: (-row.behind, row.path),
    "dead": lambda row: (-row.dead, row.path),
    "bytes": lambda row: (-row.bytes, row.path),
}
"""The orders of a list of samples."""


class Watched:
    """The journals below some paths, and their previous sample. Use it from one thread."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Set the paths; nothing is read yet."""
        self.paths = tuple(paths)
        self._tails: dict[str, Tail] = {}
        self._before: dict[str, Sample] = {}
        self._states: dict[str, _State] = {}
        self._lists: dict[Path, list[str]] = {}
        self._looks = 0
        self.read: set[str] = set()
        """The journals that the last look has read; the others look unchanged."""

    def look(self) -> list[Sample]:
        """Return their current state; a journal that cannot be read has an error, and does not affect the others."""
        found = dict.fromkeys(journal for path in self.paths for journal in self._journals(path))
        held = held_locks()
        self._looks += 1
        self.read.clear()
        self._before = {path: self._sample(path, held, at) for at, path in enumerate(found)}
        for gone in self._tails.keys() - found.keys():
            del self._tails[gone]
            self._states.pop(gone, None)
        return list(self._before.values())

    def _journals(self, path: Path) -> list[str]:
        """Return the journals below a path; if it was removed, those that were there, so that each has an error."""
        try:
            self._lists[path] = journals_below(path)
        except (SejError, OSError):
            if path not in self._lists:
                raise
        return self._lists[path]

    def _sample(self, path: str, held: frozenset[tuple[int, int]] | None, at: int) -> Sample:
        before, known = self._before.get(path), self._states.pop(path, None)
        state = None if held is None else _state(path, held, known)
        if state is not None:
            self._states[path] = state
        if before and known and state and known[:3] == state[:3] and (self._looks + at) % _AGAIN_LOOKS:
            return _unchanged(before)
        self.read.add(path)
        return self._read(path)

    def _read(self, path: str) -> Sample:
        places = Directory(path, OS)
        now = time.time_ns()
        try:
            journal = Journal(path)
            segments = journal.segments
            first = segments[0].first_offset if segments else 0
            end = self._tails.setdefault(path, Tail(places)).end_offset()
            size = sum(segment.size for segment in segments)
            changed = max((segment.mtime_ns for segment in segments), default=None)
            readers = readers_of(journal, (first, end))
            writer = holder_of(places.at("jnl.lck"))
        except (SejError, OSError) as error:
            self._states.pop(path, None)
            return Sample(path, now, error=str(error))
        before = self._before.get(path, Sample(path, now, error="not sampled yet"))
        passed = 0.0 if before.error is not None else (now - before.time_ns) / 1e9
        old_offsets = {reader.name: reader.offset for reader, _ in before.readers}

        def rate(new: int | None, old: int | None) -> float | None:
            """Return the change per second; 0 for a re-created journal or a reader that moved back."""
            return None if new is None or old is None or passed <= 0 else max(new - old, 0) / passed

        return Sample(
            path,
            now,
            end,
            rate(end, before.end_offset),
            size,
            rate(size, before.bytes),
            writer,
            None if changed is None else max(now - changed, 0) / 1e9,
            tuple((reader, rate(reader.offset, old_offsets.get(reader.name))) for reader in readers),
            None,
            first,
            len(segments),
            tuple(queues_of(path)),
        )


def _unchanged(before: Sample) -> Sample:
    """Return the sample of a journal that is as it was: nothing grew, and everything is older."""
    now = time.time_ns()
    passed = max(now - before.time_ns, 0) / 1e9
    return before._replace(
        time_ns=now,
        rate=0.0,
        byte_rate=0.0,
        idle_s=None if before.idle_s is None else before.idle_s + passed,
        readers=tuple(
            (reader._replace(idle_s=reader.idle_s + passed), None if reader.offset is None else 0.0)
            for reader, _ in before.readers
        ),
    )


def _state(path: str, held: frozenset[tuple[int, int]], known: _State | None) -> _State:
    """Look at a journal before it is read. Its folders are listed only if they changed since the known state."""
    ofs, jnl = f"{path}/ofs", f"{path}/jnl"
    folders = [_look(folder, held) for folder in (path, ofs, jnl)]
    if known is not None and known.settled and folders == known.folders:
        files, settled = known.files, True
    else:
        newest = time.time_ns() - _SETTLED_NS
        settled = all(look is None or look[2] < newest for look in folders)
        locks = [f"{ofs}/{name}" for name in _names(ofs) if name.endswith((".lck", ".queue"))]
        files = [f"{jnl}/{max(_names(jnl), default='')}", f"{path}/jnl.lck", *locks]
    return _State(folders, files, [_look(file, held) for file in files], settled)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # reading the journal reports what is wrong
        return []


def _look(file: str, held: frozenset[tuple[int, int]]) -> _Look:
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns, (status.st_dev, status.st_ino) in held
