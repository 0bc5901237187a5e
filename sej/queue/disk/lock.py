"""The locks of a queue: that of its log, fair among the processes that want it, and those that show who lives.

**The queue's lock** is ``flock`` on ``ofs/NAME.queue.lck``, held for one operation; its holder may change the log. That
alone is correct, but slow if many processes compete: each hand-over costs a context switch, and a process must first
read the records of the others. So a process that does several operations in a row, while others compete, writes a claim
into the lock file: for two milliseconds it has the queue alone. The others see the claim and sleep that long; meanwhile
they read what it writes. Then it pauses and another process takes its turn.

A claim is a hint. It affects only timing: an unused claim is ignored immediately, and a process that has waited for
long joins the kernel's queue for the lock, so that none starves. A process that works longer on an item than on the
queue never writes a claim and rarely waits.

**Holders are numbered**, so that other processes see immediately that one has died. ``ofs/NAME.slots/N.lck`` is locked
by one open queue as long as it lives, and its leases have the number N. If another process can lock that file, it knows
that the holder is dead. Numbers are taken and tested under the queue's lock, so that none changes between a test and
its consequence. The files stay and are used again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from typing import Final

from sej.errors import LockedError
from sej.journal.directory import Directory
from sej.queue.log.format import CLAIM
from sej.queue.log.state import QueueState
from sej.system.clock import Clock
from sej.system.disk import File, Tolerated
from sej.system.locks import Lock

_NS: Final = 1_000_000_000
_TURN_NS: Final = 2_000_000
_REST_S: Final = 0.0001
"""The pause after a turn: longer than a process that sleeps until the turn's end needs to wake up."""
_LOOK_S: Final = 0.001
_HASTE_NS: Final = 50_000
"""Operations that follow one another within this time are in a row."""
_ROW: Final = 4
_PATIENCE_NS: Final = 100_000_000
_PAUSE_S: Final = 0.00005
_PAUSE_MAX_S: Final = 0.005
_CROWD: Final = 10_000
"""After this many operations without records of others, no other process competes."""


class QueueLock:
    """The lock of one queue, for one open queue."""

    def __init__(self, directory: Directory, name: str, read_ahead: Callable[[], bool]) -> None:
        """Open the lock file; created if it is missing.

        Args:
            directory: the SEJ directory.
            name: the queue's name.
            read_ahead: reads records of others, without the lock; returns whether there were any.
        """
        self._directory = directory
        self._disk = directory.disk
        self._path = directory.at("ofs", f"{name}.queue.lck")
        self._read_ahead = read_ahead
        self._me = int.from_bytes(os.urandom(8), "big")
        self._file = self._open()
        self.release: Callable[[], object] = self._file.unlocker()
        """Releases the lock, in C; callable at any time."""
        self.replaced = False
        """Whether the lock file was found to be another one: meanwhile others may have changed the log."""
        self._crowd = self._row = 0
        self._hasty = False
        self._last_ns = self._turn_ends_ns = 0

    def take(self) -> None:
        """Take the lock, for one operation."""
        if self._crowd:
            self._give_way()
        if not self._file.lock(wait=False):
            self._wait()
        while not self._file.extent()[1]:  # it was removed or replaced: others lock the new one
            self._reopen()

    def _wait(self) -> None:
        pause = _PAUSE_S
        while pause < _PAUSE_MAX_S:
            time.sleep(pause)
            if self._crowd:
                self._give_way()
            if self._file.lock(wait=False):
                return
            pause *= 1.5
        self._file.lock(wait=True)

    def noticed(self, others: bool) -> None:
        """Note, with the lock held, whether others have written since the last operation."""
        if others:
            self._crowd = _CROWD
        elif not self._crowd:
            return
        self._crowd -= 1
        now = time.monotonic_ns()
        if now < self._turn_ends_ns:
            self._row += 1
            return
        self._row = 0 if others or now - self._last_ns > _HASTE_NS else self._row + 1
        self._last_ns = now
        if (self._row >= _ROW or self._hasty) and not self._claimed(now):
            self._row = 0
            self._turn_ends_ns = now + _TURN_NS
            with Tolerated():  # it is a hint
                self._file.write_at(CLAIM.pack(self._me, self._turn_ends_ns), 0)

    def check(self) -> None:
        """Check from time to time, with the lock held, that the lock file was not moved away."""
        there = self._disk.status(self._path)
        while there is None or there.identity != self._file.status().identity:
            self._reopen()
            there = self._disk.status(self._path)

    def _reopen(self) -> None:
        """Lock the file that others lock now."""
        self.replaced = True
        old, fresh = self._file, self._open()
        self._file, self.release = fresh, fresh.unlocker()
        old.close()
        self._wait()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self.release = _nothing
        self._file.close()

    def _open(self) -> File:
        while True:
            try:
                self._disk.open(self._path, "append").close()  # created if it is missing
            except FileNotFoundError:
                self._directory.require()  # the journal was removed
                raise
            with contextlib.suppress(FileNotFoundError):  # removed in between
                return self._disk.open(self._path, "edit")

    def _give_way(self) -> None:
        """Wait during another process's claim, and read what it writes."""
        now = time.monotonic_ns()
        if self._turn_ends_ns:
            if now < self._turn_ends_ns:
                return
            self._hasty = self._row >= _ROW
            self._turn_ends_ns = self._row = 0
            time.sleep(_REST_S)
        self._read_ahead()
        patience = now + _PATIENCE_NS
        while (left := self._claimed(now)) and now < patience:
            time.sleep(min(left / _NS, _LOOK_S))
            if not self._read_ahead():
                return
            now = time.monotonic_ns()

    def _claimed(self, now: int) -> int:
        """Return for how long, in ns, another process has the queue alone."""
        claim = b""
        with Tolerated():  # if a locked file cannot be read, there are no claims
            claim = self._file.read(CLAIM.size, 0)
        if len(claim) < CLAIM.size:
            return 0
        who, ends = CLAIM.unpack(claim)
        return ends - now if who != self._me and now < ends <= now + _TURN_NS else 0


def _nothing() -> None:
    """Do nothing: the release function of a lock whose file is closed."""


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

    In a container the boot id may be another one, but as long as a process has leases, the machine runs.
    """
    if state.boot is None or state.boot[0] == clock.boot_id():
        return False
    return not holders.any_alive(state.holders())
