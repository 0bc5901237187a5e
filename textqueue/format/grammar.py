r"""The grammar of a ``.tq`` file, as a table: what the first byte of a line means.

Everything that knows the format reads it from here: the parser, the edits in place, ``check``, the syntax files in
``editors/`` and the page ``docs/formats/textqueue.md``, which are tested against this table. Control characters stand
in column 0 and nowhere else, so a line is understood by its first byte alone, and nothing needs escaping.

The document's own expression for a line is ``[-=# !\\][^\n]*(?:\n|<EOF>)|\n``. A line that begins with anything else is
from the future: it is kept, skipped and never touched.
"""

from __future__ import annotations

import enum
import re
from typing import Final, NamedTuple

__all__ = [
    "BOM", "CHUNK", "CONTINUATION", "CONTROLS", "CONTROL_OF", "ENTRY", "LINE", "MUTEX", "REASON", "RESERVED", "RETRIES",
    "STATUS_OF", "VARIABLE", "Control", "MessageStatus", "Role",
]  # fmt: skip


class MessageStatus(enum.Enum):
    """What became of a message; the names and values are those of the published package.

    Attributes:
        cleared: done.
        queued: waits.
        comment: no message, a person's note.
        critical: failed, and will not be tried again.
    """

    cleared = 1
    queued = 2
    comment = 3
    critical = 4


class Role(enum.Enum):
    """What a line does: begin an entry, or belong to the one above."""

    entry = "begins a message or comment"
    continuation = "continues the text above"
    variable = "attaches a variable to the entry above"


class Control(NamedTuple):
    """One control character."""

    byte: int
    name: str
    role: Role
    status: MessageStatus | None
    meaning: str


CONTROLS: Final = (
    Control(ord("-"), "queued", Role.entry, MessageStatus.queued, "a message that has not been processed"),
    Control(ord("="), "cleared", Role.entry, MessageStatus.cleared, "a message that has been processed"),
    Control(ord("!"), "critical", Role.entry, MessageStatus.critical, "a message that met an unrecoverable error"),
    Control(ord("#"), "comment", Role.entry, MessageStatus.comment, "a comment, for people"),
    Control(ord(" "), "continuation", Role.continuation, None, "one more line of the text above"),
    Control(ord("\\"), "variable", Role.variable, None, "a variable of the entry above, of fixed length"),
)
"""The table. A new control character of a later version is one more row."""


def _one(role: Role) -> int:
    (found,) = (control.byte for control in CONTROLS if control.role is role)
    return found


CONTINUATION: Final = _one(Role.continuation)
VARIABLE: Final = _one(Role.variable)
STATUS_OF: Final = {control.byte: control.status for control in CONTROLS if control.status is not None}
CONTROL_OF: Final = {status: bytes([byte]) for byte, status in STATUS_OF.items()}

_REST: Final = rb"[^\n]*\n?"  # greedy up to the newline, so the newline is missing only at the end of the file
_HEAD: Final = b"[" + b"".join(re.escape(bytes([byte])) for byte in STATUS_OF) + b"]" + _REST
_TEXT: Final = b"(?:" + re.escape(bytes([CONTINUATION])) + _REST + b")*"
_VARS: Final = b"(?:" + re.escape(bytes([VARIABLE])) + _REST + b")*"

ENTRY: Final = re.compile(_HEAD + _TEXT + _VARS)
"""One whole entry: its first line, the continuations, then the variables."""
CHUNK: Final = re.compile(_HEAD + _TEXT + _VARS + rb"|[^\n]+\n?|\n")
"""An entry, or one line that is none (blank, unknown, belonging to nothing). ``findall`` covers every byte."""
LINE: Final = re.compile(b"[" + b"".join(re.escape(bytes([c.byte])) for c in CONTROLS) + rb"][^\n]*(?:\n|\Z)|\n")
"""The document's expression for one line."""

BOM: Final = b"\xef\xbb\xbf"
"""Some editors put it before everything; it belongs to no line."""

MUTEX: Final = "mutex"
RETRIES: Final = "retries"
REASON: Final = "reason"
RESERVED: Final = frozenset({MUTEX, RETRIES, REASON})
"""Variables that the library itself writes: who works on a message, how often it may fail yet, why it failed."""
