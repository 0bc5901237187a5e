"""A message as it was read, and its methods.

A message keeps its raw bytes, and decodes them only when a caller needs its text or variables. So iterating over a
million messages is cheap. Before a method changes the file, it proves that the message is still in it (see
``textqueue.editing.queue_file``).

Messages are appended in one write, under the lock, all or nothing.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Never
from urllib.parse import quote_from_bytes

from sej.checks import refuse_type
from sej.system.disk import File, Status
from sej.system.locks import end_file_lease
from textqueue.editing.proof import Change, Making, Place
from textqueue.editing.queue_file import QueueFile
from textqueue.editing.tq_file import TqFile
from textqueue.errors import InvalidTextError, MessageMovedError, NoSuchVariableError, VariableTooLongError
from textqueue.format.mutex import holder_of, mutex_of
from textqueue.format.parser import (
    BOM,
    CONTROL_OF,
    REASON,
    STATUS_OF,
    MessageStatus,
    decode,
    digest,
    encode,
    essence,
    name_of,
    render,
    value_of,
    variables_of,
)
from textqueue.log import APPENDED, EMPTY, MARKS, PLAIN, SET, WAS, text_detail

_QUEUED: Final = CONTROL_OF[MessageStatus.queued][0]
_WHAT: Final = {
    MessageStatus.cleared: "mark the message as cleared",
    MessageStatus.critical: "mark the message as a critical error",
    MessageStatus.queued: "put the message back into the queue",
    MessageStatus.comment: "comment the message out",
}


class Message:
    """One message of a queue.

    Attributes:
        position: the position of its control byte when it was read.
        raw: its bytes in the file when it was read or last changed through this object.
        source: its file; for the queue.
        epoch: in which the position is valid; for the queue.
        claim: the owner of the claim with a lease that this object belongs to; empty: none; for the queue. Every edit
            through this object is refused after another worker took the message.

    Example:
        >>> q = TextQueue("jobs.tq")  # doctest: +SKIP
        >>> m = q.append("ship 17", variables=["retries=3 "])  # doctest: +SKIP
        >>> m["retries"]  # doctest: +SKIP
        '3'
    """

    __slots__ = ("claim", "epoch", "position", "raw", "source")

    def __init__(self, source: TqFile, raw: bytes, position: int, epoch: int) -> None:
        """Create a message; only a queue does."""
        self.source = source
        self.raw = raw
        self.position = position
        self.epoch = epoch
        self.claim = b""

    @property
    def place(self) -> Place:
        """Where it was read or last changed; for the queue."""
        return Place(self.position, self.raw, self.epoch)

    def edit(self, change: Making, what: str, claim: bytes | None = None) -> None:
        """Change it in the file, if it has a claim, by default that of this object; for the queue."""
        claim = self.claim if claim is None else claim
        place = Place(self.position, self.raw, self.epoch)
        done = self.source.file.edit_known(place, change, claim)
        if done is None:
            (done,) = self.source.edit_many([place], change, what, [claim] if claim else ())
        self.position, self.raw, self.epoch = done

    @property
    def value(self) -> str:
        """The text, with its lines joined by newlines. Bytes that are not UTF-8 become lone surrogates."""
        return value_of(self.raw).decode("utf-8", "surrogateescape")

    @value.setter
    def value(self, text: Never) -> None:
        raise AttributeError("the text of a message cannot be changed; mark the message and append another")

    @property
    def value_bytes(self) -> bytes:
        """The bytes of the text, with its lines joined by newlines."""
        return value_of(self.raw)

    @property
    def status(self) -> MessageStatus:
        """The status when the message was read, or after the last change through this object."""
        return STATUS_OF[self.raw[0]]

    @property
    def path(self) -> str:
        """The file that has the message."""
        return self.source.path

    @property
    def source_filename(self) -> str:
        """The same as ``path``, under its name in the published package."""
        return self.source.path

    @property
    def control_offset(self) -> int:
        """The same as ``position``, under its name in the published package."""
        return self.position

    def get_variables(self) -> tuple[str, ...]:
        """Return the variables, in order, with their padding."""
        return tuple(decode(variable.data) for variable in variables_of(self.raw))

    def __getitem__(self, name: str) -> str:
        """Return the value of the variable ``name=value``, without its padding.

        Raises:
            NoSuchVariableError: the message has no variable of that name.
        """
        data = variables_of(self.raw)[self._index(name)].data
        return decode(data.partition(b"=")[2]).rstrip(" ")

    def __setitem__(self, name: str, value: str) -> None:
        """Write the value of a variable, as ``set_variable`` does."""
        index = self._index(name)
        data = variables_of(self.raw)[index].data
        self.set_variable(index, decode(data.partition(b"=")[0]) + "=" + value)

    def __contains__(self, name: object) -> bool:
        """Return whether the message has a variable of that name."""
        return any(name_of(variable.data) == name for variable in variables_of(self.raw))

    def get(self, name: str, default: str | None = None) -> str | None:
        """Return the value of a variable, or the default."""
        try:
            return self[name]
        except NoSuchVariableError:
            return default

    def mark_as_cleared(self) -> None:
        """Mark it as processed.

        Raises:
            MessageMovedError: another program changed or removed the message, or gave it another status.
        """
        self._mark(MessageStatus.cleared)

    def mark_as_critical_error(self, reason: str | None = None) -> None:
        """Mark it as one that cannot be processed.

        Args:
            reason: written into its ``reason`` variable, if it has one, and cut to its length.

        Raises:
            MessageMovedError: as in ``mark_as_cleared``.
        """
        self._mark(MessageStatus.critical, reason)

    def mark_as_queued(self) -> None:
        """Put it back: it will be delivered again.

        Raises:
            MessageMovedError: as in ``mark_as_cleared``.
        """
        self._mark(MessageStatus.queued)

    def set_variable(self, index: int, value: str) -> None:
        """Write a variable over the old one, padded with spaces to the same length.

        Args:
            index: the number of the variable, from 0.
            value: the whole variable, such as ``"retries=2"``.

        Raises:
            VariableTooLongError: value is longer, in encoded bytes, than the old variable with its padding.
            InvalidTextError: value has a newline, or ends with a carriage return.
            NoSuchVariableError: the message has no variable of that number.
            MessageMovedError: as in ``mark_as_cleared``.
        """
        if type(index) is not int and not hasattr(index, "__index__"):
            refuse_type("index", "an int", index)
        data = encode(value)
        if data.find(b"\n") >= 0 or data.endswith(b"\r"):  # not "in", which is slow for bytes
            raise InvalidTextError(
                "a variable must be one line, without a newline or a carriage return at its end",
                path=self.path,
                position=self.position,
            )
        old = self.raw
        self.edit(self._setting(index, data), f"set variable {index}")
        if old[0] == _QUEUED:  # otherwise it was forgotten before, when it was marked
            self.source.delivered.changed(old, self.raw)

    def _setting(self, index: int, data: bytes) -> Making:
        """Return the change of an edit that writes a variable."""

        def change(_: Place, raw: bytes) -> Change:
            variables = variables_of(raw)
            if not -len(variables) <= index < len(variables):
                known = "1 variable" if len(variables) == 1 else f"{len(variables)} variables"
                raise NoSuchVariableError(
                    f"the message has {known}, so variable {index} does not exist; the first is number 0",
                    path=self.path,
                    position=self.position,
                )
            found = variables[index]
            if len(data) > len(found.data):
                raise VariableTooLongError(
                    f"variable {index} must be at most {len(found.data)} bytes, got {len(data)}: shorten it, or reserve"
                    " more space when the message is appended, with trailing spaces",
                    path=self.path,
                    position=self.position,
                )
            text = quote_from_bytes(data, safe=PLAIN).encode()
            owner = b"%s/%d/%s" % (digest(raw), index % len(variables), text)
            return Change([(found.position, data.ljust(len(found.data)))], SET, owner)

        return change

    def _index(self, name: str) -> int:
        variables = variables_of(self.raw)
        for index, variable in enumerate(variables):
            if b"=" in variable.data and name_of(variable.data) == name:
                return index
        names = ", ".join(repr(decode(variable.data)) for variable in variables) or "none"
        raise NoSuchVariableError(
            f"the message has no variable {name!r}; it has: {names}. Add it when the message is appended",
            path=self.path,
            position=self.position,
        )

    def _mark(self, status: MessageStatus, reason: str | None = None) -> None:
        raw = self.raw
        self.edit(marking(self.source, status, reason), _WHAT[status])
        if raw[0] == _QUEUED:  # otherwise it was forgotten before, and the hash would be that of an equal message
            self.source.delivered.forget(raw)

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same message of the same file, at the same position."""
        if not isinstance(other, Message):
            return NotImplemented
        return (self.path, self.position, essence(self.raw)) == (other.path, other.position, essence(other.raw))

    def __hash__(self) -> int:
        """Return a hash of file and text, which a change of status does not change."""
        return hash((self.path, essence(self.raw)))

    def __repr__(self) -> str:
        """Return text, status, path and position."""
        return f"Message({self.value!r}, {self.status.name}, {self.path!r}, position={self.position})"


_MARKS: Final = {
    status: {was: Change([(0, to)], to[0], WAS + b"%c" % was if was in MARKS else EMPTY) for was in STATUS_OF}
    for status, to in CONTROL_OF.items()
}
"""The changes to a status, by the control byte before, without a claim."""


def marking(source: TqFile, status: MessageStatus, reason: str | None = None, owner: bytes | None = b"") -> Making:
    """Return the change of an edit that gives messages a status, and a reason to those with that variable.

    The claim of an owner ends with it, and is blanked in the message. None: the claim that it had when it was read.
    """
    marks = _MARKS[status]

    def change(read: Place, raw: bytes) -> Change | None:
        ends = holder_of(read.raw) if owner is None else owner
        was, made = raw[0], marks[raw[0]]
        if was == made.kind and not ends:
            return None
        if was != read.raw[0]:
            then, now = STATUS_OF[read.raw[0]].name, STATUS_OF[was].name
            raise _refused(source, read, status, f"the status {then}, but another program marked it as {now}")
        if not ends and reason is None:
            return made
        writes, mutex = [*made.writes], mutex_of(raw) if ends else None
        if mutex is not None and mutex.holder == ends:
            writes.append((mutex.position, mutex.filled(b"")))
        elif mutex is not None and mutex.holder:
            what = f"a claim of {decode(ends)}, but it is claimed by {decode(mutex.holder)}"
            raise _refused(source, read, status, what)
        return made._replace(writes=writes if reason is None else writes + _explain(raw, reason))

    return change


def _refused(source: TqFile, read: Place, status: MessageStatus, what: str) -> MessageMovedError:
    why = f"cannot {_WHAT[status]}: expected {what}; nothing was written"
    return MessageMovedError(why, path=source.path, position=read.position)


def _explain(raw: bytes, reason: str) -> list[tuple[int, bytes]]:
    for position, data in variables_of(raw):
        name, equals, room = data.partition(b"=")
        if equals and name_of(data) == REASON:
            text = " ".join(reason.split()).encode("utf-8", "replace")[: len(room)].decode("utf-8", "ignore").encode()
            return [(position + len(name) + 1, text.ljust(len(room)))]
    return []


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
