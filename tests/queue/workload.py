"""A process with two queues on one journal that uses every interface of both, and of the journal, until it dies.

The clock is the real one and no lease expires. So an item belongs to its holder until this process ends it or dies.
"""

import asyncio
import contextlib
import fcntl
import os
import queue
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import sej
from sej.codec.format import HEAD, HEAD_SIZE, INT32, INT32_SIZE, OFFSET
from sej.queue.journal_queue import JournalQueue
from sej.system.disk import Disk
from tests.sej.hooks import dying

NAMES = ["a", "b"]
PURGED = "b"
"""The queue that is purged. No item of the other queue may be missing."""
ONCE = 100
"""The number of dedupe keys, which all processes share."""
OUTSIDE = "outside"
MAX_ATTEMPTS = 4


class Workload:
    """One process: its queues, the items of each that it holds, and its random numbers."""

    def __init__(self, path: str, process: str, dice: random.Random, disk: Disk) -> None:
        self.path = path
        self.process = process
        self.dice = dice
        self.disk = disk
        self.number = 0
        self.queues: dict[str, JournalQueue] = {}
        self.held: dict[str, list[sej.Item]] = {name: [] for name in NAMES}
        self.adapters: dict[str, sej.QueueAdapter] = {}
        for name in NAMES:
            self.open(name)

    def report(self, word: str, *about: object) -> None:
        os.write(1, f"{time.monotonic_ns()} {word} {' '.join(map(str, about))}\n".encode())

    def open(self, name: str) -> None:
        self.queues[name] = JournalQueue(
            self.path,
            name,
            create=True,
            lease_s=10_000.0,
            max_attempts=MAX_ATTEMPTS,
            segment_bytes=self.dice.choice([300, 3000, 1 << 20]),
            compact_bytes=self.dice.choice([500, 5000, 1 << 22]),
            backoff_s=0.02,
            backoff_max_s=0.05,
            durability=self.dice.choice(["os", "os", "interval", "disk"]),
            dead_letter=self.path + "-dead",
            disk=self.disk,
        )
        self.adapters[name] = sej.QueueAdapter(self.queues[name])

    def reopen(self) -> None:
        name = self.dice.choice(NAMES)
        self.queues[name].close()
        self.held[name] = []
        self.open(name)

    # --- putting

    def fresh(self, name: str, count: int, kind: str = "x") -> list[str]:
        self.number += count
        return [f"{kind}{name}-{self.process}-{n}" for n in range(self.number - count, self.number)]

    def put(self) -> None:
        name = self.dice.choice(NAMES)
        soon = self.dice.random() < 0.1
        values = self.fresh(name, self.dice.choice([1, 1, 2, 5]), "e" if soon else "x")
        for value in values:
            self.report("putting", name, value)
        match self.dice.randrange(4):
            case 0 if not soon:
                adapter = self.adapters[name]
                for value in values:
                    adapter.put(value.encode(), block=self.dice.random() < 0.5)
                    self.report("added", name, value)
                return
            case 1 if not soon:
                offsets = asyncio.run(self.put_async(name, values))
            case _:
                offsets = self.queues[name].put_many(
                    [value.encode() for value in values],
                    delay_s=self.dice.choice([0, 0, 0, 0.01, 0.1]),
                    priority=self.dice.choice([0, 0, 0, -3, 2]),
                    expire_s=0.02 if soon else 10**8 if self.dice.random() < 0.1 else None,
                )
        for value, offset in zip(values, offsets, strict=True):
            self.report("put", name, value, offset)

    async def put_async(self, name: str, values: list[str]) -> Sequence[int]:
        q = sej.AsyncQueue(self.queues[name])
        return await asyncio.gather(*(q.put(value.encode()) for value in values))

    def put_once(self) -> None:
        """Put values that other processes may also put, concurrently or before."""
        name = NAMES[0]
        values = [f"d{name}-{n}" for n in self.dice.sample(range(ONCE), self.dice.choice([1, 3]))]
        keys = [value.encode() for value in values]
        for value in values:
            self.report("putting", name, value)
        offsets = self.queues[name].put_many(keys, dedupe_keys=keys, delay_s=self.dice.choice([0, 0, 0.05]))
        for value, offset in zip(values, offsets, strict=True):
            self.report("put", name, value, offset)

    # --- taking and ending

    def get(self) -> None:
        name = self.dice.choice(NAMES)
        items = self.queues[name].get_many(self.dice.choice([1, 1, 2, 10]), timeout=self.dice.choice([0, 0, 0.01]))
        self.take(name, items)

    def take(self, name: str, items: list[sej.Item]) -> None:
        for item in items:
            self.report("got", name, item.message.offset)
        self.held[name] += items

    def get_async(self) -> None:
        name = self.dice.choice(NAMES)
        self.take(name, asyncio.run(self.gather(name)))

    async def gather(self, name: str) -> list[sej.Item]:
        """Some tasks get; one is cancelled, and what it had is given back."""
        q = sej.AsyncQueue(self.queues[name])
        tasks = [asyncio.create_task(q.get_many(2, timeout=0.01)) for _ in range(3)]
        await asyncio.sleep(self.dice.choice([0, 0.001, 0.01]))
        tasks[0].cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        return [item for items in found if isinstance(items, list) for item in items]

    def adapt(self) -> None:
        """As a program that was written for queue.Queue does."""
        name = self.dice.choice(NAMES)
        adapter = self.adapters[name]
        with contextlib.suppress(queue.Empty):
            adapter.get(timeout=self.dice.choice([0, 0.01]))
            offset = adapter._items()[-1].message.offset
            self.report("got", name, offset)
            self.report("ending", name, offset)
            adapter.task_done()
            self.report("done", name, offset)

    def end(self) -> None:
        name = self.dice.choice(NAMES)
        held = self.held[name]
        if not held:
            return
        item = held.pop(self.dice.randrange(len(held)))
        offset = item.message.offset
        match self.dice.choice(["done"] * 6 + ["many"] * 2 + ["retry", "back", "fail", "extend", "block"]):
            case "many":
                items = [item, *held]
                self.held[name] = []
                for one in items:
                    self.report("ending", name, one.message.offset)
                self.queues[name].done_many(items)
                for one in items:
                    self.report("done", name, one.message.offset)
            case "retry":
                item.retry(self.dice.choice([0, 0.03, None]))
            case "back":
                item.give_back()
            case "fail":
                item.fail("by chance")
            case "extend":
                item.extend(20_000.0)
                held.append(item)
            case "block" if self.dice.random() < 0.5:
                with contextlib.suppress(RuntimeError), item:
                    raise RuntimeError("by chance")
            case _:
                self.report("ending", name, offset)
                with item:
                    pass
                self.report("done", name, offset)

    # --- other operations

    def purge(self) -> None:
        if self.dice.random() < 0.8:  # or else nothing would be there for long
            return
        self.report("purging", PURGED)
        self.queues[PURGED].purge()
        self.report("purged", PURGED, sej.Journal(self.path).end_offset)

    def redrive(self) -> None:
        with contextlib.suppress(sej.LockedError):
            self.queues[self.dice.choice(NAMES)].redrive(self.dice.choice([None, 1, 3]))

    def look(self) -> None:
        stats = self.queues[self.dice.choice(NAMES)].stats()
        assert min(stats.values()) >= 0
        assert stats.lost == 0

    def clean(self) -> None:
        sej.Journal(self.path, disk=self.disk).clean(max_bytes=1000)

    def consume(self) -> None:
        """Consume the journal as a named consumer, next to the queues."""
        consumer = sej.Consumer(self.path, "consumer", timeout=0.0, disk=self.disk)
        with contextlib.suppress(sej.LockedError):
            consumer.run_batches(lambda batch: None, batch_messages=20)

    def read(self) -> None:
        """Read as the original does, which does not use this library."""
        outside(Path(self.path), OUTSIDE, self.dice.choice([10, 1000]), lambda n, value: self.report("found", value, n))

    def acts(self) -> dict[Callable[[], None], int]:
        """What it does, and how often."""
        return {
            self.put: 25, self.put_once: 8, self.get: 25, self.get_async: 3, self.adapt: 8, self.end: 40,
            self.purge: 1, self.redrive: 1, self.look: 1, self.clean: 1, self.consume: 1, self.read: 2, self.reopen: 1,
        }  # fmt: skip

    def run(self) -> None:
        acts = self.acts()
        while True:
            self.dice.choices(list(acts), list(acts.values()))[0]()


def outside(path: Path, name: str, most: int, report: Callable[[int, str], None]) -> None:
    """Read at most so many messages as the original's reader of that name does, and store its offset.

    Args:
        path: the journal.
        name: the reader.
        most: the largest number of messages.
        report: called with the offset and the value of each message.
    """
    with (path / "ofs" / f"{name}.lck").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        kept = path / "ofs" / f"{name}.ofs"
        data = kept.read_bytes()
        (offset,) = OFFSET.unpack(data) if data else (0,)
        end = offset + most
        while offset < end:
            there = [entry for entry in os.listdir(path / "jnl") if int(entry.removesuffix(".jnl"), 16) <= offset]
            if not there:
                assert offset == 0, f"{name} is at {offset}, but the journal begins after that"
                break
            new = [row for row in frames((path / "jnl" / max(there)).read_bytes()) if offset <= row[0] < end]
            if not new:
                break
            for number, value in new:
                assert number == offset, f"{name} looks for {offset} and finds {number}"
                report(number, value)
                offset += 1
        temporary = path.parent / f"{name}.new"
        temporary.write_bytes(OFFSET.pack(offset))
        temporary.replace(kept)


def frames(data: bytes) -> list[tuple[int, str]]:
    """Return offset and value of each whole message."""
    found = []
    at = 0
    while len(data) - at >= HEAD_SIZE:
        offset, _, _, key_size = HEAD.unpack_from(data, at)
        body = at + HEAD_SIZE + key_size + INT32_SIZE
        if len(data) < body:
            break
        (value_size,) = INT32.unpack_from(data, body - INT32_SIZE)
        end = body + value_size + INT32_SIZE
        if len(data) < end or INT32.unpack_from(data, end - INT32_SIZE) != (end - at,):
            break
        found.append((offset, data[body : body + value_size].decode()))
        at = end
    return found


def main(kind: type[Workload], path: str, process: str, seed: str) -> None:
    dice = random.Random(int(seed))
    kind(path, process, dice, dying(random.Random(dice.random()), dice.choice([0.0, 0.3, 1.0]))).run()


if __name__ == "__main__":
    main(Workload, *sys.argv[1:])
