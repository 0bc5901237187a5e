"""The plan of a reshard: what is copied, how far it got, where readers will stand.

One JSON file with a checksum (:mod:`sej.system.sealed`), replaced whole.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, fields
from typing import Final, Literal

from sej.errors import SejError
from sej.journal.directory import Directory
from sej.journal.kept_offsets import kept_offsets
from sej.journal.view import Journal
from sej.system.disk import Disk, read_small, replace_file
from sej.system.sealed import seal, unseal, whole
from shard.name_format import MAX_BITS, RESHARD_DIR
from shard.names import Path
from shard.trees import look

__all__ = ["Plan", "Step", "load_plan", "make_plan", "next_round", "save_plan", "staging"]

_PLAN_BYTES: Final = 1 << 26


@dataclass(slots=True)
class Step:
    """What one source shard gives in this round: messages first to end."""

    index: int
    first: int
    end: int


@dataclass(slots=True)
class Plan:
    """Everything that a resumed run needs.

    Attributes:
        source: the old tree's name: (prefix, bits).
        source_root: where it is.
        steps: what is copied in this round, in this order.
        readers: the old tree's kept offsets when the plan was made: {reader: {source shard: offset}}.
        state: what is being done.
        step: the step that is under way,
        offset: and the message of it that comes next: everything before is durable in the target.
        ends: how many messages each target shard has then.
        places: where readers will stand: {reader: {target shard: offset}}, as far as is known then.
        copied: messages of earlier rounds and steps, for the progress.
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

    @property
    def total(self) -> int:
        """All messages of this round."""
        return sum(step.end - step.first for step in self.steps)


def staging(target: Path) -> Path:
    """The tree that is built out of everybody's sight, beside its plan."""
    return Path(os.path.join(target.root, RESHARD_DIR, target.name, "tree"), target.prefix, target.bits)


def make_plan(source: Path, disk: Disk) -> Plan:
    """Look at the source as it is now."""
    steps: list[Step] = []
    readers: dict[str, dict[int, int]] = {}
    for index in range(source.count):
        if not look(disk, source.dir(index)):
            continue
        journal = Journal(source.dir(index), disk=disk)
        steps.append(Step(index, journal.first_offset, journal.end_offset))
        for name, offset in kept_offsets(Directory(source.dir(index), disk)).items():
            readers.setdefault(name, {})[index] = journal.first_offset if offset is None else offset
    # In a shard where a reader has kept nothing it has read nothing: absent means from the first message on.
    plan = Plan((source.prefix, source.bits), os.path.abspath(source.root), steps, readers)
    plan.places = {name: {} for name in readers}
    plan.offset = steps[0].first if steps else 0
    return plan


def next_round(plan: Plan, source: Path, disk: Disk) -> Plan | None:
    """What came into the source since the plan was made; None where nothing did."""
    seen = {step.index: step.end for step in plan.steps}
    fresh = make_plan(source, disk)
    steps = [Step(step.index, seen.get(step.index, step.first), step.end) for step in fresh.steps]
    if all(step.first == step.end for step in steps):
        return None
    plan.copied += plan.total
    plan.steps = steps
    plan.step, plan.offset = 0, steps[0].first
    return plan


def save_plan(plan: Plan, target: Path, disk: Disk) -> None:
    """Keep the plan, durably."""
    path = _path(target)
    disk.mkdir(os.path.dirname(path))
    replace_file(disk, path + ".tmp", path, seal(path, asdict(plan)))


def load_plan(target: Path, disk: Disk) -> Plan | None:
    """The plan that an earlier run kept, or None.

    Raises:
        SejError: the file is no plan.
    """
    path = _path(target)
    try:
        data = read_small(disk, path, _PLAN_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        row = unseal(path, data, [each.name for each in fields(Plan)])
        prefix, bits = row["source"]
        row["source"] = str(prefix), whole(bits, 0, MAX_BITS)
        row["steps"] = [Step(**step) for step in row["steps"]]
        row["ends"] = _numbers(row["ends"])
        for name in ("readers", "places"):
            row[name] = {reader: _numbers(offsets) for reader, offsets in row[name].items()}
        plan = Plan(**row)
        for step in plan.steps:
            whole(step.index), whole(step.first), whole(step.end)
        whole(plan.step), whole(plan.offset), whole(plan.copied)
        if plan.state not in ("copying", "publishing", "done"):
            raise ValueError(f"state {plan.state!r}")
        return plan
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SejError(
            f"this is no plan of a reshard ({error}): remove {os.path.dirname(path)} and start again", path=path
        ) from error


def _numbers(row: dict[str, int]) -> dict[int, int]:
    return {int(index): whole(offset) for index, offset in row.items()}


def _path(target: Path) -> str:
    return os.path.join(target.root, RESHARD_DIR, target.name, "plan.json")
