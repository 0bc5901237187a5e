"""The files of a queue: a single file, the ``*.tq`` files of a directory, or a pattern. This module opens no file.

In the original document, several writers share a queue of several files: each writer has a file of its own.

**Waiting for messages** (:meth:`Inputs.follow`). A change of the directory wakes the wait, however an editor saves the
file. It relies on ``sej.system.watch``. A wait may end early or without a reason, but never later than its time limit.
"""

from __future__ import annotations

import fnmatch
import getpass
import os
import stat
import threading
import time
from collections.abc import Callable, Container, Iterator
from typing import Final, NamedTuple, TypeVar

from sej.system.disk import Disk, absolute_name, absolute_path
from sej.system.watch import Watch
from textqueue.claiming import Claimer
from textqueue.cursor import Cursor
from textqueue.editing.queue_file import Options
from textqueue.editing.tq_file import TqFile
from textqueue.errors import InvalidTextError, TextQueueError

_Found = TypeVar("_Found")
SUFFIX: Final = ".tq"
_WILD: Final = frozenset("*?[")
_OWN: Final = ".lck .log .drain .archive .tmp .spark .new .rest .save .split .incoming"
_SIDECARS: Final = frozenset(_OWN.split())
"""Suffixes of the files next to a queue file. A pattern may match these files as well."""


class Files(NamedTuple):
    """A directory and a pattern for the names in it, or a single file."""

    directory: str
    pattern: str
    single: str | None

    def found(self, disk: Disk) -> list[str]:
        """Return the paths of the files that exist now, sorted by name."""
        if self.single is not None:
            return [self.single]
        status = disk.status(self.directory)
        if status is None or not status.is_dir:
            return []
        names = set(disk.list(self.directory))
        paths = [os.path.join(self.directory, name) for name in sorted(names) if self._is_one(name, names)]
        return [path for path in paths if (at := disk.status(path)) is not None and not at.is_dir]

    def holds(self, path: str) -> bool:
        """Return whether a file with this path would be a part of the queue."""
        if self.single is not None:
            return False
        directory, name = os.path.split(os.path.abspath(path))
        return os.path.realpath(directory) == os.path.realpath(self.directory) and self._is_one(name, ())

    def _is_one(self, name: str, names: Container[str]) -> bool:
        # Editors create hidden files (`.jobs.tq.swp`, `.#jobs.tq`), backups (`jobs.tq~`) and autosaves (`#jobs.tq#`).
        if name.startswith(".") or name.endswith("~") or (name[:1] == name[-1:] == "#"):
            return False
        queue = name
        while (parts := os.path.splitext(queue))[1] in _SIDECARS:
            queue = parts[0]
            if queue in names or fnmatch.fnmatchcase(queue, self.pattern):  # name is a file next to that queue file
                return False
        return fnmatch.fnmatchcase(name, self.pattern)

    def own(self, writer: str | None, disk: Disk) -> str:
        """Return the file that a writer appends to, if it would be a part of the queue. Its directory is created."""
        if self.single is not None:
            return self.single
        name = (writer or _user()) + SUFFIX
        if not fnmatch.fnmatchcase(name, self.pattern):
            raise TextQueueError(
                f"the file of this writer, {name!r}, does not match {self.pattern!r}: pass a writer that matches, or"
                " open a single file and append to it",
                path=self.directory,
            )
        disk.mkdir(self.directory, parents=True)
        return os.path.join(self.directory, name)


def _user() -> str:
    """Return the name of this user, as a start of a file name: ``$USER``, or the name in the system's list of users."""
    try:
        name = os.environ.get("USER") or getpass.getuser()
    except (OSError, KeyError):  # the system does not know this user
        name = f"uid-{os.getuid()}"
    return name.replace("/", "_").replace(os.sep, "_").lstrip(".") or "user"


def is_special(path: str) -> bool:
    """Return whether a path is a pipe, a socket or a device. Opening one may block without a limit."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def files_of(path: str, writer: str | None, disk: Disk) -> Files:
    """Return the files that a path names: a directory, a pattern, or one file, from the current directory."""
    if writer is not None and (not writer or "/" in writer or os.sep in writer or writer.startswith(".")):
        raise InvalidTextError(f"writer must be the start of a file name, got {writer!r}")
    status = disk.status(path)
    if path.endswith(("/", os.sep)) or (status is not None and status.is_dir):
        return Files(absolute_path(path.rstrip("/" + os.sep) or path[:1]), "*" + SUFFIX, None)
    directory, name = os.path.split(path)
    if status is None and _WILD & set(path):
        if _WILD & set(directory) and disk.status(directory) is None:
            raise InvalidTextError("only the last part of a path may be a pattern", path=path)
        if _WILD & set(name):
            return Files(absolute_path(directory), name, None)
    if writer is not None:
        raise InvalidTextError("writer= is only for a directory or a pattern, but this is one file", path=path)
    return Files(absolute_path(directory), name, absolute_name(path))


_SHARED_S: Final = 0.1
"""The interval of looks if one wait is not enough: there are several directories, or a stop event."""
_ALONE_S: Final = 1.0
"""The longest wait: a worker that dies frees its claims without any event."""


class Input(NamedTuple):
    """One file of a queue, with the positions of a reader and of a claimer in it."""

    source: TqFile
    cursor: Cursor
    claimer: Claimer


class Inputs:
    """The files of a queue. This class opens none, and is not thread-safe: the queue that owns it locks it."""

    def __init__(self, files: Files | None, writer: str | None, options: Options) -> None:
        """Take the options of ``TextQueue``. If files is None, they are added one by one."""
        self.found: list[Input] = []
        self._files, self._writer, self._options, self._disk = files, writer, options, options.disk

    @property
    def sources(self) -> list[TqFile]:
        """The files, in order."""
        return [one.source for one in self.found]

    @property
    def directories(self) -> set[str]:
        """The directories of the files, which may not exist yet."""
        # If a path is a link, programs change the file in its own directory, and replace the link in this one.
        names = {
            os.path.dirname(path) or "."
            for source in self.sources
            for path in (source.path, source.file.guard.real_path)
        }
        return names | ({self._files.directory} if self._files is not None else set()) or {"."}

    def follow(
        self, get_next: Callable[[], _Found | None], *, timeout: float | None, stop: threading.Event | None = None
    ) -> Iterator[_Found]:
        """Yield what get_next returns, and wait for more in the directories of the files.

        It ends after timeout seconds without a message, and soon after stop is set. After ``settle_s``, a last line
        without a newline counts, without any event.
        """
        watch: Watch | None = None
        last = time.monotonic()
        try:
            while stop is None or not stop.is_set():
                # Watch first, then read: a message that arrives in between ends the wait. Other directories are polled.
                names = self.directories
                watch = watch or Watch(next(iter(names)))
                found = get_next()
                if found is not None:
                    yield found
                    last = time.monotonic()
                    continue
                left = _ALONE_S if timeout is None else last + timeout - time.monotonic()
                if left <= 0:
                    return
                pause = _ALONE_S if len(names) == 1 and stop is None and not watch.polling else _SHARED_S
                watch.wait(min(pause, left, max(self._options.settle_s, _SHARED_S)))
                if watch.polling:  # the directory was missing or was removed: watch it again
                    watch.close()
                    watch = None
        finally:
            if watch is not None:
                watch.close()

    def discover(self) -> None:
        """Find the files that were created since the last call."""
        if self._files is not None and (self._files.single is None or not self.found):
            known = {source.path for source in self.sources}
            for path in self._files.found(self._disk):
                if path not in known and (self._files.single is not None or not is_special(path)):
                    self.add(path)
            if self._files.single is None:  # sorted by name, not by when they were found
                self.found.sort(key=lambda one: one.source.path)

    def require_outside(self, target: str) -> None:
        """Check that a file is not, and would not be, a part of this queue; otherwise raise an InvalidTextError."""
        if self._files is not None and self._files.holds(target):
            raise InvalidTextError(
                "this file would become part of the queue: choose a path outside its directory", path=target
            )

    def existing(self) -> list[Input]:
        """Return the inputs whose files exist now."""
        self.discover()
        return [one for one in self.found if self._disk.status(one.source.path) is not None]

    def add(self, path: str) -> TqFile:
        """Add a file after the others, unless it is a directory or a special file."""
        status = self._disk.status(path)
        if status is not None and status.is_dir:
            raise TextQueueError("expected a .tq file, got a directory; open it with TextQueue(path)", path=path)
        if status is not None and is_special(path):
            raise TextQueueError("expected a regular file, got a pipe, socket or device", path=path)
        source = TqFile(path, self._options)
        self.found.append(Input(source, Cursor(source), Claimer(source)))
        return source

    def target(self) -> TqFile:
        """Return the file that this object appends to."""
        if self._files is None:
            if not self.found:
                raise TextQueueError(
                    "this queue has no file to append to: create it with TextQueue(path), or call add_input"
                )
            return self.found[-1].source
        path = self._files.own(self._writer, self._disk)
        for source in self.sources:
            if source.path == path:
                return source
        return self.add(path)
