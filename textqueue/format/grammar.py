r"""The grammar of a ``.tq`` file, as a table: what the first byte of a line means.

The parser, the edits in place and ``check`` use this table. The syntax files in ``editors/`` and the page
``docs/formats/textqueue.md`` are tested against it. A control character is always in column 0. So the first byte alone
tells the kind of a line, and no text needs escaping.

The original document defines a line as ``[-=# !\\][^\n]*(?:\n|<EOF>)|\n``. A later version may define more control
characters. So a line that begins with any other byte is kept, skipped and never changed.
"""

from __future__ import annotations

import enum
import re
from typing import Final, NamedTuple


class MessageStatus(enum.Enum):
    """The status of a message. The names and values are those of the published package.

    Attributes:
        cleared: done.
        queued: waiting.
        comment: a note for people, not a message.
        critical: failed, and not tried again.
    """

    cleared = 1
    queued = 2
    comment = 3
    critical = 4

    __hash__ = object.__hash__  # each is one object, and this is in C


class Role(enum.Enum):
    """The role of a line: it begins an entry, or belongs to the entry above."""

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
"""The table. A new control character is one more row."""


def _one(role: Role) -> int:
    (found,) = (control.byte for control in CONTROLS if control.role is role)
    return found


CONTINUATION: Final = _one(Role.continuation)
VARIABLE: Final = _one(Role.variable)
STATUS_OF: Final = {control.byte: control.status for control in CONTROLS if control.status is not None}
CONTROL_OF: Final = {status: bytes([byte]) for byte, status in STATUS_OF.items()}

_REST: Final = rb"[^\n]*\n?"  # greedy: the newline is missing only at the end of the file
_HEAD: Final = b"[" + b"".join(re.escape(bytes([byte])) for byte in STATUS_OF) + b"]" + _REST
_TEXT: Final = b"(?:" + re.escape(bytes([CONTINUATION])) + _REST + b")*"
_VARS: Final = b"(?:" + re.escape(bytes([VARIABLE])) + _REST + b")*"

ENTRY: Final = re.compile(_HEAD + _TEXT + _VARS)
"""A whole entry: its first line, its continuations, then its variables."""
CHUNK: Final = re.compile(_HEAD + _TEXT + _VARS + rb"|[^\n]+\n?|\n")
"""An entry, or a line outside of entries: blank, unknown, or without an entry above. ``findall`` covers every byte."""
LINE: Final = re.compile(b"[" + b"".join(re.escape(bytes([c.byte])) for c in CONTROLS) + rb"][^\n]*(?:\n|\Z)|\n")
"""A line, as the original document defines it."""

BOM: Final = b"\xef\xbb\xbf"
"""The byte order mark that some editors write at the start of a file. It belongs to no line."""

CONFLICT: Final = re.compile(rb"^(?:<{7}|\|{7}|>{7})(?:[ \r\n]|\Z)", re.MULTILINE)
"""A conflict marker of Git, Mercurial or Subversion. No entry begins like it."""
CONFLICT_COPY: Final = re.compile(
    r"\.sync-conflict-\d{8}-\d{6}(?:-\w+)?| ?\([^()]*conflicted copy[^()]*\)|_conflict-\d{8}-\d{6}"
)
"""What Syncthing, Dropbox, Nextcloud and ownCloud insert into the name of the second version of a file."""

MUTEX: Final = "mutex"
RETRIES: Final = "retries"
REASON: Final = "reason"
DUE: Final = "due"
PRIORITY: Final = "pri"
TAGS: Final = "tags"
RESERVED: Final = frozenset({MUTEX, RETRIES, REASON})
"""The variables that the library writes: which process has the message, how many retries are left, why it failed."""
