"""Writing at the end of a queue file: as one write, under the lock, all of it or nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sej.system.disk import File, Status
from textqueue.editing.place import Place
from textqueue.editing.queue_file import QueueFile, Session
from textqueue.editing.source import Source
from textqueue.errors import TextQueueError
from textqueue.format.grammar import BOM, MessageStatus
from textqueue.format.parser import render
from textqueue.format.windows import Token
from textqueue.ledger.log import APPENDED, Ledger

__all__ = ["New", "append"]

New = tuple[str | bytes, Sequence[str | bytes]]
"""A text and its variables."""
_TRIES: Final = 100
_TAIL_BYTES: Final = 1 << 16
_LOGGED: Final = 4096
"""Of more entries in one append the ledger knows only the last one: they would push the marks out of it."""


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

    queue = source.file
    with queue.guard:
        for _ in range(_TRIES):
            if queue.disk.status(source.path) is None:
                queue.disk.open(source.path, "append").close()
            edit = _Append(queue, entries, status)
            try:
                with queue.session() as session:
                    if queue.commit(session, edit):
                        return [place._replace(epoch=queue.ledger.epoch) for place in edit.places]
            except FileNotFoundError:
                continue
    raise TextQueueError("cannot append: another program replaces the file all the time", path=source.path)


class _Append:
    """Entries at the end, as ``QueueFile.commit`` takes it."""

    high: int | None = None

    def __init__(self, queue: QueueFile, entries: Sequence[New], status: MessageStatus) -> None:
        self.places: list[Place] = []
        self.last: tuple[int, bytes] | None = None
        self._queue = queue
        self._entries = entries
        self._status = status
        self._mend = b""
        self._raws: list[bytes] = []

    def prove(self, session: Session) -> bool:
        """See what ends the last line, and how lines end here."""
        self._mend, newline = _mending(session.file, session.status)
        self._raws = [render(text, each, status=self._status, newline=newline) for text, each in self._entries]
        return True

    def write(self, session: Session) -> bool:
        text = self._mend + b"".join(self._raws)
        position = self._position(session, text)
        if position is None:
            return False
        position += len(self._mend)
        for raw in self._raws:
            self.places.append(Place(position, raw, 0))
            self.last = position, raw
            position += len(raw)
        return True

    def _position(self, session: Session, text: bytes) -> int | None:
        """Write; where it is, or None if another program replaced the file or wrote there."""
        size = session.status.size
        if session.alone:
            _write_end(session.file, session.file.write_at, size, text)
            return size
        # Somebody else may append as well: let the kernel find the end, then see where it was.
        file = self._queue.disk.open(self._queue.path, "append")
        try:
            if file.status().identity != session.status.identity:
                return None
            _write_end(file, lambda data, _: file.write(data), size, text)
            found = file.read(file.status().size - size, size).find(text)
            return None if found < 0 else size + found
        finally:
            file.close()

    def log(self, ledger: Ledger, token: Token) -> None:
        """A line for each entry; of very many, for the last one, which tells how far the file reached."""
        ledger.append_lines(APPENDED, self.places[-1:] if len(self.places) > _LOGGED else self.places, token)


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
