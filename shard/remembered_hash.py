"""Which hash routes the keys of a sharded journal: remembered next to it, and compared with the keys that are in it.

If two programs route one key by two hashes, they split it silently: its messages are in two shards, and two workers
handle them concurrently. So a sharded journal remembers its hash, in the record that :mod:`shard.records` keeps. A
sharded journal of another program has no such record: then keys of its first and last messages are compared with the
hash before the first append, and the hash is refused if a key is in another shard.

A function of the user cannot be compared: it may look at the time, which is not known before the append.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from sej.errors import SejError
from sej.journal.directory import is_journal
from sej.journal.view import Journal
from sej.message import Message
from sej.reading.scanner import Scanner
from sej.system.disk import OS, Disk
from shard.errors import RouteError
from shard.name_format import Hash
from shard.names import Path
from shard.records import Records, read_record
from shard.routing import HASHES, index_of

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
    keys = [
        (index, message.key)
        for index in _some([index for index in range(path.count) if is_journal(disk, path.dir(index))])
        for message in sample(path.dir(index), _MESSAGES, disk)
    ]
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


def remember_hash(path: Path, name: Hash, disk: Disk = OS) -> None:
    """Store the hash of a sharded journal; the first one that is stored counts.

    Raises:
        RouteError: another process stored another hash first.
    """
    if path.bits:
        _require_same(path, name, Records(path, disk).remember(name))


def sample(directory: str, count: int, disk: Disk = OS) -> Iterator[Message]:
    """Yield the first and the last messages of a SEJ directory, up to count of each; ends early at damage."""
    last = -1
    with suppress(SejError, OSError):
        with Scanner(directory, timeout=0.0, disk=disk) as scanner:
            for message in scanner.read(count):
                last = message.offset
                yield message
        yield from (message for message in Journal(directory, disk=disk).tail(count) if message.offset > last)


def _some(indexes: list[int]) -> list[int]:
    """Return a few of them, evenly spread."""
    step = max(len(indexes) / _SHARDS, 1)
    return [indexes[int(number * step)] for number in range(min(len(indexes), _SHARDS))]


def _misplaced(keys: list[tuple[int, bytes]], bits: int, name: Hash) -> list[tuple[int, bytes]]:
    return [(index, key) for index, key in keys if index_of(key, bits, name) != index]


def _require_same(path: Path, wanted: Hash, kept: Hash) -> None:
    if wanted != kept:
        raise RouteError(
            f"route must be {kept!r}, by which this sharded journal was written, got {wanted!r}; leave route out to use"
            " the remembered one, or copy the messages into a new sharded journal with shard.reshard(route=...)",
            path=path.root,
        )
