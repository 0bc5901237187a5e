"""The copying part of a reshard: one fixed sequence of messages for every target shard, resumed where it stopped."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any, Final

from sej.errors import CorruptionError
from sej.journal.directory import Directory, is_journal
from sej.journal.medium import sync_up_to
from sej.journal.view import Journal
from sej.message import Message
from sej.reading.scanner import Scanner
from sej.system.disk import Disk
from shard.names import Path
from shard.resharding.plans import Plan, Step, save_plan, staging
from shard.routing import Route, group, routed
from shard.writer import Writer

_BATCH: Final = 1 << 13
_CHECKPOINT: Final = 1 << 20
"""Messages copied between two checkpoints: the most that a resumed run compares."""

Progress = Callable[[int, int], object]
"""A function that is called with the messages copied and the messages in total."""


def copy(plan: Plan, source: Path, target: Path, route: Route, progress: Progress, disk: Disk, **writer: Any) -> None:
    """Copy the rest of a plan's round; it is durable when this returns, and so is every checkpoint on the way.

    Raises:
        CorruptionError: a source shard is damaged, or a target shard holds other messages than an earlier run's.
    """
    _Copy(plan, source, target, route, progress, disk).run(**writer)


class _Copy:
    def __init__(self, plan: Plan, source: Path, target: Path, route: Route, progress: Progress, disk: Disk) -> None:
        self._plan = plan
        self._source = source
        self._target = target
        self._tree = staging(target)
        self._route = route
        self._progress = progress
        self._disk = disk
        self._there = {
            index: Journal(self._tree.dir(index), disk=disk).end_offset
            for index in range(self._tree.count)
            if is_journal(disk, self._tree.dir(index))
        }
        """Read what the targets hold at the start of this run: messages that an earlier run appended after the
        checkpoint.
        """

    def run(self, **options: Any) -> None:
        plan = self._plan
        done = plan.copied + sum(step.end - step.first for step in plan.steps[: plan.step])
        total = plan.copied + plan.total
        since = 0
        for index, end in self._there.items():  # the writer does not open a complete shard again
            sync_up_to(Directory(self._tree.dir(index), self._disk), end)
        with Writer(self._tree, self._route, disk=self._disk, **options) as writer:
            for number in range(plan.step, len(plan.steps)):
                step = plan.steps[number]
                start = plan.offset if number == plan.step else step.first
                for batch in self._batches(step, start):
                    self._place(step, batch, writer)
                    since += len(batch)
                    self._progress(done + batch[-1].offset + 1 - step.first, total)
                    if since >= _CHECKPOINT:
                        self._checkpoint(writer, number, batch[-1].offset + 1)
                        since = 0
                done += step.end - step.first
            self._checkpoint(writer, len(plan.steps), 0)
        self._progress(total, total)

    def _batches(self, step: Step, start: int) -> Iterator[list[Message]]:
        """Yield the messages of a source shard from start to the step's end."""
        if start >= step.end:
            return
        with Scanner(self._source.dir(step.index), start, disk=self._disk) as scanner:
            while batch := scanner.read(_BATCH):
                if batch[-1].offset >= step.end:
                    batch = [message for message in batch if message.offset < step.end]
                    if batch:
                        yield batch
                    return
                yield batch

    def _checkpoint(self, writer: Writer, step: int, offset: int) -> None:
        writer.sync()
        self._plan.step, self._plan.offset = step, offset
        save_plan(self._plan, self._target, self._disk)

    def _place(self, step: Step, batch: list[Message], writer: Writer) -> None:
        """Give each target shard its part of a batch, except for the messages that it already has."""
        plan = self._plan
        keys = [message.key for message in batch]
        bits, route = self._tree.bits, self._route
        if callable(route):
            parts = group(keys, keys, bits, routed(route, batch, bits), True)
        else:
            parts = group(keys, keys, bits, None, True, route)
        for index, (_, _, places) in parts.items():
            part = [batch[place] for place in places]
            end = plan.ends.get(index, 0)
            for reader, offsets in plan.readers.items():
                unread = offsets.get(step.index, 0)
                if index not in plan.places[reader] and part[-1].offset >= unread:
                    plan.places[reader][index] = end + bisect_left(part, unread, key=lambda message: message.offset)
            have = min(max(self._there.get(index, 0) - end, 0), len(part))
            if have:
                self._compare(index, end, part[:have])
            if have < len(part):
                writer.append_to(index, part[have:])
            plan.ends[index] = end + len(part)

    def _compare(self, index: int, start: int, part: list[Message]) -> None:
        path = self._tree.dir(index)
        with Scanner(path, start, disk=self._disk) as scanner:
            found: list[Message] = []
            while len(found) < len(part) and (batch := scanner.read(len(part) - len(found))):
                found += batch
        for place, (mine, theirs) in enumerate(zip(part, found, strict=True)):
            if mine[1:] != theirs[1:]:
                raise CorruptionError(
                    "the target holds another message than an earlier run appended: the source was changed, or"
                    " another program wrote here; remove the new sharded journal and its plan, and start again",
                    path=path,
                    offset=start + place,
                )
