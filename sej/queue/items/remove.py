"""Remove items without delivering them: all that wait, or one. Everything runs under the queue's lock."""

from __future__ import annotations

from sej.errors import OffsetTooSmallError
from sej.queue.disk.log import QueueLog
from sej.queue.items.put import set_aside
from sej.queue.items.take import Taker
from sej.queue.log.format import BLOCK, DONE, stamp_of
from sej.queue.log.key_order import key_hash


class Remover:
    """The removing side of one open queue."""

    def __init__(self, log: QueueLog, taker: Taker) -> None:
        """Remove from the queue of this log.

        Args:
            log: the state.
            taker: returns items whose holder died, and reads messages.
        """
        self._log = log
        self._taker = taker

    def purge(self, now: int) -> int:
        """Remove every item that is not leased; return how many."""
        log, end = self._log, self._log.tail.end_offset()
        self._taker.take_back(now)
        state = log.state
        gone = len(state.waiting) - state.void(end) + state.fresh(end)
        log.purge(end)
        return gone

    def cancel(self, offset: int) -> bool:
        """Remove one item, leased or not; return whether it was there.

        It is recorded as set aside first if it is fresh: only then is it counted as done, as when it is delivered.
        """
        log, state = self._log, self._log.state
        order = state.order
        if order is not None and offset in order.keys and not state.has(offset):  # a dead letter that keeps its key
            log.append(BLOCK(offset, order.keys[offset], 0))
            return True
        if offset >= log.tail.end_offset():
            return False
        try:
            message = self._taker.others.at(offset)
        except OffsetTooSmallError:
            return False
        if message is None or message.offset != offset:  # a repair found it lost
            return False
        fresh = state.is_fresh(offset, key_hash(message.key))
        if not fresh and not state.has(offset):
            return False
        aside = set_aside(state, message) if fresh else []
        log.append(*aside, DONE(offset, offset + 1, stamp_of(message.timestamp)))
        return True
