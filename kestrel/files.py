"""What the queues of both formats share: names and places, our own files next to theirs, kept bytes, and limits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, NoReturn

from kestrel.errors import BadNameError, BusyError, FailedError, FullError, KestrelError, MissingError, TooLargeError
from sej.checks import COUNT, SECONDS, TEXT, optional, require
from sej.errors import LockedError
from sej.system.disk import OS, Disk, File, absolute_path
from sej.system.locks import Lock

KEPT: Final = "kept"
WRITER_MAGIC: Final = bytes.fromhex("27642603")
READER_MAGIC: Final = bytes.fromhex("263C2603")
MAGIC_SIZE: Final = 4
LOCK: Final = "~~lock"
DURABLE: Final = "~~durable"
OURS: Final = (LOCK, DURABLE)
"""What follows a queue's name in the names of the files that only we make."""
_FORBIDDEN: Final = "./~\0"
_MAX_STAMP: Final = 1 << 62
_COPY_SIZE: Final = 1 << 20
_UNREACHED: Final = 1 << 62


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


def wall_clock_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Place(NamedTuple):
    """Where a queue is, and what its files are used through.

    Attributes:
        directory: where its files are.
        name: the queue.
        disk: the seam.
        now_ms: the clock, in ms since the epoch.
    """

    directory: str
    name: str
    disk: Disk
    now_ms: Callable[[], int]

    @classmethod
    def of(
        cls,
        directory: str | os.PathLike[str],
        name: str,
        disk: Disk,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> Place:
        """Check the arguments that every function of a queue has.

        Raises:
            TypeError: an argument has another type.
            BadNameError: no queue can have this name.
        """
        require(directory=directory, disk=disk, now_ms=now_ms)
        return cls(absolute_path(directory), check_name(name), disk, now_ms)

    def path(self, rest: str = "") -> str:
        """The path of a file of the queue, by what follows the queue's name."""
        return join(self.directory, self.name + rest)

    def temporary(self) -> str:
        """The path of a new file before its rename."""
        return self.path(f"~~{self.now_ms()}")

    def files(self) -> dict[str, int]:
        """The paths and sizes of the queue's files. Raises as :func:`files_of`."""
        return files_of(self.directory, self.name, self.disk)

    def open(self, path: str) -> File:
        """A file, opened for reading, for its :meth:`release`. Raises as :func:`open_file`."""
        return open_file(path, self.disk)

    def release(self, file: File) -> None:
        """Close a file that :meth:`open` returned."""
        file.close()

    def lock(self) -> Lock:
        """Take the lock of the queue.

        Raises:
            BusyError: another process holds it.
            KestrelError: this is a SEJ directory.
        """
        _refuse_journal(self.directory, self.disk)
        lock = Lock(self.path(LOCK), what=f"the queue {self.name}", disk=self.disk)
        try:
            return lock.acquire()
        except LockedError as error:
            raise BusyError(error.reason, path=error.path, holder=error.holder) from None

    def keep_tail(self, path: str, position: int) -> None:
        """Copy the bytes of a file from a position on to ``kept/``, durably."""
        folder = join(self.directory, KEPT)
        self.disk.mkdir(folder)
        target = join(folder, f"{os.path.basename(path)}.{position}.{self.now_ms()}")
        with self.disk.open(path, "read") as source, self.disk.open(f"{target}.part", "temp") as copy:
            while block := source.read(_COPY_SIZE, position):
                copy.write(block)
                position += len(block)
            copy.sync()
        self.disk.rename(f"{target}.part", target)

    def cut(self, path: str, position: int) -> None:
        """Cut a file at a position, durably."""
        with self.disk.open(path, "edit") as file:
            file.truncate(position)
            file.sync()

    @contextmanager
    def opening(self) -> Iterator[None]:
        """While the queue is opened: an ``OSError`` is a :class:`FailedError` too."""
        try:
            yield
        except OSError as error:
            raise FailedError(
                f"opening failed ({error}); nothing was lost; check free space and permissions, then open it again",
                path=self.path(),
            ) from error


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


class Limits:
    """The limits of a queue for size and age.

    Attributes:
        max_items: how many items it may hold; None: any number.
        max_bytes: how much data it may hold, passed by one item at most; None: any amount.
        max_item_bytes: how much data one item may have.
        max_age_ms: how long an item lives after it was put; None: without a limit.
        bounded: whether max_items or max_bytes is set.
        most_items: max_items in 64 bits; a number that no queue reaches for None.
        most_bytes: max_bytes in the same way.
    """

    def __init__(
        self,
        place: Place,
        max_items: int | None,
        max_bytes: int | None,
        max_item_bytes: int | None,
        max_age_s: float | None,
        *,
        most: int,
    ) -> None:
        """Check and keep the options; most: how much data an item of this format may have.

        Raises:
            ValueError: one of them is below 0.
        """
        count = optional(COUNT)
        require(max_items=(max_items, count), max_item_bytes=(max_item_bytes, count))
        count("max_bytes", max_bytes)
        optional(SECONDS)("max_age_s", max_age_s)
        self.max_items, self.max_bytes = max_items, max_bytes
        self.max_item_bytes = most if max_item_bytes is None else min(max_item_bytes, most)
        never = max_age_s is None or max_age_s * 1000 >= _UNREACHED  # such a time does not fit into the files
        self.max_age_ms = None if max_age_s is None or never else int(max_age_s * 1000)
        self.bounded = max_items is not None or max_bytes is not None
        self.most_items = _UNREACHED if max_items is None else min(max_items, _UNREACHED)
        self.most_bytes = _UNREACHED if max_bytes is None else min(max_bytes, _UNREACHED)
        self._place = place

    def checked(self, data: bytes) -> bytes:
        """An item as ``bytes``.

        Raises:
            TypeError: it is not bytes, a bytearray or a memoryview.
            TooLargeError: it is larger than ``max_item_bytes``.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"an item must be bytes, got {type(data).__name__}")
        data = bytes(data)
        if len(data) > self.max_item_bytes:
            raise TooLargeError(
                f"an item must have at most {self.max_item_bytes} bytes (max_item_bytes, or the"
                f" limit of the format or of a file), got {len(data)}",
                path=self._place.directory,
            )
        return data

    def full(self, count: int, size: int, more: Sequence[bytes] = (b"",)) -> bool:
        """Whether a queue of count items and size bytes refuses more items. Only the last one may pass max_bytes."""
        return count + len(more) > self.most_items or size + sum(map(len, more[:-1])) >= self.most_bytes

    def refuse(self, holder: str, count: int, size: int, way_out: str) -> NoReturn:
        """Say that a queue or reader is full.

        Raises:
            FullError: always.
        """
        raise FullError(
            f"{holder} holds {count} items of {size} bytes; the limits are {self.max_items} items and"
            f" {self.max_bytes} bytes; {way_out}",
            path=self._place.directory,
        )

    def expiry(self, since_ms: int, own: int | None) -> int | None:
        """When an item expires that was put at since_ms, in ms since the epoch; own: by its own expiry; None: never."""
        if self.max_age_ms is None:
            return own
        latest = since_ms + self.max_age_ms
        return latest if own is None else min(own, latest)
