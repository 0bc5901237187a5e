"""The files of a queue, with the positions of a queue object in each. New files are found as they appear."""

from __future__ import annotations

import os
from typing import NamedTuple

from sej.system.clock import Clock
from sej.system.disk import Disk
from textqueue.claims.claim import Claimer
from textqueue.editing.conflicts import Conflict
from textqueue.editing.reconcile import OnRevert
from textqueue.editing.source import Source
from textqueue.errors import InvalidTextError, TextQueueError
from textqueue.reading.cursor import Cursor
from textqueue.reading.files import Files, is_special


class Input(NamedTuple):
    """One file of a queue, with the positions of a reader and of a claimer in it."""

    source: Source
    cursor: Cursor
    claimer: Claimer


class Inputs:
    """The files of a queue: added one by one, a single file, or the files of a directory or pattern.

    This class opens no file. It is not thread-safe: the queue that owns it locks it.
    """

    def __init__(
        self,
        files: Files | None,
        *,
        writer: str | None,
        settle_s: float,
        on_revert: OnRevert,
        conflicts: list[Conflict],
        disk: Disk,
        clock: Clock,
    ) -> None:
        """Take the options of ``TextQueue``. If files is None, they are added one by one."""
        self.found: list[Input] = []
        self._files = files
        self._writer = writer
        self._settle_s = settle_s
        self._on_revert: OnRevert = on_revert
        self._conflicts = conflicts
        self._disk = disk
        self._clock = clock

    @property
    def sources(self) -> list[Source]:
        """The files, in order."""
        return [one.source for one in self.found]

    @property
    def directories(self) -> set[str]:
        """The directories of the files, which may not exist yet."""
        # If a path is a link, programs change the file in its own directory, and replace the link in this one.
        names = {
            os.path.dirname(path) or "." for source in self.sources for path in (source.path, source.file.real_path)
        }
        return names | ({self._files.directory} if self._files is not None else set()) or {"."}

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
        """Check that a file is not a part of this queue.

        Raises:
            InvalidTextError: it is, or would be if it existed.
        """
        if self._files is not None and self._files.holds(target):
            raise InvalidTextError(
                "this file would be a part of the queue: choose a path outside of the queue", path=target
            )

    def existing(self) -> list[Input]:
        """Return the inputs whose files exist now."""
        self.discover()
        return [one for one in self.found if self._disk.status(one.source.path) is not None]

    def add(self, path: str) -> Source:
        """Add a file after the others.

        Raises:
            TextQueueError: path is a directory, or not a regular file.
        """
        status = self._disk.status(path)
        if status is not None and status.is_dir:
            raise TextQueueError("expected a .tq file, got a directory; open it with TextQueue(path)", path=path)
        if status is not None and is_special(path):
            raise TextQueueError("expected a regular file, got a pipe, socket or device", path=path)
        source = Source(
            path,
            disk=self._disk,
            settle_s=self._settle_s,
            on_revert=self._on_revert,
            conflicts=self._conflicts,
            clock=self._clock,
        )
        self.found.append(Input(source, Cursor(source), Claimer(source)))
        return source

    def target(self) -> Source:
        """Return the file that this object appends to.

        Raises:
            TextQueueError: no file was added.
        """
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
