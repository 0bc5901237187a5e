"""What the queues do, verb by verb, on real files: both formats alike, and what each has alone."""

import errno
import os
from collections.abc import Callable
from concurrent.futures import wait
from contextlib import closing, nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import kestrel
import sej
from kestrel import segmented
from kestrel.errors import BadNameError, BusyError, FailedError, FullError, MissingError, ShutError, TooLargeError
from kestrel.segmented.journal import LEAST_BYTES
from kestrel.v2 import format
from kestrel.v2.format import addx, removes
from kestrel.v2.replay import next_xid
from sej.system.disk import Mode
from tests.crash.disk import CrashDisk
from tests.kestrel.support import KINDS, OPENERS, START, Three, Two, values, waiting
from tests.sej.hooks import HookedDisk
from tests.ticks import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock(START)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def made(kind: Any, tmp_path: Path, clock: Clock) -> Callable[..., Any]:
    """What opens a queue of either format."""
    return partial(kind.open, tmp_path, now_ms=clock)


@pytest.fixture
def opened(tmp_path: Path, clock: Clock) -> Callable[..., kestrel.Queue]:
    return partial(kestrel.Queue, tmp_path, "cars", now_ms=clock)


@pytest.fixture
def jobs(tmp_path: Path, clock: Clock) -> Callable[..., segmented.Queue]:
    return partial(segmented.Queue, tmp_path, "jobs", now_ms=clock)


def files(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if "~~" not in entry.name)


def test_a_get_waits_for_a_put(made: Callable[..., Any]) -> None:
    with closing(made()) as q:
        with waiting(q.queue, q.get) as (getting,):
            q.put(b"now")
        assert getting.result().data == b"now"
        with waiting(q.queue, q.get) as (getting,):
            q.queue.evict_waiters()
        assert (getting.result(), q.get(timeout=0.01)) == (None, None)


def test_a_closed_queue_wakes_and_refuses(made: Callable[..., Any], kind: Any) -> None:
    q = made()
    with waiting(q.queue, q.get) as (getting,):
        q.close()
        q.close()
    verbs = [getting.result, q.get, q.peek, q.take, q.flush, partial(q.put, b""), partial(q.end, 1)]
    for verb in [*verbs, q.queue.checkpoint] if kind is Three else verbs:
        with pytest.raises(ShutError):
            verb()


def test_items_expire_at_or_after_their_time(made: Callable[..., Any], kind: Any, clock: Clock) -> None:
    with closing(made(max_age_s=1)) as q:
        for data, until in ((b"soon", START + 10), (b"old", None), (b"later", START + 20)):
            q.put(data, until)
        clock.now = START + 9 + kind.late_ms
        assert q.peek().data == b"soon"
        clock.now += 1
        assert q.peek().data == b"old"
        clock.now = START + 999 + kind.late_ms
        assert q.peek().data == b"old"
        clock.now += 1
        assert values(q) == []
        assert (q.expired(), len(q)) == (3, 0)


def test_limits_refuse(made: Callable[..., Any]) -> None:
    with closing(made(max_items=2, max_item_bytes=5)) as q:
        q.put_many([b"a", b"b"])
        with pytest.raises(FullError, match="2 items"):
            q.put(b"c")
        with pytest.raises(TooLargeError, match="at most 5 bytes"):
            q.put(b"123456")
        q.end(q.take()[0])
        with pytest.raises(FullError):
            q.put_many([b"c", b"d"])
        q.put(b"c")
        with pytest.raises(TypeError):
            q.put("text")
        assert values(q) == [b"b", b"c"]


def test_max_bytes_may_be_passed_by_one_item(made: Callable[..., Any]) -> None:
    with closing(made(max_bytes=10)) as q:
        q.put(b"123456789")
        q.put(b"over")
        with pytest.raises(FullError):
            q.put(b"")


def test_the_oldest_are_dropped(made: Callable[..., Any], kind: Any, tmp_path: Path) -> None:
    with closing(made(max_items=3, max_bytes=100, **{kind.drop: True})) as q:
        for number in range(8):
            q.put(b"%d" % number)
        assert q.counters().discarded == 5
        assert kind.left(tmp_path) == [b"5", b"6", b"7"]
        q.put(b"x" * 100)
        assert len(q) == (3 if kind is Two else 1)  # libkestrel drops until the data fits
        with pytest.raises(FullError) if kind is Two else nullcontext():
            q.put_many([b"x"] * 4)


def test_one_process_has_it_and_a_deleted_queue_is_gone(made: Callable[..., Any], tmp_path: Path) -> None:
    with closing(made()) as q:
        q.put(b"a")
        with pytest.raises(BusyError, match="pid="):
            made()
    again = made()
    assert len(again) == 1
    again.queue.delete()
    assert [path.name for path in tmp_path.iterdir()] == ["cars~~lock"]


def test_a_lost_lock_stops_the_queue(made: Callable[..., Any], kind: Any, tmp_path: Path) -> None:
    """The originals delete name~~* when they start; two writers must not follow."""
    with closing(made()) as q:
        q.put(b"x")
        handle, _ = q.take()
        (tmp_path / "cars~~lock").unlink()
        q.queue._tail._checked_ns = 0  # as if the last look was 100 ms ago
        with pytest.raises(FailedError, match="removed or replaced"):
            q.end(handle)
        for verb in (partial(q.put, b"a"), q.queue.checkpoint if kind is Three else q.flush):
            with pytest.raises(FailedError):
                verb()
    assert kind.left(tmp_path) == [b"x"]


@pytest.mark.parametrize("end", ["close", "delete"])
def test_a_close_that_fails_releases_the_lock(kind: Any, end: str, tmp_path: Path) -> None:
    failing = False

    def hook(*_: object) -> None:
        if failing:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    q = kind.open(tmp_path, disk=HookedDisk(hook))
    q.put_many([b"a", b"b"])
    assert q.end(q.take()[0])
    failing = True
    with pytest.raises(FailedError):
        getattr(q.queue, end)()
    failing = False
    q.close()
    with closing(kind.open(tmp_path)) as again:
        assert again.take()[1] == b"b"


# --- Kestrel 2


def test_only_what_kestrel_2_4_reads_is_written(opened: Callable[..., kestrel.Queue], tmp_path: Path) -> None:
    with opened(max_memory_bytes=2000, journal_bytes=900, max_journal_bytes=6000) as queue:
        written = set()
        for number in range(200):
            queue.put(b"%d" % number)
            if number % 3 == 0:
                found = queue.reserve()
                assert found is not None
                if number % 9 == 0:
                    assert queue.confirm(found[0])
                elif number % 9 == 3:
                    assert queue.unreserve(found[0])
                else:
                    assert queue.continue_(found[0], b"more")
            if number % 4 == 0:
                queue.get()
        for path in tmp_path.iterdir():
            if "~~" not in path.name:
                written |= {operation.opcode for operation in kestrel.read_journal(path, dialect="2.4")}
        assert format.CONTINUE in written <= set(format.WRITTEN)  # it closes and adds in one step


def test_a_peek_that_was_woken_wakes_the_next(opened: Callable[..., kestrel.Queue]) -> None:
    """One put wakes one waiter; a peek leaves the item to another."""
    with opened() as queue, waiting(queue, queue.peek, queue.get) as calls:
        queue.put(b"item")
        found = wait(calls, 60)
        queue.evict_waiters()  # for a thread that sleeps on although the item is there
        assert not found.not_done


def test_max_age_caps_an_expiry_and_is_stored(opened: Callable[..., kestrel.Queue], clock: Clock) -> None:
    with opened(max_age_s=1) as queue:
        queue.put(b"a")
        queue.put(b"b", expiry=START + 5000)
        queue.put(b"c", expiry=START + 500)
        found = [queue.reserve() for _ in range(3)]
        assert [one[1].expiry for one in found if one] == [START + 1000, START + 1000, START + 500]


def test_expired_items_go_to_another_queue(tmp_path: Path, clock: Clock) -> None:
    with (
        kestrel.Queue(tmp_path, "late", now_ms=clock) as late,
        kestrel.Queue(tmp_path, "cars", expire_to=late, now_ms=clock) as queue,
    ):
        queue.put(b"slow", expiry=START + 1)
        clock.now += 10
        assert queue.peek() is None
        assert late.get() == (b"slow", START + 10, 0)


def test_reserved_items_come_back_in_time(opened: Callable[..., kestrel.Queue], clock: Clock) -> None:
    with opened(open_timeout_s=10) as queue:
        queue.put_many([b"a", b"b"])
        first = queue.reserve()
        assert first is not None
        clock.now += 10_000
        assert queue.reserve() == (2, (b"b", START, 0))
        clock.now += 1
        assert queue.get() == (b"a", START, 0)
        assert not queue.confirm(first[0])
        assert queue.counters().canceled_transactions == 1


def test_the_counters_are_the_originals(opened: Callable[..., kestrel.Queue], clock: Clock) -> None:
    with opened() as queue:
        queue.put_many([b"abc", b"de"])
        found = queue.reserve()
        assert found is not None
        clock.now += 7
        queue.unreserve(found[0])
        queue.get()
        counters = queue.counters()
        assert (counters.items, counters.bytes, counters.total_items) == (1, 2, 2)
        assert (counters.transactions, counters.canceled_transactions, counters.open_transactions) == (1, 1, 0)
        assert (counters.age, counters.mem_items, counters.mem_bytes, counters.waiters) == (7, 1, 2, 0)
        assert counters.logsize == 21 + 3 + 21 + 2 + 5 + 5 + 1


def test_counters_after_a_replay(opened: Callable[..., kestrel.Queue], clock: Clock) -> None:
    with opened() as queue:
        queue.put_many([b"a", b"b", b"c"])
        queue.get()
    clock.now += 3
    with opened() as queue:
        assert queue.counters().total_items == 3
        assert queue.counters().age == 3
        queue.put(b"d")
        assert queue.counters().total_items == 4


def test_an_empty_queue_begins_anew(opened: Callable[..., kestrel.Queue], tmp_path: Path) -> None:
    with opened(journal_bytes=100) as queue:
        for _ in range(10):
            queue.put(b"x" * 20)
            queue.get()
        assert queue.counters().journal_rewrites == 3
        assert (tmp_path / "cars").stat().st_size < 150
    assert (tmp_path / "cars").stat().st_size == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cars", "cars~~lock"]


@pytest.mark.parametrize("moved_ms", [60_001, -3_600_000], ids=["late", "set back"])
def test_a_long_journal_is_written_anew_not_too_often(
    opened: Callable[..., kestrel.Queue], clock: Clock, tmp_path: Path, moved_ms: int
) -> None:
    with opened(max_journal_bytes=1000, compact_delay_s=60) as queue:
        for _ in range(100):
            queue.put(b"x" * 100)
            queue.put(b"y" * 100)
            queue.get()
        assert queue.counters().journal_rewrites == 1
        clock.now += moved_ms
        queue.put(b"z")
        assert queue.counters().journal_rewrites == 2
        assert len(list(kestrel.read_journal(tmp_path / "cars"))) == 101
        clock.now += 59_000
        queue.put(b"z" * 1000)
        assert queue.counters().journal_rewrites == 2


def journal_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("cars*") if "~" not in path.name)


def test_the_pair_that_reserve_returns_is_not_an_xid(opened: Callable[..., kestrel.Queue]) -> None:
    with opened() as queue:
        queue.put(b"x")
        pair: Any = queue.reserve()
        for call in (queue.confirm, queue.unreserve, lambda xid: queue.continue_(xid, b"y")):
            with pytest.raises(TypeError, match="xid must be an int, got tuple"):
                call(pair)
        assert queue.confirm(pair[0])


def test_a_queue_in_read_behind_is_packed_at_checkpoints(opened: Callable[..., kestrel.Queue], tmp_path: Path) -> None:
    with opened(max_memory_bytes=10_000) as queue:
        items = [b"%0100d" % number for number in range(2000)]
        for item in items:
            queue.put(item)
        assert queue.counters().journal_rotations > 10
        assert queue.counters().mem_items < 40
        before = journal_bytes(tmp_path)
        assert [found.data for _ in range(1500) if (found := queue.get())] == items[:1500]
        assert journal_bytes(tmp_path) < before


def test_names_of_files_are_those_of_the_original(opened: Callable[..., kestrel.Queue], tmp_path: Path) -> None:
    queue = opened(max_memory_bytes=200)
    for number in range(30):
        queue.put(b"%d" % number)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[0] == "cars"
    assert names[-2:] == ["cars~~durable", "cars~~lock"]
    assert len(names) > 3 and all(name.removeprefix("cars.").isdecimal() for name in names[1:-2])
    queue.delete()
    assert [path.name for path in tmp_path.iterdir()] == ["cars~~lock"]
    assert kestrel.replay(tmp_path, "cars").items == []


def test_transaction_ids_go_over_the_top() -> None:
    assert next_xid(2**31 - 1, {}) == -(2**31)
    assert next_xid(-1, {}) == 1
    assert next_xid(1, dict.fromkeys([2, 3])) == 4


def test_a_closed_queue_has_no_file_open(tmp_path: Path) -> None:
    """Its record of what is on the disk stays open between two syncs."""
    record = str(tmp_path / "cars~~durable")

    def is_open() -> bool:
        links = [Path("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
        return record in [os.readlink(link) for link in links if link.is_symlink()]

    with kestrel.Queue(tmp_path, "cars", sync="always") as queue:
        for _ in range(3):
            queue.put(b"v" * 70_000)  # a record is stored when so much was synced
        assert is_open()
    assert not is_open()


def test_a_number_at_the_end_of_all_numbers_is_no_number(tmp_path: Path) -> None:
    """A rotated file gets a higher number, which must still be valid for all programs."""
    (tmp_path / "cars.9999999999999999999").write_bytes(b"\x01")
    with kestrel.Queue(tmp_path, "cars", max_memory_bytes=50) as queue:
        for number in range(9):
            queue.put(b"%d" % number)
    found = kestrel.replay(tmp_path, "cars")
    assert [item.data for item in found.items] == [b"%d" % number for number in range(9)]
    assert len(found.files) > 1


def test_the_directory_of_damaged_bytes_is_not_a_queue(tmp_path: Path) -> None:
    with pytest.raises(BadNameError, match="directory of damaged bytes"):
        kestrel.Queue(tmp_path, "kept")


class Restless(CrashDisk):
    """Calls a function before a file is opened for reading."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[str], object] = lambda path: None

    def open(self, path: str | os.PathLike[str], mode: Mode) -> Any:
        if mode == "read":
            self.before(str(path))
        return super().open(path, mode)


@pytest.mark.parametrize(
    ("change", "moment"), [("rotate", 1), ("rewrite", 1), ("rotate", 2), ("rewrite", 2), ("rotate", 0)]
)
def test_a_replay_beside_a_queue_in_use_sees_every_item_or_says_so(change: str, moment: int) -> None:
    """The files are renamed after they were listed: once, or each time."""
    disk, due = Restless(), [*[b"item"] * 12, b"last"]
    with kestrel.Queue("/q", "cars", max_memory_bytes=200, disk=disk, now_ms=count(START).__next__) as queue:
        queue.put_many(due[:-1])
        queue.put(due[-1])
        contents = queue._store
        act = contents.storage.rotate if change == "rotate" else partial(contents.rewrite, START)
        looks = count(1)
        disk.before = lambda path: act() if next(looks) == moment or (not moment and path == "/q/cars") else None
        with nullcontext() if moment else pytest.raises(BusyError, match="less busy"):
            assert Two.left("/q", disk) == due
        disk.before = lambda path: None
        assert Two.left("/q", disk) == due


@pytest.mark.parametrize("tail", [bytes(50), b"\xf0\x11", b"\x05\x0f\x00"], ids=["zeros", "opcode", "torn"])
def test_what_is_put_after_a_cut_is_read_from_a_queue_longer_than_memory(tmp_path: Path, tail: bytes) -> None:
    """The replay had read the damaged bytes ahead, to fill the memory that its removes made free."""
    with kestrel.Queue(tmp_path, "cars") as queue:
        queue.put_many([b"a", b"b", b"c"])
        queue.get()
        queue.get()
    with (tmp_path / "cars").open("ab") as file:
        file.write(tail)
    with kestrel.Queue(tmp_path, "cars", max_memory_bytes=130) as queue:
        assert [place.position for place in queue.damage] == [(tmp_path / "cars").stat().st_size]
        queue.put_many([b"d", b"e"])
        found = [queue.get() for _ in range(3)]
    assert [item and item.data for item in found] == [b"c", b"d", b"e"]


def test_a_queue_longer_than_memory_is_read_past_the_damage_of_an_older_file(tmp_path: Path) -> None:
    """The replay read that file again before it found the damage, to fill the memory that its removes made free."""
    items = b"".join(addx(b"%d" % number, 1) for number in range(9))
    (tmp_path / "cars.5").write_bytes(items + removes(4) + bytes(50))
    (tmp_path / "cars").write_bytes(addx(b"9", 1) + addx(b"10", 1) + removes(6))
    with kestrel.Queue(tmp_path, "cars", max_memory_bytes=500) as queue:
        assert [place.file for place in queue.damage] == ["cars.5"]
        assert values(queue) == [b"10"]


# --- libkestrel


def test_given_back_items_come_first_and_count_errors(jobs: Callable[..., segmented.Queue]) -> None:
    given_up: list[tuple[str, int]] = []
    with jobs(max_errors=2, on_given_up=lambda name, item: given_up.append((name, item.id))) as queue:
        queue.put_many([b"a", b"b", b"c"])
        reader = queue.reader()
        reader.get()
        reader.get()
        assert reader.unget(2)
        assert reader.unget(1)
        assert not reader.unget(1)
        taken = [(item.id, item.error_count) for _ in range(3) if (item := reader.get())]
        assert taken == [(2, 1), (1, 1), (3, 0)]
        assert reader.unget(1)
        assert given_up == [("", 1)]
        assert reader.head == 1
        assert reader.counters().discarded == 1


def test_the_first_named_reader_takes_the_defaults_place(jobs: Callable[..., segmented.Queue], tmp_path: Path) -> None:
    with jobs() as queue:
        queue.put_many([b"a", b"b"])
        default = queue.reader()
        default.get()
        default.commit(1)
        named = queue.reader("worker.1")
        assert named is default
        assert named.head == 1
        late = queue.reader("late")
        early = queue.reader("early", start="first")
        assert (late.get(), early.head) == (None, 0)
        queue.put(b"c")
        assert [reader.get() and reader.peek() for reader in (late,)] == [None]
        with pytest.raises(BadNameError, match="named readers"):
            queue.reader("")
        with pytest.raises(BadNameError):
            queue.reader("a/b")
        assert queue.readers == ["early", "late", "worker.1"]
        queue.drop_reader("late")
        queue.drop_reader("early")
        with pytest.raises(MissingError, match=r"no reader 'early'; its readers are \['worker.1'\]"):
            queue.drop_reader("early")
    assert [name for name in files(tmp_path) if ".read." in name] == ["jobs.read.worker.1"]


def test_read_files_go_when_all_are_past(jobs: Callable[..., segmented.Queue], tmp_path: Path) -> None:
    with jobs(journal_bytes=200, checkpoint_s=0) as queue:
        a, b = queue.reader("a"), queue.reader("b")
        for number in range(40):
            queue.put(b"%02d" % number + b"x" * 30)
        many = len(files(tmp_path))
        for each in iter(a.get, None):
            a.commit(each.id)
        assert len(files(tmp_path)) == many
        for _ in range(20):
            item = b.get()
            assert item is not None
            b.commit(item.id)
        assert len(files(tmp_path)) < many / 2 + 3
        b.flush()
        queue.checkpoint()
        assert len(files(tmp_path)) == 3
        assert queue.put(b"next") == 41


def test_retired_files_are_archived(jobs: Callable[..., segmented.Queue], tmp_path: Path) -> None:
    with jobs(journal_bytes=100, archive_to=tmp_path / "old") as queue:
        for _ in range(10):
            queue.put(b"x" * 40)
        assert queue.reader().flush() == 10
        queue.checkpoint()
    archived = sorted((tmp_path / "old").iterdir())
    assert len(archived) == 9
    assert all(path.name.startswith("archive~jobs.") for path in archived)
    assert [item.id for path in archived for item in segmented.read_writer_file(path)] == list(range(1, 10))


def test_limits_refuse_if_any_reader_is_full(jobs: Callable[..., segmented.Queue]) -> None:
    with jobs(max_items=2) as queue:
        a, b = queue.reader("a"), queue.reader("b")
        queue.put_many([b"1", b"2"])
        a.flush()
        assert b.get() is not None
        with pytest.raises(FullError, match="'b'"):
            queue.put(b"3")
        assert b.commit(1)
        queue.put(b"3")


def test_what_has_expired_takes_no_room(jobs: Callable[..., segmented.Queue], clock: Clock) -> None:
    with jobs(max_items=1) as queue:
        queue.put(b"short", expire_time=START + 1)
        with pytest.raises(FullError):
            queue.put(b"too early")
        clock.now += 1
        queue.put(b"in its place")
        assert len(queue.reader()) == 1


def test_an_expired_item_is_told_until_it_is_heard(jobs: Callable[..., segmented.Queue], clock: Clock) -> None:
    told: list[int] = []

    def hear(item: segmented.Item) -> None:
        told.append(item.id)
        if len(told) == 1:
            raise KeyError

    with jobs(on_expired=hear) as queue:
        queue.put_many([b"short", b"shorter"], expire_time=START + 1)
        clock.now += 1
        reader = queue.reader()
        with pytest.raises(KeyError):
            reader.get()
        assert len(reader) == 2
        assert reader.get() is None
        assert told == [1, 1, 2]
        assert (len(reader), reader.head, reader.size) == (0, 2, 0)


# --- The options of both

BOTH = ("max_items", "max_bytes", "max_item_bytes", "max_age_s", "journal_bytes")
TWO = ("open_timeout_s", "max_memory_bytes", "max_journal_bytes", "compact_delay_s")


@pytest.mark.parametrize(
    ("name", "option"),
    [(name, o) for name in OPENERS for o in (*BOTH, *(TWO if name == "two" else ("max_errors", "checkpoint_s")))],
)
def test_sizes_counts_and_times_are_not_below_0(tmp_path: Path, name: str, option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be .*, got -1"):
        OPENERS[name](tmp_path, "cars", **{option: -1})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("sync", ["never", "always", 0.001])
def test_sync_is_named(sync: Any, kind: Any, tmp_path: Path) -> None:
    with closing(kind.open(tmp_path, sync=sync)) as q:
        q.put(b"a")
        assert q.end(q.take()[0])
        q.queue.sync()
    for wrong in ("often", 0, -1):
        with pytest.raises(ValueError, match="sync must be"):
            kind.open(tmp_path, sync=wrong)
    kind.open(tmp_path).close()


def test_what_was_written_is_synced_after_the_period(kind: Any, tmp_path: Path) -> None:
    """Also what is written after such a sync. If it fails, the next call fails."""
    syncing, failing = Event(), False

    def hook(verb: str, *_: object) -> None:
        if verb == "sync":
            syncing.set()
            if failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    with closing(kind.open(tmp_path, sync=0.001, disk=HookedDisk(hook))) as q:
        tail = q.queue._tail

        def synced() -> bool:
            with tail.signal.guard:  # a sync is not under way
                syncing.clear()
                return not any(output.unsynced for output in (tail.output, *tail.others))

        steps: list[Callable[[], object]] = [partial(q.put, b"a"), partial(q.put, b"b"), lambda: q.end(q.take()[0])]
        for step in steps:
            step()
            while not synced():
                assert syncing.wait(60)
        failing = True
        q.put(b"c")
        assert syncing.wait(60)
        assert not synced()
        with pytest.raises(FailedError):
            q.put(b"d")


def use(queue: Any) -> None:
    """Let files be rotated, and then packed or archived, or made for dead letters."""
    for number in range(9):
        queue.put(b"%d" % number)
    if isinstance(queue, sej.WorkQueue):
        queue.get_many(1, timeout=0.0)[0].fail("why")
        assert queue.redrive() == 1
    else:
        (queue.reader() if isinstance(queue, segmented.Queue) else queue).flush()


@pytest.mark.parametrize(
    "make",
    [
        lambda: kestrel.Queue("spool", "cars", max_memory_bytes=60),
        lambda: segmented.Queue("spool", "jobs", journal_bytes=LEAST_BYTES + 9, archive_to="done"),
        lambda: sej.open_queue("spool/cars", "worker", backend="kestrel"),
        lambda: sej.open_queue("spool/cars", "worker", backend="libkestrel"),
    ],
)
def test_a_relative_path_means_the_directory_of_the_opening(
    make: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with make() as queue:
        monkeypatch.chdir(tmp_path / "elsewhere")
        use(queue)
    assert list((tmp_path / "elsewhere").iterdir()) == []
