"""Random histories of two queues over one journal, against a model of thirty lines."""

import os
import tempfile
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import sej
from sej.queue.journal_queue import JournalQueue
from tests.queue.support import NS, FakeClock, kill, opened

LEASE_S, ATTEMPTS = 60.0, 3
HEADERS = st.none() | st.none() | st.dictionaries(st.text("aé", min_size=1, max_size=2), st.text("b\0", max_size=30))


class Model:
    """What a queue is: items by offset, each with a band, a time, headers, its attempts and, while held, by whom."""

    def __init__(self) -> None:
        self.items: dict[int, dict[str, Any]] = {}
        self.done = self.end = 0
        self.dead: list[tuple[int, bytes, dict[str, str]]] = []

    def put(self, band: int, ready_at: int, value: bytes | None = None, headers: dict[str, str] | None = None) -> int:
        value, headers = value or b"%d" % self.end, headers or {}
        self.items[self.end] = {
            "band": band, "at": ready_at, "tries": 0, "holder": None, "value": value, "headers": headers
        }  # fmt: skip
        self.end += 1
        return self.end - 1

    def get(self, who: int, now: int) -> tuple[int, int, bytes, dict[str, str]] | None:
        while ready := [n for n, item in self.items.items() if item["at"] <= now]:
            best = min(ready, key=lambda n: (-self.items[n]["band"], n))
            item = self.items[best]
            if item["tries"] == ATTEMPTS:
                self.bury(best)
                continue
            item.update(tries=item["tries"] + 1, holder=who, at=now + int(LEASE_S * NS))
            return best, item["tries"], item["value"], item["headers"]
        return None

    def holds(self, who: int, offset: int, attempt: int) -> bool:
        item = self.items.get(offset)
        return item is not None and (item["holder"], item["tries"]) == (who, attempt)

    def give_back(self, offset: int, at: int) -> None:
        self.items[offset].update(holder=None, at=at)

    def bury(self, offset: int) -> None:
        item = self.items.pop(offset)
        self.dead.append((item["band"], item["value"], item["headers"]))


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        self.model = Model()
        self.queues = [self.open(), self.open()]
        self.held: list[tuple[int, Any]] = []

    def open(self) -> JournalQueue:
        return opened(
            self.folder.name, self.clock, lease_s=LEASE_S, max_attempts=ATTEMPTS, segment_bytes=400, compact_bytes=1000
        )

    @rule(
        who=st.integers(0, 1),
        band=st.sampled_from([0, 0, 0, 1, -1]),
        delay=st.sampled_from([0, 0, 5, 70]),
        headers=HEADERS,
    )
    def put(self, who: int, band: int, delay: int, headers: dict[str, str] | None) -> None:
        expected = self.model.put(band, self.clock.boot + delay * NS if delay else 0, headers=headers)
        assert self.queues[who].put(b"%d" % expected, priority=band, delay_s=delay, headers=headers) == expected

    @rule(who=st.integers(0, 1), count=st.integers(1, 5), headers=HEADERS)
    def put_many(self, who: int, count: int, headers: dict[str, str] | None) -> None:
        expected = [self.model.put(0, 0, headers=headers) for _ in range(count)]
        assert list(self.queues[who].put_many([b"%d" % n for n in expected], headers=headers)) == expected

    @rule(who=st.integers(0, 1), n=st.integers(1, 4))
    def get(self, who: int, n: int) -> None:
        self.clock.move(0.2)
        found = self.queues[who].get_many(n, timeout=0)
        expected = [row for _ in range(n) if (row := self.model.get(who, self.clock.boot)) is not None]
        assert [(item.message.offset, item.attempts, item.value, item.headers) for item in found] == expected
        self.held += [(who, item) for item in found]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), how=st.sampled_from(["done", "retry", "delay", "fail", "extend"]))
    def end(self, data: st.DataObject, how: str) -> None:
        who, item = data.draw(st.sampled_from(self.held))
        offset, now = item.message.offset, self.clock.boot
        model = self.model
        good = model.holds(who, offset, item.attempts) and not item.ended
        call = {
            "done": item.done,
            "retry": lambda: item.retry(0),
            "delay": lambda: item.retry(30),
            "fail": item.fail,
            "extend": lambda: item.extend(90),
        }[how]
        try:
            call()
            assert good, "the lease was lost"
        except sej.LeaseLostError:
            assert not good
            return
        if how == "extend":
            model.items[offset]["at"] = now + 90 * NS
            return
        self.held.remove((who, item))
        if how == "done":
            del model.items[offset]
            model.done += 1
        elif how == "fail" or item.attempts == ATTEMPTS:
            model.bury(offset)
        else:
            model.give_back(offset, now + 30 * NS if how == "delay" else 0)

    @rule(seconds=st.sampled_from([1, 20, 61, 1000]))
    def move(self, seconds: int) -> None:
        self.clock.move(seconds)

    @rule(who=st.integers(0, 1), kindly=st.booleans())
    def reopen(self, who: int, kindly: bool) -> None:
        if kindly:
            self.queues[who].close()
        else:
            kill(self.queues[who])
        self.queues[who] = self.open()
        for offset in [n for n, item in self.model.items.items() if item["holder"] == who]:
            self.model.give_back(offset, 0)
        self.held = [(other, item) for other, item in self.held if other != who]

    @rule()
    def redrive(self) -> None:
        dead, self.model.dead = self.model.dead, []
        assert self.queues[0].redrive() == len(dead)
        for band, value, headers in dead:
            self.model.put(band, 0, value, headers)

    @invariant()
    def adds_up(self) -> None:
        for queue in self.queues:
            stats = queue.stats()
            assert stats.ready + stats.delayed + stats.leased == len(self.model.items)
            assert (stats.done, stats.dead) == (self.model.done, len(self.model.dead))
            assert queue._core.log.state.head() == min(self.model.items, default=self.model.end)
            assert set(queue._core.log.state.headers) == {n for n, item in self.model.items.items() if item["headers"]}

    def teardown(self) -> None:
        for queue in self.queues:
            queue.close()
        assert sej.read_offset(self.folder.name, "worker") in (
            None if self.model.end == 0 else -1,
            min(self.model.items, default=self.model.end),
        )
        assert sej.Journal(self.folder.name).verify() == []
        self.folder.cleanup()


TestQueueAgainstModel = Machine.TestCase
TORTURE = "SEJ_TORTURE_S" in os.environ
TestQueueAgainstModel.settings = settings(max_examples=500 if TORTURE else 12, stateful_step_count=30)
