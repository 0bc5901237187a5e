"""Replacing a queue file by a new version of it, if no other program has changed it since it was read.

An archive run and a split move entries to other files. Both write what remains into a temporary file, and rename it to
the queue's name. A comment belongs to the messages right below it, up to a blank line or the next comment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from sej.system.disk import Disk, File
from sej.system.paths import around
from textqueue.editing.queue_file import QueueFile
from textqueue.editing.tq_file import copy_rest, shifted, temporary_file
from textqueue.errors import InvalidTextError
from textqueue.format.generation import NUMBER, Generation, is_generation
from textqueue.format.grammar import CONTROL_OF, MessageStatus
from textqueue.format.parser import digest, essence
from textqueue.format.windows import Token, placed, require_resolved, scan, token_of
from textqueue.ledger.log import ARCHIVED, EMPTY, MARKS, WAS

_COMMENT: Final = CONTROL_OF[MessageStatus.comment][0]
_ENTRIES: Final = frozenset(control[0] for control in CONTROL_OF.values())


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
        for position, raw in placed(window.position, window.data):
            comment_below = raw[0] == _COMMENT and not all(part.is_comment for part in run)
            if run and (raw[0] not in _ENTRIES or comment_below or is_generation(raw)):
                yield run
                run = []
            if raw[0] in _ENTRIES and not is_generation(raw):
                run.append(Part(position, raw))
            if run and not run[0].is_comment:
                yield run
                run = []
    if run:
        yield run


def write_rest(session: QueueFile, temporary: str, parts: Sequence[Part]) -> Token:
    """Write what remains without some parts into the temporary file, and return its state."""
    ledger, gone = session.ledger, _spans(parts)
    with temporary_file(session.disk, temporary, session.file) as rest:
        copy_rest(session.file, rest, 0, session.status.size, gone)
        if ledger.line_at >= 0:
            rest.write_at(NUMBER % (ledger.number + 1), shifted(ledger.line_at, gone))
        return token_of(rest.status())


def put_rest(session: QueueFile, temporary: str, after: Token, parts: Sequence[Part]) -> bool:
    """Rename the temporary file to the queue's name, and record what was moved and where the claims are now.

    Args:
        session: the queue, whose ledger knows the file.
        temporary: the file with what remains.
        after: its state.
        parts: what was moved, ascending.

    Returns:
        False: another program has changed the queue file, and nothing was renamed.
    """
    if not session.swap(session.file, temporary, token_of(session.status)):
        return False
    ledger, gone = session.ledger, _spans(parts)
    taken = {start for start, _ in gone}
    claims = [
        one._replace(position=shifted(one.position, gone))
        for one in ledger.claims.values()
        if one.position not in taken
    ]
    lines = [
        (ARCHIVED, at, digest(essence(raw)), WAS + raw[:1] if raw[0] in MARKS else EMPTY)
        for at, raw in parts
        if raw[0] != _COMMENT
    ]
    generation = Generation(shifted(ledger.line_at, gone), ledger.number + 1)
    ledger.begin(claims, after, generation, lines=lines)
    return True


def _spans(parts: Sequence[Part]) -> list[tuple[int, int]]:
    return [(position, len(raw)) for position, raw in parts]


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
