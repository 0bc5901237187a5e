"""Appending to a queue file: in one write, under the lock, all or nothing."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Final

from sej.system.disk import File, Status
from sej.system.locks import end_file_lease
from textqueue.editing.proof import Place
from textqueue.editing.queue_file import QueueFile, Session
from textqueue.editing.source import Replaced, Source
from textqueue.errors import InvalidTextError
from textqueue.format.grammar import BOM, MessageStatus
from textqueue.format.parser import digest, essence, render
from textqueue.ledger.log import APPENDED, Line, text_owner

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
    """Check that all entries can be written.

    Raises:
        InvalidTextError: a message has no text, or the format has no way to write a text or a variable.
    """
    for number, (text, variables) in enumerate(entries):
        render(text, variables, status=status)
        if not text and status is not MessageStatus.comment:
            raise InvalidTextError(
                f"text {number + 1} of {len(entries)} is empty, but a message must have a text: leave it out", path=path
            )


def append(source: Source, entries: Sequence[New], status: MessageStatus) -> list[Place]:
    """Append entries, in one write under the lock. The file is created if it is missing.

    Args:
        source: the queue file.
        entries: text and variables of each entry. If one of them is invalid, none is written.
        status: the status of all entries.

    Raises:
        InvalidTextError: a message has no text, the format has no way to write a text or a variable, or the file is in
            UTF-16.
        TextQueueError: other programs replaced the file 100 times in 10 seconds.
    """
    require_valid(entries, status, source.path)  # before the file is changed
    queue = source.file
    replaced = Replaced("append", source.path)
    with queue.guard:
        while True:
            if queue.disk.status(source.path) is None:
                queue.disk.open(queue.real_path, "append").close()
            edit = _Append(queue, entries, status)
            try:
                with queue.session() as session:
                    if queue.commit(session, edit):
                        return [place._replace(epoch=queue.ledger.epoch) for place in edit.places]
            except FileNotFoundError:
                pass  # removed a moment ago
            replaced.again()


class _Append:
    """The edit that appends entries, for ``QueueFile.commit``."""

    def __init__(self, queue: QueueFile, entries: Sequence[New], status: MessageStatus) -> None:
        self.places: list[Place] = []
        self.last: tuple[int, bytes] | None = None
        self.wrote = True
        self._queue = queue
        self._entries = entries
        self._status = status
        self._missing_end = b""
        self._raws: list[bytes] = []

    def prove(self, session: Session) -> bool:
        """Find out whether the last line needs a newline, and which line end the file uses.

        Raises:
            InvalidTextError: the file is in UTF-16.
        """
        head = session.file.read(4, 0)
        if head.startswith(_UTF_16) or (len(head) == 4 and bytes(2) in (head[::2], head[1::2])):
            raise InvalidTextError(
                "this file is in UTF-16, but a text queue is in UTF-8, so nothing was appended: save it as UTF-8, for"
                " example with `iconv -f UTF-16 -t UTF-8`, then append again",
                path=self._queue.path,
            )
        self._missing_end, newline = _line_end(session.file, session.status)
        self._raws = [render(text, each, status=self._status, newline=newline) for text, each in self._entries]
        return True

    def write(self, session: Session) -> bool:
        text = self._missing_end + b"".join(self._raws)
        position = self._position(session, text)
        if position is None:
            return False
        position += len(self._missing_end)
        for raw in self._raws:
            self.places.append(Place(position, raw, 0))
            self.last = position, raw
            position += len(raw)
        return True

    def _position(self, session: Session, text: bytes) -> int | None:
        """Write, and return the position; None if another program replaced the file or wrote in between."""
        size = session.status.size
        if session.alone:
            _write_end(session.file, size, text, alone=True)
            return size
        end_file_lease(session.file)  # another process may wait for it, and so would the next line: for 45 seconds
        # Another program may append as well: let the kernel find the end, then look for the text.
        file = self._queue.disk.open(self._queue.real_path, "append")
        try:
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
            whole = position == size or not position or self._missing_end or file.read(1, position - 1) == b"\n"
            return position if whole else None
        finally:
            file.close()

    def lines(self) -> list[Line]:
        """Return a ledger line for each entry; for more than _LOGGED entries, only for the last one."""
        logged = self.places if len(self.places) <= _LOGGED else self.places[-1:]
        return [(APPENDED, position, digest(essence(raw)), text_owner(raw)) for position, raw, _ in logged]


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
