"""Wait for a directory to change: by inotify if available, else by adaptive polling, which is also the safety net.

One inotify instance serves the whole process. There is no extra thread: of the waiting threads, one at a time (the
leader) reads the descriptor, passes events to the others, and passes the lead on when its own wait is over. So an event
costs one system call and no context switch in the common case of one reader.

A forked child creates its own instance at its first wait, because the child must not read the parent's events.

A change after :meth:`Watch.wait` returned is not lost: the next ``wait`` returns immediately. A wait may return early
or without a change; the caller checks for itself. It returns at the latest after ``safety_s``, which bounds the delay
of a missed event (network file systems, a full queue).
"""

from __future__ import annotations

import functools
import os
import select
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from sej.fork import notice_fork, watch_forks
from sej.system.lifecycle import Closing

if TYPE_CHECKING:
    from ctypes import CDLL

_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
_MOVE_SELF, _OVERFLOW, _IGNORED, _MASK_ADD = 0x800, 0x4000, 0x8000, 0x20000000
_INTEREST: Final = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _MOVE_SELF
_EVENT_WORDS: Final = 4  # watch, mask, cookie, size of the following name; names fill whole words
_READ_BYTES: Final = 4096  # of events in one read: the rest is read next time
_SAFETY_S: Final = 1.0
_POLL_FIRST_S: Final = 0.001
_POLL_MAX_S: Final = 0.05


class _Receiver:
    """The receiver of changes: the hub knows it instead of its watch, which may be garbage-collected."""

    __slots__ = ("number", "pending")

    def __init__(self) -> None:
        self.number: int | None = None
        self.pending = False


class Watch(Closing):
    """Waits for changes in one directory (its entries, not below them)."""

    def __init__(self, directory: str | os.PathLike[str], *, safety_s: float = _SAFETY_S) -> None:
        """Watch a directory; poll if inotify is not available.

        Args:
            directory: must exist for inotify; a missing one is polled.
            safety_s: the longest wait, in seconds.
        """
        self.directory = os.fspath(directory)
        self._safety_s = safety_s
        self._closed = self._gone = False
        self._idle_waits = 0
        self._receiver = _Receiver()
        self._hub = _Hub.current()
        self._hub.add(self._receiver, self.directory)

    def _present(self) -> None:
        """Use the hub of this process."""
        if self._hub.forked and not self._closed:
            self._hub = _Hub.current()
            self._hub.add(self._receiver, self.directory)
            self._receiver.pending = True  # changes in between were not reported

    @property
    def polling(self) -> bool:
        """True if this watch polls, because the system gave it no inotify watch."""
        return self._receiver.number is None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a change.

        Args:
            timeout: seconds; None waits until ``safety_s`` is over.

        Returns:
            True: check again (after a change, after ``safety_s``, or because the watch polls). False: the timeout
                passed.
        """
        return bool(wait_any((self,), timeout))

    def busy(self) -> None:
        """Tell a polling watch that there was a change: it polls often again."""
        self._idle_waits = 0

    def wake(self) -> None:
        """Let a wait in another thread return immediately."""
        self._hub.notify(self._receiver)

    def close(self) -> None:
        """Stop watching; a wait in another thread returns."""
        if not self._gone:
            self._closed = True
            self._hub.remove(self._receiver)
            self._gone = True  # last: a second call finishes an interrupted one

    def __del__(self) -> None:
        """Stop watching when it is garbage-collected."""
        if hasattr(self, "_hub") and not sys.is_finalizing():
            self.close()


def wait_any(watches: Sequence[Watch], timeout: float | None = None) -> list[Watch]:
    """Wait for a change in one of many directories.

    Args:
        watches: at least one.
        timeout: seconds; None waits until ``safety_s`` is over.

    Returns:
        Those to check again: after a change, those that poll, or all after ``safety_s``. An empty list: the timeout
        passed.
    """
    for watch in watches:
        watch._present()
    polling = [watch for watch in watches if watch.polling]
    safety = min(watch._safety_s for watch in watches)
    limit = safety
    for watch in polling:
        limit = min(limit, _POLL_FIRST_S * 2 ** min(watch._idle_waits, 10), _POLL_MAX_S)
        watch._idle_waits += 1
    if timeout is not None:
        limit = min(limit, timeout)
    found = watches[0]._hub.wait(watches, limit)
    for watch in found:
        watch._idle_waits = 0
    if found or limit == timeout:
        return found
    return list(watches) if limit == safety else polling


class _Hub:
    """The process's one inotify instance, with its waiting threads."""

    _instance: _Hub | None = None
    _guard = threading.RLock()

    def __init__(self) -> None:
        _libc()  # first, because it opens files: where that fails, no descriptor of this instance is open yet
        # Reentrant: a signal handler may wake or close, and a watch may be garbage-collected, in the same thread.
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._leading = False
        self._followers = 0
        self._receivers: dict[int, tuple[_Receiver, ...]] = {}
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._fd = _inotify_init()
        self._poller = select.poll()
        self._poller.register(self._bell, select.POLLIN)
        if self._fd is not None:
            self._poller.register(self._fd, select.POLLIN)

    @classmethod
    def current(cls) -> _Hub:
        """Return the instance of this process; a forked child creates its own."""
        notice_fork()
        with cls._guard:
            if cls._instance is None:
                cls._instance = cls()
                watch_forks(cls._instance)
            return cls._instance

    @property
    def forked(self) -> bool:
        """Whether it belongs to the parent of this process."""
        notice_fork()
        return self is not self._instance

    def _after_fork(self) -> None:
        """In the child, replace the locks: another thread of the parent may have held them."""
        _Hub._instance, _Hub._guard = None, threading.RLock()
        for fd in (self._fd, self._bell):
            if fd is not None:
                os.close(fd)

    def add(self, receiver: _Receiver, directory: str) -> None:
        receiver.number = None
        if self._fd is None:
            return
        with self._lock:
            receiver.number = number = _inotify_add(self._fd, directory)
            if number is not None:
                self._receivers[number] = (*self._receivers.get(number, ()), receiver)

    def remove(self, receiver: _Receiver) -> None:
        if self.forked:
            return
        with self._lock:
            number = receiver.number
            if number is not None and number in self._receivers and self._fd is not None:
                self._receivers[number] = tuple(other for other in self._receivers[number] if other is not receiver)
                if not self._receivers[number]:
                    del self._receivers[number]
                    _libc().inotify_rm_watch(self._fd, number)
        self.notify(receiver)

    def notify(self, receiver: _Receiver) -> None:
        if self.forked:
            return
        with self._lock:
            receiver.pending = True
            self._condition.notify_all()
        os.eventfd_write(self._bell, 1)

    def wait(self, watches: Sequence[Watch], timeout: float) -> list[Watch]:
        """Return the watches that changed or were closed, as soon as there is one; none after the timeout."""
        deadline = time.monotonic() + timeout
        last = False
        with self._lock:
            while not (found := [watch for watch in watches if watch._receiver.pending or watch._closed]) and not last:
                left = max(deadline - time.monotonic(), 0.0)
                last = left == 0.0
                if self._leading:
                    self._follow(left)
                    continue
                self._leading = True
                try:
                    self._lock.release()  # in here, because an interrupt may come as it returns
                    events = self._read(left)
                finally:
                    try:
                        self._lock.acquire()
                    finally:  # because an interrupt may come as it returns, too
                        self._leading = False
                        if self._followers:
                            self._condition.notify_all()
                self._hand_out(events)
            for watch in found:
                watch._receiver.pending = False
            return found

    def _follow(self, timeout: float) -> None:
        """Wait for a message of the leader."""
        self._followers += 1
        try:
            self._condition.wait(timeout)
        finally:
            self._followers -= 1

    def _read(self, timeout: float) -> bytes:
        """As the leader, without the lock: return the raw events within the timeout."""
        events = b""
        # Round up to whole milliseconds: a poll of 0 would spin through the last one.
        for fd, _ in self._poller.poll(-(-timeout * 1000 // 1)):
            try:
                data = os.read(fd, _READ_BYTES)
            except BlockingIOError:
                continue
            if fd == self._fd:
                events = data
        return events

    def _hand_out(self, events: bytes) -> None:
        words = memoryview(events).cast("I")
        at = 0
        while at < len(words):
            number, mask, name_size = words[at], words[at + 1], words[at + 3]
            at += _EVENT_WORDS + name_size // words.itemsize
            if mask & _OVERFLOW:
                for group in list(self._receivers.values()):
                    for receiver in group:
                        receiver.pending = True
            for receiver in self._receivers.get(number, ()):
                receiver.pending = True
            if mask & _IGNORED:  # the directory was removed, and the kernel's watch with it
                for receiver in self._receivers.pop(number, ()):
                    receiver.number = None


@functools.cache
def _libc() -> CDLL:
    """The C library: loaded for the first watch, because it takes a short command too long."""
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _inotify_init() -> int | None:
    fd: int = _libc().inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    return fd if fd >= 0 else None


def _inotify_add(fd: int, directory: str) -> int | None:
    number: int = _libc().inotify_add_watch(fd, os.fsencode(directory), _INTEREST | _MASK_ADD)
    return number if number >= 0 else None
