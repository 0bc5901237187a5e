"""A message as it was read, and its methods.

A message keeps its raw bytes, and decodes them only when a caller needs its text or variables. So iterating over a
million messages is cheap. Before a method changes the file, it proves that the message is still in it (see
``textqueue.editing.queue_file``).
"""

from __future__ import annotations

from typing import Final, Never
from urllib.parse import quote_from_bytes

from sej.checks import refuse_type
from textqueue.editing.proof import Change, Making, Place
from textqueue.editing.tq_file import TqFile
from textqueue.errors import InvalidTextError, MessageMovedError, NoSuchVariableError, VariableTooLongError
from textqueue.format.grammar import CONTROL_OF, REASON, STATUS_OF, MessageStatus
from textqueue.format.mutex import holder_of, mutex_of
from textqueue.format.parser import decode, digest, encode, essence, name_of, value_of, variables_of
from textqueue.ledger.log import EMPTY, MARKS, PLAIN, SET, WAS

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
