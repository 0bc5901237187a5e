"""Messages by their offset, in an order that is mostly forwards: two cursors with what they have read ahead.

Fresh messages are taken in order. What is given back, is delayed or has a priority is looked up where it is. Each way
has a reader of its own, so that looking back does not cost the reader of fresh messages its place.
"""

from __future__ import annotations

from typing import Final

from sej.codec.format import OVERHEAD_SIZE
from sej.errors import OffsetTooSmallError
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory
from sej.message import Message

__all__ = ["MessageReader"]

_AHEAD: Final = 256
_SKIP: Final = 1 << 15
"""So many messages are read over rather than looked up: others have taken them meanwhile."""


class MessageReader:
    """Reads messages at rising offsets, with memory for those just ahead."""

    def __init__(self, directory: Directory, ahead: int = _AHEAD) -> None:
        """Nothing is opened before the first look.

        Args:
            directory: the journal.
            ahead: how many messages are read at once.
        """
        self._directory = directory
        self._ahead = ahead
        self._cursor: Cursor | None = None
        self._messages: list[Message] = []
        self._first = 0

    def at(self, offset: int) -> Message | None:
        """The message with this offset, or the first behind it where a recorded gap swallowed it; None: not there yet.

        Raises:
            SejError: as :class:`~sej.journal.cursor.Cursor`.
        """
        index = offset - self._first
        messages = self._messages
        if 0 <= index < len(messages) and messages[index].offset == offset:
            return messages[index]
        return self._read(offset)

    def judge(self) -> None:
        """Nothing has come for a while: raise if what stands at the end is corruption."""
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
        return self._read(offset)  # only what stood on the way was deleted

    def _read_on(self, cursor: Cursor, offset: int) -> Message | None:
        while offset - cursor.due > self._ahead:  # not decoded: so few bytes are no more messages than that
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
