r"""The line of a queue file that names its generation: the number of the last change by a program that the file has.

It is a variable of a comment::

    #queue
    \seq=000000000042

Each change by a program gets the next number. The program writes the change, then the number, then a line of the
ledger. So a person's buffer names the state from which it was made: its number G. The person has seen the changes up to
G, so for them the file is right. The changes above G are made again (``textqueue.editing.reconcile``).

**Why at the top.** Programs read and save from the top. A reader that takes several steps has read G before the rest,
so the rest has every change up to G. A save that is half done shows its G first. The zeros keep the room that the next
numbers need if an editor trims blanks.

A person may move the line, so it is searched. A renamed or damaged variable is a missing line. A sort of all lines
leaves the number with a message. It counts, and the line is put back to the top. No I/O.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from textqueue.format.grammar import BOM

DIGITS: Final = 12
NUMBER: Final = b"%%0%dd" % DIGITS
"""The format of a number in the line."""
_LINE: Final = re.compile(rb"(?m)^#[^\n]*\n(?:[ \\][^\n]*\n)*?\\seq=([0-9]{%d})[ \t]*\r?$" % DIGITS)
_STRAY: Final = re.compile(rb"(?m)^(?:\\seq=([0-9]{%d})[ \t]*|#queue)\r?\n" % DIGITS)
_HEAD: Final = b"#queue%s\\seq="


class Generation(NamedTuple):
    """A line: the position of its number, and the number."""

    position: int
    number: int


def generations_in(data: bytes, start: int = 0) -> list[Generation]:
    """Return the lines in whole entries that begin at a position of the file."""
    if b"\\seq=" not in data:
        return []
    return [Generation(start + found.start(1), int(found[1])) for found in _LINE.finditer(data)]


def strays_in(data: bytes, start: int = 0) -> list[tuple[int, int, int]]:
    """Return what a sort has left of the line: position, size and number of each piece, -1 without a number."""
    if b"\\seq=" not in data and b"#queue" not in data:
        return []
    return [(start + one.start(), len(one[0]), int(one[1] or -1)) for one in _STRAY.finditer(data)]


def is_generation(raw: bytes) -> bool:
    """Return whether an entry is the line."""
    return raw[:1] == b"#" and _LINE.match(raw) is not None


def line_for(data: bytes, number: int) -> tuple[bytes, bytes, int]:
    """Return the byte order mark of a file that begins so, the line that is added after it, and where its number is."""
    mark = BOM if data.startswith(BOM) else b""
    end = data.find(b"\n")
    newline = b"\r\n" if end > 0 and data[end - 1 : end] == b"\r" else b"\n"
    head = _HEAD % newline
    return mark, head + NUMBER % number + newline, len(mark) + len(head)
