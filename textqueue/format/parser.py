r"""The grammar of a ``.tq`` file, as a table: what the first byte of a line means; and the parser.

The parser, the edits in place and ``check`` use this table. The syntax files in ``editors/`` and the page
``docs/formats/textqueue.md`` are tested against it. A control character is always in column 0. So the first byte alone
tells the kind of a line, and no text needs escaping.

The original document defines a line as ``[-=# !\\][^\n]*(?:\n|<EOF>)|\n``. A later version may define more control
characters. So a line that begins with any other byte is kept, skipped and never changed.

**The parser**: bytes in, entries out. No I/O. Any bytes can be parsed, so nothing raises.

:func:`parse` yields two kinds of objects: an :class:`Entry`, and a :class:`Stray` (a line outside of entries, and why).
The ``raw`` bytes of all of them, joined, are the input.

For speed, the queue works with *chunks*: the raw bytes of an entry or of a stray line. It decodes a chunk only when a
caller needs its text or variables: :func:`chunks`, :func:`whole`, :func:`value_of`, :func:`variables_of`.
:func:`render` is the inverse.
"""

from __future__ import annotations

import enum
import itertools
import re
from binascii import hexlify
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

from textqueue.errors import InvalidTextError


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


_RETURN: Final = 13
_NEWLINE: Final = 10
_DIGITS: Final = 18
_RESERVED: Final = re.compile(
    rb"\n\\seq=[0-9]{12}(?=\n|\Z)|\n\\[ \t]*(" + "|".join(sorted(RESERVED)).encode() + rb")[ \t]*(?:=[^\n]*|(?=\n|\Z))",
    re.IGNORECASE,
)
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?(?:Z|[+-]\d\d:\d\d)?)?")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,9}")
_TRIMMED: Final = (b" ", b"\t", b"\r")
_NOT_ALONE: Final = bytes(control.byte for control in CONTROLS if control.role is not Role.entry)


class Variable(NamedTuple):
    """A variable: the position of its text, relative to the entry's control byte, and the text with its padding."""

    position: int
    data: bytes


class Entry(NamedTuple):
    """A message or comment: its position, status, text, variables, and raw bytes."""

    position: int
    status: MessageStatus
    value: bytes
    variables: tuple[bytes, ...]
    raw: bytes


class Stray(NamedTuple):
    """A line outside of entries: blank, unknown, or a continuation or variable without an entry above."""

    position: int
    kind: str
    raw: bytes


def parse(data: bytes, *, start: bool = True) -> Iterator[Entry | Stray]:
    """Parse a file, or a part that begins and ends as an entry does. start: it may begin with a byte order mark."""
    position = 0
    if start and data.startswith(BOM):
        yield Stray(0, "byte order mark", BOM)
        position = len(BOM)
    for raw in chunks(data[position:]):
        status = STATUS_OF.get(raw[0])
        if status is None:
            yield Stray(position, _kind(raw), raw)
        else:
            yield Entry(position, status, value_of(raw), tuple(v.data for v in variables_of(raw)), raw)
        position += len(raw)


def chunks(data: bytes) -> list[bytes]:
    """Split data, which must begin with a whole chunk, into entries and stray lines. The chunks, joined, are data."""
    if b"\n " not in data and b"\n\\" not in data and b"\r" not in data:
        return data.splitlines(True)  # every line is a chunk
    found: list[bytes] = CHUNK.findall(data)
    return found


def whole(data: bytes) -> int:
    """Return how many bytes from the start are whole chunks, whatever bytes follow data."""
    end = len(data)
    while (end := data.rfind(b"\n", 0, end)) >= 0:
        if end + 1 < len(data) and data[end + 1] not in _NOT_ALONE:
            return end + 1
    return 0


def value_of(raw: bytes) -> bytes:
    """Return the text of an entry: its lines without control bytes, joined by newlines."""
    end = raw.find(b"\n")
    if end == len(raw) - 1:
        return raw[1:end] if raw[end - 1] != _RETURN else raw[1 : end - 1]
    if end < 0:
        return raw[1:]
    *lines, last = raw.split(b"\n")  # a last line without a newline keeps its carriage return
    first, *more = [line.removesuffix(b"\r") for line in lines] + [last] * bool(last)
    below = itertools.takewhile(lambda line: line[:1] == bytes([CONTINUATION]), more)
    return b"\n".join([line[1:] for line in (first, *below)])


def variables_of(raw: bytes) -> list[Variable]:
    """Return the variables of an entry, in order."""
    found: list[Variable] = []
    position = raw.find(b"\n\\") + 1
    if position:
        *lines, last = raw[position:].split(b"\n")
        for line in lines:
            found.append(Variable(position + 1, line[1:-1] if line.endswith(b"\r") else line[1:]))
            position += len(line) + 1
        if last:
            found.append(Variable(position + 1, last[1:]))
    return found


def name_of(variable: bytes) -> str | None:
    """Return the name of a variable ``name=value``. A word alone is a name; blanks alone have no name."""
    name = decode(variable.partition(b"=")[0]).strip(" \t")
    return name or None


def retries_of(raw: bytes) -> Variable | None:
    """Return the value of ``retries=`` with its padding, if it is a decimal number of at most 18 digits."""
    for position, data in variables_of(raw) if b"\\" in raw else ():
        name, _, room = data.partition(b"=")
        if name_of(data) == RETRIES and (number := room.strip()).isdigit() and len(number) <= _DIGITS:
            return Variable(position + len(name) + 1, room)
    return None


class Plan(NamedTuple):
    """When a message is to be done: the text of ``due=``, the number in ``pri=``, the words in ``tags=``."""

    due: str = ""
    priority: int = 0
    tags: tuple[str, ...] = ()

    @property
    def due_ns(self) -> int:
        """When workers may take the message, in nanoseconds since 1970; 0 without a date, or if it cannot be read."""
        return moment_ns(self.due) or 0


_UNPLANNED: Final = Plan()


@lru_cache
def moment_ns(text: str) -> int | None:
    """Return a date (its first moment), or a local date and time, in nanoseconds since 1970; None if it is neither."""
    try:
        return int(datetime.fromisoformat(text).timestamp()) * 10**9 if _MOMENT.fullmatch(text) else None
    except (ValueError, OverflowError):  # such as 2026-02-30
        return None


def number_of(text: str) -> int | None:
    """Return a priority; None if the text is not a whole number of at most nine digits."""
    return int(text) if _NUMBER.fullmatch(text) else None


def plan_error(name: str, text: str) -> tuple[str, str] | None:
    """Return what is wrong with the text of a variable of a plan, and how to fix it; None if nothing is."""
    if name == DUE and text and moment_ns(text) is None:
        what = f"due must be a date, with or without a time, got {text[:40]!r}; workers do not wait"
        return what, "write due=2026-11-30, or due=2026-11-30 17:00"
    if name == PRIORITY and text and number_of(text) is None:
        return f"pri must be a whole number, got {text[:40]!r}; it counts as 0", "write pri=1"
    return None


def plan_of(raw: bytes) -> Plan:
    """Return when a person wants a message to be done. Of several variables of a name, the first one counts."""
    if b"\n\\" not in raw:
        return _UNPLANNED
    found: dict[str | None, str] = {}
    for _, data in variables_of(raw):
        found.setdefault(name_of(data), decode(data.partition(b"=")[2]).strip())
    tags = found.get(TAGS, "").replace(",", " ").split()
    return Plan(found.get(DUE, ""), number_of(found.get(PRIORITY, "")) or 0, tuple(tags))


def essence(raw: bytes) -> bytes:
    """Return what identifies an entry: its bytes without the control byte and the blanks at line ends.

    Some editors trim these blanks. Of a reserved variable only the name counts. A number that a sort has put below it
    is left out.
    """
    text = raw[1:-1] if raw.endswith(b"\n") else raw[1:]
    if _NEWLINE not in text:  # a number: in bytes, a search for bytes is ten times slower
        return text.rstrip(b" \t\r")
    at = text.find(b"\n\\")
    return trimmed(text) if at < 0 else trimmed(text[:at]) + _variables(text[at:])


def trimmed(text: bytes) -> bytes:
    """Return lines without the blanks and carriage returns at their ends, which some editors remove."""
    if text.endswith(_TRIMMED) or b" \n" in text or b"\t\n" in text or b"\r\n" in text:
        return b"\n".join([line.rstrip(b" \t\r") for line in text.split(b"\n")])
    return text


@lru_cache(1024)
def _variables(text: bytes) -> bytes:
    """Return what counts of the variables of a message; cached, because many messages have the same ones."""
    return _RESERVED.sub(_name_alone, trimmed(text))


def digest(raw: bytes) -> bytes:
    """Return 96 bits of hash of an entry's essence in hexadecimal digits, by which the ledger identifies a message."""
    return hexlify(blake2b(essence(raw), digest_size=12).digest())


def _name_alone(variable: re.Match[bytes]) -> bytes:
    return b"\n\\" + variable[1].lower() if variable[1] else b""


def render(
    text: str | bytes,
    variables: Sequence[str | bytes] = (),
    *,
    status: MessageStatus = MessageStatus.queued,
    newline: bytes = b"\n",
) -> bytes:
    """Return the bytes of an entry. It raises an InvalidTextError if the parser would not read them back."""
    lines = encode(text).split(b"\n")
    lines[0] = CONTROL_OF[status] + lines[0]
    lines[1:] = [b"%c%s" % (CONTINUATION, line) for line in lines[1:]]
    for number, variable in enumerate(variables):
        data = encode(variable)
        if b"\n" in data:
            raise InvalidTextError(
                f"variable {number} contains a newline, but must be a single line; put longer text into the message"
            )
        lines.append(b"%c%s" % (VARIABLE, data))
    for number, line in enumerate(lines):
        if line.endswith(b"\r"):
            raise InvalidTextError(
                f"line {number + 1} of the message ends with a carriage return, which the format treats as a part of"
                " the line end: remove it"
            )
    return newline.join(lines) + newline


def encode(text: str | bytes) -> bytes:
    """Encode text as UTF-8. It is the inverse of :func:`decode`, also for bytes that are not UTF-8."""
    if isinstance(text, str):
        try:
            return text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise InvalidTextError(f"text must be valid UTF-8, but has a surrogate: {error}") from error
    if isinstance(text, bytes):
        return text
    raise TypeError(f"text must be str or bytes, got {type(text).__name__}")


def decode(data: bytes) -> str:
    """Decode UTF-8. Bytes that are not UTF-8 become lone surrogates."""
    return data.decode("utf-8", "surrogateescape")


def _kind(raw: bytes) -> str:
    if raw in (b"\n", b"\r\n"):
        return "blank"
    if raw[0] == CONTINUATION:
        return "continuation of nothing"
    if raw[0] == VARIABLE:
        return "variable of nothing"
    return "unknown control character"
