"""Both queues against a trivial model, two lists a reader: any operation, a reopening or a crash at any time."""

import os
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import kestrel
from kestrel import segmented
from kestrel.errors import TooLargeError
from tests.crash.disk import CrashDisk
from tests.examples import examples
from tests.kestrel.support import START, SmallWindows, Three, Two


class Expected:
    """What a reader should see: what waits, head first, what is taken, and what was given back."""

    def __init__(self) -> None:
        self.waiting: list[bytes] = []
        self.taken: dict[int, bytes] = {}
        self.back: list[bytes] = []


def some_reader(data: st.DataObject, machine: "QueueAgainstLists", *, taken: bool = False) -> str:
    names = [name for name, reader in machine.readers.items() if reader.taken or not taken]
    return data.draw(st.sampled_from(sorted(names)))


class QueueAgainstLists(RuleBasedStateMachine):
    kind: ClassVar[Any]
    sizes: ClassVar[list[dict[str, Any]]]
    compare: Any
    """Compare the files with what a reader should see."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = CrashDisk()  # in memory, so fast
        self.readers = {"": Expected()}
        self.now, self.count = START, 0
        self.queue: Any = None

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.sizes_now = data.draw(st.sampled_from(self.sizes))
        self.open()

    def open(self) -> None:
        self.queue = self.kind.opener("/q", "cars", disk=self.disk, now_ms=self.clock, **self.sizes_now)
        assert self.queue.damage == []

    def clock(self) -> int:
        self.now += 1
        return self.now

    def calls(self, name: str) -> Any:
        return self.kind(self.queue, name)

    def add(self, *items: bytes) -> None:
        for reader in self.readers.values():
            reader.waiting.extend(items)

    def item(self, size: int, byte: int = 120) -> bytes:
        self.count += 1
        return b"%09d:" % self.count + bytes([byte]) * size

    @rule(size=st.integers(0, 120))
    def put(self, size: int) -> None:
        data = self.item(size)
        self.queue.put(data)
        self.add(data)

    @rule(sizes=st.lists(st.integers(0, 60), max_size=20))
    def put_many(self, sizes: list[int]) -> None:
        items = [self.item(size) for size in sizes]
        self.queue.put_many(items)
        self.add(*items)

    @rule(data=st.data(), times=st.integers(1, 5), ending=st.booleans())
    def take(self, data: st.DataObject, times: int, ending: bool) -> None:
        name = some_reader(data, self)
        calls, reader = self.calls(name), self.readers[name]
        for _ in range(times):
            head = calls.peek()
            assert (head and head.data) == (reader.waiting[0] if reader.waiting else None)
            found = calls.take()
            if found is None:
                assert not reader.waiting
                return
            assert found[0] not in reader.taken
            assert found[1] == reader.waiting.pop(0)
            reader.taken[found[0]] = found[1]
            if ending:
                assert calls.end(found[0])
                del reader.taken[found[0]]

    @precondition(lambda self: any(reader.taken for reader in self.readers.values()))
    @rule(data=st.data(), what=st.sampled_from(["end", "back"]), times=st.integers(1, 4))
    def end(self, data: st.DataObject, what: str, times: int) -> None:
        name = some_reader(data, self, taken=True)
        calls, reader = self.calls(name), self.readers[name]
        for _ in range(min(times, len(reader.taken))):
            handle = data.draw(st.sampled_from(sorted(reader.taken)))
            assert getattr(calls, what)(handle)
            assert not calls.end(handle)
            item = reader.taken.pop(handle)
            if what == "back":
                self.give_back(reader, item)

    def give_back(self, reader: Expected, item: bytes) -> None:
        reader.waiting.insert(0, item)

    @rule(data=st.data())
    def flush(self, data: st.DataObject) -> None:
        name = some_reader(data, self)
        assert self.calls(name).flush() == len(self.readers[name].waiting)
        self.readers[name].waiting.clear()

    @rule(data=st.data(), crash=st.booleans())
    def reopen(self, data: st.DataObject, crash: bool) -> None:
        if crash:  # a killed process: everything that was written is there
            self.disk = self.disk.crash(keep=True)
        else:
            self.queue.close()
        self.start(data)
        self.recover()

    def recover(self) -> None:
        for reader in self.readers.values():
            reader.waiting[:0] = [item for _, item in sorted(reader.taken.items())]
            reader.taken.clear()

    @invariant()
    def the_files_say_the_same(self) -> None:
        if self.queue is None:
            return
        for name, reader in self.readers.items():
            self.compare(name, reader)
            assert len(self.calls(name)) == len(reader.waiting) + len(reader.taken)

    def teardown(self) -> None:
        if self.queue is not None:
            self.queue.close()


class Kestrel2(QueueAgainstLists):
    kind = Two
    sizes: ClassVar = [
        {"max_memory_bytes": memory, "journal_bytes": journal, "max_journal_bytes": total, "compact_delay_s": 0.01}
        for memory, journal, total in (
            (1 << 30, 1 << 30, 1 << 30), (1500, 700, 4000), (400, 100, 900), (1 << 20, 60, 1 << 20),
        )
    ]  # fmt: skip

    @rule()
    def get(self) -> None:
        item, waiting = self.queue.get(), self.readers[""].waiting
        assert (item and item.data) == (waiting.pop(0) if waiting else None)

    @precondition(lambda self: self.readers[""].taken)
    @rule(data=st.data())
    def continue_(self, data: st.DataObject) -> None:
        xid = data.draw(st.sampled_from(sorted(self.readers[""].taken)))
        item = self.item(3)
        assert self.queue.continue_(xid, item)
        assert not self.queue.continue_(xid, b"never")
        del self.readers[""].taken[xid]
        self.add(item)

    @rule()
    def pack(self) -> None:
        self.queue.close()
        before = kestrel.replay("/q", "cars", disk=self.disk)
        kestrel.pack("/q", "cars", disk=self.disk)
        after = kestrel.replay("/q", "cars", disk=self.disk)
        assert after[:2] == before[:2]
        assert after.last_xid == before.last_xid or not (after.items or after.open_transactions)
        self.open()
        self.recover()

    def compare(self, name: str, reader: Expected) -> None:
        state = kestrel.replay("/q", "cars", disk=self.disk)
        assert state.damage == []
        assert [item.data for item in state.items] == reader.waiting
        assert {xid: item.data for xid, item in state.open_transactions.items()} == reader.taken
        assert self.queue.counters().bytes == sum(map(len, reader.waiting))


class Libkestrel(QueueAgainstLists):
    kind = Three
    sizes: ClassVar = [{"journal_bytes": size, "checkpoint_s": 1000.0} for size in (1 << 24, 300, 900)]

    @rule(name=st.sampled_from(["a", "b.c", "d"]))
    def reader(self, name: str) -> None:
        self.queue.reader(name)
        if "" in self.readers:
            self.readers[name] = self.readers.pop("")
        self.readers.setdefault(name, Expected())

    @rule()
    def checkpoint(self) -> None:
        self.queue.checkpoint()

    def give_back(self, reader: Expected, item: bytes) -> None:
        """After the others that were given back."""
        reader.back = [one for one in reader.back if one in reader.waiting]
        reader.waiting.insert(len(reader.back), item)
        reader.back.append(item)

    def recover(self) -> None:
        for reader in self.readers.values():
            reader.waiting = sorted([*reader.waiting, *reader.taken.values()])
            reader.taken, reader.back = {}, []

    def compare(self, name: str, reader: Expected) -> None:
        due = sorted([*reader.waiting, *reader.taken.values()])
        assert segmented.load("/q", "cars", disk=self.disk).damage == []
        assert Three.left("/q", self.disk, name) == due
        assert self.queue.reader(name).size == sum(map(len, due))
        assert self.queue.readers == sorted(self.readers)


class LargeItems(SmallWindows, QueueAgainstLists):
    """Items that may be larger than any single read or write, and than the largest file."""

    windows: ClassVar = {
        "kestrel.files": ["_COPY_SIZE"],
        "kestrel.reading": ["_BLOCK"],
        "kestrel.v2.replay": ["_BLOCK"],
        "kestrel.v2.contents": ["_FLUSH_STEP", "MEMORY_BYTES"],
        "kestrel.segmented.journal": ["_GROWN_BYTES"],
        "kestrel.segmented.files": ["_BLOCK"],
    }

    @rule(size=st.integers(100, 2500), byte=st.sampled_from([0, 8, 120]))
    def put_large(self, size: int, byte: int) -> None:
        limit = self.sizes_now["journal_bytes"] if self.kind is Three else 1 << 30
        data = self.item(size, byte)
        if size < limit - 100:
            self.queue.put(data)
            self.add(data)
        elif size >= limit:  # no file has room for it
            with pytest.raises(TooLargeError):
                self.queue.put(data)


class LargeItems2(LargeItems, Kestrel2):
    pass


class LargeItems3(LargeItems, Libkestrel):
    pass


TORTURE = "SEJ_TORTURE_S" in os.environ


@pytest.mark.parametrize("machine", [Kestrel2, Libkestrel, LargeItems2, LargeItems3])
def test_the_queue_is_as_the_model(machine: type[QueueAgainstLists]) -> None:
    large = issubclass(machine, LargeItems)
    count = 500 if TORTURE else examples(16 if large else 24)
    run_state_machine_as_test(machine, settings=settings(max_examples=count, stateful_step_count=40 if large else 60))
