"""The state of journals right now, and again: holders of locks, offsets of readers, queues. Creates nothing.

A problem with one reader's file is reported with that reader and does not affect the others.

``sej top`` and the web page sample journals repeatedly, and most samples equal the one before. So a sample of a journal
first looks at what changes with every append, commit and lock: the times of its directories and lock files, the size of
the last segment, and the system's table of locks. Only if one of them differs is the journal read again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from sej.cli.shared.command import Exit, refuse
from sej.cli.shared.options import good_end_of
from sej.cli.shared.text import human_duration, iso_time, shown
from sej.codec.format import NO_TIMESTAMP
from sej.errors import SejError
from sej.journal.directory import Directory
from sej.journal.tail import Tail
from sej.journal.view import Journal
from sej.reading.offset import read_offset
from sej.system.disk import OS, is_scarce, open_existing
from sej.system.locks import FIRST_PID_NAMESPACE, pid_namespace

if TYPE_CHECKING:
    from sej.queue.listing import Summary


class Reader(NamedTuple):
    """One reader that keeps its offset.

    Attributes:
        name: the reader's name.
        offset: the next message that it reads; None: it never committed, or the file cannot be read.
        behind: messages that it has not read yet; for an unreadable file, all messages of the journal.
        idle_s: seconds since its last commit.
        holder: the process that runs the reader, as the lock file names it; None: no process does.
        error: what is wrong with its file, or None.
    """

    name: str
    offset: int | None
    behind: int
    idle_s: float
    holder: str | None
    error: str | None


class Queued(NamedTuple):
    """One work queue on a journal.

    Attributes:
        name: the queue's name.
        summary: its items by state, its schedules, and its limit.
        oldest_ns: when the oldest ready item was put; NO_TIMESTAMP: no item is ready, or its message has no time.
    """

    name: str
    summary: Summary
    oldest_ns: int

    @property
    def oldest_s(self) -> float | None:
        """How long the oldest ready item has waited."""
        return _age_s(self.oldest_ns)

    @property
    def row(self) -> dict[str, Any]:
        """What ``--json`` prints of it."""
        stats, schedules, limit, at_limit = self.summary
        return {
            "name": self.name,
            **stats,
            "paused": stats.paused,
            "oldest_s": self.oldest_s,
            "schedules": [{"name": one.name, "paused": one.paused, "next_at_ns": one.next_at} for one in schedules],
            "limit": limit and limit._asdict(),
            "kinds_at_limit": at_limit,
        }

    def late(self, after_s: float) -> list[str]:
        """Describe the schedules whose next time has been over for so long."""
        before = time.time_ns() - int(after_s * 1e9)
        return [
            f"schedule {one.name}: no worker put its item at {iso_time(one.next_at)}"
            for one in self.summary.schedules
            if one.next_at is not None and one.next_at < before
        ]


def queues_of(path: str) -> list[Queued]:
    """Return the queues of a journal, by name, without those that cannot be read: ``sej doctor`` reports them."""
    names = sorted(Directory(path, OS).queue_names())
    if not names:
        return []
    from sej.queue.listing import QueueLook

    found = []
    for name in names:
        with suppress(SejError, OSError):
            look = QueueLook(path, name)
            summary = look.summary()
            ready = look.items("ready", limit=1) if summary.stats.ready else []
            found.append(Queued(name, summary, ready[0].message.timestamp if ready else NO_TIMESTAMP))
    return found


def holder_of(path: str) -> str | None:
    """Return the holder of the lock at a path, as the file names it or as a pid; None if the lock is free."""
    file = open_existing(OS, path, "read")
    if file is None:
        return None
    with file:
        signed = file.read(256, 0).decode("utf-8", "replace").partition("\n")[0].strip()
        pid = (_lock_table() or {}).get(file.status().identity)  # without touching the lock
        if pid is not None:
            return signed if f"pid={pid} " in signed else f"pid={pid}"
        if _lists_all_locks(file.fileno()):
            return None  # without touching the lock: a writer that opens at this moment would be refused
        return None if file.lock(exclusive=False) else signed or "another process"


def held_locks() -> frozenset[tuple[int, int]] | None:
    """Return the device and inode of every locked file that the kernel lists; None if it lists none to us."""
    table = _lock_table()
    return None if table is None else frozenset(table)


def _lock_table() -> dict[tuple[int, int], int] | None:
    """Return the pid of the holder by the device and inode of each locked file, or None."""
    try:
        with open("/proc/locks") as locks:
            lines = [line.split() for line in locks]
    except OSError:
        return None
    table: dict[tuple[int, int], int] = {}
    for line in lines:
        if line[1] == "FLOCK":
            major, minor, inode = line[5].split(":")
            table.setdefault((os.makedev(int(major, 16), int(minor, 16)), int(inode)), int(line[4]))
    return table


def _lists_all_locks(fd: int) -> bool:
    """Return whether ``/proc/locks`` surely lists the lock of a file if any process holds it.

    In a container it lists those of the container only. Without a block device, as on btrfs, the device that it names
    may be another one than the file's.
    """
    try:
        first = pid_namespace() == FIRST_PID_NAMESPACE
        return first and os.major(os.fstat(fd).st_dev) != 0 and os.access("/proc/locks", os.R_OK)
    except OSError:
        return False


def journals_below(path: Path) -> list[str]:
    """Return the path of a SEJ directory, or the paths of those in a directory (a sharded journal, a hub).

    Raises:
        JournalNotFoundError: the path does not exist.
        NotAJournalError: the path is a file.
    """
    if (path / "jnl").is_dir():
        return [str(path)]
    if not path.is_dir():
        Directory(path, OS).require()
    paths = sorted(str(path / name) for name in os.listdir(path) if not name.startswith("."))
    return [path for path in paths if os.path.isdir(f"{path}/jnl")]


def readers_of(journal: Journal, span: tuple[int, int] | None = None) -> list[Reader]:
    """Return the readers of a journal, by name; span: its first and end offset, if the caller knows them."""
    directory = Directory(journal.path, OS)
    found = []
    first, end = span or (journal.first_offset, good_end_of(journal))
    for name in directory.reader_names():
        offset, error = None, None
        try:
            offset = read_offset(journal.path, name)
            idle_s = time.time() - os.stat(directory.at("ofs", f"{name}.ofs")).st_mtime
        except FileNotFoundError:
            continue  # it was removed since it was listed
        except (SejError, OSError) as wrong:
            if is_scarce(wrong):
                raise
            error, idle_s = str(wrong), 0.0
        if offset is not None and offset > end:
            error = f"its offset {offset} is past the journal's end {end}: the journal lost messages or was replaced"
        elif offset is not None and offset < first:
            error = f"messages {offset} to {first - 1} were deleted before it read them"
        behind = max(end - max(first, offset or 0), 0)
        holder = holder_of(directory.at("ofs", f"{name}.lck"))
        found.append(Reader(name, offset, behind, max(idle_s, 0.0), holder, error))
    return found


def find_reader(journal: Journal, name: str) -> Reader | None:
    """Return the reader of this name, or None."""
    return next((reader for reader in readers_of(journal) if reader.name == name), None)


def require_reader(journal: Journal, name: str, code: Exit = Exit.MISSING) -> Reader:
    """Return the reader of this name; if it is unknown, report that on standard error and end the command."""
    readers = {reader.name: reader for reader in readers_of(journal)}
    if name not in readers:
        known = "this journal has no reader with a kept offset; `sej reset --create` registers one"
        if readers:
            known = f"the readers are: {', '.join(readers)}"
        refuse(f"{shown(journal.path)}: unknown reader {name!r}; {shown(known)}", code)
    return readers[name]


def complete_reader(context: click.Context, _: click.Parameter, typed: str) -> list[str]:
    """Return the readers whose names begin with the typed text, for shell completion."""
    directory = context.params.get("directory")
    if directory is None:
        return []
    with suppress(OSError):
        return [name for name in Directory(directory, OS).reader_names() if name.startswith(typed)]
    return []


def stuck(path: str, reader: Reader, after_s: float, first_offset: int) -> str | None:
    """Describe how a running reader is stuck; None if it is not.

    A reader is stuck if it committed nothing for ``after_s`` seconds while its next message existed at least that long.
    It may have handled that message and others, because a consumer commits once for many.

    Args:
        path: the journal's path.
        reader: a reader from :func:`readers_of`.
        after_s: how long a commit may take.
        first_offset: the journal's first offset.
    """
    if reader.holder is None or not reader.behind or reader.idle_s <= after_s:
        return None
    due = max(reader.offset or 0, first_offset)
    waits_s = lag_s(path, reader, first_offset)
    if (reader.idle_s if waits_s is None else waits_s) <= after_s:
        return None
    return (
        f"it is stuck at {due} or a later message: no commit for {human_duration(reader.idle_s)}, {reader.behind}"
        f" messages behind, {reader.holder}"
    )


def lag_s(path: str, reader: Reader, first_offset: int) -> float | None:
    """Return how long a reader's next message has existed, in seconds; None if it has no time or cannot be read."""
    from sej.reading.scanner import Scanner

    if reader.behind:
        with suppress(SejError, PermissionError), Scanner(path, max(reader.offset or 0, first_offset)) as scanner:
            return next((_age_s(message.timestamp) for message in scanner.read(1)), None)
    return None


def _age_s(timestamp: int) -> float | None:
    return None if timestamp == NO_TIMESTAMP else max(time.time() - timestamp / 1e9, 0.0)


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
