"""What to do after a foreign change: a plan, made of what the ledger knows and what is in the file. No I/O.

Each record of the ledger is given at most one message, and each message at most one record::

    in the ledger    in the file                     what is done
    a mark           a message with a mark           the record moves with it
    a mark           only a queued one               "reapply": marked again; "deliver": the mark is forgotten
    a claim          a queued one that names it      the record moves with it
    a claim          a queued one without a name     the owner is written again, or only the ledger has it
    an ended claim   a queued one that names it      the name is blanked
    anything         no such message                 the record is lost: it is remembered for a while

A mark has the first choice of the messages, a claim comes after it, and what is still lost looks for the message as it
was before a variable was set. Equal messages are interchangeable, so a record prefers the message at its own position.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final, NamedTuple

from textqueue.format.grammar import STATUS_OF
from textqueue.format.mutex import holder_of, is_claim, mutex_of
from textqueue.ledger.log import BESIDE, CLAIMS, IN_MUTEX, Record

__all__ = ["Action", "Known", "Plan", "Seen", "older_names", "plan"]

_QUEUED: Final = ord("-")
_Places = dict[int, "Seen"]


class Known(NamedTuple):
    """What the ledger says.

    Attributes:
        marks: that may still be in the file, oldest first.
        sets: variables that were set, oldest first; each names the message's digest before as its owner.
        claims: that have not ended.
        ended: digest and owner of claims that have ended since the last foreign change.
    """

    marks: Sequence[Record] = ()
    sets: Sequence[Record] = ()
    claims: Sequence[Record] = ()
    ended: Set[tuple[bytes, bytes]] = frozenset()


class Seen(NamedTuple):
    """A message in the file: where, and its bytes; of one that is not queued, the control byte alone."""

    position: int
    raw: bytes


class Action(NamedTuple):
    """What is done about one message.

    Attributes:
        place: the message as it was seen.
        writes: bytes and where, counted from the control byte; each is proven before it is made.
        record: what the ledger keeps, whether the writes could be made or not.
        kind: of the conflict that is reported if all writes were made; empty: none.
        told: what the conflict says.
    """

    place: Seen
    writes: Sequence[tuple[int, bytes]] = ()
    record: Record | None = None
    kind: str = ""
    told: str = ""


class Plan(NamedTuple):
    """The actions in their order, and the records whose messages are not in the file."""

    actions: list[Action]
    lost: list[Record]


def plan(known: Known, seen: Mapping[bytes, Iterable[Seen]], *, reapply: bool) -> Plan:
    """Decide what is done.

    Args:
        known: what the ledger says.
        seen: the messages in the file, by digest.
        reapply: whether a mark that was taken back is made again.
    """
    free = {name: {at.position: at for at in places if at.raw[0] == _QUEUED} for name, places in seen.items()}
    done = {name: {at.position: at for at in places if at.raw[0] != _QUEUED} for name, places in seen.items()}
    busy = {(record.digest, record.owner) for record in known.claims}
    marks, claims = _by_digest(known.marks), _by_digest(known.claims)
    actions: list[Action] = []
    lost: list[Record] = []
    for name in dict.fromkeys([*marks, *claims]):
        marked, waiting = done.get(name, {}), free.get(name, {})
        held = [record for record in claims.get(name, ()) if record.position not in marked]
        for record, place in _paired(marks.get(name, ()), marked):
            if place is not None:
                actions.append(Action(place, record=record._replace(position=place.position)))
            elif (taken := _taken(record, waiting)) is not None:
                actions += _taken_back(record, taken, busy, reapply=reapply)
            else:
                lost.append(record)
        for record, place in _paired(held, waiting):
            if place is None:
                lost.append(record)
            else:
                actions.append(_still_claimed(record, place))
    missing: list[Record] = []
    older = older_names(known.sets)
    for record in lost:
        found = _under_older_name(record, older, free, busy, reapply=reapply)
        if found:
            actions += found
        else:
            missing.append(record)
    for name, owner in sorted(known.ended - busy):
        for place in free.get(name, {}).values():
            if holder_of(place.raw) == owner and (blank := _blanked(name, place, busy)) is not None:
                actions.append(blank[0]._replace(kind="claim", told="blanked again: it had ended"))
    return Plan(actions, missing)


def older_names(sets: Sequence[Record]) -> dict[bytes, list[bytes]]:
    """By what digests a message was known before its variables were set, the latest first."""
    older: dict[bytes, list[bytes]] = {}
    for record in sets:
        names = [record.owner, *older.get(record.owner, ())]
        older[record.digest] = [name for name in dict.fromkeys(names) if name != record.digest]
    return older


def _by_digest(records: Iterable[Record]) -> dict[bytes, list[Record]]:
    found: dict[bytes, list[Record]] = defaultdict(list)
    for record in records:
        found[record.digest].append(record)
    return dict(found)


def _taken_back(record: Record, place: Seen, busy: Set[tuple[bytes, bytes]], *, reapply: bool) -> list[Action]:
    """A stale buffer took a mark back."""
    actions: list[Action] = []
    # It brought the claim back as well, whose owner is at work elsewhere.
    if (blanked := _blanked(record.digest, place, busy)) is not None:
        first, place = blanked
        actions.append(first)
    if not reapply:
        return [*actions, Action(place, kind="reverted", told="delivered again")]
    told = f"marked again as {STATUS_OF[record.kind].name}"
    kept = record._replace(position=place.position)
    return [*actions, Action(place, [(0, bytes([record.kind]))], kept, "reverted", told)]


def _blanked(name: bytes, place: Seen, busy: Set[tuple[bytes, bytes]]) -> tuple[Action, Seen] | None:
    """Blank a claim of ours that has ended; the second: the message after that."""
    room = mutex_of(place.raw)
    if room is None or not is_claim(room.holder) or (name, room.holder) in busy:
        return None
    blank = room.filled(b"")
    raw = place.raw[: room.position] + blank + place.raw[room.position + len(blank) :]
    return Action(place, [(room.position, blank)]), place._replace(raw=raw)


def _still_claimed(record: Record, place: Seen) -> Action:
    record = record._replace(position=place.position)
    if record.kind != IN_MUTEX or record.owner == holder_of(place.raw):
        return Action(place, record=record)
    # A stale buffer blanked it, and its owner is still at work.
    room = mutex_of(place.raw)
    if room is None or not room.fits(record.owner):
        return Action(place, record=record._replace(kind=BESIDE))
    return Action(place, [(room.position, room.filled(record.owner))], record, "claim", "claimed again for its owner")


def _under_older_name(
    record: Record,
    older: Mapping[bytes, Sequence[bytes]],
    free: Mapping[bytes, _Places],
    busy: Set[tuple[bytes, bytes]],
    *,
    reapply: bool,
) -> list[Action]:
    """A stale buffer takes a variable back as well, so what is missing may be there as it was before."""
    for name in older.get(record.digest, ()):
        waiting = free.get(name, {})
        same = record.position in waiting
        place = _taken(record, waiting)
        if place is None:
            continue
        # Only where it stood it is this one: elsewhere it may be an equal one, and this one was tidied away. There
        # a mark is not made again; a claim keeps others away, and its owner does not end it (``_check_held``).
        record = record._replace(digest=name)
        if record.kind in CLAIMS:
            return [_still_claimed(record, place)]
        return _taken_back(record, place, busy, reapply=same and reapply)
    return []


def _paired(records: Sequence[Record], places: _Places) -> list[tuple[Record, Seen | None]]:
    """Give each record a place, and take it out of places: one that names its owner, its own, or the first left."""
    found: dict[int, Seen] = {}

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


def _taken(record: Record, places: _Places) -> Seen | None:
    """Take the message at the record's position out of places, or the first that is left."""
    return places.pop(record.position, None) or _first(places)


def _first(places: _Places) -> Seen | None:
    return places.pop(next(iter(places))) if places else None
