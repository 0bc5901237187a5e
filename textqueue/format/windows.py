"""Reading a queue file in windows, so that memory use does not depend on the size of the file.

A window holds whole chunks (see ``textqueue.format.parser``). A reader opens the file for each window and closes it
again. So it does not delay a program that needs the file exclusively, and does not read a file that was replaced.

The last entry is held back until it is complete, because another program may write it in several steps: a line without
its newline, or a text and later its variables.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from sej.system.disk import File, Status
from sej.system.locks import end_file_lease_if_waited_for
from textqueue.errors import TextQueueError
from textqueue.format.grammar import BOM, CONFLICT, CONFLICT_COPY
from textqueue.format.parser import chunks, whole

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
