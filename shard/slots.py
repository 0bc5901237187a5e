"""Who is alive: lock slots in ``<root>/.workers/<name>/``.

Each live worker of a name holds the lock of one slot file. The lock dies with its process, so counting those that are
held counts the living, without a clock. The files are never removed; a slot that is free is taken again.
"""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple

from sej.errors import LockedError
from sej.journal.directory import check_name
from sej.system.disk import OS, Disk
from sej.system.locks import Lock
from shard.name_format import WORKERS_DIR

__all__ = ["Slot", "Standing", "live_workers"]

_NAME: Final = re.compile(r"\d{4}\.slot")
_MAX_WORKERS: Final = 10_000


class Standing(NamedTuple):
    """A worker among the living: its place in their order, and how many they are."""

    rank: int
    workers: int

    def share(self, shards: int) -> int:
        """How many of so many shards are this worker's; the shares of all add up.

        Example:
            >>> [Standing(rank, 3).share(8) for rank in range(3)]
            [3, 3, 2]
        """
        return shards // self.workers + (self.rank < shards % self.workers)


class Slot:
    """One worker's slot."""

    def __init__(self, root: str, name: str, disk: Disk = OS) -> None:
        """Take the first free slot.

        Raises:
            LockedError: there is none.
        """
        self._disk = disk
        self._directory = _directory(root, name)
        disk.mkdir(self._directory)
        for number in range(_MAX_WORKERS):
            self._name = f"{number:04d}.slot"
            lock = Lock(os.path.join(self._directory, self._name), what=f"a slot of the workers {name!r}", disk=disk)
            try:
                self._lock = lock.acquire()
            except LockedError:
                continue
            return
        raise LockedError(f"all {_MAX_WORKERS} slots of the workers {name!r} are held", path=self._directory)

    @property
    def number(self) -> int:
        """Which slot it is."""
        return int(self._name[:4])

    def standing(self) -> Standing:
        """Where this worker stands among the living."""
        alive = [
            name
            for name in self._disk.list(self._directory)
            if name == self._name or (_NAME.fullmatch(name) and _held(self._disk, os.path.join(self._directory, name)))
        ]
        return Standing(alive.index(self._name), len(alive))

    def release(self) -> None:
        """Be among the living no more."""
        self._lock.release()


def live_workers(root: str, name: str, disk: Disk = OS) -> list[str]:
    """What the slot files say of the workers of a name that are alive: pid, host and start time of each."""
    directory = _directory(root, name)
    if disk.status(directory) is None:
        return []
    found = []
    for entry in disk.list(directory):
        path = os.path.join(directory, entry)
        if _NAME.fullmatch(entry) and _held(disk, path):
            found.append(Lock(path, disk=disk).holder() or "unknown")
    return found


def _directory(root: str, name: str) -> str:
    return os.path.join(root, WORKERS_DIR, check_name(name, "a worker's name"))


def _held(disk: Disk, path: str) -> bool:
    """Whether somebody holds a slot; a shared lock, so that two who look at once do not take each other for alive."""
    file = disk.open(path, "read")
    try:
        return not file.lock(exclusive=False, brief=True)
    finally:
        file.close()
