"""Replacing a queue file by a new version of it, if no other program has changed it since it was read.

An archive run and a split move entries to other files. Both write what remains into a temporary file, and rename it to
the queue's name. A comment belongs to the messages right below it, up to a blank line or the next comment.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from sej.system.disk import Disk, File, Status
from sej.system.paths import around
from textqueue.editing.queue_file import Session
from textqueue.editing.source import Source
from textqueue.errors import FileInUseError, InvalidTextError
from textqueue.format.grammar import CONTROL_OF, MessageStatus
from textqueue.format.parser import chunks
from textqueue.format.windows import Token, require_resolved, scan, token_of
from textqueue.ledger.log import Ledger
from textqueue.ledger.records import ARCHIVED, MARKS, SET, Record, is_archived, run_of

_COMMENT: Final = CONTROL_OF[MessageStatus.comment][0]
_ENTRIES: Final = frozenset(control[0] for control in CONTROL_OF.values())
_BLOCK: Final = 1 << 20


def _editor_files(path: str, disk: Disk) -> list[str]:
    """Return the lock and swap files of editors that have a file open: Vim, nano, Emacs, Kate, LibreOffice."""
    directory, name = os.path.split(path)
    known = {f".{name}.{end}" for end in ("swp", "swo", "swn", "kate-swp")} | {
        f".#{name}",
        f"#{name}#",
        f".~lock.{name}#",
    }
    return [found for found in disk.list(directory or ".") if found in known]


def require_closed(source: Source) -> None:
    """Check that no editor has a queue file open.

    Raises:
        FileInUseError: an editor has it open, and would later save its old buffer.
    """
    paths = dict.fromkeys((source.file.real_path, source.path))
    shown = [name for path in paths for name in _editor_files(path, source.file.disk)]
    if shown:
        raise FileInUseError(
            f"an editor has this file open, as {', '.join(shown)} shows: close it there, or remove that file if the"
            " editor crashed",
            path=source.path,
        )


class Part(NamedTuple):
    """An entry: its position and its bytes."""

    position: int
    raw: bytes

    @property
    def is_comment(self) -> bool:
        """Whether it is a comment."""
        return self.raw[0] == _COMMENT


def runs(file: File) -> Iterator[list[Part]]:
    """Yield comments with the messages right below them. A message without a comment above is a run of its own.

    Raises:
        TextQueueError: the file has a conflict that a person must resolve.
    """
    run: list[Part] = []
    for window in scan(file):
        require_resolved(file, window)
        position = window.position
        for raw in chunks(window.data):
            comment_below = raw[0] == _COMMENT and not all(part.is_comment for part in run)
            if run and (raw[0] not in _ENTRIES or comment_below):
                yield run
                run = []
            if raw[0] in _ENTRIES:
                run.append(Part(position, raw))
            position += len(raw)
            if run and not run[0].is_comment:
                yield run
                run = []
    if run:
        yield run


def write_rest(source: Source, session: Session, temporary: str, moved: Sequence[tuple[int, int]]) -> Status:
    """Write the messages that remain into the temporary file, and return its status."""
    source.file.disk.unlink(temporary)  # after a crash within a rename, both names may be one file
    rest = source.file.disk.open(temporary, "temp")
    try:
        copy_owner(session.file, rest)
        position = 0
        for start, size in moved:
            copy(session.file, rest, position, start)
            position = start + size
        copy(session.file, rest, position, session.status.size)
        rest.sync()
        return rest.status()
    finally:
        rest.close()


def require_outside_journals(disk: Disk, target: str) -> None:
    """Check that a new file or directory is not among the files of a journal, as in ``orders/jnl/done.tq``.

    Raises:
        InvalidTextError: it is.
    """
    if (journal := around(disk, target)) is not None:
        raise InvalidTextError(
            f"this path is among the files of the journal {journal}, where only SEJ may write: choose a path outside of"
            " it",
            path=target,
        )


def swap(source: Source, file: File, temporary: str, before: Token) -> bool:
    """Rename a temporary file to the queue's name, under a lease. The caller holds the lock.

    Args:
        source: the queue.
        file: the queue file, open.
        temporary: the path of the new file, which was synced.
        before: the state of the queue file when it was read.

    Returns:
        Whether it was renamed; False: another program has changed the queue file.
    """
    source.file.exclusive.take(file)
    there = source.file.disk.status(source.path)
    if there is None or token_of(there) != before:
        return False
    source.file.disk.rename(temporary, source.file.real_path)
    return True


def forget_moved(
    source: Source, before: Token, after: Token, moved: Sequence[tuple[int, int]], marks: Sequence[Record] = ()
) -> None:
    """Record the new positions, and which messages were moved, if the ledger has the state before the move.

    Args:
        source: the queue.
        before: the state of the file before.
        after: its state now.
        moved: position and size of what was moved.
        marks: the marks of these messages. Of those that a person made, the ledger has no line yet.
    """
    ledger = source.file.ledger
    if ledger.token == before or not ledger.lines:
        known = _shifted(ledger, moved, marks)
        ledger.rewrite(known, token=after, epoch=time.time_ns())


def _shifted(ledger: Ledger, moved: Sequence[tuple[int, int]], marks: Sequence[Record]) -> list[Record]:
    """Return the records after the move: new positions for what remains, the run for archived marks."""
    now = time.time_ns()
    starts = [start for start, _ in moved]
    gone = [0, *itertools.accumulate(size for _, size in moved)]
    known = []
    edits = ledger.edits()
    there = {record.digest for record in edits if record.kind in MARKS}
    run = max(
        [now, *(run_of(record.owner) + 1 for record in edits if is_archived(record))]
    )  # the clock may be set back
    for record in edits:
        before = bisect.bisect_left(starts, record.position)
        if record.position < 0:
            known.append(record)
        elif before == len(starts) or starts[before] != record.position:
            known.append(record._replace(position=record.position - gone[before]))
        elif record.kind in MARKS:  # a stale save may restore the message
            known.append(record._replace(position=-now, owner=b"%s%d" % (ARCHIVED, run)))
        elif record.kind == SET:  # a stale save may restore the message as it was before
            known.append(record._replace(position=-1))
    # A run of their own: whether a save brought the others back does not depend on these.
    own = b"%s%d" % (ARCHIVED, run + 1)
    return known + [one._replace(position=-now, owner=own) for one in marks if one.digest not in there]


def copy(source: File, target: File, start: int, end: int) -> None:
    """Copy the bytes from start to end."""
    while start < end:
        data = source.read(min(_BLOCK, end - start), start)
        if not data:
            return
        target.write(data)
        start += len(data)


def copy_owner(old: File, new: File) -> None:
    """Give the new file the owner and mode of the old one, so that no other user can read it."""
    with contextlib.suppress(OSError, ValueError):
        status = os.fstat(old.fileno())
        os.fchmod(new.fileno(), status.st_mode & 0o7777)
        os.fchown(new.fileno(), status.st_uid, status.st_gid)
