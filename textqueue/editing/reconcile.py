"""After a foreign change: bring the ledger and the marks of a ``.tq`` file in line with each other.

**The invariant.** If the file is in the state of the ledger's last line, then every position in the ledger is correct.
Every mark in the ledger is also in the file. Each operation checks the state under the lock before it relies on the
ledger. A foreign change breaks the invariant in two ways: lines move, and a save of an old buffer reverts marks.

::

              a foreign change
    in line ------------------> changed <-----------------------------+
       ^                         |   |                                |
       |   the newest edit and   |   | otherwise: read the file       |
       |   all claims are there, |   v                                |
       |   at most shifted       |  planned --------------------------+
       |                         |   |     the file changed meanwhile, or another process waits for it
       |   append a new epoch    |   | take a lease, make the writes
       +-------------------------+   v
       |                            written
       |   rewrite the ledger        |
       +-----------------------------+

``textqueue.editing.plan`` decides about the writes. If the newest edit is still there, nothing was reverted, and two
reads are enough for a file of any size. The lease is held only for the writes, so no editor waits for the reading.

**Crash points.** A crash before the ledger is rewritten leaves the old ledger, whose last line does not fit the file.
So the next session plans again. It finds the writes that were made, and makes the others: writes are made in the order
of the edits, so the rest is again what a single old buffer would have reverted.

A mark whose message is missing is forgotten after ten seconds: if a user deletes a text and writes it again later, it
is a new message. The delay is needed because an editor that saves in place empties the file first, and a session may
see the file in that moment.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence, Set
from typing import Final, Literal

from sej.system.disk import File
from sej.system.locks import end_lease, leased
from textqueue.editing.conflicts import Conflict, settle
from textqueue.editing.plan import EQUAL_BYTES, Action, Known, Seen, plan
from textqueue.editing.proof import Place, entry_at, equal_before, proven
from textqueue.errors import MessageMovedError
from textqueue.format.grammar import BOM, STATUS_OF
from textqueue.format.mutex import holder_of, is_alive
from textqueue.format.parser import chunks, digest, essence, value_of
from textqueue.format.windows import Token, is_known, is_shared, scan, token_of, unknown
from textqueue.ledger.log import Ledger
from textqueue.ledger.records import (
    CLAIMS,
    EMPTY,
    ENDED,
    GONE,
    IN_MUTEX,
    LIKE,
    MARKS,
    SET,
    WAITING,
    Record,
    is_archived,
)

OnRevert = Literal["reapply", "deliver"]
_QUEUED = ord("-")
_NEVER: Final = (0, 0, 0)
"""In the line of a claim that has ended: a state that no file has."""
_ENDED_MOST: Final = 1 << 10
"""The number of ended claims that are kept although their messages are not queued in the file."""
_TURN: Final = 64
"""After this many writes, check whether another process waits for the file."""
_SAVING_NS: Final = 1_000_000_000
"""Without a lease, a last line without a newline is not complete before the file was unchanged for so long."""
_REMEMBER_NS: Final = 10_000_000_000
_REMEMBER_ARCHIVED_NS: Final = 8 * 3600 * 1_000_000_000
"""An editor may have the file open for a working day, from a time before the archive run."""


def reconcile(
    ledger: Ledger,
    file: File,
    take: Callable[[], bool],
    *,
    path: str,
    on_revert: OnRevert,
    whole: bool = False,
) -> list[Conflict]:
    """Bring the ledger in line with a file that another program changed, and the marks with the ledger.

    The caller holds the lock. If another program writes to the file at this moment, or waits for it, the rest is left
    to the next call.

    Args:
        ledger: the ledger, refreshed.
        file: the queue file, open for editing, without a lease.
        take: takes the lease, for the writes.
        path: the path of the queue file, for reports.
        on_revert: what to do about a mark that an old buffer reverted.
        whole: whether to read the whole file, even if the newest edit is still there.

    Returns:
        The conflicts that were found.
    """
    before = token_of(file.status())
    grown = 0 if ledger.token is None else before[1] - ledger.token[1]
    if not whole and _only_moved(ledger, file, before, grown):
        return []
    edits = _remembered(ledger.edits())
    over = ledger.ended()
    known = Known(edits, over.keys(), grown, before[2])
    seen = _where(file, _wanted(known))
    made = plan(known, seen, reapply=on_revert == "reapply")
    if made.removed or any(action.writes for action in made.actions):
        take()
    if token_of(file.status()) != before:  # another program wrote meanwhile: the plan may be wrong
        end_lease(file)
        return []
    conflicts, all_made = _apply(made.actions, file, path)
    if all_made:
        reports, pending = settle(file, {number: edits[number] for number in made.removed}, path)
        conflicts += reports
        token = token_of(file.status())
        # Without a lease, the other program may have gone on saving while this wrote, so the next call looks again. Or
        # it has read the file meanwhile, and its buffer may have some of the writes and not others.
        alone = end_lease(file) or token == before
        if not alone:
            token = unknown(token)
        lost = _lost(edits, [*made.lost, *pending])
        names = seen.keys() | {record.digest for record in lost.values()}
        records = {**lost, **_variables(edits, names), **made.kept}
        doubted = set() if alone else made.written  # the others were in the file before: they show how new it is
        kept = [_doubted(record) if number in doubted else record for number, record in sorted(records.items())]
        ended = _ended_claims({**over, **dict.fromkeys(made.unwritten - over.keys(), False)}, seen)
        ledger.rewrite([*ended, *kept], token=token, epoch=time.time_ns())
    else:
        end_lease(file)
    return sorted(conflicts, key=lambda conflict: conflict.position)


def _only_moved(ledger: Ledger, file: File, token: Token, grown: int) -> bool:
    """Return whether the newest edit and all claims are at their positions, or shifted by the growth of the file.

    If so, the editor's buffer was newer than all edits, so it reverted nothing (see ``textqueue.editing.plan``), and
    this begins a new epoch in the ledger. Otherwise the whole file must be read.
    """
    shown = ledger.shown
    if shown is None or shown.position < 0 or not is_known(shown.token) or is_shared(shown.token):
        return False
    if ledger.is_repeated(shown, moved=grown != 0):
        return False
    found = []
    for record in (shown, *ledger.claims.values()):
        places = dict.fromkeys((record.position, record.position + grown))
        there = {at: entry_at(file, at) if at >= 0 and _begins(file, at) else b"" for at in places}
        same = [at for at, raw in there.items() if raw and digest(essence(raw)) == record.digest]
        if not same or not all(_shows(there[at], record) for at in same):
            return False
        if record.owner.startswith(LIKE) and not _follows(file, same[0], there[same[0]], record):
            return False
        found.append(record._replace(position=same[0]))
    claims = {record.position for record in found[1:]}
    if token_of(file.status()) != token or len(claims) < len(found) - 1:  # two equal messages have one place
        return False
    ledger.move(found[0] if shown.kind not in CLAIMS else None, found[1:], token)
    return True


def _follows(file: File, position: int, raw: bytes, record: Record) -> bool:
    """Return whether as many equal messages are before an appended one as then: otherwise it may be one of them."""
    start = max(position - EQUAL_BYTES, 0)
    count = equal_before(file.read(position - start, start), raw)
    return count * len(raw) < EQUAL_BYTES // 2 and record.owner == LIKE + b"%d" % count


def _begins(file: File, position: int) -> bool:
    if position == len(BOM) and file.read(len(BOM), 0) == BOM:
        return True
    return position == 0 or file.read(1, position - 1) == b"\n"


def _shows(raw: bytes, record: Record) -> bool:
    """Return whether an edit is still visible in its message. A user may have made another mark in an old buffer."""
    if record.kind in MARKS:
        return raw[0] == record.kind
    if record.kind in CLAIMS:
        return raw[0] == _QUEUED and (record.kind != IN_MUTEX or holder_of(raw) == record.holder)
    return True


def _wanted(known: Known) -> set[bytes]:
    """Return the digests of all messages in the ledger, also those from before a variable was set."""
    names = {record.digest for record in known.edits} | {name for name, _ in known.ended}
    return names | {record.owner for record in known.edits if record.kind == SET}


def _apply(actions: Sequence[Action], file: File, path: str) -> tuple[list[Conflict], bool]:
    """Make the writes. A write that another program prevents is planned again by the next session.

    Returns:
        The conflicts; and False if the writes were cut short because another process waits for the file, or may still
        write its last line.
    """
    conflicts: list[Conflict] = []
    alone = leased(file)
    saving = not alone and abs(time.time_ns() - file.status().mtime_ns) < _SAVING_NS
    for number, (place, writes, kind, report) in enumerate(actions):
        if alone and not number % _TURN and not leased(file):
            return conflicts, False
        if saving and writes and not place.raw.endswith(b"\n"):
            return conflicts, False
        made = all(_write(file, place, relative, data) for relative, data in writes)
        if made and kind:
            text = value_of(place.raw).decode("utf-8", "replace")
            conflicts.append(Conflict(path, place.position, text, kind, report))
    return conflicts, True


def _variables(edits: Sequence[Record], there: Container[bytes]) -> dict[int, Record]:
    """Return the records of variables of messages that are known, without positions, by number."""
    known: dict[int, Record] = {}
    older: set[bytes] = set()
    for number in range(len(edits) - 1, -1, -1):
        record = edits[number]
        if record.kind == SET and (record.digest in there or record.digest in older):
            older.add(record.owner)
            known[number] = record._replace(position=-1)
    return known


def _ended_claims(ended: Mapping[tuple[bytes, bytes], bool], seen: Mapping[bytes, Sequence[Seen]]) -> list[Record]:
    """Return the lines of the ended claims that the next save of an old buffer may restore, or that may begin again.

    A message that is not queued in the file may be queued again soon: a save may have written a part of the file only.
    """
    alive = {holder for holder in {holder for _, holder in ended} if is_alive(holder)}
    kept = [one for one in ended.items() if one[0][1] in alive]
    there = {one for one in kept if one[1] or any(place.raw[0] == _QUEUED for place in seen.get(one[0][0], ()))}
    there.update([one for one in kept if one not in there][-_ENDED_MOST:])
    lines = []
    for (name, holder), gone in kept:
        if ((name, holder), gone) in there:
            end = GONE if gone else EMPTY
            lines += [Record(kind, -1, name, _NEVER, owner) for kind, owner in ((IN_MUTEX, holder), (ENDED, end))]
    return lines


def _where(file: File, wanted: Set[bytes]) -> dict[bytes, list[Seen]]:
    """Return the places of the messages with the wanted digests."""
    seen: dict[bytes, list[Seen]] = defaultdict(list)
    for window in scan(file) if wanted else ():
        position = window.position
        for raw in chunks(window.data):
            if raw[0] in STATUS_OF:
                name = digest(essence(raw))
                if name in wanted:
                    # Only a queued message may be edited, so only its bytes are needed.
                    seen[name].append(Seen(position, raw if raw[0] == _QUEUED else raw[:1]))
            position += len(raw)
    return seen


def _remembered(edits: Sequence[Record]) -> list[Record]:
    """Leave out records whose messages have been missing for so long that an equal text is a new message."""
    now = time.time_ns()
    keep = WAITING | {SET}  # see textqueue.editing.conflicts
    return [record for record in edits if record.kind in keep or record.position >= 0 or _is_recent(record, now)]


def _is_recent(record: Record, now: int) -> bool:
    limit = _REMEMBER_ARCHIVED_NS if is_archived(record) else _REMEMBER_NS
    return now + record.position < limit or (record.kind in CLAIMS and is_alive(record.holder))


def _doubted(record: Record) -> Record:
    """Return a record that does not show how new a buffer is any more."""
    return record._replace(token=unknown(record.token))


def _lost(edits: Sequence[Record], lost: Sequence[int]) -> dict[int, Record]:
    """Return the records of missing messages, by number: an editor may be in the middle of a save."""
    now = time.time_ns()
    found = {number: edits[number] for number in lost}
    return {n: one if one.position < 0 else one._replace(position=n - now) for n, one in found.items()}


def _write(file: File, place: Seen, relative: int, data: bytes) -> bool:
    """Write into a message if it has not moved, and return whether it had not. The next session finds the others."""
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
    """Search the whole file, once, for messages that have moved.

    Args:
        path: the path of the file, for the error.
        file: the file as it is now.
        places: the messages as they were read.
        taken: the positions of other messages, which have not moved.
        what: the name of the edit, for the error.

    Returns:
        Position and bytes of each message; no two have the same position.

    Raises:
        MessageMovedError: a message was changed or removed since it was read.
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
