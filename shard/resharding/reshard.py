"""``shard.reshard``: copy a sharded journal into one with more or fewer shards; a crashed copy can be finished.

Messages keep their type, key, value and timestamp, and messages of one key keep their order. Offsets are new. Readers'
kept offsets are translated conservatively: no unhandled message is before the new offset, so a reader may see messages
again and never misses one.

It survives SIGKILL at any point, because the work is deterministic. A plan in ``<target root>/.reshard/<name>/`` fixes
each source shard's first and end offset. Shards are read one after the other, each in order, so every target shard gets
one fixed sequence. It always holds a prefix of that, because journals only lose their tail. A resumed run starts at
the last checkpoint, compares the following messages of the targets with what it would append, and continues where they
end. The target is built next to the plan, out of readers' sight, and moved into place when it is complete. The source
does not change; its owner may remove it.

No message is lost to a writer that starts in the meantime: the writer lock of every source shard is held to the end
(:mod:`shard.resharding.source_locks`). If the source grows anyway, by a new shard for example, new messages are copied
in further rounds, and messages after the last round are named by an error.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from sej.checks import DISK, PROGRESS, require
from sej.errors import JournalNotFoundError, OffsetTooSmallError, SejError
from sej.journal.directory import check_name, is_journal
from sej.reading.offset import Offset
from sej.system.disk import OS, Disk
from sej.system.locks import Lock
from shard.name_format import RESHARD_DIR
from shard.names import TREE, Path
from shard.records import Records, read_record
from shard.resharding.copying import Progress, copy
from shard.resharding.plans import (
    FUNCTION,
    Plan,
    load_plan,
    make_plan,
    next_round,
    refuse_recreated,
    save_plan,
    staging,
)
from shard.resharding.source_locks import Hold, refuse_queues
from shard.routing import Route, check_route


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


def reshard(
    source: Path,
    target: Path,
    *,
    route: Route | None = None,
    progress: Progress | None = None,
    disk: Disk = OS,
    **writer_options: Any,
) -> Resharded:
    """Copy a sharded journal into one with more or fewer bits; the same call resumes an interrupted copy.

    Stop the source's writers first: the call is refused if a writer holds a shard, and no writer can start until it
    returns. Work queues must be finished: their leases, delays and attempts refer to the old offsets. ``append_once``
    does not know earlier batches in the new journal: a repeated batch is appended again. Dead letters are not copied.

    Args:
        source: the old sharded journal; it does not change.
        target: the new one; none of its shards may exist. The root may be the same.
        route: as for :class:`shard.Writer`, of the new sharded journal; None: the hash that the source remembers, or
            else ``"xxh64"``. A function must return the same for the same message. A call that resumes cannot change
            it.
        progress: called with messages copied and messages in total.
        disk: the disk.
        writer_options: for the new :class:`shard.Writer`, ``max_open`` and ``segment_bytes`` for example.

    Returns:
        The result; the same again if it was complete before.

    Raises:
        LockedError: a writer holds a shard of the source, or another reshard into this target runs.
        JournalNotFoundError: the source does not exist; or the target was complete, and shards of it are lost.
        InvalidNameError: a reader of the source has a name that is not allowed here.
        OffsetTooSmallError: messages of the source were deleted while they were copied.
        OffsetBeyondEndError: a shard of the source lost messages, or was re-created, while it was copied.
        CorruptionError: a source shard is damaged.
        SejError: the target exists already; the call that is resumed had another route; a work queue of the source has
            items that are not done; or the source grew after the last round, and these messages are not in the new
            sharded journal.
    """
    check_route("route", route)
    require(source=(source, TREE), target=(target, TREE), progress=(progress, PROGRESS), disk=(disk, DISK))
    source, target = source.absolute(), target.absolute()
    if (os.path.abspath(source.root), source.name) == (os.path.abspath(target.root), target.name):
        raise ValueError(f"source and target must differ, got {source!r} for both")
    workshop = os.path.join(target.root, RESHARD_DIR, target.name)
    disk.mkdir(workshop, parents=True)
    with Lock(os.path.join(workshop, "reshard.lck"), what="this reshard", disk=disk):
        plan = load_plan(target, disk)
        if plan is None:
            plan = _begin(source, target, route, disk)
        elif (plan.source, plan.source_root) != ((source.prefix, source.bits), os.path.abspath(source.root)):
            raise SejError(
                f"a reshard of {plan.source} in {plan.source_root} into this sharded journal was started; finish it,"
                " or remove this directory",
                path=workshop,
            )
        else:
            disk.sync_dir(workshop)  # an earlier run may have renamed the plan and failed before this
        chosen = _chosen(route, plan, source, disk, workshop)
        if plan.state != "done":
            with Hold(source, disk) as hold:
                refuse_queues(source, disk)
                refuse_recreated(plan, source, target, disk)
                try:
                    _finish(plan, source, target, chosen, progress or _silent, disk, hold, **writer_options)
                except OffsetTooSmallError as error:
                    raise OffsetTooSmallError(
                        f"messages of the source were deleted before they were copied ({error.reason}); stop the"
                        f" program that cleans the source, remove {workshop} and start again",
                        first_available=error.first_available,
                        path=error.path,
                        offset=error.offset,
                    ) from error
        _refuse_absence(plan, target, disk, workshop)
        refuse_recreated(plan, source, target, disk)
        _refuse_growth(plan, source, disk, workshop)
        return Resharded(sum(plan.ends.values()), len(plan.ends), sorted(plan.readers))


def _finish(
    plan: Plan,
    source: Path,
    target: Path,
    route: Route,
    progress: Progress,
    disk: Disk,
    hold: Hold,
    **writer_options: Any,
) -> None:
    if plan.state == "copying":
        while True:
            copy(plan, source, target, route, progress, disk, **writer_options)
            hold.extend()
            if next_round(plan, source, target, disk) is None:
                break
            save_plan(plan, target, disk)
        plan.state = "publishing"
        save_plan(plan, target, disk)
    _publish(plan, target, route, disk)
    plan.state = "done"
    save_plan(plan, target, disk)


def _refuse_absence(plan: Plan, target: Path, disk: Disk, workshop: str) -> None:
    """Report shards that were complete and are lost: after a success the caller may remove the source."""
    gone = [target.dir(index) for index in sorted(plan.ends) if not is_journal(disk, target.dir(index))]
    if gone:
        raise JournalNotFoundError(
            f"this reshard was complete, but {len(gone)} of its {len(plan.ends)} shards are lost; restore them, or"
            f" to copy again, move the rest of the new sharded journal away and remove {workshop}",
            path=gone[0],
        )


def _refuse_growth(plan: Plan, source: Path, disk: Disk, workshop: str) -> None:
    """Report messages that were appended to the source after the last round."""
    ends = {step.index: step.end for step in plan.steps}
    late = {step.index: (ends.get(step.index, step.first), step.end) for step in make_plan(source, disk).steps}
    late = {index: span for index, span in late.items() if span[0] < span[1]}
    if late:
        shown = ", ".join(f"{index:03x} from offset {first} on" for index, (first, _) in sorted(late.items()))
        count = sum(end - first for first, end in late.values())
        appended = "1 message was" if count == 1 else f"{count} messages were"
        raise SejError(
            f"the new sharded journal is complete, but {appended} appended to the source after the copy (shard"
            f" {shown}); stop its writer, append them to the new one, and remove {workshop}",
            path=source.dir(min(late)),
        )


def _chosen(route: Route | None, plan: Plan, source: Path, disk: Disk, workshop: str) -> Route:
    """Return the route of all messages of a plan: two routes would split keys.

    Raises:
        SejError: the plan was begun with another one.
    """
    name = FUNCTION if callable(route) else route
    begun = plan.route or name or _remembered(source, disk)  # an older version's plan does not tell
    if (name or begun) != begun or (begun == FUNCTION and route is None):
        raise SejError(
            f"this reshard was started with route={begun!r}, got {name!r}; call it as before, or remove this directory"
            " to start again",
            path=workshop,
        )
    return route if callable(route) else "fnv" if begun == "fnv" else "xxh64"


def _remembered(source: Path, disk: Disk) -> str:
    record = read_record(source, disk)
    return (record and record.route) or "xxh64"


def _begin(source: Path, target: Path, route: Route | None, disk: Disk) -> Plan:
    there = [target.dir(index) for index in range(target.count) if disk.status(target.dir(index)) is not None]
    if there:
        raise SejError(
            f"the target exists already ({len(there)} shards); choose another prefix or root, or move it away",
            path=there[0],
        )
    plan = make_plan(source, disk)
    if not plan.steps:
        raise JournalNotFoundError(
            f"there is no shard of {source.name} here; check the root, the prefix and the bits", path=source.root
        )
    for reader in plan.readers:
        check_name(reader, "a reader's name in the source (rename or remove its .ofs):")
    plan.route = FUNCTION if callable(route) else route or _remembered(source, disk)
    save_plan(plan, target, disk)
    return plan


def _publish(plan: Plan, target: Path, route: Route, disk: Disk) -> None:
    """Translate the readers' offsets, then move the shards into place. Completed steps are not repeated."""
    tree = staging(target)
    records = Records(target, disk)
    records.prepare()
    if not callable(route) and target.bits:
        records.remember(route)
    for index in sorted(plan.ends):
        built, place = tree.dir(index), target.dir(index)
        if not is_journal(disk, built):
            if not is_journal(disk, place):
                raise SejError(
                    f"this shard of the new journal is lost; remove {os.path.dirname(tree.root)} and start again",
                    path=built,
                )
            disk.sync_dir(os.path.dirname(place))  # an earlier run may have moved the shard and failed before this
            continue
        for name in sorted(plan.readers):
            with Offset(built, name, disk=disk) as kept:
                kept.reset(plan.places[name].get(index, plan.ends[index]))
        if disk.status(place) is not None:
            raise SejError("another process has created this shard of the target; move it away", path=place)
        records.add(index)
        disk.rename(built, place)
    records.close()


def _silent(done: int, total: int) -> None:
    pass
