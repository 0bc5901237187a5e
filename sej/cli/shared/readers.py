"""The state of a journal right now: the holders of its locks and the offsets of its readers. Creates nothing.

A problem with one reader's file is reported with that reader and does not affect the others.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from sej.cli.shared.exits import Exit, refuse
from sej.cli.shared.options import good_end_of
from sej.cli.shared.output import shown
from sej.cli.shared.units import human_duration, iso_time
from sej.codec.format import NO_TIMESTAMP
from sej.errors import SejError
from sej.journal.directory import Directory
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
