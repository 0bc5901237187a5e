"""A queue's log may reach the disk before the journal: power that is lost then takes messages that the log knows."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sej
from sej.queue.journal_queue import JournalQueue
from sej.queue.log.format import RECORD_SIZE
from sej.system.disk import File
from tests.crash.disk import CrashDisk
from tests.queue.support import FakeClock, crashes, dying, fail_all, kill, opened, values
from tests.sej.hooks import HookedDisk, until

PATH = "/q"


def left_by(disk: CrashDisk) -> CrashDisk:
    """Power is lost: the queue's log is on the disk as it was seen, the journal only as far as it was synced."""
    lost = disk.crash()
    log = f"{PATH}/ofs/worker.queue"
    file = lost.open(log, "append")
    file.truncate(0)
    file.write(disk.files()[log])
    file.sync()
    return lost


def durably(clock: FakeClock, disk: CrashDisk) -> JournalQueue:
    return opened(PATH, clock, disk, durability="disk")


def test_what_was_done_stays_done_though_a_later_message_that_was_taken_is_lost() -> None:
    clock, disk = FakeClock(), CrashDisk()
    q = durably(clock, disk)
    q.put(b"done")
    q.put(b"delayed", delay_s=1000)
    q.put(b"keyed", dedupe_key=b"key")
    q.put(b"urgent", priority=1)
    with sej.SharedWriter(PATH, durability="os", disk=disk) as w:
        items = q.get_many(3, timeout=0)
        assert [item.value for item in items] == [b"urgent", b"done", b"keyed"]
        w.append(b"lost")
        items += q.get_many(1, timeout=0)
        q.done_many(items)
        crash = left_by(disk)
    kill(q)
    clock.move(1)
    clock.reboot()
    for _ in range(2):
        with durably(clock, crash) as q:
            assert q.put(b"keyed", dedupe_key=b"key") == 2
            assert values(q) == []
    with durably(clock, crash) as q:
        assert q.recovered is None
        q.put(b"new")
        assert values(q) == [b"new"]
        clock.move(1000)
        assert values(q) == [b"delayed"]


def test_ended_items_of_a_batch_stay_ended_though_its_last_message_is_lost() -> None:
    clock, disk = FakeClock(), CrashDisk()
    q = durably(clock, disk)
    q.put_many([b"done", b"done too", b"dead"])
    with sej.SharedWriter(PATH, durability="os", disk=disk) as w:
        w.append(b"lost")
        items = q.get_many(4, timeout=0)
        q.done_many(items[:2])
        done = left_by(disk)
        items[2].fail("why")
        dead = left_by(disk)
        items[3].done()
    kill(q)
    clock.move(1)
    clock.reboot()
    with durably(clock, done) as q:
        assert values(q) == [b"dead"]
    with durably(clock, dead) as q:
        assert values(q) == []
        assert (q.stats().dead, q.redrive()) == (1, 1)
        assert values(q) == [b"dead"]


def purged(q: JournalQueue) -> None:
    q.put(b"old")
    q.purge()


def taken_out_of_order(q: JournalQueue) -> None:
    q.put(b"old", priority=1)
    q.done_many(q.get_many(1, timeout=0))


@pytest.mark.parametrize("act", [purged, taken_out_of_order])
def test_a_message_in_the_place_of_a_lost_one_is_delivered(act: Callable[[JournalQueue], None]) -> None:
    clock, disk = FakeClock(), CrashDisk()
    q = opened(PATH, clock, disk)
    q.sync()
    since = len(disk.trace)
    act(q)
    for crash in crashes(disk, q, clock, since, more_than=10):
        with opened(PATH, clock, crash.disk) as q:
            q.put_many([b"new", b"newer"])
            assert [value for value in values(q) if value != b"old"] == [b"new", b"newer"], crash.step


def test_a_known_dedupe_key_means_a_message_on_the_disk() -> None:
    clock, disk = FakeClock(), CrashDisk()
    with opened(PATH, clock, disk) as q, durably(clock, disk) as other:
        q.put(b"once", dedupe_key=b"key")
        assert other.put(b"once", dedupe_key=b"key") == 0
        crash = disk.crash()
    with opened(PATH, clock, crash) as q:
        assert values(q) == [b"once"]


@pytest.mark.parametrize("wishes", [{"expire_s": 1}, {"expire_s": 1, "delay_s": 0.5}, {"expire_s": 1, "priority": 1}])
def test_a_message_in_the_place_of_one_that_was_never_written_keeps_its_expiry(tmp_path: Path, wishes: Any) -> None:
    clock = FakeClock()
    with dying(tmp_path, clock) as q:
        q.put(b"never written", delay_s=1000)
    with opened(tmp_path, clock) as q:
        assert q.put(b"expires", **wishes) == 0
        clock.move(2)
        assert values(q) == []


def test_records_that_the_disk_lost_end_what_syncs_in_the_background(tmp_path: Path) -> None:
    """The caller gets an error. The queue does not continue without syncs."""
    clock = FakeClock()
    killed = opened(tmp_path, clock)
    killed.put_many([b"v"] * 3)
    killed.done_many(killed.get_many(1, timeout=0))
    kill(killed)
    q = opened(tmp_path, clock, durability="interval", sync_interval_s=3600)
    (item,) = q.get_many(1, timeout=0)
    with open(tmp_path / "ofs" / "worker.queue", "r+b") as log:  # a page that was never written is read again
        log.seek(q._core.log._in_doubt[0])
        log.write(bytes(RECORD_SIZE))
    q._core.syncer.request()
    until(lambda: not q._core.life.open)
    with pytest.raises(sej.WriterFailedError, match="not the bytes that were written"):
        item.done()
    q.close()


class Failing(HookedDisk):
    """A disk that fails one sync of a queue's log, once armed."""

    def __init__(self) -> None:
        super().__init__(self._look)
        self.armed = False

    def _look(self, verb: str, file: File | None, data: bytes) -> None:
        if self.armed and verb == "sync" and file is not None and file.path.endswith(".queue"):
            self.armed = False
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def failed_in_the_background(path: Path) -> JournalQueue:
    """Return a queue whose log a thread failed to sync, after the last call."""
    disk = Failing()
    q = opened(path, FakeClock(), durability="interval", sync_interval_s=3600, disk=disk)
    q.put(b"v", priority=1)
    disk.armed = True
    q._core.syncer.request()
    until(lambda: q._core.life.unreported)
    return q


def test_a_log_that_failed_in_the_background_is_reported_at_the_latest_by_close(tmp_path: Path) -> None:
    q = failed_in_the_background(tmp_path)
    with pytest.raises(sej.WriterFailedError, match=r"Input/output error"):
        q.close()
    q.close()
    with opened(tmp_path, FakeClock()) as again:  # the locks were released
        assert values(again) == [b"v"]


@pytest.mark.parametrize("call", ["stats", "sync", "put"])
def test_a_log_that_failed_in_the_background_is_reported_once(tmp_path: Path, call: str) -> None:
    q = failed_in_the_background(tmp_path)
    with pytest.raises(sej.WriterFailedError, match=r"Input/output error"):
        q.put(b"w", priority=1) if call == "put" else getattr(q, call)()
    q.close()


def test_a_log_that_failed_in_the_background_replaces_no_error_of_the_block(tmp_path: Path) -> None:
    def doomed() -> None:
        with failed_in_the_background(tmp_path):
            raise KeyError("of the block")

    with pytest.raises(KeyError):
        doomed()


# --- dedupe keys whose message was never written: another one takes its offset, and retention takes that one


def work_on(path: Path, clock: FakeClock) -> None:
    """Others put, take and end, the head is kept, and retention takes what is done."""
    with opened(path, clock, segment_bytes=100) as q:
        for _ in range(20):
            q.put(b"other")
        clock.move(2)
        q.done_many(q.get_many(100, timeout=0))
    assert sej.Journal(path).clean(max_bytes=0)


@pytest.mark.parametrize("again", [False, True])
def test_a_key_whose_putter_died_is_free_when_its_offset_is_another_messages_and_gone(
    tmp_path: Path, again: bool
) -> None:
    clock = FakeClock()
    with dying(tmp_path, clock) as q:
        q.put(b"job", dedupe_key=b"job")
    with opened(tmp_path, clock) as q:
        if again:
            q.put(b"job", dedupe_key=b"job")
        q.put(b"kept", dedupe_key=b"kept")
    work_on(tmp_path, clock)
    with opened(tmp_path, clock) as q:
        assert q.put(b"kept", dedupe_key=b"kept") == int(again)
        offset = q.put(b"job", dedupe_key=b"job")
        found = [item.value for item in q.get_many(10, timeout=0)]
    assert (offset, found) == ((0, []) if again else (21, [b"job"]))


def test_a_dead_letter_comes_back_though_who_put_it_back_died_and_another_message_took_its_place(
    tmp_path: Path,
) -> None:
    clock = FakeClock()
    with opened(tmp_path, clock) as q:
        fail_all(q, b"job")
    with dying(tmp_path, clock) as q:
        q.redrive()
    work_on(tmp_path, clock)
    with opened(tmp_path, clock) as q:
        assert q.redrive() == 1
        assert [item.value for item in q.get_many(10, timeout=0)] == [b"job"]


def test_who_wrote_a_message_has_no_need_to_compare_it_with_its_key(tmp_path: Path) -> None:
    clock = FakeClock()
    with dying(tmp_path, clock) as q:
        q.put_many([b"x", b"y"], dedupe_keys=[b"x", b"y"])
    with opened(tmp_path, clock) as q, opened(tmp_path, clock) as other:
        q.put(b"a", dedupe_key=b"a")  # below one that was never written: it is compared all the same
        q.put_many([b"b", b"c"])
        q.put_many([b"d", b"e"], dedupe_keys=[b"d", b"e"])
        assert [offset for offset, *_ in q._core.log.state.dedupe.unproven(9)] == [0, 1]
        q.done_many(q.get_many(9, timeout=0))
        other.stats()
        assert [offset for offset, *_ in other._core.log.state.dedupe.unproven(9)] == [0, 0, 1, 3, 4]
        other._core.log.prepare_head()
        assert [offset for offset, *_ in other._core.log.state.dedupe.unproven(9)] == [0, 1]
    with opened(tmp_path, clock) as q:
        assert q._core.log.state.dedupe.unproven(9) == []
        assert [q.put(key, dedupe_key=key) for key in (b"a", b"d", b"e", b"x", b"y")] == [0, 3, 4, 5, 6]
