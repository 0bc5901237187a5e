"""The end of a queue's newest file, for the one process that holds the queue's lock: append, sync, replace, close.

Both formats write through one :class:`Tail`. It owns what an open queue has once: the lock, the :class:`Fuse`, the sync
policy, the record of the bytes on disk, and the open file. Promises:

- Every append is one write(2) at the end of the file. A killed process loses none that returned.
- The lock is checked every 100 ms while the queue is in use, and before files are replaced.
- After a failed write or sync every call raises :class:`FailedError`; see :class:`~kestrel.hot.reference.Fuse`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from kestrel.files import durable_path, join, take_lock
from kestrel.hot import Appender, Entry, Fuse
from kestrel.renewing import Renewing
from kestrel.syncing import Sync, Syncer
from sej.errors import ClosedError, LockLostError
from sej.system.disk import Disk, File


class Tail:
    """The open file at the end of a queue, and the hold on the queue.

    Attributes:
        appender: appends to the file.
        fuse: the lifecycle.
        renewing: the record of the bytes on disk.
        closed: whether :meth:`close` has finished. If it was interrupted, another call finishes it.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        name: str,
        *,
        sync: Sync,
        sync_soon: Callable[[], None],
        disk: Disk,
    ) -> None:
        """Make the directory and take the lock; no file is opened yet.

        Args:
            directory: where the queue's files are; made if missing.
            name: the queue.
            sync: when writes are synced to disk.
            sync_soon: called by the thread that syncs at an interval; takes the queue's mutex.
            disk: the seam.

        Raises:
            BusyError: another process holds the queue.
        """
        self._syncer = Syncer(sync, sync_soon)
        self.fuse = Fuse(join(directory, name))
        self._disk = disk
        self._file: File | None = None
        self._synced_size = 0
        self.closed = False
        self.renewing = Renewing(durable_path(directory, name), disk)
        disk.mkdir(directory, parents=True)
        self._lock = take_lock(directory, name, disk)
        by_policy = (self.force if self._syncer.always else self._syncer.wrote) if self._syncer.active else None
        self.appender = Appender(self.fuse, check_lock=self._lock.check, by_policy=by_policy)

    def open(self, path: str, entry: Entry, *, head: bytes | None = None) -> None:
        """Append to this file from now on; its bytes up to ``entry.size`` count as synced.

        Args:
            path: the file.
            entry: whose size is kept current.
            head: how a new file begins; None: the file may exist.
        """
        self._file = self._disk.open(path, "append" if head is None else "new")
        self.appender.output.aim(self._file)
        self.appender.entry = entry
        self._synced_size = entry.size
        if head is not None:
            self._file.write(head)
            entry.size += len(head)

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """What fails inside blows the fuse."""
        try:
            yield
        except (OSError, LockLostError, ClosedError) as error:
            self.fuse.blow(error)

    def touched(self) -> None:
        """Another file of the queue was written: sync by the policy."""
        if self.appender.active:
            self._syncer.wrote()

    def sync(self) -> None:
        """Sync the appended bytes to disk. It raises the errors of ``Appender.append``."""
        if not self.fuse.live:
            self.fuse.refuse()
        with self.failing():
            self.force()

    def force(self) -> None:
        """As :meth:`sync`, inside an operation: an ``OSError`` is the caller's."""
        if self._file is not None and self._synced_size != self.appender.entry.size:
            self._lock.check()
            size = self.appender.entry.size
            self._file.sync()
            self._synced_size = size
            self.renewing.keep(self._file, size)

    @contextlib.contextmanager
    def replacing(self) -> Iterator[None]:
        """While files are replaced. Everything is synced before. Raises as ``Appender.append``."""
        self.sync()
        self.fuse.live = False
        with self.failing():
            self._lock.check()
            yield
        self.fuse.live = True

    def check_lock(self) -> None:
        """Make sure that the lock is held, just before a change that cannot be taken back.

        Raises:
            LockLostError: another process may hold the queue.
        """
        self._lock.check()

    def fresh(self) -> None:
        """The file was just synced and put in the place of all others."""
        assert self._file is not None
        self.renewing.fresh(self._file, self.appender.entry.size)

    def close_file(self) -> None:
        """Close the file; another one is opened, or the queue ends."""
        file, self._file = self._file, None
        self.appender.output.aim(None)
        if file is not None:
            file.close()

    def stop(self) -> None:
        """End the sync thread; the caller must not hold the mutex that ``sync_soon`` takes."""
        self._syncer.stop()

    def close(self) -> None:
        """Sync, close the file and release the lock; a second time does nothing."""
        fuse = self.fuse
        fuse.live, fuse.shut = False, True
        try:
            if fuse.blown is None and self._lock.held:
                with self.failing():
                    self.force()
                    self.renewing.settle()
        finally:
            with contextlib.suppress(OSError):
                self.close_file()
            self.renewing.close()
            self._lock.release()
            self.closed = True
