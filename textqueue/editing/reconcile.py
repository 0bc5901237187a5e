"""After a foreign change: where everything stands now, and what a stale buffer took back.

A person opens the file, a worker marks a message, the person saves: the mark is gone, though nobody wished that. It
cannot be told from a wish to have the message handled again, so ``on_revert`` decides, and both are reported.

Equal messages are interchangeable: what counts is how many of them are done and how many are claimed. A mark whose
message is not in the file any more is forgotten after ten seconds, so a text that is deleted and later written anew is
a new message. Not at once, because an editor that saves in place empties the file first, and may be looked at then.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Container, Sequence, Set
from typing import Final, Literal, NamedTuple

from sej.system.disk import File
from textqueue.editing.place import Place
from textqueue.errors import MessageMovedError
from textqueue.format.grammar import BOM, STATUS_OF
from textqueue.format.mutex import holder_of, is_alive, is_claim, mutex_of
from textqueue.format.parser import chunks, digest, essence, value_of
from textqueue.format.windows import scan, token_of
from textqueue.hot import proven
from textqueue.ledger.log import BESIDE, CLAIMS, IN_MUTEX, Ledger, Record

__all__ = ["Conflict", "OnRevert", "find_again", "reconcile"]

OnRevert = Literal["reapply", "deliver"]
_QUEUED = ord("-")
_REMEMBER_NS: Final = 10_000_000_000


class Conflict(NamedTuple):
    """Something that a person should know.

    Attributes:
        path: the file.
        position: where the message stands.
        text: the message.
        kind: ``"reverted"``: a mark of ours was taken back by a rewrite; ``"claim"``: a claim was; ``"collision"``: the
            file was rewritten in the moment of an edit; ``"changed"``: a claimed message was changed or deleted while
            it was worked on.
        action: what was done about it.
    """

    path: str
    position: int
    text: str
    kind: str
    action: str


class _Seen(NamedTuple):
    position: int
    raw: bytes


def reconcile(ledger: Ledger, file: File, *, path: str, on_revert: OnRevert) -> list[Conflict]:
    """Bring the ledger in line with a file that somebody else changed, and marks with the ledger.

    Args:
        ledger: fresh, under the lock.
        file: the queue file, open for editing, under the lock.
        path: of the queue file, for reports.
        on_revert: what to do about a mark of ours that was taken back.

    Returns:
        What a person should know. When the file is being written this very moment, nothing is brought in line: the
        next look does that.
    """
    conflicts: list[Conflict] = []
    marks: dict[bytes, list[Record]] = defaultdict(list)
    claims: dict[bytes, list[Record]] = defaultdict(list)
    marked, sets = ledger.edits()
    for record in marked:
        marks[record.digest].append(record)
    for record in ledger.claims.values():
        claims[record.digest].append(record)
    past = _past(sets)
    ended = ledger.ended()
    busy = {(record.digest, record.owner) for record in ledger.claims.values()}
    before = token_of(file.status())
    wanted = {record.owner for record in sets} | {name for name, _ in ended}
    seen = _where(file, wanted | marks.keys() | claims.keys() | past.keys())
    if token_of(file.status()) != before:  # somebody wrote there meanwhile: nothing of this is certain
        return []
    free = {name: {at.position: at for at in places if at.raw[0] == _QUEUED} for name, places in seen.items()}
    done = {name: {at.position: at for at in places if at.raw[0] != _QUEUED} for name, places in seen.items()}
    kept: list[Record] = []
    lost: list[Record] = []

    def freed(name: bytes, place: _Seen) -> _Seen:
        """The message without the claim that a stale buffer brought back with it; its owner is at work elsewhere."""
        room = mutex_of(place.raw)
        if room is None or not is_claim(room.holder) or (name, room.holder) in busy:
            return place
        blank = room.filled(b"")
        if not _write(file, place, room.position, blank):
            return place
        return place._replace(raw=place.raw[: room.position] + blank + place.raw[room.position + len(blank) :])

    def taken_back(record: Record, place: _Seen, *, again: bool) -> None:
        place = freed(record.digest, place)
        text = value_of(place.raw).decode("utf-8", "replace")
        if not again:
            conflicts.append(Conflict(path, place.position, text, "reverted", "delivered again"))
            return
        if _write(file, place, 0, bytes([record.kind])):
            action = f"marked again as {STATUS_OF[record.kind].name}"
            conflicts.append(Conflict(path, place.position, text, "reverted", action))
        kept.append(record._replace(position=place.position))

    def still_claimed(record: Record, place: _Seen) -> None:
        record = record._replace(position=place.position)
        if record.kind == IN_MUTEX and record.owner != holder_of(place.raw):
            # A stale buffer blanked it, and its owner is still at work.
            room = mutex_of(place.raw)
            if room is None or not room.fits(record.owner):
                record = record._replace(kind=BESIDE)
            elif _write(file, place, room.position, room.filled(record.owner)):
                text = value_of(place.raw).decode("utf-8", "replace")
                conflicts.append(Conflict(path, place.position, text, "claim", "claimed again for its owner"))
        kept.append(record)

    # What stands where it stood is itself; what moved goes where an equal one is left, in order.
    for name in marks.keys() | claims.keys():
        held = [record for record in claims.get(name, []) if record.position not in done.get(name, {})]
        waiting = free.get(name, {})
        for record, place in _paired(marks.get(name, []), done.get(name, {})):
            if place is not None:
                kept.append(record._replace(position=place.position))
                continue
            place = waiting.pop(record.position, None) or _first(waiting)
            if place is None:
                lost.append(record)
            else:
                taken_back(record, place, again=on_revert == "reapply")
        for record, place in _paired(held, waiting):
            if place is None:
                lost.append(record)
            else:
                still_claimed(record, place)
    # A stale buffer takes a variable back as well, so what is missing may stand there as it was before.
    for record in list(lost):
        for name in past.get(record.digest, ()):
            waiting = free.get(name, {})
            at = waiting.pop(record.position, None)
            same = at is not None
            place = at or _first(waiting)
            if place is None:
                continue
            # Only where it stood it is this one: elsewhere it may be an equal one, and this one was tidied away. There
            # a mark is not made again; a claim keeps others away, and its owner does not end it (``_check_held``).
            lost.remove(record)
            record = record._replace(digest=name)
            if record.kind in CLAIMS:
                still_claimed(record, place)
            else:
                taken_back(record, place, again=same and on_revert == "reapply")
            break
    for name, owner in sorted(ended - busy):
        for place in free.get(name, {}).values():
            if holder_of(place.raw) == owner and freed(name, place) is not place:
                text = value_of(place.raw).decode("utf-8", "replace")
                conflicts.append(Conflict(path, place.position, text, "claim", "blanked again: it had ended"))
    ledger.rewrite(
        [*_remembered(lost), *_known(sets, seen), *kept], token=token_of(file.status()), epoch=time.time_ns()
    )
    return sorted(conflicts, key=lambda conflict: conflict.position)


def _past(sets: Sequence[Record]) -> dict[bytes, list[bytes]]:
    """By what essences a message was known before its variables were set, the latest first."""
    past: dict[bytes, list[bytes]] = {}
    for record in sets:
        older = [record.owner, *past.get(record.owner, ())]
        past[record.digest] = [name for name in dict.fromkeys(older) if name != record.digest]
    return past


def _known(sets: Sequence[Record], there: Container[bytes]) -> list[Record]:
    """What was set in messages that are in the file, by their essence alone."""
    known: list[Record] = []
    older: set[bytes] = set()
    for record in reversed(sets):
        if record.digest in there or record.digest in older:
            older.add(record.owner)
            known.append(record._replace(position=-1))
    return known[::-1]


def _where(file: File, wanted: Set[bytes]) -> dict[bytes, list[_Seen]]:
    """Where the messages of some digests stand."""
    seen: dict[bytes, list[_Seen]] = defaultdict(list)
    for window in scan(file) if wanted else ():
        position = window.position
        for raw in chunks(window.data):
            if raw[0] in STATUS_OF:
                name = digest(essence(raw))
                if name in wanted:
                    # Only what may be edited is needed in full.
                    seen[name].append(_Seen(position, raw if raw[0] == _QUEUED else raw[:1]))
            position += len(raw)
    return seen


def _remembered(lost: Sequence[Record]) -> list[Record]:
    """What is not in the file, for a while: an editor may be writing it this very moment, and not be done."""
    now = time.time_ns()
    kept = []
    for number, record in enumerate(lost):
        since = record.position if record.position < 0 else -now + number
        if now + since < _REMEMBER_NS or (record.kind in CLAIMS and is_alive(record.owner)):
            kept.append(record._replace(position=since))
    return kept


def _paired(records: Sequence[Record], places: dict[int, _Seen]) -> list[tuple[Record, _Seen | None]]:
    """Give each record a place, and take it out of places: one that names its owner, its own, or the first left."""
    found: dict[int, _Seen] = {}

    def give(number: int, record: Record) -> None:
        own = [at for at, one in places.items() if holder_of(one.raw) == record.owner]
        if own:
            found[number] = places.pop(record.position if record.position in own else own[0])

    for number, record in enumerate(records):
        if record.kind == IN_MUTEX:
            give(number, record)
    for number, record in enumerate(records):
        if number not in found and record.position in places:
            found[number] = places.pop(record.position)
    return [(record, found.get(number) or _first(places)) for number, record in enumerate(records)]


def _first(places: dict[int, _Seen]) -> _Seen | None:
    return places.pop(next(iter(places))) if places else None


def _write(file: File, place: _Seen, relative: int, data: bytes) -> bool:
    """Write into a message that still stands where it was seen; otherwise the next look finds it again."""
    start = max(place.position - 1, 0)
    there = file.read(len(place.raw) + 2, start)
    if place.position == len(BOM) and file.read(len(BOM), 0) == BOM:
        there = b"\n" + there[1:]
    if not proven(there, start, [(place.position, place.raw, 0)]):
        return False
    file.write_at(data, place.position + relative)
    return True


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
    wanted: dict[bytes, list[_Seen]] = {essence(place.raw): [] for place in places}
    texts = {value_of(place.raw): -1 for place in places}
    for window in scan(file):
        position = window.position
        for raw in chunks(window.data):
            if raw[0] in STATUS_OF and (text := value_of(raw)) in texts:
                texts[text] = position
                seen = wanted.get(essence(raw))
                if seen is not None and position not in taken:
                    seen.append(_Seen(position, raw))
            position += len(raw)
    found = []
    for place in places:
        seen = wanted[essence(place.raw)]
        if not seen:
            similar = texts[value_of(place.raw)]
            hint = "" if similar < 0 else f" (the same text with other variables stands at position {similar})"
            raise MessageMovedError(
                f"cannot {what}: it is not in the file any more as it was read, somebody deleted or changed it{hint};"
                " nothing was written; read the queue anew",
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
