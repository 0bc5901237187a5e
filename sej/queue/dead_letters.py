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
    message_check,
    stamp_of,
)
from sej.queue.log.state import QueueState
from sej.reading.dead_letters import DeadLetter, append_dead_letter, dead_letters, source_of, sync_dead_letters
from sej.reading.offset import Offset, read_offset
from sej.system.clock import Clock
from sej.system.disk import Disk, of_system

_NAME_BYTES: Final = 192
"""With the prefix, the longest name that a reader can have."""
_LOCK_S: Final = 1.0
"""Writers of that journal hold it for one letter at a time; a process that holds it longer must not block the whole
queue.
"""


def redrive_reader(directory: Directory, name: str, path: str) -> str:
    """Return the name of the reader that marks which letters of a queue were put back, for retention.

    Queues of one name on several journals may share a journal of dead letters. Each has its own position there.
    """
    own = os.path.realpath(path) == os.path.realpath(directory.at("dead", name))
    if own and len(name) <= _NAME_BYTES:
        return f"redrive-{name}"
    whose = f"{name}\0{'' if own else source_of(directory)}"
    digest = hashlib.sha256(os.fsencode(whose)).hexdigest()[:16]
    return f"redrive-{name[: _NAME_BYTES - 17]}-{digest}"


def remaining_letters(path: str, first: int, disk: Disk) -> Iterator[DeadLetter]:
    """Yield the letters from an offset on, without those that retention has removed, also meanwhile."""
    while True:
        try:
            for letter in dead_letters(path, first, disk=disk):
                yield letter
                first = letter.letter_offset + 1
            return
        except OffsetTooSmallError as error:
            first = error.first_available


def letters_left(directory: Directory, name: str, path: str, state: QueueState) -> Iterator[DeadLetter]:
    """Yield the letters of a queue that were not put back, oldest first.

    Raises:
        JournalNotFoundError: the journal of the letters does not exist.
    """
    number, first = _position(directory, name, path, state)
    source = source_of(directory)
    for letter in remaining_letters(path, first, directory.disk):
        mine = (letter.source, letter.reader) == (source, name)
        if mine and not state.dedupe.requeued(number, letter.letter_offset):
            yield letter


def letters_lost(directory: Directory, name: str, path: str, state: QueueState) -> bytes:
    """Return the record of the letters that retention removed before they were put back; empty if there are none."""
    if not state.dead:
        return b""
    try:
        begin = Journal(path, disk=directory.disk).first_offset
        if not begin:  # the ordinary case, without reading the position
            return b""
        number, first = _position(directory, name, path, state)
        if begin <= first:
            return b""
        # The item of a letter whose writer died is not counted yet: it still waits.
        left = sum(letter.message.offset not in state.waiting for letter in letters_left(directory, name, path, state))
    except (SejError, PermissionError):  # reading the letters reports it; counting items does not
        return b""
    return BACK(number, begin, max(state.dead - left, 0))


def _journal_number(path: str, disk: Disk) -> int:
    """Return the number of a journal: the first 8 bytes of its id."""
    return int.from_bytes((Journal(path, disk=disk).id or b"")[:8], "big")


def _position(directory: Directory, name: str, path: str, state: QueueState) -> tuple[int, int]:
    """Return the number of a journal of dead letters, and its first letter that was not put back.

    The position is in the state, and next to the letters: a state that was rebuilt, as after a reset, has none.
    """
    number = _journal_number(path, directory.disk)
    kept = read_offset(path, redrive_reader(directory, name, path), disk=directory.disk)
    return number, max(state.redriven.get(number, 0), kept or 0)


class DeadLetterJournal:
    """The dead letters of one queue.

    An item has one letter, and a letter is put back once.

    Attributes:
        path: the journal of the dead letters.
    """

    def __init__(
        self, directory: Directory, name: str, log: QueueLog, clock: Clock, path: str | os.PathLike[str]
    ) -> None:
        """Set the journal; nothing is opened."""
        self._directory = directory
        self._name = name
        self._log = log
        self._clock = clock
        self.path = os.fspath(path)

    def give_up(self, message: Message, attempts: int, reason: str) -> None:
        """Give an item up, under the queue's lock.

        In this order, each durable before the next: the record that the item is exhausted, the dead letter, the record
        that the item is dead. If this process dies in between, no worker receives the item: the process that would take
        it finishes this.
        """
        log, offset, stamp = self._log, message.offset, stamp_of(message.timestamp)
        held, waits, priority = log.state.leased.get(offset), log.state.waiting.get(offset), log.state.priority(offset)
        begun = waits is not None and waits.exhausted
        if not begun:
            log.append(exhausted(offset, 0, attempts, priority, stamp))
            log.force()
        try:
            try:
                self._append(message, attempts, reason, priority, perhaps_there=begun)
            except (OSError, SejError) as error:
                log.reserve.make_room(error)
                self._append(message, attempts, reason, priority, perhaps_there=True)
        except (OSError, SejError) as error:
            refused = isinstance(error, SejError) or of_system(error)  # otherwise the letter may have been written
            if refused and held is not None:  # another process may write it later
                log.append(PICK(offset, attempts, held.holder, held.deadline_ns, priority))
            raise
        failure = reason.encode(errors="backslashreplace")[:MAX_REASON_BYTES]
        log.append(log.result(message, FAILED, failure) if log.state.keeps else b"", DEAD(offset, attempts, stamp))

    def _append(self, message: Message, attempts: int, reason: str, priority: int, *, perhaps_there: bool) -> None:
        first = 0
        if perhaps_there:
            with suppress(JournalNotFoundError):
                first = self._first_letter()
        letter = DeadLetter(
            message,
            source_of(self._directory),
            self._name,
            attempts,
            reason,
            priority=priority,
            expire_s=self._expire_s(message),
            headers=headers_of(self._log.state.headers, message),
        )
        disk = self._directory.disk
        append_dead_letter(self.path, letter, perhaps_there=perhaps_there, first=first, lock_timeout=_LOCK_S, disk=disk)

    def _expire_s(self, message: Message) -> float | None:
        """Return after how many seconds an item expires; None: never.

        The log has the time. If the wall clock was set back since, the result is at least the remaining time.
        """
        row = self._log.state.expires.get(message.offset)
        if row is None or row[1:] != (message.timestamp, message_check(message)):
            return None
        left = row[0] - self._clock.boot_ns()
        return max(left + self._clock.wall_ns() - message.timestamp, left, 0) / 1e9

    def look_for_losses(self) -> None:
        """Stop counting letters that retention removed before they were put back; under the queue's lock."""
        record = letters_lost(self._directory, self._name, self.path, self._log.state)
        if record:
            self._log.append(record)

    def open_position(self) -> Offset | None:
        """Return the position of the letters that were put back, for one redrive; None if there are no letters.

        Raises:
            LockedError: another redrive is running.
        """
        try:
            return Offset(self.path, redrive_reader(self._directory, self._name, self.path), disk=self._directory.disk)
        except JournalNotFoundError:
            return None
        except LockedError as error:
            raise LockedError(
                f"another redrive() of the queue {self._name!r} is running in {error.holder or 'another process'}, and"
                " puts the letters back; call yours again after it has finished",
                path=error.path,
                holder=error.holder,
            ) from None

    def batch(self, first: int, most: int) -> tuple[list[DeadLetter], int]:
        """Return up to so many letters of this queue that were not put back, and the offset after them."""
        source, disk = source_of(self._directory), self._directory.disk
        found: list[DeadLetter] = []
        seen = first = max(first, self._first_letter())
        for letter in remaining_letters(self.path, first, disk):
            seen = letter.letter_offset + 1
            if (letter.source, letter.reader) == (source, self._name):
                found.append(letter)
                if len(found) == most:
                    break
        return found, seen

    def of_item(self, offset: int) -> tuple[int, DeadLetter] | None:
        """Return the number of this journal and the letter of one item; None if it has no letter."""
        disk, source = self._directory.disk, source_of(self._directory)
        with suppress(JournalNotFoundError):
            sync_dead_letters(self.path, disk)
            for letter in remaining_letters(self.path, self._first_letter(), disk):
                if (letter.message.offset, letter.source, letter.reader) == (offset, source, self._name):
                    return self.number(), letter
        return None

    def _first_letter(self) -> int:
        """Return the first letter that was not put back."""
        return _position(self._directory, self._name, self.path, self._log.state)[1]

    def number(self) -> int:
        """Return the number of this journal of dead letters."""
        return _journal_number(self.path, self._directory.disk)
