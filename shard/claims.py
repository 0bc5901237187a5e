"""One shard that a worker holds: the reader's lock and offset, the position reached, and failures.

The lock is the reader's own, ``ofs/NAME.lck``: its holder is the only reader of that name in this shard, whether it is
a worker, a :class:`sej.Consumer` or the original. ``ofs/NAME.tries`` (:mod:`sej.reading.attempts`) is the consumer's
note of the current message: a worker that finds one gives up a message that ended too many processes.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from sej.durations import backoff
from sej.journal.directory import Directory, check_name
from sej.message import FIRST, Message, Start
from sej.reading.attempts import Attempts
from sej.reading.offset import Offset
from sej.system.disk import OS, Disk
from sej.system.locks import NumberedLocks
from sej.system.paths import absolute_path
from shard.names import WORKERS_DIR

COMMIT_MESSAGES: Final = 1000
"""The offset is committed at least every this many messages, so a successor is careful for that many."""
_COMMIT_S: Final = 1.0

Handler = Callable[[int, Message], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options for every shard of a worker; see :class:`shard.Worker`."""

    max_attempts: int
    dead_letter: str | None
    backoff_s: float
    backoff_max_s: float
    default: int | Start
    disk: Disk


class Claim:
    """A shard that this worker holds.

    Attributes:
        index: the shard.
        done: the next offset to handle.
        retry_at: the message at ``done`` is not tried again before this time (monotonic, seconds).
    """

    def __init__(self, index: int, path: str, name: str, options: WorkerOptions, *, is_new: bool = False) -> None:
        """Take the reader's lock.

        Args:
            index: the shard.
            path: its directory.
            name: the reader's name.
            options: the worker's options.
            is_new: whether the shard is younger than the worker: it starts at its first message, whatever the default.

        Raises:
            LockedError: another process reads this shard under this name.
            SejError: as :class:`sej.Offset`.
        """
        self.index = index
        self._options = options
        self._kept = Offset(path, name, FIRST if is_new else options.default, disk=options.disk)
        self.done = self._kept.value
        self.retry_at = 0.0
        self._attempts = 0
        self._commit_at = time.monotonic() + _COMMIT_S
        try:
            if is_new:
                self._kept.commit(self.done)  # or a successor, for which the shard is old, starts at its own default
            self._note = Attempts(Directory(path, options.disk), name, 2 * COMMIT_MESSAGES)
            self._note.appear()
        except BaseException:
            self._kept.close()
            raise

    def handle(self, handler: Handler, batch: Sequence[Message], stop: Callable[[], bool]) -> int:
        """Handle messages one after the other until one fails, or stop returns True; return how many are finished.

        Raises:
            RetriesExhaustedError: one failed max_attempts times and there is no dead-letter journal.
            LockLostError: the reader's lock was lost: another process may handle the messages.
        """
        self._kept._lock.check()
        first = self.done
        for message in batch:
            if stop():
                break
            if not self._attempts and self._note.careful(message.offset):
                self._attempts = self._note.begin(message.offset, self._options.max_attempts)
            failure = None
            if self._attempts < self._options.max_attempts:
                handle = partial(handler, self.index, message)
                failure = self._note.failure_of(handle, self._attempts + 1, message.offset)
                self._attempts += failure is not None
            if failure is not None and self._attempts < self._options.max_attempts:
                wait_s = backoff(self._attempts, self._options.backoff_s, self._options.backoff_max_s)
                self.retry_at = time.monotonic() + wait_s
                break
            if self._attempts >= self._options.max_attempts:
                attempts, self._attempts = self._attempts, 0
                of = f" of shard {self.index:03x}"
                self._note.give_up(self._kept, message, attempts, failure, self._options.dead_letter, of)
            self.done = message.offset + 1
            self._attempts = 0
            if self.done - self._kept.value >= COMMIT_MESSAGES or time.monotonic() >= self._commit_at:
                self.commit()
        return self.done - first

    def commit(self) -> None:
        """Commit the position reached, durably.

        Raises:
            LockLostError: the reader's lock was lost.
        """
        self._commit_at = time.monotonic() + _COMMIT_S
        if self.done > self._kept.value:
            self._kept.commit(self.done)

    def release(self) -> None:
        """Commit the position reached and release the lock.

        Raises:
            LockLostError: it was lost, and the note may belong to another process.
        """
        try:
            self.commit()
            self._kept._lock.check()
            self._note.remove()
        finally:
            self._note.close()
            self._kept.close()


_NAME: Final = re.compile(r"(\d{4,})\.slot")


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


class LiveWorker(NumberedLocks):
    """The lock file of one live worker."""

    def __init__(self, root: str, name: str, disk: Disk = OS) -> None:
        """Take the first free lock file."""
        folder = os.path.join(absolute_path(root), WORKERS_DIR, check_name(name, "a worker's name"))
        super().__init__(folder, "{:04d}.slot", disk)
        self.take()

    def rank(self) -> WorkerRank:
        """Return this worker's rank among the live ones."""
        numbers = {int(found[1]) for name in self._disk.list(self.folder) if (found := _NAME.fullmatch(name))}
        alive = sorted(numbers - self.dead(numbers) | {self.mine})
        return WorkerRank(alive.index(self.mine), len(alive))
