"""The archive: moves done messages to the end of another file. The rest of the queue keeps its bytes.

A comment belongs to the messages right below it, up to a blank line or the next comment. It is moved if all of them are
moved. Lines outside of entries are not moved.

The steps of a run::

    1  write the messages that remain into a temporary file, .jobs.tq.tmp
    2  lock the archive, with .done.tq.lck, and undo a run of any queue that was interrupted there
    3  write a note, .jobs.tq.archive: the archive, its size, and the text that will be appended
    4  write the path of the note into .done.tq.incoming, next to the archive done.tq
    5  append the moved messages to the archive, and sync it
    6  rename the temporary file to the queue's name                          the run is complete
    7  remove the note and .done.tq.incoming, and unlock the archive

**The invariant.** As long as the temporary file of the note exists under its own name, the run is not complete. After a
crash, the next run of that queue, or of another one with the same archive, removes the text of the note from the end of
the archive. The run begins again. As each run undoes the last one before it appends, what comes after the size in the
note is that text, or a part of it. If another program than this library has written after it, it remains. So no message
is lost or repeated, and equal messages remain different.

If another program changes the queue file before step 6, the run begins again. If an editor has the file open and saves
its old buffer later, the messages are removed again (``textqueue.editing.reconcile``). For that the run adds the line
with the number.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from sej.system.disk import Disk, File
from sej.system.locks import end_file_lease
from sej.system.sealed import SealedFile, seal, whole
from textqueue.editing.edit_with_retries import Source
from textqueue.editing.queue_file import QueueFile
from textqueue.editing.replace import Part, put_rest, require_outside_journals, runs, write_rest
from textqueue.errors import InvalidTextError, TextQueueError
from textqueue.format.grammar import CONTROL_OF, MessageStatus
from textqueue.format.parser import decode, encode
from textqueue.ledger.sidecar import (
    Guard,
    Sidecars,
    named,
    noted,
    open_sidecar,
    real_path,
    replace_sidecar,
    sidecar_path,
)

_NOTE_BYTES: Final = 1 << 32


def check_target(source: Source, target: str, statuses: Collection[MessageStatus]) -> None:
    """Check that a queue file can be archived in a target.

    Raises:
        InvalidTextError: the target is the queue itself, or among the files of a journal; or a status is neither
            cleared nor critical.
    """
    require_outside_journals(source.file.disk, target)
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
        FileInUseError: another program changed the file in every attempt.
        InvalidTextError: as :func:`check_target`.
        TextQueueError: the note of an interrupted run is damaged.
    """
    check_target(source, target, statuses)
    controls = {CONTROL_OF[status][0] for status in statuses}
    count = None
    for session in source.attempts("archive"):
        if (count := _attempt(source, session, target, controls)) is not None:
            break
    with source.file:
        return count or 0  # the ledger is reconciled, in case another process was there as well


def _attempt(source: Source, session: QueueFile, target: str, controls: Collection[int]) -> int | None:
    """Make one attempt; None if another program changed the file meanwhile: the next attempt undoes this one.

    There is a file lease only for the last check and the rename, not while messages are copied and synced.
    """
    disk, sidecars = session.disk, session.sidecars
    temporary, note = sidecars.path(".tmp"), sidecars.path(".archive")
    end_file_lease(session.file)
    _undo(disk, note)
    moved = _moved(session.file, controls)
    if not moved:
        return 0
    if session.add_line():  # so that a buffer of an editor that is open names its state
        return None
    data = b"".join(_ended(raw) for _, raw in moved)
    rest = write_rest(session, temporary, moved)
    with _locked(disk, target, source.path) as archive:
        run = _Run(os.path.abspath(target), archive.size(), os.path.abspath(temporary), b"")
        _append(source, archive, run._replace(text=_end_of(archive, run.size) + data), note)
        there = disk.status(target)
        if there is None or there.identity != archive.status().identity:  # an editor has replaced the archive
            return None
        if not put_rest(session, temporary, rest, moved):
            return None
        disk.unlink(note)
        disk.unlink(_incoming(target))
    return sum(not part.is_comment for part in moved)


def _moved(file: File, controls: Collection[int]) -> list[Part]:
    """Return what to move."""
    moved: list[Part] = []
    for run in runs(file):
        messages = [part for part in run if not part.is_comment]
        ends = bool(messages) and all(part.raw[0] in controls for part in messages)
        moved += [part for part in run if part.raw[0] in controls or (part.is_comment and ends)]
    return moved


class _Run(NamedTuple):
    """A run, as its note has it.

    Attributes:
        target: the archive.
        size: its size before the run.
        temporary: the file with what remains in the queue.
        text: what is appended.
    """

    target: str
    size: int
    temporary: str
    text: bytes


@contextlib.contextmanager
def _locked(disk: Disk, target: str, queue: str | None) -> Iterator[File]:
    """Open and lock an archive, and undo the run that was interrupted there.

    Args:
        disk: the file system.
        target: the archive, which may be a queue that other programs use.
        queue: the queue file, whose owner and mode a new archive gets.

    Raises:
        FileInUseError: another process has locked it for a minute.
    """
    guard = Guard(Sidecars(target, disk=disk, queue=queue or target), disk=disk)
    try:
        with guard, open_sidecar(disk, target, queue) as archive:
            _settle(disk, target, archive)
            yield archive
    finally:
        guard.close()


def _incoming(target: str) -> str:
    """Return the path of the file that names the note of the run that appends to an archive."""
    return sidecar_path(real_path(target), ".incoming")


def _append(source: Source, archive: File, run: _Run, note: str) -> None:
    disk, incoming = source.file.disk, _incoming(run.target)
    paths = {"target": noted(run.target, note), "temporary": noted(run.temporary, note)}
    fields = run._asdict() | paths | {"text": decode(run.text)}
    names = {"note": noted(note, incoming)}
    replace_sidecar(disk, note, seal(note, fields), source.path)
    replace_sidecar(disk, incoming, seal(incoming, names), source.path)
    try:
        archive.write(run.text)
        archive.sync()
    except OSError:
        _cut(archive, run)
        raise


def _undo(disk: Disk, note: str) -> None:
    """Undo what an interrupted run of this queue has appended to an archive."""
    run = _read(disk, note)
    if run is None:
        return
    if disk.status(run.target) is not None:
        with _locked(disk, run.target, None):
            pass
    disk.unlink(note)


def _settle(disk: Disk, target: str, archive: File) -> None:
    """Undo the run of any queue that was interrupted while it appended to an archive, which is locked."""
    incoming = _incoming(target)
    file = _file(disk, incoming)
    fields = file.load()
    if fields is None:
        return
    with file.checking():
        note = named(str(fields["note"]), incoming)
    run = _read(disk, note)
    there = None if run is None else disk.status(run.target)
    if run is not None and there is not None and there.identity == archive.status().identity:
        if disk.status(run.temporary) is not None:
            _cut(archive, run)
            archive.sync()
        disk.unlink(note)
    disk.unlink(incoming)


def _cut(archive: File, run: _Run) -> None:
    """Remove the text of a run from the end of an archive, unless another program has written after it."""
    tail = archive.read(len(run.text) + 1, run.size)
    if tail and _is_torn(tail, run.text):
        archive.truncate(run.size)


def _read(disk: Disk, note: str) -> _Run | None:
    file = _file(disk, note)
    fields = file.load()
    if fields is None:
        return None
    with file.checking():
        target, temporary = named(str(fields["target"]), note), named(str(fields["temporary"]), note)
        return _Run(target, whole(fields["size"]), temporary, encode(fields["text"]))


def _file(disk: Disk, note: str) -> SealedFile:
    return SealedFile(
        disk,
        note,
        "the note of an interrupted archive run",
        "compare the end of the archive with the queue, remove messages that are in both from the archive, then remove"
        " this file",
        max_bytes=_NOTE_BYTES,
        error=TextQueueError,
    )


def _is_torn(tail: bytes, text: bytes) -> bool:
    """Return whether a power loss left this of a text: a part of it, with zeros for bytes that were not written."""
    if text.startswith(tail):
        return True
    return len(tail) <= len(text) and all(byte in (0, meant) for byte, meant in zip(tail, text, strict=False))


def _end_of(archive: File, size: int) -> bytes:
    """Return the missing newline of the archive's last line, or empty bytes."""
    return b"" if not size or archive.read(1, size - 1) == b"\n" else b"\n"


def _ended(raw: bytes) -> bytes:
    return raw if raw.endswith(b"\n") else raw + b"\n"
