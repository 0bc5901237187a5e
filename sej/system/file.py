"""An open file, and the calls of :mod:`sej.system.disk` that are made most often.

What :mod:`sej.system.disk` says about signal handlers holds here: a descriptor has an owner before the next bytecode
runs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from io import FileIO
from threading import RLock
from typing import Final, NamedTuple, NoReturn, TypeVar

from sej.errors import FileTypeError


class Status(NamedTuple):
    """The status of a file: size in bytes, identity, time of change, number of names."""

    size: int
    device: int
    inode: int
    mtime_ns: int
    links: int
    is_dir: bool

    @property
    def identity(self) -> tuple[int, int]:
        """(device, inode): two paths with the same one are the same file."""
        return self.device, self.inode


_NO_WAIT: Final = os.O_NONBLOCK
"""Opening a FIFO or a device returns immediately, so that it can be examined. No effect on a regular file."""
WRITE_LIMIT: Final = 1 << 30
"""One system call transfers at most a little under 2 GiB on Linux."""


class _Owner(FileIO):
    """Closes its descriptor when it is garbage-collected, in C and without a warning: no signal handler intervenes."""

    _finalizing = None  # otherwise FileIO warns


class Descriptor:
    """An open file of the operating system; see :class:`sej.system.disk.File`."""

    __slots__ = ("_fd", "_owner", "_path", "_syncing", "_unsynced")

    def __init__(self, fd: int | FileIO, path: str) -> None:
        """Own the descriptor; -1: a closed file."""
        self._syncing = RLock()  # reentrant for signal handlers
        self._unsynced: int | None = None
        self._owner = (_Owner(fd, "r+b") if fd >= 0 else None) if isinstance(fd, int) else fd
        self._fd = -1 if self._owner is None else self._owner.fileno()
        self._path = path

    @property
    def path(self) -> str:
        """The path that was opened."""
        return self._path

    def read(self, size: int, position: int) -> bytes:
        """Return up to size bytes from position."""
        try:
            data = os.pread(self._fd, min(size, WRITE_LIMIT), position)
            if len(data) == size or not data:
                return data
            parts = [data]
            done = len(data)
            while done < size:
                data = os.pread(self._fd, min(size - done, WRITE_LIMIT), position + done)
                if not data:
                    break
                parts.append(data)
                done += len(data)
        except OSError as error:
            locate(error, self.path, position)
        return b"".join(parts)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write everything."""
        try:
            done = os.write(self._fd, data)
            size = len(data)
            if done != size:
                with memoryview(data) as view:
                    while done < size:
                        done += progress(os.write(self._fd, view[done : done + WRITE_LIMIT]), self._path)
        except OSError as error:
            locate(error, self._path)

    def write_at(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """Overwrite everything at position."""
        try:
            done = os.pwrite(self._fd, data, position)
            if done == len(data):
                return
            with memoryview(data) as view:
                while done < len(view):
                    count = os.pwrite(self._fd, view[done : done + WRITE_LIMIT], position + done)
                    done += progress(count, self._path)
        except OSError as error:
            locate(error, self._path)

    def size(self) -> int:
        """Return its size in bytes."""
        return os.fstat(self._fd).st_size

    def extent(self) -> tuple[int, int]:
        """Return its size in bytes and its number of names."""
        found = os.fstat(self._fd)
        return found.st_size, found.st_nlink

    def status(self) -> Status:
        """Return the file's current status."""
        return _status(os.fstat(self._fd))

    def lock(self, *, exclusive: bool = True, wait: bool = False, held: bool = False) -> bool:
        """Lock by ``flock``."""
        if self._fd < 0:  # fcntl.flock raises ValueError
            locate(OSError(errno.EBADF, os.strerror(errno.EBADF)), self._path)
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        if held:
            return self._lock_for_long(kind)
        # The system call itself, for every operation: locking and unlocking takes 0.6 us, through portalocker 8.0 us.
        try:
            fcntl.flock(self._fd, kind if wait else kind | fcntl.LOCK_NB)
        except OSError as error:
            if not wait and error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            locate(error, self._path)
        return True

    def _lock_for_long(self, kind: int) -> bool:
        import portalocker  # here, because a reader takes no lock, and its import takes as long as a short command

        flags = portalocker.LockFlags.EXCLUSIVE if kind == fcntl.LOCK_EX else portalocker.LockFlags.SHARED
        try:
            portalocker.lock(self._fd, flags | portalocker.LockFlags.NON_BLOCKING)
        except portalocker.AlreadyLocked:
            return False
        except portalocker.LockException as error:
            locate(error.args[0] if isinstance(error.args[0], OSError) else OSError(errno.EIO, str(error)), self._path)
        return True

    def unlock(self) -> None:
        """Release the lock; closing the file does too."""
        if self._fd < 0:
            return
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def unlocker(self) -> Callable[[], object]:
        """Call ``flock`` on the owner, which knows whether it is closed: its descriptor number may be reused."""
        if self._owner is None:
            return self.unlock
        return partial(fcntl.flock, self._owner, fcntl.LOCK_UN)

    def closing(self) -> AbstractContextManager[object]:
        """Return the owner, which is written in C."""
        return contextlib.nullcontext() if self._owner is None else self._owner

    def fileno(self) -> int:
        """Return the descriptor; -1 after close."""
        return self._fd

    def close(self) -> None:
        """Close the file; if an exception interrupts it, a second call finishes."""
        self._fd = -1
        if self._owner is not None:
            self._owner.close()


_D = TypeVar("_D", bound=Descriptor)


def opened(kind: type[_D], path: str, flags: int) -> _D:
    """Open a regular file, waiting only for the end of a lease.

    Args:
        kind: the class to make.
        path: the path.
        flags: as for :func:`os.open`.

    Raises:
        OSError: the system's error; for anything but a regular file EISDIR or ENXIO, as the system reports a socket.
    """
    if flags & (os.O_CREAT | os.O_TRUNC):
        _require_folder(path)
    try:
        owner = _owned(path, flags | _NO_WAIT)
    except BlockingIOError:  # another process has a lease, which only regular files have: it ends soon
        owner = _owned(path, flags)
    try:
        fd = owner.fileno()
        if _where(fd) != path:
            _refuse_links(path)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO), path)
    except OSError:
        owner.close()
        raise
    return kind(owner, path)


def _owned(path: str, flags: int) -> FileIO:
    """Open a file. No bytecode runs between the system call and the owner of its descriptor."""
    try:
        return next(map(_Owner, map(os.open, (path,), (flags | os.O_NOFOLLOW,), (0o666,)), ("r+b",)))
    except IsADirectoryError as error:
        if isinstance(error.filename, int):  # FileIO refuses a directory, and leaves the descriptor to its caller
            os.close(error.filename)
        raise IsADirectoryError(error.errno, error.strerror, path) from None


def open_folder(path: str) -> int:
    """Return a descriptor of a directory; no part of its path is a symbolic link.

    Raises:
        OSError: the system's error; ELOOP if there is a link.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except NotADirectoryError:
        if os.path.islink(path):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path) from None
        raise
    try:
        if _where(fd) != path:
            _refuse_links(path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _require_folder(path: str) -> None:
    """Refuse links before a call that may create or empty a file."""
    try:
        os.close(open_folder(os.path.dirname(path) or "."))
    except FileNotFoundError as error:
        raise FileNotFoundError(error.errno, error.strerror, path) from None


def _where(fd: int) -> str:
    """Return where an open file is, as the system knows it; nothing if it does not tell."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError as error:
        if not of_system(error):
            raise
        return ""


def _refuse_links(path: str) -> None:
    """Raise ELOOP if a part of a path is a symbolic link."""
    if os.path.realpath(path) != os.path.abspath(path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def real_path(path: str) -> str:
    """Return an absolute path of the same file without links, as ``os.path.realpath``; faster if there is a file."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        if not of_system(error):
            raise
        return os.path.realpath(path)
    try:
        found = _where(fd)
    finally:
        os.close(fd)
    return found if found.startswith("/") and not found.endswith(" (deleted)") else os.path.realpath(path)


def status_of(path: str | os.PathLike[str]) -> Status | None:
    """Return the status of a path, or None."""
    try:
        return _status(os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:  # a circular link has no target
            return None
        raise


def _status(found: os.stat_result) -> Status:
    return Status(
        found.st_size,
        found.st_dev,
        found.st_ino,
        found.st_mtime_ns,
        found.st_nlink,
        (found.st_mode & 0o170000) == 0o040000,
    )


def of_system(error: BaseException) -> bool:
    """Return whether the system raised this error, because then it has a number.

    A handler's ``TimeoutError()`` has none.
    """
    return isinstance(error, FileTypeError) or (isinstance(error, OSError) and error.errno is not None)


def locate(error: OSError, path: str, position: int | None = None) -> NoReturn:
    """Raise the same error with its path: the system knows no path of a descriptor."""
    if not of_system(error):
        raise error
    where = "" if position is None else f", reading at position {position}"
    raise OSError(error.errno, f"{error.strerror}{where}", path) from error


def progress(count: int, path: str) -> int:
    """Return how many bytes a call has written; raises if there are none."""
    if count == 0:
        raise OSError(errno.EIO, "write(2) made no progress", path)
    return count
