"""The queue against a trivial model: two lists. Any operation, and a reopening at any time."""

import os
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import kestrel
from tests.crash.disk import CrashDisk
from tests.examples import examples
from tests.kestrel.support import SmallWindows

SIZES = st.sampled_from([(1 << 30, 1 << 30, 1 << 30), (1500, 700, 4000), (400, 100, 900), (1 << 20, 60, 1 << 20)])


class QueueAgainstLists(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = CrashDisk()  # in memory, so fast
        self.waiting: list[bytes] = []
        self.open: dict[int, bytes] = {}
        self.now = 1_500_000_000_000
        self.count = 0

    @initialize(sizes=SIZES)
    def start(self, sizes: tuple[int, int, int]) -> None:
        self.sizes = sizes
        self.queue = self.opened()

    def opened(self) -> kestrel.Queue:
        memory, journal, total = self.sizes
        return kestrel.Queue(
            "/q",
            "cars",
            disk=self.disk,
            max_memory_bytes=memory,
            journal_bytes=journal,
            max_journal_bytes=total,
            compact_delay_s=0.01,
            now_ms=self.clock,
        )

    def clock(self) -> int:
        self.now += 1
        return self.now

    @rule(size=st.integers(0, 120))
    def put(self, size: int) -> None:
        self.count += 1
        data = b"%d:" % self.count + b"x" * size
        self.queue.put(data)
        self.waiting.append(data)

    @rule(sizes=st.lists(st.integers(0, 60), max_size=20))
    def put_many(self, sizes: list[int]) -> None:
        values = [b"%d.%d:" % (self.count, index) + b"y" * size for index, size in enumerate(sizes)]
        assert self.queue.put_many(values) == len(values)
        self.waiting.extend(values)

    @rule()
    def get(self) -> None:
        item = self.queue.get()
        assert (None if item is None else item.data) == (self.waiting.pop(0) if self.waiting else None)

    @rule()
    def peek(self) -> None:
        item = self.queue.peek()
        assert (None if item is None else item.data) == (self.waiting[0] if self.waiting else None)

    @rule(times=st.integers(1, 5))
    def reserve(self, times: int) -> None:
        for _ in range(times):
            found = self.queue.reserve()
            if found is None:
                assert not self.waiting
            else:
                assert found[0] not in self.open
                assert found[1].data == self.waiting[0]
                self.open[found[0]] = self.waiting.pop(0)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        xid = data.draw(st.sampled_from(sorted(self.open)))
        assert self.queue.confirm(xid)
        assert not self.queue.confirm(xid)
        del self.open[xid]

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def unreserve(self, data: st.DataObject) -> None:
        xid = data.draw(st.sampled_from(sorted(self.open)))
        assert self.queue.unreserve(xid)
        self.waiting.insert(0, self.open.pop(xid))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def continue_(self, data: st.DataObject) -> None:
        xid = data.draw(st.sampled_from(sorted(self.open)))
        self.count += 1
        assert self.queue.continue_(xid, b"next %d" % self.count)
        assert not self.queue.continue_(xid, b"never")
        del self.open[xid]
        self.waiting.append(b"next %d" % self.count)

    @rule()
    def flush(self) -> None:
        assert self.queue.flush() == len(self.waiting)
        self.waiting.clear()

    @rule(sizes=SIZES)
    def reopen(self, sizes: tuple[int, int, int]) -> None:
        self.queue.close()
        self.sizes = sizes
        self.queue = self.opened()
        assert self.queue.damage == []
        self.back_out()

    @rule()
    def pack(self) -> None:
        self.queue.close()
        before = kestrel.replay("/q", "cars", disk=self.disk)
        kestrel.pack("/q", "cars", disk=self.disk)
        after = kestrel.replay("/q", "cars", disk=self.disk)
        assert after[:2] == before[:2]
        assert after.last_xid == before.last_xid or not (after.items or after.open_transactions)
        self.queue = self.opened()
        self.back_out()

    def back_out(self) -> None:
        self.waiting[:0] = [data for _, data in sorted(self.open.items())]
        self.open.clear()

    @invariant()
    def the_journal_says_the_same(self) -> None:
        if not hasattr(self, "queue"):
            return
        state = kestrel.replay("/q", "cars", disk=self.disk)
        assert [item.data for item in state.items] == self.waiting
        assert {xid: item.data for xid, item in state.open_transactions.items()} == self.open
        assert state.damage == []
        assert len(self.queue) == len(self.waiting)
        assert self.queue.counters().bytes == sum(map(len, self.waiting))

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.queue.close()


TORTURE = "SEJ_TORTURE_S" in os.environ
QueueAgainstLists.TestCase.settings = settings(max_examples=500 if TORTURE else examples(24), stateful_step_count=60)
TestQueueAgainstLists = QueueAgainstLists.TestCase


class QueueOfLargeItems(SmallWindows, QueueAgainstLists):
    """The same with items that may be larger than any single read or write."""

    windows: ClassVar = {
        "kestrel.reading": ["_BLOCK"],
        "kestrel.v2.replay": ["_BLOCK"],
        "kestrel.v2.contents": ["_FLUSH_STEP", "MEMORY_BYTES"],
        "kestrel.files": ["_COPY_SIZE"],
    }

    @rule(size=st.integers(100, 2500), byte=st.sampled_from([0, 8, 120]))
    def put_large(self, size: int, byte: int) -> None:
        self.count += 1
        data = b"%d:" % self.count + bytes([byte]) * size
        self.queue.put(data)
        self.waiting.append(data)


QueueOfLargeItems.TestCase.settings = settings(max_examples=500 if TORTURE else examples(16), stateful_step_count=40)
TestQueueOfLargeItems = QueueOfLargeItems.TestCase
