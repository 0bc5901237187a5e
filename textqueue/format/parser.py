"""Bytes in, entries out. No I/O, no error: any bytes can be read, and every byte comes out again.

A reader meets three shapes: an :class:`Entry`, a :class:`Stray` (a line that is no part of any entry, with what is odd
about it) and :data:`NEED_MORE` (what is left may still grow). Joining the ``raw`` of everything gives the input back.

For speed the queue works on *chunks*, the raw bytes of one entry or stray line, and takes them apart only when somebody
asks: :func:`chunks`, :func:`whole`, :func:`value_of`, :func:`variables_of`. :func:`render` is the way back.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from textqueue.errors import InvalidTextError
from textqueue.format.grammar import (
    BOM,
    CHUNK,
    CONTINUATION,
    CONTROL_OF,
    CONTROLS,
    RESERVED,
    RETRIES,
    STATUS_OF,
    VARIABLE,
    MessageStatus,
    Role,
)

__all__ = [
    "NEED_MORE",
    "Entry",
    "NeedMore",
    "Stray",
    "Variable",
    "chunks",
    "decode",
    "digest",
    "encode",
    "essence",
    "name_of",
    "parse",
    "render",
    "retries_of",
    "value_of",
    "variables_of",
    "whole",
]

_RETURN: Final = 13
_DIGITS: Final = 18
_RESERVED: Final = re.compile(
    rb"\n\\[ \t]*(" + "|".join(sorted(RESERVED)).encode() + rb")[ \t]*(?:=[^\n]*|(?=\n|\Z))", re.IGNORECASE
)
_TRIMMED: Final = (b" ", b"\t", b"\r")
_NOT_ALONE: Final = bytes(control.byte for control in CONTROLS if control.role is not Role.entry)


class Variable(NamedTuple):
    """One variable: where its text begins, counted from its entry's control byte, and the text with its padding."""

    position: int
    data: bytes


class Entry(NamedTuple):
    """A message or comment: where it stands, its status, its text and variables, and its bytes."""

    position: int
    status: MessageStatus
    value: bytes
    variables: tuple[bytes, ...]
    raw: bytes


class Stray(NamedTuple):
    """A line that is no part of an entry: blank, from the future, or a continuation or variable of nothing."""

    position: int
    kind: str
    raw: bytes


class NeedMore(enum.Enum):
    """The third shape: the last entry may still grow."""

    NEED_MORE = "need more bytes"


NEED_MORE: Final = NeedMore.NEED_MORE


def parse(data: bytes, *, final: bool = True, start: bool = True) -> Iterator[Entry | Stray | NeedMore]:
    """Take a file, or a part of it, apart.

    Args:
        data: the bytes, from the start of the file, or of a chunk.
        final: nothing follows. False: ends with ``NEED_MORE`` before the entry that may still grow.
        start: it is the start of the file, where a byte order mark may stand.
    """
    position = 0
    if start and data.startswith(BOM):
        yield Stray(0, "byte order mark", BOM)
        position = len(BOM)
    end = len(data) if final else whole(data)
    for raw in chunks(data[position:end]):
        status = STATUS_OF.get(raw[0])
        if status is None:
            yield Stray(position, _kind(raw), raw)
        else:
            yield Entry(position, status, value_of(raw), tuple(v.data for v in variables_of(raw)), raw)
        position += len(raw)
    if not final:
        yield NEED_MORE


def chunks(data: bytes) -> list[bytes]:
    """Every entry and stray line, as bytes; data must start at the start of one. Joined they are data."""
    if b"\n " not in data and b"\n\\" not in data and b"\r" not in data:
        return data.splitlines(True)  # every line stands for itself
    found: list[bytes] = CHUNK.findall(data)
    return found


def whole(data: bytes) -> int:
    """How many bytes from the start are certainly whole chunks, whatever may follow data."""
    end = len(data)
    while (end := data.rfind(b"\n", 0, end)) >= 0:
        if end + 1 < len(data) and data[end + 1] not in _NOT_ALONE:
            return end + 1
    return 0


def value_of(raw: bytes) -> bytes:
    """The text of an entry: without control bytes, its lines joined by newlines."""
    end = raw.find(b"\n")
    if end == len(raw) - 1:
        return raw[1:end] if raw[end - 1] != _RETURN else raw[1 : end - 1]
    if end < 0:
        return raw[1:]
    lines: list[bytes] = []
    for line in _lines(raw):
        if lines and line[0] != CONTINUATION:
            break
        lines.append(_bare(line)[1:])
    return b"\n".join(lines)


def variables_of(raw: bytes) -> list[Variable]:
    """The variables of an entry, in order."""
    found: list[Variable] = []
    position = raw.find(b"\n\\") + 1
    if position:
        for line in _lines(raw[position:]):
            found.append(Variable(position + 1, _bare(line)[1:]))
            position += len(line)
    return found


def name_of(variable: bytes) -> str | None:
    """The name of a variable written ``name=value``; a bare word is a name without a value, blanks have none."""
    name = decode(variable.partition(b"=")[0]).strip(" \t")
    return name or None


def retries_of(raw: bytes) -> Variable | None:
    """What stands behind ``retries=`` with its padding, where it is a decimal number of at most 18 digits."""
    for position, data in variables_of(raw):
        name, _, room = data.partition(b"=")
        if name_of(data) == RETRIES and (number := room.strip()).isdigit() and len(number) <= _DIGITS:
            return Variable(position + len(name) + 1, room)
    return None


def essence(raw: bytes) -> bytes:
    """What makes an entry itself, whatever its status: all but the control byte and how lines end.

    Blanks at the end of a line do not count, because some editors trim them. Of a reserved variable, which changes
    while a worker has the message, only its name counts.
    """
    text = raw[1:-1] if raw.endswith(b"\n") else raw[1:]
    if text.endswith(_TRIMMED) or b" \n" in text or b"\t\n" in text or b"\r\n" in text:
        text = b"\n".join([line.rstrip(b" \t\r") for line in text.split(b"\n")])
    return _RESERVED.sub(_name_alone, text) if b"\n\\" in text else text


def digest(essence: bytes) -> bytes:
    """96 bits of a message, as hexadecimal digits: by them the ledger knows it."""
    return hashlib.blake2b(essence, digest_size=12).hexdigest().encode()


def _name_alone(variable: re.Match[bytes]) -> bytes:
    return b"\n\\" + variable[1].lower()


def render(
    text: str | bytes,
    variables: Sequence[str | bytes] = (),
    *,
    status: MessageStatus = MessageStatus.queued,
    newline: bytes = b"\n",
) -> bytes:
    """The bytes of one entry.

    Raises:
        InvalidTextError: a carriage return at the end of a line, or a newline in a variable: it would not be read back.
        TypeError: something is neither str nor bytes.
    """
    lines = encode(text).split(b"\n")
    lines[0] = CONTROL_OF[status] + lines[0]
    lines[1:] = [b"%c%s" % (CONTINUATION, line) for line in lines[1:]]
    for number, variable in enumerate(variables):
        data = encode(variable)
        if b"\n" in data:
            raise InvalidTextError(f"variable {number} contains a newline; it is one line: put it into the text")
        lines.append(b"%c%s" % (VARIABLE, data))
    for number, line in enumerate(lines):
        if line.endswith(b"\r"):
            raise InvalidTextError(
                f"line {number} of the message ends with a carriage return, which the format takes for a part of the"
                " line's end and would not give back; remove it"
            )
    return newline.join(lines) + newline


def encode(text: str | bytes) -> bytes:
    """UTF-8; what :func:`decode` made of other bytes becomes these bytes again.

    Raises:
        InvalidTextError: a surrogate that :func:`decode` does not make.
        TypeError: it is neither str nor bytes.
    """
    if isinstance(text, str):
        try:
            return text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise InvalidTextError(f"text must be UTF-8, and a surrogate is none: {error}") from error
    if isinstance(text, bytes):
        return text
    raise TypeError(f"text must be str or bytes, not {type(text).__name__}")


def decode(data: bytes) -> str:
    """UTF-8; bytes that are none are kept as lone surrogates."""
    return data.decode("utf-8", "surrogateescape")


def _lines(raw: bytes) -> list[bytes]:
    lines = [line + b"\n" for line in raw.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _bare(line: bytes) -> bytes:
    if line.endswith(b"\n"):
        return line[:-2] if line.endswith(b"\r\n") else line[:-1]
    return line


def _kind(raw: bytes) -> str:
    if raw in (b"\n", b"\r\n"):
        return "blank"
    if raw[0] == CONTINUATION:
        return "continuation of nothing"
    if raw[0] == VARIABLE:
        return "variable of nothing"
    return "unknown control character"
