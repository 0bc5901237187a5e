"""Reports of conflicts between this library and other programs."""

from __future__ import annotations

from typing import NamedTuple


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
