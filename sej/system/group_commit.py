"""Share syncs between threads, and sync in the background.

Group commit: of the threads that wait for durability one is the leader. It syncs once for all threads that had written
before it began; later threads elect the next leader. A failed sync is final: waiting threads get the error, and no
thread syncs again.

An exception of a signal handler may end any call between two bytecodes, so no lock here is taken or released by Python
code. Each lock is used in a ``with`` statement, and threads wait for one another on queues that are written in C.
:class:`threading.Condition` and :class:`threading.Event` are not, and an interrupt inside them leaves them locked. The
leader holds ``_baton``. If a leader is interrupted before it takes the baton, or before it wakes the others, they take
the baton themselves after ``_LOOK_S``.
"""

from __future__ import annotations

import errno
import threading
import time
import weakref
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, Protocol

from sej.errors import ClosedError, LockLostError, SejError, WriterFailedError
from sej.system.disk import of_system
from sej.system.lifecycle import Lifecycle, is_mine

_LOOK_S: Final = 0.1
"""A thread that waits for the leader's sync checks for a lost leader this often."""


class Synced(Protocol):
    """What a syncer syncs: a writer, or the log of a queue."""

    life: Lifecycle

    @property
    def appended(self) -> int:
        """The offset after what was appended so far."""

    def sync_some(self) -> int:
        """Sync what was written so far; return the offset up to which."""

    def fail(self, error: BaseException) -> object:
        """Fail, because a sync failed."""


class Syncer:
    """Keeps the durable offset of one writer.

    Attributes:
        durable_offset: every message below it survives power loss.
    """

    _leader: int | None = None
    _company = False
    _error: BaseException | None = None
    _closing = False
    _thread: threading.Thread | None = None
    _wake: SimpleQueue[None] | None = None

    def __init__(self, owner: Synced, *, interval_s: float | None = None) -> None:
        """Create it, with nothing known to be durable.

        Args:
            owner: what is synced, until :meth:`forget`.
            interval_s: sync in the background this often, in seconds; None: only on request.
        """
        self._owner: Synced | None = owner
        self._life = owner.life
        self.durable_offset = 0
        self._lock = threading.RLock()  # reentrant for signal handlers
        self._baton = threading.RLock()
        self._waiting: list[SimpleQueue[None]] = []
        self._interval_s = interval_s
        if interval_s is not None:
            if not 0 < interval_s <= threading.TIMEOUT_MAX:
                raise ValueError(
                    f"sync_interval_s must be more than 0, and at most what threads can wait, got {interval_s}"
                )
            self._start()

    def make_durable(self, offset: int) -> None:
        """Return once every message below offset is durable.

        Raises:
            WriterFailedError: a sync failed.
        """
        while self.durable_offset < offset:
            waiter: SimpleQueue[None] | None = None
            with self._lock:
                if self._error is not None:
                    raise self._failure(self._error)
                if self._leader is None or self._leader == threading.get_ident():  # the latter: a signal handler
                    self._leader = threading.get_ident()
                else:
                    waiter = SimpleQueue()
                    self._waiting.append(waiter)
            if waiter is not None:
                with suppress(Empty):
                    waiter.get(timeout=_LOOK_S)
                    continue
            self._lead(offset)

    def _lead(self, offset: int) -> None:
        """Sync for all waiting threads, unless another leader has done so."""
        nested = is_mine(self._baton)  # a signal handler during a sync
        with self._baton:
            if self.durable_offset >= offset:
                return
            if self._error is not None:
                raise self._failure(self._error)
            try:
                self._leader = threading.get_ident()
                if self._company:
                    time.sleep(0)  # threads that the last sync woke append now, and share this one
                reached = self._synced().sync_some()
                with self._lock:
                    self.durable_offset = max(self.durable_offset, reached)
            except Exception as error:
                gone = isinstance(error, ClosedError) or (isinstance(error, OSError) and error.errno == errno.EBADF)
                if gone and self.durable_offset >= offset:
                    return  # the writer was closed, which synced it
                if isinstance(error, ClosedError) or is_failure(error):
                    self._fail(error)
                    if isinstance(error, OSError):
                        raise self._failure(error) from error
                raise  # an interrupt says nothing about the disk: the next thread syncs
            finally:
                self._leader = threading.get_ident() if nested else None
                self._company = len(self._waiting) > 1
                self._wake_all()

    def _wake_all(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.put(None)

    def advance(self, offset: int) -> None:
        """Note that the writer itself synced up to offset."""
        if offset > self.durable_offset:
            with self._lock:
                if offset > self.durable_offset:
                    self.durable_offset = offset
            if self._waiting:
                self._wake_all()

    def request(self) -> None:
        """Sync in the background, soon."""
        if self._thread is None or self._thread.ident is None:  # the latter: its start was interrupted
            self._start()
        self._wake_thread()

    def fail(self, error: BaseException) -> None:
        """Pass the error to all waiting threads."""
        with self._lock:
            if self._error is None:
                self._error = error
        self._wake_all()
        self._wake_thread()

    def close(self) -> None:
        """Stop the background thread."""
        self._closing = True
        if self._wake is None:
            return
        self._wake.put(None)
        if self._thread is None or self._thread.ident in (None, threading.get_ident()):
            return  # it never ran, or ends on its own
        # A signal handler during a sync: the thread may wait for us, and ends on its own.
        if not (is_mine(self._lock) or is_mine(self._baton)):
            self._thread.join()

    def forget(self) -> None:
        """Release the owner, after it was closed: a cycle of references would live until the garbage is collected."""
        self._owner = None

    def _synced(self) -> Synced:
        return self._owner or self._life.refuse()

    def _fail(self, error: BaseException) -> None:
        if self._owner is not None:
            self._owner.fail(error)
        self.fail(error)

    def _wake_thread(self) -> None:
        if self._wake is not None:
            self._wake.put(None)

    def _start(self) -> None:
        with self._lock:
            wake = self._wake = self._wake or SimpleQueue()
        # The thread of a writer that was garbage-collected ends.
        arguments = weakref.ref(self, lambda _: wake.put(None)), wake, self._interval_s
        self._thread = threading.Thread(target=_run, args=arguments, name="sej-sync", daemon=True)
        self._thread.start()

    def _sync_in_background(self) -> bool:
        """Return whether to continue."""
        if self._closing or self._error is not None:
            return False
        try:
            self.make_durable(self._synced().appended)
        except (OSError, SejError) as error:
            if self._error is None:  # background syncing ends here, so any error must be reported
                self._fail(error)
            self._life.leave_unreported()
            return False
        return True

    @staticmethod
    def _failure(error: BaseException) -> WriterFailedError:
        if isinstance(error, WriterFailedError):
            return error
        return WriterFailedError(f"a sync failed: {error}; reopen the writer, which finds what is on disk")


def is_failure(error: BaseException) -> bool:
    """Return whether an error means that a disk or a lock failed: it has a number, or the lock was lost.

    Any other exception that ends a write or a sync, including ``TimeoutError()``, was raised by a signal handler. It
    says nothing about the disk: the object checks the files, and continues.
    """
    return isinstance(error, LockLostError) or of_system(error)


def _run(of: weakref.ref[Syncer], wake: SimpleQueue[None], interval_s: float | None) -> None:
    """Run the thread; between two syncs it keeps no writer alive."""
    while True:
        with suppress(Empty):
            wake.get(timeout=interval_s)
        syncer = of()
        if syncer is None or not syncer._sync_in_background():
            return
        del syncer
