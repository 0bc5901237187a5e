"""The plan after a foreign change of a queue file, computed from the ledger and the file. No I/O.

**Three cases look alike.** A message that is done in the ledger, and queued in the file, is one of these:

- *A stale save.* A user opened the file, a worker marked the message, and the user saved. The editor's buffer was older
  than the mark. So the save reverted the mark, and with it every later edit by this library.
- *A user's edit.* The user saw the mark and changed ``!`` or ``=`` to ``-``, so that the message is processed again.
- *A new message* with the text of an old one.

**The ledger tells a stale save from an edit.** A buffer has the state of one moment. A save of it keeps all edits
before that moment and removes all later ones. *So a stale save reverts a suffix of the ledger.* If a later edit by this
library is still in the file, the buffer was newer than the mark. Then the user made the change on purpose, and it has
precedence. An edit during which the other program may have saved shows nothing: perhaps it was written after the save.
Nor does an edit that repeats an earlier one: a claim by a process that gave the message back before, or the mark of a
message that was reopened. An older buffer may have the earlier one.

**Programs read and save in several steps.** If a worker makes edits between two steps, the buffer, or the file, has a
newer edit without an older one. A lease prevents that. Without a lease, another program had the file open during the
edit, perhaps between two steps. Such an edit shows how new the buffer was only if ``STEPS_NS`` have passed between the
older edit and it, so that both are not in one read, and between it and the save, so that it is not in that save.

==================  ===========================  ==========================================================
in the ledger       in the file                  what is done
==================  ===========================  ==========================================================
a mark              any mark                     the record follows the message; a user's mark is kept, and does
                                                 not show that the buffer was newer
a mark              queued; a later edit by      a user reopened it: it is delivered, and the mark is
                    this library is still there  forgotten
a mark              queued; no later edit by     a stale save: "reapply" marks it again, "deliver" forgets
                    this library is there        the mark
a mark              queued, and this library     a new message: it is delivered
                    appended it since then
an archived mark    queued; most others of that  a stale save, as above
                    archive run are back, or one
                    of it or of an earlier run
                    is back with a mark
an archived mark    queued; otherwise            a new message: it is delivered
a claim             queued, with the owner       the record follows the message
a claim             queued, without the owner    the owner is written again, or kept in the ledger only
a claim             any mark                     a user ended the claim: the record is dropped
an ended claim      queued, with the owner       the owner is blanked
a queued message    no such message; no later    a stale save, or a user deleted it: reported, and
                    edit by this library is      appended again if there is a copy
                    there
any other record    no such message              the record is lost; the ledger keeps it for a while
==================  ===========================  ==========================================================

**Equal messages** are interchangeable. Each message in the file is assigned to at most one record, and each record to
at most one message, in this order:

1. A claim gets the message with its owner.
2. A record gets the message at its position, or at its position plus the growth of the file. The shift that fits more
   of the equal messages comes first.
3. The rest is assigned to appends, then to marks, then to claims.

A record shows how new the buffer was only if it has its own message and not an equal one. If the shift does not fit all
equal messages of the ledger, that is unknown: then the oldest marks get the marked messages, and appends show nothing.
An append that followed equal messages shows something only if as many are before it now.

A record without a message then looks for the message as it was before a variable was set.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Final, NamedTuple

from textqueue.format.grammar import STATUS_OF
from textqueue.format.mutex import holder_of, is_claim, mutex_of
from textqueue.format.windows import is_known, is_shared, unknown
from textqueue.ledger.records import (
    APPENDED,
    CLAIMS,
    EMPTY,
    IN_LEDGER,
    IN_MUTEX,
    LIKE,
    MARKS,
    SET,
    WAITING,
    Record,
    is_archived,
    run_of,
)

EQUAL_BYTES: Final = 1 << 10
"""So far before an append equal messages are counted (``textqueue.ledger.records.LIKE``)."""
STEPS_NS: Final = 2_000_000_000
"""A program takes less time than this from the first to the last step of reading or saving a file."""
_QUEUED: Final = ord("-")
_Places = dict[int, "Seen"]


class Known(NamedTuple):
    """The contents of the ledger.

    Attributes:
        edits: oldest first: marks that may still be in the file; messages that this library queued; variables that
            were set, each with the message's earlier digest as owner; and claims that have not ended.
        ended: digest and process of the claims that have ended since the last foreign change.
        grown: the number of bytes by which the file has grown since the last edit in the ledger.
        saved_ns: when the file was changed.
    """

    edits: Sequence[Record] = ()
    ended: Set[tuple[bytes, bytes]] = frozenset()
    grown: int = 0
    saved_ns: int = 0


class Seen(NamedTuple):
    """A message in the file: its position and its bytes. If it is not queued, the control byte alone."""

    position: int
    raw: bytes


class Action(NamedTuple):
    """The action for one message.

    Attributes:
        place: the message as it was seen.
        writes: bytes, each with a position relative to the control byte; each write is proven before it is made.
        kind: the kind of the conflict to report if all writes are made; empty: none.
        report: the action of that conflict.
    """

    place: Seen
    writes: Sequence[tuple[int, bytes]] = ()
    kind: str = ""
    report: str = ""


class Plan(NamedTuple):
    """The actions, and the ledger after them.

    Attributes:
        actions: in the order of the edits. After a crash in between, the rest is again a suffix of the ledger.
        kept: the records that remain, by number, even if their writes cannot be made.
        lost: the numbers of the marks and claims whose messages are not in the file.
        removed: the numbers of the queued messages that are not in the file, and that a stale save may have removed.
        written: the numbers of the marks and claims that the actions write again.
        unwritten: digest and process of the claims that are in the ledger only from now on. The mutex may have them
            again when a save is complete.
    """

    actions: list[Action]
    kept: dict[int, Record]
    lost: list[int]
    removed: list[int]
    written: Set[int] = frozenset()
    unwritten: Set[tuple[bytes, bytes]] = frozenset()


def plan(known: Known, seen: Mapping[bytes, Collection[Seen]], *, reapply: bool) -> Plan:
    """Compute the plan.

    Args:
        known: the contents of the ledger.
        seen: the messages in the file, by digest.
        reapply: whether to make a mark again that a stale save reverted.
    """
    return _Planning(known, seen).plan(reapply=reapply)


def older_names(edits: Iterable[Record]) -> dict[bytes, list[bytes]]:
    """Return the digests that a message had before its variables were set, the latest first."""
    older: dict[bytes, list[bytes]] = {}
    for record in edits:
        if record.kind == SET and record.owner != EMPTY:
            names = [record.owner, *older.get(record.owner, ())]
            older[record.digest] = [name for name in dict.fromkeys(names) if name != record.digest]
    return older


_Numbered = tuple[int, Record]


def _oldest(places: Mapping[int, Seen], records: Sequence[_Numbered]) -> dict[int, Seen]:
    """Assign places to the oldest of some records."""
    numbers = sorted(number for number, _ in records)[: len(places)]
    found = {number: places[number] for number in numbers if number in places}
    rest = [places[number] for number in sorted(places.keys() - found.keys())]
    return found | dict(zip([number for number in numbers if number not in found], rest, strict=True))


def _is_away(record: Record) -> bool:
    """Return whether a mark is that of a message in the archive that no save has brought back."""
    return is_archived(record) and record.position < 0


class _Planning:
    """The computation of a plan. Edits are identified by their number in the ledger."""

    def __init__(self, known: Known, seen: Mapping[bytes, Collection[Seen]]) -> None:
        self._edits = known.edits
        self._ended = known.ended
        self._grown = known.grown
        self._saved_ns = known.saved_ns
        self._seen = seen
        self._free = {name: {at.position: at for at in places if at.raw[0] == _QUEUED} for name, places in seen.items()}
        self._done = {name: {at.position: at for at in places if at.raw[0] != _QUEUED} for name, places in seen.items()}
        self._claimed = {(record.digest, record.holder) for record in known.edits if record.kind in CLAIMS}
        self._shifts = [0, known.grown]  # by which equal messages may have moved, the likelier first
        self._in_file = -1  # the newest edit that is still in the file
        self._shared = -1  # the newest one that was made while another program had the file open
        self._unmarked: dict[int, tuple[Record, Seen]] = {}  # marks whose message is queued
        self._actions: list[tuple[int, Action]] = []  # with the numbers of their edits
        self._made = Plan([], {}, [], [])
        self._written: set[int] = set()
        self._unwritten: set[tuple[bytes, bytes]] = set()

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
        for number, record in sorted(lost, key=lambda one: (not is_archived(one[1]), one[0])):
            if record.kind in WAITING:
                known = any(name in self._seen for name in older.get(record.digest, ()))
                if not self._is_older(number) and not known:
                    self._made.removed.append(number)
                continue
            if not self._under_older_name(number, record, older):
                self._made.lost.append(number)
        is_new = self._rewritten()
        for number, (record, place) in sorted(self._unmarked.items()):
            if record.owner in is_new and _is_away(record):
                continue
            self._reverted(number, record, place, reapply=reapply)
        self._blank_ended()
        self._made.actions.extend(action for _, action in sorted(self._actions, key=lambda one: one[0]))
        return self._made._replace(written=self._written, unwritten=self._unwritten)

    def _rewritten(self) -> set[bytes]:
        """Return the archive runs whose queued messages are new ones, because no stale save restored these runs.

        A save of a buffer from before a run restores that run and all later ones, as far as the user did not change
        their messages. A user who writes the text of an archived message again writes it as a queued message.
        """
        archived = [(number, record.owner) for number, record in enumerate(self._edits) if _is_away(record)]
        missing = Counter(self._edits[number].owner for number in self._made.lost if _is_away(self._edits[number]))
        marked = [run_of(owner) for number, owner in archived if number in self._made.kept]
        restored = min(marked, default=None)
        return {
            owner
            for owner, count in Counter(owner for _, owner in archived).items()
            if 2 * missing[owner] >= count and (restored is None or run_of(owner) < restored)
        }

    def _group(self, group: Sequence[_Numbered], waiting: _Places, marked: _Places) -> list[_Numbered]:
        """Assign the records of equal messages to their places, and return the records without a place."""
        self._shifts = [0, self._grown]
        sure = True
        if len(group) > 1:
            here = {record.position for _, record in group if record.position >= 0}
            fits = [sum(at + shift in marked or at + shift in waiting for at in here) for shift in self._shifts]
            self._shifts.sort(key=lambda shift: -fits[0 if shift == 0 else 1])
            sure = max(fits) == len(here)
        marks = [one for one in group if one[1].kind in MARKS]
        claims = [one for one in group if one[1].kind in CLAIMS]
        if sure:
            claims = [one for one in claims if not self._is_marked(one[1], waiting, marked)]
        waits = [one for one in group if one[1].kind in WAITING]
        places = self._paired([marks], marked)
        if not sure:  # a stale save reverts the newest ones
            places = _oldest(places, marks)
        for number, record in marks:
            if number in places:
                self._keep_mark(number, record, places[number])
        left = [one for one in marks if one[0] not in places]
        named = {(at.position, holder_of(at.raw)) for at in waiting.values()} if claims else set()
        # A message may have an older mark, which a user took back. A stale save reverts the newest marks.
        places |= self._paired([waits, left[::-1], claims], waiting)
        for number, record in waits:
            if number in places:
                self._keep_waiting(number, record, places[number].position, sure=sure)
        for number, record in left:
            if number in places:
                self._unmarked[number] = record, places[number]
        for number, record in claims:
            if number in places:
                if record.kind == IN_MUTEX and (places[number].position, record.holder) in named:
                    self._is_there(number)
                self._still_claimed(number, record, places[number])
        places |= self._paired([[one for one in waits if one[0] not in places]], marked)  # a user marked them
        return [one for one in (*waits, *left, *claims) if one[0] not in places]

    def _keep_mark(self, number: int, record: Record, place: Seen) -> None:
        self._made.kept[number] = record._replace(position=place.position)
        if place.raw[0] == record.kind:  # the mark of a user does not show how new the buffer was
            self._is_there(number)

    def _keep_waiting(self, number: int, record: Record, position: int, *, sure: bool) -> None:
        moved = record._replace(position=position)
        if not self._follows(record, position):  # perhaps it is the equal one
            moved = moved._replace(token=unknown(record.token))
        self._made.kept[number] = moved
        # A message that was given back may have been queued before as well.
        if record.kind == APPENDED and sure and self._is_own(record, position):
            self._is_there(number)

    def _is_marked(self, claim: Record, waiting: _Places, marked: _Places) -> bool:
        """Return whether a user marked a claimed message: a mark is in its place, and not in that of an equal one."""
        if claim.kind == IN_MUTEX and any(holder_of(place.raw) == claim.holder for place in waiting.values()):
            return False
        if claim.position < 0 or any(claim.position + shift in waiting for shift in self._shifts):
            return False
        return claim.position + self._shifts[0] in marked

    def _is_there(self, number: int) -> None:
        """Note that an edit is still in the file."""
        token = self._edits[number].token
        if not is_shared(token):
            self._in_file = max(self._in_file, number if is_known(token) else -1)
        elif token[2] + STEPS_NS <= self._saved_ns:
            self._shared = max(self._shared, number)

    def _is_older(self, number: int) -> bool:
        """Return whether an edit that is not in the file is older than the buffer, because a later edit is there."""
        if number < self._in_file:
            return True
        edits = self._edits
        return number < self._shared and edits[number].token[2] + STEPS_NS <= edits[self._shared].token[2]

    def _is_own(self, record: Record, position: int) -> bool:
        there = record.position >= 0 and position in (record.position, record.position + self._grown)
        return there and self._follows(record, position)

    def _follows(self, record: Record, position: int) -> bool:
        """Return whether as many equal messages are close before an append as the ledger records."""
        if not record.owner.startswith(LIKE):
            return True
        before = range(position - EQUAL_BYTES, position)
        return record.owner == LIKE + b"%d" % sum(one.position in before for one in self._seen[record.digest])

    def _paired(self, kinds: Sequence[Sequence[_Numbered]], places: _Places) -> dict[int, Seen]:
        """Assign a place to each record, by number, and remove it from places."""
        found: dict[int, Seen] = {}
        every = [one for kind in kinds for one in kind]
        for number, record in every:
            if record.kind == IN_MUTEX:
                own = [at for at, one in places.items() if holder_of(one.raw) == record.holder]
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
        """A variable that is still set shows how new the buffer was, unless an older version of a message was equal."""
        older = {record.owner for record in self._edits if record.kind == SET}
        for number, record in enumerate(self._edits):
            if record.kind == SET and record.digest in self._seen and record.digest not in older:
                self._is_there(number)

    def _under_older_name(self, number: int, record: Record, older: Mapping[bytes, Sequence[bytes]]) -> bool:
        """Look for the message as it was before a variable was set, because a stale save reverts variables, too."""
        for name in older.get(record.digest, ()):
            place = self._paired([[(number, record)]], self._free.get(name, {})).get(number)
            if place is None:
                continue
            record = record._replace(digest=name)
            if record.kind in CLAIMS:
                self._still_claimed(number, record, place)
            else:
                self._unmarked[number] = record, place
            return True
        return False

    def _reverted(self, number: int, record: Record, place: Seen, *, reapply: bool) -> None:
        """Decide about a mark whose message is queued."""
        if self._is_older(number):  # a user reopened it
            return
        # The stale save restored the ended claim as well.
        if (blanked := self._blanked(record.digest, place)) is not None:
            first, place = blanked
            self._actions.append((number, first))
        if not reapply:
            self._actions.append((number, Action(place, kind="reverted", report="delivered again")))
            return
        report = f"marked again as {STATUS_OF[record.kind].name}"
        self._actions.append((number, Action(place, [(0, bytes([record.kind]))], "reverted", report)))
        self._written.add(number)
        self._made.kept[number] = record._replace(position=place.position)  # an archived one: it is in the archive

    def _still_claimed(self, number: int, record: Record, place: Seen) -> None:
        self._made.kept[number] = record = record._replace(position=place.position)
        holder = record.holder
        if holder == holder_of(place.raw):
            self._made.kept[number] = record._replace(kind=IN_MUTEX)  # it may have been moved to the ledger, see below
            return
        if record.kind != IN_MUTEX:
            return
        # A stale save blanked the claim of an owner that is still at work.
        room = mutex_of(place.raw)
        if room is None or not room.fits(holder):  # a user shortened it, or a save has written a part of it
            self._made.kept[number] = record._replace(kind=IN_LEDGER)
            self._unwritten.add((record.digest, holder))
            return
        writes = [(room.position, room.filled(holder))]
        self._actions.append((number, Action(place, writes, "claim", "claimed again for its owner")))
        self._written.add(number)

    def _blank_ended(self) -> None:
        decided = {place.position for _, place in self._unmarked.values()}
        decided |= {record.position for record in self._made.kept.values() if record.kind == IN_MUTEX}
        for name, owner in sorted(self._ended - self._claimed):
            for place in self._seen.get(name, ()):
                if place.raw[0] != _QUEUED or place.position in decided:
                    continue
                room = mutex_of(place.raw)
                if room is not None and room.has(owner) and (blank := self._blanked(name, place)) is not None:
                    report = "blanked again: it had ended"
                    self._actions.append((len(self._edits), blank[0]._replace(kind="claim", report=report)))

    def _blanked(self, name: bytes, place: Seen) -> tuple[Action, Seen] | None:
        """Return the action that blanks an ended claim, and the message after it; None if no such claim exists."""
        room = mutex_of(place.raw)
        if room is None or (name, room.holder) in self._claimed:
            return None
        if not is_claim(room.holder) and not any(room.has(owner) for one, owner in self._ended if one == name):
            return None  # it is blank, or a user claimed it
        blank = room.filled(b"")
        raw = place.raw[: room.position] + blank + place.raw[room.position + len(blank) :]
        return Action(place, [(room.position, blank)]), place._replace(raw=raw)
