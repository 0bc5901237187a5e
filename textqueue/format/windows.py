"""Reading a queue file in windows: however long the file, a window at a time is in memory.

A window holds whole chunks (see ``textqueue.format.parser``). The file is opened for each window and closed again, so
that a reader never keeps a program that needs the file alone waiting, and never reads on in a file that was replaced.

An unterminated last line is held back until the file has been quiet for ``settle_s``: somebody may still be writing it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from sej.system.disk import Disk, File, Status
from sej.system.locks import let_in
from textqueue.format.grammar import BOM
from textqueue.format.parser import whole

__all__ = ["FIRST_WINDOW", "WINDOW", "Token", "Window", "read_window", "scan", "settled", "token_of"]

WINDOW: Final = 1 << 20
"""Bytes that are read at once; more only for a message that is longer."""
FIRST_WINDOW: Final = 1 << 16

Token = tuple[int, int, int]


class Window(NamedTuple):
    """Whole chunks from position on. ``at_end``: nothing certain follows. ``held``: bytes that may still grow."""

    position: int
    data: bytes
    at_end: bool
    held: int


def token_of(status: Status) -> Token:
    """What tells one state of the file from another: inode, size and time of change."""
    return status.inode, status.size, status.mtime_ns


def read_window(file: File, position: int, size: int, *, settled: Callable[[], bool]) -> Window:
    """Read the whole chunks that begin at position.

    Args:
        file: the open file.
        position: where a chunk begins.
        size: bytes to read at first; doubled until one chunk is whole.
        settled: asked when the file ends without a newline: whether that end is meant.
    """
    while True:
        data = file.read(size, position)
        if position == 0 and data.startswith(BOM):
            position, data = len(BOM), data[len(BOM) :]
            size -= len(BOM)
        if len(data) < size:  # the end of the file
            if data.endswith(b"\n") or not data or settled():
                return Window(position, data, True, 0)
            end = whole(data)
            return Window(position, data[:end], True, len(data) - end)
        end = whole(data)
        if end:
            return Window(position, data[:end], False, 0)
        size *= 2


def scan(file: File, *, window_bytes: int = FIRST_WINDOW) -> Iterator[Window]:
    """The whole file, to its last byte, window by window.

    The caller makes sure that it has read one state of the file. If it has a lease, a process that waits for the file
    waits for one window.
    """
    position = 0
    while True:
        let_in(file)
        window = read_window(file, position, window_bytes, settled=lambda: True)
        yield window
        if window.at_end:
            return
        position = window.position + len(window.data)


def settled(disk: Disk, path: str, *, settle_s: float, now_ns: int) -> bool:
    """Whether the file has been quiet for settle_s; a time of change in the future counts as long ago."""
    status = disk.status(path)
    if status is None:
        return False
    age_s = (now_ns - status.mtime_ns) / 1e9
    return not -settle_s < age_s < settle_s
