"""An open file, and how it is opened: the part of :mod:`sej.system.disk` that has no names to keep.

What :mod:`sej.system.disk` says about signal handlers holds here: a descriptor has an owner before the next bytecode
runs.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import stat
from _thread import RLock  # the class that threading.RLock calls in a function
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from io import FileIO
from operator import attrgetter
from typing import Final, NamedTuple, NoReturn, Protocol, Self, cast

from sej.errors import FileTypeError
from sej.imports import compiled


class Status(NamedTuple):
    """The status of a file: size in bytes, identity, time of change, number of names, mode."""

    size: int
    device: int
    inode: int
    mtime_ns: int
    links: int
    mode: int

    @property
    def identity(self) -> tuple[int, int]:
        """(device, inode): two paths with the same one are the same file."""
        return self.device, self.inode

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.mode)


_FIELDS: Final = attrgetter("st_size", "st_dev", "st_ino", "st_mtime_ns", "st_nlink", "st_mode")


_NO_WAIT: Final = os.O_NONBLOCK
"""Opening a FIFO or a device returns immediately, so that it can be examined. No effect on a regular file."""
_WRITE_LIMIT: Final = 1 << 30
"""One system call transfers at most a little under 2 GiB on Linux."""
_BLOCK: Final = 4096
"""The alignment of reads and writes past the cache."""
_FOLIO: Final = 1 << 21
"""The cache drops whole folios; none is larger on common systems, and each begins at a multiple of its size."""
_SYNC_FILE_RANGE_WRITE: Final = 2
"""Start to write the dirty pages; do not wait for them."""


class File(Protocol):
    """An open file. Threads may share it, except for ``close``."""

    @property
    def path(self) -> str:
        """The path that was opened."""

    def read(self, size: int, position: int) -> bytes:
        """Return up to size bytes from position; fewer only at the end of the file."""

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill the buffer from position; return the number of bytes, fewer only at the end of the file."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write everything at the end (``append``, ``new``) or at the running position (``temp``)."""

    def writer(self) -> Callable[[bytes], int]:
        """Return a bare write at the end, for the fastest path: one call that returns how many bytes it wrote."""

    def write_at(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """Overwrite everything at position."""

    def stored(self, size: int, position: int) -> bytes | None:
        """Return up to size bytes of the medium, past the cache; None if the system cannot tell.

        No other thread may use the file in the meantime; the same holds for :meth:`rewrite`.
        """

    def rewrite(self, data: bytes, position: int) -> None:
        """Write bytes again that an earlier write did not get to the medium (``edit``); :meth:`sync` afterwards."""

    def start_sync(self, size: int, position: int) -> None:
        """Start to write bytes to the medium, so that the next :meth:`sync` waits less. It reports no error."""

    def sync(self) -> None:
        """Force the data and the size to the medium."""

    def truncate(self, size: int) -> None:
        """Cut or zero-extend to size bytes."""

    def allocate(self, size: int) -> None:
        """Give an empty file ``size`` zeros, with disk space for all of them."""

    def set_time(self, mtime_ns: int) -> None:
        """Set the time of its last change, in ns since the epoch; no other process has its name yet."""

    def size(self) -> int:
        """Return its current size in bytes; in ``temp``, the next write is at the end."""

    def extent(self) -> tuple[int, int]:
        """Return its current size in bytes and its number of names, in half the time of :meth:`status`."""

    def status(self) -> Status:
        """Return the file's current status, whatever happened to its name."""

    def lock(self, *, exclusive: bool = True, wait: bool = False, held: bool = False) -> bool:
        """Take the ``flock``; return False if another process has it.

        Args:
            exclusive: False for a lock that several processes may hold together.
            wait: wait without a limit.
            held: it is kept for longer than one operation: portalocker takes it, and nothing waits.
        """

    def unlock(self) -> None:
        """Release the lock; closing the file does too."""

    def unlocker(self) -> Callable[[], object]:
        """Return :meth:`unlock` as one call into C: as the only call of a ``finally`` no signal can precede it."""

    def closing(self) -> AbstractContextManager[object]:
        """Close the file at the end of a ``with`` block, with no bytecode in between; for a file with one user."""

    def fileno(self) -> int:
        """Return the descriptor, if there is one."""

    def close(self) -> None:
        """Close the file; a second call does nothing."""

    def __enter__(self) -> Self:
        """Return the file."""

    def __exit__(self, *_: object) -> None:
        """Close the file."""


_open_regular: Final = getattr(compiled("sej.codec._codec_c"), "open_regular", None)
_open_folder: Final = getattr(compiled("sej.codec._codec_c"), "open_folder", None)
"""What :func:`opened` and :func:`open_folder` do, in C: half of the calls, and no link is followed to look at it."""


class _Owner(FileIO):
    """Closes its descriptor when it is garbage-collected, in C and without a warning: no signal handler intervenes."""

    _finalizing = None  # otherwise FileIO warns


class OsFile:
    """An open file of the operating system.

    Attributes:
        path: the path that was opened.
    """

    __slots__ = ("_fd", "_owner", "_syncing", "_unsynced", "path")

    def __init__(self, fd: int | FileIO, path: str) -> None:
        """Own the descriptor."""
        self._syncing = RLock()  # reentrant for signal handlers
        self._unsynced: int | None = None
        self._owner = _Owner(fd, "r+b") if isinstance(fd, int) else fd
        self._fd = self._owner.fileno()
        self.path = path

    def read(self, size: int, position: int) -> bytes:
        """Return up to size bytes from position."""
        try:
            data = os.pread(self._fd, min(size, _WRITE_LIMIT), position)
            if len(data) == size or not data:
                return data
            parts, done = [data], len(data)
            while done < size and (data := os.pread(self._fd, min(size - done, _WRITE_LIMIT), position + done)):
                parts.append(data)
                done += len(data)
        except OSError as error:
            locate(error, self.path, position)
        return b"".join(parts)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write everything."""
        try:
            done = os.write(self._fd, data)
            if done == len(data):
                return
            with memoryview(data) as view:
                while done < len(view):
                    done += os.write(self._fd, view[done : done + _WRITE_LIMIT]) or _stuck(self.path)
        except OSError as error:
            locate(error, self.path)

    def write_at(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """Overwrite everything at position."""
        try:
            done = os.pwrite(self._fd, data, position)
            if done == len(data):
                return
            with memoryview(data) as view:
                while done < len(view):
                    part = view[done : done + _WRITE_LIMIT]
                    done += os.pwrite(self._fd, part, position + done) or _stuck(self.path)
        except OSError as error:
            locate(error, self.path)

    def size(self) -> int:
        """Return its size in bytes, by the cheapest call."""
        return os.lseek(self._fd, 0, os.SEEK_END)

    def extent(self) -> tuple[int, int]:
        """Return its size in bytes and its number of names."""
        found = os.fstat(self._fd)
        return found.st_size, found.st_nlink

    def status(self) -> Status:
        """Return the file's current status."""
        return tuple.__new__(Status, _FIELDS(os.fstat(self._fd)))

    def lock(self, *, exclusive: bool = True, wait: bool = False, held: bool = False) -> bool:
        """Lock by ``flock``."""
        if self._fd < 0:  # fcntl.flock raises ValueError
            locate(OSError(errno.EBADF, os.strerror(errno.EBADF)), self.path)
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        if not held:
            # The system call itself, for every operation: locking and unlocking takes 0.4 us, through portalocker 2.2.
            try:
                fcntl.flock(self._fd, kind if wait else kind | fcntl.LOCK_NB)
            except OSError as error:
                if not wait and error.errno in (errno.EAGAIN, errno.EACCES):
                    return False
                locate(error, self.path)
            return True
        import portalocker  # here, because a reader takes no lock, and its import takes as long as a short command

        try:
            _locker(kind)(self._fd)
        except portalocker.AlreadyLocked:
            return False
        except portalocker.LockException as error:
            locate(error.args[0] if isinstance(error.args[0], OSError) else OSError(errno.EIO, str(error)), self.path)
        return True

    def unlock(self) -> None:
        """Release the lock; closing the file does too."""
        if self._fd < 0:
            return
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def unlocker(self) -> Callable[[], object]:
        """Call ``flock`` on the owner, which knows whether it is closed: its descriptor number may be reused."""
        return partial(fcntl.flock, self._owner, fcntl.LOCK_UN)

    def closing(self) -> AbstractContextManager[object]:
        """Return the owner, which is written in C."""
        return self._owner

    def fileno(self) -> int:
        """Return the descriptor; -1 after close."""
        return self._fd

    def close(self) -> None:
        """Close the file; if an exception interrupts it, a second call finishes."""
        self._fd = -1
        self._owner.close()

    def __enter__(self) -> Self:
        """Return the file."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill the buffer from position."""
        done = 0
        try:
            while done < len(buffer):
                count = os.preadv(self._fd, [buffer[done : done + _WRITE_LIMIT]], position + done)
                if not count:
                    break
                done += count
        except OSError as error:
            locate(error, self.path, position)
        return done

    def writer(self) -> Callable[[bytes], int]:
        """Return one ``write`` without a Python function around it. Do not call it after the file is closed."""
        return partial(os.write, self._fd)

    def stored(self, size: int, position: int) -> bytes | None:
        """Read the medium by ``O_DIRECT``.

        A file system without a block device of its own may still answer from the cache: btrfs does for a block that
        could not be written. The system cannot tell then.
        """
        if not os.major(os.fstat(self._fd).st_dev):
            return None
        import mmap  # here, because it is a library that few processes need

        low, high = position & -_BLOCK, -(-(position + size) // _BLOCK) * _BLOCK
        with mmap.mmap(-1, high - low) as memory:
            done = 0
            try:
                if not self._set_direct(True):
                    return None
                while done < high - low and not done % _BLOCK:
                    with memoryview(memory) as view, view[done:] as rest:
                        count = os.preadv(self._fd, [rest], low + done)
                    if not count:
                        break
                    done += count
            except OSError as error:
                if error.errno == errno.EINVAL:  # another alignment
                    return None
                locate(error, self.path, position)
            finally:
                self._set_direct(False)
            return memory[position - low : max(min(done, position + size - low), position - low)]

    def rewrite(self, data: bytes, position: int) -> None:
        """Write whole blocks past the cache. The last block is shared with later bytes: its page is dropped.

        On ext4 a block that could not be written once stays unwritten for its page, even if the page is written again.
        Both ways drop bytes of a whole folio from the cache that the medium may not have; these are written back.
        """
        end = position + len(data)
        first, last = position & -_FOLIO, -(-end // _FOLIO) * _FOLIO
        seen = bytearray(self.read(last - first, first))
        seen[position - first : end - first] = data
        low, high = position & -_BLOCK, end & -_BLOCK
        try:
            try:
                if low < high and self._set_direct(True):
                    self._write_blocks(seen[low - first : high - first], low)
                else:
                    high = low
            finally:
                self._set_direct(False)
            self.sync()  # a page that another process has written to is dropped only if it is clean
            os.posix_fadvise(self._fd, first, last - first, os.POSIX_FADV_DONTNEED)
        finally:
            self._put_back(seen, first, end)
        rest = max(high, position)
        if rest < end:
            self.write_at(data[rest - position :], rest)

    def _put_back(self, seen: bytearray, first: int, end: int) -> None:
        """Write each block that differs from its earlier content.

        Another process may have cut and rewritten the bytes after end. So those are written back only if the file now
        has zeros there, as it does for bytes that the cache lost.
        """
        left = self.read(len(seen), first)
        if left == seen:
            return
        ours = end - first
        for at in range(0, ours, _BLOCK):
            stop = min(at + _BLOCK, ours)
            if left[at:stop] != seen[at:stop]:
                self.write_at(seen[at:stop], first + at)
        for at in range(ours & -_BLOCK, len(left), _BLOCK):
            start, stop = max(at, ours), min(at + _BLOCK, len(left))
            there, behind = left[start:stop], seen[start:stop]
            same = len(there.rstrip(b"\0"))
            if there != behind and behind.startswith(there[:same]):
                self.write_at(behind[same:], first + start + same)

    def _write_blocks(self, data: bytearray, position: int) -> None:
        import mmap

        with mmap.mmap(-1, len(data)) as memory:
            memory[:] = data
            done = 0
            while done < len(data):
                with memoryview(memory) as view, view[done:] as rest:
                    done += os.pwrite(self._fd, rest, position + done) or _stuck(self.path)

    def _set_direct(self, on: bool) -> bool:
        """Turn O_DIRECT of this descriptor on or off; return False if the system cannot.

        Opening the file again would do the same, but end a lease.
        """
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
        except OSError:
            return False
        return True

    def start_sync(self, size: int, position: int) -> None:
        """Start to write by ``sync_file_range``, if the system has it.

        With this flag it does not collect errors of earlier writes: they remain for :meth:`sync`.
        """
        if (call := _sync_file_range()) is not None:
            call(self._fd, position, size, _SYNC_FILE_RANGE_WRITE)

    def sync(self) -> None:
        """Sync by ``fdatasync``."""
        with self._syncing:
            if self._fd < 0:
                raise OSError(errno.EBADF, "the file is closed", self.path)
            if self._unsynced is not None:
                raise OSError(self._unsynced, "an earlier sync of this file failed", self.path)
            try:
                os.fdatasync(self._fd)
            except OSError as error:
                self._unsynced = error.errno
                locate(error, self.path)

    def truncate(self, size: int) -> None:
        """Cut or extend."""
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            locate(error, self.path)

    def allocate(self, size: int) -> None:
        """Allocate zeros with disk space."""
        try:
            os.posix_fallocate(self._fd, 0, size)
        except OSError as error:
            locate(error, self.path)

    def set_time(self, mtime_ns: int) -> None:
        """Set the time of its last change."""
        os.utime(self._fd, ns=(mtime_ns, mtime_ns))


@functools.cache
def _locker(kind: int) -> Callable[[int], None]:
    """Return portalocker's ``flock``. Its module's function checks the flags in each call, which takes 3 us more."""
    from portalocker import LockFlags
    from portalocker.portalocker import FlockLocker

    return partial(FlockLocker().lock, flags=LockFlags(kind | fcntl.LOCK_NB))


@functools.cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Return the function of the C library, or None. It is loaded late, because that takes a short command too long."""
    import ctypes

    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return cast("Callable[[int, int, int, int], int] | None", call)


def opened(path: str, flags: int) -> OsFile:
    """Open a regular file, waiting only for the end of a lease.

    Args:
        path: the path.
        flags: as for :func:`os.open`.

    Raises:
        OSError: the system's error; for anything but a regular file EISDIR or ENXIO, as the system reports a socket.
    """
    if _open_regular is not None:
        try:
            if (found := _open_regular(path, flags | _NO_WAIT | os.O_NOFOLLOW)) is not None:
                return OsFile(found, path)
        except BlockingIOError:  # a lease, see below
            pass
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
    return OsFile(owner, path)


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
    if _open_folder is not None and (found := _open_folder(path, os.O_RDONLY)) is not None:
        return cast("int", found)
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


class Resolved(str):
    """An absolute path that is not resolved again: a link in it is refused. For journals inside a directory of ours."""

    __slots__ = ()


def absolute_path(path: str | os.PathLike[str]) -> str:
    """Return an absolute path of the same file without symbolic links, for an object that opens files later.

    The program may change its current directory meanwhile, and :mod:`sej.system.disk` follows no links.

    Raises:
        ValueError: the path begins with ``~``.

    Example:
        >>> absolute_path("/usr/../orders")
        '/orders'
    """
    name = os.fspath(path)
    if type(name) is Resolved:
        return str(name)
    if name[:1] == "~":
        raise ValueError(
            f"path {name!r} begins with '~', which only a shell expands: pass os.path.expanduser({name!r}), or"
            f" './{name}' for a file of this name"
        )
    if not os.path.isabs(name):
        name = os.path.join(os.getcwd(), name)
    if _open_folder is not None and os.path.normpath(name) == name and name[:2] != "//":
        try:  # a directory whose path has no link needs no other name
            if (fd := _open_folder(name, os.O_PATH)) is not None:
                os.close(fd)
                return name
        except OSError as error:
            if not of_system(error):
                raise
    return os.path.realpath(name)


def status_of(path: str | os.PathLike[str]) -> Status | None:
    """Return the status of a path, or None."""
    try:
        return tuple.__new__(Status, _FIELDS(os.stat(path)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:  # a circular link has no target
            return None
        raise


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


def _stuck(path: str) -> NoReturn:
    raise OSError(errno.EIO, "write(2) made no progress", path)
