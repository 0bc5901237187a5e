"""The libkestrel queue against a trivial model: one list of items, a set of confirmed ids for each reader."""

import os
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kestrel import segmented
from kestrel.errors import TooLargeError
from tests.crash.disk import CrashDisk
from tests.examples import examples
from tests.kestrel.support import SmallWindows

SIZES = st.sampled_from([1 << 24, 300, 900])
NAMES = st.sampled_from(["a", "b.c", "d"])


class QueueAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk = CrashDisk()
        self.now = 1_500_000_000_000
        self.items: dict[int, bytes] = {}
        self.waiting: dict[str, list[int]] = {"": []}
        self.taken: dict[str, list[int]] = {"": []}

    @initialize(size=SIZES)
    def start(self, size: int) -> None:
        self.queue = self.opened(size)

    def opened(self, size: int) -> segmented.Queue:
        return segmented.Queue("/q", "jobs", journal_bytes=size, checkpoint_s=1000.0, now_ms=self.clock, disk=self.disk)

    def clock(self) -> int:
        self.now += 1
        return self.now

    @rule(size=st.integers(0, 100))
    def put(self, size: int) -> None:
        number = self.queue.put(b"x" * size)
        assert number == len(self.items) + 1
        self.items[number] = b"x" * size
        for waiting in self.waiting.values():
            waiting.append(number)

    @rule(name=NAMES)
    def reader(self, name: str) -> None:
        self.queue.reader(name)
        if "" in self.waiting:
            self.waiting[name], self.taken[name] = self.waiting.pop(""), self.taken.pop("")
        self.waiting.setdefault(name, [])
        self.taken.setdefault(name, [])

    @precondition(lambda self: any(self.waiting.values()))
    @rule(data=st.data(), times=st.integers(1, 4))
    def get(self, data: st.DataObject, times: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.waiting)))
        for _ in range(times):
            found = self.queue.reader(name).get()
            if found is None:
                assert not self.waiting[name]
            else:
                assert (found.id, found.data) == (self.waiting[name][0], self.items[found.id])
                self.taken[name].append(self.waiting[name].pop(0))

    @precondition(lambda self: any(self.taken.values()))
    @rule(data=st.data(), times=st.integers(1, 4))
    def commit(self, data: st.DataObject, times: int) -> None:
        name = data.draw(st.sampled_from(sorted(name for name, taken in self.taken.items() if taken)))
        for _ in range(min(times, len(self.taken[name]))):
            number = data.draw(st.sampled_from(self.taken[name]))
            assert self.queue.reader(name).commit(number)
            assert not self.queue.reader(name).commit(number)
            self.taken[name].remove(number)

    @precondition(lambda self: any(self.taken.values()))
    @rule(data=st.data())
    def unget(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(name for name, taken in self.taken.items() if taken)))
        number = data.draw(st.sampled_from(self.taken[name]))
        assert self.queue.reader(name).unget(number)
        self.taken[name].remove(number)
        back = self.given_back.setdefault(name, [])
        self.waiting[name].insert(len(back), number)
        back.append(number)

    @property
    def given_back(self) -> dict[str, list[int]]:
        """Return the waiting items that were given back, which are at the front."""
        if not hasattr(self, "_back"):
            self._back: dict[str, list[int]] = {}
        for name, back in self._back.items():
            back[:] = [number for number in back if number in self.waiting.get(name, ())]
        return self._back

    @rule(data=st.data())
    def flush(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.waiting)))
        assert self.queue.reader(name).flush() == len(self.waiting[name])
        self.waiting[name].clear()

    @rule()
    def checkpoint(self) -> None:
        self.queue.checkpoint()

    @rule(size=SIZES, crash=st.booleans())
    def reopen(self, size: int, crash: bool) -> None:
        if crash:  # a killed process: everything that was written is there
            self.disk = self.disk.crash(keep=True)
        else:
            self.queue.close()
        self.queue = self.opened(size)
        assert self.queue.damage == []
        for name, taken in self.taken.items():
            self.waiting[name] = sorted(self.waiting[name] + taken)
            taken.clear()
        self._back = {}

    @invariant()
    def the_files_say_the_same(self) -> None:
        if not hasattr(self, "queue"):
            return
        state = segmented.load("/q", "jobs", disk=self.disk)
        assert state.damage == []
        assert sorted(state.readers) == sorted(self.waiting) == self.queue.readers
        for name in self.waiting:
            assert state.pending(name) == sorted(self.waiting[name] + self.taken[name])
            reader = self.queue.reader(name)
            assert len(reader) == len(self.waiting[name]) + len(self.taken[name])
            assert reader.size == sum(len(self.items[n]) for n in self.waiting[name] + self.taken[name])

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.queue.close()


TORTURE = "SEJ_TORTURE_S" in os.environ
QueueAgainstModel.TestCase.settings = settings(max_examples=500 if TORTURE else examples(24), stateful_step_count=60)
TestQueueAgainstModel = QueueAgainstModel.TestCase


class QueueOfLargeItems(SmallWindows, QueueAgainstModel):
    """The same with items that may be larger than any single read, and than the largest file."""

    windows: ClassVar = {
        "kestrel.segmented.journal": ["_GROWN_BYTES"],
        "kestrel.segmented.files": ["_BLOCK"],
        "kestrel.reading": ["_BLOCK"],
    }

    limit = 0

    def opened(self, size: int) -> segmented.Queue:
        self.limit = size
        return super().opened(size)

    @rule(size=st.integers(100, 2500))
    def put_large(self, size: int) -> None:
        if size < self.limit - 100:
            self.put(size)
        elif size >= self.limit:  # no file has room for it
            with pytest.raises(TooLargeError):
                self.queue.put(bytes(size))


QueueOfLargeItems.TestCase.settings = settings(max_examples=500 if TORTURE else examples(16), stateful_step_count=40)
TestQueueOfLargeItems = QueueOfLargeItems.TestCase
