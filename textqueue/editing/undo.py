"""Undoing the last changes of a status that programs made, by the ledger.

The ledger has what was done. The line before it about the same message tells the earlier status. Without such a line,
a mark was made on a queued message, because that is what programs mark. If a message was queued again by itself, its
line has the earlier status; if many were, it has not. ::

    last line          the line before it      after the undo
    a mark             a mark                  that mark
    a mark             any other, or none      queued
    given back         a mark                  that mark
    given back         a claim                 the status was not changed: the line before counts
    given back         any other, or none      refused: a user may have made the mark
    appended           -                       a comment

If lines have moved since the line before, that line counts only if the file has no equal message: otherwise it may be
about the other one. Then the undo is refused.

A claim is not undone: its owner may be at work. A variable is not undone either, because the ledger does not have its
old text. The undo is an edit like any other, so it has a line of its own, and a second undo takes it back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from textqueue.editing.message import Message, marking
from textqueue.editing.proof import Place
from textqueue.editing.source import Source
from textqueue.errors import MessageMovedError
from textqueue.format.grammar import CONTROL_OF, STATUS_OF, MessageStatus
from textqueue.format.parser import chunks, digest, essence
from textqueue.format.windows import scan
from textqueue.ledger.records import (
    APPENDED,
    CLAIMS,
    EMPTY,
    GIVEN_BACK,
    MARKS,
    SET,
    STATE,
    WAITING,
    WAS,
    Record,
    is_copy,
)

_COMMENT: Final = CONTROL_OF[MessageStatus.comment][0]
_QUEUED: Final = CONTROL_OF[MessageStatus.queued][0]


class _Edit(NamedTuple):
    """A change of a status.

    Attributes:
        source: its file.
        record: its line.
        before: the control byte before it; None: not known.
        current: whether no line has moved since.
        unsure: whether the line before it may be about another message, if the file has an equal one.
    """

    source: Source
    record: Record
    before: int | None
    current: bool
    unsure: bool

    @property
    def after(self) -> int:
        return _QUEUED if self.record.kind in WAITING else self.record.kind


def undo(sources: Iterable[Source], count: int) -> Iterator[Message]:
    """Take back the newest changes of a status in some files, the newest first.

    Yields:
        Each message as it is after the undo: fewer than count if the ledgers have fewer such changes.

    Raises:
        MessageMovedError: a message was changed since then, or its earlier status is not known.
    """
    edits: list[_Edit] = []
    for source in sources:
        with suppress(FileNotFoundError), source.file.session():  # a stale save may have reverted the edit
            history = source.file.ledger.history()
            edits += _changes(source, history)[-count:]
    edits.sort(key=lambda edit: edit.record.token[2])  # of equal times, the later line remains later
    yield from map(_undo, edits[: -count - 1 : -1])


def _changes(source: Source, history: Iterable[Record]) -> list[_Edit]:
    """Return the changes of a status in a ledger, oldest first."""
    made: list[_Edit] = []
    kinds: dict[tuple[int, bytes], int] = {}  # the last line about each message, by position and digest
    epoch = 0
    for record in history:
        place = record.position, record.digest
        if record.kind == STATE:
            if record.position != epoch:
                kinds = _without_positions(kinds)
                made = [edit._replace(current=False) for edit in made]
            epoch = record.position
        elif record.kind == SET and record.owner != EMPTY:
            made = [
                edit._replace(record=edit.record._replace(digest=record.digest))
                if edit.record.digest == record.owner and edit.record.position in (record.position, -1)
                else edit
                for edit in made
            ]
            kinds[place] = kinds.pop((record.position, record.owner), kinds.get((-1, record.owner), APPENDED))
        elif record.kind in CLAIMS:
            kinds[place] = record.kind
        elif record.kind in MARKS | WAITING:
            if is_copy(record):
                if made and made[-1].record.digest == record.digest:
                    made[-1] = made[-1]._replace(record=record, current=True)
                continue
            here, moved = kinds.get(place), kinds.pop((-1, record.digest), None)
            before = moved if here is None else here
            kinds[place] = record.kind
            if record.kind == GIVEN_BACK and before in CLAIMS:
                continue
            was = record.owner.startswith(WAS)
            if was:
                before = record.owner[len(WAS)]
            unsure = here is None and not was and before in MARKS and record.kind != APPENDED
            made.append(_Edit(source, record, _status_before(record.kind, before), True, unsure))
    return made


def _without_positions(kinds: dict[tuple[int, bytes], int]) -> dict[tuple[int, bytes], int]:
    """Lines have moved: keep what is known about a message only if no other is equal to it."""
    counts = Counter(name for _, name in kinds)
    return {(-1, name): kind for (_, name), kind in kinds.items() if counts[name] == 1}


def _status_before(kind: int, before: int | None) -> int | None:
    if kind == APPENDED:
        return _COMMENT
    if before is not None and before in MARKS and before != kind:
        return before
    return _QUEUED if kind in MARKS else None


def _undo(edit: _Edit) -> Message:
    source, record = edit.source, edit.record
    with source.file.session() as session:
        found: list[Place] = []
        equal = 0
        for window in scan(session.file):
            position = window.position
            for raw in chunks(window.data):
                if raw[0] in STATUS_OF and digest(essence(raw)) == record.digest:
                    equal += 1
                    if raw[0] == edit.after:
                        found.append(Place(position, raw, source.file.ledger.epoch))
                position += len(raw)
    at = [place for place in found if place.position == record.position] if edit.current else found
    if not at:
        raise _refusal(edit, "the message was changed or removed since then")
    if edit.before is None or (edit.unsure and equal > 1):
        raise _refusal(edit, "its earlier status is not known")
    place = min(at, key=lambda one: abs(one.position - record.position))
    change = marking(source, place.raw, place.position, STATUS_OF[edit.before])
    done = source.edit(place, change, "undo a change of a status")
    source.delivered.forget(place.raw)
    return Message(source, done.raw, done.position, done.epoch)


def _refusal(edit: _Edit, why: str) -> MessageMovedError:
    return MessageMovedError(
        f"cannot undo the last change of a status: {why}; it was left as it is",
        path=edit.source.path,
        position=max(edit.record.position, 0),
    )
