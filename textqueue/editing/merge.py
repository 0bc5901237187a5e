"""The edit of `sej tq edit`: the save of a person, merged with what others wrote meanwhile.

The merged text is written into a temporary file, which is renamed. It has the number of the last change, so the person
has seen all changes, and the next session finds the claims again, as after a save by an editor
(``textqueue.editing.reconcile``). A crash before the rename changes nothing.

**The merge.** Both versions are compared with the text that the person began with, entry by entry. A change that only
one side made is taken. If both sides inserted entries at the same place, both remain, the person's first. If both
changed the same entries, the person's version is taken, and the entry is reported: programs can do their work again,
a person's text would be lost.

Equal messages are interchangeable. If a person deletes or changes one of them, and a program has marked or claimed the
same one, an equal message that neither side has changed gets the mark or the claim. So the person has deleted one that
was free, and the work of the program counts.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Final, NamedTuple

from sej.system.disk import File
from sej.system.locks import end_file_lease
from textqueue.editing.queue_file import QueueFile
from textqueue.editing.source import Source
from textqueue.editing.tq_file import copy_owner
from textqueue.errors import FileInUseError
from textqueue.format.generation import generations_in, line_for
from textqueue.format.grammar import BOM
from textqueue.format.mutex import holder_of
from textqueue.format.parser import chunks, essence, value_of
from textqueue.format.windows import Token, token_of
from textqueue.ledger.sidecar import sidecar_path

_Span = tuple[int, int]
"""The numbers of the first entry and of the one after the last."""


class Merged(NamedTuple):
    """The merged text, and the entries of the others that it does not have."""

    text: bytes
    overridden: list[bytes]


_Lost = tuple[bytes, bytes]
"""An entry of the others that the result does not have, after what it was in the old text, or empty bytes."""


class _Change(NamedTuple):
    """Entries start to end of the old text are replaced."""

    start: int
    end: int
    new: Sequence[bytes]


def merge(old: bytes, mine: bytes, theirs: bytes) -> Merged:
    """Merge two versions of a text.

    Args:
        old: the text from which both versions were made.
        mine: the person's version, which wins.
        theirs: the version of all others.
    """
    if theirs == old or mine == theirs:
        return Merged(mine, [])
    before = entries(old)
    others = list(_changes(before, entries(theirs)))
    touched = {number for change in others for number in range(change.start, change.end)}
    ours = [
        change
        for change in _changes(before, entries(mine))
        if change.start not in touched or not _trims(before, change)  # an editor that trims blanks changes no message
    ]
    merged: list[bytes] = []
    same: list[tuple[int, int, int]] = []  # what neither side changed: its place in the result, and in the old text
    lost: list[_Lost] = []
    at = 0
    while ours or others:
        if not others or (ours and _is_before(ours[0], others[0])):
            change = ours.pop(0)
        elif not ours or _is_before(others[0], ours[0]):
            change = others.pop(0)
        else:
            change, missing = _joined(before, ours, others)
            lost += missing
        same.append((len(merged), at, change.start))
        merged += before[at : change.start]
        merged += change.new
        at = change.end
    same.append((len(merged), at, len(before)))
    merged += before[at:]
    overridden = _passed_on(merged, before, same, lost) if lost else []
    return Merged(b"".join(merged), overridden)


def _passed_on(
    merged: list[bytes], old: Sequence[bytes], same: Sequence[tuple[int, int, int]], lost: Sequence[_Lost]
) -> list[bytes]:
    """Give the lost marks and claims to equal messages in the result; return those for which there is none."""
    free: dict[bytes, list[int]] = {essence(was): [] for was, _ in lost if was.startswith(b"-")}
    for place, start, end in same if free else ():
        for number, entry in enumerate(old[start:end], place):
            if entry.startswith(b"-") and essence(entry) in free and not holder_of(entry):
                free[essence(entry)].append(number)
    left: list[bytes] = []
    for was, entry in lost:
        if was.startswith(b"-") and essence(was) == essence(entry) and (places := free[essence(was)]):
            merged[places.pop()] = entry
        else:
            left.append(entry)
    return left


def entries(text: bytes) -> list[bytes]:
    """Split a text into entries and other lines. A last line without a newline gets one. A BOM is one part."""
    mark, text = (BOM, text[len(BOM) :]) if text.startswith(BOM) else (b"", text)
    found = chunks(text if not text or text.endswith(b"\n") else text + b"\n")
    return [mark, *found] if mark else found


def _changes(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[_Change]:
    """Yield the changes from old to new. Programs change entries in place, and append: then nothing needs a search."""
    if len(new) >= len(old) and all(map(_is_in_place, old, new)):
        for number, entry in enumerate(old):
            if entry != new[number]:
                yield _Change(number, number + 1, [new[number]])
        if len(new) > len(old):
            yield _Change(len(old), len(old), new[len(old) :])
        return
    at = there = 0
    ends = len(old), len(old), len(new), len(new)
    for start, end, begin, stop in (*_blocks(list(map(_trimmed, old)), list(map(_trimmed, new))), ends):
        for one, other in zip(range(at, start), range(there, begin), strict=True):
            if old[one] != new[other]:
                yield _Change(one, one + 1, [new[other]])
        if end - start == stop - begin:  # the entries of a mark are changed one by one
            for number in range(end - start):
                yield _Change(start + number, start + number + 1, [new[begin + number]])
        else:
            yield _Change(start, end, new[begin:stop])
        at, there = end, stop


def _is_in_place(old: bytes, new: bytes) -> bool:
    """Return whether an entry is the same, or a program may have changed its status or variables in place."""
    return old == new or (len(old) == len(new) and value_of(old) == value_of(new))


def _trims(old: Sequence[bytes], change: _Change) -> bool:
    """Return whether a change of one entry changes only blanks at the ends of its lines."""
    return change.end - change.start == len(change.new) == 1 and _trimmed(old[change.start]) == _trimmed(change.new[0])


def _trimmed(entry: bytes) -> bytes:
    """Return an entry without blanks and carriage returns at the ends of its lines, which some editors remove."""
    return b"\n".join([line.rstrip(b" \t\r") for line in entry.split(b"\n")])


def _blocks(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[tuple[int, int, int, int]]:
    """Yield the parts that differ: entries start to end of the old text, and begin to stop of the new one."""
    before = after = 0
    for at, there in [*_anchors(old, new), (len(old), len(new))]:
        yield from _between(old, new, (before, at), (after, there))
        before, after = at + 1, there + 1


def _anchors(old: Sequence[bytes], new: Sequence[bytes]) -> list[tuple[int, int]]:
    """Return the numbers of entries that both sides have once, in the same order: the most that there are.

    The search between them takes quadratic time, because equal entries, such as blank lines, match each other.
    """
    once_before, once_after = _once(old), _once(new)
    last: list[int] = []  # of the best series of each length: the least number, in the new text, of its last entry
    series: dict[int, tuple[int, int | None]] = {}  # by number in the new text: the old number, and the entry before
    for entry, at in once_before.items():
        if (there := once_after.get(entry)) is not None:
            length = bisect.bisect_left(last, there)
            last[length : length + 1] = [there]
            series[there] = at, last[length - 1] if length else None
    found: list[tuple[int, int]] = []
    one = last[-1] if last else None
    while one is not None:
        at, previous = series[one]
        found.append((at, one))
        one = previous
    return found[::-1]


def _once(texts: Sequence[bytes]) -> dict[bytes, int]:
    """Return the numbers of the entries that occur once, in order."""
    counts = Counter(texts)
    return {entry: number for number, entry in enumerate(texts) if counts[entry] == 1}


def _between(
    old: Sequence[bytes], new: Sequence[bytes], here: _Span, there: _Span
) -> Iterator[tuple[int, int, int, int]]:
    """Yield what differs between a part of the old entries and a part of the new ones, as ``_blocks`` does."""
    (start, end), (begin, stop) = here, there
    while start < end and begin < stop and old[start] == new[begin]:
        start, begin = start + 1, begin + 1
    while start < end and begin < stop and old[end - 1] == new[stop - 1]:
        end, stop = end - 1, stop - 1
    middle = SequenceMatcher(None, old[start:end], new[begin:stop], autojunk=False)
    for tag, i1, i2, j1, j2 in middle.get_opcodes():
        if tag != "equal":
            yield start + i1, start + i2, begin + j1, begin + j2


def _is_before(one: _Change, other: _Change) -> bool:
    """Return whether a change ends before another begins. Two insertions at one place are not one before the other."""
    return one.end < other.start or (one.end == other.start and not one.start == one.end == other.end)


def _joined(old: Sequence[bytes], ours: list[_Change], others: list[_Change]) -> tuple[_Change, list[_Lost]]:
    """Join the changes that overlap, and return the result and the lost entries of the others."""
    mine, theirs = [ours.pop(0)], [others.pop(0)]
    while True:
        start = min(mine[0].start, theirs[0].start)
        end = max(mine[-1].end, theirs[-1].end)
        if ours and ours[0].start < end:
            mine.append(ours.pop(0))
        elif others and others[0].start < end:
            theirs.append(others.pop(0))
        else:
            break
    ours_there, others_there = _applied(old, mine, start, end), _applied(old, theirs, start, end)
    if start == end:  # both inserted
        return _Change(start, end, [*ours_there, *others_there]), []
    kept = set(ours_there)
    known = set(old[start:end])
    was = {change.new[0]: old[change.start] for change in theirs if change.end - change.start == len(change.new) == 1}
    lost = [(was.get(entry, b""), entry) for entry in others_there if entry not in kept | known]
    return _Change(start, end, ours_there), lost


def _applied(old: Sequence[bytes], changes: Sequence[_Change], start: int, end: int) -> list[bytes]:
    found: list[bytes] = []
    for change in changes:
        found += old[start : change.start]
        found += change.new
        start = change.end
    return [*found, *old[start:end]]


_MAX_ATTEMPTS: Final = 20


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
    for _ in range(_MAX_ATTEMPTS):
        with source.file as session:
            if not session.known:
                continue
            before = token_of(session.status)
            end_file_lease(session.file)
            text = session.file.read(before[1], 0)
            merged = merge(old, new, text)
            done = merged.text == text or _replace(source.file, session.file, merged.text, before)
        if done:
            with source.file:  # finds the claims again
                return merged.overridden
    raise FileInUseError(
        f"other programs changed this file in each of {_MAX_ATTEMPTS} attempts to save it; save again", path=source.path
    )


def _replace(queue: QueueFile, file: File, text: bytes, before: Token) -> bool:
    if queue.ledger.lined and not generations_in(text):  # the person has seen all changes, and removed the line
        mark, line, _ = line_for(text, queue.ledger.generation.number)
        text = mark + line + text[len(mark) :]
    temporary = sidecar_path(queue.real_path, ".save")
    queue.disk.unlink(temporary)
    new = queue.disk.open(temporary, "temp")
    try:
        copy_owner(file, new)
        new.write(text)
        new.sync()
    finally:
        new.close()
    return queue.swap(file, temporary, before)
