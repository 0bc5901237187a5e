"""The flow of a queue: a pause, a limit of leased items, a rate, and a limit of bytes."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import sej
from sej.queue.journal_queue import JournalQueue
from sej.queue.listing import QueueLook
from sej.queue.take import parse_rate
from tests.queue.support import FakeClock, kill, move, opened, taken
from tests.sej.hooks import until


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
            first = q.get(timeout=0)
            assert first is not None
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
            for item in q.get_many(2, timeout=0):
                item.done()
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
