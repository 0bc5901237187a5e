"""A process that appends to a journal and is one of its named consumers, at random, until it is killed.

Each line of its output has the time, so that the lines of all processes can be merged into one history.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import sej
from sej.system.disk import File
from tests.sej.hooks import HookedDisk, dying

NAMES = ["a", "b"]
MAX_ATTEMPTS = 3


class Consuming:
    """One process: its name, its random numbers, and a disk that reports each stored attempt."""

    def __init__(self, path: str, process: str, dice: random.Random, disk: HookedDisk) -> None:
        self.path = path
        self.process = process
        self.dice = dice
        self.disk = disk
        self.number = 0
        self.name = ""
        self.runs = 0
        self._die = disk.hook
        disk.hook = self._hook

    def report(self, word: str, name: str, *about: object) -> None:
        print(time.monotonic_ns(), name, f"{self.process}.{self.runs}", word, *about, flush=True)

    def _hook(self, verb: str, file: File | None, data: bytes) -> None:
        if file is not None and file.path.endswith(".tries") and data:
            note = json.loads(data.partition(b" ")[2])
            self.report("note", self.name, note["offset"], note["attempts"])
        self._die(verb, file, data)

    def append(self) -> None:
        kinds = self.dice.choices(["ok", "bad", "flaky", "kill"], [80, 4, 6, 1], k=self.dice.choice([1, 5, 30]))
        values = [f"{kind} {self.process}-{self.number + n}".encode() for n, kind in enumerate(kinds)]
        self.number += len(values)
        with sej.SharedWriter(self.path, segment_bytes=self.dice.choice([200, 3000, 1 << 20]), disk=self.disk) as w:
            w.append_many(values)

    def clean(self) -> None:
        sej.Journal(self.path, disk=self.disk).clean(max_bytes=2000)

    def look(self) -> None:
        for name in NAMES:
            self.report_kept(name)

    def report_kept(self, name: str) -> None:
        self.report("kept", name, sej.read_offset(self.path, name) or 0)

    def consume(self) -> None:
        self.name = self.dice.choice(NAMES)
        self.runs += 1
        consumer = sej.Consumer(
            self.path,
            self.name,
            max_attempts=MAX_ATTEMPTS,
            dead_letter=f"{self.path}-dead",
            timeout=self.dice.choice([0.0, 0.0, 0.02]),
            backoff_s=0.0001,
            commit_messages=self.dice.choice([1, 7, 1000]),
            commit_interval_s=self.dice.choice([0.0, 0.01, 1.0]),
            disk=self.disk,
        )

        reached = 0

        def handle(batch: list[sej.Message]) -> None:
            first, last = batch[0].offset, batch[-1].offset
            self.report("begin", self.name, first, last)
            kinds = {message.value.decode().split()[0] for message in batch}
            if "kill" in kinds:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.dice.random() < 0.1:
                self.report_kept(self.name)
            if self.dice.random() < 0.02:
                self.report("stop", self.name)
                consumer.stop()
            if "bad" in kinds or ("flaky" in kinds and self.dice.random() < 0.5):
                self.report("fail", self.name, first, last)
                raise RuntimeError("by chance")
            self.report("end", self.name, first, last)
            nonlocal reached
            reached = last + 1

        with suppress(sej.LockedError):
            if self.dice.random() < 0.5:
                consumer.run_batches(handle, batch_messages=self.dice.choice([2, 10, 100]))
            else:
                consumer.run(lambda message: handle([message]))
            self.report("over", self.name, reached)

    def run(self) -> None:
        acts: dict[Callable[[], None], int] = {self.append: 4, self.consume: 8, self.look: 1, self.clean: 1}
        while True:
            self.dice.choices(list(acts), list(acts.values()))[0]()


if __name__ == "__main__":
    _path, _process, _seed = sys.argv[1:]
    _dice = random.Random(int(_seed))
    Consuming(_path, _process, _dice, dying(random.Random(_dice.random()), _dice.choice([0.0, 1.0, 1.0]))).run()
