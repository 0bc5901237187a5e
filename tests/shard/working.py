"""A process that appends to a sharded journal and is one of its workers, at random, until it is killed."""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable

import sej
import shard
from sej.system.disk import File, Mode, OsDisk, OsFile
from tests.sej.hooks import HookedDisk, dying

BITS = 2
NAME = "w"
MAX_ATTEMPTS = 3


class ReportingDisk(OsDisk):
    """Reports when a shard is claimed and when it is released, both found by the file of its attempts."""

    report: Callable[[str, str], None]

    def open(self, path: str | os.PathLike[str], mode: Mode) -> OsFile:
        if mode == "edit" and os.fspath(path).endswith(".tries"):
            self.report("claim", os.fspath(path))
        return super().open(path, mode)

    def unlink(self, path: str | os.PathLike[str]) -> None:
        super().unlink(path)
        if os.fspath(path).endswith(".tries"):
            self.report("over", os.fspath(path))


class Working:
    """One process: its name, its random numbers, and the number of its newest claim of each shard."""

    def __init__(self, root: str, process: str, dice: random.Random) -> None:
        self.path = shard.Path(root, "s", BITS)
        self.process = process
        self.dice = dice
        self.number = 0
        self.claims = [0] * self.path.count
        self.reached = [0] * self.path.count
        self._die = dying(random.Random(dice.random()), dice.choice([0.0, 1.0, 1.0])).hook
        reporting = ReportingDisk()
        reporting.report = self._report_claim
        self.disk = HookedDisk(self._hook, reporting)

    def report(self, word: str, index: int, *about: object) -> None:
        print(time.monotonic_ns(), index, f"{self.process}.{self.claims[index]}", word, *about, flush=True)

    def _index(self, file: str) -> int:
        return shard.Path.parse(os.path.dirname(os.path.dirname(file)))[1]

    def _report_claim(self, word: str, file: str) -> None:
        index = self._index(file)
        if word == "claim":
            self.claims[index] += 1
            self.reached[index] = 0
            self.report("claim", index)
        else:
            self.report("over", index, self.reached[index])

    def _hook(self, verb: str, file: File | None, data: bytes) -> None:
        if file is not None and file.path.endswith(".tries") and data:
            note = json.loads(data.partition(b" ")[2])
            self.report("note", self._index(file.path), note["offset"], note["attempts"])
        self._die(verb, file, data)

    def append(self) -> None:
        kinds = self.dice.choices(["ok", "bad", "flaky", "kill"], [80, 4, 6, 1], k=self.dice.choice([1, 10, 50]))
        keys = [b"%s-%d" % (self.process.encode(), self.number + n) for n in range(len(kinds))]
        self.number += len(kinds)
        with shard.Writer(self.path, lock_timeout=30.0, disk=self.disk) as w:
            w.append_many([kind.encode() for kind in kinds], keys)

    def work(self) -> None:
        worker = shard.Worker(
            self.path,
            NAME,
            max_attempts=MAX_ATTEMPTS,
            dead_letter=f"{self.path.root}-dead",
            timeout=self.dice.choice([0.0, 0.1, 0.3]),
            backoff_s=0.001,
            disk=self.disk,
        )

        def handle(index: int, message: sej.Message) -> None:
            self.report("begin", index, message.offset, message.offset)
            if message.value == b"kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.dice.random() < 0.1:
                self.report("kept", index, sej.read_offset(self.path.dir(index), NAME) or 0)
            if self.dice.random() < 0.005:
                worker.stop()
            if message.value == b"bad" or (message.value == b"flaky" and self.dice.random() < 0.5):
                self.report("fail", index, message.offset, message.offset)
                raise RuntimeError("by chance")
            self.report("end", index, message.offset, message.offset)
            self.reached[index] = message.offset + 1

        worker.run(handle)

    def run(self) -> None:
        while True:
            self.dice.choice([self.append, self.work])()


if __name__ == "__main__":
    _root, _process, _seed = sys.argv[1:]
    Working(_root, _process, random.Random(int(_seed))).run()
