"""What to do after another program changed a queue file. A plan, made of the ledger and the file. No I/O.

**Three things look alike.** A message that the ledger calls done, and the file calls queued, is one of these:

- *A stale save.* A person opened the file, a worker marked the message, the person saved. The buffer was older than the
  mark, so the save took the mark back, and every edit of ours after that moment with it.
- *A person's edit.* The person saw the mark and changed it: `!` or `=` to `-`, to have the message worked on again.
- *A new message* with the text of an old one.

**The log tells a stale save from an edit.** A buffer has the state of one moment. If it is saved, all edits before that
moment are in the file and all later ones are gone: *what a stale save takes back is a suffix of the log*. So if a later
edit of ours is still in the file, the buffer was newer than the mark, and the person meant the change. The person wins.

==================  ========================  =========================================================
in the ledger       in the file               what is done
==================  ========================  =========================================================
a mark              marked, in any way        the record moves with the message; the person's mark wins
a mark              queued; a later edit of   a person reopened it: it is delivered, the mark forgotten
                    ours is still there
a mark              queued; no later edit of  a stale save: "reapply" marks it again, "deliver" forgets
                    ours is still there       the mark
a mark              queued, and appended by   a new message: it is delivered
                    our programs since then
an archived mark    queued, with all others   a stale save, as above
                    of that archive
an archived mark    queued, not all of them   a new message: it is delivered
a claim             queued, names its owner   the record moves with it
a claim             queued, without a name    the owner is written again, or only the ledger has it
a claim             marked                    a person ended the claim: the record is dropped
an ended claim      queued, names its owner   the name is blanked
anything            no such message           the record is lost: it is remembered for a while
==================  ========================  =========================================================

Equal messages are interchangeable: each message in the file is given to at most one record, and each record to at most
one message. A record has the first choice of the message that names its owner. Then of the one at its own position, or
at that plus as many bytes as the file grew, whichever fits more of the equal messages. What is left goes to appends
before marks, and to marks before claims. A record that finds nothing looks for the message as it was before a variable
was set.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Final, NamedTuple

from textqueue.format.grammar import STATUS_OF
from textqueue.format.mutex import holder_of, is_claim, mutex_of
from textqueue.ledger.log import APPENDED, ARCHIVED, BESIDE, CLAIMS, EMPTY, IN_MUTEX, MARKS, SET, WAITING, Record

__all__ = ["Action", "Known", "Plan", "Seen", "older_names", "plan"]

_QUEUED: Final = ord("-")
_Places = dict[int, "Seen"]


class Known(NamedTuple):
    """What the ledger says.

    Attributes:
        edits: oldest first: marks that may still be in the file; messages that our programs queued; variables that
            were set, each with the message's digest before as its owner; claims that have not ended.
        ended: digest and owner of claims that have ended since the last foreign change.
        grown: by how many bytes the file is longer than after our last edit.
    """

    edits: Sequence[Record] = ()
    ended: Set[tuple[bytes, bytes]] = frozenset()
    grown: int = 0


class Seen(NamedTuple):
    """A message in the file: where, and its bytes; of one that is not queued, the control byte alone."""

    position: int
    raw: bytes


class Action(NamedTuple):
    """What is done about one message.

    Attributes:
        place: the message as it was seen.
        writes: bytes and where, counted from the control byte; each is proven before it is made.
        kind: of the conflict that is reported if all writes were made; empty: none.
        told: what the conflict says.
    """

    place: Seen
    writes: Sequence[tuple[int, bytes]] = ()
    kind: str = ""
    told: str = ""


class Plan(NamedTuple):
    """What is done, and what the ledger says from then on.

    Attributes:
        actions: in the order of the edits, so that what is done if the program dies in between is again the older part
            of what a stale save took back.
        kept: what is still known, by its number among the edits, whether its writes can be made or not.
        lost: the numbers of the marks and claims whose messages are not in the file.
    """

    actions: list[Action]
    kept: dict[int, Record]
    lost: list[int]


def plan(known: Known, seen: Mapping[bytes, Collection[Seen]], *, reapply: bool) -> Plan:
    """Decide what is done.

    Args:
        known: what the ledger says.
        seen: the messages in the file, by digest.
        reapply: whether a mark that a stale save took back is made again.
    """
    return _Planning(known, seen).plan(reapply=reapply)


def older_names(edits: Iterable[Record]) -> dict[bytes, list[bytes]]:
    """By what digests a message was known before its variables were set, the latest first."""
    older: dict[bytes, list[bytes]] = {}
    for record in edits:
        if record.kind == SET and record.owner != EMPTY:
            names = [record.owner, *older.get(record.owner, ())]
            older[record.digest] = [name for name in dict.fromkeys(names) if name != record.digest]
    return older


_Numbered = tuple[int, Record]


class _Planning:
    """One plan in the making.

    Attributes:
        found: by the number of an edit: its message, and whether that is marked.
        in_file: the number of the newest edit of ours that is still in the file.
        actions: with the numbers of their edits.
    """

    def __init__(self, known: Known, seen: Mapping[bytes, Collection[Seen]]) -> None:
        self._edits = known.edits
        self._ended = known.ended
        self._grown = known.grown
        self._seen = seen
        self._free = {name: {at.position: at for at in places if at.raw[0] == _QUEUED} for name, places in seen.items()}
        self._done = {name: {at.position: at for at in places if at.raw[0] != _QUEUED} for name, places in seen.items()}
        self._busy = {(record.digest, record.owner) for record in known.edits if record.kind in CLAIMS}
        self._shifts = [0, known.grown]  # by which equal messages have moved, the likelier first
        self._in_file = -1
        self._back: dict[int, tuple[Record, Seen]] = {}  # marks whose message is queued
        self._actions: list[tuple[int, Action]] = []
        self._made = Plan([], {}, [])

    def plan(self, *, reapply: bool) -> Plan:
        groups: dict[bytes, list[_Numbered]] = defaultdict(list)
        for number, record in enumerate(self._edits):
            if record.kind != SET:
                groups[record.digest].append((number, record))
        lost: list[_Numbered] = []
        for name, group in groups.items():
            lost += self._group(group, self._free.get(name, {}), self._done.get(name, {}))
        self._variables()
        older = older_names(self._edits)
        for number, record in sorted(lost):
            if record.kind in WAITING:
                continue
            if not self._under_older_name(number, record, older):
                self._made.lost.append(number)
        incomplete = {self._edits[number].owner for number in self._made.lost}
        for number, (record, place) in sorted(self._back.items()):
            if record.owner.startswith(ARCHIVED) and record.owner in incomplete:
                continue
            self._taken_back(number, record, place, reapply=reapply)
        self._blank_ended()
        self._made.actions.extend(action for _, action in sorted(self._actions, key=lambda one: one[0]))
        return self._made

    def _group(self, group: Sequence[_Numbered], waiting: _Places, marked: _Places) -> list[_Numbered]:
        """Give the records of equal messages their places; returns those that find none."""
        self._shifts = [0, self._grown]
        if len(group) > 1:
            here = {record.position for _, record in group if record.position >= 0}
            fits = [sum(at + shift in marked or at + shift in waiting for at in here) for shift in self._shifts]
            self._shifts.sort(key=lambda shift: -fits[0 if shift == 0 else 1])
        marks = [one for one in group if one[1].kind in MARKS]
        claims = [one for one in group if one[1].kind in CLAIMS and one[1].position not in marked]
        waits = [one for one in group if one[1].kind in WAITING]
        places = self._paired([marks], marked)
        for number, record in marks:
            if number in places:
                self._made.kept[number] = record._replace(position=places[number].position, owner=EMPTY)
                self._in_file = max(self._in_file, number)
        left = [one for one in marks if one[0] not in places]
        named = {(at.position, holder_of(at.raw)) for at in waiting.values()} if claims else set()
        places |= self._paired([waits, left, claims], waiting)
        for number, record in waits:
            if number in places:
                moved = record._replace(position=places[number].position)
                self._made.kept[number] = moved
                if record.kind == APPENDED and self._is_own(record, moved.position):  # given back: it was queued before
                    self._in_file = max(self._in_file, number)
        for number, record in left:
            if number in places:
                self._back[number] = record, places[number]
        for number, record in claims:
            if number in places:
                if record.kind == IN_MUTEX and (places[number].position, record.owner) in named:
                    self._in_file = max(self._in_file, number)
                self._still_claimed(number, record, places[number])
        return [one for one in (*waits, *left, *claims) if one[0] not in places]

    def _is_own(self, record: Record, position: int) -> bool:
        return record.position >= 0 and position in (record.position, record.position + self._grown)

    def _paired(self, kinds: Sequence[Sequence[_Numbered]], places: _Places) -> dict[int, Seen]:
        """Give each record a place, by its number, and take it out of places."""
        found: dict[int, Seen] = {}
        every = [one for kind in kinds for one in kind]
        for number, record in every:
            if record.kind == IN_MUTEX:
                own = [at for at, one in places.items() if holder_of(one.raw) == record.owner]
                if own:
                    found[number] = places.pop(record.position if record.position in own else own[0])
        for shift in self._shifts:
            for number, record in every:
                if number not in found and record.position >= 0 and record.position + shift in places:
                    found[number] = places.pop(record.position + shift)
        for number, _ in every:
            if number not in found and places:
                found[number] = places.pop(next(iter(places)))
        return found

    def _variables(self) -> None:
        """A variable that was set and is still there shows how new the buffer was, if no older text is the same."""
        older = {record.owner for record in self._edits if record.kind == SET}
        for number, record in enumerate(self._edits):
            if record.kind == SET and record.digest in self._seen and record.digest not in older:
                self._in_file = max(self._in_file, number)

    def _under_older_name(self, number: int, record: Record, older: Mapping[bytes, Sequence[bytes]]) -> bool:
        """A stale save takes a variable back as well, so what is missing may be there as it was before."""
        for name in older.get(record.digest, ()):
            place = self._paired([[(number, record)]], self._free.get(name, {})).get(number)
            if place is None:
                continue
            record = record._replace(digest=name)
            if record.kind in CLAIMS:
                self._still_claimed(number, record, place)
            else:
                self._back[number] = record, place
            return True
        return False

    def _taken_back(self, number: int, record: Record, place: Seen, *, reapply: bool) -> None:
        """The message of a mark is queued."""
        if number < self._in_file:  # a person reopened it
            return
        # The stale save brought the claim back as well, whose owner is at work elsewhere.
        if (blanked := self._blanked(record.digest, place)) is not None:
            first, place = blanked
            self._actions.append((number, first))
        if not reapply:
            self._actions.append((number, Action(place, kind="reverted", told="delivered again")))
            return
        told = f"marked again as {STATUS_OF[record.kind].name}"
        self._actions.append((number, Action(place, [(0, bytes([record.kind]))], "reverted", told)))
        self._made.kept[number] = record._replace(position=place.position, owner=EMPTY)

    def _still_claimed(self, number: int, record: Record, place: Seen) -> None:
        self._made.kept[number] = record = record._replace(position=place.position)
        if record.kind != IN_MUTEX or record.owner == holder_of(place.raw):
            return
        # A stale save blanked it, and its owner is still at work.
        room = mutex_of(place.raw)
        if room is None or not room.fits(record.owner):
            self._made.kept[number] = record._replace(kind=BESIDE)
            return
        writes = [(room.position, room.filled(record.owner))]
        self._actions.append((number, Action(place, writes, "claim", "claimed again for its owner")))

    def _blank_ended(self) -> None:
        back = {place.position for _, place in self._back.values()}
        for name, owner in sorted(self._ended - self._busy):
            for place in self._seen.get(name, ()):
                if place.raw[0] != _QUEUED or place.position in back:
                    continue
                if holder_of(place.raw) == owner and (blank := self._blanked(name, place)) is not None:
                    told = "blanked again: it had ended"
                    self._actions.append((len(self._edits), blank[0]._replace(kind="claim", told=told)))

    def _blanked(self, name: bytes, place: Seen) -> tuple[Action, Seen] | None:
        """Blank a claim of ours that has ended; the second: the message after that."""
        room = mutex_of(place.raw)
        if room is None or not is_claim(room.holder) or (name, room.holder) in self._busy:
            return None
        blank = room.filled(b"")
        raw = place.raw[: room.position] + blank + place.raw[room.position + len(blank) :]
        return Action(place, [(room.position, blank)]), place._replace(raw=raw)
