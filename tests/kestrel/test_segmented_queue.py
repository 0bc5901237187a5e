"""What a libkestrel queue does, verb by verb, on real files."""

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kestrel import segmented
from kestrel.errors import BadNameError, BusyError, FailedError, FullError, MissingError, ShutError, TooLargeError
from tests.kestrel.support import START
from tests.sej.hooks import HookedDisk, Worker
from tests.ticks import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock(START)


@pytest.fixture
def opened(tmp_path: Path, clock: Clock) -> Callable[..., segmented.Queue]:
    def make(**options: Any) -> segmented.Queue:
        return segmented.Queue(tmp_path, "jobs", now_ms=clock, **options)

    return make


def files(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if "~~" not in entry.name)


def test_a_commit_holds_although_the_head_moves_over_others(opened: Callable[..., segmented.Queue]) -> None:
    """After an opening the head passes done items only when it reaches them: found by killing processes."""
    with opened() as queue:
        queue.put_many([b"x"] * 9)
        reader = queue.reader()
        for _ in range(9):
            reader.get()
        for number in (1, 3, 4):
            assert reader.commit(number)
    queue = opened()
    reader = queue.reader()
    for number in (2, 5, 6):
        item = reader.get()
        assert item is not None
        assert item.id == number
        if number != 5:
            assert reader.commit(item)
    on_disk = segmented.load(queue.directory, "jobs")
    assert on_disk.pending("") == [5, 7, 8, 9]
    queue.close()
    with opened() as queue:
        taken = [item.id for _ in range(9) if (item := queue.reader().get())]
        assert taken == [5, 7, 8, 9]


def test_given_back_items_come_first_and_count_errors(opened: Callable[..., segmented.Queue]) -> None:
    given_up: list[tuple[str, int]] = []
    with opened(max_errors=2, on_given_up=lambda name, item: given_up.append((name, item.id))) as queue:
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


def test_the_first_named_reader_takes_the_defaults_place(
    opened: Callable[..., segmented.Queue], tmp_path: Path
) -> None:
    with opened() as queue:
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


def test_read_files_go_when_all_are_past(opened: Callable[..., segmented.Queue], tmp_path: Path) -> None:
    with opened(journal_bytes=200, checkpoint_s=0) as queue:
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


def test_retired_files_are_archived(opened: Callable[..., segmented.Queue], tmp_path: Path) -> None:
    with opened(journal_bytes=100, archive_to=tmp_path / "old") as queue:
        for _ in range(10):
            queue.put(b"x" * 40)
        assert queue.reader().flush() == 10
        queue.checkpoint()
    archived = sorted((tmp_path / "old").iterdir())
    assert len(archived) == 9
    assert all(path.name.startswith("archive~jobs.") for path in archived)
    assert [item.id for path in archived for item in segmented.read_writer_file(path)] == list(range(1, 10))


def test_items_expire_at_their_time(opened: Callable[..., segmented.Queue], clock: Clock) -> None:
    told: list[int] = []
    with opened(max_age_s=1, on_expired=lambda item: told.append(item.id)) as queue:
        queue.put(b"a", expire_time=START + 10)
        queue.put(b"b")
        reader = queue.reader()
        clock.now += 10
        assert reader.peek() == (2, START, None, 0, b"b")
        clock.now += 990
        assert reader.get() is None
        assert told == [1, 2]
        assert (reader.head, len(reader), reader.size) == (2, 0, 0)


def test_limits_refuse_if_any_reader_is_full(opened: Callable[..., segmented.Queue]) -> None:
    with opened(max_items=2, max_item_bytes=10) as queue:
        a, b = queue.reader("a"), queue.reader("b")
        queue.put_many([b"1", b"2"])
        a.flush()
        with pytest.raises(FullError, match="'b'"):
            queue.put(b"3")
        assert b.get() is not None
        with pytest.raises(FullError):
            queue.put(b"3")
        b.commit(1)
        queue.put(b"3")
        with pytest.raises(TooLargeError, match="at most 10 bytes"):
            queue.put(b"x" * 11)
        with pytest.raises(TypeError):
            queue.put("text")  # type: ignore[arg-type]


def test_the_oldest_are_dropped(opened: Callable[..., segmented.Queue]) -> None:
    with opened(max_items=3, max_bytes=100, drop_oldest=True) as queue:
        reader = queue.reader()
        queue.put_many([b"x"] * 8)
        taken = [item.id for _ in range(4) if (item := reader.get())]
        assert taken == [6, 7, 8]
        assert reader.counters().discarded == 5
        queue.put(b"x" * 100)
        assert len(reader) == 3


def test_a_get_waits_for_a_put(opened: Callable[..., segmented.Queue]) -> None:
    with opened() as queue:
        reader = queue.reader()
        waiting = Worker(partial(reader.get, timeout=None))
        queue.put(b"now")
        assert waiting.result() == (1, START, None, 0, b"now")
        waiting = Worker(partial(reader.get, timeout=None))
        while waiting.is_alive():
            queue.evict_waiters()
        assert waiting.result() is None
        assert reader.get(timeout=0.01) is None


def test_closed_locked_and_deleted(opened: Callable[..., segmented.Queue], tmp_path: Path) -> None:
    queue = opened()
    with pytest.raises(BusyError, match="pid="):
        opened()
    reader = queue.reader()
    queue.put(b"a")
    queue.close()
    queue.close()
    for verb in (reader.get, reader.flush, queue.checkpoint, lambda: queue.put(b"")):
        with pytest.raises(ShutError):
            verb()
    again = opened()
    assert len(again.reader()) == 1
    again.delete()
    assert files(tmp_path) == []


def test_a_reader_file_is_what_the_original_writes(opened: Callable[..., segmented.Queue], tmp_path: Path) -> None:
    with opened() as queue:
        queue.put(b"a")
    assert (tmp_path / "jobs.read.").read_bytes().hex(" ") == "26 3c 26 03 02 00 00 00 00 00 00 00 00 91 00 00 00 00"
    (writer,) = [path for path in tmp_path.iterdir() if path.name[5:].isdecimal()]
    assert writer.read_bytes()[:5].hex(" ") == "27 64 26 03 86"


def test_a_lost_lock_stops_commits(opened: Callable[..., segmented.Queue], tmp_path: Path) -> None:
    """The new owner of the queue may have replaced the reader file, so a queue without the lock must not write it."""
    queue = opened()
    queue.put(b"x")
    reader = queue.reader()
    reader.get()
    (tmp_path / "jobs~~lock").unlink()
    queue.files.tail._checked_ns = 0  # as if the last look was 100 ms ago
    with pytest.raises(FailedError, match="removed or replaced"):
        reader.commit(1)
    with pytest.raises(FailedError):
        queue.checkpoint()
    queue.close()
    assert segmented.load(tmp_path, "jobs").pending("") == [1]


def test_what_has_expired_takes_no_room(opened: Callable[..., segmented.Queue], clock: Clock) -> None:
    with opened(max_items=1) as queue:
        queue.put(b"short", expire_time=START + 1)
        with pytest.raises(FullError):
            queue.put(b"too early")
        clock.now += 1
        queue.put(b"in its place")
        assert len(queue.reader()) == 1


def test_an_expired_item_is_told_until_it_is_heard(opened: Callable[..., segmented.Queue], clock: Clock) -> None:
    told: list[int] = []

    def hear(item: segmented.Item) -> None:
        told.append(item.id)
        if len(told) == 1:
            raise KeyError

    with opened(on_expired=hear) as queue:
        queue.put_many([b"short", b"shorter"], expire_time=START + 1)
        clock.now += 1
        reader = queue.reader()
        with pytest.raises(KeyError):
            reader.get()
        assert len(reader) == 2
        assert reader.get() is None
        assert told == [1, 1, 2]
        assert (len(reader), reader.head) == (0, 2)


@pytest.mark.parametrize("end", ["close", "delete"])
def test_a_close_that_fails_releases_the_lock(tmp_path: Path, end: str) -> None:
    failing = False

    def hook(*_: object) -> None:
        if failing:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    queue = segmented.Queue(tmp_path, "jobs", disk=HookedDisk(hook))
    queue.put(b"a")
    reader = queue.reader("r")
    queue.put(b"b")
    item = reader.get()
    assert item is not None
    reader.commit(item.id)
    queue.put(b"c")
    failing = True
    with pytest.raises(FailedError):
        getattr(queue, end)()
    failing = False
    queue.close()
    with segmented.Queue(tmp_path, "jobs") as again:
        item = again.reader("r").get()
        assert item is not None
        assert item.data == b"b"
