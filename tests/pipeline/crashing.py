"""Commit a job again and again, dying at the first, second, ... change on the disk; then run it once more.

It dies before each change, after it, and inside those that have an inside: a write of which half arrives, a folder of
which one file is removed. Run as a program, because it forks: `python crashing.py FOLDER overwrite|append`. Prints how
many places it died at.
"""

import os
import shutil
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sej
from pipeline.committing import Job, commit
from pipeline.options import WRITE, parse
from pipeline.staging import Owner, Stage
from pipeline.target import Target
from sej.disk import OsDisk, OsFile

CHANGES: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (OsDisk, ("open", "mkdir", "rename", "unlink", "rmdir", "sync_dir")),
    (OsFile, ("write", "write_at", "sync", "truncate")),
    (shutil, ("rmtree",)),
    (os, ("makedirs",)),
)
WHEN = ("before", "inside", "after")
SHARDS = 2
BEFORE, ROWS = 3, 5


class Bomb:
    """Ends the process before, inside or after the k-th change."""

    def __init__(self, place: int, when: str) -> None:
        self.places = iter(range(1, place + 1))
        self.place = place
        self.when = when
        self.local = threading.local()

    def around(self, name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if getattr(self.local, "inside", False) or (name == "open" and "read" in args[2:]):
                return change(*args, **options)  # what a change is made of is no change of its own
            due = next(self.places, None) == self.place
            if due and self.when == "inside":
                self.half(name, change, *args)
            if due and self.when != "after":
                os._exit(7)
            self.local.inside = True
            try:
                found = change(*args, **options)
            finally:
                self.local.inside = False
            if due:
                os._exit(7)
            return found

        return call

    def half(self, name: str, change: Callable[..., Any], *args: Any) -> None:
        """Do a part of a change."""
        if name == "rmtree":
            folder = args[0]
            os.unlink(os.path.join(folder, sorted(os.listdir(folder))[0]))
            return
        for at, data in enumerate(args):
            if isinstance(data, bytes | bytearray | memoryview) and len(data) > 1:
                change(*args[:at], memoryview(data)[: len(data) // 2], *args[at + 1 :])

    def arm(self) -> None:
        for kind, names in CHANGES:
            for name in names:
                setattr(kind, name, self.around(name, getattr(kind, name)))
        bare = OsFile.writer
        setattr(OsFile, "writer", lambda file: self.around("writer", bare(file)))  # noqa: B010 - of a class, not an object


def attempt(target: Target, number: int, overwrite: bool) -> bool:
    """One whole attempt of the same job: tasks, then the commit."""
    job = uuid.uuid4().hex
    stage = Stage(target.staging, job, Owner.here())
    for shard in range(SHARDS):
        values = [b"new-%d-%d" % (shard, row) for row in range(ROWS)]
        stage.append(shard, values, [b""] * ROWS, 0, 1)
    return commit(target, Job(job, "crashing", number, stage.finish(), overwrite))


def check(target: Target, overwrite: bool) -> None:
    for shard in range(SHARDS):
        with sej.Scanner(target.directory(shard).path) as scanner:
            values = [message.value for message in scanner]
        old = [] if overwrite else [b"old"] * BEFORE
        assert values == [*old, *(b"new-%d-%d" % (shard, row) for row in range(ROWS))], values
        assert sej.Journal(target.directory(shard).path).verify() == []
    left = [name for name in os.listdir(target.staging) if name.startswith(("task-", "job-"))]
    # What a dead attempt had not decided stays until its driver is dead: here that is this very process.
    assert all(name.startswith("task-") for name in left), left


def main(folder: str, overwrite: bool) -> None:
    place = 0
    for when in WHEN:
        place = 0
        while True:
            place += 1
            target = Target.of(str(Path(folder) / f"{when}-{place}"), parse(WRITE, {"bits": "1"}))
            for shard in range(SHARDS):
                with target.open(shard) as writer:
                    writer.append_many([b"old"] * BEFORE)
            child = os.fork()
            if child == 0:
                Bomb(place, when).arm()
                attempt(target, 4, overwrite)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            attempt(target, 4, overwrite)
            assert attempt(target, 4, overwrite) is False
            check(target, overwrite)
            if os.waitstatus_to_exitcode(status) == 0:
                break
            assert os.waitstatus_to_exitcode(status) == 7
    print(place - 1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "overwrite")
