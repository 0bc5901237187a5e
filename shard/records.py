"""What a sharded journal remembers: the shards that were ever created, and the hash of its keys.

``<root>/.shards/<name>`` has one line for each shard: the index in three hexadecimal digits, a space, and the CRC32C of
the sharded journal's name and those digits in eight. A line ``route fnv`` with a checksum names the hash of the keys;
the first one counts.

Shards are created at their first use, so a missing shard may be unused or lost. The record distinguishes the two.

If two programs route one key by two hashes, they split it silently: its messages are in two shards, and two workers
handle them concurrently. So a writer refuses another hash than the remembered one. A sharded journal of another program
has no record: then keys of its first and last messages are compared with the hash before the first append. A function
of the user cannot be compared: it may look at the time, which is not known before the append.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from sej.errors import CorruptionError, NotAJournalError, SejError
from sej.journal.directory import is_journal, journals_in
from sej.journal.view import Journal
from sej.message import Message
from sej.reading.scanner import Scanner
from sej.system.checksum import crc32c
from sej.system.disk import OS, Disk, absolute_path, read_small
from shard.names import INDEX_DIGITS, RECORDS_DIR, Path, split_name
from shard.routing import HASHES, Hash, RouteError, index_of

_LINE: Final = re.compile(rb"([0-9a-f]{3}) ([0-9a-f]{8})")
_ROUTE: Final = re.compile(rb"route (xxh64|fnv) ([0-9a-f]{8})")
_TRIES: Final = 3
_MAX_BYTES: Final = 1 << 20


def prepare(path: Path, disk: Disk = OS) -> None:
    """Create the root of a sharded journal.

    Raises:
        NotAJournalError: it is a file.
    """
    there = disk.status(path.root)
    if there is not None and not there.is_dir:
        raise NotAJournalError("this is a file; expected a directory for the shards", path=path.root)
    disk.mkdir(os.path.join(path.root, RECORDS_DIR), parents=True)


def record_shard(path: Path, index: int, disk: Disk = OS) -> None:
    """Record a shard that is about to be created."""
    if disk.status(path.dir(index)) is None:
        _append(path, b"%0*x" % (INDEX_DIGITS, index), disk)


def remember_hash(path: Path, name: Hash, disk: Disk = OS) -> None:
    """Store the hash of a sharded journal; the first one that is stored counts.

    Raises:
        RouteError: another process stored another hash first.
        CorruptionError: the record cannot be read again after the line was written.
    """
    for _ in range(_TRIES if path.bits else 0):
        record = read_record(path, disk)
        if record is not None and record.route is not None:
            _require_same(path, name, record.route)
            return
        prepare(path, disk)
        _append(path, b"route " + name.encode(), disk)  # a torn line before it spoils the first attempt
    if path.bits:
        raise CorruptionError(
            "this record has no readable route after the route was written to it; move the file away", path=_at(path)
        )


def _at(path: Path) -> str:
    return os.path.join(absolute_path(path.root), RECORDS_DIR, path.name)


def _append(path: Path, content: bytes, disk: Disk) -> None:
    with disk.open(_at(path), "append") as file:
        file.write(b"%s %08x\n" % (content, _check(path, content)))
        if content.startswith(b"route"):
            file.sync()  # a message must not survive the name of the hash that routed it


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
        data = read_small(disk, _at(path), _MAX_BYTES)
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
        if match is None or index >= path.count or int(match[2], 16) != _check(path, match[1]):
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
    if status is None or not status.is_dir or disk.status(_at(path)) is not None:
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


_SHARDS: Final = 16
_MESSAGES: Final = 32
"""Messages of each end of a shard: enough to find a wrong hash of 2 shards with 16 keys, except once in 65,536
cases.
"""


def choose_hash(path: Path, wanted: Hash | None, disk: Disk = OS, *, replaces: bool = False) -> Hash:
    """Return the hash for new keys of a sharded journal; creates nothing.

    Args:
        path: the sharded journal, whether or not it exists.
        wanted: the requested hash; None: the remembered hash, or else XXH64.
        disk: the disk.
        replaces: whether all messages will be replaced, so that it does not matter how they were routed.

    Raises:
        RouteError: another hash is remembered, or existing keys are not in the shards that the hash gives.
    """
    if not path.bits:
        return wanted or "xxh64"
    record = read_record(path, disk)
    if record is not None and record.route is not None:
        _require_same(path, wanted or record.route, record.route)
        return record.route
    chosen = wanted or "xxh64"
    if replaces:
        return chosen
    there = [index for index in range(path.count) if is_journal(disk, path.dir(index))]
    step = max(len(there) / _SHARDS, 1)
    some = [there[int(number * step)] for number in range(min(len(there), _SHARDS))]  # evenly spread
    keys = [(index, message.key) for index in some for message in sample(path.dir(index), _MESSAGES, disk)]
    odd = _misplaced(keys, path.bits, chosen)
    if odd:
        index, key = odd[0]
        fitting = [repr(name) for name in HASHES if not _misplaced(keys, path.bits, name)]
        way_out = (
            f"pass route={fitting[0]}, which fits all of them" if fitting else "pass the function that routed them"
        )
        raise RouteError(
            f"{len(odd)} of {len(keys)} compared messages are in another shard than route={chosen!r} gives: key"
            f" {key!r} is in shard {index:03x}, expected {index_of(key, path.bits, chosen):03x}; {way_out}",
            path=path.dir(index),
        )
    return chosen


def sample(directory: str, count: int, disk: Disk = OS) -> Iterator[Message]:
    """Yield the first and the last messages of a SEJ directory, up to count of each; ends early at damage."""
    last = -1
    with suppress(SejError, OSError):
        with Scanner(directory, timeout=0.0, disk=disk) as scanner:
            for message in scanner.read(count):
                last = message.offset
                yield message
        yield from (message for message in Journal(directory, disk=disk).tail(count) if message.offset > last)


def _misplaced(keys: list[tuple[int, bytes]], bits: int, name: Hash) -> list[tuple[int, bytes]]:
    return [(index, key) for index, key in keys if index_of(key, bits, name) != index]


def _require_same(path: Path, wanted: Hash, kept: Hash) -> None:
    if wanted != kept:
        raise RouteError(
            f"route must be {kept!r}, by which this sharded journal was written, got {wanted!r}; leave route out to use"
            " the remembered one, or copy the messages into a new sharded journal with shard.reshard(route=...)",
            path=path.root,
        )
