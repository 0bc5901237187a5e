"""Live workers: lock files in ``<root>/.workers/<name>/``.

Each live worker of a name holds the lock of one file. The lock ends with its process, so the held locks count the live
workers, without a clock. The files are never removed; a free one is taken again. If another program removes them, each
worker takes a new one at its next count. Until then it is not counted, and the others may claim more than their share.
"""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple

from sej.errors import LockedError, LockLostError
from sej.journal.directory import check_name
from sej.system.disk import OS, Disk
from sej.system.locks import Lock
from sej.system.paths import absolute_path
from shard.name_format import WORKERS_DIR

_NAME: Final = re.compile(r"\d{4}\.slot")
_MAX_WORKERS: Final = 10_000


class WorkerRank(NamedTuple):
    """A worker's rank among the live ones, and their number."""

    rank: int
    workers: int

    def share(self, shards: int) -> int:
        """Return how many of the shards belong to this worker; the shares of all add up.

        Example:
            >>> [WorkerRank(rank, 3).share(8) for rank in range(3)]
            [3, 3, 2]
        """
        return shards // self.workers + (self.rank < shards % self.workers)


class LiveWorker:
    """The lock file of one live worker."""

    def __init__(self, root: str, name: str, disk: Disk = OS) -> None:
        """Take the first free lock file.

        Raises:
            LockedError: there is none.
        """
        self._disk = disk
        self._workers = name
        self._directory = _directory(root, name)
        self._take()

    def _take(self) -> None:
        what = f"a lock file of the workers {self._workers!r}"
        self._disk.mkdir(self._directory, parents=True)
        for number in range(_MAX_WORKERS):
            self._name = f"{number:04d}.slot"
            lock = Lock(os.path.join(self._directory, self._name), what=what, disk=self._disk)
            try:
                self._lock = lock.acquire()
            except LockedError:
                continue
            return
        raise LockedError(
            f"all {_MAX_WORKERS} lock files of the workers {self._workers!r} are held; stop some of them",
            path=self._directory,
        )

    @property
    def number(self) -> int:
        """The number of the lock file."""
        return int(self._name[:4])

    def rank(self) -> WorkerRank:
        """Return this worker's rank among the live ones. If its lock file was removed, it takes another one."""
        try:
            self._lock.check()
        except LockLostError:
            self._lock.release()
            self._take()
        alive = [
            name
            for name in self._disk.list(self._directory)
            if name == self._name or (_NAME.fullmatch(name) and _held(self._disk, os.path.join(self._directory, name)))
        ]
        return WorkerRank(alive.index(self._name), len(alive))

    def release(self) -> None:
        """Release the lock: the worker is no longer live."""
        self._lock.release()


def _directory(root: str, name: str) -> str:
    return os.path.join(absolute_path(root), WORKERS_DIR, check_name(name, "a worker's name"))


def _held(disk: Disk, path: str) -> bool:
    """Return whether a process holds a lock file; tested by a shared lock, so that two tests do not see each other."""
    try:
        file = disk.open(path, "read")
    except FileNotFoundError:  # removed since it was listed
        return False
    try:
        return not file.lock(exclusive=False)
    finally:
        file.close()
