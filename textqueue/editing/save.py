"""Saving a person's edit of a queue file: merged with what programs wrote meanwhile, and with a ledger that knows it.

The steps::

    1  merge the person's text with the file as it is now (``textqueue.editing.merge``)
    2  write the statuses that the person changed, as marks in place, so that the ledger has them
    3  if there is anything else: write the merged text into a temporary file, and rename it
    4  write the ledger again, with the new positions, and without what the person deleted or changed

**Why marks.** After an ordinary save, a message that was marked and is queued again looks like the save of an old
buffer. Here the text that the person began with is known, so a changed status is meant.

**Crash points.** The file has each mark of step 2 completely or not at all. A crash before the rename leaves the marks
and not the other changes; the temporary file is replaced by the next save. After a crash between steps 3 and 4, the
next operation finds a foreign change, as after a save by an editor.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Final

from sej.system.locks import end_lease
from textqueue.editing.merge import Merged, entries, merge, new_positions
from textqueue.editing.message import marking
from textqueue.editing.place import Place
from textqueue.editing.queue_file import Session
from textqueue.editing.replace import copy_owner, swap
from textqueue.editing.source import Source
from textqueue.errors import FileInUseError, MessageMovedError
from textqueue.format.grammar import CONTROL_OF, STATUS_OF, MessageStatus
from textqueue.format.kinds import CLAIMS
from textqueue.format.parser import digest, essence
from textqueue.format.windows import Token, token_of
from textqueue.ledger.records import Record
from textqueue.ledger.sidecar import sidecar_path

_MAX_ATTEMPTS: Final = 20
_QUEUED: Final = CONTROL_OF[MessageStatus.queued][0]


def save(source: Source, old: bytes, new: bytes) -> list[bytes]:
    """Save a person's version of a queue file.

    Args:
        source: the file.
        old: the text that the person began with.
        new: the person's version.

    Returns:
        The entries that others changed, and that the person's version replaced.

    Raises:
        FileInUseError: other programs changed the file in every attempt.
    """
    overridden: dict[bytes, None] = {}  # before a mark; after it, the entry of the others looks unchanged
    for _ in range(_MAX_ATTEMPTS):
        with source.file.session() as session:
            source.file.bring_in_line(session.file)
            before = token_of(session.file.status())
            end_lease(session.file)
            text = session.file.read(before[1], 0)
            merged = merge(old, new, text)
            marks = _marks(text, merged.text)
            if merged.text == text or (not marks and _replace(source, session, text, merged, before)):
                return list(overridden | dict.fromkeys(merged.overridden))
            overridden |= dict.fromkeys(merged.overridden if marks else ())
            epoch = source.file.ledger.epoch
        for position, raw, control in marks:
            place = Place(position, raw, epoch)
            try:
                source.edit(place, marking(source, raw, position, STATUS_OF[control]), "change the status of a message")
            except MessageMovedError:
                break  # another program was faster: merge again
    raise FileInUseError(
        f"other programs changed this file in each of {_MAX_ATTEMPTS} attempts to save it; save again", path=source.path
    )


def _marks(text: bytes, merged: bytes) -> list[tuple[int, bytes, int]]:
    """Return the entries whose status alone differs, as (position, bytes, new control byte).

    Equal entries are left to the replacement. If the person removed one of them, nothing tells which one, and a mark
    could queue a message for a moment that is done.
    """
    there = _statuses(merged)
    counts = {name: len(each) for name, each in _statuses(text).items()}
    found: list[tuple[int, bytes, int]] = []
    position = 0
    for raw in entries(text):
        if raw[0] in STATUS_OF and counts[name := essence(raw)] == len(there.get(name, ())) == 1:
            (control,) = there[name]
            if control != raw[0]:
                found.append((position, raw, control))
        position += len(raw)
    return found


def _statuses(text: bytes) -> dict[bytes, list[int]]:
    """Return the control bytes of the entries, by essence."""
    found: dict[bytes, list[int]] = {}
    for raw in entries(text):
        if raw[0] in STATUS_OF:
            found.setdefault(essence(raw), []).append(raw[0])
    return found


def _replace(source: Source, session: Session, text: bytes, merged: Merged, before: Token) -> bool:
    disk = source.file.disk
    temporary = sidecar_path(source.file.real_path, ".save")
    disk.unlink(temporary)
    file = disk.open(temporary, "temp")
    try:
        copy_owner(session.file, file)
        file.write(merged.text)
        file.sync()
        after = token_of(file.status())
    finally:
        file.close()
    if not swap(source, session.file, temporary, before):
        return False
    ledger = source.file.ledger
    if ledger.token == before:  # what the person deleted or changed is not a lost edit of a program
        places = new_positions(text, merged.text)
        edits = ledger.edits()
        kept = [record for record in edits if record.position < 0 or record.position in places]
        moved = [record._replace(position=places.get(record.position, record.position)) for record in kept]
        claims = [one for one in edits if one.kind in CLAIMS and one.position >= 0 and one.position not in places]
        taken = {record.position for record in moved if record.kind in CLAIMS}
        moved += _moved_claims(claims, taken, merged.text)
        ledger.rewrite(moved, token=after, epoch=time.time_ns())
    return True


def _moved_claims(claims: Sequence[Record], taken: Collection[int], text: bytes) -> list[Record]:
    """Give each claim whose message was removed an equal message: nothing tells which of them the person removed.

    Args:
        claims: the claims.
        taken: the positions of messages that have a claim.
        text: the new text.
    """
    free: dict[bytes, list[int]] = {record.digest: [] for record in claims}
    position = 0
    for raw in entries(text) if claims else ():
        if raw[0] == _QUEUED and position not in taken and (name := digest(essence(raw))) in free:
            free[name].append(position)
        position += len(raw)
    return [record._replace(position=free[record.digest].pop(0)) for record in claims if free[record.digest]]
