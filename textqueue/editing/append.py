"""Appending to a queue file: in one write, under the lock, all or nothing."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from sej.system.disk import File, Status
from sej.system.locks import end_file_lease
from textqueue.editing.proof import Place
from textqueue.editing.queue_file import QueueFile
from textqueue.editing.tq_file import TqFile
from textqueue.errors import InvalidTextError
from textqueue.format.grammar import BOM, MessageStatus
from textqueue.format.parser import digest, render
from textqueue.ledger.log import APPENDED, text_detail

New = tuple[str | bytes, Sequence[str | bytes]]
"""A text and its variables."""
_UTF_16: Final = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE
_TAIL_BYTES: Final = 1 << 16
_LOGGED: Final = 4096
"""If an append has more entries, the ledger gets only the last one: the others would displace its marks."""


def _line_end(file: File, status: Status) -> tuple[bytes, bytes]:
    """Return the missing end of the last line, or empty bytes; and the line end that the file uses."""
    end = file.read(2, max(status.size - 2, 0))
    if not end or end.endswith(b"\n"):
        return b"", b"\r\n" if end == b"\r\n" else b"\n"
    start, last, end = status.size, -1, b""
    while start and last < 1:  # the byte before the newline is needed, too
        stop = start + len(end[:1])
        start = max(start - _TAIL_BYTES, 0)
        end = file.read(stop - start, start)
        last = end.rfind(b"\n")
    newline = b"\r\n" if last > 0 and end[last - 1 : last] == b"\r" else b"\n"
    return b"" if end == BOM else newline, newline


def require_valid(entries: Sequence[New], status: MessageStatus, path: str) -> None:
    """Check that all entries can be written; otherwise raise an InvalidTextError."""
    for number, (text, variables) in enumerate(entries):
        render(text, variables, status=status)
        if not text and status is not MessageStatus.comment:
            raise InvalidTextError(
                f"text {number + 1} of {len(entries)} is empty, but a message must have a text: leave it out", path=path
            )


def append(source: TqFile, entries: Sequence[New], status: MessageStatus) -> list[Place]:
    """Append entries, if all are valid, in one write under the lock. The file is created if it is missing."""
    require_valid(entries, status, source.path)  # before the file is changed
    queue = source.file
    with queue.guard:
        for _ in source.attempts("append"):
            if queue.disk.status(source.path) is None:
                queue.disk.open(queue.guard.real_path, "append").close()
            with suppress(FileNotFoundError), queue as session:  # removed a moment ago
                if not session.busy:
                    session.start()
                    if (places := _append(session, entries, status)) is not None:
                        return places
    return []


def _append(session: QueueFile, entries: Sequence[New], status: MessageStatus) -> list[Place] | None:
    """Append entries; None if another program replaced the file or wrote in between."""
    file = session.file
    head = file.read(4, 0)
    if head.startswith(_UTF_16) or (len(head) == 4 and bytes(2) in (head[::2], head[1::2])):
        raise InvalidTextError(
            "this file is in UTF-16, but a text queue is in UTF-8, so nothing was appended: save it as UTF-8, for"
            " example with `iconv -f UTF-16 -t UTF-8`, then append again",
            path=session.path,
        )
    missing, newline = _line_end(file, session.status)
    raws = [render(text, each, status=status, newline=newline) for text, each in entries]
    position = _write(session, missing, missing + b"".join(raws))
    if position is None or not raws:
        return None if position is None else []
    there = session.disk.status(session.path)
    if there is None or there.identity != session.status.identity:  # an editor has put another file there
        return None
    places = []
    position += len(missing)
    for raw in raws:
        places.append(Place(position, raw, 0))
        position += len(raw)
    logged = places if len(places) <= _LOGGED else places[-1:]
    lines = [(APPENDED, position, digest(raw), text_detail(raw)) for position, raw, _ in logged]
    return [place._replace(epoch=session.ledger.epoch) for place in places] if session.log(lines) else None


def _write(session: QueueFile, missing: bytes, text: bytes) -> int | None:
    """Write a text, which begins with the missing line end, and return its position; None as above."""
    size = session.status.size
    if session.alone:
        _write_end(session.file, size, text, alone=True)
        return size
    end_file_lease(session.file)  # another process may wait for it, and so would the next line: for 45 seconds
    # Another program may append as well: let the kernel find the end, then look for the text.
    with session.disk.open(session.guard.real_path, "append") as file:
        if file.status().identity != session.status.identity:
            return None
        _write_end(file, size, text, alone=False)
        now = file.size()
        start = size if now >= size + len(text) else 0  # otherwise the file was emptied meanwhile
        found = file.read(now - start, start).rfind(text)
        if found < 0:
            return None
        position = start + found
        # The other program may have written a part of a line. Then this text is in that line, and not a message.
        whole = position == size or not position or missing or file.read(1, position - 1) == b"\n"
        return position if whole else None


def _write_end(file: File, size: int, text: bytes, *, alone: bool) -> None:
    """Write at the end, all or nothing."""
    try:
        if alone:
            file.write_at(text, size)
        else:
            file.write(text)
    except OSError:
        # A part of a message would be read as a whole one: truncate it, unless another program wrote after it.
        part = file.read(len(text) + 1, size)
        if part and text.startswith(part):
            file.truncate(size)
        raise
