"""Numbered holders: how other processes see immediately that a process has died.

``ofs/NAME.slots/N.lck`` is locked by one open queue as long as it lives, and its leases have the number N. If another
process can lock that file, it knows that the holder is dead. Numbers are taken and tested under the queue's lock, so
that none changes between a test and its consequence. The files stay and are used again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from sej.errors import LockedError
from sej.journal.directory import Directory
from sej.queue.log.state import QueueState
from sej.system.clock import Clock, is_hidden
from sej.system.locks import Lock


class Holders:
    """The holders of one queue's leases, as one open queue sees them.

    Attributes:
        mine: the number of this one; -1: none.
    """

    def __init__(self, directory: Directory, name: str) -> None:
        """Set their files; nothing is opened."""
        self._directory = directory
        self._folder = directory.at("ofs", f"{name}.slots")
        self._lock: Lock | None = None
        self.mine = -1

    def take(self) -> int:
        """Take the lowest free number, under the queue's lock."""
        self._directory.disk.mkdir(self._folder)
        number = 0
        while not self._try(number):
            number += 1
        self.mine = number
        return number

    def dead(self, numbers: Iterable[int]) -> set[int]:
        """Return which of these holders are dead; called under the queue's lock."""
        return {number for number in numbers if number != self.mine and self._is_free(number)}

    def any_alive(self, numbers: Iterable[int]) -> bool:
        """Return whether one of these holders lives; called under the queue's lock."""
        return not all(self._is_free(number) for number in numbers)

    def check(self) -> None:
        """Check that others see that this queue lives.

        Raises:
            LockLostError: the file of its number was removed or replaced.
        """
        if self._lock is not None:
            self._lock.check()

    def text(self, number: int) -> str | None:
        """Return who holds a number: pid, host and start time; None if its file does not say."""
        return Lock(self._path(number), disk=self._directory.disk).holder()

    def release(self) -> None:
        """Release this queue's number."""
        if self._lock is not None:
            self._lock.release()
        self._lock, self.mine = None, -1

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, f"{number}.lck")

    def _try(self, number: int) -> bool:
        self._lock = Lock(self._path(number), what=f"holder {number}", disk=self._directory.disk)
        try:
            self._lock.acquire()
        except LockedError:
            return False
        return True

    def _is_free(self, number: int) -> bool:
        try:
            file = self._directory.disk.open(self._path(number), "read")
        except FileNotFoundError:
            return True
        with file.closing():
            return file.lock(exclusive=False)


def restarted(state: QueueState, clock: Clock, holders: Holders) -> bool:
    """Return whether the machine was restarted since the times of a state; called under the queue's lock, or to look.

    In a container the boot id may be another one, but as long as a process has leases, the machine runs. If the system
    hides the id, the boot-time clock must have gone back: a wall clock that was set would else move all times.
    """
    if state.boot is None or state.boot[0] == (boot_id := clock.boot_id()):
        return False
    if (is_hidden(boot_id) or is_hidden(state.boot[0])) and clock.boot_ns() >= state.seen_ns:
        return False
    return not holders.any_alive(state.holders())
