"""Read the state of a queue without its lock.

Files are opened for reading only and nothing is written, so this works on a read-only directory and disturbs no
process. The state log only grows, or is replaced as a whole: it is read up to the last good record. What an opening
would write is applied to this copy of the state: a kept offset that was moved, a reboot, and the leases of processes
that died.
"""

from __future__ import annotations

import contextlib
from typing import Final

from sej.errors import OffsetTooSmallError
from sej.journal.directory import Directory
from sej.journal.end import Tail
from sej.journal.view import Journal
from sej.queue.disk.lock import Holders, restarted
from sej.queue.disk.parked import parked_offsets
from sej.queue.disk.reader import MessageReader
from sej.queue.log.format import FREE, LOST, RECORD_SIZE, booted, good_bytes, read_head
from sej.queue.log.schedule import NEVER
from sej.queue.log.state import QueueState, WrongRecordError
from sej.reading.offset import read_offset
from sej.system.clock import Clock

_READ_BYTES: Final = RECORD_SIZE << 14
_MORE: Final = 1 << 20
"""So many messages may be appended and taken while the log is read."""


class UnlockedState:
    """The state of a queue that this process has not opened."""

    def __init__(self, directory: Directory, name: str, clock: Clock) -> None:
        """Set the queue; nothing is opened."""
        self._directory = directory
        self._name = name
        self._clock = clock

    def end(self) -> int:
        """Return the end of the journal."""
        return Tail(self._directory).end_offset()

    def read(self) -> QueueState:
        """Read the state log, and apply what an opening would find."""
        directory, disk = self._directory, self._directory.disk
        state = QueueState(self._first())
        file = disk.open(directory.at("ofs", f"{self._name}.queue"), "read")
        with file.closing():
            if read_head(file.read(RECORD_SIZE, 0), self._name) is not None:
                state, position = QueueState(), RECORD_SIZE
                state.most = self.end() + _MORE
                with contextlib.suppress(WrongRecordError):  # what was read before it counts, as before a bad record
                    while data := file.read(_READ_BYTES, position):
                        good, _ = good_bytes(data)
                        state.apply(data[:good])
                        position += good
                        if good != len(data):
                            break
                state.most = NEVER
                if not state.whole:
                    state = state.begun_again(self._first(), state.order)
        state = self._moved(state)
        now, holders = self._clock.boot_ns(), Holders(directory, self._name)
        if restarted(state, self._clock, holders):
            state.apply(booted(self._clock.boot_id(), max(self._clock.wall_ns() - now, 0), now))
        dead = holders.dead(state.holders())
        state.apply(b"".join(FREE(holder) for holder in sorted(dead)))
        self._lose(state)
        return state

    def _lose(self, state: QueueState) -> None:
        """Drop what retention removed before it was delivered."""
        reader = MessageReader(self._directory, 1)
        try:
            reader.at(state.low())
        except OffsetTooSmallError as error:
            first = error.first_available
            parked = 0
            if state.order is not None:
                left = sum(offset >= first for offset, _ in parked_offsets(self._directory, state))
                parked = state.order.count - left
            state.apply(LOST(min([state.frontier, *state.waiting]), first, parked))
        finally:
            reader.close()

    def _moved(self, state: QueueState) -> QueueState:
        """Return the state after a reset of the kept offset, which the log does not know."""
        there = read_offset(self._directory.path, self._name, disk=self._directory.disk)
        if state.kept is not None and (there is None or there < state.kept):
            return state.begun_again(self._first(), state.order)
        if there is None or there <= state.head():
            return state
        state.begin_at(there)
        if state.order is not None:
            state.order.count = sum(1 for _ in parked_offsets(self._directory, state))
        return state

    def _first(self) -> int:
        there = read_offset(self._directory.path, self._name, disk=self._directory.disk)
        return Journal(self._directory.path, disk=self._directory.disk).first_offset if there is None else there
