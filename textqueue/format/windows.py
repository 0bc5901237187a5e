r"""Reading a queue file in windows, so that memory use does not depend on the size of the file.

A window holds whole chunks (see ``textqueue.format.parser``). A reader opens the file for each window and closes it
again. So it does not delay a program that needs the file exclusively, and does not read a file that was replaced.

The last entry is held back until it is complete, because another program may write it in several steps: a line without
its newline, or a text and later its variables.

**The line with the number** names the generation of the file: the number of the last change by a program that it has.

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
leaves the number with a message. It counts, and the line is put back to the top.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from sej.system.disk import File, Status
from sej.system.locks import end_file_lease_if_waited_for
from textqueue.errors import TextQueueError
from textqueue.format.parser import BOM, CONFLICT, CONFLICT_COPY, chunks, whole

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


WINDOW: Final = 1 << 20
"""The largest window, in bytes. Only a message that is longer makes a window larger."""
FIRST_WINDOW: Final = 1 << 16

Token = tuple[int, int, int]


class Window(NamedTuple):
    """Whole chunks from a position. ``at_end``: it is the last window."""

    position: int
    data: bytes
    at_end: bool


def token_of(status: Status) -> Token:
    """Return what identifies a state of the file: inode, size and modification time."""
    return status.inode, status.size, status.mtime_ns


def unknown(token: Token) -> Token:
    """Return the state after an edit during which another program may have written, from the state before."""
    return 0, token[1], token[2]


def read_window(file: File, position: int, size: int, *, settled: Callable[[int, bytes], bool] | None = None) -> Window:
    """Read the whole chunks that begin at a position, in size bytes, or more for one chunk.

    settled: returns whether the last entry of the file, with its position and its bytes, is complete; None: it is.
    """
    while True:
        data = file.read(size, position)
        if position == 0 and data.startswith(BOM):
            position, data = len(BOM), data[len(BOM) :]
            size -= len(BOM)
        end, at_end = whole(data), len(data) < size
        if at_end and (not data or settled is None or settled(position + end, data[end:])):
            return Window(position, data, True)
        if at_end or end:
            return Window(position, data[:end], at_end)
        size *= 2


@lru_cache
def _original(path: str) -> str:
    """Return the name of the original if a file is a conflict copy; otherwise empty."""
    name = os.path.basename(path)
    return CONFLICT_COPY.sub("", name) if CONFLICT_COPY.search(name) else ""


def require_resolved(file: File, window: Window) -> None:
    """Check that workers may take messages of a window: after a conflict of two versions, done ones may be queued."""
    if original := _original(file.path):
        raise TextQueueError(
            f"this is a conflict copy of {original!r}, so none of its messages is delivered: add to {original!r} what"
            " it lacks (diff shows it), then remove this file",
            path=file.path,
        )
    data, end = window.data, window.position + len(window.data)
    found = CONFLICT.search(data) if b"<<<<<<<" in data or b"|||||||" in data or b">>>>>>>" in data else None
    at = end if found is None else window.position + found.start()
    if found is not None or CONFLICT.match(file.read(8, end)):  # after a message, its other variables may follow
        line = file.read(at, 0).count(b"\n") + 1
        raise TextQueueError(
            f"line {line} is a conflict marker, so no message is delivered: keep one version of each message and remove"
            " the markers, or run `git checkout --ours` or `--theirs` on this file, then try again",
            path=file.path,
            position=at,
        )


def placed(position: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the chunks of whole chunks that begin at a position, with their positions."""
    for raw in chunks(data):
        yield position, raw
        position += len(raw)


def scan(
    file: File, position: int = 0, size: int = 0, settled: Callable[[int, bytes], bool] | None = None
) -> Iterator[Window]:
    """Yield the windows from a position on, as :func:`read_window`. The caller checks that the file did not change.

    If it has a file lease, a process that opens the file waits for one window at most.
    """
    while True:
        window = read_window(file, position, size or FIRST_WINDOW, settled=settled)
        yield window
        if window.at_end:
            return
        position, size = window.position + len(window.data), min(size * 4, FIRST_WINDOW)
        end_file_lease_if_waited_for(file)


def scan_chunks(file: File) -> Iterator[tuple[int, bytes]]:
    """Yield the chunks of the whole file with their positions, as :func:`scan` does."""
    for window in scan(file):
        yield from placed(window.position, window.data)
