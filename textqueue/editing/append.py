"""Writing at the end of a queue file: as one write, under the lock, all of it or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from sej.system.disk import File, Status
from textqueue.editing.place import Place
from textqueue.editing.queue_file import MOMENT_S, Session
from textqueue.editing.source import Source
from textqueue.errors import TextQueueError
from textqueue.format.grammar import BOM, MessageStatus
from textqueue.format.parser import render
from textqueue.format.windows import token_of
from textqueue.ledger.log import APPENDED

__all__ = ["New", "append"]

New = tuple[str | bytes, Sequence[str | bytes]]
"""A text and its variables."""
_Build = Callable[[File, Status], tuple[bytes, list[bytes]]]
"""Given the file as it is: what ends its last line, and the entries in its own line ends."""
_TRIES: Final = 100
_TAIL_BYTES: Final = 1 << 16


def _mending(file: File, status: Status) -> tuple[bytes, bytes]:
    """What ends the last line if it has no end, and the line ends that the last line with one has."""
    end = file.read(2, max(status.size - 2, 0))
    if not end or end.endswith(b"\n"):
        return b"", b"\r\n" if end == b"\r\n" else b"\n"
    start, last, end = status.size, -1, b""
    while start and last < 1:  # what stands before the newline must be there, too
        stop = start + len(end[:1])
        start = max(start - _TAIL_BYTES, 0)
        end = file.read(stop - start, start)
        last = end.rfind(b"\n")
    newline = b"\r\n" if last > 0 and end[last - 1 : last] == b"\r" else b"\n"
    return b"" if end == BOM else newline, newline


def append(source: Source, entries: Sequence[New], status: MessageStatus) -> list[Place]:
    """Write entries at the end, as one write under the lock; the file is made when it is missing.

    Args:
        source: the queue file.
        entries: text and variables of each; all are written, or none when the format cannot hold one.
        status: of all.

    Raises:
        InvalidTextError: the format cannot hold one.
    """
    for text, variables in entries:  # before the file is touched
        render(text, variables, status=status)

    def build(file: File, state: Status) -> tuple[bytes, list[bytes]]:
        mend, newline = _mending(file, state)
        return mend, [render(text, each, status=status, newline=newline) for text, each in entries]

    with source.file.guard:
        for _ in range(_TRIES):
            if source.file.disk.status(source.path) is None:
                source.file.disk.open(source.path, "append").close()
            try:
                with source.file.session() as session:
                    places = _append(source, session, build)
            except FileNotFoundError:
                continue
            if places is not None:
                return places
    raise TextQueueError("cannot append: another program replaces the file all the time", path=source.path)


def _append(source: Source, session: Session, build: _Build) -> list[Place] | None:
    size = session.status.size
    mend, entries = build(session.file, session.status)
    text = mend + b"".join(entries)
    began, still = time.monotonic(), session.still()
    if session.alone:
        position: int | None = size
        _write_end(session.file, session.file.write_at, size, text)
    else:
        # Somebody else may append as well: let the kernel find the end, then see where it was.
        file = source.file.disk.open(source.path, "append")
        try:
            if file.status().identity != session.status.identity:
                return None
            _write_end(file, lambda data, _: file.write(data), size, text)
            found = file.read(file.status().size - size, size).find(text)
            position = None if found < 0 else size + found
        finally:
            file.close()
    there = source.file.disk.status(source.path)
    if position is None or there is None or there.identity != session.status.identity:
        return None
    places = []
    position += len(mend)
    for raw in entries:
        places.append(Place(position, raw, 0))
        position += len(raw)
    ours = session.alone or (still and time.monotonic() - began < MOMENT_S)
    if places:
        source.file.record(
            token_of(there if ours else session.status), [(APPENDED, places[-1].position, places[-1].raw, b"-")]
        )
    return [place._replace(epoch=source.file.ledger.epoch) for place in places]


def _write_end(file: File, write: Callable[[bytes, int], None], size: int, text: bytes) -> None:
    """Write at the end, and leave all of it or nothing."""
    try:
        write(text, size)
    except OSError:
        # Half a message must not be taken for a whole one: cut it off, unless somebody else wrote behind it.
        part = file.read(len(text) + 1, size)
        if part and text.startswith(part):
            file.truncate(size)
        raise
