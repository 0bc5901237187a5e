"""The dead letters of a queue on a journal: items that were given up, and their redrive."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from sej.errors import JournalNotFoundError, LockedError, OffsetTooSmallError, SejError
from sej.journal.directory import Directory
from sej.journal.view import Journal
from sej.message import Message
from sej.queue.log.file import QueueLog
from sej.queue.log.format import (
    BACK,
    DEAD,
    FAILED,
    MAX_REASON_BYTES,
    PICK,
    exhausted,
    headers_of,
    stamp_of,
)
from sej.queue.log.state import QueueState
from sej.reading.dead_letters import DeadLetter, append_dead_letter, dead_letters, source_of, sync_dead_letters
from sej.reading.offset import Offset, read_offset
from sej.system.disk import of_system

_NAME_BYTES: Final = 192
"""With the prefix, the longest name that a reader can have."""
_LOCK_S: Final = 1.0
"""Writers of that journal hold it for one letter at a time; a process that holds it longer must not block the whole
queue.
"""


class DeadLetterJournal:
    """The dead letters of one queue.

    An item has one letter, and a letter is put back once.

    Attributes:
        path: the journal of the dead letters.
    """

    def __init__(self, directory: Directory, name: str, path: str | os.PathLike[str]) -> None:
        """Set the journal; nothing is opened."""
        self._directory, self._disk = directory, directory.disk
        self._name = name
        self.path = os.fspath(path)

    def reader(self) -> str:
        """Return the name of the reader that marks which letters of the queue were put back, for retention.

        Queues of one name on several journals may share a journal of dead letters. Each has its own position there.
        """
        name = self._name
        own = os.path.realpath(self.path) == os.path.realpath(self._directory.at("dead", name))
        if own and len(name) <= _NAME_BYTES:
            return f"redrive-{name}"
        whose = f"{name}\0{'' if own else source_of(self._directory)}"
        digest = hashlib.sha256(os.fsencode(whose)).hexdigest()[:16]
        return f"redrive-{name[: _NAME_BYTES - 17]}-{digest}"

    def number(self) -> int:
        """Return the number of this journal of dead letters: the first 8 bytes of its id."""
        return int.from_bytes((Journal(self.path, disk=self._disk).id or b"")[:8], "big")

    def first(self, state: QueueState) -> int:
        """Return the first letter that was not put back.

        The position is in the state, and next to the letters: a state that was rebuilt, as after a reset, has none.
        """
        kept = read_offset(self.path, self.reader(), disk=self._disk)
        return max(state.redriven.get(self.number(), 0), kept or 0)

    def _letters(self, first: int) -> Iterator[tuple[DeadLetter, bool]]:
        """Yield each letter from an offset on that retention has not removed, and whether it is of this queue."""
        whose = source_of(self._directory), self._name
        while True:
            try:
                for letter in dead_letters(self.path, first, disk=self._disk):
                    yield letter, (letter.source, letter.reader) == whose
                    first = letter.letter_offset + 1
                return
            except OffsetTooSmallError as error:
                first = error.first_available

    def left(self, state: QueueState) -> Iterator[DeadLetter]:
        """Yield the letters that were not put back, oldest first.

        Raises:
            JournalNotFoundError: the journal of the letters does not exist.
        """
        number = self.number()
        for letter, own in self._letters(self.first(state)):
            if own and not state.dedupe.requeued(number, letter.letter_offset):
                yield letter

    def lost(self, state: QueueState) -> bytes:
        """Return the record of the letters that retention removed before they were put back; empty: there are none."""
        if not state.dead:
            return b""
        try:
            begin = Journal(self.path, disk=self._disk).first_offset
            if not begin or begin <= self.first(state):  # the ordinary case, without reading the position
                return b""
            # The item of a letter whose writer died is not counted yet: it still waits.
            left = sum(letter.message.offset not in state.waiting for letter in self.left(state))
            return BACK(self.number(), begin, max(state.dead - left, 0))
        except (SejError, PermissionError):  # reading the letters reports it; counting items does not
            return b""

    def give_up(self, log: QueueLog, message: Message, attempts: int, reason: str) -> None:
        """Give an item up, under the queue's lock.

        In this order, each durable before the next: the record that the item is exhausted, the dead letter, the record
        that the item is dead. If this process dies in between, no worker receives the item: the process that would take
        it finishes this.
        """
        offset, stamp = message.offset, stamp_of(message.timestamp)
        held, waits, priority = log.state.leased.get(offset), log.state.waiting.get(offset), log.state.priority(offset)
        begun = waits is not None and waits.exhausted
        if not begun:
            log.append(exhausted(offset, 0, attempts, priority, stamp))
            log.force()
        try:
            try:
                self._append(log, message, attempts, reason, perhaps_there=begun)
            except (OSError, SejError) as error:
                log.reserve.make_room(error)
                self._append(log, message, attempts, reason, perhaps_there=True)
        except (OSError, SejError) as error:
            refused = isinstance(error, SejError) or of_system(error)  # otherwise the letter may have been written
            if refused and held is not None:  # another process may write it later
                log.append(PICK(offset, attempts, held.holder, held.deadline_ns, priority))
            raise
        failure = reason.encode(errors="backslashreplace")[:MAX_REASON_BYTES]
        log.append(log.result(message, FAILED, failure) if log.state.keeps else b"", DEAD(offset, attempts, stamp))

    def _append(self, log: QueueLog, message: Message, attempts: int, reason: str, *, perhaps_there: bool) -> None:
        first = 0
        if perhaps_there:
            with suppress(JournalNotFoundError):
                first = self.first(log.state)
        letter = DeadLetter(
            message,
            source_of(self._directory),
            self._name,
            attempts,
            reason,
            priority=log.state.priority(message.offset),
            expire_s=log.expires_in_s(message),
            headers=headers_of(log.state.headers, message),
        )
        append_dead_letter(
            self.path, letter, perhaps_there=perhaps_there, first=first, lock_timeout=_LOCK_S, disk=self._disk
        )

    def open_position(self) -> Offset | None:
        """Return the position of the letters that were put back, for one redrive; None if there are no letters.

        Raises:
            LockedError: another redrive is running.
        """
        try:
            return Offset(self.path, self.reader(), disk=self._disk)
        except JournalNotFoundError:
            return None
        except LockedError as error:
            raise LockedError(
                f"another redrive() of the queue {self._name!r} is running in {error.holder or 'another process'}, and"
                " puts the letters back; call yours again after it has finished",
                path=error.path,
                holder=error.holder,
            ) from None

    def batch(self, state: QueueState, first: int, most: int) -> tuple[list[DeadLetter], int]:
        """Return up to so many letters of this queue that were not put back, and the offset after them."""
        found: list[DeadLetter] = []
        seen = first = max(first, self.first(state))
        for letter, own in self._letters(first):
            seen = letter.letter_offset + 1
            if own:
                found.append(letter)
                if len(found) == most:
                    break
        return found, seen

    def of_item(self, offset: int, state: QueueState) -> tuple[int, DeadLetter] | None:
        """Return the number of this journal and the letter of one item; None if it has no letter."""
        with suppress(JournalNotFoundError):
            sync_dead_letters(self.path, self._disk)
            for letter, own in self._letters(self.first(state)):
                if own and letter.message.offset == offset:
                    return self.number(), letter
        return None
