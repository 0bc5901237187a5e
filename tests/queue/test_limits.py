"""Limits by kind: concurrency and rate of each tenant, and turns among those below theirs; limits of a queue."""

import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import sej
from sej.queue.journal_queue import JournalQueue
from sej.queue.listing import QueueLook
from sej.queue.take import parse_rate
from tests.cli.inside import inside
from tests.crash.disk import CrashDisk
from tests.queue.support import NS, FakeClock, crashes, kill, move, opened, take, taken
from tests.sej.hooks import until

TENANT = "header:tenant"


def put(q: sej.WorkQueue, tenant: str, *values: bytes, **options: Any) -> None:
    """Put items of a kind, whichever way the queue finds out."""
    q.put_many(
        values, [tenant.encode() + b"/key"] * len(values), headers={"tenant": tenant} if tenant else {}, **options
    )


@pytest.mark.parametrize("by", [TENANT, "key:/", "key"])
def test_each_kind_has_its_limit_and_those_below_it_take_turns(by: str, tmp_path: Path, clock: FakeClock) -> None:
    with opened(tmp_path, clock, limit=sej.Limit(by, concurrency=2)) as q, opened(tmp_path, clock) as other:
        put(q, "a", *(b"a%d" % n for n in range(3000)))
        put(q, "b", b"b0", b"b1", b"b2")
        q.put(b"of no kind", b"/" if by != "key" else b"")
        assert sorted(taken(q) + taken(other)) == [b"a0", b"a1", b"b0", b"b1", b"of no kind"]
        assert [item.value for item in q.peek(2)] == [b"a2", b"a3"]
    with opened(tmp_path, clock) as q:  # as the queue has it
        found = []
        for _ in range(12):  # one worker that never reaches a limit: the others are not behind 3,000 items
            item = take(q)
            found.append(item.value)
            item.done()
        assert [found.index(value) < 10 for value in (b"b0", b"b1", b"b2", b"of no kind")] == [True] * 4
        assert [value for value in found if value.startswith(b"a")] == [b"a%d" % n for n in range(8)]


def test_an_item_that_ended_is_not_taken_for_one_without_a_kind(tmp_path: Path, clock: FakeClock) -> None:
    with opened(tmp_path, clock, limit=sej.Limit(TENANT, concurrency=1)) as q:
        put(q, "", b"0", b"1")
        put(q, "a", b"2")
        for item in q.get_many(2, timeout=0):
            assert item.value in (b"0", b"2")
            item.done()
    with opened(tmp_path, clock) as q:
        assert [item.offset for item in q.items()] == [1]
        assert taken(q) == [b"1"]


def test_a_rate_of_each_kind_is_shared_and_kept(tmp_path: Path, clock: FakeClock) -> None:
    limit = sej.Limit(TENANT, rate="2/m")
    with opened(tmp_path, clock, limit=limit, lease_s="1h") as q, opened(tmp_path, clock) as other:
        put(q, "a", *(b"a%d" % n for n in range(9)))
        put(q, "b", b"b0")
        assert sorted([*taken(q, 2), *taken(other)]) == [b"a0", b"a1", b"b0"]
        assert q.get(timeout=0) is None
        assert q._taker.next_ns() == clock.boot + 30 * NS
        clock.move(30)
        assert taken(other) == [b"a2"]
        q._core.locked(q._core.log.compact)
        assert taken(q) == taken(other) == []
    with opened(tmp_path, clock) as q:
        assert taken(q) == [b"b0"]
        clock.move(30)
        assert len(taken(q)) == 1
    with opened(tmp_path, clock, limit=sej.Limit(TENANT)) as q:  # removed, for all workers
        assert len(taken(q)) == 10


def test_a_queue_in_use_gets_a_limit(tmp_path: Path, clock: FakeClock) -> None:
    with opened(tmp_path, clock, order="ready") as q:
        put(q, "a", b"a0", b"a1", b"a2")
        put(q, "b", b"b0", delay_s=1)
        put(q, "b", b"b1", delay_s=1)
        take(q).retry(0)
        assert take(q).value == b"a0"
        with opened(tmp_path, clock, limit=sej.Limit(TENANT, concurrency=1)):
            clock.move(1)
            assert sorted(taken(q)) == [b"a1", b"b0"]
        for wrong, text in (({"limit": sej.Limit("key")}, "limit.by must be 'header:tenant'"),
                            ({"order": "key"}, "order must be 'ready'")):  # fmt: skip
            with pytest.raises(ValueError, match=text):
                opened(tmp_path, clock, **wrong)
    with opened(tmp_path / "keys", clock, order="key"), pytest.raises(ValueError, match="order must be 'key'"):
        opened(tmp_path / "keys", clock, limit=sej.Limit("key"))


@pytest.mark.parametrize(
    ("limit", "error", "text"),
    [
        ("key", TypeError, "limit must be"),
        (sej.Limit("tenant"), ValueError, "by must be 'key', 'key:/' or 'header:NAME', got 'tenant'"),
        *((sej.Limit(by), ValueError, "by must be") for by in ("header:", "key:", ":", "")),
        (sej.Limit("key", concurrency=0), ValueError, "concurrency must be at least 1"),
        (sej.Limit("key", rate="fast"), ValueError, "rate must be"),
    ],
)
def test_wrong_limits(tmp_path: Path, limit: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        sej.open_queue(tmp_path, limit=limit)
    with pytest.raises(ValueError, match="limit and order='key' must not both be given"):
        sej.open_queue(tmp_path, order="key", limit=sej.Limit("key"))


def test_every_crash_state(clock: FakeClock) -> None:
    disk = CrashDisk()
    q = opened("/q", clock, disk, durability="disk", limit=sej.Limit(TENANT, concurrency=1), compact_bytes=1000)
    since = disk.settle()
    for tenant in "ab":
        put(q, tenant, *(b"%s%d" % (tenant.encode(), n) for n in range(2)))
        disk.mark(("put", tenant))
    for _ in range(2):
        for item in q.get_many(2, timeout=0):
            disk.mark(("ending", item.value))
            item.done()
            disk.mark(("done", item.value))
    for crash in crashes(disk, q, clock, since, more_than=40):
        with opened("/q", clock, crash.disk) as q:
            found: Counter[bytes] = Counter()
            while items := q.get_many(9, timeout=0):
                if "ending" not in dict(crash.marks):  # else messages may be there without their headers
                    assert max(Counter(item.headers.get("tenant") for item in items).values()) <= 1
                found.update(item.value for item in items)
                q.done_many(items)
        for tenant in (mark for word, mark in crash.marks if word == "put"):
            for n in range(2):
                value = b"%s%d" % (tenant.encode(), n)
                assert found[value] == 1 or ("ending", value) in crash.marks, crash.step
                assert not (found[value] and ("done", value) in crash.marks), crash.step
        assert max(found.values(), default=1) == 1


WORKER = """
import os, sys, sej
with sej.open_queue(sys.argv[1]) as q:
    for _ in range(40):
        item = q.get()
        what = item.headers["tenant"], item.message.offset
        os.write(1, ("begin %s %d\\n" % what).encode())
        item.extend(60)
        os.write(1, ("end %s %d\\n" % what).encode())
        item.done()
"""


def test_processes_share_it(tmp_path: Path) -> None:
    output = tmp_path / "output"
    with sej.open_queue(tmp_path / "q", limit=sej.Limit(TENANT, concurrency=1)) as q:
        for tenant in "abcd":
            put(q, tenant, *[b""] * 30)
    with output.open("ab") as file:
        command = [sys.executable, "-c", WORKER, str(tmp_path / "q")]
        workers = [subprocess.Popen(command, stdout=file) for _ in range(3)]
        assert [worker.wait(60) for worker in workers] == [0, 0, 0]
    rows = [line.split() for line in output.read_text().splitlines()]
    for tenant in "abcd":
        own = [row for row in rows if row[1] == tenant]
        assert len(own) == 60
        assert all((a[0], b[0]) == ("begin", "end") and a[2] == b[2] for a, b in list(pairwise(own))[::2])


def test_in_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.py").write_text("def act(item):\n    pass\n")
    with sej.open_queue("q") as q:
        put(q, "a", b"1", b"2")
    done = inside(monkeypatch, "worker", "q", "tasks:act", "--limit", "header:tenant=2,10/m", "--until-empty")
    assert (done.code, done.err) == (0, "")
    with sej.open_queue("q") as q:
        kinds = q._core.log.state.order.kinds  # type: ignore[attr-defined]
        assert (kinds.by, kinds.concurrency, kinds.rate, q.stats().done) == (TENANT, 2, "10/m", 2)
    for wrong in ("header:tenant", "header:tenant=x", "tenant=2"):
        done = inside(monkeypatch, "worker", "q", "tasks:act", "--limit", wrong, "--until-empty")
        assert done.code == 2 and "--limit must be as in" in done.err and "literal" not in done.err


# --- of a whole queue: a pause, leased items, a rate, bytes of a batch


@pytest.fixture(params=["ready", "key"])
def order(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def fill(q: JournalQueue, count: int = 20) -> None:
    q.put_many([b"%02d" % n for n in range(count)], [b"%d" % n for n in range(count)])


class TestPause:
    def test_nothing_is_delivered_until_resume_and_the_pause_is_kept(
        self, tmp_path: Path, clock: FakeClock, order: str
    ) -> None:
        with opened(tmp_path, clock, order=order) as q:
            fill(q, 3)
            first = take(q)
            q.pause()
            assert q.get(timeout=0) is None
            first.done()
            assert q.stats().paused and q.stats()["paused"] is True
            q._core.locked(q._core.log.compact)
        clock.reboot()
        with opened(tmp_path, clock) as q, opened(tmp_path, clock) as other:
            assert tuple(q.stats().values())[:5] == (2, 0, 0, 1, 0) and other.stats().paused
            assert taken(q) == taken(other) == []
            other.resume()
            assert taken(q) == [b"01", b"02"] and not q.stats().paused

    def test_a_reset_keeps_the_pause(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock) as q:
            fill(q, 3)
            q.pause()
        move(tmp_path, 2)
        for value in (2, 0):
            move(tmp_path, value)
            assert QueueLook(tmp_path, "worker", clock=clock).stats().paused
            with opened(tmp_path, clock) as q:
                assert q.stats().paused
        with opened(tmp_path, clock) as q:
            q.resume()
            assert len(taken(q)) == 3

    def test_resume_wakes_a_worker_that_waits(self, tmp_path: Path) -> None:
        with sej.open_queue(tmp_path) as q, sej.open_queue(tmp_path) as other:
            q.pause()
            q.put(b"a")
            found: list[sej.Item | None] = []
            worker = threading.Thread(target=lambda: found.append(q.get(timeout=60)))
            worker.start()
            other.resume()
            worker.join(30)
            assert found and found[0] is not None and found[0].value == b"a"


class TestConcurrency:
    def test_so_many_items_are_leased_by_all_processes_together(
        self, tmp_path: Path, clock: FakeClock, order: str
    ) -> None:
        with opened(tmp_path, clock, concurrency=3, order=order) as q, opened(tmp_path, clock, concurrency=3) as other:
            fill(q)
            first = q.get_many(2, timeout=0)
            assert taken(other) == [b"02"] and taken(q) == []
            first[0].done()
            first[1].retry(60)
            assert taken(other) == [b"03", b"04"] and taken(q) == []
            kill(other)
            clock.move(0.2)
            assert taken(q) == [b"02", b"03", b"04"]
            assert taken(q) == []
            clock.move(61)
            assert len(taken(q)) == 3


class TestRate:
    def test_a_bucket_is_shared_and_kept(self, tmp_path: Path, clock: FakeClock, order: str) -> None:
        with opened(tmp_path, clock, rate="10/s", order=order) as q, opened(tmp_path, clock, rate="10/s") as other:
            fill(q, 40)
            assert len(taken(q, 4)) == 4 and len(taken(other)) == 6
            assert taken(q) == [] and taken(other) == []
            assert q._due_s() == pytest.approx(0.1, abs=0.01)
            clock.move(0.25)
            assert len(taken(other)) == 2
            q._core.locked(q._core.log.compact)
            assert taken(q) == []
            clock.move(3600)
            assert len(taken(q)) == 10
        clock.move(0.1)
        with opened(tmp_path, clock, rate="10/s") as q:
            assert len(taken(q)) == 1

    def test_a_reboot_does_not_fill_the_bucket(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock, rate="2/h") as q:
            fill(q)
            q.done_many(q.get_many(2, timeout=0))
        clock.reboot()
        with opened(tmp_path, clock, rate="2/h") as q:
            assert taken(q) == []
            clock.move(1801)
            assert len(taken(q)) == 1

    def test_a_faster_rate_counts_from_the_next_opening(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock, rate="5/d") as q:
            fill(q)
            assert len(taken(q)) == 5
        clock.move(1.0)
        with opened(tmp_path, clock, rate="2/s") as q:
            assert taken(q) == []
            clock.move(1.0)
            assert len(taken(q)) == 2

    def test_a_rate_that_never_allows_a_second_item(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock, rate="1/999999999999d") as q:
            fill(q)
            assert len(taken(q)) == 1
            clock.move(1e9)
            assert taken(q) == []

    def test_a_worker_waits_for_the_rate(self, tmp_path: Path) -> None:
        with sej.open_queue(tmp_path, rate="20/s") as q:
            q.put_many([b"%d" % n for n in range(21)])
            assert len(q.get_many(99, timeout=0)) == 20
            last = q.get(timeout=60)
            assert last is not None and last.value == b"20"

    def test_rates(self) -> None:
        assert parse_rate("100/m") == (100, 600_000_000)
        assert parse_rate(" 3 / 2h ") == (3, 2400 * 10**9)
        for wrong in ("10", "0/s", "10/0s", "10/y", "-1/s", "1.5/s", ""):
            with pytest.raises(ValueError, match="rate must be a number of items per time"):
                parse_rate(wrong)


class TestMaxBytes:
    @pytest.fixture
    def q(self, tmp_path: Path, clock: FakeClock, order: str) -> Iterator[JournalQueue]:
        with opened(tmp_path, clock, order=order) as queue:
            yield queue

    def test_a_batch_has_at_most_so_many_bytes_or_one_item(self, q: JournalQueue) -> None:
        sizes = [4, 4, 4, 50, 1, 1, 4]
        q.put_many([b"x" * size for size in sizes], [b"%d" % n for n in range(7)])
        q.put(b"y" * 4, priority=1)
        found = []
        while items := q.get_many(9, 0, max_bytes=10):
            found.append([len(item.value) for item in items])
        assert found == [[4, 4], [4, 4], [50], [1, 1, 4]]

    def test_parked_items_too(self, q: JournalQueue) -> None:
        q.put_many([b"aaaa", b"bbbb", b"cccc"] * 2, [b"a", b"b", b"c"] * 2)
        first = q.get_many(3, timeout=0)
        rest = q.get_many(9, 0, max_bytes=9)
        for item in first:
            item.done()
        more = q.get_many(9, 0, max_bytes=9)
        assert len(rest) + len(more) <= 4 and len(more) in (1, 2)


def test_a_limit_of_another_process_is_seen_while_waiting(tmp_path: Path) -> None:
    with sej.open_queue(tmp_path, concurrency=1) as q:
        q.put_many([b"a", b"b"])
        first = q.get(timeout=0)
        found: list[sej.Item | None] = []
        worker = threading.Thread(target=lambda: found.append(q.get(timeout=60)))
        worker.start()
        assert first is not None
        first.done()
        until(lambda: bool(found))
        worker.join()


# --- against a model

KINDS = ["", "a", "a", "b", "c"]
RATE_BURST, RATE_NS = 2, 30 * NS


class Entry:
    def __init__(self, kind: str, priority: int, ready_at: int) -> None:
        self.kind, self.priority, self.ready_at = kind, priority, ready_at
        self.ends_at: int | None = None
        self.item: Any = None
        self.who = -1


class Machine(RuleBasedStateMachine):
    """The model has all items, and says which may come. Of these, one with the highest priority must."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = FakeClock()
        self.entries: dict[int, Entry] = {}
        self.full: dict[str, int] = {}
        self.held: list[tuple[int, Any]] = []
        self.end = self.done = 0
        self.queues: list[JournalQueue] = []
        self.limit = sej.Limit(TENANT)

    @initialize(concurrency=st.sampled_from([None, 1, 2]), rate=st.sampled_from([None, None, "2/m"]))
    def begin(self, concurrency: int | None, rate: str | None) -> None:
        self.limit = sej.Limit(TENANT, concurrency, rate)
        self.queues = [self.open(limit=self.limit), self.open()]

    def open(self, **options: Any) -> JournalQueue:
        sizes: dict[str, Any] = {"segment_bytes": 400, "compact_bytes": 2500}
        return opened(self.folder.name, self.clock, lease_s=60, max_attempts=1000, **sizes, **options)

    @rule(
        who=st.integers(0, 1),
        kind=st.sampled_from(KINDS),
        n=st.integers(1, 4),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        delay=st.sampled_from([0, 0, 20]),
    )
    def put(self, who: int, kind: str, n: int, priority: int, delay: int) -> None:
        put(self.queues[who], kind, *[b"v"] * n, priority=priority, delay_s=delay)
        for _ in range(n):
            self.entries[self.end] = Entry(kind, priority, self.clock.boot + delay * NS if delay else 0)
            self.end += 1

    def coming(self) -> dict[int, Entry]:
        now = self.clock.boot
        running = Counter(entry.kind for entry in self.entries.values() if entry.ends_at is not None)
        found = {}
        for offset, entry in self.entries.items():
            if entry.ends_at is not None or entry.ready_at > now:
                continue
            most = self.limit.concurrency
            if entry.kind and most is not None and running[entry.kind] >= most:
                continue
            if entry.kind and self.limit.rate and self.full.get(entry.kind, 0) - (RATE_BURST - 1) * RATE_NS > now:
                continue
            found[offset] = entry
        return found

    @rule(who=st.integers(0, 1), n=st.integers(1, 5))
    def get(self, who: int, n: int) -> None:
        self.clock.move(0.2)
        now, found = self.clock.boot, self.queues[who].get_many(n, timeout=0)
        for entry in self.entries.values():
            if entry.ends_at is not None and entry.ends_at <= now:
                entry.ends_at, entry.ready_at, entry.item = None, 0, None
        for item in found:
            coming = self.coming()
            entry = coming[item.message.offset]
            assert entry.priority == max(other.priority for other in coming.values())
            entry.ends_at, entry.who, entry.item = now + 60 * NS, who, item
            self.full[entry.kind] = max(self.full.get(entry.kind, 0), now) + RATE_NS
        assert len(found) == n or not self.coming()
        self.held += [(who, item) for item in found]

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 100), how=st.sampled_from(["done", "retry", "later", "back"]))
    def end_one(self, pick: int, how: str) -> None:
        _, item = self.held.pop(pick % len(self.held))
        calls: dict[str, Callable[[], None]] = {
            "done": item.done, "retry": lambda: item.retry(0), "later": lambda: item.retry(20), "back": item.give_back
        }  # fmt: skip
        entry = self.entries.get(item.message.offset)
        try:
            calls[how]()
        except sej.LeaseLostError:
            assert entry is None or entry.item is not item
            return
        assert entry is not None and entry.item is item
        entry.ends_at, entry.ready_at = None, self.clock.boot + 20 * NS if how == "later" else 0
        if how == "done":
            del self.entries[item.message.offset]
            self.done += 1

    @rule(seconds=st.sampled_from([1, 20, 61]))
    def move(self, seconds: int) -> None:
        self.clock.move(seconds)

    @rule(who=st.integers(0, 1), how=st.sampled_from(["close", "kill", "compact"]))
    def reopen(self, who: int, how: str) -> None:
        if how == "compact":
            self.queues[who]._core.locked(self.queues[who]._core.log.compact)
            return
        if how == "kill":
            kill(self.queues[who])
        else:
            self.queues[who].close()
        self.queues[who] = self.open()
        for entry in self.entries.values():
            if entry.who == who and entry.ends_at is not None:
                entry.ends_at, entry.ready_at = None, 0
        self.held = [row for row in self.held if row[0] != who]

    @precondition(lambda self: self.end)
    @rule(pick=st.integers(0, 100))
    def cancel(self, pick: int) -> None:
        offset = max(self.end - 1 - pick, 0)
        known = self.entries.pop(offset, None)
        assert self.queues[0].cancel(offset) == (known is not None)
        self.done += known is not None

    @invariant()
    def adds_up(self) -> None:
        for queue in self.queues:
            stats = queue.stats()
            assert stats.ready + stats.delayed + stats.leased == len(self.entries)
            assert stats.done == self.done
            assert [item.offset for item in queue.items()] == sorted(self.entries)

    def teardown(self) -> None:
        for queue in self.queues:
            queue.close()
        if self.queues:
            with self.open(limit=sej.Limit(TENANT)) as q:
                self.clock.move(100)
                assert sorted(item.message.offset for item in q.get_many(1000, timeout=0)) == sorted(self.entries)
        assert sej.Journal(self.folder.name).verify() == []
        self.folder.cleanup()


TestLimitsAgainstModel = Machine.TestCase
TestLimitsAgainstModel.settings = settings(
    max_examples=1000 if "SEJ_TORTURE_S" in os.environ else 30, stateful_step_count=30
)
