"""The locks that a reshard holds on its source: every shard's writer lock; and the queues that it refuses to copy."""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from typing import Final, Self

from sej.errors import LockedError, SejError
from sej.journal.directory import Directory, is_journal
from sej.queue.interface.values import Stats
from sej.queue.journal_queue import JournalQueue
from sej.system.disk import Disk, File
from sej.system.locks import Lock
from shard.files import too_many
from shard.names import Path

_READ_ONLY: Final = (errno.EACCES, errno.EPERM, errno.EROFS)


class Hold:
    """The writer locks of all shards, until it is closed: no process can append in the meantime.

    If this process may not write, a shared lock on the existing file has the same effect; if none exists, no writer
    of this user can start either.
    """

    def __init__(self, path: Path, disk: Disk) -> None:
        """Take the locks of the existing shards.

        Raises:
            LockedError: a writer has one of them.
        """
        self._path = path
        self._disk = disk
        self._held: set[int] = set()
        self._stack = ExitStack()
        try:
            self.extend()
        except BaseException:
            self._stack.close()
            raise

    def extend(self) -> None:
        """Take the locks of new shards."""
        fresh = [
            i for i in range(self._path.count) if i not in self._held and is_journal(self._disk, self._path.dir(i))
        ]
        for index in fresh:
            lock = os.path.join(self._path.dir(index), "jnl.lck")
            what = f"the writer lock of shard {index:03x} of the source (stop its writer first)"
            try:
                self._stack.enter_context(Lock(lock, what=what, disk=self._disk))
            except OSError as error:
                if error.errno in _READ_ONLY:
                    self._share(lock, what)
                else:
                    raise too_many(error, "a reshard holds a lock in every shard of the source") or error from None
            self._held.add(index)

    def _share(self, path: str, what: str) -> None:
        try:
            file: File = self._disk.open(path, "read")
        except FileNotFoundError:
            return
        if not file.lock(exclusive=False):
            file.close()
            holder = Lock(path, disk=self._disk).holder()
            raise LockedError(f"{what} is held by {holder or 'another process'}", path=path, holder=holder)
        self._stack.callback(file.close)

    def __enter__(self) -> Self:
        """Return the locks."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release the locks."""
        self._stack.close()


def refuse_queues(path: Path, disk: Disk) -> None:
    """Check that no work queue of a sharded journal has items left: its state refers to their offsets.

    Raises:
        SejError: one has.
    """
    for index in range(path.count):
        directory = Directory(path.dir(index), disk)
        if not is_journal(disk, directory.path) or disk.status(directory.at("ofs")) is None:
            continue
        for entry in disk.list(directory.at("ofs")):
            name, end = os.path.splitext(entry)
            if end != ".queue":
                continue
            left = _left(directory.path, name, disk)
            if left.ready or left.delayed or left.leased:
                raise SejError(
                    f"the work queue {name!r} of shard {index:03x} is not finished ({left.ready} ready,"
                    f" {left.delayed} delayed, {left.leased} leased). Its state refers to this shard's offsets. Let"
                    " its workers finish, or remove this file in every shard: then all items from the"
                    " kept offset on are delivered again, without their delays and priorities",
                    path=directory.at("ofs", entry),
                )


def _left(path: str, name: str, disk: Disk) -> Stats:
    with JournalQueue(path, name, create=False, disk=disk) as queue:
        return queue.stats()
