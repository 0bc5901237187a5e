"""One reader file, written: every commit is one record at its end; at a checkpoint a short file replaces it.

The original writes the whole file at its checkpoints alone, so that a crash brings confirmed items back. Here a commit
appends a READ_HEAD or a READ_DONE with one write(2): the last head wins and done ids add up, for the original too. A
killed process loses no commit. A checkpoint syncs the writer files first, then replaces the reader file by temporary
file, sync and rename: what a reader has confirmed never outlives the items.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from kestrel.files import join
from kestrel.fuse import Fuse
from kestrel.segmented.codec import encode_done, encode_head
from kestrel.segmented.format import READER_MAGIC
from sej.system.disk import Disk, File, replace_file

__all__ = ["BookmarkFile"]

_GROWN_BYTES: Final = 1 << 16


class BookmarkFile:
    """The reader file of one reader. The file exists after the first ``replace``."""

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
        self._directory = os.fspath(directory)
        self._queue = queue
        self.path = join(directory, f"{queue}.read.{reader}")
        self._fuse = fuse
        self._disk = disk
        self._now_ms = now_ms
        self._file: File | None = None
        self._fresh = 0
        self._grown = 0
        self._unsynced = False

    @property
    def overgrown(self) -> bool:
        """Whether what was appended since the last checkpoint is worth a new one."""
        return self._grown > max(_GROWN_BYTES, self._fresh)

    @property
    def dirty(self) -> bool:
        """Whether anything was appended since the last checkpoint."""
        return self._grown > 0

    def head(self, number: int) -> None:
        """Write that everything up to number is confirmed."""
        self._append(encode_head(number))

    def done(self, number: int) -> None:
        """Write that one item above the head is confirmed."""
        self._append(encode_done((number,)))

    def _append(self, record: bytes) -> None:
        if self._file is None or not self._fuse.live:
            self._fuse.refuse()
        try:
            self._file.write(record)
        except OSError as error:
            self._fuse.blow(error)
        self._grown += len(record)
        self._unsynced = True

    def sync(self) -> None:
        """Force what was appended to the medium."""
        if self._file is not None and self._unsynced:
            try:
                self._file.sync()
                self._unsynced = False
            except OSError as error:
                self._fuse.blow(error)

    def replace(self, head: int, done: list[int]) -> None:
        """Replace the file, durably. Always both records, as the original does."""
        data = READER_MAGIC + encode_head(head) + encode_done(done)
        if not self._fuse.live:
            self._fuse.refuse()
        self._fuse.live = False
        try:
            replace_file(self._disk, f"{self.path}~~{self._now_ms()}", self.path, data)
            self.close()
            self._file = self._disk.open(self.path, "append")
        except OSError as error:
            self._fuse.blow(error)
        self._fresh = len(data)
        self._unsynced = False
        self._grown = 0
        self._fuse.live = True

    def rename(self, reader: str) -> None:
        """Give the file to a reader of another name."""
        path = join(self._directory, f"{self._queue}.read.{reader}")
        try:
            self._disk.rename(self.path, path)
        except OSError as error:
            self._fuse.blow(error)
        self.path = path

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def remove(self) -> None:
        """Close the file and remove it."""
        self.close()
        try:
            self._disk.unlink(self.path)
        except OSError as error:
            self._fuse.blow(error)
