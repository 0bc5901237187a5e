"""Commit a job again and again, dying at the first, second, ... change on the disk; then run it once more.

It dies before each change, and inside those that have an inside: half of a write arrives, or one file of a folder is
removed. Run as a program, because it forks: `python crashing.py FOLDER overwrite|append|text`. Prints
how many places it died at.
"""

import os
import shutil
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import sej
from pipeline.options import WRITE, parse
from pipeline.writing.on_file import _append_once
from pipeline.writing.places import Target
from sej.system.disk import OsDisk, OsFile
from shard.committing import Job, commit
from shard.staging import Owner, Stage
from textqueue import MessageStatus, TextQueue

CHANGES: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (OsDisk, ("open", "mkdir", "rename", "unlink", "rmdir", "sync_dir")),
    (OsFile, ("write", "write_at", "sync", "truncate")),
    (shutil, ("rmtree",)),
    (os, ("makedirs",)),
)
WHEN = ("before", "inside")
"""After a change is before the next one."""
SHARDS = 2
BEFORE, ROWS = 3, 5


class Bomb:
    """Ends the process before or inside the k-th change."""

    def __init__(self, place: int, when: str) -> None:
        self.places = iter(range(1, place + 1))
        self.place = place
        self.when = when
        self.local = threading.local()

    def around(self, name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if getattr(self.local, "inside", False) or (name == "open" and "read" in args[2:]):
                return change(*args, **options)  # a part of a change is not a change
            due = next(self.places, None) == self.place
            if due and self.when == "inside":
                self.half(name, change, *args)
            if due:
                os._exit(7)
            self.local.inside = True
            try:
                return change(*args, **options)
            finally:
                self.local.inside = False

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


class Journals:
    """Into two shards, appending or replacing."""

    def __init__(self, root: str, *, overwrite: bool) -> None:
        self.overwrite = overwrite
        self.target = Target.of(root, parse(WRITE, {"bits": "1"}))
        for shard in range(SHARDS):
            with self.target.open(shard) as writer:
                writer.append_many([b"old"] * BEFORE)

    def attempt(self) -> bool:
        """One whole attempt of the same job: tasks, then the commit."""
        job = uuid.uuid4().hex
        stage = Stage(self.target.staging, job, Owner.here())
        for shard in range(SHARDS):
            values = [b"new-%d-%d" % (shard, row) for row in range(ROWS)]
            stage.append(shard, values, [b""] * ROWS, 0, 1)
        return commit(self.target, Job(job, "crashing", 4, stage.finish(), self.overwrite))

    def check(self) -> None:
        assert self.attempt() is False
        for shard in range(SHARDS):
            with sej.Scanner(self.target.directory(shard).path) as scanner:
                values = [message.value for message in scanner]
            old = [] if self.overwrite else [b"old"] * BEFORE
            assert values == [*old, *(b"new-%d-%d" % (shard, row) for row in range(ROWS))], values
            assert sej.Journal(self.target.directory(shard).path).verify() == []
        left = [name for name in os.listdir(self.target.staging) if name.startswith(("task-", "job-"))]
        # What a dead attempt had not decided stays until its driver is dead: here that is this very process.
        assert all(name.startswith("task-") for name in left), left


class Text:
    """Into a text queue."""

    rows: ClassVar = [f"new-{row}\nsecond line" for row in range(ROWS)]

    def __init__(self, root: str) -> None:
        self.path = f"{root}.tq"
        Path(self.path).write_text("-old")  # a person left it without a line end

    def attempt(self) -> None:
        _append_once(self.path, "crashing", 4, self.rows, keep=True)

    def check(self) -> None:
        self.attempt()
        with TextQueue(self.path, settle_s=0.0) as queue:
            values = [message.value for message in queue.messages(set(MessageStatus))]
        assert values == ["old", *self.rows], values


def sink(kind: str, root: str) -> Journals | Text:
    return Text(root) if kind == "text" else Journals(root, overwrite=kind == "overwrite")


def main(folder: str, kind: str) -> None:
    place = 0
    for when in WHEN:
        place = 0
        while True:
            place += 1
            into = sink(kind, str(Path(folder) / f"{when}-{place}"))
            child = os.fork()
            if child == 0:
                Bomb(place, when).arm()
                into.attempt()
                os._exit(0)
            _, status = os.waitpid(child, 0)
            into.attempt()
            into.check()
            if os.waitstatus_to_exitcode(status) == 0:
                break
            assert os.waitstatus_to_exitcode(status) == 7
    print(place - 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
