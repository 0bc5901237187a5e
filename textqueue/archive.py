"""The compact rewrite: done messages go to another file, everything else stays as it is, byte for byte.

A comment belongs to the messages right below it, up to a blank line or the next comment: it goes when all of them go.
Lines that are no part of an entry stay.

Order: what goes is appended to the archive and synced; then what stays replaces the queue file, by a synced temporary
file and a rename. After a crash between the two, the next run finds the messages at the archive's end and does not
append them again. It is refused while an editor shows that it has the file open, since it would save over it later.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from sej.disk import Disk, File
from textqueue.errors import FileInUseError, InvalidTextError
from textqueue.grammar import CONTROL_OF, MessageStatus
from textqueue.parser import chunks
from textqueue.reader import scan
from textqueue.source import Source

__all__ = ["archive", "editor_files"]

_COMMENT: Final = CONTROL_OF[MessageStatus.comment][0]
_ENTRIES: Final = frozenset(control[0] for control in CONTROL_OF.values())
_BLOCK: Final = 1 << 20


def editor_files(path: str, disk: Disk) -> list[str]:
    """The files by which editors show that they have a file open: Vim, nano, Emacs, Kate, LibreOffice."""
    directory, name = os.path.split(path)
    known = {f".{name}.{end}" for end in ("swp", "swo", "swn", "kate-swp")} | {
        f".#{name}",
        f"#{name}#",
        f".~lock.{name}#",
    }
    return [found for found in disk.list(directory or ".") if found in known]


def archive(source: Source, target: str, statuses: Collection[MessageStatus]) -> int:
    """Move the done messages of a queue file to the end of another file.

    Returns:
        How many messages were moved.

    Raises:
        FileInUseError: an editor has the file open.
        InvalidTextError: the target is the queue itself, or a status that is not done.
    """
    disk = source.disk
    if not set(statuses) <= {MessageStatus.cleared, MessageStatus.critical}:
        raise InvalidTextError("only cleared and critical messages can be archived", path=source.path)
    here, there = disk.status(source.path), disk.status(target)
    if os.path.abspath(target) == os.path.abspath(source.path) or (
        here is not None and there is not None and here.identity == there.identity
    ):
        raise InvalidTextError("the archive must be another file than the queue", path=target)
    controls = {CONTROL_OF[status][0] for status in statuses}
    with source.session() as session:
        # Under the lock: an editor that is started now waits for the lease, or finds the new file.
        shown = editor_files(source.path, disk)
        if shown:
            raise FileInUseError(
                f"an editor has this file open ({', '.join(shown)} stands beside it): close it there, or remove what it"
                " left when it crashed",
                path=source.path,
            )
        moved, count = _positions(session.file, controls)
        if not count:
            return 0
        _append(disk, session.file, target, moved)
        temporary = source.path + ".tmp"
        rest = disk.open(temporary, "temp")
        try:
            _copy_owner(session.file, rest)
            position = 0
            for start, size in moved:
                _copy(session.file, rest, position, start)
                position = start + size
            _copy(session.file, rest, position, session.status.size)
            rest.sync()
        finally:
            rest.close()
        disk.rename(temporary, source.path)
    with source.session():
        pass  # lines have moved: the ledger is brought in line
    return count


def _positions(file: File, controls: Collection[int]) -> tuple[list[tuple[int, int]], int]:
    """Where what goes stands, as (position, size), and how many messages that is."""
    moved: list[tuple[int, int]] = []
    count = 0
    for run in _runs(file):
        stays = any(control not in controls for control, _, _ in run if control != _COMMENT)
        only_comments = all(control == _COMMENT for control, _, _ in run)
        for control, position, size in run:
            if control in controls or (control == _COMMENT and not stays and not only_comments):
                moved.append((position, size))
                count += control in controls
    return moved, count


def _runs(file: File) -> Iterator[list[tuple[int, int, int]]]:
    """Comments with the messages right below them, as (control byte, position, size)."""
    run: list[tuple[int, int, int]] = []
    for window in scan(file):
        position = window.position
        for raw in chunks(window.data):
            comment_below = raw[0] == _COMMENT and any(control != _COMMENT for control, _, _ in run)
            if run and (raw[0] not in _ENTRIES or comment_below):
                yield run
                run = []
            if raw[0] in _ENTRIES:
                run.append((raw[0], position, len(raw)))
            position += len(raw)
            if run and run[0][0] != _COMMENT:  # nothing above it that must be kept together
                yield run
                run = []
    if run:
        yield run


def _append(disk: Disk, file: File, target: str, moved: Iterable[tuple[int, int]]) -> None:
    data = b"".join(_ended(file.read(size, position)) for position, size in moved)
    archive = disk.open(target, "append")
    try:
        size = archive.status().size
        tail = archive.read(len(data) + 1, max(size - len(data) - 1, 0))
        already = tail == data or tail.endswith(b"\n" + data)
        if not already:
            try:
                archive.write((b"" if not size or tail.endswith(b"\n") else b"\n") + data)
                archive.sync()
            except OSError:
                archive.truncate(size)
                raise
        else:
            archive.sync()
    finally:
        archive.close()


def _ended(raw: bytes) -> bytes:
    return raw if raw.endswith(b"\n") else raw + b"\n"


def _copy(source: File, target: File, start: int, end: int) -> None:
    while start < end:
        data = source.read(min(_BLOCK, end - start), start)
        if not data:
            return
        target.write(data)
        start += len(data)


def _copy_owner(source: File, target: File) -> None:
    """The new file belongs to whom the old one belonged to, and is not open to more people."""
    with contextlib.suppress(OSError, ValueError):
        status = os.fstat(source.fileno())
        os.fchmod(target.fileno(), status.st_mode & 0o7777)
        os.fchown(target.fileno(), status.st_uid, status.st_gid)
