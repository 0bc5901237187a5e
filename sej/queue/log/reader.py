"""Read messages by offset, mostly in increasing order: two cursors that read ahead.

Fresh messages are taken in order. Items that were returned, are delayed or have a priority are read at their own
offsets. Each kind has its own reader, so that reading back does not move the reader of fresh messages.

:func:`holds` and :func:`proven` compare a queue's log with the journal: a power loss may have removed messages that the
log knows. It removes the journal's end: if one message is the one that a record was written for, so are those before
it.

**Parked items** of a queue with an order of keys are found in the journal, too. The state has only the lowest offset of
each key that waits (:mod:`sej.queue.log.ready_queue`). :class:`ParkedItems` remembers the others: those that this
process passed by, and those that it read because another process passed them. It is a cache: what it does not know, it
reads again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from typing import Final

from sej.codec.format import OVERHEAD_SIZE
from sej.errors import OffsetTooSmallError, SejError
from sej.journal.cursor import Cursor
from sej.journal.directory import Directory
from sej.journal.tail import Tail
from sej.message import Message
from sej.queue.log import format as records
from sej.queue.log.ready_queue import NEVER
from sej.queue.log.state import QueueState

_AHEAD: Final = 256
_SKIP: Final = 1 << 15
"""A gap of this many messages is read through instead of searched: other workers have taken them."""
_PLACE_BYTES: Final = 1 << 17


class MessageReader:
    """Reads messages at increasing offsets, and keeps those just ahead in memory."""

    def __init__(self, directory: Directory, ahead: int = _AHEAD, *, places: int = 0) -> None:
        """Create it; nothing is opened before the first read.

        Args:
            directory: the journal.
            ahead: how many messages are read in one step.
            places: in so many places that it left it keeps these messages, if they are small.
        """
        self._directory = directory
        self._ahead = ahead
        self._cursor: Cursor | None = None
        self._messages: list[Message] = []
        self._first = 0
        self._places: deque[list[Message]] = deque(maxlen=places)
        self._left: dict[int, Message] = {}
        """The messages of the places that it left, by offset."""

    def at(self, offset: int) -> Message | None:
        """Return the message with this offset, or the first after it if a recorded gap holds it; None: not written yet.

        Raises:
            SejError: as :class:`~sej.journal.cursor.Cursor`.
        """
        index = offset - self._first
        messages = self._messages
        if 0 <= index < len(messages) and messages[index].offset == offset:
            return messages[index]
        return self._left.get(offset) or self._read(offset)

    def find(self, offset: int) -> Message | None:
        """Return the message with this offset; None: it was removed, lost or not written yet."""
        try:
            message = self.at(offset)
        except OffsetTooSmallError:
            return None
        return message if message is not None and message.offset == offset else None

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
        self._places.clear()
        self._left.clear()

    def _keep(self) -> None:
        """Keep what was read ahead, for a return to this place."""
        places, messages = self._places, self._messages
        if messages and sum(len(message.value) for message in messages) <= _PLACE_BYTES:
            if len(places) == places.maxlen:
                for message in places[0]:
                    self._left.pop(message.offset, None)
            places.append(messages)
            self._left.update((message.offset, message) for message in messages)

    def _read(self, offset: int) -> Message | None:
        cursor = self._cursor
        if self._places.maxlen:
            self._keep()
        if cursor is None or not cursor.due <= offset <= cursor.due + _SKIP:
            if cursor is not None:
                cursor.close()
            cursor = self._cursor = Cursor(self._directory, offset)
        asked, self._messages = cursor.due, []
        try:
            while offset - cursor.due > self._ahead:  # not decoded: these bytes cannot hold more messages
                if not cursor.read_encoded((offset - cursor.due) * OVERHEAD_SIZE)[1]:
                    return None
            while messages := cursor.read(max(self._ahead, offset - cursor.due + 1)):
                self._messages, self._first = messages, messages[0].offset
                index = offset - self._first
                if index < len(messages):
                    return messages[max(index, 0)]
        except OffsetTooSmallError:
            self.close()
            if asked == offset:
                raise
            return self._read(offset)  # only a message on the way was deleted
        self._messages = []
        return None


def holds(directory: Directory, tail: Tail, offset: int, stamp: int) -> bool:
    """Return whether a message is the one that was taken; one that retention removed was durable."""
    segments = directory.segments()
    if segments and offset < segments[0].first_offset:
        return True
    message = _message(directory, tail, offset)
    return message is not None and records.stamp_of(message.timestamp) == stamp


def proven(directory: Directory, tail: Tail, log: bytes) -> int | None:
    """Return the offset up to which the journal holds the messages of the records; None: it is another journal."""
    base, taken = 0, []
    checked: list[tuple[int, int]] = []
    for kind, row in records.read_fields(log):
        if kind is records.LEASE or (kind in (records.DONE, records.SCAN) and row["stamp"]):
            taken.append((row["stop"] - 1, row["stamp"]))
        elif (kind in (records.DEAD, records.PICK) or (kind is records.WAIT and row["exhausted"])) and row["stamp"]:
            taken.append((row["offset"], row["stamp"]))
        elif kind is records.START:
            base = row["frontier"]  # what is below it was durable before it was written
            if row["newest"] != NEVER and not holds(directory, tail, row["newest"], row["stamp"]):
                return None
        elif kind in (records.INTENT, records.EXPIRE) or (kind is records.DEDUPE and row["until_ns"]):
            checked.append((row["offset"], row["check"]))
    if base > tail.end_offset():
        return None
    taken.sort()
    low, high = 0, len(taken)  # the lost messages are the last ones
    while low < high:
        middle = (low + high) // 2
        if holds(directory, tail, *taken[middle]):
            low = middle + 1
        else:
            high = middle
    found = max([base, *(offset + 1 for offset, _ in taken[:low])])
    return next(_checked(directory, tail, checked, found), found)


def _checked(directory: Directory, tail: Tail, rows: list[tuple[int, int]], above: int) -> Iterator[int]:
    for offset, check in sorted(rows, reverse=True):
        if (
            above <= offset
            and (message := _message(directory, tail, offset))
            and records.message_check(message) == check
        ):
            yield offset + 1


def _message(directory: Directory, tail: Tail, offset: int) -> Message | None:
    if offset >= tail.end_offset():
        return None
    with closing(MessageReader(directory, 1)) as reader, suppress(SejError):  # it is damaged: unknown
        return reader.find(offset)
    return None


_TRIM: Final = 64


class UnfinishedError(Exception):
    """As many messages as allowed were read under one hold of the lock; the messages are remembered."""


def lost_before(directory: Directory, state: QueueState, first: int, gone: Iterable[int]) -> bytes:
    """Return the record that the journal begins at ``first`` now; gone: items before it that are not fresh."""
    parked = 0
    if state.order.count:
        parked = state.order.count - sum(offset >= first for offset, _ in parked_offsets(directory, state))
    return records.LOST(min([state.low(), *gone]), first, parked)


def parked_offsets(directory: Directory, state: QueueState) -> Iterator[tuple[int, int]]:
    """Yield (offset, key) of every parked item, from the journal."""
    with closing(MessageReader(directory)) as reader:
        for message in _messages(reader, state.low(), state.frontier):
            key = state.key_of(message)
            if state.is_fresh(message.offset, key):
                yield message.offset, key


def missing_keys(directory: Directory, state: QueueState) -> Iterator[bytes]:
    """Yield the KEY records of waiting items whose key is unknown, as their messages say it.

    The first item of a key that was delivered before holds the key, unless another one is known to hold it.
    """
    order, held = state.order, set(state.order.held)
    with closing(MessageReader(directory, 64)) as reader:
        for offset, there in sorted(state.waiting.items()):
            if offset in order.keys:
                continue
            try:
                message = reader.find(offset)
            except SejError:  # it is damaged: the worker that takes it finds that out
                continue
            if message is None:
                continue
            if state.intents.get(offset) not in (None, (message.timestamp, records.message_check(message))):
                continue  # another message, which is fresh
            key = state.key_of(message)
            holds = there.attempt > 0 and key not in held and order.kinds is None
            held.update([key] if holds else [])
            if key:
                yield records.KEY(offset, key, holds)


def _messages(reader: MessageReader, offset: int, stop: int) -> Iterator[Message]:
    """Yield the messages of a range that exist."""
    while offset < stop:
        try:
            message = reader.at(offset)
        except OffsetTooSmallError as error:
            offset = max(error.first_available, offset + 1)
            continue
        if message is None or message.offset >= stop:
            return
        yield message
        offset = message.offset + 1


class ParkedItems:
    """The offsets of parked items by key, as one process knows them.

    Attributes:
        left: how many messages may still be passed by or looked up under this hold of the lock.
    """

    def __init__(self, directory: Directory) -> None:
        """Create it; nothing is read."""
        self.left = 0
        self._reader = MessageReader(directory)
        self._state: QueueState | None = None
        self._epoch = -1
        self._known: dict[int, array[int]] = {}
        self._low = self._high = 0
        """Every item from the first to the second that was parked when it was passed is known."""

    def passed(self, state: QueueState, epoch: int, start: int, rows: list[tuple[int, int]]) -> None:
        """This process passed the messages from start to the frontier; rows: (key, offset) of those it parked."""
        self._follow(state, epoch, start)
        if self._high < start and not self._known:
            self._high = max(self._high, min(start, state.low()))
        if self._high == start:
            self._high = state.frontier
            for key, offset in rows:
                self._known.setdefault(key, array("q")).append(offset)

    def first(self, state: QueueState, epoch: int, key: int) -> int | None:
        """Return the lowest parked item of a key; None: there is none.

        Args:
            state: the state.
            epoch: of the log.
            key: one that has a bound.

        Raises:
            UnfinishedError: as many messages were read as :attr:`left` allows.
        """
        order = state.order
        self._follow(state, epoch, NEVER)
        if self._high < state.frontier:
            self._high = max(self._high, state.low())  # nothing before it is parked
        for message in _messages(self._reader, self._high, state.frontier):
            found, offset = state.key_of(message), message.offset
            if order.may_be_parked(offset, found):
                self._known.setdefault(found, array("q")).append(offset)
            self._high = offset + 1
            self.spend()
        self._high = max(self._high, state.frontier)
        known = self._known.get(key)
        if known is None:
            return None
        index = bisect_left(known, order.parked[key])
        while index < len(known) and not state.is_fresh(known[index], key):
            index += 1
        if index == len(known):
            del self._known[key]
            return None
        if index > _TRIM and index > len(known) // 2:
            del known[:index]
            index = 0
        return known[index]

    def spend(self) -> None:
        """Count a message that was passed by or looked up."""
        self.left -= 1
        if self.left <= 0:
            raise UnfinishedError

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()

    def _follow(self, state: QueueState, epoch: int, start: int) -> None:
        """Begin again if the log was rebuilt; a compaction changes nothing that is known here."""
        if self._state is state:
            return
        low = min(start, state.low())
        if epoch != self._epoch or state.frontier < self._high or low < self._low:
            self._epoch, self._known, self._low, self._high = epoch, {}, low, low
        self._state = state
