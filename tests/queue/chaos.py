"""A process that uses each operation of a queue at random until it is killed, and reports what was acknowledged."""

import mmap
import random
import struct
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import sej
from sej.queue.journal_queue import JournalQueue
from tests.sej.hooks import dying

CLOCKS: Final = struct.Struct("<qqq")
PADDING: Final = b"x" * 2000
LARGE: Final = [1 << 18, 1 << 20, 3 << 20]
"""Bytes: more than a block of the index, more than a chunk of a read, and several chunks."""


class SharedClock:
    """Clocks of many processes, which a test moves through a file: how far they are ahead, and which boot it is."""

    def __init__(self, path: str | Path) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), CLOCKS.size)

    def boot_ns(self) -> int:
        return time.monotonic_ns() + self._row()[0]

    def wall_ns(self) -> int:
        return time.monotonic_ns() + self._row()[1]

    def boot_id(self) -> bytes:
        return b"boot" + self._row()[2].to_bytes(12, "big")

    def _row(self) -> tuple[int, int, int]:
        return CLOCKS.unpack(self._map[: CLOCKS.size])


def report(word: str, *about: object) -> None:
    print(time.monotonic_ns(), word, *about, flush=True)


def name_of(item: Any) -> str:
    return str(item.value.decode().lstrip("x"))


def headers_of(process: str) -> dict[str, str] | None:
    """Return the headers of all items of a process: every second one has some."""
    return {"process": process, "text": "é" * 50} if zlib.crc32(process.encode()) % 2 else None


class Chaos:
    """One process: the items it holds, its random numbers, and how many large messages it may put."""

    def __init__(self, q: JournalQueue, process: str, dice: random.Random) -> None:
        self.q = q
        self.process = process
        self.dice = dice
        self.held: list[Any] = []
        self.number = 0
        self.large = 2

    def put(self) -> None:
        dice = self.dice
        count = dice.choice([1, 1, 1, 2, 5])
        values = [b"%s-%d" % (self.process.encode(), self.number + index) for index in range(count)]
        options: dict[str, Any] = {
            "delay_s": dice.choice([0, 0, 1, 5, 30]),
            "priority": dice.choice([0, 0, 0, -3, -1, 1, 3]),
            "dedupe_keys": values if dice.random() < 0.2 else None,
            "expire_s": 10**9 if dice.random() < 0.2 else None,  # the clock is set by 10**7 s many times
            "headers": headers_of(self.process),
        }
        sent = [PADDING + value for value in values] if dice.random() < 0.1 else values
        if self.large and dice.random() < 0.01:
            self.large -= 1
            sent = [b"x" * dice.choice(LARGE) + sent[0], *sent[1:]]
        with suppress(sej.QueueFullError):
            offsets = list(self.q.put_many(sent, timeout=0.0, **options))
            self.number += count
            for value in values:
                report("put", value.decode())
            if options["dedupe_keys"]:  # again: there is always room for what is there
                assert list(self.q.put_many(sent, timeout=0.0, **options)) == offsets

    def get(self) -> None:
        for item in self.q.get_many(self.dice.choice([1, 1, 2, 10]), timeout=self.dice.choice([0, 0, 0.01])):
            report("got", name_of(item), item.message.offset, item.attempts)
            expected = headers_of(name_of(item).partition("-")[0])
            assert item.headers == (expected or {}), f"{item.headers} instead of {expected}"
            self.held.append(item)

    def end(self) -> None:
        if not self.held:
            return
        item = self.held.pop(self.dice.randrange(len(self.held)))
        how = self.dice.choice(["done"] * 5 + ["done_many", "retry", "delay", "fail", "extend"])
        try:
            if how.startswith("done"):
                items = [item]
                if how == "done_many":
                    items += self.held
                    self.held = []
                for one in items:
                    report("ending", name_of(one), one.message.offset, one.attempts)
                try:
                    self.q.done_many(items) if how == "done_many" else item.done()
                finally:
                    for one in items:
                        report("done" if one.ended else "lost", name_of(one), one.message.offset, one.attempts)
            elif how == "fail":
                item.fail("by chance")
            elif how == "extend":
                item.extend(self.dice.choice([1, 40]))
                self.held.append(item)
            else:
                item.retry(0 if how == "retry" else None)
        except sej.LeaseLostError:
            pass

    def redrive(self) -> None:
        with suppress(sej.LockedError):
            self.q.redrive(self.dice.choice([None, 1, 3]))

    def look(self) -> None:
        self.q.stats()

    def clean(self) -> None:
        sej.Journal(self.q.path).clean(max_bytes=1000)

    def forget(self) -> None:
        """Forget the items that it holds. They are delivered again after their leases."""
        self.held = []

    def run(self) -> None:
        acts: dict[Callable[[], None], int] = {
            self.put: 25, self.get: 35, self.end: 32, self.redrive: 1, self.look: 1, self.clean: 1, self.forget: 1,
        }  # fmt: skip
        while True:
            self.dice.choices(list(acts), list(acts.values()))[0]()


def main(path: str, clock: str, process: str, seed: str) -> None:
    dice = random.Random(int(seed))
    with JournalQueue(
        path,
        "worker",
        clock=SharedClock(clock),
        lease_s=20.0,
        max_attempts=4,
        segment_bytes=dice.choice([300, 3000, 1 << 20]),
        compact_bytes=dice.choice([500, 5000, 1 << 22]),
        backoff_s=2.0,
        backoff_max_s=8.0,
        durability=dice.choice(["os", "os", "interval"]),
        maxsize=dice.choice([0, 0, 500]),
        disk=dying(random.Random(dice.random()), dice.choice([0.0, 0.0, 1.0])),
    ) as q:
        Chaos(q, process, dice).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
