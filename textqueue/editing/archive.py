"""The compact rewrite: done messages go to another file, everything else stays as it is, byte for byte.

A comment belongs to the messages right below it, up to a blank line or the next comment: it goes when all of them go.
Lines that are no part of an entry stay.

Order: what stays is written to a temporary file; a note beside the queue says where in the archive what goes will
stand; that is appended and synced; then the temporary file takes the queue's name. While it has a name of its own,
what the note tells of has not been done: after a crash the next run takes that back from the archive's end, if nothing
else was written there, and begins anew. So nothing is lost or repeated, and equal messages are not taken for one.

If the file was changed before the last step, all is done again with the file as it is then.

It is refused while an editor shows that it has the file open, since it would save over it later.
"""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import itertools
import os
import time
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any, Final

from sej.system.disk import Disk, File, Status, read_small
from sej.system.locks import ask_for_file, end_lease
from sej.system.sealed import seal, unseal, whole
from textqueue.editing.queue_file import Session
from textqueue.editing.source import Source
from textqueue.errors import FileInUseError, InvalidTextError, TextQueueError
from textqueue.format.grammar import CONTROL_OF, MessageStatus
from textqueue.format.parser import chunks
from textqueue.format.windows import scan, token_of
from textqueue.ledger.lock import Guard
from textqueue.ledger.log import ARCHIVED, MARKS, Ledger, Record
from textqueue.ledger.sidecar import home, open_beside, replace_beside

__all__ = ["archive", "editor_files", "refuse"]

_COMMENT: Final = CONTROL_OF[MessageStatus.comment][0]
_ENTRIES: Final = frozenset(control[0] for control in CONTROL_OF.values())
_BLOCK: Final = 1 << 20
_NOTE_BYTES: Final = 1 << 16
_TRIES: Final = 8


def editor_files(path: str, disk: Disk) -> list[str]:
    """The files by which editors show that they have a file open: Vim, nano, Emacs, Kate, LibreOffice."""
    directory, name = os.path.split(path)
    known = {f".{name}.{end}" for end in ("swp", "swo", "swn", "kate-swp")} | {
        f".#{name}",
        f"#{name}#",
        f".~lock.{name}#",
    }
    return [found for found in disk.list(directory or ".") if found in known]


def refuse(source: Source, target: str, statuses: Collection[MessageStatus]) -> None:
    """See that a queue file can be archived there, before anything is done.

    Raises:
        InvalidTextError: the target is the queue itself, or a status that is not done.
    """
    if not set(statuses) <= {MessageStatus.cleared, MessageStatus.critical}:
        raise InvalidTextError("only cleared and critical messages can be archived", path=source.path)
    here, there = source.file.disk.status(source.path), source.file.disk.status(target)
    if os.path.abspath(target) == os.path.abspath(source.path) or (
        here is not None and there is not None and here.identity == there.identity
    ):
        raise InvalidTextError("the archive must be another file than the queue", path=target)


def archive(source: Source, target: str, statuses: Collection[MessageStatus]) -> int:
    """Move the done messages of a queue file to the end of another file.

    Returns:
        How many messages were moved.

    Raises:
        FileInUseError: an editor has the file open.
        InvalidTextError: as :func:`refuse`.
        TextQueueError: the note of a run that was cut short cannot be read.
    """
    refuse(source, target, statuses)
    controls = {CONTROL_OF[status][0] for status in statuses}
    temporary, note = source.file.home + ".tmp", source.file.home + ".archive"
    for _ in range(_TRIES):
        count = _once(source, target, controls, temporary, note)
        if count is not None:
            with source.file.session():
                pass  # if another process was there as well: the ledger is brought in line
            return count
    raise FileInUseError(
        "another program changed this file each time: close it there, then archive again", path=source.path
    )


def _once(source: Source, target: str, controls: Collection[int], temporary: str, note: str) -> int | None:
    """As ``archive``; None if another program changed the file meanwhile: the next run takes back what was done.

    There is no lease while messages are copied and synced, but for the last look and the rename.
    """
    disk = source.file.disk
    with source.file.session() as session:
        source.file.bring_in_line(session.file)
        before = token_of(session.file.status())
        end_lease(session.file)
        shown = [name for path in dict.fromkeys((source.file.home, source.path)) for name in editor_files(path, disk)]
        if shown:
            raise FileInUseError(
                f"an editor has this file open ({', '.join(shown)} stands beside it): close it there, or remove what it"
                " left when it crashed",
                path=source.path,
            )
        moved, count = _positions(session.file, controls)
        data = b"".join(_ended(session.file.read(size, position)) for position, size in moved)
        _take_back(disk, note, temporary, data)
        if not count:
            return 0
        rest = _rest(source, session, temporary, moved)
        with _locked(disk, target):
            _append(source, target, data, note, rest.inode)
        source.file.exclusive.take(session.file)
        there = disk.status(source.path)
        if there is None or token_of(there) != before:
            return None
        disk.rename(temporary, source.file.home)
        if source.file.ledger.token == before:  # what stays is known to have moved, and what went to be gone
            source.file.mine = None
            known = _shifted(source.file.ledger, moved)
            source.file.ledger.rewrite(known, token=token_of(rest), epoch=time.time_ns())
        disk.unlink(note)
    return count


def _rest(source: Source, session: Session, temporary: str, moved: Sequence[tuple[int, int]]) -> Status:
    """Write what stays."""
    source.file.disk.unlink(temporary)  # a crash inside a rename may have left both names to one file
    rest = source.file.disk.open(temporary, "temp")
    try:
        _copy_owner(session.file, rest)
        position = 0
        for start, size in moved:
            _copy(session.file, rest, position, start)
            position = start + size
        _copy(session.file, rest, position, session.status.size)
        rest.sync()
        return rest.status()
    finally:
        rest.close()


def _shifted(ledger: Ledger, moved: Sequence[tuple[int, int]]) -> list[Record]:
    """What the ledger knows: of what stays, where it is now; of marks that went, in which run that was."""
    now = time.time_ns()
    starts = [start for start, _ in moved]
    gone = [0, *itertools.accumulate(size for _, size in moved)]
    known = []
    for record in ledger.edits():
        before = bisect.bisect_left(starts, record.position)
        if record.position < 0:
            known.append(record)
        elif before == len(starts) or starts[before] != record.position:
            known.append(record._replace(position=record.position - gone[before]))
        elif record.kind in MARKS:  # a stale save may bring the message back
            known.append(record._replace(position=-now, owner=b"%s%d" % (ARCHIVED, now)))
    return known


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


@contextlib.contextmanager
def _locked(disk: Disk, target: str) -> Iterator[None]:
    """Where the archive is a queue of other programs, they wait."""
    path = home(target) + ".lck"
    if disk.status(path) is None:
        yield
        return
    guard = Guard(path, disk=disk, ask=partial(ask_for_file, target))
    try:
        with guard:
            yield
    finally:
        guard.close()


def _append(source: Source, target: str, data: bytes, note: str, inode: int) -> None:
    archive = open_beside(source.file.disk, target, source.path)
    try:
        size = archive.status().size
        text = _end_of(archive, size) + data
        fields: dict[str, Any] = {"target": os.path.abspath(target), "size": size, "length": len(text), "inode": inode}
        fields["digest"] = _digest(text)
        replace_beside(source.file.disk, note, seal(note, fields), source.path)
        try:
            archive.write(text)
            archive.sync()
        except OSError:
            if text.startswith(archive.read(len(text) + 1, size)):  # and nobody else wrote behind it
                archive.truncate(size)
            raise
    finally:
        archive.close()


def _take_back(disk: Disk, note: str, temporary: str, data: bytes) -> None:
    """Undo what a run that was cut short has brought into an archive."""
    try:
        found = read_small(disk, note, _NOTE_BYTES)
    except FileNotFoundError:
        return
    try:
        fields = unseal(note, found, ("target", "size", "length", "inode", "digest"))
        target, size, length = str(fields["target"]), whole(fields["size"]), whole(fields["length"])
        inode, digest = whole(fields["inode"], 0, 2**64 - 1), str(fields["digest"])
    except (ValueError, KeyError) as error:
        raise TextQueueError(
            f"this file says what was on its way into an archive, and cannot be read ({error}); compare the archive's"
            " end with the queue, then remove this file",
            path=note,
        ) from error
    there = disk.status(temporary)
    if there is not None and there.inode == inode and disk.status(target) is not None:
        with _locked(disk, target):
            archive = disk.open(target, "edit")
            try:
                tail = archive.read(length + 1, size)
                if tail and (_digest(tail) == digest or _is_torn(tail, _end_of(archive, size) + data)):
                    archive.truncate(size)
                    archive.sync()
            finally:
                archive.close()
    disk.unlink(note)


def _is_torn(tail: bytes, text: bytes) -> bool:
    """Whether this is what a power loss left of a text: a part of it, zeros where nothing came to the medium."""
    return len(tail) <= len(text) and all(byte in (0, meant) for byte, meant in zip(tail, text, strict=False))


def _end_of(archive: File, size: int) -> bytes:
    """What ends the archive's last line, if it has no end."""
    return b"" if not size or archive.read(1, size - 1) == b"\n" else b"\n"


def _digest(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=16).hexdigest()


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
