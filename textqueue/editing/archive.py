"""The archive: moves done messages to the end of another file. The rest of the queue keeps its bytes.

A comment belongs to the messages right below it, up to a blank line or the next comment. It is moved if all of them are
moved. Lines outside of entries are not moved.

The steps of a run::

    1  write the messages that remain into a temporary file, jobs.tq.tmp
    2  write a note, jobs.tq.archive: the archive, its size, and a digest of what will be appended
    3  append the moved messages to the archive, and sync it
    4  rename the temporary file to the queue's name                          the run is complete
    5  remove the note

**The invariant.** As long as the temporary file of the note exists under its own name, the run is not complete. After a
crash, the next run removes the bytes of the note from the end of the archive, and begins again. If another program has
written after them, they remain. So no message is lost or repeated, and equal messages remain different.

If another program changes the queue file before step 4, the run begins again. If an editor has the file open, the run
is refused, because the editor would later save its old buffer.
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
from textqueue.ledger.sidecar import open_sidecar, real_path, replace_sidecar

__all__ = ["archive", "check_target", "editor_files"]

_COMMENT: Final = CONTROL_OF[MessageStatus.comment][0]
_ENTRIES: Final = frozenset(control[0] for control in CONTROL_OF.values())
_BLOCK: Final = 1 << 20
_NOTE_BYTES: Final = 1 << 16
_MAX_ATTEMPTS: Final = 8


def editor_files(path: str, disk: Disk) -> list[str]:
    """Return the lock and swap files of editors that have a file open: Vim, nano, Emacs, Kate, LibreOffice."""
    directory, name = os.path.split(path)
    known = {f".{name}.{end}" for end in ("swp", "swo", "swn", "kate-swp")} | {
        f".#{name}",
        f"#{name}#",
        f".~lock.{name}#",
    }
    return [found for found in disk.list(directory or ".") if found in known]


def check_target(source: Source, target: str, statuses: Collection[MessageStatus]) -> None:
    """Check that a queue file can be archived in a target.

    Raises:
        InvalidTextError: the target is the queue itself, or a status is neither cleared nor critical.
    """
    if not set(statuses) <= {MessageStatus.cleared, MessageStatus.critical}:
        raise InvalidTextError(
            "only cleared and critical messages can be archived: pass these statuses only", path=source.path
        )
    here, there = source.file.disk.status(source.path), source.file.disk.status(target)
    if os.path.abspath(target) == os.path.abspath(source.path) or (
        here is not None and there is not None and here.identity == there.identity
    ):
        raise InvalidTextError("the archive must be another file than the queue", path=target)


def archive(source: Source, target: str, statuses: Collection[MessageStatus]) -> int:
    """Move the done messages of a queue file to the end of another file.

    Returns:
        The number of moved messages.

    Raises:
        FileInUseError: an editor has the file open.
        InvalidTextError: as :func:`check_target`.
        TextQueueError: the note of an interrupted run is damaged.
    """
    check_target(source, target, statuses)
    controls = {CONTROL_OF[status][0] for status in statuses}
    temporary, note = source.file.real_path + ".tmp", source.file.real_path + ".archive"
    for _ in range(_MAX_ATTEMPTS):
        count = _attempt(source, target, controls, temporary, note)
        if count is not None:
            with source.file.session():
                pass  # reconcile the ledger, in case another process was there as well
            return count
    raise FileInUseError(
        f"another program changed this file in each of {_MAX_ATTEMPTS} attempts: close it there, then archive again",
        path=source.path,
    )


def _attempt(source: Source, target: str, controls: Collection[int], temporary: str, note: str) -> int | None:
    """Make one attempt; None if another program changed the file meanwhile: the next attempt undoes this one.

    There is a lease only for the last check and the rename, not while messages are copied and synced.
    """
    disk = source.file.disk
    with source.file.session() as session:
        source.file.bring_in_line(session.file)
        before = token_of(session.file.status())
        end_lease(session.file)
        shown = [
            name for path in dict.fromkeys((source.file.real_path, source.path)) for name in editor_files(path, disk)
        ]
        if shown:
            raise FileInUseError(
                f"an editor has this file open, as {', '.join(shown)} shows: close it there, or remove that file if the"
                " editor crashed",
                path=source.path,
            )
        moved, count = _positions(session.file, controls)
        data = b"".join(_ended(session.file.read(size, position)) for position, size in moved)
        _undo(disk, note, temporary, data)
        if not count:
            return 0
        rest = _rest(source, session, temporary, moved)
        with _locked(disk, target):
            _append(source, target, data, note, rest.inode)
        source.file.exclusive.take(session.file)
        there = disk.status(source.path)
        if there is None or token_of(there) != before:
            return None
        disk.rename(temporary, source.file.real_path)
        if source.file.ledger.token == before:  # record the new positions, and which messages were archived
            source.file.mine = None
            known = _shifted(source.file.ledger, moved)
            source.file.ledger.rewrite(known, token=token_of(rest), epoch=time.time_ns())
        disk.unlink(note)
    return count


def _rest(source: Source, session: Session, temporary: str, moved: Sequence[tuple[int, int]]) -> Status:
    """Write the messages that remain into the temporary file, and return its status."""
    source.file.disk.unlink(temporary)  # after a crash within a rename, both names may be one file
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
    """Return the records after the move: new positions for what remains, the run for archived marks."""
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
        elif record.kind in MARKS:  # a stale save may restore the message
            known.append(record._replace(position=-now, owner=b"%s%d" % (ARCHIVED, now)))
    return known


def _positions(file: File, controls: Collection[int]) -> tuple[list[tuple[int, int]], int]:
    """Return what to move, as (position, size), and the number of messages."""
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
    """Yield comments with the messages right below them, as (control byte, position, size)."""
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
            if run and run[0][0] != _COMMENT:  # without a comment above, each message is a run of its own
                yield run
                run = []
    if run:
        yield run


@contextlib.contextmanager
def _locked(disk: Disk, target: str) -> Iterator[None]:
    """Lock the archive, if it is a queue that other programs use."""
    path = real_path(target) + ".lck"
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
    archive = open_sidecar(source.file.disk, target, source.path)
    try:
        size = archive.status().size
        text = _end_of(archive, size) + data
        fields: dict[str, Any] = {"target": os.path.abspath(target), "size": size, "length": len(text), "inode": inode}
        fields["digest"] = _digest(text)
        replace_sidecar(source.file.disk, note, seal(note, fields), source.path)
        try:
            archive.write(text)
            archive.sync()
        except OSError:
            if text.startswith(archive.read(len(text) + 1, size)):  # and no other program wrote after it
                archive.truncate(size)
            raise
    finally:
        archive.close()


def _undo(disk: Disk, note: str, temporary: str, data: bytes) -> None:
    """Undo what an interrupted run has appended to an archive."""
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
            f"the note of an interrupted archive run is damaged ({error}); compare the end of the archive with the"
            " queue, remove messages that are in both from the archive, then remove this file",
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
    """Return whether a power loss left this of a text: a part of it, with zeros for bytes that were not written."""
    return len(tail) <= len(text) and all(byte in (0, meant) for byte, meant in zip(tail, text, strict=False))


def _end_of(archive: File, size: int) -> bytes:
    """Return the missing newline of the archive's last line, or empty bytes."""
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
    """Give the new file the owner and mode of the old one, so that no other user can read it."""
    with contextlib.suppress(OSError, ValueError):
        status = os.fstat(source.fileno())
        os.fchmod(target.fileno(), status.st_mode & 0o7777)
        os.fchown(target.fileno(), status.st_uid, status.st_gid)
