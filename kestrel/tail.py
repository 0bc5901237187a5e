"""An open queue of either format, and the end of its newest file: append, sync, replace, close.

Both formats write through one :class:`Tail`. It owns what an open queue has once: the lock, the :class:`Fuse`, the sync
policy, the record of the bytes on disk, and the open file. Promises:

- Every append is one write(2) at the end of the file. A killed process loses none that returned.
- The lock is checked every 100 ms while the queue is in use, and before files are replaced.
- After a failed write or sync every call raises :class:`FailedError`; see :class:`~kestrel.fast.reference.Fuse`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final, Literal, Protocol, Self

from kestrel.errors import KestrelError
from kestrel.fast import Appender, Entry, Fuse, Output
from kestrel.fast.reference import FAILURES
from kestrel.files import DURABLE, Place
from sej.checks import Seconds, instance_of, refuse_pickling, seconds
from sej.fork import notice_fork
from sej.system.disk import File
from sej.system.durable import KeptPosition, renew


class Tail(Appender):
    """The open file at the end of a queue, and the hold on the queue.

    Attributes:
        place: where the queue is.
        others: what is synced after the newest file, by :meth:`sync`.
        renewing: the record of the bytes on disk.
        closed: whether :meth:`close` has finished. If it was interrupted, another call finishes it.
    """

    def __init__(self, place: Place, sync: Sync = "never") -> None:
        """Make the directory and take the lock; no file is opened yet.

        Args:
            place: where the queue is; its directory is made if missing.
            sync: when writes are synced to disk.

        Raises:
            BusyError: another process holds the queue.
        """
        self._period = _period(sync)
        self._timer: threading.Timer | None = None
        self.place = place
        self.others: dict[Output, None] = {}
        self.closed = False
        self.renewing = Renewing(place)
        place.disk.mkdir(place.directory, parents=True)
        self.lock = place.lock()
        self.check_lock = self.lock.check
        super().__init__(Fuse(place.path()), active=self._period is not None)

    def open(self, path: str, entry: Entry, *, head: bytes | None = None) -> None:
        """Append to this file from now on; its bytes up to ``entry.size`` count as synced.

        Args:
            path: the file.
            entry: whose size is kept current.
            head: how a new file begins; None: the file may exist.
        """
        file = self.place.disk.open(path, "append" if head is None else "new")
        self.output.aim(file)
        self.entry = entry
        if head is not None:
            file.write(head)
            entry.size += len(head)
            self.output.unsynced = True

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """After a failure inside, every later call fails."""
        try:
            yield
        except FAILURES as error:
            self.fuse.fail(error)

    def sync(self) -> None:
        """Sync all files to disk, items before commits; under the mutex. Raises as ``Appender.append``."""
        if not self.fuse.live:
            self.fuse.refuse()
        with self.failing():
            self.force()
            for other in self.others:
                other.sync()

    def sync_open(self) -> None:
        """As :meth:`sync`, unless the queue was closed; takes the mutex."""
        with self.signal.guard:
            if not self.fuse.shut:
                self.sync()

    def by_policy(self) -> None:
        """Sync now or later, after an append to the newest file."""
        if self._period:
            self._sync_later(self._period)
        else:
            with self.failing():
                self.force()

    def touched(self) -> None:
        """Sync now or later, or never, after another file was written."""
        if self._period:
            self._sync_later(self._period)
        elif self.active:
            self.sync_open()

    def _sync_later(self, period: float) -> None:
        if self._timer is None or self._timer.ident is None:  # the latter: its start was interrupted
            self._timer = timer = threading.Timer(period, self._sync_late)
            timer.name, timer.daemon = "kestrel-sync", True
            timer.start()

    def _sync_late(self) -> None:
        """Sync what was written since a timer was started. The next call finds the queue failed if this fails."""
        self._timer = None
        with contextlib.suppress(KestrelError):
            self.sync_open()

    def force(self) -> None:
        """Sync the newest file, inside an operation: an ``OSError`` is the caller's."""
        file = self.output.file
        if file is not None and self.output.unsynced:
            self.lock.check()
            self.output.sync()
            self.renewing.keep(file, self.entry.size)

    @contextlib.contextmanager
    def replacing(self) -> Iterator[None]:
        """While files are replaced. Everything is synced before. Raises as ``Appender.append``."""
        self.sync()
        self.fuse.live = False
        with self.failing():
            self.lock.check()
            yield
        self.fuse.live = True

    def close(self) -> None:
        """Sync, close the file and release the lock; a second time does nothing."""
        fuse = self.fuse
        fuse.live, fuse.shut = False, True
        if self._timer is not None:
            self._timer.cancel()
        try:
            if fuse.failure is None and self.lock.held:
                with self.failing():
                    self.force()
                    self.renewing.settle()
        finally:
            with contextlib.suppress(OSError):
                self.output.close()
            self.renewing.close()
            self.lock.release()
            self.closed = True


Sync = Literal["never", "always"] | Seconds
"""``"never"``, ``"always"``: before the call returns, or a number of seconds, also as in ``"5s"``."""


def _period(sync: Sync) -> float | None:
    """The seconds between two syncs; 0: each append is synced, None: none is.

    Raises:
        TypeError: it is neither a ``str`` nor a number.
        ValueError: it is another word, or not above 0.
    """
    instance_of(str, int, float)("sync", sync)
    if sync == "never":
        return None
    if sync == "always":
        return 0.0
    with contextlib.suppress(ValueError):
        if (period := seconds("sync", sync)) > 0:
            return period
    raise ValueError(f"sync must be 'never', 'always' or seconds above 0, got {sync!r}")


_STEP_BYTES: Final = 1 << 16


class Renewing:
    """The kept position of one queue. The caller holds the queue's lock."""

    def __init__(self, place: Place) -> None:
        self._path, self._disk = place.path(DURABLE), place.disk
        self._kept = KeptPosition(self._disk, self._path)
        self._whole = False
        self._stored: tuple[File | None, int] = (None, 0)
        self._synced = 0

    def renew(self, paths: Sequence[str]) -> None:
        """Make every byte of the files durable, and their names. Called before they are read.

        Args:
            paths: of the files, oldest first.

        Raises:
            OSError: a write or a sync failed.
        """
        newest, certain = "", False
        for path in reversed(paths):
            with self._disk.open(path, "edit") as file:
                size = file.size()
                position = self._kept.load(file, 0).position
                if position < size:
                    renew(self._disk, file, position, size)
                    file.sync()
            if not newest and size:
                newest, certain = path, position == size
            if position:
                break
        if not certain:
            self._sync_names()
        self._whole = True
        if newest and not certain:
            with self._disk.open(newest, "edit") as file:
                self.keep(file, file.size())

    def _sync_names(self) -> None:
        """An earlier process may have failed between a rename and the sync of its directory."""
        directory = os.path.dirname(self._path)
        self._disk.sync_dir(directory)
        try:
            self._disk.sync_dir(os.path.dirname(os.path.abspath(directory)))
        except PermissionError:
            return  # this user cannot have made the directory

    def keep(self, file: File, position: int) -> None:
        """After a sync of the newest file: every byte before position is on disk, and every older file.

        Stored when the file has grown by 64 KiB, or by :meth:`settle`: an older position costs that much at an opening.
        """
        stored, at = self._stored
        self._synced = position
        if self._whole and (file is not stored or not 0 <= position - at < _STEP_BYTES):
            self._stored = file, position
            self._kept.store(file, 0, position, 0)

    def settle(self) -> None:
        """Store what was synced last. Called before the file is closed for good."""
        file, at = self._stored
        if file is not None and at != self._synced:
            self._stored = file, self._synced
            self._kept.store(file, 0, self._synced, 0)

    def close(self) -> None:
        """Close the record, which stays open between two stores."""
        self._kept.forget()

    def fresh(self, file: File, position: int) -> None:
        """The file and its name were just made and synced, and it is the only file."""
        self._whole = True
        if position:
            self.keep(file, position)
        else:
            self.forget()

    def forget(self) -> None:
        """Before a file is cut: what is written in the place of the rest is not known to be durable."""
        self._stored, self._synced = (None, 0), 0
        self._disk.unlink(self._path)


class Store(Protocol):
    """What an open queue has in its format. Its methods are called under the mutex.

    Attributes:
        tail: the end of the newest file.
    """

    tail: Tail

    def settle(self) -> None:
        """Write what the format needs before the queue is closed."""

    def erase(self) -> None:
        """Remove the files."""

    def release(self) -> None:
        """Close all other files that are open."""


def end(store: Store) -> None:
    """Close the files and release the lock; if that was interrupted, another call finishes it."""
    store.tail.fuse.live = False  # the next close must not take a queue that was released for an empty one
    try:
        store.release()
    finally:
        store.tail.close()


class OpenQueue:
    """An open queue of either format; its threads share it.

    Attributes:
        name: the queue's name.
        directory: where its files are.
    """

    _store: Store

    def __init__(self, store: Store) -> None:
        tail = store.tail
        self.name, self.directory = tail.place.name, tail.place.directory
        self._tail, self._fuse, self._signal = tail, tail.fuse, tail.signal

    __reduce__ = refuse_pickling

    def sync(self) -> None:
        """Sync all writes to disk, items before commits."""
        self._tail.sync_open()

    def evict_waiters(self) -> None:
        """Let every call that waits for an item return None now."""
        self._signal.evict()

    def close(self) -> None:
        """Sync and close. What is taken or reserved is delivered again after the next opening."""
        self._shut(erase=False)

    def delete(self) -> None:
        """Remove the queue's files and close it; its lock file remains."""
        self._shut(erase=True)

    def _shut(self, *, erase: bool) -> None:
        notice_fork()
        tail = self._tail
        with self._signal.guard:
            if tail.closed:
                return
            self._fuse.shut = True
            self._signal.changed.notify_all()
            try:
                (self._store.erase if erase else self._store.settle)()
            finally:
                end(self._store)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
