r"""After a foreign change: what the saved buffer has not seen is done again, and the claims are found again.

A buffer names the state from which it was made, its number G (``textqueue.format.windows``)::

    changes up to G     the person has seen them: the file is right, whatever it says
    changes above G     are made again, in their order, and reported

================================  ====================================================================================
what was not seen                 what is done
================================  ====================================================================================
a mark, or a mark taken back      made again, if the message has the status before it. Any other status is the
                                  person's, and remains
a variable that was set           set again, if there is room
a message was given back          a claim in its mutex is blanked
an append                         if the message is missing, it is reported as removed. It is not appended again: the
                                  person may have merged it by hand
a message was archived            removed again, because the archive has it, if it has the status that it had there
a claim, whatever G is            follows its message. Its owner is written again into a mutex that has lost it
================================  ====================================================================================

A file without the line is right if it never had it: only appends of this epoch are reported if they are missing, and no
later append is there. Otherwise, its buffer is older than every change. A number that is
too large shows that the ledger was lost: the file is right. Of several lines, as after ``cat a.tq >> b.tq``, the first
one counts, and the others are blanked.

**Equal messages.** In one epoch, two positions are two messages. In one *layout*, the time between two foreign changes
that changed the size of the file, one position is taken for one message. In the layout of the buffer, that is the
message at the position, or at the position plus the growth of the file. Otherwise it is one that has the status before
the change: the nearest one without a claim.

**Crash points.** The number is written after the changes, and the lines of the ledger after the number. So after a
crash in between, the next session does the rest: what was made already has its new status.

The file is read without the file lease, so no editor waits for that. ``QueueFile`` writes the result.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from sej.system.disk import File
from textqueue import log
from textqueue.editing.proof import Place
from textqueue.errors import Conflict, MessageMovedError
from textqueue.format.mutex import holder_of, is_alive, is_claim, mutex_of
from textqueue.format.parser import STATUS_OF, digest, essence, value_of, variables_of
from textqueue.format.windows import (
    DIGITS,
    NUMBER,
    Generation,
    Token,
    generations_in,
    placed,
    scan,
    scan_chunks,
    strays_in,
)
from textqueue.log import Ledger, Line, Record

Spans = Sequence[tuple[int, int]]
"""Parts of a file, ascending, each a position and a size."""
_QUEUED: Final = ord("-")
_REMOVED: Final = "a save of an old buffer removed it, or a user deleted it"


class _Message:
    """A message of the file, as it is read and as it shall be."""

    def __init__(self, position: int, raw: bytes) -> None:
        self.position = position
        self.before = raw
        self.raw = bytearray(raw)
        self.claim: Record | None = None
        self.epoch = -1  # of the last change that belongs to it
        self.changed = False  # whether a change that the buffer has not seen belongs to it
        self.archived = False

    def write(self, at: int, data: bytes) -> None:
        self.raw[at : at + len(data)] = data


class Repair(NamedTuple):
    """What a file needs after a foreign change, and what the ledger begins its new epoch with.

    sorted_to: the number that a sort of all lines has left; -1: none.
    """

    writes: list[tuple[int, bytes]]
    gone: Spans
    conflicts: list[Conflict]
    claims: list[Record]
    removed: list[Line]
    generation: Generation
    sorted_to: int


def first_state(file: File, token: Token) -> tuple[list[Record], Token, Generation]:
    """Return what a new ledger begins with: the claims that the file has, its state, and its number."""
    found: list[Generation] = []
    claims: list[Record] = []
    for window in scan(file):
        found += generations_in(window.data, window.position)
        for position, raw in placed(window.position, window.data) if b"@" in window.data else ():
            if raw[0] == _QUEUED and is_claim(holder := holder_of(raw)) and is_alive(holder):
                claims.append(Record(log.IN_MUTEX, 0, position, digest(raw), token, holder))
    return claims, token, found[0] if found else Generation(-1, 0)


def examine(ledger: Ledger, file: File, size: int, path: str, *, alone: bool, deliver: bool) -> Repair:
    """Compare a file that another program changed with the ledger. The caller has the lock, and writes the repair."""
    found, sorted_to = _generations(file, lined=ledger.lined)
    # If no other program has the file open, the one that kept the line out has saved, or another one while it read.
    oldest = max(sorted_to, 0) if ledger.lined else ledger.pending_line if alone else -1
    seen = found[0].number if found else ledger.number if oldest < 0 else oldest
    replay = _Replay(ledger, path, seen, size, has_number=bool(found), unnumbered=not found and oldest < 0)
    replay.read(file)
    replay.redo(deliver=deliver)
    writes, gone = replay.writes(), replay.archived()
    number, at = max(ledger.number, seen), found[0].position if found else -1
    if found and (seen != number or len(found) > 1):
        writes += [(one.position, b" " * DIGITS) for one in found[1:]]
        writes.append((at, NUMBER % number))
    generation = Generation(shifted(at, gone), number)
    return Repair(writes, gone, replay.conflicts, replay.claims(gone), replay.removed, generation, sorted_to)


def shifted(position: int, gone: Spans) -> int:
    """Return where a position is after some spans were removed."""
    return position - sum(size for _, size in gone[: bisect.bisect_left(gone, (position, 0))])


def _generations(file: File, *, lined: bool) -> tuple[list[Generation], int]:
    """Return the lines of a file. If it had one and has none, return also the number that a sort has left; -1: none."""
    found: list[Generation] = []
    strays: list[int] = []
    for window in scan(file):
        found += generations_in(window.data, window.position)
        strays += [one for *_, one in strays_in(window.data) if one >= 0] if lined else []
    return found, -1 if found or not strays else strays[0]


class _Replay:
    """The changes that a buffer has not seen, the claims, and the messages of the file that they belong to."""

    def __init__(self, ledger: Ledger, path: str, seen: int, size: int, *, has_number: bool, unnumbered: bool) -> None:
        self.conflicts: list[Conflict] = []
        self._ledger, self._path = ledger, path
        self._changes: list[tuple[tuple[int, int], Record]] = []  # with their epochs and layouts
        self._older: Counter[bytes] = Counter()  # appends that the person has seen, less what was archived
        self._by: dict[bytes, list[_Message]] = defaultdict(list)
        self._places: dict[tuple[int, int, bytes], _Message | None] = {}  # by layout, position and digest
        self.removed: list[Line] = []
        self._lost: list[Record] = []
        self._holders: set[bytes] = set()  # of all claims
        self._size = size
        self._texts: set[bytes] = set()
        self._unnumbered = unnumbered
        self._has_number = has_number
        then = last = size
        epoch = layout = self._layout = 0
        # Appends that were reported as removed, and not appended again since, are not reported again.
        for record in ledger.history():
            if record.kind == log.STATE:
                layout += epoch != record.position and record.token[1] != last
                epoch = record.position
            last = record.token[1]
            if record.number <= seen:
                then, self._layout = last, layout
            if record.kind in log.CLAIMS:
                self._holders.add(record.holder)
            elif record.kind == log.REMOVED:
                same = [one for one in self._changes if one[1].kind == log.APPENDED and one[1].digest == record.digest]
                if same:
                    self._changes.remove(same[0])
            elif record.kind not in log.CHANGES:
                continue
            elif (self._unnumbered and record.kind == log.APPENDED and epoch == ledger.epoch) or record.number > seen:
                self._changes.append(((epoch, layout), record))
            elif record.kind == log.APPENDED:
                self._older[record.digest] += 1
            elif record.kind == log.ARCHIVED:
                self._older[record.digest] -= 1
        self._grown = size - then  # since the state that the buffer has

    def read(self, file: File) -> None:
        """Read the messages that changes or claims are about."""
        wanted = {record.digest for _, record in self._changes}
        wanted |= {record.detail.partition(b"/")[0] for _, record in self._changes if record.kind == log.SET}
        wanted |= {record.digest for record in self._ledger.claims.values()}
        for position, raw in scan_chunks(file) if wanted else ():
            if self._unnumbered and raw[0] in STATUS_OF:
                self._texts.add(log.text_detail(raw))
            if raw[0] in STATUS_OF and (name := digest(raw)) in wanted:
                self._by[name].append(_Message(position, raw))

    def redo(self, *, deliver: bool) -> None:
        """Assign the claims, and make the changes again, in memory."""
        claims = self._ledger.claims
        left = [record for _, record in sorted(claims.items()) if not self._claimed(record)]
        for when, record in self._newest() if self._unnumbered else self._changes:
            self._apply(when, record)
        self._lost = [record for record in left if not self._claimed(record)]
        for message in self._all():
            self._follow(message)
            self._report(message, deliver=deliver)

    def _newest(self) -> list[tuple[tuple[int, int], Record]]:
        """Return the newest appends if they are missing. The file never had a number that names what is missing."""
        missing = itertools.takewhile(lambda one: one[1].detail not in self._texts, reversed(self._changes))
        return list(missing)[::-1]

    def _all(self) -> Iterator[_Message]:
        for messages in self._by.values():
            yield from messages

    def _claimed(self, record: Record) -> bool:
        """Give a claim its message, and return False if it is not in the file. The claim ends if a user marked it."""
        token = self._ledger.token
        grown = 0 if token is None else self._size - token[1]
        places = {record.position, record.position + grown}
        here = [one for one in self._by.get(record.digest, ()) if one.claim is None]
        free = [one for one in here if one.raw[0] == _QUEUED]
        named = [one for one in free if record.kind == log.IN_MUTEX and holder_of(one.before) == record.holder]
        if not named and (marked := [one for one in here if one.raw[0] != _QUEUED]):
            there = any(one.position in places for one in free)
            if not free or (not there and record.position >= 0 and any(one.position in places for one in marked)):
                return True
        if not free:
            return False
        at = record.position
        best = min(named or free, key=lambda one: (one.position not in places, abs(one.position - at)))
        best.claim = record
        return True

    def _apply(self, when: tuple[int, int], record: Record) -> None:
        kind, name = record.kind, record.digest
        if kind == log.APPENDED:
            self._older[name] += 1
            if len(self._by.get(name, ())) < self._older[name]:  # the messages of earlier appends are equal
                self._older[name] -= 1
                self._places[when[1], record.position, name] = None
                self.removed.append((log.REMOVED, 0, name, record.detail))
                text = unquote_to_bytes(record.detail.removeprefix(log.TEXT)).decode("utf-8", "replace")
                self.conflicts.append(Conflict(self._path, max(record.position, 0), text, "removed", _REMOVED))
        elif kind == log.SET:
            self._set(when, record)
        elif kind == log.ARCHIVED:
            # A mark of a person has no number. Only a buffer without any number is certainly from before it.
            queued = b"" if self._has_number else b"-"
            message = self._message_of(when, record, name, bytes([record.was]) + queued)
            if message is not None:
                message.archived = True
        else:
            message = self._message_of(when, record, name, bytes([record.was, kind]))
            if message is not None:
                message.changed = message.changed or message.raw[0] != kind or kind == log.GIVEN_BACK
                message.raw[0] = kind

    def _message_of(self, when: tuple[int, int], record: Record, name: bytes, statuses: bytes) -> _Message | None:
        """Return the message that a change belongs to, if it has one of some statuses: first that before the change."""
        epoch, layout = when
        place = layout, record.position, name
        if place not in self._places:
            there = [one for one in self._before(record, name) if one.epoch != epoch and not one.archived]
            self._places[place] = min(
                [one for one in there if one.raw[0] in statuses],
                key=lambda one: (
                    one.raw[0] != statuses[0] if self._has_moved(one, layout, record) else -1,
                    one.claim is not None,
                    abs(one.position - record.position),
                ),
                default=None,
            )
        message = self._places[place]
        if message is not None:
            message.epoch = epoch
        return message if message is not None and message.raw[0] in statuses else None

    def _has_moved(self, message: _Message, layout: int, record: Record) -> bool:
        """Return whether a message is not certainly at the position of a change, which the end of the file may move."""
        there = message.position in (record.position, record.position + self._grown)
        return not there or message.claim is not None or message.epoch >= 0 or layout != self._layout

    def _before(self, record: Record, name: bytes) -> list[_Message]:
        """Return the messages with a text that a change can be about.

        A file without a number may be a new one: what was appended after the change is the end of it.
        """
        here = self._by.get(name, [])
        if self._has_number:
            return here
        appends = [one.number for _, one in self._changes if (one.kind, one.digest) == (log.APPENDED, name)]
        return here[: max(len(here) - sum(number > record.number for number in appends), 0)]

    def _set(self, when: tuple[int, int], record: Record) -> None:
        was, number, text = record.detail.split(b"/", 2)
        message = self._message_of(when, record, was, b"-=!#")
        if message is None:
            return
        data, variables = unquote_to_bytes(text), variables_of(bytes(message.raw))
        if int(number) >= len(variables) or len(data) > len(variables[int(number)].data):
            return
        at, old = variables[int(number)]
        message.write(at, data.ljust(len(old)))
        self._by[was].remove(message)
        self._by[digest(bytes(message.raw))].append(message)
        self._places[when[1], record.position, record.digest] = message

    def _follow(self, message: _Message) -> None:
        """Let the mutex have the claim of a message, and no claim that has ended."""
        room, claim = mutex_of(bytes(message.raw)), message.claim
        if room is None:
            return
        if claim is None:
            parts = (one.startswith(room.holder) or one.endswith(room.holder) for one in self._holders)
            if message.changed and (is_claim(room.holder) or any(parts)):  # an editor may have read a part of it
                message.write(room.position, room.filled(b""))
        elif claim.kind == log.IN_MUTEX and room.holder != claim.holder and room.fits(claim.holder):
            message.write(room.position, room.filled(claim.holder))

    def _report(self, message: _Message, *, deliver: bool) -> None:
        kind, text = "reverted", value_of(message.before).decode("utf-8", "replace")
        if message.archived:
            action = "removed again: it is in the archive"
        elif message.raw[0] != message.before[0]:
            action = f"marked again as {STATUS_OF[message.raw[0]].name}"
        elif message.raw != message.before and message.claim is not None:
            kind, action, deliver = "claim", "claimed again for its owner", False
        elif message.changed and message.raw != message.before:
            kind, action, deliver = "claim", "blanked again: it had ended", False
        else:
            return
        if deliver:
            action, message.archived = "delivered again", False
            message.raw[0] = message.before[0]
        self.conflicts.append(Conflict(self._path, message.position, text, kind, action))

    def writes(self) -> list[tuple[int, bytes]]:
        """Return what is written, with its positions."""
        found = []
        for message in self._all():
            if message.raw != message.before and not message.archived:
                first = next(at for at, byte in enumerate(message.before) if byte != message.raw[at])
                found.append((message.position + first, bytes(message.raw[first:])))
        return sorted(found)

    def archived(self) -> list[tuple[int, int]]:
        """Return position and size of the messages that are in the archive."""
        return sorted((one.position, len(one.before)) for one in self._all() if one.archived)

    def claims(self, gone: Sequence[tuple[int, int]]) -> list[Record]:
        """Return the claims with their new positions, after some spans were removed."""
        found = [one._replace(position=-number) for number, one in enumerate(self._lost, 1)]
        for message in self._all():
            if (claim := message.claim) is not None:
                raw = bytes(message.raw)
                kind = log.IN_MUTEX if holder_of(raw) == claim.holder else log.IN_LEDGER
                at = shifted(message.position, gone)
                found.append(claim._replace(kind=kind, position=at, digest=digest(raw)))
        return found


def _text(essence: bytes) -> bytes:
    return essence.partition(b"\n\\")[0]


def find_again(
    path: str, file: File, places: Sequence[Place], taken: Container[int], what: str
) -> list[tuple[int, bytes]]:
    """Search the whole file, once, for messages that have moved, and return the position and bytes of each.

    No two have the same position, and none has one that is taken by a message that has not moved.
    """
    wanted: dict[bytes, list[Place]] = {essence(place.raw): [] for place in places}
    texts = {_text(name): -1 for name in wanted}
    for position, raw in scan_chunks(file):
        if raw[0] in STATUS_OF and (text := _text(name := essence(raw))) in texts:
            texts[text] = position
            if name in wanted and position not in taken:
                wanted[name].append(Place(position, raw, -1))
    found = []
    for place in places:
        seen = wanted[essence(place.raw)]
        if not seen:
            similar = texts[_text(essence(place.raw))]
            hint = "" if similar < 0 else f" (the same text with other variables is at position {similar})"
            raise MessageMovedError(
                f"cannot {what}: another program changed or deleted it{hint}; nothing was written; reread the queue",
                path=path,
                position=place.position,
            )
        # Equal messages are interchangeable. Prefer the same claim, then the same status, then the nearest.
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
