"""How a journal stands right now: who holds its locks, where its readers are. Looks, and creates nothing.

What is wrong with one reader's file is that reader's affair: it is reported beside the others.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

import click

from sej.cli.choosing import good_end_of
from sej.codec.format import NO_TIMESTAMP
from sej.errors import SejError
from sej.journal.directory import Directory
from sej.journal.view import Journal
from sej.reading.offset import read_offset
from sej.system.disk import OS

__all__ = ["Reader", "complete_reader", "holder_of", "journals_below", "lag_s", "readers_of", "stuck"]


class Reader(NamedTuple):
    """One reader that keeps its offset.

    Attributes:
        name: the reader's.
        offset: the next message it wants; None: it never committed, or the file cannot be read.
        behind: messages that it has not read yet; an unread file counts from the journal's start.
        idle_s: seconds since its last commit.
        holder: who is this reader now, as far as the lock file says; None: nobody.
        error: what is wrong with its file, or None.
    """

    name: str
    offset: int | None
    behind: int
    idle_s: float
    holder: str | None
    error: str | None


def holder_of(path: str) -> str | None:
    """Who holds the lock at a path: what its file says, or the pid alone; None where nobody does."""
    try:
        file = OS.open(path, "read")
    except FileNotFoundError:
        return None
    try:
        signed = file.read(256, 0).decode("utf-8", "replace").partition("\n")[0].strip()
        pid = _locked_by(file.fileno())
        if pid is not None:
            return signed if f"pid={pid} " in signed else f"pid={pid}"
        return None if file.lock(exclusive=False, brief=True) else signed or "somebody"
    finally:
        file.close()


def _locked_by(fd: int) -> int | None:
    """The pid that the kernel names, without touching the lock; None where it names none, or is not asked here."""
    status = os.fstat(fd)
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        with open("/proc/locks") as locks:
            lines = [line.split() for line in locks]
    except OSError:
        return None
    return next((int(line[4]) for line in lines if line[1] == "FLOCK" and line[5] == wanted), None)


def journals_below(path: Path) -> list[str]:
    """A SEJ directory itself, or those that stand in a directory: a tree of shards, a hub's root.

    Raises:
        JournalNotFoundError: there is nothing at path.
        NotAJournalError: it is a file.
    """
    if (path / "jnl").is_dir():
        return [str(path)]
    if not path.is_dir():
        Directory(path, OS).require()
    names = sorted(entry.name for entry in os.scandir(path) if not entry.name.startswith("."))
    return [str(path / name) for name in names if (path / name / "jnl").is_dir()]


def readers_of(journal: Journal, span: tuple[int, int] | None = None) -> list[Reader]:
    """The readers of a journal, by name; span: its first and its end offset, where they are known."""
    directory = Directory(journal.path, OS)
    folder = directory.at("ofs")
    found = []
    first, end = span or (journal.first_offset, good_end_of(journal))
    for entry in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        name, dot, suffix = entry.rpartition(".")
        if not (dot and name and suffix == "ofs"):
            continue
        offset, error = None, None
        try:
            offset = read_offset(journal.path, name)
            idle_s = time.time() - os.stat(os.path.join(folder, entry)).st_mtime
        except FileNotFoundError:
            continue  # it was removed meanwhile
        except (SejError, OSError) as wrong:
            error, idle_s = str(wrong), 0.0
        if offset is not None and offset > end:
            error = f"it stands at {offset}, behind the journal's end {end}: the journal lost messages or was replaced"
        elif offset is not None and offset < first:
            error = f"messages {offset} to {first - 1} were deleted before it read them"
        behind = max(end - max(first, offset or 0), 0)
        holder = holder_of(os.path.join(folder, f"{name}.lck"))
        found.append(Reader(name, offset, behind, max(idle_s, 0.0), holder, error))
    return found


def complete_reader(context: click.Context, _: click.Parameter, typed: str) -> list[str]:
    """The readers whose names begin so, for a shell's completion."""
    directory = context.params.get("directory")
    if directory is None:
        return []
    try:
        names = os.listdir(os.path.join(directory, "ofs"))
    except OSError:
        return []
    return sorted(name[:-4] for name in names if name.endswith(".ofs") and name.startswith(typed))


def stuck(path: str, reader: Reader, after_s: float, first_offset: int) -> str | None:
    """How a reader that runs is stuck, in words; None where it is not.

    It is where it committed nothing for after_s seconds, and its next message has been there as long.

    Args:
        path: the journal's.
        reader: as :func:`readers_of` found it.
        after_s: how long a commit may take.
        first_offset: the journal's.
    """
    if reader.holder is None or not reader.behind or reader.idle_s <= after_s:
        return None
    due = max(reader.offset or 0, first_offset)
    waits_s = lag_s(path, reader, first_offset)
    if (reader.idle_s if waits_s is None else waits_s) <= after_s:
        return None
    return (
        f"it is stuck at {due}: no commit for {reader.idle_s:.0f} s, {reader.behind} messages behind, {reader.holder}"
    )


def lag_s(path: str, reader: Reader, first_offset: int) -> float | None:
    """How long a reader's next message has been there, in seconds; None where it has no time, or there is none."""
    from sej.reading.scanner import Scanner

    if not reader.behind:
        return None
    with Scanner(path, max(reader.offset or 0, first_offset)) as scanner:
        for message in scanner.read(1):
            if message.timestamp != NO_TIMESTAMP:
                return max(time.time() - message.timestamp / 1e9, 0.0)
    return None
