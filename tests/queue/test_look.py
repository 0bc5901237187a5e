"""Looking at a queue without taking anything, and changing single items: peek, items, cancel, requeue, claim."""

import errno
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import sej
from sej.queue.journal_queue import JournalQueue
from sej.queue.listing import QueueLook
from sej.system.disk import OS, File, Mode
from tests.crash.disk import CrashDisk, Fault
from tests.queue.support import NS, FakeClock, crashes, fail_all, failing, kill, move, opened, take


class ReadOnlyDisk:
    """A disk that can only be read."""

    def __getattr__(self, name: str) -> Any:
        return getattr(OS, name) if name in ("status", "list") else self.refuse

    def refuse(self, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "a write on a read-only disk")

    def open(self, path: str, mode: Mode) -> File:
        if mode != "read":
            raise OSError(errno.EROFS, f"open to {mode} on a read-only disk", path)
        return OS.open(path, mode)


@pytest.fixture
def q(tmp_path: Path, clock: FakeClock) -> Iterator[JournalQueue]:
    with opened(tmp_path / "q", clock, max_attempts=2) as queue:
        yield queue


def rewrite(path: Path, segment_bytes: int) -> None:
    """Divide a journal into smaller segments."""
    with sej.Scanner(path) as scanner:
        messages = list(scanner)
    for name in ("jnl", "idx"):
        shutil.rmtree(path / name)
    with sej.Writer(path, segment_bytes=segment_bytes) as writer:
        writer.append_messages(messages)


def fill(q: JournalQueue) -> None:
    """0 dead, 1 leased, 2 delayed, 3 retried, 4 and 5 fresh, 6 with a priority."""
    q.put_many([b"0", b"1"], [b"k0", b"k1"])
    take(q).fail("broken")
    take(q)
    q.put(b"2", delay_s=60)
    q.put(b"3")
    take(q).retry(0)
    q.put_many([b"4", b"5"])
    q.put(b"6", priority=2)


class TestListing:
    def test_peek_gives_the_items_that_get_gives(self, q: JournalQueue) -> None:
        fill(q)
        seen = q.peek(10)
        assert [item.value for item in seen] == [b"6", b"3", b"4", b"5"]
        assert [item.value for item in q.peek()] == [b"6"]
        assert [item.offset for item in seen] == [item.message.offset for item in q.get_many(10, timeout=0)]
        assert q.peek(10) == []

    def test_items_have_state_attempts_time_holder_and_key(self, q: JournalQueue, clock: FakeClock) -> None:
        fill(q)
        rows = [(item.offset, item.state, item.attempts, item.priority) for item in q.items()]
        assert rows == [(1, "leased", 1, 0), (2, "delayed", 0, 0), (3, "ready", 1, 0), (4, "ready", 0, 0),
                        (5, "ready", 0, 0), (6, "ready", 0, 2)]  # fmt: skip
        leased, delayed, *_ = q.items()
        assert (leased.key, leased.value) == (b"k1", b"1")
        assert leased.holder is not None and f"pid={os.getpid()} " in leased.holder
        assert (leased.ready_at, delayed.ready_at) == (clock.wall + 60 * NS, clock.wall + 60 * NS)
        assert delayed.holder is None

    def test_items_of_a_state_and_pages_of_them(self, q: JournalQueue) -> None:
        fill(q)
        by_state = {
            state: [item.offset for item in q.items(state)] for state in ("waiting", "ready", "delayed", "leased")
        }
        assert by_state == {"waiting": [2, 3, 4, 5, 6], "ready": [3, 4, 5, 6], "delayed": [2], "leased": [1]}
        assert [item.offset for item in q.items(limit=2)] == [1, 2]
        assert [item.offset for item in q.items(limit=2, after=2)] == [3, 4]
        (dead,) = q.items(state="dead")
        assert (dead.offset, dead.value, dead.key, dead.reason, dead.attempts) == (0, b"0", b"k0", "broken", 1)
        assert q.items("dead", after=0) == []
        with pytest.raises(ValueError, match="state must be one of 'waiting', 'ready'"):
            q.items("asleep")

    def test_pages_of_dead_letters_leave_none_out(self, q: JournalQueue) -> None:
        q.put_many([b"a", b"b", b"c"])
        for item in reversed(q.get_many(3, timeout=0)):
            item.fail("in another order than they were put")
        assert [item.offset for item in q.items("dead")] == [0, 1, 2]
        assert [item.offset for item in q.items("dead", limit=1)] == [0]
        assert [item.offset for item in q.items("dead", limit=2, after=0)] == [1, 2]

    def test_a_serializer_decodes_what_is_listed(self, tmp_path: Path) -> None:
        with sej.open_queue(tmp_path / "q", serializer="json") as q:
            q.put({"n": 1})
            assert [item.value for item in (*q.peek(), *q.items())] == [{"n": 1}] * 2
            with sej.SharedWriter(q.path) as writer:
                writer.append(b"{")
            with pytest.raises(sej.InvalidMessageError, match="json cannot decode"):
                print(q.items()[1].value)

    def test_an_intent_whose_message_was_never_written_is_not_listed(self, tmp_path: Path, clock: FakeClock) -> None:
        disk = CrashDisk()
        with opened("/q", clock, disk) as q:
            q.put(b"0")
            q._core.log.unsure = True
            q._core.locked(lambda: q._core.log.append(_intent(1)))
            assert [item.offset for item in q.items()] == [0]
            with sej.SharedWriter("/q", disk=disk) as writer:
                writer.append(b"another")
            assert [(item.offset, item.state) for item in q.items()] == [(0, "ready"), (1, "ready")]


def _intent(offset: int) -> bytes:
    from sej.queue.log.format import INTENT

    return INTENT(offset, 7, 7, 2**62, 1)


class TestLookingFromOutside:
    def test_parked_items_are_counted_after_the_reader_was_moved(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock, order="key") as q:
            q.put_many([b"%d" % n for n in range(6)], [b"a"] * 6)
            assert len(q.get_many(9, timeout=0)) == 1  # the others are parked
        move(tmp_path, 3)
        look = QueueLook(tmp_path, "worker", clock=clock)
        assert (look.stats().ready, [item.offset for item in look.items()]) == (3, [3, 4, 5])

    def test_it_sees_what_the_open_queue_sees(self, q: JournalQueue, clock: FakeClock) -> None:
        fill(q)
        look = QueueLook(q.path, "worker", clock=clock)
        for _ in range(2):
            assert look.stats() == q.stats()
            assert look.items() == q.items() and look.peek(5) == q.peek(5)
            assert look.items("dead") == q.items("dead")
            clock.move(61)

    def test_a_queue_that_was_never_used(self, tmp_path: Path, clock: FakeClock) -> None:
        with sej.Writer(tmp_path / "q") as writer:
            writer.append_many([b"a", b"b"])
        with opened(tmp_path / "q", clock):
            pass
        look = QueueLook(tmp_path / "q", "worker", clock=clock)
        assert tuple(look.stats().values())[:5] == (2, 0, 0, 0, 0)
        (tmp_path / "q" / "ofs" / "worker.queue").write_bytes(b"")
        assert [item.value for item in look.items()] == [b"a", b"b"]

    def test_leases_of_a_dead_process_are_ready(self, tmp_path: Path, clock: FakeClock) -> None:
        dying = opened(tmp_path, clock)
        dying.put(b"a")
        take(dying)
        look = QueueLook(tmp_path, "worker", clock=clock)
        assert tuple(look.stats().values())[:3] == (0, 0, 1)
        kill(dying)
        assert tuple(look.stats().values())[:3] == (1, 0, 0)
        assert look.items()[0].attempts == 1

    def test_a_reset_and_a_reboot_that_no_opening_has_seen(self, q: JournalQueue, clock: FakeClock) -> None:
        fill(q)
        path = q.path
        q.close()
        look = QueueLook(path, "worker", clock=clock)
        clock.reboot()
        assert [item.state for item in look.items()] == ["ready", "delayed", "ready", "ready", "ready", "ready"]
        clock.move(61)
        assert tuple(look.stats().values())[:3] == (6, 0, 0)
        move(path, 4)
        assert [item.offset for item in look.items()] == [4, 5, 6]
        move(path, 0)
        assert tuple(look.stats().values())[:5] == (7, 0, 0, 0, 0)

    def test_what_retention_took_is_lost(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock, segment_bytes=100) as q:
            for n in range(20):
                q.put(b"%d" % n * 10)
        sej.Journal(tmp_path).clean(max_bytes=0, ignore_readers=["worker"])
        first = sej.Journal(tmp_path).first_offset
        look = QueueLook(tmp_path, "worker", clock=clock)
        assert look.stats().lost == first > 0
        assert [item.offset for item in look.items()] == list(range(first, 20))

    def test_it_changes_nothing_and_works_on_a_directory_that_cannot_be_written(self, q: JournalQueue) -> None:
        fill(q)
        root = Path(q.path)
        before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
        disk: Any = ReadOnlyDisk()
        look = QueueLook(root, "worker", disk=disk)
        assert look.stats().dead == 1
        assert [item.offset for item in look.items()] == [1, 2, 3, 4, 5, 6]
        assert [item.offset for item in look.items("dead")] == [0]
        assert len(look.peek(9)) >= 4
        assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


class TestCancel:
    def test_it_stays_cancelled(self, tmp_path: Path, clock: FakeClock) -> None:
        with opened(tmp_path, clock) as q:
            q.put_many([b"a", b"b", b"c"])
            assert q.cancel(1) and not q.cancel(99)
        with opened(tmp_path, clock) as q:
            assert [item.value for item in q.items()] == [b"a", b"c"]
            assert [item.value for item in q] == [b"a", b"c"]


class TestRequeue:
    @pytest.mark.parametrize("counted", [False, True])
    @pytest.mark.parametrize("act", ["items", "requeue", "discard", "redrive"])
    def test_the_letters_that_retention_has_left(
        self, q: JournalQueue, clock: FakeClock, act: str, counted: bool
    ) -> None:
        fail_all(q, b"a", b"b", b"c", b"d")
        rewrite(Path(q.dead_letter), 150)
        sej.Journal(q.dead_letter).clean(max_bytes=1, keep_segments=2)
        left = [letter.message.offset for letter in sej.dead_letters(q.dead_letter)]
        offset = left[-1]
        assert 0 < len(left) < 4
        look = QueueLook(q.path, "worker", clock=clock)
        assert look.stats().dead == len(left)
        if counted:
            assert q.stats().dead == len(left)
        if act == "items":
            assert [item.offset for item in q.items("dead")] == left
        elif act == "requeue":
            assert (q.requeue(0), q.requeue(offset)) == (None, 4)
        elif act == "discard":
            assert (q.discard(0), q.discard(offset)) == (False, True)
        else:
            assert (q.redrive(), q.redrive()) == (len(left), 0)
        dead = len(left) - {"items": 0, "redrive": len(left)}.get(act, 1)
        assert (q.stats().dead, look.stats().dead, len(q.items("dead"))) == (dead, dead, dead)

    def test_items_are_counted_though_the_letters_cannot_be_read(self, q: JournalQueue, clock: FakeClock) -> None:
        q.put_many([b"a", b"b"])
        q.get_many(1, timeout=0)[0].fail("why")
        shutil.rmtree(q.dead_letter)
        look = QueueLook(q.path, "worker", clock=clock)
        for _ in range(2):  # missing, and then not a journal
            assert list(look.stats().values()) == list(q.stats().values()) == [1, 0, 0, 0, 1, 0]
            Path(q.dead_letter).write_bytes(b"")

    def test_a_second_redrive_says_what_to_do_while_the_first_one_runs(self, q: JournalQueue) -> None:
        fail_all(q, b"a")
        reader = q._core.letters.reader()
        with (
            sej.Offset(q.dead_letter, reader),
            pytest.raises(sej.LockedError, match="call yours again after it") as it,
        ):
            q.redrive()
        assert (it.value.holder or "").startswith("pid")
        assert "another redrive() of the queue 'worker' is running in pid" in str(it.value)
        assert q.redrive() == 1

    def test_without_letters_there_is_nothing_to_requeue(self, q: JournalQueue) -> None:
        q.put(b"a")
        assert q.requeue(0) is None

    def test_it_is_put_back_once_after_any_crash(self) -> None:
        clock, disk = FakeClock(), CrashDisk()
        q = opened("/q", clock, disk)
        fail_all(q, b"a", b"b", b"c")
        q.sync()
        since = disk.settle()
        assert q.requeue(1) == 3
        disk.mark("back")
        for crash in crashes(disk, q, clock, since):
            with opened("/q", clock, crash.disk) as q:
                q.put(b"new")
                again = q.requeue(1)
                assert again is None if crash.marks else True
                assert q.stats().dead == 2
                assert q.redrive() == 2
                assert q.stats().dead == 0
                left = Counter(item.value for item in q.get_many(10, timeout=0))
            assert left == {b"a": 1, b"b": 1, b"c": 1, b"new": 1}, crash.step


class TestDiscard:
    @staticmethod
    def with_letters(clock: FakeClock) -> CrashDisk:
        disk = CrashDisk()
        q = opened("/q", clock, disk)
        fail_all(q, b"a", b"b", b"c")
        q.sync()
        kill(q)
        return disk

    def letters(self) -> CrashDisk:
        return self.with_letters(FakeClock()).crash()

    @pytest.mark.parametrize("sticky", [False, True])
    @pytest.mark.parametrize("fault", ["eio", "enospc", "short"])
    def test_whichever_call_fails_the_item_is_not_put_back(self, fault: Fault, sticky: bool) -> None:
        said = None
        for inner, disk in failing(self.letters, fault, sticky=sticky):
            clock, said = FakeClock(), None
            with suppress(OSError, sej.SejError):
                q = opened("/q", clock, disk)
                said = q.discard(1)
                kill(q)
            clock.move(100)
            with opened("/q", clock, inner) as q:
                assert q.get(timeout=0) is None, disk.failed
                assert sej.Journal("/q", disk=inner).end_offset == 3, disk.failed
                left = [item.offset for item in q.items("dead")]
                assert left == [0, 2] or (left == [0, 1, 2] and not said), (disk.failed, left)
                assert q.discard(1) is (1 in left)
                assert q.redrive() == 2
                assert [item.value for item in q.get_many(9, timeout=0)] == [b"a", b"c"], disk.failed
        assert said, "the last disk did not fail"

    def test_it_is_removed_or_as_it_was_after_any_power_loss(self) -> None:
        clock = FakeClock()
        disk = self.with_letters(clock)
        since = disk.settle()
        q = opened("/q", clock, disk)
        assert q.discard(1)
        disk.mark("gone")
        for crash in crashes(disk, q, clock, since, more_than=5):
            with opened("/q", clock, crash.disk) as q:
                q.put(b"new")
                left = [item.offset for item in q.items("dead")]
                assert left == [0, 2] or (left == [0, 1, 2] and not crash.marks), crash.step
                assert q.redrive() == len(left)
                assert len(q.get_many(10, timeout=0)) == len(left) + 1

    def test_it_stays_removed_though_the_log_is_compacted_and_its_message_is_gone(
        self, q: JournalQueue, clock: FakeClock
    ) -> None:
        fail_all(q, b"a", b"b")
        assert q.discard(1)
        q._core.locked(q._core.log.compact)
        clock.reboot()
        with opened(q.path, clock) as other:
            assert [item.offset for item in other.items("dead")] == [0]
            assert not other.discard(1) and other.requeue(1) is None
            assert tuple(other.stats().values())[:5] == (0, 0, 0, 0, 1)
            assert other.redrive() == 1
            assert not other._core.log.state.dedupe.known

    def test_a_letter_whose_put_back_was_not_finished_is_put_back(self) -> None:
        clock = FakeClock()
        for inner, disk in failing(self.letters, sticky=True):
            with suppress(OSError, sej.SejError):
                q = opened("/q", clock, disk)
                q.requeue(1)
                kill(q)
            with opened("/q", clock, inner) as q:
                there = sej.Journal("/q", disk=inner).end_offset == 4
                assert q.discard(1) is not there, disk.failed
                assert [item.value for item in q.get_many(9, timeout=0)] == ([b"b"] if there else [])
                assert [item.offset for item in q.items("dead")] == [0, 2]

    def test_its_key_goes_on(self, tmp_path: Path) -> None:
        with sej.open_queue(tmp_path, order="key", on_dead="block") as q:
            q.put_many([b"a", b"b"], [b"k", b"k"])
            (item,) = q.get_many(2, timeout=0)
            item.fail("why")
            assert q.get(timeout=0) is None
            assert q.discard(0)
            assert [item.value for item in q.get_many(2, timeout=0)] == [b"b"]
