"""The edit of `sej tq edit`: the save of a person, merged with what programs wrote meanwhile.

Programs change entries in place, and append. So the entries of the file are those that the person began with, and new
ones at the end. An entry that the person has left as it was gets the version of the programs; a text of the person
wins, and the entry is reported. Of equal messages, the person has deleted one that no program has changed. If another
person has saved the file, or messages were moved out of it, nothing is merged.

The merged text is written into a temporary file, which is renamed. It has the number of the last change, so the person
has seen all changes, and the next session finds the claims again, as after a save by an editor
(``textqueue.editing.reconcile``). A crash before the rename changes nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import NamedTuple

from sej.system.locks import end_file_lease
from textqueue.editing.queue_file import ALL, QueueFile
from textqueue.editing.tq_file import TqFile
from textqueue.format.generation import generations_in, is_generation, line_for
from textqueue.format.grammar import BOM
from textqueue.format.parser import chunks, trimmed, value_of
from textqueue.format.windows import token_of
from textqueue.ledger.sidecar import sidecar_path, temporary_file


class Merged(NamedTuple):
    """The merged text, and the versions of programs that it does not have."""

    text: bytes
    overridden: list[bytes]


def merge(old: bytes, mine: bytes, theirs: bytes) -> Merged | None:
    """Merge two versions of a text: the person's (mine), which wins. None: another person has changed it as well."""
    if theirs in (old, mine):
        return Merged(mine, [])
    before, now, saved = entries(old), entries(theirs), entries(mine)
    if len(now) < len(before) or not all(map(_is_in_place, before, now)):
        return None
    versions: dict[bytes, deque[bytes | None]] = defaultdict(deque)  # None: no program has changed it
    surplus = Counter(map(trimmed, before))
    surplus.subtract(map(trimmed, saved))
    for one, other in zip(before, now, strict=False):
        name = trimmed(one)
        if one == other and surplus[name] > 0:
            surplus[name] -= 1  # the person has deleted it
        else:
            versions[name].append(None if one == other else other)
    merged = [(there and there.popleft()) or entry for entry in saved for there in (versions.get(trimmed(entry)),)]
    line = [raw for raw in chunks(theirs.removeprefix(BOM)) if is_generation(raw)][:1]
    mark = BOM if mine.startswith(BOM) else b""
    lost = [entry for there in versions.values() for entry in there if entry]
    return Merged(mark + b"".join([*line, *merged, *now[len(before) :]]), lost)


def entries(text: bytes) -> list[bytes]:
    """Split a text into entries and other lines, without the line that has the number. The last one gets a newline."""
    text = text.removeprefix(BOM)
    return [raw for raw in chunks(text if not text or text.endswith(b"\n") else text + b"\n") if not is_generation(raw)]


def _is_in_place(old: bytes, new: bytes) -> bool:
    """Return whether an entry is the same, or a program may have changed its status or variables in place."""
    return old == new or (len(old) == len(new) and value_of(old) == value_of(new))


def save(source: TqFile, old: bytes, new: bytes) -> list[bytes] | None:
    """Save a person's version of a queue file (new), made from an old one.

    Returns the entries that programs changed, and that the person's version replaced; None: another person has changed
    the file, and nothing was saved.
    """
    merged = None
    for _ in source.attempts("save", whole=True):
        with source.file as session:
            if session.known:
                end_file_lease(session.file)
                text = session.file.read(session.status.size, 0)
                merged = merge(old, new, text)
                if merged is None or merged.text == text or _replace(session, merged.text):
                    break
    with source.file:  # finds the claims again
        return None if merged is None else merged.overridden


def _replace(session: QueueFile, text: bytes) -> bool:
    if session.ledger.lined and not generations_in(text):  # the person has seen all changes, and removed the line
        mark, line, _ = line_for(text, session.ledger.number)
        text = mark + line + text[len(mark) :]
    temporary = sidecar_path(session.guard.real_path, ".save")
    with temporary_file(session.disk, temporary, session.file.path, ALL) as new:
        new.write(text)
    return session.swap(session.file, temporary, token_of(session.status))
