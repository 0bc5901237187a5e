"""The files of one queue, found as they come, and one object's places in each."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import NamedTuple

from sej.system.disk import Disk
from textqueue.claims.claim import Claimer
from textqueue.editing.reconcile import Conflict, OnRevert
from textqueue.editing.source import Source
from textqueue.errors import InvalidTextError, TextQueueError
from textqueue.reading.cursor import Cursor
from textqueue.reading.files import Files, is_special

__all__ = ["Input", "Inputs"]


class Input(NamedTuple):
    """One file of a queue, and this object's places in it."""

    source: Source
    cursor: Cursor
    claimer: Claimer


class Inputs:
    """Files that were named one by one, one path's file, or all that a directory or pattern holds now.

    No file is opened here. Not safe between threads: the queue that owns it sees to that.
    """

    def __init__(
        self,
        files: Files | None,
        *,
        writer: str | None,
        settle_s: float,
        on_revert: OnRevert,
        dead_hosts: Collection[str],
        conflicts: list[Conflict],
        disk: Disk,
    ) -> None:
        """As ``TextQueue``; files None: they are added one by one."""
        self.found: list[Input] = []
        self._files = files
        self._writer = writer
        self._settle_s = settle_s
        self._on_revert: OnRevert = on_revert
        self._dead_hosts = frozenset(dead_hosts)
        self._conflicts = conflicts
        self._disk = disk

    @property
    def sources(self) -> list[Source]:
        """The files, in their order."""
        return [one.source for one in self.found]

    @property
    def directories(self) -> set[str]:
        """Where files stand, or will."""
        # Where a file is a link, it is changed there and replaced here.
        names = {os.path.dirname(path) or "." for source in self.sources for path in (source.path, source.file.home)}
        return names | ({self._files.directory} if self._files is not None else set()) or {"."}

    def look(self) -> None:
        """Find files that others have made since."""
        if self._files is not None and (self._files.single is None or not self.found):
            known = {source.path for source in self.sources}
            for path in self._files.found(self._disk):
                if path not in known and (self._files.single is not None or not is_special(path)):
                    self.add(path)
            if self._files.single is None:  # in the order of their names, whenever they were found
                self.found.sort(key=lambda one: one.source.path)

    def refuse(self, target: str) -> None:
        """See that a file is no part of this queue.

        Raises:
            InvalidTextError: it is one, or would be.
        """
        if self._files is not None and self._files.holds(target):
            raise InvalidTextError("this file would be a part of the queue: name one outside of it", path=target)

    def there(self) -> list[Input]:
        """Those whose files exist now."""
        self.look()
        return [one for one in self.found if self._disk.status(one.source.path) is not None]

    def add(self, path: str) -> Source:
        """One more, behind the others.

        Raises:
            TextQueueError: it is a directory, or no regular file.
        """
        status = self._disk.status(path)
        if status is not None and status.is_dir:
            raise TextQueueError("this is a directory and no .tq file; open it as TextQueue(path)", path=path)
        if status is not None and is_special(path):
            raise TextQueueError("this is no regular file, as a queue must be, but a pipe, socket or device", path=path)
        source = Source(
            path, disk=self._disk, settle_s=self._settle_s, on_revert=self._on_revert, conflicts=self._conflicts
        )
        self.found.append(Input(source, Cursor(source), Claimer(source, dead_hosts=self._dead_hosts)))
        return source

    def target(self) -> Source:
        """The file that this object appends to.

        Raises:
            TextQueueError: no file was named.
        """
        if self._files is None:
            if not self.found:
                raise TextQueueError("this queue has no file to append to: name one, TextQueue(path)")
            return self.found[-1].source
        path = self._files.own(self._writer, self._disk)
        for source in self.sources:
            if source.path == path:
                return source
        return self.add(path)
