"""Read messages by offset, mostly in increasing order: two cursors that read ahead.

Fresh messages are taken in order. Items that were returned, are delayed or have a priority are read at their own
offsets. Each kind has its own reader, so that reading back does not move the reader of fresh messages.
"""

from __future__ import annotations

from typing import Final

from sej.codec.format import OVERHEAD_SIZE
from sej.errors import OffsetTooSmallError
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory
from sej.message import Message

_AHEAD: Final = 256
_SKIP: Final = 1 << 15
"""A gap of this many messages is read through instead of searched: other workers have taken them."""


class MessageReader:
    """Reads messages at increasing offsets, and keeps those just ahead in memory."""

    def __init__(self, directory: Directory, ahead: int = _AHEAD) -> None:
        """Create it; nothing is opened before the first read.

        Args:
            directory: the journal.
            ahead: how many messages are read in one step.
        """
        self._directory = directory
        self._ahead = ahead
        self._cursor: Cursor | None = None
        self._messages: list[Message] = []
        self._first = 0

    def at(self, offset: int) -> Message | None:
        """Return the message with this offset, or the first after it if a recorded gap holds it; None: not written yet.

        Raises:
            SejError: as :class:`~sej.journal.cursor.Cursor`.
        """
        index = offset - self._first
        messages = self._messages
        if 0 <= index < len(messages) and messages[index].offset == offset:
            return messages[index]
        return self._read(offset)

    def ahead(self, offset: int) -> tuple[list[Message], int]:
        """Return messages with consecutive offsets, and the index of this one; past the last one if it does not exist.

        Raises:
            SejError: as :meth:`at`.
        """
        message = self.at(offset)
        exists = message is not None and message.offset == offset
        return self._messages, offset - self._first if exists else len(self._messages)

    def judge(self) -> None:
        """Nothing was appended for a while: raise if the bytes at the end are corruption."""
        if self._cursor is not None:
            self._cursor.judge()

    def close(self) -> None:
        """Close the cursor."""
        if self._cursor is not None:
            self._cursor.close()
        self._cursor = None
        self._messages = []

    def _read(self, offset: int) -> Message | None:
        cursor = self._cursor
        if cursor is None or not cursor.due <= offset <= cursor.due + _SKIP:
            self.close()
            cursor = self._cursor = Cursor(self._directory, offset)
        asked = cursor.due
        try:
            return self._read_on(cursor, offset)
        except OffsetTooSmallError:
            self.close()
            if asked == offset:
                raise
        return self._read(offset)  # only a message on the way was deleted

    def _read_on(self, cursor: Cursor, offset: int) -> Message | None:
        while offset - cursor.due > self._ahead:  # not decoded: these bytes cannot hold more messages
            if not cursor.read_encoded((offset - cursor.due) * OVERHEAD_SIZE)[1]:
                self._messages = []
                return None
        while True:
            messages = cursor.read(max(self._ahead, offset - cursor.due + 1))
            if not messages:
                self._messages = []
                return None
            self._messages, self._first = messages, messages[0].offset
            index = offset - self._first
            if index < 0:
                return messages[0]
            if index < len(messages):
                return messages[index]
