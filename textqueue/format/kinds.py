"""The kinds of lines in a ledger: the first byte of a line. ``textqueue.ledger.log`` describes them."""

from __future__ import annotations

from typing import Final

MARKS: Final = frozenset(b"=!#")
CLAIMS: Final = frozenset(b"cm")
GIVEN_BACK: Final = ord("-")
SET: Final = ord("v")
APPENDED: Final = ord("a")
IN_LEDGER: Final = ord("c")
IN_MUTEX: Final = ord("m")
ENDED: Final = ord("e")
STATE: Final = ord("r")
WAITING: Final = frozenset({APPENDED, GIVEN_BACK})
"""The kinds of lines for messages that this library queued."""
VISIBLE: Final = MARKS | {APPENDED, IN_MUTEX}
"""The kinds of lines whose edit a person sees in the file."""
UNSEEN: Final = CLAIMS | {GIVEN_BACK, ENDED}
"""The kinds of lines whose edit may have left bytes that an older buffer has as well, such as an earlier claim."""
ENDS: Final = MARKS | {GIVEN_BACK, ENDED}
"""The kinds of lines that end a claim."""
