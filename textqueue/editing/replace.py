"""Replacing a queue file by a new version of it, if no other program has changed it since it was read.

An archive run and a split move entries to other files. Both write what remains into a temporary file, and rename it to
the queue's name. A comment belongs to the messages right below it, up to a blank line or the next comment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from sej.system.disk import Disk, File, Status
from sej.system.paths import around
from textqueue.editing.edit_with_retries import Source
from textqueue.editing.queue_file import QueueFile
from textqueue.editing.tq_file import copy_rest, shifted, temporary_file
from textqueue.errors import FileInUseError, InvalidTextError
from textqueue.format.generation import NUMBER, Generation, is_generation
from textqueue.format.grammar import CONTROL_OF, MessageStatus
from textqueue.format.parser import chunks, digest, essence
from textqueue.format.windows import Token, require_resolved, scan
from textqueue.ledger.log import ARCHIVED, EMPTY, MARKS, WAS

_COMMENT: Final = CONTROL_OF[MessageStatus.comment][0]
_ENTRIES: Final = frozenset(control[0] for control in CONTROL_OF.values())


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
            if run and (raw[0] not in _ENTRIES or comment_below or is_generation(raw)):
                yield run
                run = []
            if raw[0] in _ENTRIES and not is_generation(raw):
                run.append(Part(position, raw))
            position += len(raw)
            if run and not run[0].is_comment:
                yield run
                run = []
    if run:
        yield run


def write_rest(source: Source, session: QueueFile, temporary: str, moved: Sequence[tuple[int, int]]) -> Status:
    """Write the messages that remain into the temporary file, and return its status."""
    with temporary_file(source.file.disk, temporary, session.file) as rest:
        copy_rest(session.file, rest, 0, session.status.size, moved)
        ledger = source.file.ledger
        if ledger.line_at >= 0:
            rest.write_at(NUMBER % (ledger.number + 1), shifted(ledger.line_at, moved))
        return rest.status()


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


def log_moved(source: Source, after: Token, moved: Sequence[tuple[int, int]], parts: Sequence[Part]) -> None:
    """Record the new positions of the claims, and which messages were moved to other files.

    Args:
        source: the queue, whose ledger knew the file before the move.
        after: the state of the file now.
        moved: position and size of what was moved, ascending.
        parts: the messages of these.
    """
    ledger = source.file.ledger
    taken = {start for start, _ in moved}
    claims = [
        one._replace(position=shifted(one.position, moved))
        for one in ledger.claims.values()
        if one.position not in taken
    ]
    lines = [
        (ARCHIVED, at, digest(essence(raw)), WAS + raw[:1] if raw[0] in MARKS else EMPTY)
        for at, raw in parts
        if raw[0] != _COMMENT
    ]
    generation = Generation(shifted(ledger.line_at, moved), ledger.number + 1)
    ledger.begin(claims, after, generation, lines=lines)
