"""After a foreign change: where everything is now, and what a stale buffer took back.

It reads the ledger and the file, lets ``textqueue.editing.plan`` decide, makes the writes and rewrites the ledger.

If the newest edit of ours is still there, nothing was taken back: that costs two reads, however long the file is.
Otherwise the whole file is read. No lease is held meanwhile, but for the writes.

A mark whose message is not in the file any more is forgotten after ten seconds, so a text that is deleted and later
written again is a new message. Not immediately, because an editor that saves in place empties the file first, and may
be looked at then.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Container, Sequence, Set
from typing import Final, Literal, NamedTuple

from sej.system.disk import File
from sej.system.locks import end_lease, leased
from textqueue.editing.place import Place
from textqueue.editing.plan import Action, Known, Seen, plan
from textqueue.editing.proof import entry_at
from textqueue.errors import MessageMovedError
from textqueue.format.grammar import BOM, STATUS_OF
from textqueue.format.mutex import holder_of, is_alive
from textqueue.format.parser import chunks, digest, value_of
from textqueue.format.windows import Token, scan, token_of
from textqueue.hot import essence, proven
from textqueue.ledger.log import ARCHIVED, CLAIMS, IN_MUTEX, MARKS, SET, Ledger, Record

__all__ = ["Conflict", "OnRevert", "find_again", "reconcile"]

OnRevert = Literal["reapply", "deliver"]
_QUEUED = ord("-")
_TURN: Final = 64
"""After so many writes it is seen whether another process waits for the file."""
_REMEMBER_NS: Final = 10_000_000_000
_REMEMBER_ARCHIVED_NS: Final = 8 * 3600 * 1_000_000_000
"""An editor may have had the file open since before the archive, for a working day."""


class Conflict(NamedTuple):
    """Something that a person should know.

    Attributes:
        path: the file.
        position: where the message stands.
        text: the message.
        kind: ``"reverted"``: a stale save took a mark of ours back; ``"claim"``: it took a claim back;
            ``"collision"``: the file was rewritten in the moment of an edit; ``"changed"``: a claimed message was
            changed or deleted while it was worked on.
        action: what was done about it.
    """

    path: str
    position: int
    text: str
    kind: str
    action: str


def reconcile(
    ledger: Ledger, file: File, take: Callable[[], bool], *, path: str, on_revert: OnRevert, whole: bool = False
) -> list[Conflict]:
    """Bring the ledger in line with a file that another program changed, and marks with the ledger.

    Args:
        ledger: fresh, under the lock.
        file: the queue file, open for editing, under the lock, without a lease.
        take: takes the lease, for the writes.
        path: of the queue file, for reports.
        on_revert: what to do about a mark of ours that was taken back.
        whole: look at all messages, whatever the newest edit says.

    Returns:
        What a person should know. If the file is being written at this moment, or another process waits for it, not all
        is brought in line: the next look does that.
    """
    before = token_of(file.status())
    grown = 0 if ledger.token is None else before[1] - ledger.token[1]
    if not whole and _only_moved(ledger, file, before, grown):
        return []
    edits = _remembered(ledger.edits())
    known = Known(edits, ledger.ended(), grown)
    seen = _where(file, _wanted(known))
    made = plan(known, seen, reapply=on_revert == "reapply")
    if any(action.writes for action in made.actions):
        take()
    if token_of(file.status()) != before:  # another program wrote there meanwhile: the plan may be wrong
        end_lease(file)
        return []
    conflicts, all_made = _apply(made.actions, file, path)
    token = token_of(file.status())
    end_lease(file)
    if all_made:
        records = {**_lost(edits, made.lost), **_variables(edits, seen), **made.kept}
        ledger.rewrite([record for _, record in sorted(records.items())], token=token, epoch=time.time_ns())
    return sorted(conflicts, key=lambda conflict: conflict.position)


def _only_moved(ledger: Ledger, file: File, token: Token, grown: int) -> bool:
    """Whether the newest edit and all claims are in the file, where they were or moved by as much as it grew.

    Then the buffer was newer than our edits, so nothing was taken back (see ``textqueue.editing.plan``), and no other
    message needs to be looked at. Otherwise the whole file does.
    """
    shown = ledger.shown
    if shown is None or shown.position < 0:
        return False
    found = []
    for record in (shown, *ledger.claims.values()):
        places = dict.fromkeys((record.position, record.position + grown))
        there = {at: entry_at(file, at) if at >= 0 and _begins(file, at) else b"" for at in places}
        same = [at for at, raw in there.items() if raw and digest(essence(raw)) == record.digest]
        if not same or not all(_shows(there[at], record) for at in same):
            return False
        found.append(record._replace(position=same[0]))
    if token_of(file.status()) != token:
        return False
    ledger.move(found[0] if shown.kind not in CLAIMS else None, found[1:], token)
    return True


def _begins(file: File, position: int) -> bool:
    if position == len(BOM) and file.read(len(BOM), 0) == BOM:
        return True
    return position == 0 or file.read(1, position - 1) == b"\n"


def _shows(raw: bytes, record: Record) -> bool:
    """Whether an edit is still in its message."""
    if record.kind in MARKS:
        return raw[0] in MARKS
    if record.kind in CLAIMS:
        return raw[0] == _QUEUED and (record.kind != IN_MUTEX or holder_of(raw) == record.owner)
    return True


def _wanted(known: Known) -> set[bytes]:
    """The digests of all messages that the ledger says something about, or did before a variable was set."""
    names = {record.digest for record in known.edits} | {name for name, _ in known.ended}
    return names | {record.owner for record in known.edits if record.kind == SET}


def _apply(actions: Sequence[Action], file: File, path: str) -> tuple[list[Conflict], bool]:
    """Make the writes; what could not be made, because another program writes there, the next look finds again.

    Returns:
        What a person should know; and whether all was made, and no other process waited for the file.
    """
    conflicts: list[Conflict] = []
    alone = leased(file)
    for number, (place, writes, kind, told) in enumerate(actions):
        if alone and not number % _TURN and not leased(file):
            return conflicts, False
        made = all(_write(file, place, relative, data) for relative, data in writes)
        if made and kind:
            text = value_of(place.raw).decode("utf-8", "replace")
            conflicts.append(Conflict(path, place.position, text, kind, told))
    return conflicts, True


def _variables(edits: Sequence[Record], there: Container[bytes]) -> dict[int, Record]:
    """What was set in messages that are in the file, by their essence alone; by number."""
    known: dict[int, Record] = {}
    older: set[bytes] = set()
    for number in range(len(edits) - 1, -1, -1):
        record = edits[number]
        if record.kind == SET and (record.digest in there or record.digest in older):
            older.add(record.owner)
            known[number] = record._replace(position=-1)
    return known


def _where(file: File, wanted: Set[bytes]) -> dict[bytes, list[Seen]]:
    """Where the messages of some digests stand."""
    seen: dict[bytes, list[Seen]] = defaultdict(list)
    for window in scan(file) if wanted else ():
        position = window.position
        for raw in chunks(window.data):
            if raw[0] in STATUS_OF:
                name = digest(essence(raw))
                if name in wanted:
                    # Only what may be edited is needed in full.
                    seen[name].append(Seen(position, raw if raw[0] == _QUEUED else raw[:1]))
            position += len(raw)
    return seen


def _remembered(edits: Sequence[Record]) -> list[Record]:
    """Leave out what has been missing in the file for so long that the same text is a new message."""
    now = time.time_ns()
    return [record for record in edits if record.kind == SET or record.position >= 0 or _is_due(record, now)]


def _is_due(record: Record, now: int) -> bool:
    limit = _REMEMBER_ARCHIVED_NS if record.owner.startswith(ARCHIVED) else _REMEMBER_NS
    return now + record.position < limit or (record.kind in CLAIMS and is_alive(record.owner))


def _lost(edits: Sequence[Record], lost: Sequence[int]) -> dict[int, Record]:
    """Missing messages, by number: an editor may be writing the file this very moment, and not be done."""
    now = time.time_ns()
    found = {number: edits[number] for number in lost}
    return {n: one if one.position < 0 else one._replace(position=n - now) for n, one in found.items()}


def _write(file: File, place: Seen, relative: int, data: bytes) -> bool:
    """Write into a message that still stands where it was seen; otherwise the next look finds it again."""
    start = max(place.position - 1, 0)
    there = file.read(len(place.raw) + 2, start)
    if place.position == len(BOM) and file.read(len(BOM), 0) == BOM:
        there = b"\n" + there[1:]
    if not proven(there, start, [(place.position, place.raw, 0)]):
        return False
    file.write_at(data, place.position + relative)
    return True


def _text(essence: bytes) -> bytes:
    return essence.partition(b"\n\\")[0]


def find_again(
    path: str, file: File, places: Sequence[Place], taken: Container[int], what: str
) -> list[tuple[int, bytes]]:
    """Search the whole file, once, for messages that are not where they were read.

    Args:
        path: for the error.
        file: the file as it is now.
        places: the messages as they were read.
        taken: positions of messages that were found where they were read.
        what: for the error.

    Returns:
        Position and bytes of each, none twice.

    Raises:
        MessageMovedError: one is not there as it was read.
    """
    wanted: dict[bytes, list[Seen]] = {essence(place.raw): [] for place in places}
    texts = {_text(name): -1 for name in wanted}
    for window in scan(file):
        position = window.position
        for raw in chunks(window.data):
            if raw[0] in STATUS_OF and (text := _text(name := essence(raw))) in texts:
                texts[text] = position
                seen = wanted.get(name)
                if seen is not None and position not in taken:
                    seen.append(Seen(position, raw))
            position += len(raw)
    found = []
    for place in places:
        seen = wanted[essence(place.raw)]
        if not seen:
            similar = texts[_text(essence(place.raw))]
            hint = "" if similar < 0 else f" (the same text with other variables stands at position {similar})"
            raise MessageMovedError(
                f"cannot {what}: another program deleted or changed it{hint}; nothing was written; reread the queue",
                path=path,
                position=place.position,
            )
        # Equal ones are interchangeable: one that its owner holds, that has the status it was read with, the nearest.
        holder = holder_of(place.raw)
        best = min(
            seen,
            key=lambda one: (
                bool(holder) and holder_of(one.raw) != holder,
                one.raw[0] != place.raw[0],
                abs(one.position - place.position),
            ),
        )
        seen.remove(best)
        found.append((best.position, best.raw))
    return found
