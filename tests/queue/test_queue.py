"""The queue on a journal, by its promises, with a clock that is moved by hand."""

import contextlib
import errno
import itertools
import json
import os
import pickle
import queue
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sej
from sej.cli.reading import move_reader
from sej.queue.journal_queue import JournalQueue
from sej.queue.listing import QueueLook
from sej.queue.log.format import RECORD_SIZE
from sej.system.disk import OS
from sej.system.locks import Lock
from tests.crash.disk import FaultyDisk
from tests.queue.support import (
    NS,
    FakeClock,
    interrupted_before_the_message,
    kill,
    move,
    opened,
    take,
    taken_after_waiting,
    values,
)
from tests.ticks import next_tick


@pytest.fixture
def q(tmp_path: Path, clock: FakeClock) -> Iterator[JournalQueue]:
    with opened(tmp_path, clock) as queue:
        yield queue


class TestContract:
    def test_as_printed(self, tmp_path: Path) -> None:
        with sej.open_queue(tmp_path / "jobs", "worker", lease_s=60.0, max_attempts=5) as q:
            q.put(b"job", b"key", delay_s=0.0)
            q.put_many([b"a", b"b", b"c"])
            item = q.get(timeout=None)
            assert item is not None
            assert (item.value, item.message.key, item.attempts) == (b"job", b"key", 1)
            item.extend(60.0)
            item.done()
            with pytest.raises(sej.LeaseLostError, match=r"ended here already$"):
                item.done()
            take(q).retry(delay_s=5.0)
            with take(q) as item:
                item.fail("why")
            with take(q):
                pass
            assert tuple(q.stats().values())[:5] == (0, 1, 0, 2, 1)
            assert q.get(timeout=0.0) is None


class TestOrder:
    def test_what_was_done_before_its_turn_stays_done_in_a_compacted_log(self, q: JournalQueue) -> None:
        q.put(b"usual")
        q.put(b"urgent", priority=1)
        take(q).done()
        q._core.locked(q._core.log.compact)
        assert values(q) == [b"usual"]
        assert q.stats().done == 2


class TestLeases:
    def test_a_stuck_lease_ends_at_its_deadline_and_is_fenced(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock) as one, opened(tmp_path, clock) as other:
            one.put(b"job")
            stuck = take(one)
            clock.move(59.9)
            assert other.get(timeout=0) is None
            clock.move(0.2)
            again = take(other)
            assert again.attempts == 2
            for end in (stuck.done, stuck.retry, stuck.fail, lambda: stuck.extend(5)):
                with pytest.raises(sej.LeaseLostError, match="attempt 1"):
                    end()
            again.done()
            assert tuple(one.stats().values())[:5] == (0, 0, 0, 1, 0)

    def test_a_lease_begins_when_the_item_is_taken_not_when_the_call_began(
        self, tmp_path: Path, clock: FakeClock
    ) -> None:
        with opened(tmp_path, clock, lease_s=1) as q, opened(tmp_path, clock, lease_s=1) as other:
            q.put(b"job")
            item = taken_after_waiting(q, clock, 2)
            clock.move(0.9)
            assert other.get(timeout=0) is None
            item.done()

    def test_items_of_a_dead_process_are_given_back_immediately(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock) as survivor:
            dying = opened(tmp_path, clock)
            dying.put(b"job")
            take(dying)
            kill(dying)
            clock.move(0.2)
            assert take(survivor).attempts == 2

    @pytest.mark.parametrize("name", ["worker.lck", "worker.queue.lck", "worker.slots/0.lck"])
    def test_a_lock_file_that_was_removed_is_noticed(self, tmp_path: Path, clock: FakeClock, name: str) -> None:
        with opened(tmp_path, clock) as queue:
            queue.put(b"job")
            item = take(queue)
            (tmp_path / "ofs" / name).unlink()
            clock.move(0.2)
            for _ in range(2):
                with pytest.raises(sej.LockLostError, match="reopen"):
                    queue.get(timeout=0)
            item.done()

    @pytest.mark.parametrize("recreated", [False, True])
    def test_closing_leaves_the_items_of_another_queue_with_its_number(
        self, tmp_path: Path, clock: FakeClock, recreated: bool
    ) -> None:
        with opened(tmp_path / "q", clock) as closing:
            closing.put(b"job")
            take(closing)
            shutil.rmtree(tmp_path / "q" if recreated else tmp_path / "q" / "ofs" / "worker.slots")
            with opened(tmp_path / "q", clock) as other:
                other.put(b"another job")
                item = take(other)
                closing.close()
                assert other.stats().leased == 1
                item.done()

    def test_the_directory_of_an_open_queue_is_removed(self, tmp_path: Path, clock: FakeClock) -> None:
        queue = opened(tmp_path / "q", clock)
        queue.put_many([b"job", b"another job"])
        item = take(queue)
        shutil.rmtree(tmp_path / "q")
        calls = (
            queue.sync, lambda: queue.get(timeout=0), queue.stats, queue.purge, queue.pause,
            lambda: queue.put(b"late", delay_s=1), lambda: item.extend(1.0), item.done, queue.close,
        )  # fmt: skip
        for call in calls:
            with pytest.raises(sej.JournalNotFoundError, match="`sej append` creates one, reading does not"):
                call()

    def test_a_wall_clock_that_jumps_does_nothing(self, q: JournalQueue, clock: FakeClock) -> None:
        q.put(b"later", delay_s=10)
        clock.wall -= 10**6 * NS
        assert q.get(timeout=0) is None
        clock.boot += 10 * NS
        assert take(q).value == b"later"

    def test_done_many_ends_what_it_can(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock) as one, opened(tmp_path, clock) as other:
            one.put_many([b"a", b"b", b"c"])
            items = one.get_many(3, timeout=0)
            clock.move(61)
            take(other)
            with pytest.raises(sej.LeaseLostError) as caught:
                one.done_many(items)
            assert caught.value.offset == 0
            assert tuple(one.stats().values())[:5] == (0, 0, 1, 2, 0)


class TestDeadLetters:
    def test_queues_of_one_name_share_a_journal_of_letters(self, tmp_path: Path, clock: FakeClock) -> None:
        shared = tmp_path / "dead"
        with (
            opened(tmp_path / "a", clock, dead_letter=shared) as one,
            opened(tmp_path / "b", clock, dead_letter=shared) as other,
        ):
            for queue in (one, other, one):
                queue.put(queue.path.encode())
                take(queue).fail("no")
            assert one.redrive() == 2
            assert [item.value for item in other.items("dead")] == [other.path.encode()]
            assert other.redrive() == 1
            assert one.redrive() == other.redrive() == 0
            assert take(other).value == other.path.encode()

    def test_the_letters_of_a_queue_with_the_longest_name_are_put_back(self, tmp_path: Path) -> None:
        with sej.open_queue(tmp_path, "n" * 200) as queue:
            queue.put(b"job")
            take(queue).fail("no")
            assert (queue.redrive(), queue.redrive(), take(queue).value) == (1, 0, b"job")

    def test_the_most_attempts_are_kept_with_the_queue(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock, max_attempts=1) as q:
            q.put_many([b"a", b"b", b"c"])
        with opened(tmp_path, clock) as q, opened(tmp_path, clock, order="ready") as other:
            take(q).retry(0)
            assert q.stats().dead == 1
            q._core.locked(q._core.log.compact)
            with opened(tmp_path, clock, max_attempts=2):
                take(q).retry(0)  # for the workers that are open too
                item = take(other)
                assert (item.value, item.attempts) == (b"b", 2)
                item.retry(0)
                assert q.stats().dead == 2

    def test_redrive_keeps_priority_key_type_and_expiry(self, q: JournalQueue, clock: FakeClock) -> None:
        for n, priority in enumerate([-2, 0, 3]):
            q.put(b"%d" % n, b"k%d" % n, priority=priority)
        q.put(b"short", b"ks", expire_s=60.0)
        with sej.SharedWriter(q.path) as w:
            w.append(b"typed", b"kt", type=7)
        clock.wall = (item := take(q)).message.timestamp
        items = [item, *q.get_many(10, timeout=0)]
        clock.move(50.0)
        for item in items:
            item.fail("why")
        found = {letter.message.key: (letter.priority, letter.expire_s) for letter in sej.dead_letters(q.dead_letter)}
        assert [found[b"k%d" % n] for n in range(3)] == [(-2, None), (0, None), (3, None)]
        assert found[b"ks"][0] == 0 and found[b"ks"][1] == pytest.approx(60.0, abs=30.0)
        clock.move(3600.0)
        assert q.redrive() == 5
        clock.move(30.0 - 1.0)  # behind its first end, before its second
        messages = [item.message for item in q.get_many(10, timeout=0)]
        assert [m.key for m in messages] == [b"k2", b"k1", b"ks", b"kt", b"k0"]
        assert [m.type for m in messages] == [0, 0, 0, 7, 0]
        assert values(q) == []

    def test_an_expiry_runs_again_after_redrive(self, q: JournalQueue, clock: FakeClock) -> None:
        q.put(b"short", expire_s=60.0)
        take(q).fail("why")
        assert q.redrive() == 1
        clock.move(61.0)
        assert values(q) == [] and q.stats().ready == 0

    def test_redrive_keeps_the_priority_though_the_process_dies(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock) as q:
            q.put(b"first")
            q.put(b"urgent", priority=3)
            for item in q.get_many(2, timeout=0):
                item.fail("why")
            with interrupted_before_the_message(q):
                q.redrive()
            q.put(b"another")  # takes the offset of one that was not written
            assert q.redrive() == 2
            assert values(q) == [b"urgent", b"another", b"first"]

    def test_a_dedupe_key_means_the_original_after_redrive(self, q: JournalQueue) -> None:
        assert q.put(b"once", dedupe_key=b"k") == 0
        take(q).fail("why")
        assert q.redrive() == 1
        assert q.put(b"once", dedupe_key=b"k") == 0
        assert values(q) == [b"once"]


class TestPutting:
    @pytest.mark.parametrize("keys", [[b"k"], [b"k"] * 3])
    def test_as_many_keys_as_values_also_with_dedupe_keys(self, q: JournalQueue, keys: list[bytes]) -> None:
        expected = f"^keys must have 2 entries, one for each value, got {len(keys)}$"
        with pytest.raises(ValueError, match=expected):
            q.put_many([b"a", b"b"], keys, dedupe_keys=[b"1", b"2"])
        assert q.stats().ready == 0
        assert q.put_many([b"a", b"b"], [b"k", b"l"], dedupe_keys=[b"1", b"2"]) == [0, 1]

    def test_an_intent_without_its_message_takes_no_room(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock, maxsize=3) as q:
            q.put(b"a")
            with interrupted_before_the_message(q):
                q.put_many([b"lost", b"too"], delay_s=5.0)
            q.put_many([b"b", b"c"], timeout=0)
            with pytest.raises(sej.QueueFullError):
                q.put(b"d", timeout=0)
            assert values(q) == [b"a", b"b", b"c"]

    def test_what_is_there_has_room(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock, maxsize=3) as q:
            assert q.put_many([b"a", b"b"], dedupe_keys=[b"a", b"b"]) == [0, 1]
            assert q.put_many([b"b", b"c", b"b"], dedupe_keys=[b"b", b"c", b"b"], timeout=0) == [1, 2, 1]
            assert q.put(b"a", dedupe_key=b"a", timeout=0) == 0
            with pytest.raises(sej.QueueFullError):
                q.put_many([b"a", b"d"], dedupe_keys=[b"a", b"d"], timeout=0)
            assert values(q) == [b"a", b"b", b"c"]

    def test_maxsize(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock, maxsize=2) as q:
            q.put_many([b"a", b"b"])
            assert len(q) == 2
            with pytest.raises(sej.QueueFullError, match="maxsize"):
                q.put(b"c", timeout=0)
            with pytest.raises(sej.QueueFullError, match="never fit"):
                q.put_many([b"c"] * 3)
            putter = threading.Thread(target=q.put, args=(b"c",))
            putter.start()
            take(q).done()
            putter.join(30)
            assert not putter.is_alive()
            assert len(q) == 2

    def test_dedupe(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock, dedupe_window_s=60) as one, opened(tmp_path, clock) as other:
            assert one.put(b"a", dedupe_key=b"1") == 0
            assert other.put(b"a", dedupe_key=b"1") == 0
            assert one.put_many([b"b", b"a", b"b"], dedupe_keys=[b"2", b"1", b"2"]) == [1, 0, 1]
            take(one).done()
            assert one.put(b"a", dedupe_key=b"1") == 0
            clock.move(61)
            assert one.put(b"a", dedupe_key=b"1") == 2

    def test_expiry(self, q: JournalQueue, clock: FakeClock) -> None:
        q.put(b"short", expire_s=5)
        q.put(b"short and delayed", expire_s=5, delay_s=1)
        q.put(b"long", expire_s=50)
        q.put(b"for ever")
        clock.move(6)
        assert values(q) == [b"long", b"for ever"]

    def test_an_exclusive_writer_is_named(self, tmp_path: Path, clock: FakeClock) -> None:
        with sej.Writer(tmp_path) as w:
            w.append(b"job")
            with opened(tmp_path, clock, lock_timeout=0.0) as q:
                assert values(q) == [b"job"]
                with pytest.raises(sej.LockedError, match="pid="):
                    q.put(b"x")

    def test_what_the_serializer_cannot_read_is_named(self, tmp_path: Path) -> None:
        with sej.open_queue(tmp_path, serializer="json") as q:
            with sej.SharedWriter(tmp_path) as w:
                w.append(b"\xff")
            item = take(q)
            with pytest.raises(sej.InvalidMessageError, match="offset 0: json cannot decode"):
                _ = item.value
            item.fail("no JSON")


class TestWhole:
    def test_purge_leaves_what_is_held(self, q: JournalQueue) -> None:
        q.put_many([b"a", b"b", b"c"])
        q.put(b"later", delay_s=10)
        held = take(q)
        assert q.purge() == 3
        assert tuple(q.stats().values())[:5] == (0, 0, 1, 0, 0)
        q.put(b"new")
        held.done()
        assert values(q) == [b"new"]

    def test_an_original_reader_sees_the_head_and_is_refused_meanwhile(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock) as q:
            q.put_many([b"a", b"b", b"c"])
            first, second = q.get_many(2, timeout=0)
            second.done()
            with pytest.raises(sej.LockedError):
                Lock(str(tmp_path / "ofs" / "worker.lck")).acquire()
            clock.move(2)
            q.get(timeout=0)
            assert sej.read_offset(tmp_path, "worker") in (None, 0)
            first.done()
        assert sej.read_offset(tmp_path, "worker") == 2

    @pytest.mark.parametrize("done", [1, 4])
    def test_a_queue_that_was_moved_forwards_or_back_continues_there(
        self, tmp_path: Path, clock: FakeClock, done: int
    ) -> None:
        with opened(tmp_path, clock) as q:
            q.put_many([b"a", b"b", b"c", b"d"])
            q.done_many(q.get_many(done, timeout=0))
        move(tmp_path, 3)
        with opened(tmp_path, clock) as q:
            assert values(q) == [b"d"]

    def test_retention_waits_for_the_head(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock, segment_bytes=100) as q:
            q.put_many([b"%d" % n * 50 for n in range(9)])
            for _ in range(10):
                q.put(b"x" * 60)
            journal = sej.Journal(tmp_path)
            assert journal.clean(max_bytes=1) == []
            for item in q.get_many(12, timeout=0):
                item.done()
        journal.clean(max_bytes=1)
        with opened(tmp_path, clock) as q:
            assert 0 < journal.first_offset <= 12
            assert len(values(q)) == 7

    def test_items_that_retention_deleted_are_counted_reported_once_and_skipped(
        self, tmp_path: Path, clock: FakeClock
    ) -> None:
        with opened(tmp_path, clock, segment_bytes=100) as q, opened(tmp_path, clock) as other:
            q.put_many([b"%d" % n * 120 for n in range(3)], priority=1)
            q.put(b"3" * 120, delay_s=5)
            q.put_many([b"%d" % n * 120 for n in range(4, 8)])
            held, stuck, returned = q.get_many(3, timeout=0)
            held.extend(1000)
            returned.retry(0)
            sej.Journal(tmp_path).clean(max_bytes=1, ignore_readers=["worker"])
            q.put(b"new")
            clock.move(61)
            with pytest.warns(
                RuntimeWarning, match="removed 7 items from the journal before they were delivered"
            ) as told:
                item = take(other)
            assert len(told) == 1
            assert item.value == b"new"
            assert other.get(timeout=0) is None
            held.done()
            with pytest.raises(sej.LeaseLostError):
                stuck.done()
            assert list(q.stats().values()) == [0, 0, 1, 1, 0, 7]
            item.done()
        with opened(tmp_path, clock) as q:
            assert q.stats() == {"ready": 0, "delayed": 0, "leased": 0, "done": 2, "dead": 0, "lost": 7}
        assert sej.read_offset(tmp_path, "worker") == 9

    def test_a_loss_that_is_to_be_an_error_keeps_no_item(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock, segment_bytes=100) as q:
            q.put(b"0" * 120)
            sej.Journal(tmp_path).clean(max_bytes=1, ignore_readers=["worker"])
            q.put(b"new")
            with pytest.raises(RuntimeWarning, match="removed 1 items"):
                q.get(timeout=0)
            assert take(q).value == b"new"

    def test_what_was_deleted_on_the_way_to_an_item_does_not_matter(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock, segment_bytes=100) as q:
            q.put(b"0" * 120)
            take(q).retry(0)
            take(q).done()  # its position was looked up, and the next look-up continues from there
            for n in range(1, 6):
                q.put(b"%d" % n * 120)
            *gone, last = q.get_many(5, timeout=0)
            q.done_many(gone)
            clock.move(2)
            assert q.get(timeout=0) is None
            assert sej.Journal(tmp_path).clean(max_bytes=1)
            assert sej.Journal(tmp_path).first_offset == 5
            last.retry(0)
            assert take(q).message.offset == 5
            assert q.stats().lost == 0

    def test_stats_finds_what_is_lost(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock, segment_bytes=100) as q:
            for n in range(3):
                q.put_many([b"%d" % n * 120])
            sej.Journal(tmp_path).clean(max_bytes=1, ignore_readers=["worker"])
            first = sej.Journal(tmp_path).first_offset
            assert first > 0
            assert list(q.stats().values()) == [3 - first, 0, 0, 0, 0, first]
            with pytest.warns(RuntimeWarning, match=f"removed {first} items"):
                q.get(timeout=0)
            assert pickle.loads(pickle.dumps(q.stats())).lost == first

    def test_stats_have_names_as_json_and_as_attributes(self, q: JournalQueue) -> None:
        q.put(b"job")
        q.pause()
        row = json.loads(json.dumps(q.stats()))
        assert row == {"ready": 1, "delayed": 0, "leased": 0, "done": 0, "dead": 0, "lost": 0, "paused": True}
        assert (q.stats().ready, q.stats().lost, q.stats().paused) == (1, 0, True)
        with pytest.raises(AttributeError, match="'redy' is not a count of a queue; it has ready, delayed"):
            q.stats().redy  # type: ignore[attr-defined]  # noqa: B018

    def test_default_last_begins_at_the_end(self, tmp_path: Path, clock: FakeClock) -> None:
        with sej.Writer(tmp_path) as w:
            w.append(b"old")
        with opened(tmp_path, clock, default=sej.LAST) as q:
            q.put(b"new")
            assert values(q) == [b"new"]

    def test_a_reboot_keeps_delays_and_voids_leases(self, tmp_path: Path, clock: FakeClock) -> None:
        dying = opened(tmp_path, clock)
        dying.put(b"held")
        dying.put(b"later", delay_s=100)
        take(dying)
        kill(dying)
        clock.move(40)
        clock.reboot()
        with opened(tmp_path, clock) as q:
            held = take(q)
            assert held.attempts == 2
            held.done()
            clock.move(59)
            assert q.get(timeout=0) is None
            clock.move(1.5)
            assert take(q).value == b"later"

    def test_a_wall_clock_set_back_over_a_reboot_makes_no_item_wait_longer(
        self, tmp_path: Path, clock: FakeClock
    ) -> None:
        with opened(tmp_path, clock) as q:
            clock.move(1000)
            q.put(b"later", delay_s=100)
            assert q.get(timeout=0) is None
        clock.reboot()
        clock.wall -= 10**7 * NS
        with opened(tmp_path, clock) as q:
            clock.move(99)
            assert q.get(timeout=0) is None
            clock.move(1.1)
            assert take(q).value == b"later"

    @pytest.mark.parametrize("set_by_s", [-36_000, 36_000])
    def test_a_wall_clock_that_was_set_before_a_reboot_ends_no_time_early(
        self, tmp_path: Path, clock: FakeClock, set_by_s: int
    ) -> None:
        with opened(tmp_path, clock) as q:
            q.put(b"retried")
            item = take(q)
            clock.wall += set_by_s * NS  # as by NTP, after the queue was opened
            item.retry(delay_s=100)
            q.put(b"later", delay_s=100, expire_s=200)
        clock.move(40)
        clock.reboot()
        with opened(tmp_path, clock) as q:
            clock.move(59)
            assert q.get(timeout=0) is None
            clock.move(1.5)
            assert values(q) == [b"retried", b"later"]

    def test_a_wall_clock_that_was_set_while_workers_wait_ends_no_time_early(
        self, tmp_path: Path, clock: FakeClock
    ) -> None:
        with opened(tmp_path, clock) as q:
            q.put(b"later", delay_s=100)
            clock.wall += 36_000 * NS
            clock.move(1)
            assert q.get(timeout=0) is None
            kill(q)
        clock.reboot()
        with opened(tmp_path, clock) as q:
            clock.move(98)
            assert q.get(timeout=0) is None
            clock.move(1.5)
            assert values(q) == [b"later"]

    def test_the_log_follows_what_is_in_flight(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock, compact_bytes=4000) as q:
            q.put_many([b"x"] * 2000)
            for _ in range(2000):
                take(q).done()
            assert (tmp_path / "ofs" / "worker.queue").stat().st_size < 4000 + 10 * RECORD_SIZE

    def test_options_are_checked(self, tmp_path: Path) -> None:
        wrong: dict[str, Any] = {"lease_s": 0, "max_attempts": 0, "durability": "buffer", "maxsize": -1, "expire_s": 0}
        wrong |= dict.fromkeys(("backoff_s", "backoff_max_s", "dedupe_window_s"), -1)
        for what, value in wrong.items():
            for bad in {value, float("nan")} if what.endswith("_s") else {value}:
                with pytest.raises(ValueError, match=what):
                    sej.open_queue(tmp_path, **{what: bad})
        with sej.open_queue(tmp_path) as q, pytest.raises(ValueError, match="priority must be -3 to 3, got 4"):
            q.put(b"x", priority=4)
        with pytest.raises(ValueError, match=r"backend must be one of .*, got 'foo'"):
            sej.open_queue(tmp_path, backend="foo")
        with pytest.raises(ValueError, match=r"serializer must be one of .*, got 'foo'"):
            sej.open_queue(tmp_path, serializer="foo")

    def test_a_forked_child_is_refused_and_holds_nothing(self, tmp_path: Path, clock: FakeClock) -> None:
        q = opened(tmp_path, clock)
        q.put(b"job")
        take(q)
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                q.get(timeout=0)
            except sej.ClosedError:
                os.write(writing, b"r")
            os.close(writing)
            signal.pause()
        os.close(writing)
        assert os.read(reading, 1) == b"r"
        kill(q)
        clock.move(0.2)
        with opened(tmp_path, clock) as heir:  # the child lives, but the lease does not
            assert take(heir).attempts == 2
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)

    def test_a_full_adapter(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock, maxsize=1) as q:
            adapter = sej.QueueAdapter(q)
            assert adapter.empty()
            adapter.put(b"x")
            assert adapter.full()
            with pytest.raises(queue.Full):
                adapter.put_nowait(b"y")
            adapter.join(0.01)


class TestDamage:
    def log(self, path: Path) -> Path:
        return path / "ofs" / "worker.queue"

    @pytest.mark.parametrize(("damage", "step"), [("cut", 7), ("a wrong byte", 3)])
    def test_no_damage_of_the_log_loses_an_item(self, tmp_path: Path, clock: FakeClock, damage: str, step: int) -> None:
        q = opened(tmp_path, clock)
        q.put_many([b"%d" % n for n in range(10)])
        q.done_many(q.get_many(8, timeout=0)[:6])
        kill(q)
        whole = self.log(tmp_path).read_bytes()
        for at in range(0, len(whole), step):
            wrong = bytes([whole[at] ^ 0x41]) + whole[at + 1 :] if damage == "a wrong byte" else b""
            self.log(tmp_path).write_bytes(whole[:at] + wrong)
            (tmp_path / "ofs" / "worker.ofs").unlink()
            with opened(tmp_path, clock) as q:
                assert q.recovered is not None or not wrong or at >= len(whole) - RECORD_SIZE
                assert values(q)[-4:] == [b"6", b"7", b"8", b"9"], at
        assert list((tmp_path / "kept").iterdir())

    @pytest.mark.parametrize("order", ["ready", "key"])
    @pytest.mark.parametrize("damage", ["a wrong byte", "cut"])
    def test_a_damaged_compaction_loses_nothing(
        self, tmp_path: Path, clock: FakeClock, order: str, damage: str
    ) -> None:
        with opened(tmp_path, clock, order=order) as q:
            q.put_many([b"%d" % n for n in range(8)], [b"a", b"b"] * 4)
            for _ in range(2):  # items are done, wait, and are parked if keys have an order
                for item in q.get_many(4, timeout=0):
                    item.retry(50) if item.key == b"a" else item.done()
            q.put(b"8", delay_s=50)
            q._core.locked(q._core.log.compact)
            left = [item.offset for item in q.items()]
        whole, kept = self.log(tmp_path).read_bytes(), (tmp_path / "ofs" / "worker.ofs").read_bytes()
        for at in range(5, len(whole), RECORD_SIZE):
            next_tick(tmp_path / "ofs" / "worker.ofs")
            (tmp_path / "ofs" / "worker.ofs").write_bytes(kept)
            wrong = bytes([whole[at] ^ 0x41]) + whole[at + 1 :] if damage == "a wrong byte" else b""
            self.log(tmp_path).write_bytes(whole[: at if wrong else at - 5] + wrong)
            clock.move(51)
            assert QueueLook(tmp_path, "worker", clock=clock).stats().ready >= len(left)
            with opened(tmp_path, clock) as q:
                found = set()
                for item in q:
                    found.add(item.message.offset)
                    item.done()
                assert found >= set(left), at
        assert list((tmp_path / "kept").iterdir())

    def test_leases_of_a_lost_log_are_void(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock) as q:
            q.put(b"job")
            item = take(q)
            self.log(tmp_path).unlink()
            with pytest.raises(sej.LeaseLostError):
                item.done()
            assert take(q).attempts == 1

    def test_no_reader_takes_the_lock_of_a_queue(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock) as q:
            q.put(b"a")
            with pytest.raises(sej.InvalidNameError, match=r"work queue 'worker'"):
                sej.Offset(tmp_path, "worker.queue")
            with pytest.raises(sej.InvalidNameError, match=r"work queue 'worker'.*`sej queue purge --name worker "):
                sej.Offset(tmp_path, "worker")
            with sej.Offset(tmp_path, "other.queue") as kept:  # as the original may have named one
                assert kept.value == 0
            assert values(q) == [b"a"]

    def test_a_journal_that_lost_messages_is_not_taken_for_done(self, tmp_path: Path, clock: FakeClock) -> None:
        q = opened(tmp_path, clock)
        q.put_many([b"a", b"b", b"c"])
        q.done_many(q.get_many(3, timeout=0))
        kill(q)
        (segment,) = (tmp_path / "jnl").iterdir()
        segment.write_bytes(segment.read_bytes()[:27])  # what a power loss may leave of bytes that were not synced
        with sej.Writer(tmp_path) as w:
            w.append_many([b"x", b"y", b"z"], timestamp=5)
        with opened(tmp_path, clock) as q:
            assert values(q)[-2:] == [b"y", b"z"]

    def test_a_letter_of_a_message_that_the_power_took_says_nothing_of_the_next_one(
        self, tmp_path: Path, clock: FakeClock
    ) -> None:
        q = opened(tmp_path, clock)
        q.put(b"old")
        take(q).fail("why")
        kill(q)
        (segment,) = (tmp_path / "jnl").iterdir()
        segment.write_bytes(b"")  # what a power loss may leave of bytes that were not synced
        with opened(tmp_path, clock) as q:
            assert q.put(b"new") == 0
            take(q).retry(0)
            assert q.redrive() == 1
            item = take(q)
            assert item.value == b"new"
            item.fail("why")
            assert [letter.message.value for letter in sej.dead_letters(q.dead_letter)] == [b"old", b"new"]
            assert values(q) == [b"old"]

    @pytest.mark.parametrize("state", ["done", "leased", "delayed"])
    def test_the_item_after_a_repaired_gap_is_as_it_was(self, state: str, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock) as q:
            q.put_many([b"first", b"wrong"])
            q.put(b"special", priority=1, delay_s=60.0 if state == "delayed" else 0.0)
            q.put(b"last")
            if state == "done":
                take(q).done()
        (segment,) = (tmp_path / "jnl").iterdir()
        data, size = segment.read_bytes(), 26 + len(b"first")
        segment.write_bytes(data[:size] + b"\xff" * size + data[2 * size :])
        assert [gap[:2] for gap in sej.Journal(tmp_path).repair().gaps] == [(1, 2)]
        with opened(tmp_path, clock) as q, opened(tmp_path, clock) as other:
            held = take(other) if state == "leased" else None
            assert values(q) == [b"first", b"last"]
            clock.move(30.0)
            assert values(q) == []
            if held is not None:
                held.done()
            clock.move(31.0)
            assert values(q) == ([b"special"] if state == "delayed" else [])
            assert tuple(q.stats().values())[:5] == (0, 0, 0, 3, 0)

    def test_an_item_that_a_repair_found_lost_does_not_void_the_log(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock) as q:
            q.put(b"first")
            q.put(b"wrong", expire_s=1000)
            q.put(b"third")
            _first, wrong, third = q.get_many(3, timeout=0)
            wrong.retry(50)
            third.done()
        (segment,) = (tmp_path / "jnl").iterdir()
        data, size = segment.read_bytes(), 26 + len(b"first")
        segment.write_bytes(data[:size] + b"\xff" * size + data[2 * size :])
        assert [gap[:2] for gap in sej.Journal(tmp_path).repair().gaps] == [(1, 2)]
        with opened(tmp_path, clock) as q:
            q.put(b"later", delay_s=60)
            clock.move(51)
            assert [item.value for item in q.get_many(9, timeout=0)] == [b"first"]  # and the lost item is ended
            kill(q)
        with opened(tmp_path, clock) as q:
            assert q.recovered is None
            assert values(q) == [b"first"]

    def test_an_intent_without_its_message_is_void(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock) as q:
            for options in ({"delay_s": 1000.0}, {"dedupe_key": b"k"}, {"expire_s": 0.001}):
                with interrupted_before_the_message(q):
                    q.put(b"lost", **options)
            assert tuple(q.stats().values())[:3] == (0, 0, 0)
            clock.move(1)
            q.put(b"plain")
            assert q.put(b"lost", dedupe_key=b"k") == 1
            assert values(q) == [b"plain", b"lost"]


def test_an_opening_that_fails_leaves_no_file_open(tmp_path: Path, clock: FakeClock) -> None:
    """Also while the caller keeps the error, whose traceback keeps what was opened."""

    def linked() -> list[str]:
        links = []
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                links.append(os.readlink(f"/proc/self/fd/{name}"))
        # A log that was replaced is closed by its last owner: another thread may be syncing it.
        return [link for link in links if link.startswith(str(tmp_path)) and not link.endswith(" (deleted)")]

    errors: list[Exception] = []
    for number in itertools.count(1):
        disk = FaultyDisk(OS, number)
        try:
            opened(tmp_path / str(number), clock, disk, durability="interval").close()
        except (OSError, sej.SejError) as error:
            errors.append(error)
            assert linked() == [], number
        if not disk.failed:
            break
    assert len(errors) > 20


def test_a_sync_of_a_queue_that_was_closed_because_it_failed_names_the_failure(q: JournalQueue) -> None:
    q._core.life.fail(OSError(errno.EIO, "the disk"))
    q._core.log.close()  # another thread got the error, and closed the queue
    with pytest.raises(sej.WriterFailedError, match="the disk"):
        q._core.log.sync_some()


def test_a_replaced_journal_is_an_error_and_not_taken_for_done(tmp_path: Path) -> None:
    with sej.open_queue(tmp_path, "worker") as q:
        q.put_many([b"a", b"b"])
        q.done_many(q.get_many(2, timeout=1))
    for file in (tmp_path / "jnl").iterdir():
        file.unlink()
    for _ in range(2):  # with its log, and without
        with pytest.raises(sej.OffsetBeyondEndError, match="is at offset 2, but the journal ends at 0"):
            sej.open_queue(tmp_path, "worker")
        (tmp_path / "ofs" / "worker.queue").unlink(missing_ok=True)
    move_reader(tmp_path, "worker", 0)
    with sej.open_queue(tmp_path, "worker") as q:
        q.put(b"new")
        assert values(q) == [b"new"]


def test_a_queue_whose_directory_was_moved_creates_nothing_at_the_old_path(tmp_path: Path) -> None:
    q = sej.open_queue(tmp_path / "old", "jobs")
    q.put(b"a")
    item = take(q)
    item.done()
    (tmp_path / "old").rename(tmp_path / "new")
    for act in (lambda: q.put(b"b"), lambda: q.get(timeout=0), q.close):
        with contextlib.suppress(sej.SejError, FileNotFoundError):  # a file that is open may still be written
            act()
    assert not (tmp_path / "old").exists()
    with sej.open_queue(tmp_path / "new", "jobs") as q:
        q.put(b"c")
        assert q.stats().ready >= 1
