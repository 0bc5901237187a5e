"""Reports of conflicts between this library and other programs.

A save of an old buffer removes every message that was appended later. A user may also delete the newest message on
purpose, which looks the same.

**An editor may be in the middle of a save**, and the rest of the file may follow. So the answer is final only under the
lease, because then no other process has the file open, or after some seconds. Until then the ledger keeps the record,
with the time since when the message is missing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from sej.system.disk import File
from sej.system.locks import leased
from textqueue.ledger.records import APPENDED, TEXT, Record


class Conflict(NamedTuple):
    """A conflict between this library and another program, which a user should know about.

    Attributes:
        path: the file.
        position: the position of the message.
        text: the text of the message. If it was removed and has no copy: the first 80 bytes of the text, or its name,
            ``POSITION:HASH``, if the ledger has an equal message before it.
        kind: ``"reverted"``: an editor saved an old buffer and reverted a mark; ``"claim"``: it reverted a claim;
            ``"collision"``: the file was rewritten at the moment of an edit; ``"changed"``: a claimed message was
            changed or deleted; ``"lease"``: the lease of a claim ended, and another worker took the message;
            ``"removed"``: a save removed a message that a program had appended.
        action: what the queue did about it.
    """

    path: str
    position: int
    text: str
    kind: str
    action: str


_SAVE_NS: Final = 10_000_000_000
"""A save takes less time than this."""
_REPORT: Final = "a save of an old buffer removed it, or a user deleted it"


def settle(file: File, removed: Mapping[int, Record], path: str) -> tuple[list[Conflict], list[int]]:
    """Report the removed messages, given by the numbers of their records.

    Returns:
        The reports, and the numbers of the records that the ledger keeps, because the answer is not final.
    """
    alone, now = not removed or leased(file), time.time_ns()
    reports: list[Conflict] = []
    pending: list[int] = []
    for number, record in sorted(removed.items()):
        if record.kind != APPENDED:
            continue  # a message that a user wrote and deleted
        if not alone and (record.position >= 0 or now + record.position < _SAVE_NS):
            pending.append(number)
            continue
        name = f"{max(record.position, 0)}:{record.digest[:8].decode()}"
        if record.owner.startswith(TEXT):
            name = unquote_to_bytes(record.owner.removeprefix(TEXT)).decode("utf-8", "replace")
        reports.append(Conflict(path, max(record.position, 0), name, "removed", _REPORT))
    return reports, pending
