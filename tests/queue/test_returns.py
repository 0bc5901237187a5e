"""Items that are delivered again, and items that must not be: purges, cancelled tasks, resets, held locks."""

import os
import threading
from pathlib import Path

import pytest

import sej
from sej.queue.journal_queue import JournalQueue
from tests.queue.support import FakeClock, interrupted_before_the_message, kill, move, opened, take, values


def test_purge_removes_items_whose_leases_ended(tmp_path: Path, clock: FakeClock) -> None:
    with opened(tmp_path, clock, lease_s=10) as q:
        q.put_many([b"slow", b"dead", b"held"])
        take(q)
        clock.move(11)
        other = opened(tmp_path, clock)
        assert take(other).value == b"slow"
        kill(other)
        held = q.get_many(2, timeout=0)
        assert q.purge() == 1
        assert tuple(q.stats().values())[:5] == (0, 0, 2, 0, 0)
        clock.move(11)
        assert (q.purge(), len(q)) == (2, 0)
        with pytest.raises(sej.LeaseLostError):
            held[0].done()


def test_a_purge_forgets_an_intent_without_its_message(tmp_path: Path, clock: FakeClock) -> None:
    q = opened(tmp_path, clock)
    q.put(b"a")
    with interrupted_before_the_message(q):
        q.put(b"lost", priority=1)
    kill(q)
    with opened(tmp_path, clock) as q:
        assert q.purge() == 1
        q.put(b"new")
        assert values(q) == [b"new"]


def test_processes_that_wait_for_the_journal_do_not_stop_a_get(tmp_path: Path, clock: FakeClock) -> None:
    with opened(tmp_path, clock) as q, opened(tmp_path, clock) as other, opened(tmp_path, clock) as third:
        q.put_many([b"a", b"b"])
        take(q).fail()
        threads = [threading.Thread(target=third.put, args=(b"c",), kwargs={"priority": 1})]
        threads += [threading.Thread(target=other.redrive)]
        with sej.Writer(tmp_path):
            waiting = [queue._core.writer.life.mutex for queue in (third, other)]
            for thread, mutex in zip(threads, waiting, strict=True):
                thread.start()
                while mutex.acquire(blocking=False):  # until it waits for the journal, which it holds this for
                    mutex.release()
            for queue in (q, other):
                item = queue.get(timeout=0)
                if item is not None:
                    assert item.value == b"b"
                    item.done()
            assert q.stats().ready == 0
        for thread in threads:
            thread.join(30)
        assert values(q) == [b"c", b"a"]


def test_what_makes_items_runs_under_no_lock(tmp_path: Path, clock: FakeClock) -> None:
    with opened(tmp_path, clock) as q, opened(tmp_path, clock) as other:
        q.put_many(value for value in (b"a", b"b") if other.put(value) >= 0)
        q.put_many((value for value in (b"c",) if other.put(value, delay_s=1) >= 0), delay_s=1)
        held = q.get_many(4, timeout=0)
        q.done_many(item for item in held if other.get(timeout=0) is None)
        assert tuple(q.stats().values())[:5] == (0, 2, 0, 4, 0)


def late(clock: FakeClock, other: JournalQueue) -> bytes:
    clock.move(11)
    return bytes(take(other).value)


def test_an_exception_is_raised_although_the_lease_is_lost(tmp_path: Path, clock: FakeClock) -> None:
    with opened(tmp_path, clock, lease_s=10) as q, opened(tmp_path, clock) as other:
        q.put(b"job")
        with pytest.raises(KeyError), take(q):
            raise KeyError(late(clock, other))


def test_what_an_adapter_cannot_read_is_given_back(tmp_path: Path, clock: FakeClock) -> None:
    with opened(tmp_path, clock) as plain:
        plain.put_many([b"{", b'"good"'])
    with sej.open_queue(tmp_path, "worker", serializer="json", max_attempts=1, clock=clock) as q:
        adapter = sej.QueueAdapter(q)
        with pytest.raises(sej.InvalidMessageError):
            adapter.get_nowait()
        assert adapter.get_nowait() == "good"
        adapter.task_done()
        assert tuple(q.stats().values())[:5] == (0, 0, 0, 1, 1)


def test_an_item_that_fails_again_after_a_reset_has_a_letter_again(tmp_path: Path, clock: FakeClock) -> None:
    with opened(tmp_path, clock) as q:
        q.put(b"job")
        take(q).fail()
        assert q.redrive() == 1
        take(q).done()
    move(tmp_path, 0)
    with opened(tmp_path, clock) as q:
        take(q).fail()
        assert values(q) == [b"job"]
        assert (q.stats().dead, q.redrive()) == (1, 1)


def test_times_may_be_longer_than_any_clock(tmp_path: Path, clock: FakeClock) -> None:
    for_ever = float("inf")
    with opened(tmp_path, clock, lease_s=for_ever, expire_s=for_ever, dedupe_window_s=1e30) as q:
        q.put(b"never", delay_s=for_ever, dedupe_key=b"key")
        q.put(b"now", expire_s=1e30)
        q.put(b"over", expire_s=-1e30)
        item = take(q)
        assert item.value == b"now"
        item.extend(1e30)
        clock.move(10**9)
        assert q.get(timeout=0) is None
        item.retry(for_ever)
        assert tuple(q.stats().values())[:3] == (0, 2, 0)


def test_a_queue_is_not_named_as_the_files_of_another(tmp_path: Path, clock: FakeClock) -> None:
    with pytest.raises(sej.InvalidNameError):
        opened(tmp_path, clock, name="worker.queue")


def test_a_message_without_a_timestamp_is_not_old(tmp_path: Path, clock: FakeClock) -> None:
    with sej.Writer(tmp_path) as w:
        w.append(b"old", timestamp=clock.wall_ns() - 61_000_000_000)
        w.append(b"timeless", timestamp=sej.NO_TIMESTAMP)
    with opened(tmp_path, clock, expire_s=60) as q:
        assert values(q) == [b"timeless"]


def test_items_that_cannot_become_dead_letters_do_not_block_the_others(tmp_path: Path, clock: FakeClock) -> None:
    letters_path = tmp_path / "letters_path"
    letters_path.write_bytes(b"a file, not a journal")
    with opened(tmp_path / "q", clock, dead_letter=letters_path, max_attempts=1, lease_s=10) as q:
        q.put_many([b"a", b"b"])
        q.get_many(2, timeout=0)
        q.put_many([b"c", b"d"])
        clock.move(11)
        with pytest.warns(RuntimeWarning, match="cannot be written to the dead letters.*this is a file") as told:
            found = q.get_many(9, timeout=0)
        assert [item.value for item in found] == [b"c", b"d"] and len(told) == 1
        assert tuple(q.stats().values())[:5] == (0, 2, 2, 0, 0)
        found[0].done()
        with pytest.raises(sej.NotAJournalError):
            found[1].fail("as a caller sees it")
        found[1].done()  # it is held still
        letters_path.unlink()
        assert q.get(timeout=0) is None
        assert tuple(q.stats().values())[:5] == (0, 2, 0, 2, 0)
        clock.move(11)
        assert q.get(timeout=0) is None
        assert tuple(q.stats().values())[:5] == (0, 0, 0, 2, 2)
        letters = [(letter.message.value, letter.attempts, letter.reason) for letter in sej.dead_letters(letters_path)]
        why = "its holder died, did not end it in time or returned it, at attempt 1 of max_attempts=1"
        assert letters == [(b"a", 1, why), (b"b", 1, why)]


def test_a_locked_journal_of_dead_letters_does_not_stop_a_get(
    tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sej.queue.dead_letters._LOCK_S", 0.0)
    with opened(tmp_path, clock, max_attempts=1, lease_s=10) as q, sej.Writer(q.dead_letter):
        q.put_many([b"a", b"b"])
        item = take(q)
        with pytest.raises(sej.LockedError):
            item.fail()
        clock.move(11)
        with pytest.warns(RuntimeWarning, match="lock is held"):
            assert take(q).value == b"b"


def test_a_head_that_cannot_be_stored_loses_no_item(tmp_path: Path, clock: FakeClock) -> None:
    with opened(tmp_path, clock, max_attempts=1) as q:
        q.put_many([b"a", b"b", b"c"])
        for _ in range(2):
            take(q).done()
            clock.move(2)
        tmp = tmp_path / "tmp"
        tmp.rename(tmp_path / "aside")
        tmp.write_bytes(b"a file where a directory is due")
        with pytest.raises(OSError, match="tmp"):
            q.get(timeout=0)
        assert tuple(q.stats().values())[:5] == (1, 0, 0, 2, 0)
        tmp.unlink()
        assert take(q).value == b"c"


def test_a_dead_letter_says_what_ended_the_last_attempt(tmp_path: Path, clock: FakeClock) -> None:
    with opened(tmp_path, clock, max_attempts=2, lease_s=10) as q:
        q.put_many([b"a", b"b"])
        take(q).retry(0, "tried")
        take(q)  # a
        clock.move(11)
        take(q)  # b
        clock.move(11)
        take(q).retry(0)
        assert q.get(timeout=0) is None
        reasons = [letter.reason for letter in sej.dead_letters(q.dead_letter)]
        died = "its holder died or did not end it in time, at attempt 2; the last failure before that: tried"
        assert reasons == [died, "returned at attempt 2"]


def test_the_reason_of_an_earlier_attempt_is_kept_with_the_item(tmp_path: Path, clock: FakeClock) -> None:
    reason = "größe " * 1000
    with opened(tmp_path, clock, max_attempts=2) as q:
        q.put_many([b"a", b"b"])
        first, second = q.get_many(2, timeout=0)
        first.retry(0, reason)
        second.done()
        q._core.locked(q._core.log.compact)
    with opened(tmp_path, clock) as q:
        take(q).retry(0)
        (letter,) = sej.dead_letters(q.dead_letter)
        why, _, last = letter.reason.partition("; the last failure before that: ")
        assert why == "returned at attempt 2" and reason.startswith(last) and len(last) > 900
        assert not q._core.log.state.reasons


@pytest.mark.parametrize(
    ("most", "reason"),
    [
        (1, "2 attempts, more than max_attempts=1"),
        (2, "its holder died, did not end it in time or returned it, at attempt 2 of max_attempts=2"),
    ],
)
def test_a_dead_letter_of_a_smaller_max_attempts_does_not_say_that_the_holder_died(
    tmp_path: Path, clock: FakeClock, most: int, reason: str
) -> None:
    with opened(tmp_path, clock, max_attempts=5) as q:
        q.put(b"a")
        take(q).retry(0)
        take(q).retry(0)
    with opened(tmp_path, clock, max_attempts=most) as q:
        assert q.get(timeout=0) is None
        letters = [(letter.attempts, letter.reason) for letter in sej.dead_letters(q.dead_letter)]
        assert letters == [(2, reason)]


@pytest.mark.parametrize("priority", [0, 1])
def test_items_before_a_fault_are_delivered(tmp_path: Path, clock: FakeClock, priority: int) -> None:
    with opened(tmp_path, clock, segment_bytes=1) as q:
        for value in (b"first", b"second", b"third"):
            q.put(value, priority=0 if value == b"third" else priority)
        flip(next((tmp_path / "jnl").glob("*2.jnl")), 0)
        assert [item.value for item in q.get_many(9, timeout=0)] == [b"first", b"second"]
        with pytest.raises(sej.CorruptionError):
            q.get_many(9, timeout=0)


@pytest.mark.parametrize("order", ["ready", "key"])
def test_items_before_a_fault_are_delivered_from_a_rebuilt_log(tmp_path: Path, clock: FakeClock, order: str) -> None:
    q = opened(tmp_path, clock, segment_bytes=1, order=order)
    q.put_many([b"first", b"second"], [b"a", b"b"])
    q.put(b"third", b"c", priority=-1)
    for item in q.get_many(2, timeout=0):
        item.retry(0)
    kill(q)
    flip(next((tmp_path / "jnl").glob("*2.jnl")), 0)
    flip(tmp_path / "ofs" / "worker.queue", -41)
    with opened(tmp_path, clock) as q:
        assert (q.recovered is not None, take(q).value, take(q).value) == (True, b"first", b"second")
        with pytest.raises(sej.CorruptionError):
            q.get(timeout=0)


def flip(path: Path, at: int) -> None:
    """Change a bit of the byte at a place."""
    data = path.read_bytes()
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at:][1:])


def test_what_is_purged_leaves_nothing_in_the_state(tmp_path: Path, clock: FakeClock) -> None:
    with opened(tmp_path, clock) as q:
        q.purge()
        before = os.path.getsize(tmp_path / "ofs" / "worker.queue")
        for _ in range(3):
            q.put_many([b"x"] * 100, expire_s=60)
            assert q.purge() == 100
        assert os.path.getsize(tmp_path / "ofs" / "worker.queue") == before
        q.put(b"kept", expire_s=60)
        assert q.purge() == 1
        q.put(b"late", expire_s=60)
        clock.move(61)
        assert values(q) == []
