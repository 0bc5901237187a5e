"""What the text of an editor's buffer means: entries with their lines, tokens, and edits. No I/O, no protocol.

Lines and columns count from 0. A column is a number of characters; the server converts it to the units of the editor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from textqueue.format.grammar import BOM, CONTROL_OF, MUTEX, REASON, RETRIES, VARIABLE, MessageStatus
from textqueue.format.mutex import ROOM
from textqueue.format.parser import Entry, decode, digest, encode, essence, name_of, parse

TOKEN_TYPES: Final = ("keyword", "string", "regexp", "comment", "property", "variable")
TOKEN_MODIFIERS: Final = ("deprecated",)
VARIABLES: Final = {
    RETRIES: (f"{RETRIES}=3 ", "the number of attempts that are left"),
    MUTEX: (f"{MUTEX}={' ' * (2 * ROOM)}", "room for the name of the process that works on the message"),
    REASON: (f"{REASON}={' ' * 40}", "room for the reason of a failure"),
}
"""The variables that the library uses: a line of each with room for its value, and what it means."""
_TEXT: Final = {
    MessageStatus.queued: ("string", 0),
    MessageStatus.cleared: ("string", 1),
    MessageStatus.critical: ("regexp", 0),
    MessageStatus.comment: ("comment", 0),
}
"""The type of the text of an entry, and its modifiers."""


class Token(NamedTuple):
    """A part of a line that has one meaning; modifiers are bits."""

    line: int
    column: int
    length: int
    kind: str
    modifiers: int


class Item(NamedTuple):
    """An entry with its lines.

    Attributes:
        entry: the entry, as the queue reads it.
        first: its first line.
        lines: its lines, without line ends.
    """

    entry: Entry
    first: int
    lines: list[str]

    @property
    def last(self) -> int:
        """Its last line."""
        return self.first + len(self.lines) - 1

    @property
    def name(self) -> str:
        """The hash by which the ledger knows it."""
        return digest(essence(self.entry.raw)).decode()


class Document:
    """A buffer, parsed as the queue parses the file."""

    def __init__(self, text: str) -> None:
        """Parse a text. It may end without a newline."""
        self.data = encode(text)
        self.lines = text.split("\n")
        self.items = list(self._items())

    def _items(self) -> Iterator[Item]:
        line = 0
        for part in parse(self.data):
            if isinstance(part, Entry):
                lines = decode(part.raw).removesuffix("\n").split("\n")
                yield Item(part, line, [one.removesuffix("\r") for one in lines])
            line += part.raw.count(b"\n")

    def at(self, line: int) -> Item | None:
        """Return the entry to which a line belongs."""
        return next((item for item in self.items if item.first <= line <= item.last), None)

    def tokens(self) -> Iterator[Token]:
        """Yield the tokens, in order."""
        start = 1 if self.data.startswith(BOM) else 0
        for item in self.items:
            kind, modifiers = _TEXT[item.entry.status]
            for number, text in enumerate(item.lines, item.first):
                column = start if number == 0 else 0
                yield Token(number, column, 1, "comment" if kind == "comment" else "keyword", modifiers)
                rest = text[1:]
                if not rest:
                    continue
                if text[0] == chr(VARIABLE) and kind != "comment":
                    yield from _variable(number, column + 1, rest)
                else:
                    yield Token(number, column + 1, len(rest), kind, modifiers)

    def folds(self) -> Iterator[Item]:
        """Yield the entries that have more than one line."""
        return (item for item in self.items if len(item.lines) > 1)

    def completions(self, line: int, column: int) -> dict[str, tuple[str, str]]:
        """Return the variables that may be written at a place: the rest of the line, and a description, by name."""
        text = self.lines[line][:column] if line < len(self.lines) else ""
        if not text.startswith(chr(VARIABLE)) or "=" in text:
            return {}
        found = dict(VARIABLES)
        for item in self.items:
            for data in item.entry.variables:
                name = name_of(data)
                if name is not None and b"=" in data:
                    found.setdefault(name, (f"{name}=", "a variable of this file"))
        own = self.at(line)
        there = set() if own is None else {name_of(data) for n, data in _lines_of(own) if n != line}
        return {name: one for name, one in found.items() if name not in there}


def _lines_of(item: Item) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of the variables of an entry."""
    for number, text in enumerate(item.lines, item.first):
        if text[:1] == chr(VARIABLE):
            yield number, encode(text[1:])


def _variable(line: int, column: int, text: str) -> Iterator[Token]:
    name, equals, value = text.partition("=")
    if name:
        yield Token(line, column, len(name), "property", 0)
    if equals and value:
        yield Token(line, column + len(name) + 1, len(value), "variable", 0)


assert set(_TEXT) == set(CONTROL_OF)
