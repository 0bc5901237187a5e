"""The locks of writers: the journal's lock file ``jnl.lck``, and the last segment itself.

An exclusive writer holds both while it is open, a shared writer ``jnl.lck`` for one turn at a time, with a mark in the
file. The mark is ``shared`` and 16 random hex digits. A shared writer removes it before it starts a segment, and writes
another one when it has found the end. An exclusive writer destroys it: ours signs the file, the original truncates it.
**So if a writer finds the mark that it has left or seen, the last segment is still the same file, and since then only
shared writers have appended to it.**

After a trace of the original (:mod:`sej.system.locks`), the trace follows the mark in the file, and each turn also
checks that the lock file is still the file at its path.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

from sej.errors import LockedError, LockLostError
from sej.fork import notice_fork
from sej.journal.directory import Directory
from sej.system.disk import File
from sej.system.locks import Lock, Trace, find_trace, is_current, pause

_DYING_S: Final = 0.25
_PAUSE_S: Final = 0.002


class WriterLock(Lock):
    """The journal's lock, which an original takes and unlinks too, and the locks of segments.

    It knows each segment before it locks it. So whatever interrupts a call, the next one unlocks what that call has
    left. To close a file is not enough for that: a child that another thread has just forked may have a copy of it.
    """

    _of_original = True
    keeps = True
    """Whether it is held until the writer closes."""

    def __init__(self, directory: Directory, timeout: float | None = 0.0) -> None:
        """Set the journal, and how many seconds to wait for its lock; nothing is opened or locked yet."""
        super().__init__(
            directory.prefix + "jnl.lck",
            what="the journal's writer lock",
            disk=directory.disk,
        )
        self._directory = directory
        self._segments: list[File] = []
        self._timeout = timeout

    def _has_content(self) -> bool:
        return bool(self._directory.segments())

    def hold(self) -> None:
        """Take the lock; if it is held, check that it is still valid."""
        if self._file is None:
            self.acquire(timeout=self._timeout)
        else:
            self.check()

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


_MARK: Final = b"shared "
_MARK_BYTES: Final = len(_MARK) + 16
_SIGNED_BYTES: Final = 256
_TURN_PAUSE_S: Final = 0.00005
"""Longer than a turn, so that the holder of the lock can take several turns before a switch to another process."""
_PAUSE_MAX_S: Final = 0.002


class TurnLock:
    """The journal's lock, free between two turns.

    Attributes:
        original: the trace of an original; None: no original ran recently.
        leave: ends a turn: releases the lock in one call into C. It may be called at any time.
    """

    original: Trace | None = None
    keeps = False
    """Whether it is held until the writer closes."""

    def __init__(self, directory: Directory, timeout: float | None) -> None:
        """Open the lock file; it is created if it is missing.

        Args:
            directory: the SEJ directory.
            timeout: seconds to wait while an exclusive writer has the journal; None waits without a limit.
        """
        self._directory = directory
        self._timeout = timeout
        self.path = directory.at("jnl.lck")
        self._was_missing = directory.disk.status(self.path) is None
        self._file = directory.disk.open(self.path, "append")
        self.leave: Callable[[], object] = self._file.unlocker()
        self._mark = b""

    def enter(self) -> None:
        """Take the lock. Shared writers hold it for microseconds, an exclusive writer as long as it is open.

        Raises:
            LockedError: an exclusive writer has had the journal for longer than the timeout.
        """
        if self._file.lock(wait=False):
            return
        start, pause_s = time.monotonic(), _TURN_PAUSE_S
        while not self._file.lock(wait=False):
            if self._timeout is not None and time.monotonic() - start >= self._timeout:
                holder = self._file.read(_SIGNED_BYTES, 0).decode("utf-8", "replace").split("\n", 1)[0] or None
                raise LockedError(
                    f"the journal's writer lock is held by {holder or 'another process'}: a sej.Writer keeps it while"
                    " it is open; append through that writer, or close it",
                    path=self.path,
                    holder=holder,
                )
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _PAUSE_MAX_S)

    def is_free(self) -> bool:
        """Return whether no other process has the lock at this moment; the caller takes no turn meanwhile."""
        free = self._file.lock(wait=False)
        if free:
            self.leave()
        return free

    def hold(self) -> None:
        """Take the lock of the file at the path, and look for the trace of an original in it.

        If an original may have just closed, wait until it has removed the file.
        """
        self.enter()
        self.renew()
        content = self._file.read(_SIGNED_BYTES, 0)
        written = bool(content) or bool(self._directory.segments())
        self.original = find_trace(content, missing=self._was_missing, written=written)
        if self.original is not None and not content and not self._was_missing:
            pause(self._file.status(), self._directory.disk, self.path)
            self.renew()

    def renew(self) -> None:
        """Open and lock the lock file again if the locked file is not at its path any more.

        The original removes the lock file when it closes, and a lock on a removed file excludes no writer.
        """
        disk = self._directory.disk
        while True:
            there = disk.status(self.path)
            if there is not None and there.identity == self._file.status().identity:
                return
            self._was_missing = there is None
            self._mark = b""
            try:
                old, fresh = self._file, disk.open(self.path, "append")
            except FileNotFoundError:
                self._directory.require()  # the journal was removed
                raise
            self._file, self.leave = fresh, fresh.unlocker()
            old.close()
            self.enter()

    def is_current(self) -> bool:
        """Return whether the locked file is still at its path."""
        return is_current(self._directory.disk, self._file.status().identity, self.path)

    def check(self) -> None:
        """Check that the locked file is still at its path.

        Raises:
            LockLostError: an original removed it.
        """
        if not self.is_current():
            raise LockLostError(
                "an original SEJ removed the journal's lock file during this append, so the message may or may not be"
                " in the journal: read the last messages before you append it again",
                path=self.path,
            )

    def is_marked(self) -> bool:
        """Return whether the mark that this writer has left or seen is still in the file."""
        return bool(self._mark) and self._file.read(_MARK_BYTES, 0) == self._mark

    def mark_end(self) -> None:
        """Take the mark of another shared writer, which belongs to the end that was just found, or write one."""
        mark = self._file.read(_MARK_BYTES, 0)
        if len(mark) != _MARK_BYTES or not mark.startswith(_MARK):
            mark = _MARK + os.urandom(8).hex().encode()
            self.unmark()
            self._file.write(mark + b"\n" + (b"" if self.original is None else self.original.line()))
            self._was_missing = False
        self._mark = mark

    def unmark(self) -> None:
        """Remove the mark: another writer that finds it believes that the old segment is still the last one."""
        self._mark = b""
        self._file.truncate(0)

    def lock_segment(self, file: File) -> None:
        """See that no exclusive writer, whose lock file was removed, has a segment's own lock."""
        unlock = file.unlocker()
        try:
            lock_segment(file)
        finally:
            unlock()  # in C, and the first call here: no signal handler can run before it

    def keep(self, file: File | None) -> None:
        """Do nothing: no segment is locked."""

    def release(self) -> None:
        """Close the file; a second time does nothing."""
        self.leave = _nothing
        self._file.close()


def _nothing() -> None:
    """Do nothing: ``leave`` of a lock that is closed."""
