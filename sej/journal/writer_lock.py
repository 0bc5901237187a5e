"""The two locks of an exclusive writer: the journal's lock file, and the last segment itself."""

from __future__ import annotations

import errno
import time
from typing import Final

from sej.errors import LockedError
from sej.fork import notice_fork
from sej.journal.directory import Directory
from sej.system.disk import File
from sej.system.locks import Lock

_DYING_S: Final = 0.25
_PAUSE_S: Final = 0.002


class WriterLock(Lock):
    """The journal's lock, which an original takes and unlinks too, and the locks of segments.

    It knows each segment before it locks it. So whatever interrupts a call, the next one unlocks what that call has
    left. To close a file is not enough for that: a child that another thread has just forked may have a copy of it.
    """

    keeps = True
    """Whether it is held until the writer closes."""

    def __init__(self, directory: Directory, timeout: float | None = 0.0) -> None:
        """Set the journal, and how many seconds to wait for its lock; nothing is opened or locked yet."""
        super().__init__(
            directory.prefix + "jnl.lck",
            what="the journal's writer lock",
            written=lambda: bool(directory.segments()),
            disk=directory.disk,
        )
        self._segments: list[File] = []
        self._timeout = timeout

    def hold(self) -> None:
        """Take the lock; if it is held, check that it is still valid."""
        if self.held:
            self.check()
        else:
            self.acquire(timeout=self._timeout)

    def lock_segment(self, file: File) -> None:
        """Take a segment's lock too; see :func:`lock_segment`."""
        if file not in self._segments:
            self._segments.append(file)
        lock_segment(file)

    def keep(self, file: File | None) -> None:
        """Unlock every segment but this one. Files stay open, because a sync may use them."""
        for other in self._segments.copy():
            if other is not file:
                other.unlock()
                self._segments.remove(other)

    def release(self) -> None:
        """Release all locks; a second call does nothing, or finishes an interrupted one."""
        notice_fork()
        self.keep(None)
        super().release()

    def _after_fork(self) -> None:
        for file in self._segments:
            file.close()
        self._segments.clear()
        super()._after_fork()


def lock_segment(file: File) -> None:
    """Take the last segment's own lock, which an exclusive writer holds in addition to ``jnl.lck``.

    The original unlinks ``jnl.lck``, and with it the lock of the process that holds that inode. No process unlinks the
    last segment, so two of our own writers never append, whatever happens to the lock file.

    A process that is killed gives its locks back one after the other, ``jnl.lck`` first. So this waits for a moment.

    Raises:
        LockedError: another writer holds it.
    """
    deadline = time.monotonic() + _DYING_S
    while not file.lock():
        if time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
            continue
        raise LockedError(
            "another writer holds this segment, although the journal's lock file is free: the file was removed"
            " while that writer ran; close that writer",
            path=file.path,
        )


def require_name(segment: File) -> None:
    """Check that the segment that a writer appends to still has a name.

    Raises:
        OSError: ESTALE: it was removed, and what was appended after that is lost.
    """
    if not segment.extent()[1]:
        raise OSError(
            errno.ESTALE,
            "this segment was removed while a writer appended to it, and its messages with it: find the program that"
            " removes it, then open a new writer",
            segment.path,
        )
