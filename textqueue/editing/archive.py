"""The archive: moves done messages to the end of another file. The rest of the queue keeps its bytes.

A comment belongs to the messages right below it, up to a blank line or the next comment. It is moved if all of them are
moved. Lines outside of entries are not moved.

The steps of a run::

    1  write the messages that remain into a temporary file, .jobs.tq.tmp
    2  write a note, .jobs.tq.archive: the archive, its size, and a digest of what will be appended
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

import contextlib
import hashlib
import os
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any, Final

from sej.system.disk import Disk, File, read_small
from sej.system.locks import ask_for_file, end_lease
from sej.system.sealed import seal, unseal, whole
from textqueue.editing.replace import forget_moved, require_closed, runs, swap, write_rest
from textqueue.editing.source import Source
from textqueue.errors import FileInUseError, InvalidTextError, TextQueueError
from textqueue.format.grammar import CONTROL_OF, MessageStatus
from textqueue.format.windows import token_of
from textqueue.ledger.lock import Guard
from textqueue.ledger.sidecar import Sidecars, open_sidecar, replace_sidecar

__all__ = ["archive", "check_target"]

_COMMENT: Final = CONTROL_OF[MessageStatus.comment][0]
_NOTE_BYTES: Final = 1 << 16
_MAX_ATTEMPTS: Final = 8


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
    for _ in range(_MAX_ATTEMPTS):
        count = _attempt(source, target, controls)
        if count is not None:
            with source.file.session():
                pass  # reconcile the ledger, in case another process was there as well
            return count
    raise FileInUseError(
        f"another program changed this file in each of {_MAX_ATTEMPTS} attempts: close it there, then archive again",
        path=source.path,
    )


def _attempt(source: Source, target: str, controls: Collection[int]) -> int | None:
    """Make one attempt; None if another program changed the file meanwhile: the next attempt undoes this one.

    There is a lease only for the last check and the rename, not while messages are copied and synced.
    """
    disk = source.file.disk
    with source.file.session() as session:
        temporary, note = source.file.sidecars.path(".tmp"), source.file.sidecars.path(".archive")
        source.file.bring_in_line(session.file)
        before = token_of(session.file.status())
        end_lease(session.file)
        require_closed(source)
        moved, count = _positions(session.file, controls)
        data = b"".join(_ended(session.file.read(size, position)) for position, size in moved)
        _undo(disk, note, temporary, data)
        if not count:
            return 0
        rest = write_rest(source, session, temporary, moved)
        with _locked(disk, target):
            _append(source, target, data, note, rest.inode)
        if not swap(source, session.file, temporary, before):
            return None
        forget_moved(source, before, token_of(rest), moved)
        disk.unlink(note)
    return count


def _positions(file: File, controls: Collection[int]) -> tuple[list[tuple[int, int]], int]:
    """Return what to move, as (position, size), and the number of messages."""
    moved: list[tuple[int, int]] = []
    count = 0
    for run in runs(file):
        stays = any(part.raw[0] not in controls for part in run if not part.is_comment)
        only_comments = all(part.is_comment for part in run)
        for position, raw in run:
            if raw[0] in controls or (raw[0] == _COMMENT and not stays and not only_comments):
                moved.append((position, len(raw)))
                count += raw[0] in controls
    return moved, count


@contextlib.contextmanager
def _locked(disk: Disk, target: str) -> Iterator[None]:
    """Lock the archive, if it is a queue that other programs use."""
    sidecars = Sidecars(target, disk=disk)
    if disk.status(sidecars.path(".lck")) is None:
        yield
        return
    guard = Guard(sidecars, disk=disk, ask=partial(ask_for_file, target))
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
