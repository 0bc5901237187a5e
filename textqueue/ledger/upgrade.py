"""A ledger of an older version: it knows messages by what they were compared by then.

Until version 2 blanks at the end of a line counted, and of a reserved variable its name and its room. Where the message
is in the file, its new digest takes the place of the old one. What is not in the file cannot be found any more.
"""

from __future__ import annotations

import re
from typing import Final

from sej.system.disk import File
from textqueue.format.grammar import RESERVED, STATUS_OF
from textqueue.format.parser import chunks, digest, essence
from textqueue.format.windows import scan
from textqueue.ledger.log import Ledger

__all__ = ["upgrade"]

_RESERVED: Final = re.compile(
    rb"\n\\[ \t]*(" + "|".join(sorted(RESERVED)).encode() + rb")[ \t]*(?:=[^\n]*|(?=\n|\Z))", re.IGNORECASE
)


def upgrade(ledger: Ledger, file: File) -> None:
    """Give each message in an older ledger its new digest; the lock is held and the ledger is fresh."""
    edits = ledger.edits()
    wanted = {record.digest for record in edits} | {record.owner for record in edits}
    new: dict[bytes, bytes] = {}
    for window in scan(file):
        for raw in chunks(window.data):
            if raw[0] in STATUS_OF and (old := digest(_essence_1(raw))) in wanted:
                new[old] = digest(essence(raw))
    records = [
        record._replace(digest=new.get(record.digest, record.digest), owner=new.get(record.owner, record.owner))
        for record in edits
    ]
    assert ledger.token is not None
    ledger.rewrite(records, token=ledger.token)


def _essence_1(raw: bytes) -> bytes:
    raw = raw.replace(b"\r\n", b"\n")
    text = raw[1:-1] if raw.endswith(b"\n") else raw[1:]
    return _RESERVED.sub(lambda found: b"\n\\%s %d" % (found[1].lower(), len(found[0])), text)
