"""The seam to the disk: nothing else opens, writes, syncs, renames, locks and truncates files.

An open file is in :mod:`sej.system.file`.

:class:`Disk` and :class:`File` are the few operations on which everything else is built; :data:`OS` is the real one.
Tests replace it by a disk that forgets what was never synced, or fails the k-th call.

The rules:

- A write writes everything or raises. Nothing is retried after an error, except EINTR.
- When ``create`` (of a new file), ``mkdir``, ``rename`` and ``unlink`` return, the directories are synced, so that the
  name survives a power loss. Only ``mode="temp"`` leaves that out, for files that are renamed into place or removed.
- ``sync`` is ``fdatasync``. The system reports a failed one to one
  caller, once. So an open file is synced by one thread at a time, and after an error never again.
- Every descriptor is closed on exec.
- An exception of a signal handler leaks no descriptor and no lock. Python runs handlers between bytecodes, so anything
  that must not be interrupted is one call into C: a descriptor has an owner before the next bytecode runs, and
  :meth:`File.unlocker` and :meth:`File.closing` end a lock in a ``finally`` or a ``with`` that no handler can precede.
- ``open`` returns a regular file. Anything else is refused and never waited for: a FIFO would block its reader without
  a limit.
- Nothing is opened, created, renamed or removed through a symbolic link in any part of a path: a user who may write to
  a journal's directory could lead the writes of another user elsewhere. Paths that users pass are resolved before, by
  :func:`absolute_path`.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, Literal, Protocol

from sej.errors import CorruptionError, FileTypeError
from sej.system.file import File as File
from sej.system.file import OsFile as OsFile
from sej.system.file import Resolved as Resolved
from sej.system.file import Status as Status
from sej.system.file import absolute_path as absolute_path
from sej.system.file import locate, open_folder, opened, status_of
from sej.system.file import of_system as of_system

Mode = Literal["read", "edit", "append", "new", "temp"]
"""``read``; ``edit``: read and write an existing file; ``append``: created if missing, every write goes to the end;
``new``: must not exist; ``temp``: created or emptied, its name not synced.
"""

_CLOEXEC: Final = os.O_CLOEXEC
_FLAGS: Final[dict[str, int]] = {
    "read": os.O_RDONLY | _CLOEXEC,
    "edit": os.O_RDWR | _CLOEXEC,
    "append": os.O_RDWR | os.O_APPEND | _CLOEXEC,
    "new": os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | _CLOEXEC,
    "temp": os.O_RDWR | os.O_CREAT | os.O_TRUNC | _CLOEXEC,
}


class Disk(Protocol):
    """Operations on names."""

    def open(self, path: str | os.PathLike[str], mode: Mode) -> File:
        """Open a regular file.

        Raises:
            FileTypeError: the path is not a regular file.
        """

    def status(self, path: str | os.PathLike[str]) -> Status | None:
        """Return the status of a path (symbolic links followed), or None."""

    def list(self, path: str | os.PathLike[str]) -> list[str]:
        """Return the names in a directory, sorted."""

    def mkdir(self, path: str | os.PathLike[str], *, parents: bool = False) -> None:
        """Create a directory; an existing one is accepted.

        Only an object that is being opened creates the parents too: later the directory may have been moved.
        """

    def rename(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        """Rename, replacing the target if it exists."""

    def unlink(self, path: str | os.PathLike[str]) -> None:
        """Remove a file; a missing one is accepted."""

    def rmdir(self, path: str | os.PathLike[str]) -> None:
        """Remove an empty directory."""

    def free_bytes(self, path: str | os.PathLike[str]) -> int:
        """Return the bytes that an ordinary user may still write there."""

    def free_files(self, path: str | os.PathLike[str]) -> int:
        """Return how many files an ordinary user may still create there."""

    def sync_dir(self, path: str | os.PathLike[str]) -> None:
        """Force the names in a directory to the medium: for names that another process may have left unsynced."""


class OsDisk:
    """The operating system's disk."""

    __slots__ = ()

    status = staticmethod(status_of)
    """Return the status of a path, or None."""

    def open(self, path: str | os.PathLike[str], mode: Mode) -> OsFile:
        """Open a regular file; the name of a created one is synced."""
        name, flags = os.fspath(path), _FLAGS[mode]
        try:
            if mode == "temp":
                return self._temporary(name, flags)
            return self._create(name, flags) if mode == "new" else opened(name, flags)
        except OSError as error:
            if error.errno in _ODD:
                raise _odd(name, error, "a regular file") from None
            if mode != "append" or not isinstance(error, FileNotFoundError):
                raise
        try:
            return self._create(name, flags | os.O_CREAT | os.O_EXCL)
        except FileExistsError:  # another process created it between the two calls
            return opened(name, flags | os.O_CREAT)

    def _temporary(self, name: str, flags: int) -> OsFile:
        if os.geteuid():
            return opened(name, flags)
        with suppress(FileExistsError):
            file = opened(name, flags | os.O_EXCL)
            _hand_over(file.fileno(), name)
            return file
        return opened(name, flags)

    def _create(self, name: str, flags: int) -> OsFile:
        file = opened(name, flags)
        try:
            _hand_over(file.fileno(), name)
            self.sync_dir(os.path.dirname(name) or ".")
        except BaseException:
            file.close()  # the traceback of the error would keep it open
            raise
        return file

    def list(self, path: str | os.PathLike[str]) -> list[str]:
        """Return the names in a directory."""
        return sorted(os.listdir(path))

    def mkdir(self, path: str | os.PathLike[str], *, parents: bool = False) -> None:
        """Create a directory, and sync the one that contains it."""
        target = os.fspath(path).rstrip(os.sep) or os.sep
        missing = []
        while not self._is_dir(target):
            missing.append(target)
            target = os.path.dirname(target) or "."
        if len(missing) > 1 and not parents:
            raise FileNotFoundError(
                errno.ENOENT, "the directory that contains it was moved or removed while it was in use", missing[0]
            )
        for step in reversed(missing):
            with _Entry(step) as (folder, name):
                try:
                    os.mkdir(name, dir_fd=folder)
                    if not os.geteuid():
                        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | _CLOEXEC, dir_fd=folder)
                        try:
                            _hand_over(fd, step)
                        finally:
                            os.close(fd)
                except FileExistsError as error:
                    if not self._is_dir(step):
                        raise _odd(step, error, "a directory") from None
                os.fsync(folder)

    def _is_dir(self, path: str) -> bool:
        status = self.status(path)
        return status is not None and status.is_dir

    def rename(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        """Rename, and sync both directories."""
        with _Entry(source) as (here, old), _Entry(target) as (there, new):
            os.replace(old, new, src_dir_fd=here, dst_dir_fd=there)
            os.fsync(there)
            if os.path.dirname(os.fspath(source)) != os.path.dirname(os.fspath(target)):
                os.fsync(here)

    def unlink(self, path: str | os.PathLike[str]) -> None:
        """Remove, and sync the directory."""
        with suppress(FileNotFoundError), _Entry(path) as (folder, name):
            os.unlink(name, dir_fd=folder)
            os.fsync(folder)

    def rmdir(self, path: str | os.PathLike[str]) -> None:
        """Remove an empty directory, and sync its parent."""
        with _Entry(path) as (folder, name):
            os.rmdir(name, dir_fd=folder)
            os.fsync(folder)

    def free_bytes(self, path: str | os.PathLike[str]) -> int:
        """Return the bytes that an ordinary user may still write there."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def free_files(self, path: str | os.PathLike[str]) -> int:
        """Return how many files an ordinary user may still create there; a file system may have no limit."""
        found = os.statvfs(path)
        return found.f_favail if found.f_files else sys.maxsize

    def sync_dir(self, path: str | os.PathLike[str]) -> None:
        """Sync the names in a directory."""
        fd = _folder(os.fspath(path))
        try:
            os.fsync(fd)
        except OSError as error:
            locate(error, os.fspath(path))
        finally:
            os.close(fd)


class _Entry:
    """An open directory and a name in it, for calls that must not follow a link. An error gets the path."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._folder, self._name = os.path.split(self._path)
        self._fd = -1

    def __enter__(self) -> tuple[int, str]:
        self._fd = _folder(self._folder or ".")
        return self._fd, self._name

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        os.close(self._fd)
        if (
            isinstance(error, OSError)
            and error.errno is not None
            and os.fspath(error.filename or "") in ("", self._name)
        ):
            locate(error, self._path)


def _folder(path: str) -> int:
    """Return a descriptor of a directory, see :func:`open_folder`."""
    try:
        return open_folder(path)
    except OSError as error:
        raise _odd(path, error, "a directory") from None


OS: Final = OsDisk()
"""The operating system's disk; it has no state."""


def read_small(disk: Disk, path: str | os.PathLike[str], limit_bytes: int) -> bytes:
    """Return all bytes of a file that is small by its format: no more than the limit is read.

    Raises:
        FileNotFoundError: there is no such file.
        FileTypeError: it is not a regular file.
        CorruptionError: it is larger than limit_bytes.
    """
    with disk.open(path, "read") as file:
        size = file.size()
        if size > limit_bytes:
            raise CorruptionError(
                f"this file has {size} bytes, expected at most {limit_bytes}; it was not read, move it away",
                path=path,
                position=limit_bytes,
            )
        return file.read(size, 0)


_PIECE_BYTES: Final = 1 << 20


def pieces(file: File, start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Yield the bytes of a file from start to end in pieces; without an end, all that it has now."""
    end = file.size() if end is None else end
    while start < end and (data := file.read(min(_PIECE_BYTES, end - start), start)):
        yield data
        start += len(data)


def open_existing(disk: Disk, path: str, mode: Literal["read", "edit"]) -> File | None:
    """Open a file; None if it is missing."""
    try:
        return disk.open(path, mode)
    except (FileNotFoundError, NotADirectoryError):
        return None


def replace_file(
    disk: Disk,
    temporary: str | os.PathLike[str],
    path: str | os.PathLike[str],
    data: bytes,
) -> None:
    """Replace the content of a file atomically: by temporary file, sync and rename."""
    write_temporary(disk, temporary, data)
    disk.rename(temporary, path)


def write_temporary(disk: Disk, temporary: str | os.PathLike[str], data: bytes) -> Status:
    """Write a file that will be renamed, durably; return its status."""
    disk.unlink(temporary)  # after a crash inside a rename both names may be one file: it is not written again
    with disk.open(temporary, "temp") as file:
        file.write(data)
        file.sync()
        return file.status()


_OTHERS: Final = 64
"""Files for other uses in this process, if it has not more of them already."""
_ANY: Final = 1 << 20


def spare_files() -> int:
    """Return how many more files this process can open, at least 1; some are left for other uses."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = 0
    with suppress(OSError):  # without /proc
        held = len(os.listdir("/proc/self/fd"))
    return _ANY if soft == resource.RLIM_INFINITY else max(soft - max(_OTHERS, held + _OTHERS // 2), 1)


_LOCAL: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "nilfs2", "ntfs3",
                           "reiserfs", "exfat", "vfat", "fuseblk", "ubifs", "jffs2", "tmpfs", "ramfs", "rootfs",
                           "overlay", "aufs", "fuse.fuse-overlayfs"})  # fmt: skip


def network_file_system(path: str | os.PathLike[str], status: Status | None = None) -> str | None:
    """Return the type of the file system that holds path (``"nfs4"``), or None if it is known to be local.

    Known are those on a block device, :data:`_LOCAL`, and those in the environment: ``SEJ_LOCAL_FS=virtiofs,9p``.

    Args:
        path: the file or directory.
        status: its status, if the caller knows it.
    """
    device = _device(path) if status is None else status.device
    if os.major(device) or device in _local_devices:
        return None
    kind = file_system(path)
    if kind not in _LOCAL and kind not in os.environ.get("SEJ_LOCAL_FS", "").split(","):
        return kind
    _local_devices.add(device)
    return None


_local_devices: Final[set[int]] = set()
"""Devices that the mount table has shown to be local: it is read once for each."""


def _device(path: str | os.PathLike[str]) -> int:
    """Return the device of a path, or of its nearest directory that exists; those on a block device have a major."""
    name = os.path.realpath(path)
    while (status := status_of(name)) is None:
        name = os.path.dirname(name)
    return status.device


def file_system(path: str | os.PathLike[str]) -> str | None:
    """Return the type of the file system that holds path (``"ext4"``), or None if it is unknown.

    Read from ``/proc/self/mountinfo``: the mount with the longest matching mount point.
    """
    real = os.path.realpath(path)
    best, kind = "", None
    for point, name in _mounts():
        inside = real == point or real.startswith(point if point.endswith("/") else point + "/")
        if inside and len(point) >= len(best):
            best, kind = point, name
    return kind


def is_mount_point(path: str | os.PathLike[str]) -> bool:
    """Return whether something is mounted at a path, which may be a single file, as in a container."""
    real = os.path.realpath(path)
    return any(point == real for point, _ in _mounts())


def _mount_table() -> bytes:
    with Tolerated(), open("/proc/self/mountinfo", "rb") as table:  # if the system has one
        return table.read()
    return b""


def _mounts() -> Iterator[tuple[str, str]]:
    import re

    for line in _mount_table().split(b"\n"):
        fields, _, rest = line.partition(b" - ")
        if fields:
            point = fields.split(b" ")[4]
            if b"\\" in point:
                point = re.sub(rb"\\([0-7]{3})", lambda octal: bytes((int(octal[1], 8),)), point)
            yield os.fsdecode(point), os.fsdecode(rest.split(b" ", 1)[0])


_ODD: Final = frozenset({errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV})
"""The errors of opening directories, symbolic links, sockets and FIFOs, and devices."""
_KINDS: Final = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISREG, "a regular file"),
)


def _kind(mode: int) -> str:
    return next((name for check, name in _KINDS if check(mode)), f"a file of mode {mode:o}")


def _hand_over(fd: int, path: str) -> None:
    """Give what root has just created to the owner of its directory, whose programs use it next (as SQLite does)."""
    if os.geteuid():
        return
    there = os.stat(os.path.dirname(path) or ".")
    if there.st_uid:
        with suppress(OSError):  # a user namespace may not know the owner
            os.fchown(fd, there.st_uid, there.st_gid)
            if not os.access(path, os.W_OK):  # root without CAP_DAC_OVERRIDE would lock itself out
                os.fchown(fd, 0, 0)


def _odd(name: str, error: OSError, expected: str) -> Exception:
    """Return the error for a path of another type than expected; the system's own error if the path has changed."""
    end = 0
    while 0 <= end < len(name):
        end = name.find(os.sep, end + 1)
        part = name if end < 0 else name[:end]
        with Tolerated():
            return FileTypeError(
                f"this is a symbolic link to {os.readlink(part)!r}, expected {expected if end < 0 else 'a directory'}:"
                " links are followed only in a path that you pass; move it away",
                path=part,
            )
    try:
        found = _kind(os.stat(name).st_mode)
    except OSError:
        return error
    if found == expected:
        return error
    return FileTypeError(f"this is {found}, expected {expected}; move it away", path=name)


class Tolerated:
    """Suppress errors of the system, like ``suppress(OSError)``; an exception of a signal handler propagates."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Return whether the system raised this error."""
        return error is not None and of_system(error)


def is_full(error: BaseException | None) -> bool:
    """Return whether an error, or its cause, is a full disk or an exhausted quota."""
    while error is not None:
        if isinstance(error, OSError):
            return error.errno in (errno.ENOSPC, errno.EDQUOT)
        error = error.__cause__
    return False


def is_scarce(error: BaseException) -> bool:
    """Return whether the process or the system had no descriptor or memory left: no file is at fault."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def way_out(disk: Disk, path: str, error: BaseException) -> str:
    """Return why a write failed and what to do, for the text of an error that names ``path`` already."""
    reason = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename in (None, path):
        reason = error.strerror
    if is_full(error):
        return f"{reason}; {full_disk_advice(disk, path)}"
    is_large = isinstance(error, OSError) and error.errno == errno.EFBIG
    return f"{reason}; {large_file_advice() if is_large else 'fix the cause'}"


def full_disk_advice(disk: Disk, path: str) -> str:
    """Return what to do about a full disk, for an error's text."""
    try:
        free = f"{disk.free_bytes(path)} bytes free" + (", but no inode for a new file" * (not disk.free_files(path)))
    except OSError:
        free = "free space unknown"
    return (
        f"the disk that holds {path} is full ({free}): let workers and readers continue, and remove finished messages"
        " with `sej clean`"
    )


def large_file_advice() -> str:
    """Return what to do about a file that may not grow, for an error's text."""
    import resource  # here, because few processes need it

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit == resource.RLIM_INFINITY:
        return "the file has the largest size that its file system allows: use another file system"
    return f"a file of this process may have at most {limit} bytes: raise the limit with `ulimit -f`"


_PARTS: Final = frozenset({"gaps", "idx", "jnl", "kept", "ofs", "tmp", "txn"})


def absolute_name(path: str | os.PathLike[str]) -> str:
    """Return a path like :func:`absolute_path`, but with a link in its last part: for files that users replace."""
    folder, name = os.path.split(os.fspath(path))
    if not folder and name.startswith("~"):
        folder = name  # refused
    return os.path.join(absolute_path(folder), name) if name not in ("", ".", "..") else absolute_path(path)


def is_journal(disk: Disk, path: str) -> bool:
    """Return whether a path is a SEJ directory: it has a directory ``jnl/``."""
    inside = disk.status(os.path.join(path, "jnl"))
    return inside is not None and inside.is_dir


def around(disk: Disk, path: str) -> str | None:
    """Return the SEJ directory that a path is inside of, as for ``orders/jnl/x``, where only SEJ may write; or None.

    Symbolic links are followed. Neither the path nor its directories need exist.
    """
    inside = os.path.realpath(path)
    while (parent := os.path.dirname(inside)) != inside:
        if os.path.basename(inside) in _PARTS and is_journal(disk, parent):
            return parent
        inside = parent
    return None
