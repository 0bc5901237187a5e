"""Upgrading a ledger of version 1, whose digests of messages were computed differently.

In version 1, blanks at the end of a line counted, and so did the size of a reserved variable. The upgrade reads the
file, and replaces the old digest of each message with the new one. The digest of a message that is not in the file
remains as it is, and matches no message.
"""

from __future__ import annotations

import re
from typing import Final

from sej.system.disk import File
from textqueue.format.grammar import RESERVED, STATUS_OF
from textqueue.format.parser import chunks, digest, essence
from textqueue.format.windows import scan
from textqueue.ledger.log import Ledger

_RESERVED: Final = re.compile(
    rb"\n\\[ \t]*(" + "|".join(sorted(RESERVED)).encode() + rb")[ \t]*(?:=[^\n]*|(?=\n|\Z))", re.IGNORECASE
)


def upgrade(ledger: Ledger, file: File) -> None:
    """Replace the digests in an older ledger. The caller holds the lock, and has refreshed the ledger."""
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
