"""``shard.reshard``: a tree copied into one with more or fewer bits, finished after any crash.

What stays: the order of messages of one key, their types, keys, values and timestamps. Offsets are new. Readers' kept
offsets are translated to the conservative place: nothing that was not handled in the old tree lies before it in the
new one, so a reader may see messages again and never misses one.

How it survives SIGKILL at any point: the work is deterministic. A plan, kept in ``<target root>/.reshard/<name>/``,
fixes each source shard's first and end offset; shards are read one after the other, each in order, so every target
shard gets one fixed sequence. Whatever part of it is there is a prefix, because journals lose nothing but their tail. A
resumed run starts at the last checkpoint, compares what the targets hold behind it with what it would append, and goes
on where that ends. The target is built beside the plan, out of everybody's sight, and moved into place when it is
whole. The source stays as it is: it is for its owner to remove.

Nothing is lost to a writer that starts meanwhile: the writer's lock of every source shard is held to the end
(:mod:`shard.holding`). What grows all the same, a shard that is made meanwhile for example, is copied in further
rounds, and what comes after the last of them is named by an error.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from sej.checks import DISK, PROGRESS, a, require
from sej.errors import JournalNotFoundError, OffsetTooSmallError, SejError
from sej.journal.directory import check_name
from sej.reading.offset import Offset
from sej.system.disk import OS, Disk
from sej.system.locks import Lock
from shard.copying import Progress, copy
from shard.holding import Hold, refuse_queues
from shard.name_format import RESHARD_DIR
from shard.names import Path
from shard.plans import Plan, load_plan, make_plan, next_round, save_plan, staging
from shard.records import Records, read_record
from shard.routing import Route, check_route
from shard.trees import look

__all__ = ["Resharded", "reshard"]


class Resharded(NamedTuple):
    """What a reshard did.

    Attributes:
        messages: how many the new tree has.
        shards: how many of its shards are in use.
        readers: whose places were translated.
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
    """Copy a tree into another one, with more or fewer bits; the same call again resumes what was interrupted.

    Stop the source's writers first: a shard that one holds is refused, and until this returns none can begin. Work
    queues must be done: what of theirs is leased, delayed or tried belongs to the old tree's offsets. So does what
    ``append_once`` remembers: a batch that is repeated on the new tree is a new one there. Dead letters stay where they
    are.

    Args:
        source: the old tree; it stays.
        target: the new one; none of its shards may be there. The root may be the same.
        route: as for :class:`shard.Writer`, of the new sharded journal; None: the hash that the source remembers, or
            else ``"xxh64"``. A function must return the same for the same message.
        progress: called with messages copied and messages in all.
        disk: the seam.
        writer_options: for the new tree's :class:`shard.Writer`, ``max_open`` and ``segment_bytes`` for example.

    Returns:
        What was done; the same once more where it was done before.

    Raises:
        LockedError: a writer holds a shard of the source, or another reshard into this target is under way.
        JournalNotFoundError: there is no such source; or the target was made before, and shards of it are gone.
        InvalidNameError: a reader of the source has a name that a reader of ours cannot have.
        OffsetTooSmallError: messages of the source were deleted while they were copied.
        CorruptionError: a source shard is damaged.
        SejError: the target is there already; a work queue of the source has items that are not done; or the source
            grew behind the last round, and these messages are not in the new tree.
    """
    check_route("route", route)
    require(source=(source, a(Path)), target=(target, a(Path)), progress=(progress, PROGRESS), disk=(disk, DISK))
    if (os.path.abspath(source.root), source.name) == (os.path.abspath(target.root), target.name):
        raise ValueError(f"source and target are the same tree: {source!r}")
    if route is None:
        record = read_record(source, disk)
        route = (record and record.route) or "xxh64"
    workshop = os.path.join(target.root, RESHARD_DIR, target.name)
    disk.mkdir(workshop)
    with Lock(os.path.join(workshop, "reshard.lck"), what="this reshard", disk=disk):
        plan = load_plan(target, disk)
        if plan is None:
            plan = _begin(source, target, disk)
        elif (plan.source, plan.source_root) != ((source.prefix, source.bits), os.path.abspath(source.root)):
            raise SejError(
                f"a reshard of {plan.source} in {plan.source_root} into this tree was begun: finish it, or remove"
                " this directory",
                path=workshop,
            )
        else:
            disk.sync_dir(workshop)  # an earlier run may have failed to, after it gave the plan its name
        if plan.state != "done":
            with Hold(source, disk) as hold:
                refuse_queues(source, disk)
                try:
                    _finish(plan, source, target, route, progress or _silent, disk, hold, **writer_options)
                except OffsetTooSmallError as error:
                    raise OffsetTooSmallError(
                        f"messages of the source were deleted before they were copied ({error.reason}): stop what"
                        f" cleans the old tree, remove {workshop} and start again",
                        first_available=error.first_available,
                        path=error.path,
                        offset=error.offset,
                    ) from error
        _refuse_absence(plan, target, disk, workshop)
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
            if next_round(plan, source, disk) is None:
                break
            save_plan(plan, target, disk)
        plan.state = "publishing"
        save_plan(plan, target, disk)
    _publish(plan, target, route, disk)
    plan.state = "done"
    save_plan(plan, target, disk)


def _refuse_absence(plan: Plan, target: Path, disk: Disk, workshop: str) -> None:
    """Say what was built once and is gone: whoever is told that all is done may remove the old tree."""
    gone = [target.dir(index) for index in sorted(plan.ends) if not look(disk, target.dir(index))]
    if gone:
        raise JournalNotFoundError(
            f"this reshard was done, but {len(gone)} of the {len(plan.ends)} shards that it made are gone: bring them"
            f" back; or, to copy the old tree again, move away what is left of the new one and remove {workshop}",
            path=gone[0],
        )


def _refuse_growth(plan: Plan, source: Path, disk: Disk, workshop: str) -> None:
    """Say what came into the source behind the last round."""
    ends = {step.index: step.end for step in plan.steps}
    late = {step.index: (ends.get(step.index, step.first), step.end) for step in make_plan(source, disk).steps}
    late = {index: span for index, span in late.items() if span[0] < span[1]}
    if late:
        shown = ", ".join(f"{index:03x} from offset {first} on" for index, (first, _) in sorted(late.items()))
        raise SejError(
            f"the new tree is whole, but {sum(end - first for first, end in late.values())} messages came into the old"
            f" one behind what was copied (shard {shown}): stop what writes there, append them to the new tree, and"
            f" remove {workshop}",
            path=source.dir(min(late)),
        )


def _begin(source: Path, target: Path, disk: Disk) -> Plan:
    there = [target.dir(index) for index in range(target.count) if disk.status(target.dir(index)) is not None]
    if there:
        raise SejError(
            f"the target is there already ({len(there)} shards): choose another prefix or root, or move it away",
            path=there[0],
        )
    plan = make_plan(source, disk)
    if not plan.steps:
        raise JournalNotFoundError(f"there is no shard of {source.name} here", path=source.root)
    for reader in plan.readers:
        check_name(reader, "a reader's name in the source (rename or remove its .ofs):")
    save_plan(plan, target, disk)
    return plan


def _publish(plan: Plan, target: Path, route: Route, disk: Disk) -> None:
    """Translate the readers' places, then move the shards into place. Whatever is done already is not done again."""
    tree = staging(target)
    records = Records(target, disk)
    records.prepare()
    if not callable(route) and target.bits:
        records.remember(route)
    for index in sorted(plan.ends):
        built, place = tree.dir(index), target.dir(index)
        if not look(disk, built):
            if not look(disk, place):
                raise SejError("a shard of the new tree is gone: remove the plan and start again", path=built)
            disk.sync_dir(os.path.dirname(place))  # an earlier run may have failed to, after it moved the shard
            continue
        for name in sorted(plan.readers):
            with Offset(built, name, disk=disk) as kept:
                kept.reset(plan.places[name].get(index, plan.ends[index]))
        if disk.status(place) is not None:
            raise SejError("somebody made this shard of the target meanwhile: move it away", path=place)
        records.add(index)
        disk.rename(built, place)
    records.close()


def _silent(done: int, total: int) -> None:
    pass
