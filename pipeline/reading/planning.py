"""Slices into partitions: packed by bytes, about one for each core, never one for each directory; and their count.

A partition costs Spark 10 to 40 ms however little it holds, so small directories share one. A large directory is
divided at index points, so that each task can start in the middle of a segment.

Spark 4.3 pushes no aggregate into a Python source: ``df.count()`` transfers every row. :func:`count` only needs each
journal's first and end offset. A hub reports them in one call.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, get_args
from zlib import crc32

from pipeline.connection import Line, Remote
from pipeline.options import OptionError
from pipeline.paths import several
from pipeline.reading.discovery import EVERYTHING, OLDEST, Chosen, Origin, Slice, Way, discover
from pipeline.reading.extents import Extent, Follower
from pipeline.reading.remote import RemoteExtent, listed_on, read
from sej.checks import one_of, optional, require
from sej.errors import CorruptionError, JournalNotFoundError
from shard.names import Layout

if TYPE_CHECKING:
    from hub.wire import ClientTLS, Listed


Extents = Extent | RemoteExtent
"""What a journal holds when a read is planned, on a disk or on a hub."""
Followers = Follower | RemoteExtent
"""What a journal holds at the newest poll."""
PARTITION_BYTES_MAX: Final = 256 << 20
"""Larger partitions are divided further: a failed task reads its partition again.

Half of this costs a tenth of the speed.
"""
PARTITION_BYTES_MIN: Final = 1 << 20
"""Fewer bytes are not worth a task of their own."""


def extents_of(paths: Sequence[str], way: Way, chosen: Chosen = EVERYTHING) -> Iterator[Extents]:
    """Yield the journals below paths, or on a hub, with what each holds now, unless conditions leave them out.

    Raises:
        JournalNotFoundError: the client does not exist; or as :func:`discover`.
    """
    listed: dict[Origin, Listed] = {}
    if way.remote is None:
        there = discover(paths, way)
    else:
        with Line(way.remote) as line:
            listed = listed_on(line, paths, way.pattern)
        there = list(listed)
    refuse_unknown(way.clients or (), there)
    for origin in there:
        if chosen.takes(origin) and (way.clients is None or origin.client in way.clients):
            if way.remote is None:
                yield Extent(origin, on_corruption=way.on_corruption)
            else:
                yield RemoteExtent(origin, listed[origin], way.remote)


def part_of(extent: Extents, way: Way, chosen: Chosen, start: int, stop: int) -> Slice:
    """Return what conditions leave of the messages [start, stop), perhaps nothing."""
    start, stop = max(start, chosen.low), min(stop, chosen.high)
    if chosen.since > OLDEST and start < stop:
        try:
            start = max(start, extent.find_time(chosen.since))
        except CorruptionError:  # then every message is read
            if way.on_corruption == "raise":
                raise
    return extent.slice(start, stop)


def refuse_unknown(clients: Iterable[str], there: Iterable[Origin]) -> None:
    """Refuse clients that have no journal.

    Raises:
        JournalNotFoundError: there is one.
    """
    known = sorted({origin.client for origin in there if origin.client is not None})
    for client in clients:
        if client not in known:
            others = f"the clients are {', '.join(known[:10])}" if known else "only a hub's root has clients"
            raise JournalNotFoundError(f"unknown client {client!r}; {others}")


def cores(known: int | None = None) -> int:
    """Return how many tasks run concurrently: ``SEJ_SPARK_CORES``, the known number, or the cores of this process."""
    named = os.environ.get("SEJ_SPARK_CORES", "")
    return int(named) if named.isdigit() and int(named) else known or len(os.sched_getaffinity(0))


def partition_count(size: int, at_least: int | None, at_most: int | None, at_once: int) -> int:
    """Return how many partitions a size needs; if many, enough to keep all cores busy to the end."""
    rounds = -(-size // (PARTITION_BYTES_MAX * at_once))
    count = max(min(at_once, -(-size // PARTITION_BYTES_MIN)), rounds * at_once if rounds > 1 else 1)
    count = max(count, at_least or 1)
    return min(count, at_most or count)


def pack(
    slices: list[Slice],
    extents: Mapping[str, Extents],
    *,
    at_least: int | None = None,
    at_most: int | None = None,
    at_once: int | None = None,
) -> list[list[Slice]]:
    """Divide and pack slices, in order.

    Args:
        slices: the messages to read.
        extents: by the origin's name, for dividing; a slice without one stays whole.
        at_least: at least this many partitions, if there are as many messages.
        at_most: at most this many.
        at_once: cores; None: :func:`cores`.

    Returns:
        The partitions; empty if there is nothing to read.
    """
    total = sum(part.size for part in slices)
    count = partition_count(total, at_least, at_most, at_once or cores())
    partitions: list[list[Slice]] = []
    current: list[Slice] = []
    left = total
    filled = 0
    for part in slices:
        rest: Slice | None = part
        while rest is not None:
            share = -(-(left + filled) // max(count - len(partitions), 1))
            room = share - filled
            if len(partitions) + 1 >= count or rest.size <= room + share // 8:
                current.append(rest)
                filled += rest.size
                left -= rest.size
                rest = None
                continue
            extent = extents.get(rest.origin.name)
            divided = extent.cut(rest, room) if extent is not None and room > 0 else None
            if divided is not None:
                current.append(divided[0])
                left -= divided[0].size
                rest = divided[1]
            elif not current:
                current.append(rest)
                left -= rest.size
                rest = None
            partitions.append(current)
            current, filled = [], 0
    if current:
        partitions.append(current)
    return partitions


def by_messages(starts: Mapping[str, int], ends: Mapping[str, int], limit: int) -> dict[str, int]:
    """Return new ends, so that at most ``limit`` messages are read.

    Example:
        >>> by_messages({"a": 0, "b": 0}, {"a": 30, "b": 10}, 20)
        {'a': 15, 'b': 5}
    """
    return by_bytes(starts, ends, limit, {name: ends[name] - starts[name] for name in ends})


def by_bytes(
    starts: Mapping[str, int], ends: Mapping[str, int], limit: int, waiting_bytes: Mapping[str, int]
) -> dict[str, int]:
    """Return new ends, so that about ``limit`` bytes of those that wait are read; a larger message is read alone.

    Example:
        >>> by_bytes({"a": 0, "b": 0}, {"a": 30, "b": 10}, 200, {"a": 300, "b": 100})
        {'a': 15, 'b': 5}
        >>> sum(by_bytes({"a": 0, "b": 0}, {"a": 1, "b": 1}, 200, {"a": 1000, "b": 1000}).values())
        1
    """
    waiting = {name: ends[name] - starts[name] for name in ends if ends[name] > starts[name]}
    sizes = {name: max(waiting_bytes[name], 1) for name in waiting}
    if sum(sizes.values()) <= limit:
        return dict(ends)
    counts = _whole(waiting, sizes, limit)
    late = _in_turn((name for name, count in counts.items() if not count), starts)
    average = {name: -(-size // waiting[name]) for name, size in sizes.items()}
    if late:  # one of them first, with a message of any size; the others share the rest
        rest = {name: sizes[name] for name in sizes if name != late[0]}
        counts = {late[0]: 1, **_whole(waiting, rest, max(limit - average[late[0]], 0))}
    left = max(limit - sum(count * average[name] for name, count in counts.items()), 0)
    for name in [*late, *sorted(waiting, key=lambda name: (-waiting[name], name))]:  # the remainder of rounding
        most = 1 if name in late else waiting[name]
        more = min(most - counts[name], left // average[name])
        counts[name] += more
        left -= more * average[name]
    return {name: starts[name] + counts.get(name, 0) for name in ends}


def _whole(waiting: Mapping[str, int], sizes: Mapping[str, int], limit: int) -> dict[str, int]:
    """Return how many whole messages fit into each share of a limit in bytes."""
    total = max(sum(sizes.values()), limit, 1)
    return {name: waiting[name] * (size * limit // total) // size for name, size in sizes.items()}


def _in_turn(names: Iterable[str], starts: Mapping[str, int]) -> list[str]:
    """Return names in an order that differs between batches, and is the same when a batch is planned again."""
    turn = sum(starts.values())
    return sorted(names, key=lambda name: (crc32(f"{turn} {name}".encode()), name))


def count(
    root: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    *,
    layout: Layout | None = None,
    pattern: str | None = None,
    hub: str | Sequence[str] | None = None,
    token: str | None = None,
    tls: ClientTLS | None = None,
) -> int:
    """Return the number of messages below a root, like ``spark.read.format("sej").load(root).count()``.

    It counts offsets, without those of recorded gaps. Messages that are lost, but in no recorded gap yet, are counted
    until :meth:`sej.Journal.repair` has run. A scanner and ``sej count`` read the journal, and raise an error there.

    Args:
        root: a SEJ directory, a sharded journal, a hub's root, or several of them. With ``hub``: clients, sharded
            journals or journals there; None: everything readable.
        layout: ``"directory"``, ``"shards"`` or ``"hub"``, if names cannot tell.
        pattern: only directories whose name matches.
        hub: the address ``host:port`` of a hub, or several of the same hub.
        token: the token for the hub.
        tls: how to reach the hub with TLS; None: without.

    Raises:
        OptionError: layout is set, and so is hub.
        JournalNotFoundError: the path does not exist.
        NotAJournalError: there is no journal in it.
        CorruptionError: good messages follow damage at a journal's end.

    Example:
        >>> import tempfile, sej
        >>> path = tempfile.mkdtemp()
        >>> with sej.Writer(path) as w:
        ...     _ = w.append_many([b"a", b"b", b"c"])
        >>> count(path)
        3
    """
    require(pattern=pattern, layout=(layout, optional(one_of(get_args(Layout)))))
    remote = Remote.named(hub, token, tls)
    if remote is not None and layout is not None:
        raise OptionError("layout is for a path; with hub, leave layout out")
    roots = [] if root is None and remote is not None else several("root", root)
    return total(roots, Way(layout, pattern, remote=remote))


def total(roots: Sequence[str], way: Way) -> int:
    """As :func:`count`."""
    found = 0
    for extent in extents_of(roots, way):
        count = extent.count(extent.first, extent.end)
        if count is None:  # damaged
            every = extent.slice(extent.first, extent.end)
            count = sum(rows.found.messages for rows in read(every, (), way, EVERYTHING))
        found += count
    return found
