"""Random histories of two queues over one journal, with and without an order of keys, against a model of a queue.

The model is a list of items. It looks at all of them for each delivery, and knows nothing of how the queue keeps them.
"""

import os
import random
import tempfile
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import sej
from sej.queue.journal_queue import JournalQueue
from tests.crash.harness import seeded_random
from tests.queue.support import NS, FakeClock, kill, opened

LEASE_S, ATTEMPTS = 60.0, 3
KEYS = [b"", b"a", b"a", b"b", b"c"]
BANDS = [0, 0, 0, 1, -1]
DELAYS = [0, 0, 5, 70]
ENDS = ["done", "retry", "delay", "fail", "extend", "back"]
MOVES = [1, 20, 61, 1000]
PICK = st.integers(0, 100)
KEEPS = st.sampled_from([None, None, 60, 1000])
HEADERS = st.none() | st.none() | st.dictionaries(st.text("aé", min_size=1, max_size=2), st.text("b\0", max_size=30))


class Entry:
    """An item: ``at`` is when it is ready, or when its lease ends; ``begun``: it was delivered and has not ended."""

    keep_s: int | None = None

    def __init__(self, offset: int, key: bytes, band: int, at: int, value: bytes, headers: dict[str, str]) -> None:
        self.offset, self.key, self.band, self.at, self.value = offset, key, band, at, value
        self.headers = headers
        self.tries = 0
        self.who: int | None = None
        self.begun = False


class Model:
    """What a queue is."""

    def __init__(self, order: str, per_key: int, block: bool) -> None:
        self.order, self.per_key, self.block = order, per_key, block
        self.entries: list[Entry] = []
        self.dead: list[Entry] = []
        self.results: dict[int, tuple[object, int]] = {}
        self.end = self.done = 0

    def put(
        self,
        key: bytes,
        band: int = 0,
        at: int = 0,
        value: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> int:
        self.entries.append(Entry(self.end, key, band, at, value or b"%d" % self.end, headers or {}))
        self.end += 1
        return self.end - 1

    def coming(self, now: int) -> list[Entry]:
        """The items that may be delivered: those delivered before, those without a key, and the first of each key."""
        if self.order == "ready":
            return [entry for entry in self.entries if entry.at <= now]
        found = [entry for entry in self.entries if entry.at <= now and (not entry.key or entry.begun)]
        for key in {entry.key for entry in self.entries} - {b""}:
            others = [entry for entry in self.entries if entry.key == key]
            busy = sum(other.begun for other in others)
            if self.block:
                busy += sum(letter.key == key for letter in self.dead)
            waiting = [other for other in others if other.at <= now and not other.begun]
            if waiting and busy < self.per_key:
                found.append(min(waiting, key=lambda other: other.offset))
        return found

    def get(self, who: int, now: int) -> tuple[int, int, bytes, dict[str, str]] | None:
        while ready := self.coming(now):
            best = max(ready, key=lambda entry: (entry.band, -entry.offset))
            if best.tries == ATTEMPTS:
                self.kill(best, now)
                continue
            best.tries += 1
            best.who, best.at, best.begun = who, now + int(LEASE_S * NS), True
            return best.offset, best.tries, best.value, best.headers
        return None

    def find(self, offset: int) -> Entry | None:
        return next((entry for entry in self.entries if entry.offset == offset), None)

    def kill(self, entry: Entry, now: int) -> None:
        self.end_with(entry, sej.ItemFailedError, now)
        self.dead.append(entry)

    def end_with(self, entry: Entry, result: object, now: int) -> None:
        self.entries.remove(entry)
        if entry.keep_s is not None:
            self.results[entry.offset] = result, now + entry.keep_s * NS

    def result(self, offset: int, now: int) -> object:
        entry, (result, until) = self.find(offset), self.results.get(offset, (None, 0))
        if entry is not None and entry.keep_s is not None:
            return TimeoutError
        return result if until > now else sej.ResultGoneError

    def redrive(self, letters: list[Entry]) -> None:
        for letter in letters:
            self.dead.remove(letter)
            self.put(letter.key, letter.band, value=letter.value, headers=letter.headers)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        self.held: list[tuple[int, Any]] = []
        self.queues: list[JournalQueue] = []
        self.model = Model("key", 1, False)
        self.sizes: dict[str, Any] = {"segment_bytes": 400, "compact_bytes": 1500}

    @initialize(order=st.sampled_from(["key", "key", "ready"]), per_key=st.sampled_from([1, 1, 2]), block=st.booleans())
    def begin(self, order: str, per_key: int, block: bool) -> None:
        self.model = Model(order, per_key, block and order == "key")
        self.queues = [self.open(), self.open()]

    def open(self) -> JournalQueue:
        return opened(
            self.folder.name,
            self.clock,
            lease_s=LEASE_S,
            max_attempts=ATTEMPTS,
            **self.sizes,
            order=self.model.order,
            on_dead="block" if self.model.block else "next",
            per_key=self.model.per_key,
        )

    @rule(
        who=st.integers(0, 1),
        key=st.sampled_from(KEYS),
        band=st.sampled_from(BANDS),
        delay=st.sampled_from(DELAYS),
        headers=HEADERS,
        keep=KEEPS,
    )
    def put(
        self, who: int, key: bytes, band: int, delay: int, headers: dict[str, str] | None = None, keep: int | None = 60
    ) -> None:
        expected = self.model.put(key, band, self.clock.boot + delay * NS if delay else 0, headers=headers)
        put = self.queues[who].put
        self.model.entries[-1].keep_s = keep
        assert put(b"%d" % expected, key, priority=band, delay_s=delay, headers=headers, keep_result=keep) == expected

    @rule(who=st.integers(0, 1), keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=6), headers=HEADERS)
    def put_many(self, who: int, keys: list[bytes], headers: dict[str, str] | None = None) -> None:
        expected = [self.model.put(key, headers=headers) for key in keys]
        assert list(self.queues[who].put_many([b"%d" % n for n in expected], keys, headers=headers)) == expected

    @rule(who=st.integers(0, 1), n=st.integers(1, 5))
    def get(self, who: int, n: int, look: bool = True) -> None:
        self.clock.move(0.2)
        look = look and self.model.per_key == 1
        seen = [item.offset for item in self.queues[who].peek()] if look else None
        found = self.queues[who].get_many(n, timeout=0)
        exhausted = len(self.model.dead)
        expected = [row for _ in range(n) if (row := self.model.get(who, self.clock.boot)) is not None]
        assert [(item.message.offset, item.attempts, item.value, item.headers) for item in found] == expected
        if seen is not None and len(self.model.dead) == exhausted:
            assert seen == [row[0] for row in expected[:1]]
        self.held += [(who, item) for item in found]

    @precondition(lambda self: self.held)
    @rule(pick=PICK, how=st.sampled_from(ENDS))
    def end(self, pick: int, how: str) -> None:
        who, item = self.held[pick % len(self.held)]
        now, entry = self.clock.boot, self.model.find(item.message.offset)
        good = entry is not None and (entry.who, entry.tries) == (who, item.attempts) and not item.ended
        result = None if pick % 3 == 0 else bytes(pick) * (pick % 5)
        call = {
            "done": lambda: item.done(result),
            "retry": lambda: item.retry(0),
            "delay": lambda: item.retry(30),
            "fail": item.fail,
            "extend": lambda: item.extend(90),
            "back": item.give_back,
        }[how]
        try:
            call()
            assert good, "the lease was lost"
        except sej.LeaseLostError:
            assert not good
            return
        assert entry is not None
        if how == "extend":
            entry.at = now + 90 * NS
            return
        self.held.remove((who, item))
        if how == "done":
            self.model.end_with(entry, result, now)
            self.model.done += 1
        elif how == "fail" or (item.attempts == ATTEMPTS and how != "back"):
            self.model.kill(entry, now)
        else:
            entry.who, entry.at = None, now + 30 * NS if how == "delay" else 0
            entry.tries -= how == "back"

    @rule(seconds=st.sampled_from(MOVES))
    def move(self, seconds: int) -> None:
        self.clock.move(seconds)

    @rule(who=st.integers(0, 1), kindly=st.booleans())
    def reopen(self, who: int, kindly: bool) -> None:
        if kindly:
            self.queues[who].close()
        else:
            kill(self.queues[who])
        self.queues[who] = self.open()
        for entry in self.model.entries:
            if entry.who == who:
                entry.who, entry.at = None, 0
        self.held = [(other, item) for other, item in self.held if other != who]

    @precondition(lambda self: self.model.end)
    @rule(pick=PICK)
    def cancel(self, pick: int) -> None:
        offset = max(self.model.end - 1 - pick, 0)
        entry = self.model.find(offset)
        letter = next((letter for letter in self.model.dead if letter.offset == offset), None)
        if letter is not None and self.model.block:
            return
        assert self.queues[0].cancel(offset) == (entry is not None)
        if entry is not None:
            self.model.entries.remove(entry)
            self.model.done += 1

    @rule()
    def redrive(self) -> None:
        letters = list(self.model.dead)
        self.model.redrive(letters)
        assert self.queues[0].redrive() == len(letters)

    @precondition(lambda self: self.model.dead)
    @rule(pick=PICK)
    def requeue(self, pick: int) -> None:
        letter = self.model.dead[pick % len(self.model.dead)]
        expected = self.model.end
        self.model.redrive([letter])
        assert self.queues[1].requeue(letter.offset) == expected

    @invariant()
    def adds_up(self) -> None:
        for queue in self.queues:
            stats = queue.stats()
            assert stats.ready + stats.delayed + stats.leased == len(self.model.entries)
            assert (stats.done, stats.dead) == (self.model.done, len(self.model.dead))
            low = min((entry.offset for entry in self.model.entries), default=self.model.end)
            head = queue._core.log.state.head()
            assert head <= low and (self.model.order == "key" or head == low)
            assert set(queue._core.log.state.headers) == {e.offset for e in self.model.entries if e.headers}
            for offset in range(self.model.end):
                try:
                    found = queue.result(offset, 0)
                except (sej.ItemFailedError, sej.ResultGoneError, TimeoutError) as error:
                    found = type(error)
                assert found == self.model.result(offset, self.clock.boot)
            assert [item.offset for item in queue.items()] == sorted(entry.offset for entry in self.model.entries)

    def teardown(self) -> None:
        for queue in self.queues:
            queue.close()
        if self.model.order == "ready" and self.model.end:
            low = min((entry.offset for entry in self.model.entries), default=self.model.end)
            assert sej.read_offset(self.folder.name, "worker") == low
        assert sej.Journal(self.folder.name).verify() == []
        self.folder.cleanup()


TestQueueAgainstModel = Machine.TestCase
TORTURE = "SEJ_TORTURE_S" in os.environ
TestQueueAgainstModel.settings = settings(max_examples=1000 if TORTURE else 24, stateful_step_count=30)

MOST = 12
"""Items that a long history keeps: the model looks at all of them for each delivery."""


def history(dice: random.Random, operations: int) -> None:
    """Run random operations. Kills, clocks that jump, and stops that are longer than a lease are among them."""
    machine = Machine()
    if dice.random() < 0.95:  # each new segment and each shorter log costs a sync
        machine.sizes = {"segment_bytes": 1 << 20, "compact_bytes": 1 << 20}
    machine.begin("key", dice.choice([1, 1, 2]), dice.random() < 0.3)
    try:
        for number in range(operations):
            who, pick, chance = dice.randrange(2), dice.randrange(101), dice.random()
            if chance < 0.35 and len(machine.model.entries) < MOST:
                machine.put(who, dice.choice(KEYS), dice.choice(BANDS), dice.choice(DELAYS))
            elif chance < 0.37 and len(machine.model.entries) < MOST:
                machine.put_many(who, dice.choices(KEYS, k=dice.randrange(1, 7)))
            elif chance < 0.65 or not machine.held:
                machine.get(who, dice.randrange(1, 6), dice.random() < 0.05)  # a look reads the whole log
            elif chance < 0.96:
                machine.end(pick, "done" if chance < 0.85 else dice.choice(ENDS))
            elif chance < 0.98:
                machine.move(dice.choice(MOVES))
            elif chance < 0.985:
                machine.cancel(pick)
            elif chance < 0.988:
                machine.redrive()
            elif chance < 0.991 and machine.model.dead:
                machine.requeue(pick)
            elif chance > 0.998:
                machine.reopen(who, dice.random() < 0.5)
            if not number % 40:
                machine.adds_up()
    finally:
        machine.teardown()


def histories(operations: int, dice: random.Random) -> None:
    for _ in range(operations // 2000):
        history(dice, 2000)


def test_many_random_operations() -> None:
    histories(4_000, random.Random(1))


@pytest.mark.torture
@pytest.mark.timeout(4 * 3600)
def test_ten_million_random_operations(torture_s: float) -> None:
    histories(2_000 if torture_s < 10 else 10_000_000, seeded_random())
