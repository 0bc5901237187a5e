"""What one reader has confirmed, in two files: a reader file that is only ever replaced, and a log of commits.

=====================  ============================================================================================
``jobs.read.worker``   the original's reader file, as of the last checkpoint; written whole, synced, renamed into place
``jobs~~read.worker``  our commits since then: the magic, and a READ_HEAD or READ_DONE for each
=====================  ============================================================================================

The original skips a reader file with a torn end, and if it finds no other one every item counts as read. So nothing is
ever appended to a reader file. It deletes the log at its start, and delivers again what was confirmed since the last
checkpoint, as after its own crash. We read both files: the higher head counts, and the done ids of both. So a log that
a crash left next to a newer reader file changes nothing.

A commit is one write(2) to the log, so a killed process loses none. At a checkpoint the writer files are synced first:
a reader file never confirms an item that a power failure could still take away.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from kestrel.hot import Fuse, Log
from kestrel.segmented.codec import encode_done, encode_head
from kestrel.segmented.files import log_path, reader_path
from kestrel.segmented.format import MAGIC_SIZE, READER_MAGIC
from sej.system.disk import Disk, File, replace_file
from sej.system.paths import absolute_path

_GROWN_BYTES: Final = 1 << 18
"""A checkpoint takes the time of 700 commits; a log of this size has 29,000, and is read at an opening in 0.1 s."""


class BookmarkFile:
    """The files of one reader. They exist after the first ``replace``.

    Attributes:
        commits: appends to the log.
        path: the reader file.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        queue: str,
        reader: str,
        *,
        fuse: Fuse,
        disk: Disk,
        now_ms: Callable[[], int],
    ) -> None:
        self.commits = Log(fuse, _GROWN_BYTES)
        self._fuse = fuse
        self._directory = absolute_path(directory)
        self._queue = queue
        self._disk = disk
        self._now_ms = now_ms
        self._log: File | None = None
        self._name(reader)

    def _name(self, reader: str) -> None:
        self.path = reader_path(self._directory, self._queue, reader)
        self._log_path = log_path(self._directory, self._queue, reader)

    @property
    def dirty(self) -> bool:
        """Whether anything was committed since the last checkpoint."""
        return self.commits.grown > 0

    def sync(self) -> None:
        """Sync the commits to disk."""
        if self._log is not None and self.commits.unsynced:
            try:
                self._log.sync()
                self.commits.unsynced = False
            except OSError as error:
                self._fuse.blow(error)

    def replace(self, head: int, done: list[int]) -> None:
        """Replace the reader file, durably, and empty the log. Always both records, as the original writes them."""
        data = READER_MAGIC + encode_head(head) + encode_done(done)
        if not self._fuse.live:
            self._fuse.refuse()
        self._fuse.live = False
        try:
            replace_file(self._disk, f"{self.path}~~{self._now_ms()}", self.path, data)
            self._empty_log()
        except OSError as error:
            self._fuse.blow(error)
        self.commits.enough = max(_GROWN_BYTES, len(data))
        self.commits.unsynced = False
        self.commits.grown = 0
        self._fuse.live = True

    def _empty_log(self) -> None:
        if self._log is None:
            self._log = self._disk.open(self._log_path, "append")
            self.commits.output.aim(self._log)
            if self._log.size():
                self._log.truncate(0)
            self._log.write(READER_MAGIC)
        elif self.commits.grown:
            self._log.truncate(MAGIC_SIZE)

    def rename(self, reader: str) -> None:
        """Give the files to a reader of another name. The log is emptied before, by ``replace``."""
        old, log = self.path, self._log_path
        self.close()
        self._name(reader)
        try:
            self._disk.rename(old, self.path)
            self._disk.unlink(log)
            self._empty_log()
        except OSError as error:
            self._fuse.blow(error)

    def close(self) -> None:
        """Close the log."""
        file, self._log = self._log, None
        self.commits.output.aim(None)
        if file is not None:
            file.close()

    def leave(self) -> None:
        """Close the log, and remove it if the reader file has everything."""
        self.close()
        if not self.commits.grown and self._fuse.blown is None:
            try:
                self._disk.unlink(self._log_path)
            except OSError as error:
                self._fuse.blow(error)

    def remove(self) -> None:
        """Close the files and remove them."""
        self.close()
        try:
            self._disk.unlink(self.path)
            self._disk.unlink(self._log_path)
        except OSError as error:
            self._fuse.blow(error)
