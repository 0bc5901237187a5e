"""Sharing syncs between threads, and syncing in the background.

Group commit: of the threads that wait for durability one is the leader. It syncs once for everybody who had written
before it began; who came later elects the next leader. A failed sync is final: whoever waits gets the error, and
nobody syncs again.
"""

from __future__ import annotations

import errno
import threading
import time
import weakref
from collections.abc import Callable

from sej.errors import ClosedError, SejError, WriterFailedError

__all__ = ["Syncer", "is_mine"]


class Syncer:
    """Keeps the durable offset of one writer.

    Attributes:
        durable_offset: every message below it survives power loss.
        untold: whether a sync in the background failed and no call has raised that so far.
    """

    def __init__(
        self,
        sync: Callable[[], int],
        fail: Callable[[BaseException], None],
        written: Callable[[], int],
        offset: int,
        *,
        interval_s: float | None = None,
    ) -> None:
        """Start with everything below offset durable.

        Args:
            sync: forces what was written so far to the disk; returns the offset up to which.
            fail: told of the error when a sync fails.
            written: the offset behind what was appended so far.
            offset: what is durable already.
            interval_s: sync in the background this often, in seconds; None: only when asked.
        """
        self._sync = sync
        self._fail = fail
        self._written = written
        self.durable_offset = offset
        self.untold = False
        # Taken bare: an interrupt inside of Condition.__enter__ would leave it held. A signal's handler may come again.
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._leader: int | None = None
        self._waiting = 0
        self._company = False
        self._error: BaseException | None = None
        self._interval_s = interval_s
        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None
        if interval_s is not None:
            if not 0 < interval_s <= threading.TIMEOUT_MAX:
                raise ValueError(
                    f"sync_interval_s {interval_s}: more than 0, and no more than threads can wait, is due"
                )
            self._start()

    def commit(self, offset: int) -> None:
        """Return once every message below offset is durable.

        Raises:
            WriterFailedError: a sync failed.
        """
        before: int | None = None
        with self._lock:
            while self.durable_offset < offset:
                if self._error is not None:
                    raise self._failure(self._error)
                before = self._leader
                if before is None or before == threading.get_ident():  # itself: a signal's handler syncs in its midst
                    self._leader = threading.get_ident()
                    break
                self._waiting += 1
                try:
                    self._condition.wait()
                finally:
                    self._waiting -= 1
            else:
                return
        reached = 0
        try:
            if self._company:
                time.sleep(0)  # those whom the last sync woke append meanwhile, and share this one
            reached = self._sync()
        except Exception as error:  # an interrupt says nothing of the disk: whoever comes next syncs
            gone = isinstance(error, ClosedError) or (isinstance(error, OSError) and error.errno == errno.EBADF)
            if gone and self.durable_offset >= offset:
                return  # the writer was closed meanwhile, which synced it
            self._fail(error)
            self.fail(error)
            if isinstance(error, OSError):
                raise self._failure(error) from error
            raise
        finally:
            with self._lock:
                self._leader = before
                self._company = self._waiting > 1
                self.durable_offset = max(self.durable_offset, reached)
                self._condition.notify_all()

    def advance(self, offset: int) -> None:
        """Take note that the writer itself synced up to offset."""
        if offset > self.durable_offset:
            with self._lock:
                self.durable_offset = max(self.durable_offset, offset)
                self._condition.notify_all()

    def request(self) -> None:
        """Sync in the background, soon."""
        if self._thread is None:
            self._start()
        self._wake.set()

    def fail(self, error: BaseException) -> None:
        """Let everybody who waits have the error."""
        with self._lock:
            if self._error is None:
                self._error = error
            self._condition.notify_all()
        self._wake.set()

    def close(self) -> None:
        """Stop the background thread."""
        self._closing = True
        if self._thread is threading.current_thread():
            return  # it finds that out by itself
        self._wake.set()
        # A signal's handler in the midst of a sync: the thread may wait for us, and ends by itself.
        inside = is_mine(self._lock) or self._leader == threading.get_ident()
        if self._thread is not None and not inside:
            self._thread.join()

    def _start(self) -> None:
        arguments = weakref.ref(self), self._wake, self._interval_s
        self._thread = threading.Thread(target=_run, args=arguments, name="sej-sync", daemon=True)
        self._thread.start()

    def __del__(self) -> None:
        """Stop the thread of a writer that was forgotten."""
        if hasattr(self, "_thread") and self._thread is not threading.current_thread():
            self._wake.set()

    def _sync_in_background(self) -> bool:
        """Whether to go on."""
        if self._closing or self._error is not None:
            return False
        try:
            self.commit(self._written())
        except (OSError, SejError):
            self.untold = True  # the writer is poisoned and says so at its next call
            return False
        return True

    @staticmethod
    def _failure(error: BaseException) -> WriterFailedError:
        if isinstance(error, WriterFailedError):
            return error
        return WriterFailedError(f"a sync failed: {error}; open the writer anew, which finds what is on disk")


def is_mine(lock: threading.RLock) -> bool:
    """Whether this thread holds a lock already: then this is a signal's handler, in the middle of a call.

    Asked as :class:`threading.Condition` asks it.
    """
    return lock._is_owned()  # type: ignore[attr-defined, no-any-return]


def _run(of: weakref.ref[Syncer], wake: threading.Event, interval_s: float | None) -> None:
    """The thread; between two syncs it keeps no writer alive."""
    while True:
        wake.wait(interval_s)
        wake.clear()
        syncer = of()
        if syncer is None or not syncer._sync_in_background():
            return
        del syncer
