"""What the files of both formats share: names, queues, our own files next to theirs, the lock, and kept bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kestrel.errors import BadNameError, BusyError, FailedError, KestrelError, MissingError
from sej.checks import COUNT, DISK, PATH, SECONDS, TEXT, optional
from sej.errors import LockedError
from sej.system.disk import OS, Disk, File
from sej.system.locks import Lock
from sej.system.paths import absolute_path

KEPT: Final = "kept"
WRITER_MAGIC: Final = bytes.fromhex("27642603")
READER_MAGIC: Final = bytes.fromhex("263C2603")
MAGIC_SIZE: Final = 4
OURS: Final = ("~~lock", "~~durable")
"""What follows a queue's name in the names of the files that only we make."""
_FORBIDDEN: Final = "./~\0"
_MAX_STAMP: Final = 1 << 62
_COPY_SIZE: Final = 1 << 20


def join(directory: str | os.PathLike[str], name: str) -> str:
    """The path of a name in a directory."""
    return os.path.join(os.fspath(directory), name)


def check_name(name: str) -> str:
    """The name, if a queue may have it.

    Raises:
        BadNameError: it is empty or holds one of ``. / ~`` or a NUL.
    """
    TEXT("name", name)
    if not name or any(mark in name for mark in _FORBIDDEN):
        raise BadNameError(f"a queue name must have at least one character, and none of . / ~ and NUL, got {name!r}")
    return name


def check_place(directory: str | os.PathLike[str], name: str, disk: Disk) -> None:
    """Check where a queue is, when a function is given that.

    Raises:
        TypeError: an argument has another type.
        BadNameError: no queue can have this name.
    """
    PATH("directory", directory)
    DISK("disk", disk)
    check_name(name)


def check_numbers(**options: float | None) -> None:
    """Make sure that no size, count or time is below 0.

    Raises:
        ValueError: one of them is.
    """
    for name, value in options.items():
        optional(SECONDS if name.endswith("_s") else COUNT)(name, value)


def lock_path(directory: str | os.PathLike[str], name: str) -> str:
    """The lock file of a queue; of both formats."""
    return join(directory, f"{name}~~lock")


def durable_path(directory: str | os.PathLike[str], name: str) -> str:
    """The path of the record of the bytes on disk, for both formats."""
    return join(directory, f"{name}~~durable")


def stamp_of(text: str) -> int | None:
    """The number in a file name; None if it is not one, or so high that no higher one fits the original's 64 bits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) < _MAX_STAMP else None


def open_file(path: str | os.PathLike[str], disk: Disk = OS) -> File:
    """A journal file, opened for reading.

    Raises:
        MissingError: the file does not exist.
    """
    try:
        return disk.open(path, "read")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise MissingError("this journal file does not exist; expected a file of a queue", path=path) from None


def take_lock(directory: str | os.PathLike[str], name: str, disk: Disk) -> Lock:
    """Take the lock of a queue.

    Raises:
        BusyError: another process holds it.
        KestrelError: this is a SEJ directory.
    """
    _refuse_journal(directory, disk)
    lock = Lock(lock_path(directory, name), what=f"the queue {name}", disk=disk)
    try:
        return lock.acquire()
    except LockedError as error:
        raise BusyError(error.reason, path=error.path, holder=error.holder) from None


def names_in(directory: str | os.PathLike[str], disk: Disk) -> list[str]:
    """The names in a directory of queues, sorted.

    Raises:
        MissingError: the directory does not exist.
        KestrelError: it is a SEJ directory, whose files could be taken for queues, and would be moved to ``kept/``.
    """
    _refuse_journal(directory, disk)
    try:
        return disk.list(directory)
    except (FileNotFoundError, NotADirectoryError) as error:
        what = "this is a file" if isinstance(error, NotADirectoryError) else "this directory does not exist"
        raise MissingError(f"{what}; expected the directory that holds the queue's files", path=directory) from None


def _refuse_journal(directory: str | os.PathLike[str], disk: Disk) -> None:
    segments = disk.status(join(directory, "jnl"))
    if segments is not None and segments.is_dir:
        raise KestrelError(
            "this is a SEJ directory, expected a directory of Kestrel's files; `sej stat` shows the journal",
            path=directory,
        )


def cut(disk: Disk, path: str, position: int, *, keep_at_ms: int | None) -> None:
    """Cut a file at a position, durably.

    Args:
        disk: the seam.
        path: the file.
        position: the first byte that goes.
        keep_at_ms: the time for the name under which the bytes are copied to ``kept/`` first; None: they are not.
    """
    if keep_at_ms is not None:
        keep_tail(disk, path, position, keep_at_ms)
    with disk.open(path, "edit") as file:
        file.truncate(position)
        file.sync()


def keep_tail(disk: Disk, path: str, position: int, now_ms: int) -> str:
    """Copy the bytes of a file from position on to ``kept/``, durably; returns the copy's path."""
    directory, name = os.path.split(path)
    folder = join(directory, KEPT)
    disk.mkdir(folder)
    target = join(folder, f"{name}.{position}.{now_ms}")
    with disk.open(path, "read") as source, disk.open(f"{target}.part", "temp") as copy:
        at = position
        while block := source.read(_COPY_SIZE, at):
            copy.write(block)
            at += len(block)
        copy.sync()
    disk.rename(f"{target}.part", target)
    return target


@contextmanager
def opening(path: str) -> Iterator[None]:
    """While a queue is opened: an ``OSError`` is a :class:`FailedError` too."""
    try:
        yield
    except OSError as error:
        raise FailedError(
            f"opening failed ({error}); nothing was lost; check free space and permissions, then open it again",
            path=path,
        ) from error


def queue_names(directory: str | os.PathLike[str], disk: Disk = OS) -> list[str]:
    """The queues that have files in a directory.

    Raises:
        MissingError: the directory does not exist.
    """
    found = set()
    for file in names_in(directory, disk):
        name, dot, rest = file.partition(".")
        if "~" in file or not name or (dot and stamp_of(rest.removesuffix(".pack")) is None):
            continue
        status = disk.status(join(directory, file))
        if status is not None and not status.is_dir:
            found.add(name)
    return sorted(found)


def files_of(directory: str | os.PathLike[str], name: str, disk: Disk = OS) -> dict[str, int]:
    """The paths and sizes of a queue's files: its name, or its name and a dot or ``~~``.

    Raises:
        MissingError: the directory does not exist.
    """
    found = {}
    for file in names_in(directory, disk):
        if file == name or file.startswith((f"{name}.", f"{name}~~")):
            path = join(directory, file)
            status = disk.status(path)
            if status is not None and not status.is_dir:
                found[path] = status.size
    return found


def magic_of(path: str | os.PathLike[str]) -> bytes:
    """How a file begins."""
    with OS.open(absolute_path(path), "read") as file:
        return file.read(MAGIC_SIZE, 0)


def formats_of(directory: str | os.PathLike[str], name: str) -> set[bool]:
    """Whose the files of a queue are, by how they begin: True for libkestrel's, False for Kestrel 2's."""
    formats = set()
    for path in files_of(directory, name):
        if "~~" not in os.path.basename(path):
            try:
                magic = magic_of(path)
            except FileNotFoundError:  # a running Kestrel has removed it
                continue
            if magic:
                formats.add(magic in (READER_MAGIC, WRITER_MAGIC))
    return formats


def queues_in(directory: str | os.PathLike[str]) -> list[str]:
    """The queues of both formats that have files in a directory, sorted.

    Raises:
        MissingError: the directory does not exist.
    """
    readers = {file.partition(".read.")[0] for file in names_in(directory, OS) if ".read." in file and "~" not in file}
    return sorted({*queue_names(directory), *filter(None, readers)})
