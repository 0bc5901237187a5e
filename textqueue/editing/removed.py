"""Messages that a program appended and that a save removed: reported, and appended again if there is a copy.

A save of an old buffer removes every message that was appended later. A user may also delete the newest message on
purpose, which looks the same. So a message is appended again only if the program that appended it wanted that
(``textqueue.ledger.copies``), and only once: the new append has no copy.

**An editor may be in the middle of a save**, and the rest of the file may follow. So the answer is final only under the
lease, because then no other process has the file open, or after some seconds. Until then the ledger keeps the record,
with the time since when the message is missing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from sej.system.disk import File
from sej.system.locks import leased
from textqueue.editing.conflicts import Conflict
from textqueue.format.kinds import APPENDED
from textqueue.format.parser import digest, value_of
from textqueue.format.windows import Token
from textqueue.hot import essence
from textqueue.ledger.copies import Copies
from textqueue.ledger.records import EMPTY, TEXT, Record

_SAVE_NS: Final = 10_000_000_000
"""A save takes less time than this."""
_REPORT: Final = "a save of an old buffer removed it, or a user deleted it"


class Removed(NamedTuple):
    """What was done about removed messages.

    Attributes:
        conflicts: the reports.
        pending: the numbers of the records that the ledger keeps, because the answer is not final.
        appended: position and digest of each message that was appended again.
    """

    conflicts: list[Conflict]
    pending: list[int]
    appended: list[tuple[int, bytes]]

    def records(self, token: Token) -> list[Record]:
        """Return the ledger lines of what was appended again."""
        return [Record(APPENDED, position, name, token, EMPTY) for position, name in self.appended]


def settle(
    file: File, removed: Mapping[int, Record], older: Mapping[bytes, Sequence[bytes]], copies: Copies, path: str
) -> Removed:
    """Report the removed messages, and append those that have a copy.

    Args:
        file: the queue file, which has the lease if the system granted it.
        removed: the records of the messages, by number.
        older: the digests of messages before their variables were set, the latest first. The copy has the first one.
        copies: the copies.
        path: the path of the queue file, for reports.
    """
    made = Removed([], [], [])
    if not removed:
        return made
    alone, now = leased(file), time.time_ns()
    names = {record.digest: [record.digest, *older.get(record.digest, ())] for record in removed.values()}
    found = copies.find({name for each in names.values() for name in each})
    for number, record in sorted(removed.items()):
        raw = next((found[name] for name in names[record.digest] if name in found), None)
        if raw is None and record.kind != APPENDED:
            continue  # a message that a user wrote and deleted
        if not alone and (raw is not None or record.position >= 0 or now + record.position < _SAVE_NS):
            made.pending.append(number)
        elif raw is None:
            name = f"{max(record.position, 0)}:{record.digest[:8].decode()}"
            if record.owner.startswith(TEXT):
                name = unquote_to_bytes(record.owner.removeprefix(TEXT)).decode("utf-8", "replace")
            made.conflicts.append(Conflict(path, max(record.position, 0), name, "removed", _REPORT))
        else:
            made.appended.append((_append(file, raw), digest(essence(raw))))
            text = value_of(raw).decode("utf-8", "replace")
            action = "a save of an old buffer removed it: appended again"
            made.conflicts.append(Conflict(path, made.appended[-1][0], text, "removed", action))
    if made.appended:
        copies.forget({name for _, name in made.appended})
    return made


def _append(file: File, raw: bytes) -> int:
    """Write a message at the end of the file, and return its position."""
    size = file.size()
    newline = b"" if not size or file.read(1, size - 1) == b"\n" else b"\n"
    file.write_at(newline + raw, size)
    return size + len(newline)
