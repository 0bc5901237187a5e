"""The order of keys: what the random histories of test_model.py do not reach, and costs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import sej
from sej.queue import keyed_take
from sej.queue.journal_queue import JournalQueue
from sej.queue.listing import QueueLook
from sej.queue.log.format import KEY, PARK, RECORD_SIZE, read_fields
from tests.crash.disk import CrashDisk
from tests.queue.support import FakeClock, crashes, dying, kill, move, opened, take, taken, taken_after_waiting


@pytest.fixture
def q(tmp_path: Path, clock: FakeClock) -> Iterator[JournalQueue]:
    with opened(tmp_path / "q", clock, order="key", max_attempts=2) as queue:
        yield queue


def handle(q: JournalQueue, *values: bytes) -> None:
    """Take and end the next items, which have these values."""
    for value in values:
        item = take(q)
        assert item.value == value
        item.done()


class TestRules:
    def test_a_dead_letter_may_block_its_key_until_it_is_put_back(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock, order="key", on_dead="block") as q:
            q.put_many([b"a1", b"a2", b"b1", b"b2"], [b"a", b"a", b"b", b"b"])
            for item in q.get_many(2, timeout=0):
                item.fail()
            q._core.locked(q._core.log.compact)
        with opened(tmp_path, clock) as q:
            assert taken(q) == []
            assert q.requeue(0) == 4
            (item,) = q.get_many(9, timeout=0)
            assert item.value == b"a2"
            item.done()
            assert taken(q) == [b"a1"]
            assert q.cancel(2)  # the letter stays dead, and its key is free
            assert taken(q) == [b"b2"]
            assert q.stats().dead == 1

    def test_an_item_that_became_ready_while_the_call_waited_for_the_lock_comes_first(
        self, q: JournalQueue, clock: FakeClock
    ) -> None:
        q.put(b"first", b"a", delay_s=1)
        q.put(b"second", b"a")
        assert taken_after_waiting(q, clock, 2).value == b"first"

    def test_items_without_a_key_are_found_after_an_urgent_one(self, q: JournalQueue) -> None:
        for key, priority in ((b"", 0), (b"a", 0), (b"", 0), (b"b", 1)):
            q.put(b"x", key, priority=priority)
        assert [take(q).message.offset for _ in range(4)] == [3, 0, 1, 2]

    def test_a_priority_counts_although_a_parked_item_may_come_before(self, q: JournalQueue, clock: FakeClock) -> None:
        q.put_many([b"a0", b"a1", b"no key"], [b"a", b"a", b""])
        first = take(q)
        assert taken(q, 1) == [b"no key"]  # parks a1
        first.done()
        handle(q, b"a1")
        q.put(b"late", b"a", priority=1)
        clock.move(61)
        assert taken(q, 1) == [b"late"]

    def test_an_item_has_not_the_key_of_one_whose_put_died(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock, order="key") as q:
            q.put(b"a1", b"a")
            assert taken(q) == [b"a1"]
            with dying(tmp_path, clock) as other:
                other.put(b"a2", b"a", delay_s=10)
            q.put(b"no key", delay_s=10)  # at the same offset
            clock.move(11)
            assert taken(q) == [b"no key"]

    def test_a_dead_letter_ahead_of_the_others_blocks_its_key_after_a_compaction(
        self, tmp_path: Path, clock: FakeClock
    ) -> None:
        with opened(tmp_path, clock, order="key", on_dead="block") as q, opened(tmp_path, clock) as other:
            q.put(b"later", delay_s=60)
            q.put_many([b"a1", b"a2"], [b"a", b"a"], priority=1)
            take(q).fail()
            other._core.locked(other._core.log.compact)  # to this queue all are ahead: it compared no intent
            assert taken(q) == []
            assert q.requeue(1) == 3
            assert taken(q) == [b"a2"]

    def test_a_batch_that_ends_at_an_item_that_does_not_fit_is_not_taken_for_a_loss(
        self, tmp_path: Path, clock: FakeClock
    ) -> None:
        with opened(tmp_path, clock, order="key") as q:
            with sej.SharedWriter(tmp_path) as writer:
                writer.append_many([b"a1", b"1", b"a2", b"large"], [b"a", b"", b"a", b""], timestamp=[1, 2, 3, 4])
            first = take(q)
            (item,) = q.get_many(9, timeout=0, max_bytes=2)  # passes a2 by, and ends before the large one
            item.done()
            first.done()
        with opened(tmp_path, clock) as q:
            assert q.recovered is None
            assert taken(q) == [b"a2", b"large"]

    def test_a_batch_that_has_passed_by_its_share_takes_no_later_item_first(
        self, q: JournalQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(keyed_take, "_MESSAGES", 4)
        keys = [b"a", b"a", b"a", b"a", b"b", b"a", b"c"]
        q.put_many([b"a1", b"a2", b"a3", b"a4", b"b1", b"a5", b"c1"], keys)
        q.put(b"c2", b"c", priority=-1)
        assert take(q).value == b"a1"
        assert taken(q, 2) == [b"b1"]
        assert taken(q) == [b"c1"]

    @pytest.mark.parametrize("reopened", [False, True])
    def test_an_expired_item_takes_none_before_it_along(self, tmp_path: Path, clock: FakeClock, reopened: bool) -> None:
        with opened(tmp_path, clock, order="key", lease_s=1000) as q:
            q.put_many([b"a1", b"a2", b"a3"], [b"a"] * 3)
            q.put(b"expires", b"a", expire_s=10)
            q.put(b"b1", b"b")
            first = take(q)
            clock.move(11)
            assert taken(q) == [b"b1"]  # passes a2 and a3 by, and removes the expired one
            if not reopened:
                first.done()
                assert taken(q) == [b"a2"]
        with opened(tmp_path, clock) as q:
            found = []
            for item in q:
                found.append(item.value)
                item.done()
            assert found == ([b"a1"] if reopened else []) + [b"a2", b"a3", b"b1"]
            assert tuple(q.stats().values())[:3] == (0, 0, 0)

    def test_items_that_wait_for_their_key_expire_after_a_compaction(self, q: JournalQueue, clock: FakeClock) -> None:
        q.put(b"a1", b"a")
        q.put(b"a2", b"a", expire_s=10)
        q.put(b"a3", b"a")
        item = take(q)
        assert taken(q) == []
        q._core.locked(q._core.log.compact)
        clock.move(11)
        item.done()
        assert taken(q) == [b"a3"]


class TestTheOrderIsKept:
    def test_another_order_is_refused_by_name(self, tmp_path: Path) -> None:
        with sej.open_queue(tmp_path / "q", order="key"):
            pass
        with pytest.raises(
            ValueError, match="order must be 'key', as when this queue was created, got 'ready'; pass 'key'"
        ):
            sej.open_queue(tmp_path / "q", order="ready")
        with pytest.raises(ValueError, match="on_dead must be 'next'"):
            sej.open_queue(tmp_path / "q", on_dead="block")
        with sej.open_queue(tmp_path / "q") as q:  # as it is
            q.put_many([b"1", b"2"], [b"k", b"k"])
            assert len(q.get_many(9, timeout=0)) == 1
        with sej.open_queue(tmp_path / "old"):
            pass
        with pytest.raises(ValueError, match="order must be 'ready'"):
            sej.open_queue(tmp_path / "old", order="key")

    def test_it_survives_a_reset_a_reboot_and_a_compaction(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock, order="key", on_dead="block") as q:
            q.put_many([b"a1", b"a2", b"b1", b"a3"], [b"a", b"a", b"b", b"a"])
            assert taken(q) == [b"a1", b"b1"]
            q._core.locked(q._core.log.compact)
        clock.reboot()
        with opened(tmp_path, clock) as q:
            assert taken(q) == [b"a1", b"b1"]
        move(tmp_path, 1)
        with opened(tmp_path, clock, on_dead="block") as q:
            assert taken(q) == [b"a2", b"b1"]
            assert tuple(q.stats().values())[:3] == (1, 0, 2)
        move(tmp_path, 0)
        with opened(tmp_path, clock, on_dead="block") as q:
            assert taken(q) == [b"a1", b"b1"]

    def test_what_retention_took_is_counted(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock, order="key", segment_bytes=100) as q:
            for n in range(20):
                q.put(b"%02d" % n * 10, b"k")
            assert len(taken(q)) == 1
            sej.Journal(tmp_path).clean(max_bytes=0, ignore_readers=["worker"])
            first = sej.Journal(tmp_path).first_offset
            assert QueueLook(tmp_path, "worker", clock=clock).stats().lost == first - 1
            assert tuple(q.stats().values())[:5] == (20 - first, 0, 1, 0, 0) and q.stats().lost == first - 1
            with pytest.warns(RuntimeWarning, match=f"removed {first - 1} items"):
                assert taken(q) == []


class TestPowerLoss:
    def test_no_item_is_lost_and_no_key_is_out_of_order(self) -> None:
        clock, disk = FakeClock(), CrashDisk()
        q = opened("/q", clock, disk, order="key")
        q.put_many([b"a1", b"a2", b"b1", b"a3"], [b"a", b"a", b"b", b"a"])
        q.sync()
        since = disk.settle()
        q.put_many([b"c1", b"c2"], [b"c", b"c"])
        first, _, third = q.get_many(9, timeout=0)
        q.sync()
        third.done()
        q.put(b"c3", b"c")
        assert taken(q) == [b"c2"]
        first.done()
        assert taken(q) == [b"a2"]
        for crash in crashes(disk, q, clock, since):
            with opened("/q", clock, crash.disk, order="key") as q:
                q.put(b"a4", b"a")
                seen: list[bytes] = []
                while items := q.get_many(9, timeout=0):
                    for item in items:
                        seen.append(item.value)
                        item.done()
                assert not any(tuple(q.stats().values())[:3])
            assert {b"a2", b"a3", b"a4", b"b1"} <= set(seen), crash.step
            for key in (b"a", b"b", b"c"):
                mine = [value for value in seen if value.startswith(key)]
                assert mine == sorted(set(mine)), crash.step

    @pytest.mark.parametrize("reason", ["power", "damage"])
    def test_an_item_whose_log_ends_before_its_key_keeps_its_place(
        self, tmp_path: Path, clock: FakeClock, reason: str
    ) -> None:
        q = opened(tmp_path, clock, order="key")
        q.put(b"a1", b"a", priority=-1)
        q.put_many([b"a2", b"b1"], [b"a", b"b"])
        q.resume()  # a record after the damage
        kill(q)
        self._cut(q, KEY.number, damage=reason == "damage")
        if reason == "power":
            clock.reboot()
        for _ in range(2):
            with opened(tmp_path, clock) as again:
                assert bool(again.recovered) == (reason == "damage")
                assert [item.value for item in again.get_many(9, timeout=0)] == [b"b1", b"a1"]
            reason = ""

    def _cut(self, q: JournalQueue, kind: int, *, damage: bool = False) -> None:
        """Cut the log before its only record of a kind, or damage it."""
        path = Path(q._core.log.path)
        data = path.read_bytes()
        (at,) = [at for at in range(RECORD_SIZE, len(data), RECORD_SIZE) if data[at] == kind]
        path.write_bytes(data[:at] + bytes(RECORD_SIZE) + data[at + RECORD_SIZE :] if damage else data[:at])


class TestCosts:
    def test_the_state_is_as_large_as_the_keys_that_wait(self, q: JournalQueue) -> None:
        count = 3 * keyed_take._MESSAGES
        q.put_many([b"%d" % n for n in range(count)], [b"%d" % (n % 10) for n in range(count)])
        assert len(taken(q)) == 10
        assert taken(q) == []
        assert tuple(q.stats().values())[:3] == (count - 10, 0, 10)
        q._core.locked(q._core.log.compact)
        assert Path(q._core.log.path).stat().st_size < 40 * 40
        q.put(b"other", b"other")
        assert taken(q) == [b"other"]

    def test_a_second_process_finds_what_the_first_one_parked(self, q: JournalQueue, clock: FakeClock) -> None:
        count = 2 * keyed_take._MESSAGES
        q.put_many([b"%d" % n for n in range(count)], [b"%d" % (n % 4) for n in range(count)])
        items = q.get_many(4, timeout=0)
        assert taken(q) == []
        with opened(q.path, clock) as other:
            for item in items:
                item.done()
            assert taken(other) == [b"4", b"5", b"6", b"7"]
            q._core.locked(q._core.log.compact)
            assert tuple(other.stats().values())[:3] == (count - 8, 0, 4)
        assert taken(q) == [b"4", b"5", b"6", b"7"]

    def test_batches_longer_than_the_keys_park_little(self, q: JournalQueue) -> None:
        count = 3000
        q.put_many([b"%d" % n for n in range(count)], [b"%d" % (n % 10) for n in range(count)])
        log, seen = Path(q._core.log.path), []
        while items := q.get_many(99, timeout=0):
            seen += [int(item.value) for item in items]
            q.done_many(items)
        parked = sum(kind is PARK for kind, _ in read_fields(log.read_bytes()[RECORD_SIZE:]))
        assert sorted(seen) == list(range(count))
        for key in range(10):
            assert [n for n in seen if n % 10 == key] == list(range(key, count, 10))
        assert parked < count / 10

    def test_batches_are_filled_from_other_keys_as_long_as_there_are_some(self, q: JournalQueue) -> None:
        count = 4000
        q.put_many([b"%d" % n for n in range(count)], [b"hot" if n % 2 else b"%d" % n for n in range(count)])
        sizes, seen = [], []
        while items := q.get_many(100, timeout=0):
            sizes.append(len(items))
            seen += [int(item.value) for item in items]
            q.done_many(items)
        assert sorted(seen) == list(range(count))
        assert [n for n in seen if n % 2] == list(range(1, count, 2))
        assert sizes[:20] == [100] * 20
