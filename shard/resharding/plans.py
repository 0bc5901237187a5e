"""The plan of a reshard: what is copied, the progress, and where readers will continue.

One JSON file with a checksum (:mod:`sej.system.sealed`), replaced as a whole.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, fields
from typing import Final, Literal

from sej.errors import CorruptionError, OffsetBeyondEndError, SejError
from sej.journal.directory import Directory, is_journal
from sej.journal.identity import journal_id
from sej.journal.kept_offsets import kept_offsets
from sej.journal.medium import sync_up_to
from sej.journal.view import Journal
from sej.system.disk import Disk, read_small, replace_file
from sej.system.sealed import seal, unseal, whole
from shard.name_format import MAX_BITS, RESHARD_DIR
from shard.names import Path
from shard.routing import HASHES

FUNCTION: Final = "function"
"""The route of a plan whose copies a function of the user routes."""

_PLAN_BYTES: Final = 1 << 26
_ADDED: Final = ("route", "ids")
"""Fields that plans of older versions do not have."""


@dataclass(slots=True)
class Step:
    """The messages of one source shard in this round: first to end."""

    index: int
    first: int
    end: int


@dataclass(slots=True)
class Plan:
    """Everything that a resumed run needs.

    Attributes:
        source: the old name: (prefix, bits).
        source_root: its root.
        steps: what is copied in this round, in this order.
        readers: the source's kept offsets when the plan was made: {reader: {source shard: offset}}.
        state: the current phase.
        step: the current step,
        offset: and its next message: everything before is durable in the target.
        ends: how many messages each target shard has then.
        places: where readers will continue: {reader: {target shard: offset}}, as far as is known then.
        copied: messages of earlier rounds and steps, for the progress.
        route: the name of the hash that routes the copies, or FUNCTION; None: an older version did not store it.
        ids: the identity of each source shard, in hex; missing if the shard had none, or in a plan of an older version.
    """

    source: tuple[str, int]
    source_root: str
    steps: list[Step]
    readers: dict[str, dict[int, int]]
    state: Literal["copying", "publishing", "done"] = "copying"
    step: int = 0
    offset: int = 0
    ends: dict[int, int] = field(default_factory=dict)
    places: dict[str, dict[int, int]] = field(default_factory=dict)
    copied: int = 0
    route: str | None = None
    ids: dict[int, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The number of messages in this round."""
        return sum(step.end - step.first for step in self.steps)


def staging(target: Path) -> Path:
    """Return the path where the new shards are built, out of readers' sight, next to the plan."""
    return Path(os.path.join(target.root, RESHARD_DIR, target.name, "tree"), target.prefix, target.bits)


def make_plan(source: Path, disk: Disk) -> Plan:
    """Make a plan from the current state of the source.

    Its messages are durable then: after a power failure no others may be in the place of those that were copied.
    """
    steps: list[Step] = []
    readers: dict[str, dict[int, int]] = {}
    for index in range(source.count):
        if not is_journal(disk, source.dir(index)):
            continue
        directory, journal = Directory(source.dir(index), disk), Journal(source.dir(index), disk=disk)
        step = Step(index, journal.first_offset, journal.end_offset)
        sync_up_to(directory, step.end)
        steps.append(step)
        for name, offset in kept_offsets(directory).items():
            readers.setdefault(name, {})[index] = journal.first_offset if offset is None else offset
    # A reader without a kept offset in a shard has read nothing of it: its offset is the first message.
    plan = Plan((source.prefix, source.bits), os.path.abspath(source.root), steps, readers)
    plan.places = {name: {} for name in readers}
    plan.ids = {step.index: found for step in steps if (found := _identity(source, step.index, disk))}
    plan.offset = steps[0].first if steps else 0
    return plan


def _identity(source: Path, index: int, disk: Disk) -> str:
    """Return a shard's identity in hex; empty if it has none, or if it is damaged: it can be copied without it."""
    try:
        return (journal_id(Directory(source.dir(index), disk)) or b"").hex()
    except CorruptionError:
        return ""


def refuse_recreated(plan: Plan, source: Path, target: Path, disk: Disk) -> None:
    """Check that the shards of the source are still those of the plan, if they have identities.

    Raises:
        OffsetBeyondEndError: a shard was re-created: its messages are other ones than those that were copied.
    """
    for index, known in plan.ids.items():
        found = _identity(source, index, disk)
        if found not in ("", known):
            raise OffsetBeyondEndError(
                "this shard was removed and re-created after its copy began, so its messages are other ones; remove"
                f" {os.path.dirname(_path(target))} and the new sharded journal, if it is complete, and start again",
                path=source.dir(index),
            )


def next_round(plan: Plan, source: Path, target: Path, disk: Disk) -> Plan | None:
    """Return a plan for messages that were appended to the source since the plan was made; None if there are none.

    Raises:
        OffsetBeyondEndError: a shard ends before the plan's end: it lost messages; or it was re-created.
    """
    refuse_recreated(plan, source, target, disk)
    seen = {step.index: step.end for step in plan.steps}
    fresh = make_plan(source, disk)
    for step in fresh.steps:
        if step.end < seen.get(step.index, step.end):
            raise OffsetBeyondEndError(
                f"this shard ends at offset {step.end}, and it ended at {seen[step.index]} when its copy began: it lost"
                f" messages or was re-created; remove {os.path.dirname(_path(target))} and start again",
                path=source.dir(step.index),
                offset=seen[step.index],
            )
    steps = [Step(step.index, seen.get(step.index, step.first), step.end) for step in fresh.steps]
    if all(step.first == step.end for step in steps):
        return None
    plan.copied += plan.total
    plan.steps = steps
    plan.ids = fresh.ids | plan.ids
    plan.step, plan.offset = 0, steps[0].first
    return plan


def save_plan(plan: Plan, target: Path, disk: Disk) -> None:
    """Save the plan, durably."""
    path = _path(target)
    disk.mkdir(os.path.dirname(path))
    replace_file(disk, path + ".tmp", path, seal(path, asdict(plan)))


def load_plan(target: Path, disk: Disk) -> Plan | None:
    """Return the plan of an earlier run, or None.

    Raises:
        SejError: the file is not a plan.
    """
    path = _path(target)
    try:
        data = read_small(disk, path, _PLAN_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        members = [each.name for each in fields(Plan) if each.name not in _ADDED]
        row = unseal(path, data, members, optional=_ADDED)
        prefix, bits = row["source"]
        row["source"] = str(prefix), whole(bits, 0, MAX_BITS)
        row["steps"] = [Step(**step) for step in row["steps"]]
        row["ends"] = _numbers(row["ends"])
        row["ids"] = {int(index): bytes.fromhex(found).hex() for index, found in row.get("ids", {}).items()}
        for name in ("readers", "places"):
            row[name] = {reader: _numbers(offsets) for reader, offsets in row[name].items()}
        plan = Plan(**row)
        for step in plan.steps:
            whole(step.index), whole(step.first), whole(step.end)
        whole(plan.step), whole(plan.offset), whole(plan.copied)
        if plan.state not in ("copying", "publishing", "done"):
            raise ValueError(f"state {plan.state!r}")
        if plan.route not in (None, *HASHES, FUNCTION):
            raise ValueError(f"route {plan.route!r}")
        return plan
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SejError(
            f"this is not the plan of a reshard ({error}); remove {os.path.dirname(path)} and start again", path=path
        ) from error


def _numbers(row: dict[str, int]) -> dict[int, int]:
    return {int(index): whole(offset) for index, offset in row.items()}


def _path(target: Path) -> str:
    return os.path.join(target.root, RESHARD_DIR, target.name, "plan.json")
