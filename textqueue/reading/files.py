"""Which files make up a queue: one file, a directory's ``*.tq``, or a pattern. No file is opened here.

Several files as one queue are the document's way for several writers: each writes into a file of its own.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Container
from typing import Final, NamedTuple

from sej.system.disk import Disk
from sej.system.locks import host_name
from textqueue.errors import InvalidTextError, TextQueueError

__all__ = ["SUFFIX", "Files", "files_of", "is_special"]

SUFFIX: Final = ".tq"
_WILD: Final = frozenset("*?[")
_BESIDE: Final = frozenset({".lck", ".log", ".drain", ".archive", ".tmp", ".spark", ".new", ".durable"})
"""Ends of what stands beside a queue file; a pattern may fit that as well."""


class Files(NamedTuple):
    """A directory and a pattern for the names in it; without a pattern it is one file, ``single``."""

    directory: str
    pattern: str
    single: str | None

    def found(self, disk: Disk) -> list[str]:
        """The paths that there are now, in the order of their names."""
        if self.single is not None:
            return [self.single]
        status = disk.status(self.directory)
        if status is None or not status.is_dir:
            return []
        names = set(disk.list(self.directory))
        paths = [os.path.join(self.directory, name) for name in sorted(names) if self._is_one(name, names)]
        return [path for path in paths if (at := disk.status(path)) is not None and not at.is_dir]

    def holds(self, path: str) -> bool:
        """Whether a file there would be found."""
        if self.single is not None:
            return False
        directory, name = os.path.split(os.path.abspath(path))
        return directory == os.path.abspath(self.directory) and self._is_one(name, ())

    def _is_one(self, name: str, names: Container[str]) -> bool:
        # A hidden file is an editor's, `.jobs.tq.swp`, `.#jobs.tq`, and so are a backup and what is saved by itself.
        if name.startswith(".") or name.endswith("~") or (name[:1] == name[-1:] == "#"):
            return False
        whose = name
        while (parts := os.path.splitext(whose))[1] in _BESIDE:
            whose = parts[0]
            if whose in names or fnmatch.fnmatchcase(whose, self.pattern):  # it stands beside that file
                return False
        return fnmatch.fnmatchcase(name, self.pattern)

    def own(self, writer: str | None, disk: Disk) -> str:
        """The file that a writer appends to; its directory is made when it is missing.

        Raises:
            TextQueueError: the writer's file would not be a part of the queue.
        """
        if self.single is not None:
            return self.single
        name = (writer or f"{host_name()}-{os.getpid()}") + SUFFIX
        if not fnmatch.fnmatchcase(name, self.pattern):
            raise TextQueueError(
                f"the file of this writer, {name!r}, is not among {self.pattern!r}: give a writer= whose name is, or"
                " open one file to append to it",
                path=self.directory,
            )
        disk.mkdir(self.directory)
        return os.path.join(self.directory, name)


def is_special(path: str) -> bool:
    """Whether a pipe, a socket or a device stands there: to open one may wait for ever."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def files_of(path: str, writer: str | None, disk: Disk) -> Files:
    """What a path names.

    Raises:
        InvalidTextError: a pattern in a directory's name, or a writer that is no file name.
    """
    if writer is not None and (not writer or "/" in writer or os.sep in writer or writer.startswith(".")):
        raise InvalidTextError(f"writer must be the beginning of a file name, not {writer!r}")
    status = disk.status(path)
    if path.endswith(("/", os.sep)) or (status is not None and status.is_dir):
        return Files(path.rstrip("/" + os.sep) or path[:1], "*" + SUFFIX, None)
    directory, name = os.path.split(path)
    if status is None and _WILD & set(path):
        if _WILD & set(directory):
            raise InvalidTextError("a pattern may stand in the last part of a path only", path=path)
        return Files(directory or ".", name, None)
    if writer is not None:
        raise InvalidTextError("writer= is for a directory or a pattern; this is one file", path=path)
    return Files(directory or ".", name, path)
