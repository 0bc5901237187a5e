"""The locks of a queue: that of its log, and those that show who lives.

**The queue's lock** is ``flock`` on ``ofs/NAME.queue.lck``, held for one operation; its holder may change the log. The
kernel gives it to those that wait in their order.

**Holders are numbered**, so that other processes see immediately that one has died. ``ofs/NAME.slots/N.lck`` is locked
by one open queue as long as it lives, and its leases have the number N. If another process can lock that file, it knows
that the holder is dead. Numbers are taken and tested under the queue's lock, so that none changes between a test and
its consequence. The files stay and are used again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Final

from sej.errors import LockLostError
from sej.journal.directory import Directory
from sej.system.disk import File, Tolerated, of_system
from sej.system.locks import NumberedLocks

_WATCHERS: Final = 3
_FEW: Final = 2


class QueueLock:
    """The lock of one queue, for one open queue."""

    def __init__(self, directory: Directory, name: str) -> None:
        """Open the lock file; created if it is missing."""
        self._disk = directory.disk
        self._path = directory.at("ofs", f"{name}.queue.lck")
        self._file = self._disk.open(self._path, "append")
        self.take: Callable[[], object] = partial(self._file.lock, wait=True)
        """Takes the lock, for one operation."""
        self.release: Callable[[], object] = self._file.unlocker()
        """Releases the lock, in C; callable at any time."""

    def check(self) -> None:
        """Check from time to time, with the lock held, that others lock the same file.

        Raises:
            LockLostError: it was removed or replaced.
        """
        there = self._disk.status(self._path)
        if there is None or there.identity != self._file.status().identity:
            raise LockLostError(
                "the queue's lock file was removed or replaced, so it does not keep other workers out; reopen the"
                " queue, and leave the files in ofs/ in their places",
                path=self._path,
            )

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self.release = _nothing
        self._file.close()


def _nothing() -> None:
    """Do nothing: the release function of a lock whose file is closed."""


class Watchers:
    """Which of the processes that wait for an item watch the queue.

    An item wakes all that watch, and one gets it. So three watch: each has the lock of one file,
    ``ofs/NAME.slots/watch-N.lck``. The others wait for a change of the folder of these files: a watcher that leaves
    with fewer than two left truncates its file. Then all of them look for items, and try to become watchers. A new
    watcher looks again after it began to watch, so it misses none.

    If all watchers were killed or stopped, the others look for items when their wait ends, after one second.
    """

    def __init__(self, directory: Directory, name: str) -> None:
        """Set the files; nothing is opened."""
        self._disk = directory.disk
        self.folder = directory.at("ofs", f"{name}.slots")
        self._files: list[File] = []
        self._mine: File | None = None

    def join(self) -> bool:
        """Return whether this process is to watch: as one of the three, or because the files cannot be opened."""
        try:
            for number in range(len(self._files), _WATCHERS):
                self._files.append(self._disk.open(os.path.join(self.folder, f"watch-{number}.lck"), "append"))
        except OSError as error:
            if not of_system(error):
                raise
            return True
        if self._mine is None:
            self._mine = next((file for file in self._files if file.lock()), None)
        return self._mine is not None

    def leave(self) -> None:
        """Watch no more, and call others if too few are left. The last one that leaves sees that."""
        mine, self._mine = self._mine, None
        if mine is None:
            return
        mine.unlock()
        left = 0
        for file in self._files:
            if file.lock(exclusive=False):
                file.unlock()
            else:
                left += 1
        if left < _FEW:
            with Tolerated():  # an item may have been taken, which an error would hide
                mine.truncate(0)  # it is empty: this only wakes the others

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        for file in self._files:
            file.close()


def holders_of(directory: Directory, name: str) -> NumberedLocks:
    """Return the holders of one queue's leases, as one open queue sees them."""
    return NumberedLocks(directory.at("ofs", f"{name}.slots"), "{}.lck", directory.disk)
