"""Change the number of shards: copy a sharded journal into another one.

The steps, under a lock in ``.reshard/NAME/``:

1. Each shard of the source is locked and copied, from its first message to its end, into ``tree/``, which no reader
   sees. Shards that appear in the meantime are copied too. A copy that an earlier run left is removed first.
2. The copies are durable. The decision: ``plan.json`` lists the new shards and the places of the readers in them.
3. The places are stored, and each shard is renamed into its place.

A crash before step 2 leaves a copy that the next call removes, and one after it a plan that the next call carries out.
The plan stays, so that a repeated call returns the same result.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

from sej.checks import require
from sej.errors import JournalNotFoundError, OffsetBeyondEndError, SejError
from sej.journal.directory import Directory, check_name, is_journal
from sej.journal.offset_check import kept_offsets
from sej.journal.tail import sync_up_to
from sej.journal.view import Journal
from sej.journal.writer_lock import WriterLock
from sej.message import Message
from sej.queue.journal_queue import JournalQueue
from sej.reading.offset import Offset
from sej.reading.scanner import Scanner
from sej.system.disk import OS, Disk
from sej.system.locks import Lock
from sej.system.sealed import SealedFile, whole
from shard.names import RESHARD_DIR, TREE, Path
from shard.records import prepare, read_record, record_shard, remember_hash
from shard.routing import HASHES, MAX_BITS, Route, check_route, group, routed
from shard.writer import Writer

FUNCTION: Final = "function"
"""The route of a plan whose copies a function of the user routed."""
_BATCH: Final = 1 << 13
_PLAN_BYTES: Final = 1 << 26

Progress = Callable[[int, int], object]
"""A function that is called with the messages copied and the messages in total."""


class Resharded(NamedTuple):
    """The result of a reshard.

    Attributes:
        messages: how many messages the new sharded journal has.
        shards: how many of its shards are in use.
        readers: the readers whose offsets were translated.
    """

    messages: int
    shards: int
    readers: list[str]


@dataclass(slots=True)
class Plan:
    """What is decided when everything is copied.

    Attributes:
        source: the old name: (prefix, bits).
        source_root: its root.
        route: the name of the hash that routed the copies, or FUNCTION.
        copied: where each shard of the source ended: {source shard: offset}.
        ends: how many messages each target shard has.
        places: where readers continue: {reader: {target shard: offset}}; at the end, if a shard is missing.
    """

    source: tuple[str, int]
    source_root: str
    route: str
    copied: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    places: dict[str, dict[int, int]] = field(default_factory=dict)


def reshard(
    source: Path,
    target: Path,
    *,
    route: Route | None = None,
    progress: Progress | None = None,
    disk: Disk = OS,
    **writer_options: Any,
) -> Resharded:
    """Copy a sharded journal into one with more or fewer bits; after an interruption, the same call starts again.

    Stop the source's writers first: the call is refused if a writer holds a shard, and no writer can start until it
    returns. Work queues must be finished: their leases, delays and attempts refer to the old offsets. ``append_once``
    does not know earlier batches in the new journal: a repeated batch is appended again. Dead letters are not copied.

    Args:
        source: the old sharded journal; it does not change.
        target: the new one; none of its shards may exist. The root may be the same.
        route: as for :class:`shard.Writer`, of the new sharded journal; None: the hash that the source remembers, or
            else ``"xxh64"``. A function must return the same for the same message.
        progress: called with messages copied and messages in total.
        disk: the disk.
        writer_options: for the new :class:`shard.Writer`, ``max_open`` and ``segment_bytes`` for example.

    Returns:
        The result; the same again if it was complete before.

    Raises:
        LockedError: a writer holds a shard of the source, or another reshard into this target runs.
        JournalNotFoundError: the source does not exist.
        InvalidNameError: a reader of the source has a name that is not allowed here.
        OffsetTooSmallError: messages of the source were deleted while they were copied.
        OffsetBeyondEndError: a shard of the source lost messages after it was copied.
        CorruptionError: a source shard is damaged.
        SejError: the target exists already; shards of it are lost; it was complete, and the call had another route; a
            work queue of the source has items that are not done; or the source grew after the copy, and these messages
            are not in the new sharded journal.
    """
    check_route("route", route)
    require(progress=progress, disk=disk, source=(source, TREE), target=(target, TREE))
    source, target = source.absolute(), target.absolute()
    if (os.path.abspath(source.root), source.name) == (os.path.abspath(target.root), target.name):
        raise ValueError(f"source and target must differ, got {source!r} for both")
    workshop = os.path.join(target.root, RESHARD_DIR, target.name)
    disk.mkdir(workshop, parents=True)
    with Lock(os.path.join(workshop, "reshard.lck"), what="this reshard", disk=disk):
        plan = load_plan(target, disk)
        if plan is None:
            there = [target.dir(index) for index in range(target.count) if disk.status(target.dir(index)) is not None]
            if there:
                raise SejError(
                    f"the target exists already ({len(there)} shards); choose another prefix or root, or move it away",
                    path=there[0],
                )
            _remove(os.path.join(workshop, "tree"), disk)
            try:
                with ExitStack() as locked:
                    plan = _copied(source, target, route, progress, disk, locked, writer_options)
                    _publish(plan, target, disk)
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                raise SejError(
                    "this process cannot open more files: a reshard holds a lock in every shard of the source; raise"
                    " its limit with ulimit -n",
                    path=error.filename,
                ) from None
        else:
            _require_same(plan, source, route, workshop)
            disk.sync_dir(workshop)  # an earlier run may have renamed the plan and failed before this
            _publish(plan, target, disk)
        _check_source(plan, source, disk, workshop)
        return Resharded(sum(plan.ends.values()), len(plan.ends), sorted(plan.places))


def staging(target: Path) -> Path:
    """Return the path where the new shards are built, out of readers' sight, next to the plan."""
    return Path(os.path.join(target.root, RESHARD_DIR, target.name, "tree"), target.prefix, target.bits)


def _remove(path: str, disk: Disk) -> None:
    status = disk.status(path)
    if status is not None and status.is_dir:
        for name in disk.list(path):
            _remove(os.path.join(path, name), disk)
        disk.rmdir(path)
    elif status is not None:
        disk.unlink(path)


def _copied(
    source: Path,
    target: Path,
    route: Route | None,
    progress: Progress | None,
    disk: Disk,
    locked: ExitStack,
    options: dict[str, Any],
) -> Plan:
    """Copy all shards and decide; the plan is durable when this returns."""
    record = read_record(source, disk)
    chosen: Route = route or (record and record.route) or "xxh64"
    name = FUNCTION if callable(chosen) else chosen
    plan = Plan((source.prefix, source.bits), os.path.abspath(source.root), name)
    unread: dict[str, dict[int, int]] = {}
    done = total = 0
    with Writer(staging(target), chosen, disk=disk, **options) as writer:
        while fresh := [i for i in range(source.count) if i not in plan.copied and is_journal(disk, source.dir(i))]:
            is_first, first = not plan.copied, dict[int, int]()
            for index in fresh:
                directory, journal = Directory(source.dir(index), disk), Journal(source.dir(index), disk=disk)
                locked.enter_context(WriterLock(directory))  # no process can append until the end
                _refuse_queues(directory, index)
                first[index], plan.copied[index] = journal.first_offset, journal.end_offset
                sync_up_to(directory, journal.end_offset)  # no others may be in the place of those that are copied
                total += plan.copied[index] - first[index]
                for reader, offset in kept_offsets(directory).items():
                    check_name(reader, "a reader's name in the source (rename or remove its .ofs):")
                    unread.setdefault(reader, {})[index] = first[index] if offset is None else offset
            if is_first:
                plan.places = {reader: {} for reader in unread}
            for index in fresh:
                with Scanner(source.dir(index), first[index], disk=disk) as scanner:
                    while scanner.offset < plan.copied[index]:
                        batch = scanner.read(min(_BATCH, plan.copied[index] - scanner.offset))
                        if not batch:
                            break
                        _place(plan, index, batch, chosen, unread, writer)
                        done += len(batch)
                        if progress is not None:
                            progress(done, total)
        if not plan.copied:
            raise JournalNotFoundError(
                f"there is no shard of {source.name} here; check the root, the prefix and the bits", path=source.root
            )
    if progress is not None:
        progress(total, total)
    _plan_file(target, disk).store(asdict(plan))
    return plan


def _place(
    plan: Plan, source: int, batch: list[Message], route: Route, unread: dict[str, dict[int, int]], writer: Writer
) -> None:
    """Give each target shard its part of a batch, and note where readers continue there."""
    keys, bits = [message.key for message in batch], writer.path.bits
    if callable(route):
        parts = group(keys, keys, bits, routed(route, batch, bits), True)
    else:
        parts = group(keys, keys, bits, None, True, route)
    for index, (_, _, places) in parts.items():
        part = [batch[place] for place in places]
        end = plan.ends.get(index, 0)
        for reader, known in plan.places.items():
            # A reader without a kept offset in a shard has read nothing of it.
            offset = unread[reader].get(source, 0)
            if index not in known and part[-1].offset >= offset:
                known[index] = end + bisect_left(part, offset, key=lambda message: message.offset)
        writer.append_to(index, part)
        plan.ends[index] = end + len(part)


def _publish(plan: Plan, target: Path, disk: Disk) -> None:
    """Store the readers' offsets, then move the shards into place. Completed steps are not repeated."""
    tree = staging(target)
    prepare(target, disk)
    for route in HASHES:
        if route == plan.route:
            remember_hash(target, route, disk)
    for index in sorted(plan.ends):
        built, place = tree.dir(index), target.dir(index)
        if not is_journal(disk, built):
            if not is_journal(disk, place):
                raise SejError(
                    "the reshard was complete, but this shard of the new journal is lost; restore it; to copy"
                    f" again, move the rest of the new sharded journal away and remove {os.path.dirname(tree.root)}",
                    path=place,
                )
            disk.sync_dir(os.path.dirname(place))  # an earlier run may have moved the shard and failed before this
            continue
        for name in sorted(plan.places):
            with Offset(built, name, disk=disk) as kept:
                kept.reset(plan.places[name].get(index, plan.ends[index]))
        if disk.status(place) is not None:
            raise SejError("another process has created this shard of the target; move it away", path=place)
        record_shard(target, index, disk)
        disk.rename(built, place)


def _require_same(plan: Plan, source: Path, route: Route | None, workshop: str) -> None:
    if (plan.source, plan.source_root) != ((source.prefix, source.bits), os.path.abspath(source.root)):
        raise SejError(
            f"an earlier reshard, of {plan.source} in {plan.source_root}, created this sharded journal; choose another"
            " target, or remove this directory",
            path=workshop,
        )
    name = FUNCTION if callable(route) else route
    if name not in (None, plan.route):
        raise SejError(
            f"this reshard was completed with route={plan.route!r}, got {name!r}; call it as before, or move the new"
            " sharded journal away and remove this directory to start again",
            path=workshop,
        )


def _check_source(plan: Plan, source: Path, disk: Disk, workshop: str) -> None:
    """Report messages that the source lost or got after the copy."""
    late: dict[int, tuple[int, int]] = {}
    for index in range(source.count):
        if not is_journal(disk, source.dir(index)):
            continue
        journal = Journal(source.dir(index), disk=disk)
        copied, end = plan.copied.get(index, journal.first_offset), journal.end_offset
        if end < copied:
            raise OffsetBeyondEndError(
                f"this shard ends at offset {end}, and it ended at {copied} when it was copied: it lost messages or was"
                f" re-created; move the new sharded journal away, remove {workshop} and start again",
                path=source.dir(index),
                offset=copied,
            )
        if end > copied:
            late[index] = copied, end
    if late:
        shown = ", ".join(f"{index:03x} from offset {first} on" for index, (first, _) in sorted(late.items()))
        count = sum(end - first for first, end in late.values())
        appended = "1 message was" if count == 1 else f"{count} messages were"
        raise SejError(
            f"the new sharded journal is complete, but {appended} appended to the source after the copy (shard"
            f" {shown}); stop its writer, append them to the new one, and remove {workshop}",
            path=source.dir(min(late)),
        )


def load_plan(target: Path, disk: Disk) -> Plan | None:
    """Return the plan that an earlier run decided, or None.

    Raises:
        SejError: the file is not a plan.
    """
    file = _plan_file(target, disk)
    row = file.load()
    if row is None:
        return None
    with file.checking():
        prefix, bits = row["source"]
        row["source"] = str(prefix), whole(bits, 0, MAX_BITS)
        row["copied"], row["ends"] = _numbers(row["copied"]), _numbers(row["ends"])
        row["places"] = {reader: _numbers(offsets) for reader, offsets in row["places"].items()}
        if row["route"] not in (*HASHES, FUNCTION):
            raise ValueError(f"route {row['route']!r}")
        return Plan(**row)


def _numbers(row: dict[str, int]) -> dict[int, int]:
    return {int(index): whole(offset) for index, offset in row.items()}


def _plan_file(target: Path, disk: Disk) -> SealedFile:
    workshop = os.path.join(target.root, RESHARD_DIR, target.name)
    return SealedFile(
        disk,
        os.path.join(workshop, "plan.json"),
        "the plan of a reshard",
        f"remove {workshop} and start again",
        max_bytes=_PLAN_BYTES,
        error=SejError,
    )


def _refuse_queues(directory: Directory, index: int) -> None:
    """Refuse a shard with a work queue that has items left: the queue's state refers to this shard's offsets."""
    disk = directory.disk
    for entry in disk.list(directory.at("ofs")) if disk.status(directory.at("ofs")) is not None else ():
        name, end = os.path.splitext(entry)
        if end != ".queue":
            continue
        with JournalQueue(directory.path, name, create=False, disk=disk) as queue:
            left = queue.stats()
        if left.ready or left.delayed or left.leased:
            raise SejError(
                f"the work queue {name!r} of shard {index:03x} has items ({left.ready} ready, {left.delayed} delayed,"
                f" {left.leased} leased), and resharding would lose their state. Let its workers finish, or remove this"
                " file in every shard: then all items from the kept offset on are delivered again, without their delays"
                " and priorities",
                path=directory.at("ofs", entry),
            )
