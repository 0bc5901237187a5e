"""Which shards of a tree were ever made: ``<root>/.shards/<name>``, one index of three digits a line.

Shards are opened on first use, so a shard that is not there may be one that no key ever met, or one that was lost. The
record tells the two apart. It is a help for :func:`shard.check` and no truth: trees of other programs have none.
"""

from __future__ import annotations

import os
import re
from typing import Final

from sej.disk import OS, Disk, File
from sej.errors import NotAJournalError
from shard.name_format import INDEX_DIGITS, RECORDS_DIR
from shard.names import Path

__all__ = ["Records", "read_record"]

_LINE: Final = re.compile(rb"^([0-9a-f]{3})$", re.MULTILINE)
_MAX_BYTES: Final = 1 << 20


class Records:
    """Writes the record of one tree; any number of processes may."""

    def __init__(self, path: Path, disk: Disk = OS) -> None:
        """Name the tree; nothing is looked at."""
        self._path = path
        self._disk = disk
        self._file: File | None = None

    def prepare(self) -> None:
        """Make the root.

        Raises:
            NotAJournalError: it is a file.
        """
        there = self._disk.status(self._path.root)
        if there is not None and not there.is_dir:
            raise NotAJournalError("this is a file; a directory for the shards is due", path=self._path.root)
        self._disk.mkdir(os.path.join(self._path.root, RECORDS_DIR))

    def add(self, index: int) -> None:
        """Note a shard that is about to be made; one that is there is known."""
        if self._disk.status(self._path.dir(index)) is not None:
            return
        if self._file is None:
            self._file = self._disk.open(os.path.join(self._path.root, RECORDS_DIR, self._path.name), "append")
        self._file.write(f"{index:0{INDEX_DIGITS}x}\n".encode())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_record(path: Path, disk: Disk = OS) -> set[int] | None:
    """The shards that were ever made; None where nobody kept a record. Lines that are none are passed over."""
    try:
        file = disk.open(os.path.join(path.root, RECORDS_DIR, path.name), "read")
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return {int(line, 16) for line in _LINE.findall(file.read(_MAX_BYTES, 0))}
    finally:
        file.close()
