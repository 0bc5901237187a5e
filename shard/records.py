"""The shards of a sharded journal that were ever created, and its hash: ``<root>/.shards/<name>``, one line for each.

A line is the index in three hexadecimal digits, a space, and the CRC32C of the tree's name and those digits in eight.
Lines of older versions are the three digits alone. A line ``route fnv`` with a checksum names the hash of the keys; the
first one counts.

Shards are created at their first use, so a missing shard may be unused or lost. The record distinguishes the two. It
only helps :func:`shard.check`: sharded journals of other programs have none.
"""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple

from sej.errors import CorruptionError, NotAJournalError
from sej.journal.directory import journals_in
from sej.system.checksum import crc32c
from sej.system.disk import OS, Disk, File, read_small
from sej.system.paths import absolute_path
from shard.errors import RouteError
from shard.name_format import INDEX_DIGITS, RECORDS_DIR, Hash
from shard.names import Path, split_name

_LINE: Final = re.compile(rb"([0-9a-f]{3})(?: ([0-9a-f]{8}))?")
_ROUTE: Final = re.compile(rb"route (xxh64|fnv) ([0-9a-f]{8})")
_TRIES: Final = 3
_MAX_BYTES: Final = 1 << 20


class Records:
    """Writes the record of one sharded journal; any number of processes may."""

    def __init__(self, path: Path, disk: Disk = OS) -> None:
        """Set the sharded journal; nothing is read."""
        self._path = path
        self._disk = disk
        self._file: File | None = None

    def prepare(self) -> None:
        """Create the root.

        Raises:
            NotAJournalError: it is a file.
        """
        there = self._disk.status(self._path.root)
        if there is not None and not there.is_dir:
            raise NotAJournalError("this is a file; expected a directory for the shards", path=self._path.root)
        self._disk.mkdir(os.path.join(self._path.root, RECORDS_DIR), parents=True)

    def add(self, index: int) -> None:
        """Record a shard that is about to be created."""
        if self._disk.status(self._path.dir(index)) is not None:
            return
        self._append(b"%0*x" % (INDEX_DIGITS, index))

    def remember(self, name: Hash) -> Hash:
        """Store the hash of the keys; returns the one that counts, which another process may have stored before.

        Raises:
            CorruptionError: the record cannot be read again after the line was written.
        """
        for _ in range(_TRIES):
            record = read_record(self._path, self._disk)
            if record is not None and record.route is not None:
                self.close()
                return record.route
            self.prepare()
            file = self._append(b"route " + name.encode())  # a torn line before it spoils the first attempt
            file.sync()  # a message must not survive the name of the hash that routed it
        raise CorruptionError(
            "the route was written to this record and cannot be read from it; move the record away",
            path=os.path.join(self._path.root, RECORDS_DIR, self._path.name),
        )

    def _append(self, content: bytes) -> File:
        if self._file is None:
            self._file = self._disk.open(os.path.join(self._path.root, RECORDS_DIR, self._path.name), "append")
        self._file.write(b"%s %08x\n" % (content, _check(self._path, content)))
        return self._file

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class Record(NamedTuple):
    """The content of a record.

    Attributes:
        shards: the indexes of shards that were ever created.
        damaged: how many lines cannot be read.
        route: the hash of the keys; None if none was stored.
    """

    shards: set[int]
    damaged: int
    route: Hash | None


def read_record(path: Path, disk: Disk = OS) -> Record | None:
    """Return the record of a sharded journal, or None if it has none.

    Raises:
        FileTypeError: it is not a regular file.
        CorruptionError: it is larger than any record.
    """
    try:
        data = read_small(disk, os.path.join(absolute_path(path.root), RECORDS_DIR, path.name), _MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    found = Record(set(), 0, None)
    for line in data.splitlines():
        route = _ROUTE.fullmatch(line)
        if route is not None and int(route[2], 16) == _check(path, b"route " + route[1]):
            name: Hash = "fnv" if route[1] == b"fnv" else "xxh64"
            found = found._replace(route=found.route or name)
            continue
        match = _LINE.fullmatch(line)
        index = int(match[1], 16) if match else path.count
        if match is None or index >= path.count or (match[2] and int(match[2], 16) != _check(path, match[1])):
            found = found._replace(damaged=found.damaged + 1)
        else:
            found.shards.add(index)
    return found


def refuse_second(path: Path, disk: Disk = OS) -> None:
    """Check that a sharded journal exists, or that its prefix has no other one, of another number of bits.

    Raises:
        RouteError: it has: each key would have two shards.
    """
    status = disk.status(path.root)
    if status is None or not status.is_dir or disk.status(os.path.join(path.root, RECORDS_DIR, path.name)) is not None:
        return
    parts = (split_name(name) for name in journals_in(disk, path.root))
    counts = {part[1] for part in parts if part is not None and part[0] == path.prefix}
    if counts and path.bits not in counts:
        other = Path(path.root, path.prefix, min(counts))
        source, target = (os.path.join(path.root, each.name) for each in (other, path))
        raise RouteError(
            f"bits must be {other.bits}, as in the sharded journal {source}, got {path.bits}: keys would be in two"
            f" shards; to change the bits: sej shard reshard {source} {target}",
            path=path.root,
        )


def _check(path: Path, content: bytes) -> int:
    return crc32c(path.name.encode() + b" " + content)
