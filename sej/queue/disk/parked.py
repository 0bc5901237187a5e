"""Find the parked items of a queue with an order of keys, in the journal.

The state has only the lowest offset of each key that waits (:mod:`sej.queue.log.key_order`). :class:`ParkedItems`
remembers the others: those that this process passed by, and those that it read in the journal because another process
passed them. It is a cache: what it does not know, it reads again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final

from sej.errors import OffsetTooSmallError, SejError
from sej.journal.directory import Directory
from sej.message import Message
from sej.queue.disk.reader import MessageReader
from sej.queue.log.format import KEY, message_check
from sej.queue.log.key_order import key_hash
from sej.queue.log.state import QueueState

_TRIM: Final = 64


class UnfinishedError(Exception):
    """As many messages as allowed were read under one hold of the lock; the messages are remembered."""


def parked_offsets(directory: Directory, state: QueueState) -> Iterator[tuple[int, int]]:
    """Yield (offset, key) of every parked item, from the journal."""
    order = state.order
    if order is None:
        return
    reader = MessageReader(directory)
    try:
        for message in _messages(reader, state.low(), state.frontier):
            key = key_hash(message.key)
            if state.is_fresh(message.offset, key):
                yield message.offset, key
    finally:
        reader.close()


def missing_keys(directory: Directory, state: QueueState) -> Iterator[bytes]:
    """Yield the KEY records of waiting items whose key is unknown, as their messages say it.

    The first item of a key that was delivered before holds the key, unless another one is known to hold it.
    """
    order, reader = state.order, MessageReader(directory, 64)
    known, held = ({}, set()) if order is None else (order.keys, set(order.held))
    try:
        for offset, there in sorted(state.waiting.items()):
            if offset in known:
                continue
            try:
                message = reader.at(offset)
            except SejError:  # it was removed or is damaged: the worker that takes it finds that out
                continue
            if message is None or message.offset != offset or not message.key:
                continue
            if state.intents.get(offset) not in (None, (message.timestamp, message_check(message))):
                continue  # another message, which is fresh
            key = key_hash(message.key)
            holds = there.attempt > 0 and key not in held
            held.update([key] if holds else [])
            yield KEY(offset, key, holds)
    finally:
        reader.close()


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
    """The offsets of parked items by key, as one process knows them."""

    def __init__(self, directory: Directory) -> None:
        """Create it; nothing is read."""
        self._reader = MessageReader(directory)
        self._state: QueueState | None = None
        self._epoch = -1
        self._known: dict[int, array[int]] = {}
        self._low = self._high = 0
        """Every item from the first to the second that was parked when it was passed is known."""

    def passed(self, state: QueueState, epoch: int, start: int, rows: list[tuple[int, int]]) -> None:
        """This process passed the messages from start to the frontier; rows: (key, offset) of those it parked."""
        assert state.order is not None
        self._follow(state, epoch, min(start, state.low()))
        if self._high < start and not self._known:
            self._high = max(self._high, min(start, state.low()))
        if self._high == start:
            self._high = state.frontier
            for key, offset in rows:
                self._known.setdefault(key, array("q")).append(offset)

    def first(self, state: QueueState, epoch: int, key: int, spend: Callable[[], None]) -> int | None:
        """Return the lowest parked item of a key; None: there is none.

        Args:
            state: the state.
            epoch: of the log.
            key: one that has a bound.
            spend: called for each message that is read; it may raise UnfinishedError.
        """
        order = state.order
        assert order is not None
        self._follow(state, epoch, state.low())
        if self._high < state.frontier:
            self._high = max(self._high, state.low())  # nothing before it is parked
        for message in _messages(self._reader, self._high, state.frontier):
            found, offset = key_hash(message.key), message.offset
            if order.may_be_parked(offset, found):
                self._known.setdefault(found, array("q")).append(offset)
            self._high = offset + 1
            spend()
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

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()

    def _follow(self, state: QueueState, epoch: int, low: int) -> None:
        """Begin again if the log was rebuilt; a compaction changes nothing that is known here."""
        if self._state is state:
            return
        if epoch != self._epoch or state.frontier < self._high or low < self._low:
            self._epoch, self._known, self._low, self._high = epoch, {}, low, low
        self._state = state
