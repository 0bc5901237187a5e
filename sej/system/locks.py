"""Locks that end with their process: ``flock`` on a file that is never unlinked.

The original SEJ unlocks, closes and only then unlinks its lock file. Between these steps another process may lock the
inode that is about to lose its name, and a third one a new file of that name. So a lock here counts only while the open
file is still the file at the path: :meth:`Lock.acquire` checks after locking and tries again, and the holder can call
:meth:`Lock.check` at any time. The holder writes its pid, host and start time into the file after it owns the lock,
never before. This text is a hint for people; the lock itself is the kernel's.

The kernel's lock belongs to the open file. :meth:`Lock.acquire` closes a file that it does not keep, and
:meth:`Lock.release` forgets the file last, so that a second call finishes what a signal handler interrupted.

A forked child does not hold its parent's locks: its copies of the descriptors are closed in the child, so that the lock
ends with the parent and not with the last child.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable
from functools import cache
from typing import Any, Final, Self

from sej.errors import ClosedError, LockedError, LockLostError
from sej.fork import forget_forked, notice_fork, watch_forks
from sej.imports import compiled
from sej.system.disk import OS, Disk, File, of_system, open_existing

_RETRY_S: Final = 0.005
_HOLDER_BYTES: Final = 256
_LINE_BYTES: Final = 220
_PID_MOST: Final = 2**31 - 1
FIRST_PID_NAMESPACE: Final = 0xEFFFFFFC
"""The inode of the system's own PID namespace (PROC_PID_INIT_INO in Linux)."""
_FIRST_TIME_NAMESPACE: Final = 0xEFFFFFFA


def is_current(disk: Disk, identity: tuple[int, int], path: str) -> bool:
    """Return whether a path is still the file with this identity, which the caller has open."""
    there = disk.status(path)
    return there is not None and (there.device, there.inode) == identity


class Lock:
    """A lock on a file, exclusive or shared, with its holder's name in it.

    Example:
        >>> with Lock("jnl.lck", what="the journal's writer"):  # doctest: +SKIP
        ...     ...
    """

    _file: File | None = None
    """The locked file, while the lock is held."""
    _identity = 0, 0
    """The identity of the file."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        what: str = "the lock",
        exclusive: bool = True,
        disk: Disk = OS,
    ) -> None:
        """Set the path; nothing is opened yet.

        Args:
            path: the lock file; created if missing, never removed.
            what: what it protects, for the error message.
            exclusive: False for a lock that several processes may hold together.
            disk: the disk.
        """
        self.path = os.fspath(path)
        self._what = what
        self._exclusive = exclusive
        self._disk = disk

    @property
    def held(self) -> bool:
        """True if this object holds the lock."""
        notice_fork()
        return self._file is not None

    def acquire(self, *, timeout: float | None = 0.0) -> Self:
        """Take the lock.

        Args:
            timeout: seconds to wait for it; 0 does not wait, None waits without a limit.

        Raises:
            LockedError: another process or object holds it; with the holder's text in the file.
        """
        if self._file is not None and self.held:
            raise LockedError(f"this object already holds {self._what}", path=self.path, holder=self.holder())
        start = time.monotonic()
        while (file := self._try()) is None:
            if timeout is not None and time.monotonic() - start >= timeout:
                holder = self.holder()
                raise LockedError(
                    f"{self._what} is held by {holder or 'another process'}; close it there, or wait",
                    path=self.path,
                    holder=holder,
                )
            time.sleep(_RETRY_S)
        self._file = file
        watch_forks(self)
        return self

    def _try(self) -> File | None:
        """Take the lock if it is free; return its file, locked and signed."""
        while True:
            file = open_lock(self._disk, self.path)[0]
            try:
                if not file.lock(exclusive=self._exclusive, held=True):
                    file.close()
                    return None
                status = file.status()
                self._identity = status.identity
                if status.links:
                    if self._exclusive:
                        sign(file, file.read(min(status.size, _HOLDER_BYTES + 1), 0))
                    return file
            except BaseException:
                file.close()
                raise
            file.close()  # the name was removed between open and lock: take the new file

    def check(self) -> None:
        """Check that the lock is still valid.

        Raises:
            LockLostError: its file was removed or replaced: others can lock a new one.
            ClosedError: it is not held.
        """
        if not self.held:
            raise ClosedError("the lock is not held by this process", path=self.path)
        if not is_current(self._disk, self._identity, self.path):
            raise LockLostError(
                f"the lock file of {self._what} was removed or replaced while it was held, and another process may hold"
                " the new one; find the program that removes it, then reopen",
                path=self.path,
            )

    def holder(self) -> str | None:
        """Return the holder's text in the file, or None."""
        file = open_existing(self._disk, self.path, "read")
        if file is None:
            return None
        with file:
            return read_holder(file)

    def release(self) -> None:
        """Release the lock; a second call does nothing, or finishes an interrupted one."""
        notice_fork()
        if self._file is not None:
            try:
                self._file.unlock()  # explicitly: a child that was just forked may still have the descriptor
            finally:
                self._file.close()
            self._file = None
            forget_forked(self)

    def _after_fork(self) -> None:
        """In a forked child, close the copy of the descriptor without unlocking the parent's lock."""
        if self._file is not None:
            self._file.close()
        self._file = None

    def __enter__(self) -> Self:
        """Take the lock without waiting, unless it is held already."""
        return self if self.held else self.acquire()

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        self.release()


class NumberedLocks:
    """Lock files with numbers in one folder. A process holds one as long as it lives; the files stay.

    Attributes:
        mine: the number of this one; -1: none.
    """

    def __init__(self, folder: str, form: str, disk: Disk = OS) -> None:
        """Set the files; nothing is opened.

        Args:
            folder: their folder.
            form: the name of each, with ``{}`` in the place of its number.
            disk: the disk.
        """
        self.folder = folder
        self._form = form
        self._disk = disk
        self._lock: Lock | None = None
        self.mine = -1

    def take(self) -> int:
        """Take the lowest free number."""
        self._disk.mkdir(self.folder, parents=True)
        number = 0
        while not self._try(number):
            number += 1
        self.mine = number
        return number

    def dead(self, numbers: Iterable[int]) -> set[int]:
        """Return which of these holders are dead."""
        return {number for number in numbers if number != self.mine and self._is_free(number)}

    def check(self) -> None:
        """Check that others see that this process lives.

        Raises:
            LockLostError: the file of its number was removed or replaced.
        """
        if self._lock is not None:
            self._lock.check()

    def text(self, number: int) -> str | None:
        """Return who holds a number: pid, host and start time; None if its file does not say."""
        return Lock(self._path(number), disk=self._disk).holder()

    def release(self) -> None:
        """Release this process's number."""
        if self._lock is not None:
            self._lock.release()
        self._lock, self.mine = None, -1

    def _path(self, number: int) -> str:
        return os.path.join(self.folder, self._form.format(number))

    def _try(self, number: int) -> bool:
        self._lock = Lock(self._path(number), what=f"holder {number}", disk=self._disk)
        try:
            self._lock.acquire()
        except LockedError:
            return False
        return True

    def _is_free(self, number: int) -> bool:
        """By a shared lock, so that two processes that test do not see each other."""
        try:
            file = self._disk.open(self._path(number), "read")
        except FileNotFoundError:
            return True
        with file.closing():
            return file.lock(exclusive=False)


def open_lock(disk: Disk, path: str) -> tuple[File, bool]:
    """Open a lock file; return also whether it was missing, and was created."""
    missing = False
    while True:
        try:
            return disk.open(path, "edit"), missing
        except FileNotFoundError:
            missing = True
            disk.open(path, "append").close()


def sign(file: File, content: bytes, note: bytes = b"", *, must: bool = False) -> None:
    """Write this process's name into a file that it has just locked.

    A full disk must not block the lock: the name is only a hint for people.

    Args:
        file: the file.
        content: what is in it.
        note: what follows the name.
        must: raise if it cannot be written.
    """
    start = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())  # not datetime, whose import takes long
    line = f"pid={os.getpid()} host={os.uname().nodename} start={start}"[:_LINE_BYTES] + "\n"
    signature = line.encode() + note
    # Truncating takes a hundred times as long as a write, so another holder's lines are overwritten to their end.
    try:
        if len(content) > _HOLDER_BYTES:
            file.truncate(0)
        else:
            signature = signature.ljust(len(content))
        file.write_at(signature, 0)
    except OSError as error:
        if must or not of_system(error):
            raise


def read_holder(file: File) -> str | None:
    """Return the holder's text in a lock file, or None."""
    text = file.read(_HOLDER_BYTES, 0).decode("utf-8", "replace").strip()
    return text.split("\n", 1)[0] or None


def host_name() -> str:
    """Return this host's name, as in lock files."""
    return os.uname().nodename


def pid_namespace() -> int | None:
    """Return the number of this process's PID namespace, in which its pid counts; None if the system does not tell."""
    return _namespace("pid")


def _namespace(kind: str) -> int | None:
    try:
        return os.stat(f"/proc/self/ns/{kind}").st_ino
    except OSError:
        return None


def process_host() -> str:
    """Return where pid and start time of this process count: the host's name, in a container with ``#`` and namespaces.

    They are the PID and the time namespace, as far as they are not the system's own. They are asked each time: a forked
    child may be the first process of new ones.
    """
    numbers = _namespace("pid"), _namespace("time")
    own = [n for n in numbers if n not in (None, FIRST_PID_NAMESPACE, _FIRST_TIME_NAMESPACE)]
    return "".join([host_name(), *(f"#{n}" for n in own)])


def process_start(pid: int) -> int | None:
    """Return when a process of this host started, in clock ticks since boot; None if there is no such process.

    A pid alone does not identify a process: numbers are reused. Read from ``/proc``. 0 for a live process whose start
    the system does not tell: ``/proc`` hides the processes of other users (``hidepid``).
    """
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        # A zombie only waits for its parent: it holds nothing and does nothing any more.
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    if not 0 < pid <= _PID_MOST:
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return 0
    return 0


def is_running(pid: int, start: int) -> bool:
    """Return whether a process of this host is alive. If a start is not known (0), a process with that pid counts."""
    found = process_start(pid)
    return found is not None and (found == start or not found or not start)


def take_file_lease(file: File) -> bool:
    """Exclude every other process from a file until it is closed; return False if that is not possible.

    The kernel grants a write lease if no other process has the file open. A process that opens or truncates
    it in the meantime, with or without locks, sleeps in the kernel until the lease ends. Hold it for microseconds.
    """
    try:
        fd = file.fileno()
        fcntl.fcntl(fd, fcntl.F_SETSIG, _ignored_signal())
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except (OSError, ValueError):  # ValueError: a file without a descriptor
        return False
    return True


@cache
def _ignored_signal() -> int:
    """Return what the kernel sends if another process waits: its default signal would end this process."""
    import signal  # here, because few processes need a lease

    return int(signal.SIGURG)


def is_file_leasable(file: File) -> bool:
    """Return whether the system would lease this file to this process if no other one had it open."""
    try:
        fcntl.fcntl(file.fileno(), fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except (OSError, ValueError) as error:
        return isinstance(error, BlockingIOError)
    return True


def has_file_lease(file: File) -> bool:
    """Return whether a lease still holds and no process waits for its end."""
    try:
        return fcntl.fcntl(file.fileno(), fcntl.F_GETLEASE) == fcntl.F_WRLCK
    except (OSError, ValueError):
        return False


replace_leased: Final[Any] = getattr(compiled("sej.codec._codec_c"), "replace_leased", None)
"""Open a file of the system, lease it, replace parts of it, and close it, in one call into C; None without that.

It takes the path, a state (inode, size and modification time), up to two parts (position, old bytes, and as many new
ones), and bytes that must not follow the first part. If the file is as they say and has a name, and no other process
has it open, it returns the new state. Otherwise it returns None, and nothing is written into a file that has a name.
"""


def end_file_lease_if_waited_for(file: File) -> None:
    """If another process waits for a leased file, give the lease up: it is not worth the wait."""
    if not has_file_lease(file):
        end_file_lease(file)


def end_file_lease(file: File) -> bool:
    """End a lease immediately, even if a forked child has a copy of the descriptor; return False if there was none."""
    try:
        fcntl.fcntl(file.fileno(), fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except (OSError, ValueError):
        return False
    return True
