"""The dead letters of a queue on a journal: items that were given up, and the way back."""

from __future__ import annotations

import os
from collections.abc import Callable

from sej.dead import append_dead_letter, dead_letters, source_of
from sej.directory import Directory
from sej.errors import JournalNotFoundError
from sej.message import Message
from sej.offset import Offset
from sej.queue_codec import record
from sej.queue_format import DEAD
from sej.queue_log import QueueLog

__all__ = ["Grave"]


class Grave:
    """Where one queue's dead letters go, and come back from.

    Attributes:
        path: the journal of the dead letters.
    """

    def __init__(self, directory: Directory, name: str, log: QueueLog, path: str | os.PathLike[str]) -> None:
        """Name the journal; nothing is opened."""
        self._directory = directory
        self._name = name
        self._log = log
        self.path = os.fspath(path)

    def bury(self, message: Message, attempts: int, reason: str) -> None:
        """Give an item up, under the queue's lock.

        The dead letter is durable before the item is given up: after a crash between the two it is not lost.
        """
        append_dead_letter(
            self.path,
            message,
            source=source_of(self._directory),
            reader=self._name,
            attempts=attempts,
            reason=reason,
            perhaps_there=True,
            disk=self._directory.disk,
        )
        self._log.append(record(DEAD, message.offset, attempt=attempts))

    def redrive(self, limit: int | None, put_back: Callable[[Message], None]) -> int:
        """Hand this queue's letters to put_back, oldest first; how far that went is kept beside them."""
        disk = self._directory.disk
        source = source_of(self._directory)
        count = 0
        try:
            place = Offset(self.path, f"redrive-{self._name}", disk=disk)
        except JournalNotFoundError:
            return 0
        with place:
            for letter in dead_letters(self.path, place.value, disk=disk):
                if limit is not None and count >= limit:
                    break
                if (letter.source, letter.reader) == (source, self._name):
                    put_back(letter.message)
                    count += 1
                place.commit(letter.letter_offset + 1)
        return count
