"""A process that uses each operation of a journal at random until it is killed, and reports what was acknowledged."""

import random
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import sej
from sej.system.disk import Disk
from tests.sej.hooks import dying

LARGE: Final = [1 << 18, 1 << 20, 3 << 20]
"""Bytes: more than a block of the index, more than a chunk of a read, and several chunks."""


def report(word: str, *about: object) -> None:
    print(word, *about, flush=True)


class Chaos:
    """One process: its name, its random numbers, how many messages it has made, how many large ones it may make."""

    def __init__(self, path: str, process: str, dice: random.Random, disk: Disk) -> None:
        self.path = path
        self.process = process
        self.dice = dice
        self.disk = disk
        self.number = 0
        self.large = 2

    def fresh(self, count: int) -> list[bytes]:
        self.number += count
        names = range(self.number - count, self.number)
        return [b"%s-%d %s" % (self.process.encode(), n, b"x" * self.size()) for n in names]

    def size(self) -> int:
        if self.large and self.dice.random() < 0.01:
            self.large -= 1
            return self.dice.choice(LARGE)
        return self.dice.choice([0, 3, 300])

    def options(self) -> dict[str, Any]:
        return {
            "segment_bytes": self.dice.choice([200, 3000, 1 << 20]),
            "durability": self.dice.choice(["os", "os", "interval", "disk"]),
            "lock_timeout": 30.0,
            "disk": self.disk,
        }

    def report_put(self, first: int, values: list[bytes]) -> None:
        for offset, value in enumerate(values, first):
            report("put", offset, value.split()[0].decode())

    def share(self) -> None:
        """Append while other shared writers do."""
        with sej.SharedWriter(self.path, **self.options()) as w:
            for _ in range(self.dice.randrange(1, 20)):
                values = self.fresh(self.dice.choice([1, 1, 5]))
                self.report_put(w.append(values[0]) if len(values) == 1 else w.append_many(values)[0], values)

    def write(self) -> None:
        """Append as the exclusive writer."""
        with suppress(sej.LockedError), sej.Writer(self.path, **self.options()) as w:
            for _ in range(self.dice.randrange(1, 20)):
                values = self.fresh(self.dice.choice([1, 1, 5, 40]))
                match self.dice.randrange(10):
                    case 0 | 1 | 2:
                        number = (w.end.last_batch("p") or 0) + 1
                        batch = [b"p-%d-%d" % (number, part) for part in range(self.dice.choice([1, 3, 50]))]
                        self.report_put(w.append_once("p", number, batch)[0], batch)
                    case 3:
                        w.end.rotate()
                    case 4:
                        w.sync()
                    case _ if len(values) == 1:
                        self.report_put(w.append(values[0]), values)
                    case _:
                        self.report_put(w.append_many(values)[0], values)

    def read(self) -> None:
        """Read as the reader that retention waits for."""
        with (
            suppress(sej.LockedError, sej.JournalNotFoundError),
            sej.Offset(self.path, "reader", disk=self.disk) as kept,
            sej.Scanner(self.path, kept.value, timeout=0, disk=self.disk) as s,
        ):
            while batch := s.read(self.dice.choice([1, 10, 1000])):
                for message in batch:
                    report("seen", message.offset, message.value.split()[0].decode())
                kept.commit(batch[-1].offset + 1)

    def look(self) -> None:
        with suppress(sej.JournalNotFoundError):
            journal = sej.Journal(self.path, disk=self.disk)
            match self.dice.randrange(3):
                case 0:
                    found = [message.offset for message in journal.tail(50)]
                    assert found == list(range(found[0], found[0] + len(found))) if found else True, found
                case 1:
                    wrong = [str(problem) for problem in journal.verify() if problem.kind != "torn tail"]
                    assert not wrong, "\n".join(wrong)
                case _:
                    assert journal.first_offset <= journal.end_offset

    def clean(self) -> None:
        with suppress(sej.JournalNotFoundError):
            sej.Journal(self.path, disk=self.disk).clean(max_bytes=5000)

    def reindex(self) -> None:
        with suppress(sej.JournalNotFoundError, sej.LockedError):
            sej.Journal(self.path, disk=self.disk).reindex()

    def run(self) -> None:
        acts: dict[Callable[[], None], int] = {
            self.share: 6, self.write: 4, self.read: 3, self.look: 3, self.clean: 1, self.reindex: 1,
        }  # fmt: skip
        while True:
            self.dice.choices(list(acts), list(acts.values()))[0]()


if __name__ == "__main__":
    _path, _process, _seed = sys.argv[1:]
    _dice = random.Random(int(_seed))
    Chaos(_path, _process, _dice, dying(random.Random(_dice.random()), _dice.choice([0.0, 1.0, 1.0]))).run()
