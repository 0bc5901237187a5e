"""The sharded writer: everything arrives where its key belongs, whatever fails elsewhere."""

import errno
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path as FilePath
from typing import Any

import pytest

import sej
import shard
from sej.system.disk import File
from shard import routing
from tests.house.house import ROOT, run
from tests.sej.hooks import HookedDisk, Worker
from tests.sej.support import read_all

KEYS = [b"key-%d" % number for number in range(40)]


def contents(path: shard.Path) -> dict[int, list[sej.Message]]:
    found = {}
    for index in range(path.count):
        if FilePath(path.dir(index)).exists():
            found[index] = read_all(FilePath(path.dir(index)))
    return found


@pytest.fixture
def path(tmp_path: FilePath) -> shard.Path:
    return shard.Path(tmp_path / "root", "orders", 3)


def test_messages_arrive_where_their_keys_belong(path: shard.Path) -> None:
    with shard.Writer(path) as writer:
        for number, key in enumerate(KEYS):
            index, offset = writer.append(b"%d" % number, key, type=number, timestamp=number)
            assert index == path.index(key)
            assert writer.offsets[index] == offset + 1
        spans = writer.append_many([b"again"] * len(KEYS), KEYS, list(range(40)), list(range(100, 140)))
    found = contents(path)
    for index, messages in found.items():
        assert all(path.index(message.key) == index for message in messages)
        assert [message.offset for message in messages] == list(range(len(messages)))
        assert len(messages) == 2 * len(spans[index])
        for message in messages[len(messages) // 2 :]:
            assert KEYS[message.type] == message.key
            assert message.timestamp == 100 + message.type
    assert sum(map(len, found.values())) == 80


@pytest.mark.parametrize("max_open", [1, 2, 7])
def test_the_least_recently_used_shard_is_closed(path: shard.Path, max_open: int) -> None:
    with shard.Writer(path, max_open=max_open, segment_bytes=2000) as writer:
        for number in range(30):
            writer.append_many([b"%d" % number] * len(KEYS), KEYS)
            assert writer.open_count <= max_open
            writer.append(b"one", KEYS[number])
            if number % 10 == 0:
                writer.flush()
                writer.sync()
    found = contents(path)
    assert sum(map(len, found.values())) == 30 * 41
    for key in KEYS:
        mine = [message.value for message in found[path.index(key)] if message.key == key and message.value != b"one"]
        assert mine == [b"%d" % number for number in range(30)]
    for index in found:
        assert sej.Journal(path.dir(index)).verify() == []


def test_a_closed_shard_may_be_written_to_by_another(path: shard.Path) -> None:
    with shard.Writer(path, max_open=1) as writer:
        index, _ = writer.append(b"mine", KEYS[0])
        other = next(key for key in KEYS if path.index(key) != index)
        with pytest.raises(sej.LockedError, match="pid="):
            sej.Writer(path.dir(index))
        writer.append(b"elsewhere", other)
        with sej.Writer(path.dir(index)) as foreign:
            foreign.append_many([b"theirs", b"theirs"])
            with pytest.raises(sej.LockedError, match=f"{index:03x}.*pid="):
                writer.append(b"mine", KEYS[0])
        assert writer.append(b"mine", KEYS[0]) == (index, 3)
        writer.append(b"elsewhere", other)
        with sej.Writer(path.dir(index)) as foreign:
            foreign.end.rotate()
            foreign.append(b"theirs")
        assert writer.append(b"mine", KEYS[0]) == (index, 5)
    assert [m.value for m in contents(path)[index]] == [b"mine", b"theirs", b"theirs", b"mine", b"theirs", b"mine"]


def test_what_fails_in_one_shard_loses_nothing_in_the_others(path: shard.Path) -> None:
    held = path.index(KEYS[0])
    with sej.Writer(path.dir(held)), shard.Writer(path) as writer:
        with pytest.raises(sej.LockedError) as caught:
            writer.append_many([b"v"] * len(KEYS), KEYS)
        error = caught.value
        assert isinstance(error, shard.ShardsFailedError)
        assert set(error.errors) == {held}
        assert f"shard {held:03x}" in str(error)
        assert error.holder is not None
        assert "pid=" in error.holder
        assert sum(map(len, error.appended.values())) == sum(path.index(key) != held for key in KEYS)
    assert sum(map(len, contents(path).values())) == sum(path.index(key) != held for key in KEYS)


def test_a_broken_shard_stays_broken_and_the_others_go_on(path: shard.Path) -> None:
    lost = path.index(KEYS[0])
    with shard.Writer(path, max_open=2) as writer:
        writer.append(b"good", KEYS[0])
        FilePath(path.dir(lost), "jnl.lck").unlink()
        with pytest.raises(sej.LockLostError):
            append_for_ever(writer, KEYS[0])  # the lock is looked at every 100 ms at the latest
        for _ in range(3):
            with pytest.raises(shard.ShardsBrokenError, match=f"in shard {lost:03x}") as caught:
                writer.append_many([b"v"] * len(KEYS), KEYS)
            assert set(caught.value.errors) == {lost}
        with pytest.raises(shard.ShardsBrokenError):
            writer.sync()
    good = sum(path.index(key) != lost for key in KEYS)
    assert sum(len(messages) for index, messages in contents(path).items() if index != lost) == 3 * good


class FailingDisk(HookedDisk):
    """Fails to sync the segments of the directory ``broken``, and counts the other syncs."""

    def __init__(self) -> None:
        super().__init__(self.count)
        self.broken = ""
        self.syncs = 0

    def count(self, verb: str, file: File | None, data: bytes) -> None:
        if verb == "sync" and file is not None and file.path.endswith(".jnl"):
            if self.broken and file.path.startswith(self.broken):
                raise OSError(errno.EIO, "Input/output error", file.path)
            self.syncs += 1


@pytest.mark.parametrize("max_open", [2, 100])
def test_what_is_not_durable_was_not_appended_and_the_others_are(path: shard.Path, max_open: int) -> None:
    disk = FailingDisk()
    broken = path.index(KEYS[0])
    used = {path.index(key) for key in KEYS}
    writer = shard.Writer(path, max_open=max_open, durability="disk", disk=disk)
    assert writer.append_many([b"v"] * len(KEYS), KEYS).keys() == used
    disk.broken, before = path.dir(broken), disk.syncs
    with pytest.raises(shard.ShardsBrokenError, match=f"failed in shard {broken:03x}; the other") as caught:
        writer.append_many([b"v"] * len(KEYS), KEYS)
    assert caught.value.errors.keys() == {broken}
    assert caught.value.appended.keys() == used - {broken}
    assert disk.syncs - before >= len(used) - 1
    with pytest.raises(shard.ShardsBrokenError, match=f"append.* failed in shard {broken:03x}"):
        writer.append_many([b"v"] * len(KEYS), KEYS)
    writer.close()
    assert set(contents(path)) == used


def append_for_ever(writer: shard.Writer, key: bytes) -> None:
    while True:
        writer.append(b"v", key)


def test_a_route_of_ones_own(path: shard.Path) -> None:
    with shard.Writer(path, route=lambda message: message.type) as writer:
        assert writer.append(b"a", b"k", type=13) == (5, 0)
        assert writer.append_many([b"a", b"b", b"c"], [b"k"] * 3, type=[1, 2, 9]) == {1: range(2), 2: range(1)}
    with (
        pytest.raises(TypeError, match="route must return an int"),
        shard.Writer(path, route=lambda message: "x") as writer,  # type: ignore[arg-type]
    ):
        writer.append(b"a")


def test_threads_share_a_writer(path: shard.Path) -> None:
    with shard.Writer(path, max_open=3, durability="disk") as writer:

        def work(name: int) -> None:
            for number in range(20):
                writer.append(b"%d" % number, KEYS[name])
                writer.append_many([b"b"] * 5, KEYS[:5])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
    assert sum(map(len, contents(path).values())) == 4 * 20 * 6


def test_a_file_and_a_closed_writer_refuse(path: shard.Path, tmp_path: FilePath) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(sej.NotAJournalError, match="this is a file"):
        shard.Writer(shard.Path(tmp_path / "file", "p", 1))
    writer = shard.Writer(path)
    writer.close()
    writer.close()
    with pytest.raises(sej.ClosedError):
        writer.append(b"a")
    with pytest.raises(sej.ClosedError):
        writer.append_many([b"a"])


@pytest.fixture(params=[routing.APPENDER, routing.Appender], ids=["python", "chosen"])
def appender(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("shard.writer.Appender", request.param)
    return request.param


@pytest.mark.parametrize("route", ["xxh64", "fnv"])
@pytest.mark.parametrize("durability", ["buffer", "os", "disk"])
def test_an_append_to_an_open_shard_is_like_the_first_one(
    path: shard.Path, appender: Any, route: Any, durability: str
) -> None:
    with shard.Writer(path, route, durability=durability) as writer:
        expected: dict[int, int] = {}
        for turn in range(3):
            for key in [*KEYS, b"", b"k" * 127]:
                index = shard.index_of(key, path.bits, route)
                kind: Any = (bytes, bytearray, memoryview)[turn]
                assert writer.append(b"v", kind(key), type=7, timestamp=turn) == (index, expected.get(index, 0))
                expected[index] = expected.get(index, 0) + 1
        for wrong, error in ((b"k" * 128, sej.InvalidMessageError), ("text", TypeError)):
            with pytest.raises(error):
                writer.append(b"v", wrong)  # type: ignore[arg-type]
        with pytest.raises(sej.InvalidMessageError):
            writer.append(b"v", KEYS[0], type=256)
        assert writer.offsets == dict(sorted(expected.items()))
    assert sum(map(len, contents(path).values())) == sum(expected.values())


def test_a_shard_that_cannot_write_keeps_no_batch_from_the_others(path: shard.Path, appender: Any) -> None:
    def full(data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    broken = path.index(KEYS[0])
    good = {path.index(key) for key in KEYS} - {broken}
    writer = shard.Writer(path)
    writer.append_many(KEYS, KEYS)
    end = writer._open[broken].end
    end.buffer.set_direct_write(full, end._write_trouble, 1 << 18, 1 << 60)
    for _ in range(2):
        with pytest.raises(shard.ShardsBrokenError, match=f"append.* failed in shard {broken:03x}") as caught:
            writer.append_many(KEYS, KEYS)
        assert caught.value.errors.keys() == {broken}
        assert caught.value.appended.keys() == good
    writer.close()
    found = contents(path)
    assert [len(found[index]) for index in good] == [
        3 * sum(path.index(key) == index for key in KEYS) for index in good
    ]


class PausingDisk(HookedDisk):
    """Stops the call named by ``at`` until ``go_on`` is set."""

    def __init__(self) -> None:
        super().__init__(self.pause)
        self.at = ""
        self.here, self.go_on = threading.Event(), threading.Event()

    def pause(self, verb: str, file: File | None, data: bytes) -> None:
        if verb == self.at and (file is None or file.path.endswith(".jnl")):
            self.here.set()
            assert self.go_on.wait(60)


def test_a_child_is_refused_whatever_another_thread_was_doing_at_the_fork(path: shard.Path) -> None:
    disk = PausingDisk()
    elsewhere = next(key for key in KEYS if path.index(key) != path.index(KEYS[0]))
    with shard.Writer(path, disk=disk) as writer:
        writer.append(b"v", KEYS[0])
        disk.at = "mkdir"
        opening = Worker(lambda: writer.append(b"v", elsewhere))
        assert disk.here.wait(60)
        child = os.fork()
        if not child:
            signal.alarm(30)
            refused = 0
            calls = (partial(writer.append, b"v", KEYS[0]), partial(writer.append_many, [b"v"]),
                     partial(writer.append_to, 0, []), writer.flush, writer.sync, lambda: writer.offsets)  # fmt: skip
            for call in calls:
                try:
                    call()
                except sej.ClosedError:
                    refused += 1
            writer.close()
            os._exit(refused)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 6
        disk.go_on.set()
        opening.result()


def test_what_comes_while_closing_is_refused_and_no_lock_is_left(path: shard.Path) -> None:
    disk = PausingDisk()
    elsewhere = next(key for key in KEYS if path.index(key) != path.index(KEYS[0]))
    writer = shard.Writer(path, disk=disk)
    writer.append(b"v", KEYS[0])
    disk.at = "sync"
    closing = Worker(writer.close)
    assert disk.here.wait(60)
    with pytest.raises(sej.ClosedError):
        writer.append(b"v", elsewhere)
    disk.go_on.set()
    closing.result()
    with shard.Writer(path) as another:
        another.append_many([b"v"] * len(KEYS), KEYS)


@pytest.mark.parametrize("max_open", [2, 100])
def test_what_cannot_be_synced_in_the_background_is_named(path: shard.Path, max_open: int) -> None:
    disk, broken = FailingDisk(), path.index(KEYS[0])
    before = set(threading.enumerate())
    writer = shard.Writer(path, max_open=max_open, durability="interval", sync_interval_s=3600, disk=disk)
    writer.append_many([b"v"] * len(KEYS), KEYS)
    writer.sync()
    disk.broken = path.dir(broken)
    writer.append(b"v", KEYS[0])
    with pytest.raises(shard.ShardsBrokenError, match=f"closing failed in shard {broken:03x};"):
        writer.close()
    assert {thread for thread in threading.enumerate() if thread.is_alive()} <= before


def test_a_message_that_is_refused_makes_no_shard(path: shard.Path) -> None:
    bad = sej.Message(0, 0, 0, b"k" * 128, b"v")
    with shard.Writer(path) as writer:
        for append in (
            lambda: writer.append(b"v", bad.key),
            lambda: writer.append(b"v", b"k", type=256),
            lambda: writer.append_to(3, [bad]),
        ):
            with pytest.raises(sej.InvalidMessageError):
                append()
    assert contents(path) == {}


def test_a_relative_root_means_the_directory_of_the_opening(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    path, keys = shard.Path("root", "orders", 2), [b"key %d" % number for number in range(20)]
    monkeypatch.chdir(tmp_path)
    with shard.Writer(path) as writer:
        writer.append(b"first", keys[0])
        monkeypatch.chdir(tmp_path / "elsewhere")
        writer.append_many(keys, keys)
    monkeypatch.chdir(tmp_path)
    worker = shard.Worker(path, "mailer", max_attempts=1, dead_letter="dead", timeout=0.0)
    with shard.Scanner(path) as scanner:
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert len(list(scanner)) == 21
    assert worker.run(lambda index, message: 1 // len(message.value.replace(b"first", b""))) == 21
    assert [letter.message.value for letter in sej.dead_letters(tmp_path / "dead")] == [b"first"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


# --- A low limit of open files: fewer files are used, or it raises and names the way out


PROGRAM = """
import resource, sys, warnings
import sej, shard

root, most = sys.argv[1], int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
path = shard.Path(root, "orders", 6)
keys = [b"%d" % number for number in range(2000)]
with shard.Writer(path) as writer:
    for _ in range(3):
        writer.append_many(keys, keys)
    print("open", writer.open_count)
with shard.Scanner(path, by="time") as scanner:
    print("read", sum(1 for _ in scanner))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("default")
    handled = shard.Worker(path, "w", timeout=0.0).run(lambda index, message: None)
print("handled all", handled == 6000, [str(warning.message).partition(":")[0] for warning in caught])
try:
    print("resharded", shard.reshard(path, shard.Path(root, "orders", 7)).messages)
except sej.SejError as error:
    print("refused", "ulimit -n" in str(error))
"""


def lines(root: FilePath, most: int) -> list[str]:
    done = run([sys.executable, "-W", "error", "-c", PROGRAM, root, str(most)], ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_no_more_files_are_opened_than_the_limit_allows(tmp_path: FilePath) -> None:
    # The new sharded journal's writer has fewer files than four for each shard, because a reshard holds 64 locks.
    assert lines(tmp_path / "many", 320) == ["open 64", "read 6000", "handled all True []", "resharded 6000"]
    few = lines(tmp_path / "few", 70)
    assert few[:2] == ["open 1", "read 6000"]
    assert few[2].startswith("handled all False ['this worker cannot open enough files for its 64 shards of ")
    assert few[3:] == ["refused True"]
