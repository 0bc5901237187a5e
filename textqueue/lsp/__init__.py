"""The language server for ``.tq`` files: what a document means, and the protocol.

This module has what the text of an editor's buffer means: entries with their lines, and problems. No I/O.

Lines and columns count from 0. A column is a number of characters; the server converts it to the units of the editor.

The protocol is in a private module, because it cannot be imported without the extra ``lsp``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from textqueue.checker import Problem, check_text
from textqueue.format.mutex import ROOM
from textqueue.format.parser import (
    CONTINUATION,
    DUE,
    MUTEX,
    PRIORITY,
    REASON,
    RETRIES,
    TAGS,
    VARIABLE,
    Entry,
    decode,
    digest,
    encode,
    name_of,
    parse,
)

VARIABLES: Final = {
    RETRIES: (f"{RETRIES}=3 ", "the number of attempts that are left"),
    MUTEX: (f"{MUTEX}={' ' * (2 * ROOM)}", "room for the name of the process that works on the message"),
    REASON: (f"{REASON}={' ' * 40}", "room for the reason of a failure"),
    DUE: (f"{DUE}=", "a date, as in 2026-11-30 or 2026-11-30 17:00: no worker takes the message before"),
    PRIORITY: (f"{PRIORITY}=", "a number: a higher one is listed first"),
    TAGS: (f"{TAGS}=", "words, separated by blanks or commas"),
}
"""The variables that the library reads: a line of each with room for its value, and what it means."""
_BELONGS: Final = (chr(CONTINUATION), chr(VARIABLE))


class Item(NamedTuple):
    """An entry with its first line, and its lines without line ends."""

    entry: Entry
    first: int
    lines: list[str]

    @property
    def last(self) -> int:
        """Its last line."""
        return self.first + len(self.lines) - 1

    @property
    def start(self) -> int:
        """The column of its control character: a byte order mark before it is a character."""
        return 1 if self.first == 0 and self.entry.position else 0

    @property
    def name(self) -> bytes:
        """The hash by which the ledger knows it."""
        return digest(self.entry.raw)


class Document:
    """A buffer, parsed as the queue parses the file. An entry is parsed when it is needed: a buffer may be large.

    A line that begins with neither a blank nor a backslash begins an entry or is outside of entries, whatever is above
    it. So a change needs a new look at the lines between two such lines only.
    """

    def __init__(self, text: str) -> None:
        """Take a text. It may end without a newline."""
        self.lines = text.split("\n")
        self.problems = self._check(0, len(self.lines))

    def change(self, start: tuple[int, int], end: tuple[int, int], text: str) -> None:
        """Replace the text between two places, each a line and a column."""
        (first, column), (last, rest) = start, end
        lines = (self.lines[first][:column] + text + self.lines[last][rest:]).split("\n")
        begin, stop = self._begin(max(first - 1, 0)), self._end(last)  # the entry above may have lost or got lines
        more = len(lines) - (last + 1 - first)
        above = [one for one in self.problems if one[0] < begin]
        below = [(line + more, one) for line, one in self.problems if line >= stop]
        self.lines[first : last + 1] = lines
        self.problems = [*above, *self._check(begin, stop + more), *below]

    def _check(self, first: int, end: int) -> list[tuple[int, Problem]]:
        return [(one.line - 1, one) for one in check_text(self._data(first, end), "", line=first + 1)]

    def _data(self, first: int, end: int) -> bytes:
        return encode("\n".join(self.lines[first:end]) + ("\n" if end < len(self.lines) else ""))

    def _begin(self, line: int) -> int:
        line = min(line, len(self.lines) - 1)  # an editor may ask about lines that it has removed since
        while line > 0 and self.lines[line].startswith(_BELONGS):
            line -= 1
        return line

    def _end(self, line: int) -> int:
        """Return the first line after a line that does not belong to what is above it."""
        line += 1
        while line < len(self.lines) and self.lines[line].startswith(_BELONGS):
            line += 1
        return line

    def items(self, first: int, last: int) -> Iterator[Item]:
        """Yield the entries that have a line between two lines."""
        line = begin = self._begin(first)
        for part in parse(self._data(begin, self._end(last)), start=not begin):
            if isinstance(part, Entry):
                lines = decode(part.raw).removesuffix("\n").split("\n")
                item = Item(part, line, [one.removesuffix("\r") for one in lines])
                if item.last >= first:
                    yield item
            line += part.raw.count(b"\n")

    def at(self, line: int) -> Item | None:
        """Return the entry to which a line belongs."""
        return next(self.items(line, line), None) if line < len(self.lines) else None

    def equal_above(self, item: Item) -> int:
        """Return how many messages above a message are equal to it."""
        head, name = self.lines[item.first], item.name
        alike = [line for line, text in enumerate(self.lines[: item.first]) if text == head]
        return sum(other.name == name for line in alike if (other := self.at(line)) is not None)

    def completions(self, line: int, column: int) -> dict[str, tuple[str, str]]:
        """Return the variables that may be written at a place: the rest of the line, and a description, by name."""
        text = self.lines[line][:column] if line < len(self.lines) else ""
        if not text.startswith(chr(VARIABLE)) or "=" in text:
            return {}
        found = dict(VARIABLES)
        for other in self.lines:
            if other.startswith(chr(VARIABLE)) and "=" in other and (name := name_of(encode(other[1:]))):
                found.setdefault(name, (f"{name}=", "a variable of this file"))
        own = self.at(line)
        lines = [] if own is None else [one for n, one in enumerate(own.lines, own.first) if n != line]
        there = {name_of(encode(one[1:])) for one in lines if one.startswith(chr(VARIABLE))}
        return {name: one for name, one in found.items() if name not in there}
