"""Undoing the last changes of a status that programs made, by the ledger.

The line of a change has the status before it (``records.WAS``), unless the message was queued. An undo gives the
message that status again, and comments out a message that was appended.

A claim is not undone: its owner may be at work. A variable is not undone either, because the ledger does not have its
old text. The undo is an edit like any other, so it has a line of its own, and a second undo takes it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from textqueue.editing.message import Message, marking
from textqueue.editing.proof import Place
from textqueue.editing.tq_file import TqFile
from textqueue.errors import MessageMovedError
from textqueue.format.grammar import CONTROL_OF, STATUS_OF, MessageStatus
from textqueue.format.parser import digest
from textqueue.format.windows import scan_chunks
from textqueue.ledger.log import APPENDED, ARCHIVED, GIVEN_BACK, MARKS, SET, STATE, WAS, Record

_COMMENT: Final = CONTROL_OF[MessageStatus.comment][0]
_QUEUED: Final = CONTROL_OF[MessageStatus.queued][0]


class _Edit(NamedTuple):
    """A change of a status in a file: its line, the control byte before it, and whether no line has moved since."""

    source: TqFile
    record: Record
    before: int
    current: bool

    @property
    def after(self) -> int:
        return _QUEUED if self.record.kind in (APPENDED, GIVEN_BACK) else self.record.kind


def undo(sources: Iterable[TqFile], count: int) -> Iterator[Message]:
    """Take back the newest changes of a status in some files, the newest first; yield each message as it is then."""
    edits: list[_Edit] = []
    for source in sources:
        with suppress(FileNotFoundError), source.file:  # a stale save may have reverted the edit
            history = source.file.ledger.history()
            edits += _changes(source, history)[-count:]
    edits.sort(key=lambda edit: edit.record.token[2])  # of equal times, the later line remains later
    yield from map(_undo, edits[: -count - 1 : -1])


def _changes(source: TqFile, history: Iterable[Record]) -> list[_Edit]:
    """Return the changes of a status in a ledger, oldest first."""
    made: list[_Edit] = []
    epoch = 0
    for record in history:
        if record.kind == STATE:
            if record.position != epoch:
                made = [edit._replace(current=False) for edit in made]
            epoch = record.position
        elif record.kind == SET:
            was = record.detail.partition(b"/")[0]
            made = [
                edit._replace(record=edit.record._replace(digest=record.digest))
                if edit.record.digest == was and (edit.record.position == record.position or not edit.current)
                else edit
                for edit in made
            ]
        elif record.kind != ARCHIVED and (record.kind in MARKS | {APPENDED} or record.detail.startswith(WAS)):
            before = _COMMENT if record.kind == APPENDED else record.was  # not: a claim that ended
            made.append(_Edit(source, record, before, current=True))
    return made


def _undo(edit: _Edit) -> Message:
    source, record = edit.source, edit.record
    with source.file as session:
        found = [
            Place(position, raw, session.ledger.epoch)
            for position, raw in scan_chunks(session.file)
            if raw[0] == edit.after and digest(raw) == record.digest
        ]
    at = [place for place in found if place.position == record.position] if edit.current else found
    if not at:
        raise MessageMovedError(
            "cannot undo the last change of a status: the message was changed or removed since then; it was left as it"
            " is",
            path=source.path,
            position=max(record.position, 0),
        )
    place = min(at, key=lambda one: abs(one.position - record.position))
    message = Message(source, place.raw, place.position, place.epoch)
    message.edit(marking(source, STATUS_OF[edit.before]), "undo a change of a status")
    source.delivered.forget(place.raw)
    return message
