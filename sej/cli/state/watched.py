"""Journals that are sampled repeatedly: ``sej top`` and the web page share this.

Most samples of most journals equal the one before. So a sample of a journal first looks at what changes with every
append, commit and lock: the times of its directories, the size of the last segment, and the system's table of locks.
Only if one of them differs is the journal read again. If the table lacks a lock that is held, as in some containers,
every sample reads that journal.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from sej.cli.state.readers import Reader, held_locks, holder_of, journals_below, readers_of
from sej.errors import SejError
from sej.journal.directory import Directory
from sej.journal.end import Tail
from sej.journal.view import Journal
from sej.system.disk import OS

_AGAIN_LOOKS: Final = 32
"""A journal that looks unchanged is read again after this many samples: locks of other containers are not listed."""


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

    @property
    def behind(self) -> int:
        """Messages that its slowest reader has not read."""
        return max((reader.behind for reader, _ in self.readers), default=0)

    @property
    def messages(self) -> int:
        """The number of messages that still exist, with those in gaps."""
        return self.end_offset - self.first_offset


SORTS: Final[dict[str, Callable[[Sample], Any]]] = {
    "name": lambda row: row.path,
    "rate": lambda row: (-(row.rate or 0), row.path),
    "lag": lambda row: (-row.behind, row.path),
    "bytes": lambda row: (-row.bytes, row.path),
}
"""The orders of a list of samples."""


class _Known(NamedTuple):
    """What a journal looked like when it was last read.

    Attributes:
        last: the path of its last segment; empty if there is none.
        times: its directories and its last segment, as :func:`_times` returns them.
        locks: by the path of each lock file: its device and inode, its time, and whether it was locked.
    """

    last: str
    times: object
    locks: dict[str, tuple[tuple[int, int], int, bool] | None]


class Watched:
    """The journals below some paths, and their previous sample. Use it from one thread."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Set the paths; nothing is read yet."""
        self.paths = tuple(paths)
        self._tails: dict[str, Tail] = {}
        self._before: dict[str, Sample] = {}
        self._known: dict[str, _Known] = {}
        self._lists: dict[Path, list[str]] = {}
        self._looks = 0

    def look(self) -> list[Sample]:
        """Return their current state; a journal that cannot be read has an error, and does not affect the others."""
        found = dict.fromkeys(journal for path in self.paths for journal in self._journals(path))
        held = held_locks()
        self._looks += 1
        self._before = {path: self._sample(path, held, at) for at, path in enumerate(found)}
        for gone in self._tails.keys() - found.keys():
            del self._tails[gone]
            self._known.pop(gone, None)
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
        before, known = self._before.get(path), self._known.get(path)
        if before is not None and known is not None and held is not None and (self._looks + at) % _AGAIN_LOOKS:
            same = all(_lock_state(file, held) == state for file, state in known.locks.items())
            if same and _times(path, known.last) == known.times:
                return _unchanged(before)
        return self._read(path, held)

    def _read(self, path: str, held: frozenset[tuple[int, int]] | None) -> Sample:
        places = Directory(path, OS)
        now = time.time_ns()
        self._known.pop(path, None)
        try:
            journal = Journal(path)
            known = None if held is None else _look(path, held)
            segments = journal.segments
            first = segments[0].first_offset if segments else 0
            end = self._tails.setdefault(path, Tail(places)).end_offset()
            size = sum(segment.size for segment in segments)
            changed = max((segment.mtime_ns for segment in segments), default=None)
            readers = readers_of(journal, (first, end))
            writer = holder_of(places.at("jnl.lck"))
        except (SejError, OSError) as error:
            return Sample(path, now, error=str(error))
        running = sum(reader.holder is not None for reader in readers) + (writer is not None)
        if known is not None and running <= sum(state is not None and state[2] for state in known.locks.values()):
            self._known[path] = known
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


def _look(path: str, held: frozenset[tuple[int, int]]) -> _Known:
    """Look at a journal before it is read: a change in between is then found by the next sample."""
    folder = os.path.join(path, "jnl")
    last = max(os.listdir(folder), default="")
    last = last and os.path.join(folder, last)
    times = _times(path, last)
    files = [os.path.join(path, "jnl.lck")]
    ofs = os.path.join(path, "ofs")
    if os.path.isdir(ofs):
        files += [os.path.join(ofs, name) for name in os.listdir(ofs) if name.endswith(".lck")]
    return _Known(last, times, {file: _lock_state(file, held) for file in files})


def _lock_state(file: str, held: frozenset[tuple[int, int]]) -> tuple[tuple[int, int], int, bool] | None:
    try:
        status = os.stat(file)
    except OSError:  # reading the journal reports what is wrong
        return None
    identity = status.st_dev, status.st_ino
    return identity, status.st_mtime_ns, identity in held


def _times(path: str, last: str) -> object:
    """Return what changes with every append, commit, new lock file and removed segment."""
    folders = _mtime(path), _mtime(f"{path}/jnl"), _mtime(f"{path}/ofs")
    try:
        status = os.stat(last) if last else None
    except OSError:
        return None, folders
    return (status and (status.st_size, status.st_mtime_ns, status.st_ino)), folders


def _mtime(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return -1
