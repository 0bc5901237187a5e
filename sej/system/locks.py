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

**The original's trace** in ``jnl.lck``, and the extra checks of a writer after it:

The original opens the lock file with O_TRUNC. When it closes, it unlocks, closes and only then unlinks the name. So the
name may be removed at any moment after a writer here has locked the file, and the next original locks a new one:

    the original            this writer               the next original
    unlock
                            lock, the name exists
    unlink
                                                      new file, lock, reads the end
                            append                    writes at the end that it has read

A lock file that an original has opened is empty, and one that it has closed is missing. A writer here signs the file
and leaves it in place. So an empty file, or a missing one next to segments, is an original's trace. The signature
records the trace (``original=``, a time) for :data:`_TRUST_S`.

After a trace every message is a write of its own, between two checks (:mod:`sej.writing.last_segment`): the
path is still the locked file, and the segment ends where this writer left it. No writer here ever puts the same file
back under the path. So a good check *after* the write proves that the path has been this file from the locking to this
check, and that no original has read the end before the message was there. Hence: **an acknowledged message precedes
everything that an original appends**. A message that fails the second check is not acknowledged.

What remains is the time between the first check and the write. If an original unlinks, and another one opens and reads
the end in this time, the unacknowledged message is a second one with its offset. The next opening refuses the journal,
and ``sej repair`` keeps the messages of the first writer.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from typing import Final, NamedTuple, Self

from sej.errors import ClosedError, LockedError, LockLostError
from sej.fork import forget_forked, notice_fork, watch_forks
from sej.system.disk import OS, Disk, File, Status, of_system, open_existing

_NOTE: Final = b"original="
_DOUBT: Final = b"?"
_TRUST_S: Final = 86_400
"""An original that was stopped between its unlock and its unlink for longer than this is no longer expected."""
_RECENT_NS: Final = 2_000_000_000
_WAIT_S: Final = 0.01
_LOOK_S: Final = 0.0002


class Trace(NamedTuple):
    """The trace of an original.

    Attributes:
        at: when it was found, in seconds since the epoch.
        certain: whether its own lock file was found; a missing lock file may be missing because of a copy.
    """

    at: int
    certain: bool

    def line(self) -> bytes:
        """Return its line in a signature."""
        return b"%s%d%s\n" % (_NOTE, self.at, b"" if self.certain else _DOUBT)


def _trace_in(content: bytes) -> Trace | None:
    """Return the trace in a signature, or None if it has none or is too old."""
    if _NOTE not in content:
        return None
    for line in content.split(b"\n"):
        stamp = line.removeprefix(_NOTE).removesuffix(_DOUBT)
        if line.startswith(_NOTE) and stamp.isdigit() and time.time() - int(stamp) < _TRUST_S:
            return Trace(int(stamp), not line.endswith(_DOUBT))
    return None


def find_trace(content: bytes, *, missing: bool, written: bool) -> Trace | None:
    """Return the trace in the content of a lock file that was just locked.

    Args:
        content: the content of the file.
        missing: whether there was no file.
        written: whether the journal has segments.
    """
    if content:
        return _trace_in(content)
    return Trace(int(time.time()), not missing) if written else None


def is_current(disk: Disk, identity: tuple[int, int], path: str) -> bool:
    """Return whether a path is still the file with this identity, which the caller has open."""
    there = disk.status(path)
    return there is not None and there.identity == identity


def pause(status: Status, disk: Disk, path: str) -> None:
    """Give an original that has just closed the time to unlink: the lock is then taken on the next file.

    This is not needed for safety. It is short, and only for a file that was emptied moments ago.
    """
    if abs(time.time_ns() - status.mtime_ns) > _RECENT_NS:
        return
    deadline = time.monotonic() + _WAIT_S
    while is_current(disk, status.identity, path) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


# A name, so that the type checker reads both ways.
_RETRY_S: Final = 0.005
_HOLDER_BYTES: Final = 256
_LINE_BYTES: Final = 220
_PID_MOST: Final = 2**31 - 1
FIRST_PID_NAMESPACE: Final = 0xEFFFFFFC
"""The inode of the system's own PID namespace (PROC_PID_INIT_INO in Linux)."""
_FIRST_TIME_NAMESPACE: Final = 0xEFFFFFFA
_TURN_S: Final = 2.0
"""The additional wait for shared writers, which hold the lock for microseconds at a time."""


class Lock:
    """A lock on a file, exclusive or shared, with its holder's name in it.

    Example:
        >>> with Lock("jnl.lck", what="the journal's writer"):  # doctest: +SKIP
        ...     ...
    """

    original: Trace | None = None
    """The trace of an original found when this object took the lock; None: no original ran recently."""
    _of_original = False
    """Whether an original may take and unlink it, so that a missing or empty file is its trace."""
    _file: File | None = None
    """The locked file, while the lock is held."""
    _identity = 0, 0
    _content = b""
    """The identity of the file, and what was in it when it was locked."""

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
        notice_fork()
        if self._file is not None:
            raise LockedError(f"this object already holds {self._what}", path=self.path, holder=self.holder())
        start = time.monotonic()
        while (file := self._try()) is None:
            holder = self.holder()
            if timeout is not None and time.monotonic() - start >= timeout + (_TURN_S if _is_turn(holder) else 0.0):
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
        missing = False
        while True:
            try:
                file = self._disk.open(self.path, "edit")
            except FileNotFoundError:
                missing = True
                self._disk.open(self.path, "append").close()  # created if it is still missing
                continue
            try:
                if not file.lock(exclusive=self._exclusive, held=True):
                    file.close()
                    return None
                if self._is_settled(file, missing=missing):
                    if self._exclusive:
                        self._sign(file)
                    return file
            except BaseException:
                file.close()
                raise
            file.close()  # the name was removed between open and lock: take the new file
            missing = False

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

    def is_current(self) -> bool:
        """Return whether the path is still the file that was locked."""
        return is_current(self._disk, self._identity, self.path)

    def holder(self) -> str | None:
        """Return the holder's text in the file, or None."""
        file = open_existing(self._disk, self.path, "read")
        if file is None:
            return None
        with file:
            return _read_holder(file)

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

    def _is_settled(self, file: File, *, missing: bool) -> bool:
        """Check a just locked file for an original's trace; return False if its name was removed."""
        status = file.status()
        self._identity = status.identity
        self._content = content = file.read(min(status.size, _HOLDER_BYTES + 1), 0)
        if self._of_original:
            self.original = find_trace(content, missing=missing, written=bool(content) or self._has_content())
            if self.original is not None and not content and not missing:
                pause(status, self._disk, self.path)
        return is_current(self._disk, self._identity, self.path)

    def _has_content(self) -> bool:
        """Return whether the protected files have content; asked of the lock of an original only."""
        return True

    def _sign(self, file: File) -> None:
        start = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())  # not datetime, whose import takes long
        line = f"pid={os.getpid()} host={host_name()} start={start}"[:_LINE_BYTES] + "\n"
        signature = line.encode() + (b"" if self.original is None else self.original.line())
        # Truncating takes a hundred times as long as a write, so another holder's lines are overwritten to their end.
        try:
            there = len(self._content)
            if there > _HOLDER_BYTES:
                file.truncate(0)
            else:
                signature = signature.ljust(there)
            file.write_at(signature, 0)
        except OSError as error:
            # A full disk must not block the lock: the holder's name is only a hint for people. But a shared writer
            # takes its mark as proof that no other writer has held the lock.
            if not of_system(error) or _is_turn(_read_holder(file)):
                raise

    def __enter__(self) -> Self:
        """Take the lock without waiting, unless it is held already."""
        return self if self.held else self.acquire()

    def __exit__(self, *_: object) -> None:
        """Release the lock."""
        self.release()


def _is_turn(holder: str | None) -> bool:
    """Return whether a shared writer holds it: for one append, not for as long as it is open."""
    return holder is not None and holder.startswith("shared ")


def _read_holder(file: File) -> str | None:
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
        import signal  # here, because few processes need a lease

        fd = file.fileno()
        # The kernel's default signal for a waiting process would end this one; SIGURG is ignored.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except (OSError, ValueError):  # ValueError: a file without a descriptor
        return False
    return True


def is_file_leasable(file: File) -> bool:
    """Return whether the system would lease this file to this process if no other one had it open."""
    try:
        fcntl.fcntl(file.fileno(), fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except (OSError, ValueError) as error:  # ValueError: a file without a descriptor
        return isinstance(error, OSError) and error.errno == errno.EAGAIN
    return True


def has_file_lease(file: File) -> bool:
    """Return whether a lease still holds and no process waits for its end."""
    try:
        return fcntl.fcntl(file.fileno(), fcntl.F_GETLEASE) == fcntl.F_WRLCK
    except (OSError, ValueError):
        return False


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
