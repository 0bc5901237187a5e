"""A message as it was read, and what can be done with it.

A message keeps its bytes and takes them apart when asked, so that a million of them are cheap to walk over. Its methods
that change something prove first that the file still holds it (see ``textqueue.editing.queue_file``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from textqueue.editing.place import Change, Place
from textqueue.editing.source import Source
from textqueue.errors import InvalidTextError, MessageMovedError, NoSuchVariableError, VariableTooLongError
from textqueue.format.grammar import CONTROL_OF, REASON, STATUS_OF, MessageStatus
from textqueue.format.mutex import mutex_of
from textqueue.format.parser import decode, encode, name_of, value_of, variables_of
from textqueue.hot import Core, essence

__all__ = ["Message", "marking"]

_CLEARED: Final = CONTROL_OF[MessageStatus.cleared][0]
_CRITICAL: Final = CONTROL_OF[MessageStatus.critical][0]
_WHAT: Final = {
    MessageStatus.cleared: "mark the message as cleared",
    MessageStatus.critical: "mark the message as a critical error",
    MessageStatus.queued: "put the message back into the queue",
    MessageStatus.comment: "comment the message out",
}


class Message(Core):
    """One message of a queue.

    Example:
        >>> q = TextQueue("jobs.tq")  # doctest: +SKIP
        >>> m = q.append("ship 17", variables=["retries=3 "])  # doctest: +SKIP
        >>> m["retries"]  # doctest: +SKIP
        '3'
    """

    __slots__ = ()
    _source: Source

    @property
    def _place(self) -> Place:
        return Place(self._position, self._raw, self._epoch)

    @property
    def value(self) -> str:
        """The text; its lines joined by newlines. Bytes that are no UTF-8 are kept as lone surrogates."""
        return value_of(self._raw).decode("utf-8", "surrogateescape")

    @property
    def value_bytes(self) -> bytes:
        """The text as it stands in the file, its lines joined by newlines."""
        return value_of(self._raw)

    @property
    def status(self) -> MessageStatus:
        """Its status when it was read, or after the last change through this object."""
        return STATUS_OF[self._raw[0]]

    @property
    def position(self) -> int:
        """The position of its control byte when it was read."""
        return self._position

    @property
    def path(self) -> str:
        """The file that it stands in."""
        return self._source.path

    @property
    def source_filename(self) -> str:
        """As ``path``; the published package's word."""
        return self._source.path

    @property
    def control_offset(self) -> int:
        """As ``position``; the published package's word."""
        return self._position

    def get_variables(self) -> tuple[str, ...]:
        """The variables in order, with their padding."""
        return tuple(decode(variable.data) for variable in variables_of(self._raw))

    def __getitem__(self, name: str) -> str:
        """The value of the variable ``name=value``, without its padding.

        Raises:
            NoSuchVariableError: there is none of that name.
        """
        data = variables_of(self._raw)[self._index(name)].data
        return decode(data.partition(b"=")[2]).rstrip(" ")

    def __setitem__(self, name: str, value: str) -> None:
        """Write a variable's value in its room; as ``set_variable``."""
        data = variables_of(self._raw)[self._index(name)].data
        self.set_variable(self._index(name), decode(data.partition(b"=")[0]) + "=" + value)

    def __contains__(self, name: object) -> bool:
        """Whether it has a variable of that name."""
        return any(name_of(variable.data) == name for variable in variables_of(self._raw))

    def get(self, name: str, default: str | None = None) -> str | None:
        """The value of a variable, or the default."""
        try:
            return self[name]
        except NoSuchVariableError:
            return default

    def mark_as_cleared(self) -> None:
        """Mark it as processed.

        Raises:
            MessageMovedError: it is not in the file any more as it was read, or somebody else gave it another status.
        """
        if not self._quickly(_CLEARED):
            self._mark(MessageStatus.cleared)

    def mark_as_critical_error(self, reason: str | None = None) -> None:
        """Mark it as one that cannot be processed.

        Args:
            reason: written into its ``reason`` variable where it has one, cut to the room.

        Raises:
            MessageMovedError: as in ``mark_as_cleared``.
        """
        if reason is not None or not self._quickly(_CRITICAL):
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
            index: its number, from 0.
            value: all of it: ``"retries=2"``.

        Raises:
            VariableTooLongError: longer than its room, in encoded bytes.
            InvalidTextError: it contains a newline, or ends with a carriage return.
            NoSuchVariableError: there is no such variable.
            MessageMovedError: as in ``mark_as_cleared``.
        """
        data = encode(value)
        if b"\n" in data or data.endswith(b"\r"):
            raise InvalidTextError(
                "a variable is one line: it cannot contain a newline or end with a carriage return",
                path=self.path,
                position=self._position,
            )

        def change(raw: bytes) -> Change:
            variables = variables_of(raw)
            if not -len(variables) <= index < len(variables):
                raise NoSuchVariableError(
                    f"the message has {len(variables)} variables, and none of number {index}",
                    path=self.path,
                    position=self._position,
                )
            found = variables[index]
            if len(data) > len(found.data):
                raise VariableTooLongError(
                    f"variable {index} has room for {len(found.data)} bytes and the new value takes {len(data)}:"
                    " shorten it, or reserve more room with trailing spaces when the message is written",
                    path=self.path,
                    position=self._position,
                )
            return Change([(found.position, data.ljust(len(found.data)))], ord("v"))

        old = self._raw
        self._edit(change, f"set variable {index}")
        self._source.given.changed(old, self._raw)

    def _index(self, name: str) -> int:
        variables = variables_of(self._raw)
        for index, variable in enumerate(variables):
            if b"=" in variable.data and name_of(variable.data) == name:
                return index
        names = ", ".join(repr(decode(variable.data)) for variable in variables) or "none"
        raise NoSuchVariableError(
            f"the message has no variable {name!r}; it has: {names}. Reserve one when the message is written",
            path=self.path,
            position=self._position,
        )

    def _quickly(self, control: int) -> bool:
        raw = self._raw
        if not self._source.marks.one(self, control):
            return False
        self._source.given.forget(raw)
        return True

    def _mark(self, status: MessageStatus, reason: str | None = None) -> None:
        raw = self._raw
        self._edit(marking(self._source, raw, self._position, status, reason), _WHAT[status])
        self._source.given.forget(raw)

    def _edit(self, change: Callable[[bytes], Change | None], what: str) -> None:
        self._moved(self._source.edit(self._place, change, what))

    def _moved(self, place: Place) -> None:
        self._position, self._raw, self._epoch = place

    def __eq__(self, other: object) -> bool:
        """The same message of the same file, as it was read."""
        if not isinstance(other, Message):
            return NotImplemented
        return (self.path, self._position, essence(self._raw)) == (other.path, other._position, essence(other._raw))

    def __hash__(self) -> int:
        """By file and text: a change of status does not move it."""
        return hash((self.path, essence(self._raw)))

    def __repr__(self) -> str:
        """What a person wants to see."""
        return f"Message({self.value!r}, {self.status.name}, {self.path!r}, position={self._position})"


def marking(
    source: Source, read: bytes, position: int, status: MessageStatus, reason: str | None = None, owner: bytes = b""
) -> Callable[[bytes], Change | None]:
    """What an edit writes to give a message a status.

    Args:
        source: its file.
        read: the message as it was read.
        position: where, for the error.
        status: the new status.
        reason: why, for a ``reason`` variable.
        owner: whose claim ends with it and is blanked in the message.
    """
    control = CONTROL_OF[status]

    def change(raw: bytes) -> Change | None:
        if raw[0] == control[0] and not owner:
            return None
        if raw[0] != read[0]:
            raise MessageMovedError(
                f"cannot {_WHAT[status]}: somebody marked it as {STATUS_OF[raw[0]].name} since it was read as"
                f" {STATUS_OF[read[0]].name}; nothing was written",
                path=source.path,
                position=position,
            )
        writes = [(0, control)]
        mutex = mutex_of(raw) if owner else None
        if mutex is not None and mutex.holder == owner:
            writes.append((mutex.position, mutex.filled(b"")))
        elif mutex is not None and mutex.holder:
            raise MessageMovedError(
                f"cannot {_WHAT[status]}: it is claimed by {decode(mutex.holder)} by now, no longer by"
                f" {decode(owner)}; nothing was written",
                path=source.path,
                position=position,
            )
        if reason is not None:
            writes += _explain(raw, reason)
        return Change(writes, control[0])

    return change


def _explain(raw: bytes, reason: str) -> list[tuple[int, bytes]]:
    for position, data in variables_of(raw):
        name, equals, room = data.partition(b"=")
        if equals and name_of(data) == REASON:
            text = " ".join(reason.split()).encode("utf-8", "replace")[: len(room)].decode("utf-8", "ignore").encode()
            return [(position + len(name) + 1, text.ljust(len(room)))]
    return []
